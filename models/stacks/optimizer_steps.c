/* optimizer_steps.c: steps of optimizers as torchao and DeepSpeed take them. */
#include "backends/moments.h"
#include "stacks/optimizer_steps.h"
#include "tensor/tensor.h"

/* ---- torchao ---- */

bool mti_torchao_step(mt_device *d, const mti_opt_params *p, int n, const mti_opt_item *items)
{
    bool ok = true;
    for (int i = 0; ok && i < n; i++) {
        const mti_opt_item *item = &items[i];
        bool copies = mt_dtype_size(item->dtype) == 2 && !item->master;
        size_t wide = 4 * (size_t)item->n,
               codes = (size_t)mti_moment_scales_at(item->moments, item->n);
        const size_t bytes[] = {wide, wide, copies ? wide : 0, codes};
        mti_block *held[4] = {NULL};
        for (int k = 0; ok && item->moments >= MTI_MOMENTS_8BIT && k < 4; k++) {
            if (!bytes[k]) continue;
            if ((ok = (held[k] = mti_pool_alloc(d->pool, bytes[k], MT_TEMPORARY)) != NULL))
                held[k]->owner = NULL;
        }
        ok = ok && d->backend->adamw(d->ctx, p, 1, item);
        for (int k = 0; k < 4; k++) mti_pool_free(d->pool, held[k], bytes[k]);
    }
    return ok;
}

/* ---- DeepSpeed ---- */

/* The type of all gradients, and their elements; MT_DTYPE_COUNT: they differ. */
static mt_dtype type_of(size_t n, mt_tensor **const grads[], int64_t *elements)
{
    const mt_dtype dtype = mt_dtype_of(*grads[0]);
    bool differ = false;
    *elements = 0;
    for (size_t i = 0; i < n; i++) {
        differ = differ || mt_dtype_of(*grads[i]) != dtype;
        *elements += mt_numel(*grads[i]);
    }
    return differ ? MT_DTYPE_COUNT : dtype;
}

static mt_tensor *new_grads(mt_device *d, mt_dtype dtype, int64_t n)
{
    const mti_view spec = {.dtype = dtype, .rank = 1, .shape = {n}, .stride = {1}};
    return mti_tensor_new(d, &spec, MT_GRADIENT, false);
}

/* The gradient's place in `all`, whose next element is *at. */
static mti_view place_in(const mt_tensor *all, const mt_tensor *grad, int64_t *at)
{
    mti_view v = grad->view;
    size_t n_bytes;
    char *data = all->view.data;
    v.dtype = mt_dtype_of(all);
    mti_view_pack(&v, &n_bytes);
    v.data = data ? data + (size_t)*at * mt_dtype_size(v.dtype) : NULL;
    *at += mti_view_count(&v);
    return v;
}

static bool copy_grads(mt_device *d, size_t n, mt_tensor **const grads[], mt_tensor *to)
{
    int64_t at = 0;
    bool ok = true;
    for (size_t i = 0; ok && i < n; i++) {
        mti_view place = place_in(to, *grads[i], &at);
        ok = mti_copy_view(d, &(*grads[i])->view, &place);
    }
    return ok;
}

/* The gradients side by side in f32: flatten, which copies them in their type, then a cast. */
static mt_tensor *flattened(mt_device *d, size_t n, mt_tensor **const grads[], mt_dtype dtype,
                            int64_t elements)
{
    const bool alike = dtype != MT_DTYPE_COUNT;
    MT_AUTO mt_tensor *flat = alike ? new_grads(d, dtype, elements) : NULL;
    if (alike && (!flat || !copy_grads(d, n, grads, flat))) return NULL;
    if (dtype == MT_F32) return mt_retain(flat);
    mt_tensor *wide = new_grads(d, MT_F32, elements);
    if (wide &&
        !(flat ? mti_copy_view(d, &flat->view, &wide->view) : copy_grads(d, n, grads, wide)))
        mt_set(&wide, NULL);
    return wide;
}

bool mti_deepspeed_flatten(mt_device *d, size_t n, mt_tensor **const grads[])
{
    int64_t elements, at = 0;
    if (!n) return true;
    const mt_dtype dtype = type_of(n, grads, &elements);
    if (!elements || dtype == MT_F64) return true;
    MT_AUTO mt_tensor *wide = flattened(d, n, grads, dtype, elements);
    bool ok = wide != NULL;
    for (size_t i = 0; ok && i < n; i++) {
        mti_view place = place_in(wide, *grads[i], &at);
        ok = mt_set(grads[i], mti_tensor_view(wide, &place)) == MT_OK;
    }
    return ok;
}

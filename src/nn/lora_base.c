/* lora_base.c: a linear whose frozen weight is kept in NF4 (Dettmers et al. 2023, QLoRA).
 *
 * It is a linear over a dequantised temporary, and a saved-tensor hook that keeps linear from
 * keeping it: pack leaves nothing, unpack dequantises again. An op of its own would do the same;
 * the hook needs nothing that a user of the library does not have, nests with checkpointing and
 * the ledger, and leaves linear's shape rule, products and gradient where they are. */
#include "memtape/autocast.h"
#include "memtape/ops.h"
#include "nn/lora.h"

typedef struct weight {
    mt_quant format;
    mt_dtype dtype;   /* of the linear it was */
    int64_t shape[2]; /* [out,in] */
} weight;

static mt_tensor *dequantize(const weight *w, mt_tensor *codes, mt_dtype dtype)
{
    mt_tensor *t = mt_dequantize(codes, &w->format, dtype, 2, w->shape);
    if (!t || mt_set_category(t, MT_TEMPORARY) == MT_OK) return t;
    mt_release(t);
    return NULL;
}

/* ---- the hook around one call ---- */

typedef struct again {
    weight of;
    mt_tensor *codes; /* retained */
    mt_dtype dtype;   /* what was packed; autocast may have cast */
    uint64_t version; /* of the codes then */
} again;

static mt_status pack(void *user, const mt_save_info *info, mt_tensor *tensor, mt_tensor **kept,
                      void **state)
{
    again *a = user;
    (void)state;
    if (info->role != MT_SAVE_INPUT || info->index != 1) return MT_OK;
    a->dtype = mt_dtype_of(tensor);
    *kept = NULL;
    return MT_OK;
}

static mt_status unpack(void *user, const mt_save_info *info, mt_tensor **tensor, void *state)
{
    again *a = user;
    (void)state;
    if (info->role != MT_SAVE_INPUT || info->index != 1) return MT_OK;
    if (mt_storage_of(a->codes).version != a->version)
        return mti_fail(MT_ERR_STATE,
                        "linear_nf4 backward in %s: the weight was changed in place "
                        "after it was used",
                        info->module);
    *tensor = mt_dequantize(a->codes, &a->of.format, a->dtype, 2, a->of.shape);
    return *tensor ? MT_OK : mt_last_status();
}

static void destroy(void *user)
{
    again *a = user;
    mt_release(a->codes);
    mti_free(a);
}

static bool push_hook(const weight *w, mt_tensor *codes)
{
    again *a = mti_malloc(sizeof *a);
    if (!a) return false;
    *a = (again){*w, mt_retain(codes), w->dtype, mt_storage_of(codes).version};
    if (mt_push_saved_hooks(&(mt_saved_hooks){pack, unpack, NULL, destroy}, a) == MT_OK)
        return true;
    destroy(a);
    return false;
}

/* ---- the module ---- */

static mt_tensor *forward(mt_module *self, mt_tensor *x)
{
    const weight *w = mt_module_user(self);
    mt_tensor *codes = mt_module_param(self, "weight");
    mt_dtype dtype = w->dtype;
    mt_autocast_active(&dtype);
    MT_AUTO mt_tensor *dense = dequantize(w, codes, dtype);
    if (!dense || !push_hook(w, codes)) return NULL;
    mt_tensor *y = mt_linear(x, dense, mt_module_param(self, "bias"));
    mt_pop_saved_hooks();
    return y;
}

mt_module *mti_linear_nf4_new(const mt_module *linear, bool double_scales)
{
    mt_tensor *dense = mt_module_param(linear, "weight"), *bias = mt_module_param(linear, "bias");
    weight *w = mti_malloc(sizeof *w);
    if (!w) return NULL;
    *w = (weight){.format = {.format = MT_QUANT_NF4, .double_scales = double_scales},
                  .dtype = mt_dtype_of(dense),
                  .shape = {mt_shape(dense)[0], mt_shape(dense)[1]}};
    mt_module *m = mt_module_new("linear_nf4", forward, w, mti_free);
    bool wanted = mt_requires_grad(bias);
    bool complete = m && mt_module_add_param(m, "weight", mt_quantize(dense, &w->format)) &&
                    (!bias || mt_module_add_param(m, "bias", mt_retain(bias)));
    if (bias) mt_set_requires_grad(bias, wanted); /* to add it is to want its gradient */
    return mti_module_complete(m, complete);
}

bool mti_is_linear_nf4(const mt_module *m) { return mti_module_runs(m, forward); }

mt_tensor *mti_linear_nf4_weight(const mt_module *m, mt_dtype dtype)
{
    return dequantize(mt_module_user(m), mt_module_param(m, "weight"), dtype);
}

mt_dtype mti_linear_nf4_dtype(const mt_module *m)
{
    return ((const weight *)mt_module_user(m))->dtype;
}

/* call.c: what op files use in a call: gradients, temporaries, scratch, products, shape rules. */
#include <assert.h>
#include <string.h>
#include "autograd/autograd.h"

/* ---- backward: values and gradients ---- */

const mti_view *mti_saved(const mti_call *c, unsigned slot)
{
    const mt_tensor *t = c->saved[__builtin_ctz(slot)];
    assert(t && "backward reads a slot that its row of ops.def does not keep");
    return &t->view;
}

static mt_tensor *new_temporary(mti_call *c, const mti_view *spec)
{
    mti_view packed = *spec;
    size_t n_bytes;
    if (!mti_view_pack(&packed, &n_bytes))
        return mti_fail_null(MT_ERR_ARGUMENT, "%s: a temporary is larger than the address space",
                             c->op->name);
    return mti_tensor_new(c->device, &packed, MT_TEMPORARY, true);
}

const mti_view *mti_din(mti_call *c, int i)
{
    if (!c->din[i]) c->din[i] = new_temporary(c, &c->in_spec[i]);
    c->filled |= (uint64_t)1 << i;
    return c->din[i] ? &c->din[i]->view : NULL;
}

const mti_view *mti_din_reuse(mti_call *c, int i)
{
    mt_tensor *g = c->dout[0];
    const mti_view *spec = &c->in_spec[i];
    if (!c->din[i] && mti_tensor_is_exclusive(g) && g->view.dtype == spec->dtype &&
        mti_view_same_shape(&g->view, spec) && mti_view_is_contiguous(&g->view))
        c->din[i] = mt_retain(g);
    return mti_din(c, i);
}

const mti_view *mti_din_of_saved(mti_call *c, int i, unsigned slot)
{
    mt_tensor *t = c->saved[__builtin_ctz(slot)];
    mti_storage *s = t->storage;
    int slots = atomic_load(&s->saved); /* without hooks, the one that is let go after this call */
    if (c->last && slots < 2 && atomic_load(&t->refs) == slots + 1 && atomic_load(&s->refs) == 1) {
        mti_storage_settle(s, MT_TEMPORARY);
        atomic_fetch_add(&s->version, 1);
        c->din[i] = mt_retain(t);
        return mti_din(c, i);
    }
    const mti_view *din = mti_din(c, i);
    return din && c->k->copy(c->ctx, &t->view, din) ? din : NULL;
}

bool mti_give_din(mti_call *c, int i, mt_tensor *t)
{
    c->din[i] = t;
    return t != NULL;
}

bool mti_reduce_to_din(mti_call *c, int i, mt_tensor *grad)
{
    const mti_view *spec = &c->in_spec[i];
    if (!grad) return false;
    if (mti_view_same_shape(&grad->view, spec)) return mti_give_din(c, i, mt_retain(grad));
    const mti_view *din = mti_din(c, i);
    if (!din) return false;
    /* din with the leading dimensions that broadcasting added, as extents of 1. */
    mti_view y = *din;
    int lead = grad->view.rank - din->rank;
    y.rank = grad->view.rank;
    for (int d = 0; d < y.rank; d++) {
        y.shape[d] = d < lead ? 1 : din->shape[d - lead];
        y.stride[d] = d < lead ? 1 : din->stride[d - lead];
    }
    void *scratch;
    return mti_scratch(c, c->k->sum_scratch(c->ctx, &grad->view, &y), &scratch) &&
           c->k->sum(c->ctx, 1, &grad->view, &y, scratch);
}

/* ---- temporaries and scratch ---- */

mt_tensor *mti_temp(mti_call *c, mt_dtype dtype, int rank, const int64_t *shape)
{
    mti_view spec = {.dtype = dtype, .rank = rank};
    if (rank) memcpy(spec.shape, shape, (size_t)rank * sizeof *shape);
    assert(c->n_temps < (int)(sizeof c->temps / sizeof *c->temps));
    mt_tensor *t = new_temporary(c, &spec);
    if (t) c->temps[c->n_temps++] = t;
    return t;
}

const mti_view *mti_dense(mti_call *c, const mti_view *v)
{
    if (mti_view_is_contiguous(v)) return v;
    mt_tensor *t = mti_temp(c, v->dtype, v->rank, v->shape);
    return t && c->k->copy(c->ctx, v, &t->view) ? &t->view : NULL;
}

bool mti_in_to_host(mti_call *c, int i, void *data, size_t n_bytes)
{
    mt_tensor *t = c->backward ? c->saved[i] : c->in[i];
    assert(t && "backward reads a slot that its row of ops.def does not keep");
    if (mti_view_is_contiguous(&t->view)) return mti_read_once(t, data, n_bytes) == MT_OK;
    const mti_view *dense = mti_dense(c, &t->view);
    return dense && c->k->download(c->ctx, data, dense->data, n_bytes);
}

const mti_view *mti_dense_rows(mti_call *c, const mti_view *v)
{
    return !v->rank || v->shape[v->rank - 1] <= 1 || v->stride[v->rank - 1] == 1 ? v
                                                                                 : mti_dense(c, v);
}

bool mti_scratch(mti_call *c, size_t n_bytes, void **p)
{
    return mti_scratch_as(c, MT_WORKSPACE, n_bytes, p);
}

bool mti_scratch_as(mti_call *c, mt_category category, size_t n_bytes, void **p)
{
    *p = NULL;
    if (!n_bytes) return true;
    assert(c->n_scratch < (int)(sizeof c->scratch / sizeof *c->scratch));
    mti_block *b = mti_pool_alloc(c->device->pool, n_bytes, category);
    if (!b) return false;
    b->owner = NULL;
    c->scratch[c->n_scratch++] = b;
    *p = b->ptr;
    return true;
}

void mti_count_flops(mti_call *c, uint64_t n)
{
    mt_device *d = c->device;
    c->flops += n;
    atomic_fetch_add_explicit(c->backward                  ? &d->flops_backward
                              : mti_modes_now()->recompute ? &d->flops_recompute
                                                           : &d->flops_forward,
                              n, memory_order_relaxed);
}

/* ---- what a call moves ---- */

static void add(atomic_uint_fast64_t *counter, uint64_t n)
{
    atomic_fetch_add_explicit(counter, n, memory_order_relaxed);
}

static uint64_t moved_forward(const mti_call *c)
{
    uint64_t n = 0;
    for (int i = 0; i < c->n_in; i++) n += c->in[i] ? mti_view_bytes(&c->in[i]->view) : 0;
    for (int i = 0; i < c->n_out; i++) n += mti_view_bytes(&c->out[i]->view);
    for (int i = 0; i < c->op->n_aux; i++) n += c->aux[i] ? mti_view_bytes(&c->aux[i]->view) : 0;
    return n;
}

/* A gradient that is handed on, or seen as a view, is not written. */
static bool is_written(const mti_call *c, int i)
{
    if (!c->din[i]) return false;
    bool passed = false;
    for (int o = 0; o < c->n_out; o++)
        passed = passed || (c->dout[o] && c->dout[o]->storage == c->din[i]->storage);
    return (c->filled >> i & 1) || !passed;
}

static uint64_t moved_backward(const mti_call *c)
{
    uint64_t written = 0, read = 0;
    for (int i = 0; i < c->n_in; i++)
        written += is_written(c, i) ? mti_view_bytes(&c->din[i]->view) : 0;
    if (!written) return 0;
    for (int i = 0; i < c->n_out; i++) read += c->dout[i] ? mti_view_bytes(&c->dout[i]->view) : 0;
    for (unsigned bits = c->loaded; bits; bits &= bits - 1)
        read += mti_view_bytes(&c->saved[__builtin_ctz(bits)]->view);
    return read + written;
}

void mti_count_moved(const mti_call *c)
{
    if (c->sends || (!c->backward && c->op->flags & MTI_VIEW)) return;
    mt_device *d = c->device;
    add(c->flops ? &d->moved_products : &d->moved_others,
        c->backward ? moved_backward(c) : moved_forward(c));
}

void mti_count_sum(mt_device *d, const mti_view *sum)
{
    add(&d->moved_others, 3 * mti_view_bytes(sum));
}

/* ---- products ---- */

/* Whether BLAS can read v: one of the last two strides is 1, the other at least the extent. */
static bool is_matrix(const mti_view *v)
{
    int64_t m = v->shape[v->rank - 2], n = v->shape[v->rank - 1];
    int64_t rs = v->stride[v->rank - 2], cs = v->stride[v->rank - 1];
    return (cs == 1 && rs >= n && rs > 0) || (rs == 1 && cs >= m && cs > 0);
}

/* The stride of an extent of 1 is never used: set it to one that BLAS accepts. */
static mti_view with_leading_strides(const mti_view *v)
{
    mti_view r = *v;
    int64_t *rs = &r.stride[r.rank - 2], *cs = &r.stride[r.rank - 1];
    int64_t m = r.shape[r.rank - 2], n = r.shape[r.rank - 1];
    if (n <= 1 && m <= 1)
        *rs = *cs = 1;
    else if (n <= 1)
        *cs = *rs == 1 ? m : 1;
    else if (m <= 1)
        *rs = *cs == 1 ? n : 1;
    return r;
}

bool mti_readable(mti_call *c, const mti_view *v, mti_view *out)
{
    *out = with_leading_strides(v);
    if (is_matrix(out)) return true;
    const mti_view *dense = mti_dense(c, v);
    if (dense) *out = with_leading_strides(dense);
    return dense != NULL;
}

static void count_product(mti_call *c, const mti_view *a, const mti_view *out)
{
    mti_count_flops(c, 2 * (uint64_t)a->shape[a->rank - 1] * (uint64_t)mti_view_count(out));
}

bool mti_multiply(mti_call *c, double alpha, const mti_view *a, const mti_view *b,
                  const mti_view *out, const mti_view *bias)
{
    mti_view va, vb, vo = with_leading_strides(out);
    if (!mti_readable(c, a, &va) || !mti_readable(c, b, &vb)) return false;
    count_product(c, a, out);
    void *scratch;
    size_t n_scratch = c->k->gemm_scratch(c->ctx, &va, &vb, &vo);
    return mti_device_take_workspace(c->device, c->backward) &&
           mti_scratch(c, n_scratch, &scratch) &&
           c->k->gemm(c->ctx, alpha, &va, &vb, 0, &vo, bias, scratch, n_scratch);
}

bool mti_multiply_sums(mti_call *c, const mti_view *a, const mti_view *b, const mti_view *out,
                       const mti_view *sums)
{
    mti_view va, vb, vo = with_leading_strides(out);
    if (!mti_readable(c, a, &va) || !mti_readable(c, b, &vb)) return false;
    count_product(c, a, out);
    void *scratch;
    size_t n_scratch = c->k->gemm_sums_scratch(c->ctx, &va, &vb, &vo);
    return mti_device_take_workspace(c->device, c->backward) &&
           mti_scratch(c, n_scratch, &scratch) &&
           c->k->gemm_sums(c->ctx, &va, &vb, &vo, sums, scratch, n_scratch);
}

bool mti_multiply_part(mti_call *c, const mti_view *a, const mti_view *b, double beta,
                       const mti_view *out)
{
    mti_view va = with_leading_strides(a), vb = with_leading_strides(b),
             vo = with_leading_strides(out);
    assert(is_matrix(&va) && is_matrix(&vb));
    count_product(c, a, out);
    size_t n_bytes = c->k->gemm_scratch(c->ctx, &va, &vb, &vo);
    mti_block *scratch = n_bytes ? mti_pool_alloc(c->device->pool, n_bytes, MT_WORKSPACE) : NULL;
    if (n_bytes && !scratch) return false;
    if (scratch) scratch->owner = NULL;
    bool ok =
        c->k->gemm(c->ctx, 1, &va, &vb, beta, &vo, NULL, scratch ? scratch->ptr : NULL, n_bytes);
    mti_pool_free(c->device->pool, scratch, n_bytes);
    return ok;
}

/* ---- shape rules ---- */

static bool spec_set(mti_call *c, mti_view *spec, mt_dtype dtype, int rank, const int64_t *shape)
{
    size_t n_bytes;
    memset(spec, 0, offsetof(mti_view, shape));
    spec->dtype = dtype, spec->rank = rank;
    memmove(spec->shape, shape, (size_t)rank * sizeof *shape);
    char text[MTI_SHAPE_TEXT];
    return mti_view_pack(spec, &n_bytes) ||
           mti_fail_bool(MT_ERR_ARGUMENT, "%s: its output %s %s is larger than the address space",
                         c->op->name, mt_dtype_name(dtype), mti_shape_text(text, rank, shape));
}

bool mti_out_set(mti_call *c, int i, mt_dtype dtype, int rank, const int64_t *shape)
{
    return spec_set(c, &c->out_spec[i], dtype, rank, shape);
}

bool mti_out_like(mti_call *c, const mti_view *v)
{
    return mti_out_set(c, 0, v->dtype, v->rank, v->shape);
}

bool mti_aux_set(mti_call *c, int i, mt_dtype dtype, int rank, const int64_t *shape)
{
    return spec_set(c, &c->aux_spec[i], dtype, rank, shape);
}

bool mti_need_float(mti_call *c, int i)
{
    mt_dtype dtype = c->in_spec[i].dtype;
    return mt_dtype_is_float(dtype) ||
           mti_fail_bool(MT_ERR_ARGUMENT, "%s: %s is %s; need f32, f64, bf16 or f16", c->op->name,
                         c->op->in[i], mt_dtype_name(dtype));
}

bool mti_need_i64(mti_call *c, int i)
{
    mt_dtype dtype = c->in_spec[i].dtype;
    return dtype == MT_I64 || mti_fail_bool(MT_ERR_ARGUMENT, "%s: %s is %s; need i64", c->op->name,
                                            c->op->in[i], mt_dtype_name(dtype));
}

bool mti_need_same_dtype(mti_call *c, int i, int j)
{
    mt_dtype a = c->in_spec[i].dtype, b = c->in_spec[j].dtype;
    return a == b || mti_fail_bool(MT_ERR_ARGUMENT, "%s: %s is %s, %s is %s; need one dtype (cast)",
                                   c->op->name, c->op->in[i], mt_dtype_name(a), c->op->in[j],
                                   mt_dtype_name(b));
}

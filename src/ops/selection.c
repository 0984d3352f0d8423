/* selection.c: ops that choose among elements: comparisons, where, max, gather, topk. */
#include <math.h>
#include <string.h>
#include "ops/ops.h"

/* y = a > b and the other five of backends/comparisons.def, broadcasting as NumPy does.
 *   a, b: one dtype, floating or not; y: bool
 * A bool has no gradient: nothing is recorded, and nothing saved. */

static bool compare_shape(mti_call *c)
{
    return mti_need_same_dtype(c, 0, 1) && mti_shape_broadcast(c, MT_BOOL);
}

static bool compare(mti_call *c, mti_compare op)
{
    const mti_view *y = mti_out(c, 0);
    mti_view a = mti_broadcast_view(mti_in(c, 0), y->rank, y->shape);
    mti_view b = mti_broadcast_view(mti_in(c, 1), y->rank, y->shape);
    return c->k->compare(c->ctx, op, &a, &b, y);
}

#define COMPARE(name, sign)                                                                        \
    static bool name(mti_call *c) { return compare(c, MTI_COMPARE_##name); }                       \
    const mti_op_code mti_code_##name = {compare_shape, name, NULL};
#include "backends/comparisons.def"

mt_tensor *mt_eq(mt_tensor *a, mt_tensor *b) { return mti_op2(&mti_op_eq, NULL, a, b); }
mt_tensor *mt_ne(mt_tensor *a, mt_tensor *b) { return mti_op2(&mti_op_ne, NULL, a, b); }
mt_tensor *mt_lt(mt_tensor *a, mt_tensor *b) { return mti_op2(&mti_op_lt, NULL, a, b); }
mt_tensor *mt_le(mt_tensor *a, mt_tensor *b) { return mti_op2(&mti_op_le, NULL, a, b); }
mt_tensor *mt_gt(mt_tensor *a, mt_tensor *b) { return mti_op2(&mti_op_gt, NULL, a, b); }
mt_tensor *mt_ge(mt_tensor *a, mt_tensor *b) { return mti_op2(&mti_op_ge, NULL, a, b); }

/* Whether an integer dtype or bool holds c. */
static bool dtype_holds(mt_dtype dtype, double c)
{
    mt_bits bits = mt_dtype_bits(dtype);
    double limit = ldexp(1, bits.mantissa), lowest = bits.sign ? -limit : 0;
    return c >= lowest && c < limit && c == floor(c);
}

mt_tensor *mt_compare_scalar(mt_tensor *x, mt_comparison how, double c)
{
    static const mti_op *const ops[] = {
#define COMPARE(name, sign) &mti_op_##name, /* in the order of mt_comparison */
#include "backends/comparisons.def"
    };
    if ((unsigned)how > MT_GE)
        return mti_fail_null(MT_ERR_ARGUMENT,
                             "compare_scalar: unknown comparison %d; need MT_EQ to MT_GE",
                             (int)how);
    const char *caller = ops[how]->name;
    if (!mti_given(x, caller, "x")) return NULL;
    mt_dtype dtype = x->view.dtype;
    if (!mti_dtype_is_real(dtype) && !dtype_holds(dtype, c))
        return mti_fail_null(MT_ERR_ARGUMENT, "%s: x is %s, which cannot hold %g; cast x", caller,
                             mt_dtype_name(dtype), c);
    MT_AUTO mt_tensor *other = mt_full(mt_device_of(x), dtype, 0, NULL, c);
    return other ? mti_op2(ops[how], NULL, x, other) : NULL;
}

/* where: y = mask ? a : b, broadcasting as NumPy does.
 *   mask: bool; a, b, y: floating
 * da = dy where mask is true, db = dy where it is false, else 0; summed where a or b was broadcast
 * saved: the mask, a byte per element, and neither a nor b. */

static bool where_shape(mti_call *c)
{
    if (c->in_spec[0].dtype != MT_BOOL)
        return mti_fail_bool(MT_ERR_ARGUMENT, "where: mask is %s; need bool",
                             mt_dtype_name(c->in_spec[0].dtype));
    return mti_need_float(c, 1) && mti_need_same_dtype(c, 1, 2) &&
           mti_shape_broadcast(c, c->in_spec[1].dtype);
}

static bool where_forward(mti_call *c)
{
    const mti_view *y = mti_out(c, 0);
    mti_view in[3];
    for (int i = 0; i < 3; i++) in[i] = mti_broadcast_view(mti_in(c, i), y->rank, y->shape);
    return c->k->where(c->ctx, &in[0], &in[1], &in[2], y);
}

/* din i (1: a, 2: b): dy, or 0 where the other input was chosen. */
static bool where_din(mti_call *c, int i)
{
    const mti_view *dy = mti_dout(c), *saved = mti_saved(c, MTI_IN0);
    mti_view mask = mti_broadcast_view(saved, dy->rank, dy->shape);
    mt_tensor *full;
    const mti_view *d = mti_open_din(c, i, &full);
    return d && c->k->where(c->ctx, &mask, i == 1 ? dy : NULL, i == 2 ? dy : NULL, d) &&
           mti_close_din(c, i, full);
}

static bool where_backward(mti_call *c)
{
    return (!mti_wants(c, 1) || where_din(c, 1)) && (!mti_wants(c, 2) || where_din(c, 2));
}

const mti_op_code mti_code_where = {where_shape, where_forward, where_backward};

mt_tensor *mt_where(mt_tensor *mask, mt_tensor *a, mt_tensor *b)
{
    return mti_op3(&mti_op_where, NULL, mask, a, b);
}

mt_tensor *mt_masked_fill(mt_tensor *x, mt_tensor *mask, double value)
{
    if (!mti_given(x, "masked_fill", "x") || !mti_given(mask, "masked_fill", "mask")) return NULL;
    mt_tensor *fill = mt_full(mt_device_of(x), mt_dtype_of(x), 0, NULL, value);
    mt_tensor *y = fill ? mt_where(mask, fill, x) : NULL;
    mt_release(fill);
    return y;
}

/* max: the largest element over chosen dimensions.
 *   x: any shape, floating; y and index: x without those dimensions (or with extent 1 there)
 * dx = dy at the first of the largest elements, 0 elsewhere (as torch.max(dim); amax would share
 * it among equals)
 * saved: its index, an i64 per element of y, and not x. */

/* x with the reduced dimensions last. */
static mti_view reduced_last(const mti_call *c, const mti_view *x)
{
    mti_view v = *x;
    int to = 0;
    for (unsigned reduced = 0; reduced <= 1; reduced++)
        for (int d = 0; d < x->rank; d++) {
            if ((c->params->reduce.dims >> d & 1) != reduced) continue;
            v.shape[to] = x->shape[d];
            v.stride[to++] = x->stride[d];
        }
    return v;
}

/* y, dy or the index without the extents of 1 that `keep` adds. */
static mti_view without_ones(const mti_call *c, const mti_view *y)
{
    mti_view v = *y;
    if (!c->params->reduce.keep) return v;
    v.rank = 0;
    for (int d = 0; d < y->rank; d++) {
        if (c->params->reduce.dims >> d & 1) continue;
        v.shape[v.rank] = y->shape[d];
        v.stride[v.rank++] = y->stride[d];
    }
    return v;
}

static bool max_shape(mti_call *c)
{
    const mti_view *x = mti_in(c, 0);
    char text[MTI_SHAPE_TEXT];
    if (!mti_need_float(c, 0)) return false;
    for (int d = 0; d < x->rank; d++)
        if ((c->params->reduce.dims >> d & 1) && x->shape[d] == 0)
            return mti_fail_bool(MT_ERR_ARGUMENT,
                                 "max: x is %s; need an element in dimension %d to choose from",
                                 mti_shape_text(text, x->rank, x->shape), d);
    int64_t shape[MT_MAX_RANK];
    int rank = mti_reduced_shape(c, shape);
    return mti_out_set(c, 0, x->dtype, rank, shape) && mti_aux_set(c, 0, MT_I64, rank, shape);
}

static bool max_forward(mti_call *c)
{
    const mti_view *index = mti_aux(c, 0);
    mti_view x = reduced_last(c, mti_in(c, 0)), y = without_ones(c, mti_out(c, 0)), index_view;
    if (index) index_view = without_ones(c, index);
    return c->k->max(c->ctx, &x, &y, index ? &index_view : NULL);
}

static bool max_backward(mti_call *c)
{
    const mti_view *din = mti_din(c, 0);
    if (!din) return false;
    mti_view dx = reduced_last(c, din), dy = without_ones(c, mti_dout(c)),
             index = without_ones(c, mti_saved(c, MTI_AUX0));
    return c->k->max_backward(c->ctx, &index, &dy, &dx);
}

const mti_op_code mti_code_max = {max_shape, max_forward, max_backward};

mt_tensor *mt_max(mt_tensor *x, int n_dims, const int *dims, bool keep)
{
    return mti_reduce(&mti_op_max, x, n_dims, dims, keep);
}

/* gather: y = the elements of x at the given indices along one dimension.
 *   x: any dtype; index: i64, x's rank, in the other dimensions no longer than x; y: index's shape
 *   y[i,j] = x[i, index[i,j]] for the last of two dimensions
 * dx = each element of dy added at its index, 0 elsewhere
 * saved: the index, and not x. */

static bool gather_shape(mti_call *c)
{
    const mti_view *x = mti_in(c, 0), *index = mti_in(c, 1);
    int dim = c->params->gather.dim;
    char tx[MTI_SHAPE_TEXT], ti[MTI_SHAPE_TEXT];
    if (!mti_need_i64(c, 1)) return false;
    bool fits = x->rank == index->rank;
    for (int d = 0; fits && d < x->rank && mti_view_count(index) > 0; d++)
        fits = d == dim || index->shape[d] <= x->shape[d];
    if (!fits)
        return mti_fail_bool(MT_ERR_ARGUMENT,
                             "gather: x is %s, index is %s; need one rank, and an index no longer "
                             "than x but in dimension %d",
                             mti_shape_text(tx, x->rank, x->shape),
                             mti_shape_text(ti, index->rank, index->shape), dim);
    return mti_out_set(c, 0, x->dtype, index->rank, index->shape);
}

static bool gather_forward(mti_call *c)
{
    const mti_view *index = mti_dense(c, mti_in(c, 1));
    return index && c->k->gather(c->ctx, c->params->gather.dim, mti_in(c, 0), index, mti_out(c, 0));
}

bool mti_scatter_to_din(mti_call *c, int dim, unsigned slot)
{
    const mti_view *index = mti_dense(c, mti_saved(c, slot)), *dx = mti_din(c, 0);
    if (!index || !dx) return false;
    return mti_view_count(index) ? c->k->gather_backward(c->ctx, dim, index, mti_dout(c), dx)
                                 : c->k->fill(c->ctx, dx, 0);
}

static bool gather_backward(mti_call *c)
{
    return mti_scatter_to_din(c, c->params->gather.dim, MTI_IN1);
}

const mti_op_code mti_code_gather = {gather_shape, gather_forward, gather_backward};

mt_tensor *mt_gather(mt_tensor *x, int dim, mt_tensor *index)
{
    if (!mti_given(x, "gather", "x") || !mti_dim("gather", x->view.rank, &dim)) return NULL;
    return mti_op2(&mti_op_gather, &(mti_params){.gather = {dim}}, x, index);
}

/* topk: the k largest elements of each row, in decreasing order, and their indices.
 *   x: [..,n], floating; values, index: [..,k]
 * dx = dvalues at the chosen elements, 0 elsewhere
 * saved: the index, and neither x nor the values. */

static bool topk_shape(mti_call *c)
{
    const mti_view *x = mti_in(c, 0);
    int64_t shape[MT_MAX_RANK], k = c->params->topk.k, n = x->rank ? x->shape[x->rank - 1] : 0;
    char text[MTI_SHAPE_TEXT];
    if (!mti_need_float(c, 0)) return false;
    if (!x->rank || k < 0 || k > n)
        return mti_fail_bool(MT_ERR_ARGUMENT,
                             "topk: x is %s, k is %lld; need rows of k elements at least",
                             mti_shape_text(text, x->rank, x->shape), (long long)k);
    memcpy(shape, x->shape, sizeof shape);
    shape[x->rank - 1] = k;
    return mti_out_set(c, 0, x->dtype, x->rank, shape) && mti_out_set(c, 1, MT_I64, x->rank, shape);
}

static bool topk_forward(mti_call *c)
{
    const mti_view *x = mti_in(c, 0), *values = mti_out(c, 0), *index = mti_out(c, 1);
    void *scratch;
    return mti_scratch(c, c->k->topk_scratch(c->ctx, x, values), &scratch) &&
           c->k->topk(c->ctx, x, values, index, scratch);
}

static bool topk_backward(mti_call *c)
{
    return mti_scatter_to_din(c, c->in_spec[0].rank - 1, MTI_OUT1);
}

const mti_op_code mti_code_topk = {topk_shape, topk_forward, topk_backward};

mt_status mt_topk(mt_tensor *x, int64_t k, mt_tensor **values, mt_tensor **index)
{
    if (!values || !index)
        return mti_fail(MT_ERR_ARGUMENT, "topk: %s is NULL", values ? "index" : "values");
    mt_tensor *out[2];
    bool ok = mti_apply(&mti_op_topk, &(mti_params){.topk = {k}}, 1, &x, 2, out);
    *values = out[0], *index = out[1];
    return ok ? MT_OK : mt_last_status();
}

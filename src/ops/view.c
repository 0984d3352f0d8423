/* view.c: views of one storage. Forward computes, keeps and allocates nothing. */
#include <string.h>
#include "ops/ops.h"

/* Forward sets the outputs' shapes. */
static bool no_rule(mti_call *c) { return (void)c, true; }

static bool make_view(mti_call *c, const mti_view *v)
{
    c->out[0] = mti_tensor_view(c->in[0], v);
    return c->out[0] != NULL;
}

/* ---- permute: y's dimension d is x's dimension order[d] */

static bool permute_forward(mti_call *c)
{
    mti_view y = mti_permuted(mti_in(c, 0), c->params->permute.order);
    return make_view(c, &y);
}

static bool permute_backward(mti_call *c)
{
    int back[MT_MAX_RANK];
    for (int d = 0; d < c->in_spec[0].rank; d++) back[c->params->permute.order[d]] = d;
    mti_view dx = mti_permuted(mti_dout(c), back);
    return mti_give_din(c, 0, mti_tensor_view(c->dout[0], &dx));
}

const mti_op_code mti_code_permute = {no_rule, permute_forward, permute_backward};

mt_tensor *mt_permute(mt_tensor *x, const int *order)
{
    if (!mti_given(x, "permute", "x")) return NULL;
    if (!order) return mti_fail_null(MT_ERR_ARGUMENT, "permute: order is NULL");
    mti_params p = {0};
    unsigned seen = 0;
    for (int d = 0; d < x->view.rank; d++) {
        p.permute.order[d] = order[d];
        if (!mti_dim("permute", x->view.rank, &p.permute.order[d])) return NULL;
        seen |= 1u << p.permute.order[d];
    }
    if (seen != (1u << x->view.rank) - 1)
        return mti_fail_null(MT_ERR_ARGUMENT, "permute: the order names a dimension twice");
    return mti_op1(&mti_op_permute, &p, x);
}

mt_tensor *mt_transpose(mt_tensor *x, int dim0, int dim1)
{
    if (!mti_given(x, "transpose", "x") || !mti_dim("transpose", x->view.rank, &dim0) ||
        !mti_dim("transpose", x->view.rank, &dim1))
        return NULL;
    int order[MT_MAX_RANK];
    for (int d = 0; d < MT_MAX_RANK; d++) order[d] = d;
    order[dim0] = dim1, order[dim1] = dim0;
    return mt_permute(x, order);
}

/* ---- slice: [start, start + length) of one dimension;  dx is dy there, 0 elsewhere */

static bool slice_forward(mti_call *c)
{
    const mti_params *p = c->params;
    mti_view y = mti_range(mti_in(c, 0), p->slice.dim, p->slice.start, p->slice.length);
    return make_view(c, &y);
}

static bool slice_backward(mti_call *c)
{
    const mti_params *p = c->params;
    const mti_view *dx = mti_din(c, 0);
    if (!dx || !c->k->fill(c->ctx, dx, 0)) return false;
    mti_view part = mti_range(dx, p->slice.dim, p->slice.start, p->slice.length);
    return c->k->copy(c->ctx, mti_dout(c), &part);
}

const mti_op_code mti_code_slice = {no_rule, slice_forward, slice_backward};

mt_tensor *mt_slice(mt_tensor *x, int dim, int64_t start, int64_t length)
{
    if (!mti_given(x, "slice", "x") || !mti_dim("slice", x->view.rank, &dim)) return NULL;
    int64_t extent = x->view.shape[dim];
    if (start < 0 || length < 0 || start > extent || length > extent - start)
        return mti_fail_null(MT_ERR_ARGUMENT,
                             "slice: [%lld, %lld + %lld) of dimension %d; its "
                             "extent is %lld",
                             (long long)start, (long long)start, (long long)length, dim,
                             (long long)extent);
    return mti_op1(&mti_op_slice, &(mti_params){.slice = {dim, start, length}}, x);
}

/* ---- expand: extent 1 repeated with stride 0;  dx is dy summed over what was repeated */

static bool expand_forward(mti_call *c)
{
    const mti_params *p = c->params;
    mti_view y = mti_broadcast_view(mti_in(c, 0), p->shape.rank, p->shape.shape);
    return make_view(c, &y);
}

static bool expand_backward(mti_call *c) { return mti_reduce_to_din(c, 0, c->dout[0]); }

const mti_op_code mti_code_expand = {no_rule, expand_forward, expand_backward};

mt_tensor *mt_expand(mt_tensor *x, int rank, const int64_t *shape)
{
    if (!mti_given(x, "expand", "x")) return NULL;
    mti_view spec;
    size_t n_bytes;
    if (!mti_view_init(&spec, "expand", x->view.dtype, rank, shape, &n_bytes)) return NULL;
    bool fits = rank >= x->view.rank;
    for (int d = 0; fits && d < x->view.rank; d++) {
        int64_t from = x->view.shape[d], to = shape[rank - x->view.rank + d];
        fits = from == to || from == 1;
    }
    char a[MTI_SHAPE_TEXT], b[MTI_SHAPE_TEXT];
    if (!fits)
        return mti_fail_null(MT_ERR_ARGUMENT, "expand: %s to %s; only extents of 1 can grow",
                             mti_shape_text(a, x->view.rank, x->view.shape),
                             mti_shape_text(b, rank, shape));
    mti_params p = {.shape = {.rank = rank}};
    memcpy(p.shape.shape, spec.shape, sizeof p.shape.shape);
    return mti_op1(&mti_op_expand, &p, x);
}

/* ---- reshape: the same elements in the same order;  dx is dy in x's shape */

/* *y = x viewed as `shape`; false if that needs a copy. Each run of dimensions that are contiguous
 * with each other can be split differently. */
static bool reshaped(const mti_view *x, int rank, const int64_t *shape, mti_view *y)
{
    *y = (mti_view){.data = x->data, .dtype = x->dtype, .rank = rank};
    memcpy(y->shape, shape, (size_t)rank * sizeof *shape);
    if (mti_view_is_contiguous(x) || mti_view_count(x) == 0) {
        size_t n_bytes;
        return mti_view_pack(y, &n_bytes);
    }
    int to = rank - 1;
    int64_t run = 1, inner = 1; /* elements of x's run, and of y assigned to it */
    int64_t step = x->rank ? x->stride[x->rank - 1] : 1; /* stride of the run's last dimension */
    for (int d = x->rank - 1; d >= 0; d--) {
        run *= x->shape[d];
        bool ends = d == 0 || (x->shape[d - 1] != 1 && x->stride[d - 1] != run * step);
        if (!ends) continue;
        while (to >= 0 && (inner < run || shape[to] == 1)) {
            y->stride[to] = inner * step;
            inner *= shape[to--];
        }
        if (inner != run) return false;
        if (d > 0) run = inner = 1, step = x->stride[d - 1];
    }
    return to < 0;
}

static bool reshape_forward(mti_call *c)
{
    mti_view y;
    const mti_params *p = c->params;
    return reshaped(mti_in(c, 0), p->shape.rank, p->shape.shape, &y) && make_view(c, &y);
}

static bool reshape_backward(mti_call *c)
{
    const mti_view *x = &c->in_spec[0];
    mti_view dx;
    if (reshaped(mti_dout(c), x->rank, x->shape, &dx))
        return mti_give_din(c, 0, mti_tensor_view(c->dout[0], &dx));
    const mti_view *din = mti_din(c, 0);
    if (!din) return false;
    mti_view as_y = {.data = din->data, .dtype = din->dtype, .rank = mti_dout(c)->rank};
    memcpy(as_y.shape, mti_dout(c)->shape, sizeof as_y.shape);
    size_t n_bytes;
    return mti_view_pack(&as_y, &n_bytes) && c->k->copy(c->ctx, mti_dout(c), &as_y);
}

const mti_op_code mti_code_reshape = {no_rule, reshape_forward, reshape_backward};

/* Fails unless all extents are 0 or more, except for at most one -1: *open is its dimension, or -1.
 */
static bool check_open_shape(int rank, const int64_t *shape, int *open)
{
    char text[MTI_SHAPE_TEXT];
    if (rank < 0 || rank > MT_MAX_RANK)
        return mti_fail_bool(MT_ERR_ARGUMENT, "reshape: rank %d; need 0 to %d", rank, MT_MAX_RANK);
    if (rank > 0 && !shape) return mti_fail_bool(MT_ERR_ARGUMENT, "reshape: shape is NULL");
    *open = -1;
    for (int d = 0; d < rank; d++) {
        if (shape[d] >= 0) continue;
        if (shape[d] != -1 || *open >= 0)
            return mti_fail_bool(MT_ERR_ARGUMENT,
                                 "reshape: shape %s; extents must be 0 or more, one may be -1",
                                 mti_shape_text(text, rank, shape));
        *open = d;
    }
    return true;
}

/* Sets p->shape, with the extent for -1; fails if the number of elements differs. */
static bool resolve(const mti_view *x, int rank, const int64_t *shape, mti_params *p)
{
    int64_t count = mti_view_count(x), known = 1;
    int open = -1;
    if (!check_open_shape(rank, shape, &open)) return false;
    bool fits = true;
    for (int d = 0; fits && d < rank; d++) {
        p->shape.shape[d] = shape[d];
        fits = d == open || !__builtin_mul_overflow(known, shape[d], &known);
    }
    if (fits && open >= 0) {
        fits = known > 0 && count % known == 0;
        if (fits) p->shape.shape[open] = count / known, known = count;
    }
    p->shape.rank = rank;
    char a[MTI_SHAPE_TEXT], b[MTI_SHAPE_TEXT];
    return (fits && known == count) ||
           mti_fail_bool(MT_ERR_ARGUMENT, "reshape: %s has %lld elements, which %s cannot hold",
                         mti_shape_text(a, x->rank, x->shape), (long long)count,
                         mti_shape_text(b, rank, shape));
}

mt_tensor *mt_reshape(mt_tensor *x, int rank, const int64_t *shape)
{
    mti_params p = {0};
    mti_view y;
    if (!mti_given(x, "reshape", "x") || !resolve(&x->view, rank, shape, &p)) return NULL;
    if (reshaped(&x->view, rank, p.shape.shape, &y)) return mti_op1(&mti_op_reshape, &p, x);
    mt_tensor *dense = mt_contiguous(x);
    mt_tensor *r = dense ? mti_op1(&mti_op_reshape, &p, dense) : NULL;
    mt_release(dense);
    return r;
}

/* ---- split: n consecutive ranges of one dimension;  dx is the parts' gradients side by side */

static bool split_forward(mti_call *c)
{
    int64_t start = 0;
    for (int i = 0; i < c->n_out; i++) {
        int64_t length = c->params->split.sizes[i];
        mti_view y = mti_range(mti_in(c, 0), c->params->split.dim, start, length);
        c->out[i] = mti_tensor_view(c->in[0], &y);
        if (!c->out[i]) return false;
        start += length;
    }
    return true;
}

static bool split_backward(mti_call *c)
{
    const mti_view *dx = mti_din(c, 0);
    int dim = c->params->split.dim;
    int64_t start = 0;
    for (int i = 0; dx && i < c->n_out; i++) {
        const mti_view *dy = &c->dout[i]->view;
        mti_view part = mti_range(dx, dim, start, dy->shape[dim]);
        if (!c->k->copy(c->ctx, dy, &part)) return false;
        start += dy->shape[dim];
    }
    return dx != NULL;
}

const mti_op_code mti_code_split = {no_rule, split_forward, split_backward};

mt_status mt_split(mt_tensor *x, int dim, int n, const int64_t *sizes, mt_tensor **out)
{
    if (!out) return mti_fail(MT_ERR_ARGUMENT, "split: out is NULL");
    for (int i = 0; i < n; i++) out[i] = NULL;
    if (!sizes) return mti_fail(MT_ERR_ARGUMENT, "split: sizes is NULL");
    if (!mti_given(x, "split", "x") || !mti_dim("split", x->view.rank, &dim))
        return mt_last_status();
    int64_t sum = 0, extent = x->view.shape[dim];
    bool fits = n >= 1;
    for (int i = 0; fits && i < n; i++) {
        fits = sizes[i] >= 0 && sizes[i] <= extent - sum;
        if (fits) sum += sizes[i];
    }
    if (!fits || sum != extent)
        return mti_fail(MT_ERR_ARGUMENT, "split: %d sizes of dimension %d; need a sum of %lld", n,
                        dim, (long long)extent);
    mti_params p = {.split = {.dim = dim, .n = n, .sizes = sizes}};
    return mti_apply(&mti_op_split, &p, 1, &x, n, out) ? MT_OK : mt_last_status();
}

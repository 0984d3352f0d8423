/* copy.c: ops that move elements without changing them: cast, contiguous, clone, cat. */
#include <string.h>
#include "ops/ops.h"

static bool copy_forward(mti_call *c) { return c->k->copy(c->ctx, mti_in(c, 0), mti_out(c, 0)); }

/* dx = dy, in x's dtype */
static bool copy_backward(mti_call *c)
{
    if (mti_dout(c)->dtype == c->in_spec[0].dtype) return mti_give_din(c, 0, mt_retain(c->dout[0]));
    const mti_view *dx = mti_din(c, 0);
    return dx && c->k->copy(c->ctx, mti_dout(c), dx);
}

/* cast: y = x in another dtype. To integers and bool nothing is recorded, as in PyTorch. An 8-bit
 * float would be the gradient's dtype in PyTorch; here it has none, and what a user may take for a
 * value that learns does not stop learning in silence. */
static bool cast_shape(mti_call *c)
{
    const mti_view *x = mti_in(c, 0);
    mt_dtype to = c->params->cast.dtype;
    if (c->want && mti_dtype_is_real(to) && !mt_dtype_is_float(to))
        return mti_fail_bool(MT_ERR_ARGUMENT,
                             "cast: x wants a gradient, and %s has none; cast mt_detach of x",
                             mt_dtype_name(to));
    return mti_out_set(c, 0, c->params->cast.dtype, x->rank, x->shape);
}
static bool cast_forward(mti_call *c)
{
    mti_note_copy(c->out[0], c->in[0]);
    return copy_forward(c);
}
const mti_op_code mti_code_cast = {cast_shape, cast_forward, copy_backward};

mt_tensor *mt_cast(mt_tensor *x, mt_dtype dtype)
{
    if (!mti_given(x, "cast", "x")) return NULL;
    if ((unsigned)dtype >= MT_DTYPE_COUNT)
        return mti_fail_null(MT_ERR_ARGUMENT, "cast: dtype %d is unknown", (int)dtype);
    if (x->view.dtype == dtype) return mt_retain(x);
    return mti_op1(&mti_op_cast, &(mti_params){.cast = {dtype}}, x);
}

/* contiguous, clone: y = x, row-major, in its own storage */
static bool copy_shape(mti_call *c) { return mti_out_like(c, mti_in(c, 0)); }
const mti_op_code mti_code_contiguous = {copy_shape, copy_forward, copy_backward};
const mti_op_code mti_code_clone = {copy_shape, copy_forward, copy_backward};

mt_tensor *mt_contiguous(mt_tensor *x)
{
    return x && mt_is_contiguous(x) ? mt_retain(x) : mti_op1(&mti_op_contiguous, NULL, x);
}
mt_tensor *mt_clone(mt_tensor *x) { return mti_op1(&mti_op_clone, NULL, x); }

/* ---- cat: parts [..,m_i,..] side by side along one dimension;  dx_i = its range of dy, a view */

static bool cat_shape(mti_call *c)
{
    const mti_view *first = mti_in(c, 0);
    int dim = c->params->cat.dim;
    int64_t shape[MT_MAX_RANK], sum = 0;
    for (int i = 0; i < c->n_in; i++) {
        const mti_view *x = &c->in[i]->view;
        bool fits = x->rank == first->rank && x->dtype == first->dtype;
        for (int d = 0; fits && d < x->rank; d++) fits = d == dim || x->shape[d] == first->shape[d];
        fits = fits && !__builtin_add_overflow(sum, x->shape[dim], &sum);
        if (fits) continue;
        char a[MTI_SHAPE_TEXT], b[MTI_SHAPE_TEXT];
        return mti_fail_bool(MT_ERR_ARGUMENT,
                             "cat: part %d is %s %s, part 0 is %s %s; need one dtype and equal "
                             "extents but in dimension %d",
                             i, mt_dtype_name(x->dtype), mti_shape_text(a, x->rank, x->shape),
                             mt_dtype_name(first->dtype),
                             mti_shape_text(b, first->rank, first->shape), dim);
    }
    memcpy(shape, first->shape, sizeof shape);
    shape[dim] = sum;
    return mti_out_set(c, 0, first->dtype, first->rank, shape);
}

static bool cat_forward(mti_call *c)
{
    int dim = c->params->cat.dim;
    int64_t start = 0;
    for (int i = 0; i < c->n_in; i++) {
        const mti_view *x = &c->in[i]->view;
        mti_view part = mti_range(mti_out(c, 0), dim, start, x->shape[dim]);
        if (!c->k->copy(c->ctx, x, &part)) return false;
        start += x->shape[dim];
    }
    return true;
}

static bool cat_backward(mti_call *c)
{
    int dim = c->params->cat.dim;
    int64_t start = 0;
    for (int i = 0; i < c->n_in; i++) {
        int64_t length = c->in_spec[i].shape[dim];
        mti_view part = mti_range(mti_dout(c), dim, start, length);
        if (mti_wants(c, i) && !mti_give_din(c, i, mti_tensor_view(c->dout[0], &part)))
            return false;
        start += length;
    }
    return true;
}

const mti_op_code mti_code_cat = {cat_shape, cat_forward, cat_backward};

mt_tensor *mt_cat(int n, mt_tensor *const *parts, int dim)
{
    if (n < 1 || !parts) return mti_fail_null(MT_ERR_ARGUMENT, "cat: %d parts; need 1 or more", n);
    for (int i = 0; i < n; i++)
        if (!mti_given(parts[i], "cat", "a part")) return NULL;
    if (!mti_dim("cat", parts[0]->view.rank, &dim)) return NULL;
    mt_tensor *y;
    return mti_apply(&mti_op_cat, &(mti_params){.cat = {dim}}, n, parts, 1, &y) ? y : NULL;
}

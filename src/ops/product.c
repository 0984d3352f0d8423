/* product.c: matmul and linear. */
#include <string.h>
#include "ops/ops.h"

/* Whether all dimensions but the last can be merged into one without a copy. *step: its stride, 0
 * if all rows are the same memory. */
static bool can_merge_rows(const mti_view *v, int64_t *step)
{
    int inner = -1;
    *step = v->rank ? v->shape[v->rank - 1] : 1;
    for (int d = v->rank - 2; d >= 0; d--) {
        if (v->shape[d] == 1) continue;
        if (inner < 0)
            *step = v->stride[d];
        else if (v->stride[d] != v->stride[inner] * v->shape[inner])
            return false;
        inner = d;
    }
    return true;
}

/* [..,n] as [m,n]: a view, or a dense copy if the strides do not allow one. */
static bool as_matrix(mti_call *c, const mti_view *v, mti_view *out)
{
    int64_t step;
    if (!can_merge_rows(v, &step)) {
        if (!(v = mti_dense(c, v))) return false;
        can_merge_rows(v, &step);
    }
    int64_t n = v->rank ? v->shape[v->rank - 1] : 1, m = 1;
    for (int d = 0; d < v->rank - 1; d++) m *= v->shape[d];
    *out = (mti_view){.data = v->data,
                      .dtype = v->dtype,
                      .rank = 2,
                      .shape = {m, n},
                      .stride = {step, v->rank ? v->stride[v->rank - 1] : 1}};
    return true;
}

/* db [n] = sum over the rows of dy [m,n] */
static bool sum_rows(mti_call *c, const mti_view *dy, const mti_view *db)
{
    mti_view y = {.data = db->data,
                  .dtype = db->dtype,
                  .rank = 2,
                  .shape = {1, db->shape[0]},
                  .stride = {db->shape[0], 1}};
    void *scratch;
    return mti_scratch(c, c->k->sum_scratch(c->ctx, dy, &y), &scratch) &&
           c->k->sum(c->ctx, 1, dy, &y, scratch);
}

/* ---- matmul: y = a b over the last two dimensions, leading ones broadcast
 * a [..,m,k], b [..,k,n];  da = dy b^T, db = a^T dy, summed where broadcast */

static bool matmul_shape(mti_call *c)
{
    const mti_view *a = mti_in(c, 0), *b = mti_in(c, 1);
    char ta[MTI_SHAPE_TEXT], tb[MTI_SHAPE_TEXT];
    if (!mti_need_float(c, 0) || !mti_need_same_dtype(c, 0, 1)) return false;
    int rank = a->rank > b->rank ? a->rank : b->rank;
    bool fits = a->rank >= 2 && b->rank >= 2 && a->shape[a->rank - 1] == b->shape[b->rank - 2];
    int64_t shape[MT_MAX_RANK];
    for (int d = 0; fits && d < rank - 2; d++) {
        int da = d - (rank - a->rank), db = d - (rank - b->rank);
        int64_t m = da < 0 ? 1 : a->shape[da], n = db < 0 ? 1 : b->shape[db];
        fits = m == n || m == 1 || n == 1;
        shape[d] = m == 1 ? n : m;
    }
    if (!fits)
        return mti_fail_bool(MT_ERR_ARGUMENT,
                             "matmul: a is %s, b is %s; need [..,m,k] and [..,k,n] with equal or "
                             "broadcast leading dimensions",
                             mti_shape_text(ta, a->rank, a->shape),
                             mti_shape_text(tb, b->rank, b->shape));
    shape[rank - 2] = a->shape[a->rank - 2];
    shape[rank - 1] = b->shape[b->rank - 1];
    return mti_out_set(c, 0, a->dtype, rank, shape);
}

/* v with out's leading dimensions. */
static mti_view batched(const mti_view *v, const mti_view *out)
{
    int64_t shape[MT_MAX_RANK];
    memcpy(shape, out->shape, sizeof shape);
    memcpy(shape + out->rank - 2, v->shape + v->rank - 2, 2 * sizeof *shape);
    return mti_broadcast_view(v, out->rank, shape);
}

/* Whether b is one matrix for the whole batch: then the batch is folded into the rows of a. */
static bool one_matrix(const mti_view *b)
{
    for (int d = 0; d < b->rank - 2; d++)
        if (b->shape[d] != 1) return false;
    return true;
}

static bool product(mti_call *c, const mti_view *a, const mti_view *b, const mti_view *y)
{
    if (y->rank > 2 && one_matrix(b) && mti_view_is_contiguous(y) &&
        mti_view_count(a) / a->shape[a->rank - 1] == mti_view_count(y) / y->shape[y->rank - 1]) {
        mti_view a2, y2, b2 = mti_last_two(b);
        return as_matrix(c, a, &a2) && as_matrix(c, y, &y2) &&
               mti_multiply(c, 1, &a2, &b2, &y2, NULL);
    }
    mti_view va = batched(a, y), vb = batched(b, y);
    return mti_multiply(c, 1, &va, &vb, y, NULL);
}

static bool is_empty(const mti_view *v) { return mti_view_count(v) == 0; }

static bool matmul_forward(mti_call *c)
{
    const mti_view *a = mti_in(c, 0), *b = mti_in(c, 1), *y = mti_out(c, 0);
    if (is_empty(y)) return true;
    if (is_empty(a)) return c->k->fill(c->ctx, y, 0); /* k is 0 */
    return product(c, a, b, y);
}

/* din i = l r, summed over the dimensions along which input i was broadcast */
static bool matmul_din(mti_call *c, int i, const mti_view *l, const mti_view *r)
{
    const mti_view *dy = mti_dout(c), *spec = &c->in_spec[i];
    int64_t shape[MT_MAX_RANK];
    memcpy(shape, dy->shape, sizeof shape);
    memcpy(shape + dy->rank - 2, spec->shape + spec->rank - 2, 2 * sizeof *shape);
    if (is_empty(spec)) return mti_din(c, i) != NULL;
    if (is_empty(dy) || is_empty(l)) {
        const mti_view *zero = mti_din(c, i);
        return zero && c->k->fill(c->ctx, zero, 0);
    }
    mti_view whole = {.rank = dy->rank};
    memcpy(whole.shape, shape, sizeof shape);
    if (mti_view_same_shape(&whole, spec)) {
        const mti_view *d = mti_din(c, i);
        return d && product(c, l, r, d);
    }
    mt_tensor *full = mti_temp(c, dy->dtype, dy->rank, shape);
    return full && product(c, l, r, &full->view) && mti_reduce_to_din(c, i, full);
}

static bool matmul_backward(mti_call *c)
{
    const mti_view *dy = mti_dout(c);
    if (mti_wants(c, 0)) {
        mti_view bt = mti_transposed(mti_saved(c, MTI_IN1));
        if (!matmul_din(c, 0, dy, &bt)) return false;
    }
    if (!mti_wants(c, 1)) return true;
    const mti_view *a = mti_saved(c, MTI_IN0);
    if (dy->rank > 2 && c->in_spec[1].rank == 2 && a->rank == dy->rank && !is_empty(a) &&
        !is_empty(dy)) { /* folded: one product sums over the batch */
        mti_view a2, dy2;
        const mti_view *db = mti_din(c, 1);
        if (!db || !as_matrix(c, a, &a2) || !as_matrix(c, dy, &dy2)) return false;
        if (a2.shape[0] == dy2.shape[0]) {
            mti_view at = mti_transposed(&a2);
            return mti_multiply(c, 1, &at, &dy2, db, NULL);
        }
    }
    mti_view at = mti_transposed(a);
    return matmul_din(c, 1, &at, dy);
}

const mti_op_code mti_code_matmul = {matmul_shape, matmul_forward, matmul_backward};
mt_tensor *mt_matmul(mt_tensor *a, mt_tensor *b) { return mti_op2(&mti_op_matmul, NULL, a, b); }

/* ---- linear: y = x w^T + b;  x [..,in], w [out,in], b [out] -> y [..,out]
 * dx = dy w (needs w), dw = dy^T x (needs x), db = sum of dy over rows (needs nothing) */

static bool linear_shape(mti_call *c)
{
    const mti_view *x = mti_in(c, 0), *w = mti_in(c, 1), *b = mti_in(c, 2);
    char tx[MTI_SHAPE_TEXT], tw[MTI_SHAPE_TEXT], tb[MTI_SHAPE_TEXT];
    if (!mti_need_float(c, 0) || !mti_need_same_dtype(c, 0, 1)) return false;
    if (b && !mti_need_same_dtype(c, 0, 2)) return false;
    bool fits = x->rank >= 1 && w->rank == 2 && x->shape[x->rank - 1] == w->shape[1] &&
                (!b || (b->rank == 1 && b->shape[0] == w->shape[0]));
    if (!fits)
        return mti_fail_bool(
            MT_ERR_ARGUMENT, "linear: x is %s, w is %s, b is %s; need [..,in], [out,in] and [out]",
            mti_shape_text(tx, x->rank, x->shape), mti_shape_text(tw, w->rank, w->shape),
            b ? mti_shape_text(tb, b->rank, b->shape) : "NULL");
    int64_t shape[MT_MAX_RANK];
    memcpy(shape, x->shape, sizeof shape);
    shape[x->rank - 1] = w->shape[0];
    return mti_out_set(c, 0, x->dtype, x->rank, shape);
}

static bool linear_forward(mti_call *c)
{
    mti_view x, y, wt = mti_transposed(mti_in(c, 1));
    const mti_view *b = mti_in(c, 2);
    if (is_empty(mti_out(c, 0))) return true;
    if (b && !(b = mti_dense(c, b))) return false;
    return as_matrix(c, mti_in(c, 0), &x) && as_matrix(c, mti_out(c, 0), &y) &&
           mti_multiply(c, 1, &x, &wt, &y, b);
}

static bool linear_backward(mti_call *c)
{
    mti_view dy, x, dx;
    const mti_view *d = mti_dense_rows(c, mti_dout(c));
    if (!d || !as_matrix(c, d, &dy)) return false;
    if (mti_wants(c, 0)) {
        const mti_view *whole = mti_din(c, 0);
        if (!whole || !as_matrix(c, whole, &dx)) return false;
        if (!is_empty(whole) && !mti_multiply(c, 1, &dy, mti_saved(c, MTI_IN1), &dx, NULL))
            return false;
    }
    const mti_view *dw = mti_wants(c, 1) ? mti_din(c, 1) : NULL,
                   *db = mti_wants(c, 2) ? mti_din(c, 2) : NULL;
    if ((mti_wants(c, 1) && !dw) || (mti_wants(c, 2) && !db)) return false;
    if (!dw || is_empty(dw)) return !db || sum_rows(c, &dy, db);
    mti_view dyt = mti_transposed(&dy);
    if (!as_matrix(c, mti_saved(c, MTI_IN0), &x)) return false;
    return db && !is_empty(&x)
               ? mti_multiply_sums(c, &dyt, &x, dw, db)
               : mti_multiply(c, 1, &dyt, &x, dw, NULL) && (!db || sum_rows(c, &dy, db));
}

const mti_op_code mti_code_linear = {linear_shape, linear_forward, linear_backward};
mt_tensor *mt_linear(mt_tensor *x, mt_tensor *w, mt_tensor *b)
{
    return mti_op3(&mti_op_linear, NULL, x, w, b);
}

/* grouped.c: dispatch, grouped_linear and combine: each row goes through the matrix of its group,
 * as each token of a mixture of experts through its experts'. */
#include <string.h>
#include "ops/ops.h"

/* ---- dispatch: y = the rows of x, each once for each of its groups, sorted by group
 * x [..,h], index i64 [..,k], the groups of each row -> y [n,h]; order, inverse i64 [n]; counts
 * i32 [groups]; n = all of index. dx = sum of dy over where a row went; keeps the rows, n i64. ----
 */

static bool dispatch_shape(mti_call *c)
{
    const mti_view *x = mti_in(c, 0), *index = mti_in(c, 1);
    const int64_t n = mti_view_count(index), groups = c->params->groups.n;
    char tx[MTI_SHAPE_TEXT], ti[MTI_SHAPE_TEXT];
    if (!mti_need_float(c, 0) || !mti_need_i64(c, 1)) return false;
    if (x->rank < 1 || x->rank != index->rank ||
        memcmp(x->shape, index->shape, (size_t)(x->rank - 1) * sizeof *x->shape))
        return mti_fail_bool(
            MT_ERR_ARGUMENT, "dispatch: x is %s, index is %s; need [..,h] and [..,k]",
            mti_shape_text(tx, x->rank, x->shape), mti_shape_text(ti, index->rank, index->shape));
    if (groups < 1 || groups > INT32_MAX || n > INT32_MAX)
        return mti_fail_bool(MT_ERR_ARGUMENT,
                             "dispatch: %lld rows to %lld groups; need up to 2^31 - 1 of each, and "
                             "at least one group",
                             (long long)n, (long long)groups);
    c->aux_always[0] = true; /* forward finds the rows with it */
    return mti_out_set(c, 0, x->dtype, 2, (const int64_t[]){n, x->shape[x->rank - 1]}) &&
           mti_out_set(c, 1, MT_I64, 1, &n) && mti_out_set(c, 2, MT_I64, 1, &n) &&
           mti_out_set(c, 3, MT_I32, 1, &groups) && mti_aux_set(c, 0, MT_I64, 1, &n);
}

static bool dispatch_forward(mti_call *c)
{
    const mti_view *x = mti_dense(c, mti_in(c, 0)), *index = mti_dense(c, mti_in(c, 1));
    if (!x || !index) return false;
    const mti_view flat = mti_flat(index), table = mti_as_rows(x);
    return c->k->sort_groups(c->ctx, index->shape[index->rank - 1], &flat, mti_aux(c, 0),
                             mti_out(c, 1), mti_out(c, 2), mti_out(c, 3)) &&
           c->k->embedding(c->ctx, false, mti_aux(c, 0), &table, mti_out(c, 0));
}

static bool dispatch_backward(mti_call *c)
{
    const mti_view *rows = mti_dense(c, mti_saved(c, MTI_AUX0)), *dy = mti_dense(c, mti_dout(c)),
                   *dx = mti_din(c, 0);
    if (!rows || !dy || !dx) return false;
    const mti_view table = mti_as_rows(dx);
    void *scratch;
    return mti_scratch(c, c->k->embedding_backward_scratch(c->ctx, rows, &table), &scratch) &&
           c->k->embedding_backward(c->ctx, false, rows, dy, &table, scratch);
}

const mti_op_code mti_code_dispatch = {dispatch_shape, dispatch_forward, dispatch_backward};

mt_tensor *mt_dispatch(mt_tensor *x, mt_tensor *index, int64_t groups, mt_groups *out)
{
    mt_tensor *in[2] = {x, index}, *made[4];
    if (!out) return mti_fail_null(MT_ERR_ARGUMENT, "dispatch: the groups are NULL");
    bool ok = mti_apply(&mti_op_dispatch, &(mti_params){.groups = {groups}}, 2, in, 4, made);
    *out = ok ? (mt_groups){made[1], made[2], made[3]} : (mt_groups){0};
    return ok ? made[0] : NULL;
}

void mt_groups_release(mt_groups *g)
{
    if (!g) return;
    mt_release(g->order), mt_release(g->inverse), mt_release(g->counts);
    *g = (mt_groups){0};
}

/* ---- grouped_linear: y[i] = x[i] w[g]^T for the rows i of group g, counts[g] in all
 * x [n,in], w [groups,out,in], counts i32 [groups] -> y [n,out]
 * dx = dy w[g] (needs w), dw[g] = dy^T x over the group's rows (needs x); both need counts. */

static bool grouped_linear_shape(mti_call *c)
{
    const mti_view *x = mti_in(c, 0), *w = mti_in(c, 1), *counts = mti_in(c, 2);
    char tx[MTI_SHAPE_TEXT], tw[MTI_SHAPE_TEXT], tc[MTI_SHAPE_TEXT];
    if (!mti_need_float(c, 0) || !mti_need_same_dtype(c, 0, 1)) return false;
    bool fits = x->rank == 2 && w->rank == 3 && counts->rank == 1 && counts->dtype == MT_I32 &&
                x->shape[1] == w->shape[2] && w->shape[0] == counts->shape[0];
    if (!fits)
        return mti_fail_bool(MT_ERR_ARGUMENT,
                             "grouped_linear: x is %s, w is %s, counts is %s %s; need [n,in], "
                             "[groups,out,in] and i32 [groups]",
                             mti_shape_text(tx, x->rank, x->shape),
                             mti_shape_text(tw, w->rank, w->shape), mt_dtype_name(counts->dtype),
                             mti_shape_text(tc, counts->rank, counts->shape));
    return mti_out_set(c, 0, x->dtype, 2, (const int64_t[]){x->shape[0], w->shape[1]});
}

/* Finds counts where there is no data: those that somebody told, or all rows in the first group; of
 * bytes only scratch memory depends on it, and no FLOP. Returns how many groups may have rows. */
static int64_t find_counts(const mti_call *c, int64_t groups, int64_t n, int32_t *count)
{
    const mt_tensor *counts = c->backward ? c->saved[2] : c->in[2];
    int64_t sum = 0;
    if (mti_told(counts, count, (size_t)groups * sizeof *count))
        for (int64_t g = 0; g < groups; g++) sum += count[g];
    if (sum == n && n > 0) return groups;
    memset(count, 0, (size_t)groups * sizeof *count);
    count[0] = (int32_t)n;
    return 1;
}

/* Reads counts to the host, to be mti_freed, of *groups. */
static int32_t *read_counts(mti_call *c, int64_t n, int64_t *n_groups)
{
    const int64_t groups = *n_groups = c->in_spec[2].shape[0];
    const size_t n_bytes = (size_t)groups * sizeof(int32_t);
    int32_t *count = mti_calloc(1, n_bytes);
    int64_t g = 0, sum = 0;
    if (count && c->k->traits & MTI_NO_DATA) *n_groups = find_counts(c, groups, n, count);
    if (!count || c->k->traits & MTI_NO_DATA) return count;
    if (!mti_in_to_host(c, 2, count, n_bytes)) goto fail;
    while (g < groups && count[g] >= 0) sum += count[g++];
    if (g == groups && sum == n) return count;
    mti_fail(MT_ERR_ARGUMENT,
             "grouped_linear: counts[%lld] is %lld, the sum of counts is %lld; x "
             "has %lld rows",
             (long long)(g < groups ? g : 0), (long long)count[g < groups ? g : 0], (long long)sum,
             (long long)n);
fail:
    mti_free(count);
    return NULL;
}

/* out = a b, 0 where they share nothing */
static bool product_of_group(mti_call *c, const mti_view *a, const mti_view *b, const mti_view *out)
{
    if (!mti_view_count(out)) return true;
    return a->shape[1] ? mti_multiply_part(c, a, b, 0, out) : c->k->fill(c->ctx, out, 0);
}

/* y = x w^T group by group; or, each unless NULL, dx = y w and dw = y^T x. */
static bool each_group(mti_call *c, const mti_view *x, const mti_view *w, const mti_view *y,
                       const mti_view *dx, const mti_view *dw)
{
    int64_t groups;
    int32_t *count = read_counts(c, y->shape[0], &groups);
    bool ok = count && mti_device_take_workspace(c->device, c->backward);
    for (int64_t g = 0, from = 0; ok && g < groups; from += count[g++]) {
        const int64_t n = count[g];
        mti_view xg, wg, yg = mti_range(y, 0, from, n), dxg, dwg;
        if (x) xg = mti_range(x, 0, from, n);
        if (w) wg = mti_range(w, 0, g, 1), wg = mti_last_two(&wg);
        if (dx) dxg = mti_range(dx, 0, from, n), ok = product_of_group(c, &yg, &wg, &dxg);
        if (dw) {
            dwg = mti_range(dw, 0, g, 1), dwg = mti_last_two(&dwg), yg = mti_transposed(&yg);
            ok = ok && product_of_group(c, &yg, &xg, &dwg);
        }
        if (dx || dw) continue;
        wg = mti_transposed(&wg);
        ok = product_of_group(c, &xg, &wg, &yg);
    }
    mti_free(count);
    return ok;
}

static bool grouped_linear_forward(mti_call *c)
{
    mti_view x, w;
    return mti_readable(c, mti_in(c, 0), &x) && mti_readable(c, mti_in(c, 1), &w) &&
           each_group(c, &x, &w, mti_out(c, 0), NULL, NULL);
}

static bool grouped_linear_backward(mti_call *c)
{
    mti_view dy, x, w;
    const mti_view *dx = mti_wants(c, 0) ? mti_din(c, 0) : NULL,
                   *dw = mti_wants(c, 1) ? mti_din(c, 1) : NULL;
    if ((mti_wants(c, 0) && !dx) || (mti_wants(c, 1) && !dw)) return false;
    return mti_readable(c, mti_dout(c), &dy) &&
           (!dx || mti_readable(c, mti_saved(c, MTI_IN1), &w)) &&
           (!dw || mti_readable(c, mti_saved(c, MTI_IN0), &x)) &&
           each_group(c, dw ? &x : NULL, dx ? &w : NULL, &dy, dx, dw);
}

const mti_op_code mti_code_grouped_linear = {grouped_linear_shape, grouped_linear_forward,
                                             grouped_linear_backward};
mt_tensor *mt_grouped_linear(mt_tensor *x, mt_tensor *w, mt_tensor *counts)
{
    return mti_op3(&mti_op_grouped_linear, NULL, x, w, counts);
}

/* ---- combine: y = the sum of the rows of x by their index
 * x [n,h], index i64 [n] -> y [rows,h], 0 where no row goes;  dx[i] = dy[index[i]]; keeps the index
 * ---- */

static bool combine_shape(mti_call *c)
{
    const mti_view *x = mti_in(c, 0), *index = mti_in(c, 1);
    char tx[MTI_SHAPE_TEXT], ti[MTI_SHAPE_TEXT];
    if (!mti_need_float(c, 0) || !mti_need_i64(c, 1)) return false;
    if (x->rank != 2 || index->rank != 1 || x->shape[0] != index->shape[0] ||
        c->params->groups.n < 0)
        return mti_fail_bool(
            MT_ERR_ARGUMENT, "combine: x is %s, index is %s, of %lld rows; need [n,h] and [n]",
            mti_shape_text(tx, x->rank, x->shape), mti_shape_text(ti, index->rank, index->shape),
            (long long)c->params->groups.n);
    return mti_out_set(c, 0, x->dtype, 2, (const int64_t[]){c->params->groups.n, x->shape[1]});
}

static bool combine_forward(mti_call *c)
{
    const mti_view *x = mti_dense(c, mti_in(c, 0)), *index = mti_dense(c, mti_in(c, 1));
    void *scratch;
    return x && index &&
           mti_scratch(c, c->k->embedding_backward_scratch(c->ctx, index, mti_out(c, 0)),
                       &scratch) &&
           c->k->embedding_backward(c->ctx, false, index, x, mti_out(c, 0), scratch);
}

static bool combine_backward(mti_call *c)
{
    const mti_view *index = mti_dense(c, mti_saved(c, MTI_IN1)),
                   *dy = mti_dense_rows(c, mti_dout(c)), *dx = mti_din(c, 0);
    return index && dy && dx && c->k->embedding(c->ctx, false, index, dy, dx);
}

const mti_op_code mti_code_combine = {combine_shape, combine_forward, combine_backward};

mt_tensor *mt_combine(mt_tensor *x, mt_tensor *index, int64_t rows)
{
    return mti_op2(&mti_op_combine, &(mti_params){.groups = {rows}}, x, index);
}

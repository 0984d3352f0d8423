/* op_cases.c: calls of the rows of ops.def, and the cases of a table with the sizes of their user.
 */
#include <assert.h>
#include <string.h>
#include "ops/op_cases.h"
#include "ops/ops.h"
#include "ops/case_row.h"

/* ---- calls that take more than one line ---- */

/* Ops in place refuse a leaf that requires grad, so they change the result of affine, which keeps
 * nothing. */
static mt_tensor *changed(mt_tensor *x, mt_status (*change)(mt_tensor *))
{
    mt_tensor *h = mt_affine(x, 2, 0);
    if (h && change(h) != MT_OK) mt_set(&h, NULL);
    return h;
}

static mt_tensor *changed_by(mt_tensor *x, mt_status (*change)(mt_tensor *, double), double p)
{
    mt_tensor *h = mt_affine(x, 2, 0);
    if (h && change(h, p) != MT_OK) mt_set(&h, NULL);
    return h;
}

/* In training without running statistics; else with 0.25 and 1.5, which 16 bits hold. */
static mt_tensor *batch_normed(mt_tensor **in, const double *p)
{
    bool training = p[0] != 0;
    if (!in[0] || training)
        return mt_batch_norm(in[0], in[1], in[2], NULL, NULL, training, 0, p[1]);
    mt_dtype stats = mt_dtype_of(in[0]) == MT_F64 ? MT_F64 : MT_F32;
    mt_device *device = mt_device_of(in[0]);
    int64_t channels = mt_rank(in[0]) > 1 ? mt_shape(in[0])[1] : 0;
    MT_AUTO mt_tensor *mean = mt_full(device, stats, 1, &channels, 0.25);
    MT_AUTO mt_tensor *var = mean ? mt_full(device, stats, 1, &channels, 1.5) : NULL;
    return var ? mt_batch_norm(in[0], in[1], in[2], mean, var, false, 0, p[1]) : NULL;
}

static mt_tensor *chosen(mt_tensor **in)
{
    MT_AUTO mt_tensor *mask = mt_cast(in[0], MT_BOOL);
    return mt_where(mask, in[1], in[2]);
}

static mt_tensor *counted(mt_tensor *(*compare)(mt_tensor *, mt_tensor *), mt_tensor **in)
{
    MT_AUTO mt_tensor *sum = mt_add(in[0], in[1]);
    MT_AUTO mt_tensor *mask = compare(in[0], in[1]);
    MT_AUTO mt_tensor *number = sum && mask ? mt_cast(mask, mt_dtype_of(sum)) : NULL;
    return mt_add(sum, number);
}

static mt_tensor *largest(mt_tensor *x, int64_t k)
{
    mt_tensor *values, *index;
    if (mt_topk(x, k, &values, &index) != MT_OK) return NULL;
    mt_release(index);
    return values;
}

static mt_tensor *dispatched(mt_tensor **in, int64_t groups)
{
    mt_groups g;
    mt_tensor *y = mt_dispatch(in[0], in[1], groups, &g);
    mt_groups_release(&g);
    return y;
}

mt_tensor *mti_case_counts(mt_tensor *group, int64_t groups)
{
    mt_groups g = {0};
    MT_AUTO mt_tensor *index = group ? mt_reshape(group, MT_SHAPE(-1, 1)) : NULL;
    MT_AUTO mt_tensor *x =
        index ? mt_zeros(mt_device_of(index), MT_F32, mt_rank(index), mt_shape(index)) : NULL;
    MT_AUTO mt_tensor *order = mt_dispatch(x, index, groups, &g);
    mt_tensor *counts = mt_retain(g.counts);
    mt_groups_release(&g);
    return counts;
}

/* in[2]: the group of each row */
static mt_tensor *grouped(mt_tensor **in)
{
    const int64_t groups = in[1] && mt_rank(in[1]) ? mt_shape(in[1])[0] : 0;
    MT_AUTO mt_tensor *counts = mti_case_counts(in[2], groups);
    return counts ? mt_grouped_linear(in[0], in[1], counts) : NULL;
}

static mt_tensor *turned(mt_tensor *x)
{
    MT_AUTO mt_tensor *t = mt_transpose(x, 0, 1);
    return mt_contiguous(t);
}

static mt_tensor *side_by_side(mt_tensor **in, int dim)
{
    int n = 0;
    while (n < MTI_CASE_INPUTS && in[n]) n++;
    return mt_cat(n, in, dim);
}

/* Parameters from `first` on, as whole numbers. */
static const int *ints(const mti_case *c, int first, int to[MTI_CASE_PARAMETERS])
{
    for (int i = first; i < c->n_p; i++) to[i - first] = (int)c->p[i];
    return to;
}

static const int64_t *extents(const mti_case *c, int first, int64_t to[MTI_CASE_PARAMETERS])
{
    for (int i = first; i < c->n_p; i++) to[i - first] = (int64_t)c->p[i];
    return to;
}

#define INTS(first)    ints(c, first, (int[MTI_CASE_PARAMETERS]){0})
#define EXTENTS(first) extents(c, first, (int64_t[MTI_CASE_PARAMETERS]){0})

static mt_tensor *reduced(mt_tensor *(*reduce)(mt_tensor *, int, const int *, bool),
                          const mti_case *c, mt_tensor **in)
{
    return reduce(in[0], c->n_p - 1, INTS(1), c->p[0] != 0);
}

static mt_tensor *part(const mti_case *c, mt_tensor *x)
{
    mt_tensor *parts[MTI_CASE_PARAMETERS], *wanted = NULL;
    int n = c->n_p - 2;
    if (mt_split(x, (int)c->p[0], n, EXTENTS(2), parts) != MT_OK) return NULL;
    for (int i = 0; i < n; i++)
        if (i == (int)c->p[1])
            wanted = parts[i];
        else
            mt_release(parts[i]);
    return wanted;
}

/* ---- the table ---- */

#define ROW MTI_CASE_ROW
#include "ops/op_cases.def"

#define ROW(name, ...) &row_##name,
static const mti_case_row *const rows[] = {
#include "ops/op_cases.def"
};

/* Each row of ops.def has cases: otherwise row_NAME is undeclared. */
#define OP(name, ...) +sizeof row_##name
_Static_assert(0
#include "ops/ops.def"
                   == sizeof(mti_case_row) * COUNT(rows),
               "one ROW for each row");
#undef OP

const mti_case_table mti_op_cases = {NULL, (int)COUNT(rows), rows};

/* ---- cases with the sizes of their user ---- */

static int64_t number(int64_t n, const mti_case_sizes sizes)
{
    int64_t half = NAMED(MTI_SIZE_M) / 2, named = (n + half) / NAMED(MTI_SIZE_M);
    assert(n < half || sizes[named - 1] > 0); /* the user gives the sizes of its cases */
    return n < half ? n : sizes[named - 1] + n - NAMED(named - 1);
}

static mti_case resolved(const mti_case_row *r, const mti_case *named, const mti_case_sizes sizes)
{
    mti_case c = *named;
    c.op = r->op, c.call = r->call;
    for (int i = 0; i < c.n_in; i++) {
        for (int d = 0; d < c.in[i].rank; d++) c.in[i].shape[d] = number(c.in[i].shape[d], sizes);
        c.in[i].below = number(c.in[i].below, sizes);
    }
    for (int i = 0; i < c.n_p; i++)
        if (c.p[i] >= (double)(NAMED(MTI_SIZE_M) / 2))
            c.p[i] = (double)number((int64_t)c.p[i], sizes);
    return c;
}

/* Finds the user's case `*nth`, of one op or (NULL) of all; counts *nth down by those before it.
 * NULL past the last. */
static const mti_case *nth_case(const mti_case_table *t, const char *op, unsigned user, int *nth,
                                const mti_case_row **found)
{
    const mti_case *below = t->below ? nth_case(t->below, op, user, nth, found) : NULL;
    if (below) return below;
    for (int r = 0; r < t->n; r++) {
        *found = t->rows[r];
        if (op && strcmp(op, t->rows[r]->op) != 0) continue;
        for (int i = 0; i < t->rows[r]->n_cases; i++)
            if ((t->rows[r]->cases[i].users & user) && (*nth)-- == 0) return &t->rows[r]->cases[i];
    }
    return NULL;
}

static bool get(const mti_case_table *t, const char *op, unsigned user, int nth,
                const mti_case_sizes sizes, mti_case *out)
{
    const mti_case_row *r;
    const mti_case *c = nth_case(t, op, user, &nth, &r);
    if (c) *out = resolved(r, c, sizes);
    return c != NULL;
}

bool mti_case_get(const mti_case_table *t, unsigned user, int nth, const mti_case_sizes sizes,
                  mti_case *out)
{
    return get(t, NULL, user, nth, sizes, out);
}

int mti_case_count(const mti_case_table *t, unsigned user)
{
    const mti_case_row *r;
    for (int n = 0;; n++) {
        int nth = n;
        if (!nth_case(t, NULL, user, &nth, &r)) return n;
    }
}

bool mti_case_find(const mti_case_table *t, const char *op, unsigned user,
                   const mti_case_sizes sizes, mti_case *out)
{
    return get(t, op, user, 0, sizes, out);
}

mt_tensor *mti_case_call(const mti_case *c, mt_tensor **in) { return c->call(c, in); }

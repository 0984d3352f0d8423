/* run.c: runs an expression, term by term. */
#include <string.h>
#include "expression/expression.h"

/* ---- leaves ---- */

static mt_tensor *make_leaf(const mti_expression *e, mt_device *device, const mti_named_leaf *leaf)
{
    mt_dtype dtype = e->options.dtype;
    mt_tensor *x = leaf->indices ? mt_zeros(device, MT_I64, leaf->rank, leaf->shape)
                                 : mt_normal(device, dtype, leaf->rank, leaf->shape, 0, 1);
    bool ok = x && (!leaf->wants || mt_set_requires_grad(x, true) == MT_OK) &&
              mt_set_category(x, leaf->weight ? MT_PARAMETER : MT_INPUT) == MT_OK;
    if (!ok) mt_set(&x, NULL);
    return x;
}

bool mti_leaves_make(const mti_expression *e, mt_device *device, mt_tensor **leaves)
{
    for (int i = 0; i < e->n_leaves; i++) {
        leaves[i] = make_leaf(e, device, &e->leaves[i]);
        if (leaves[i]) continue;
        while (i) mt_release(leaves[--i]);
        return false;
    }
    return true;
}

/* ---- terms ---- */

static mt_tensor *number_right(mt_tensor *x, char sign, double c)
{
    switch (sign) {
    case '+': return mt_add_scalar(x, c);
    case '-': return mt_add_scalar(x, -c);
    case '*': return mt_mul_scalar(x, c);
    default: return mt_mul_scalar(x, 1 / c);
    }
}

static mt_tensor *number_left(double c, char sign, mt_tensor *x)
{
    if (sign == '-') return mt_affine(x, -1, c);
    if (sign != '/') return number_right(x, sign, c);
    MT_AUTO mt_tensor *inverse = mt_reciprocal(x);
    return mt_mul_scalar(inverse, c);
}

static mt_tensor *binary(const mti_term *left, char sign, const mti_term *right, mt_tensor *a,
                         mt_tensor *b)
{
    if (left->kind == MTI_TERM_NUMBER) return number_left(left->number, sign, b);
    if (right->kind == MTI_TERM_NUMBER) return number_right(a, sign, right->number);
    switch (sign) {
    case '+': return mt_add(a, b);
    case '-': return mt_sub(a, b);
    case '*': return mt_mul(a, b);
    case '/': return mt_div(a, b);
    default: return mt_matmul(a, b);
    }
}

typedef struct run {
    const mti_expression *e;
    mt_tensor *const *leaves;
    mt_tensor **values; /* of each term; NULL: of a number, or used already */
} run;

static mt_tensor *compute(const run *r, const mti_term *t)
{
    const mti_term *terms = r->e->terms;
    mt_tensor *in[MTI_CASE_INPUTS] = {0};
    int n = 0;
    for (size_t i = t->first; i != MTI_NO_TERM; i = terms[i].next) in[n++] = r->values[i];
    switch (t->kind) {
    case MTI_TERM_LEAF: return mt_retain(r->leaves[t->leaf]);
    case MTI_TERM_NEGATED: return mt_mul_scalar(in[0], -1);
    case MTI_TERM_BINARY:
        return binary(&terms[t->first], t->sign, &terms[terms[t->first].next], in[0], in[1]);
    case MTI_TERM_CALL: return mti_call_run(t, in);
    case MTI_TERM_NUMBER: break;
    }
    return NULL;
}

#define LONGEST_SCOPE 160

/* Says where the failure is, unless it is the machine's. */
static bool point_to(const run *r, const mti_term *t, uint64_t failures)
{
    char text[320];
    if (mti_failed_since(failures) && mt_last_status() == MT_ERR_MEMORY) return false;
    snprintf(text, sizeof text, "%s",
             mti_failed_since(failures) ? mt_last_error()
                                        : "there is no result with these numbers");
    return mti_point_at("expr", r->e->options.text, t->at, "%s", text);
}

/* The operands are released, each being used once. */
static bool run_term(const run *r, size_t place)
{
    const mti_term *t = &r->e->terms[place];
    char scope[LONGEST_SCOPE];
    uint64_t failures = mti_failures();
    if (t->kind == MTI_TERM_NUMBER) return true;
    snprintf(scope, sizeof scope, "%.*s", (int)(t->to - t->from), r->e->options.text + t->from);
    mti_make_printable(scope);
    if (mt_scope_push(scope) != MT_OK) return false;
    r->values[place] = compute(r, t);
    mt_scope_pop();
    for (size_t i = t->first; i != MTI_NO_TERM; i = r->e->terms[i].next) {
        mt_release(r->values[i]);
        r->values[i] = NULL;
    }
    return r->values[place] || point_to(r, t, failures);
}

mt_tensor *mti_expression_run(const mti_expression *e, mt_tensor *const *leaves)
{
    run r = {e, leaves, mti_calloc(e->n_terms, sizeof *r.values)};
    bool ok = r.values != NULL;
    for (size_t i = 0; ok && i < e->n_terms; i++) ok = run_term(&r, i);
    mt_tensor *result = ok ? r.values[e->n_terms - 1] : NULL;
    for (size_t i = 0; r.values && !ok && i < e->n_terms; i++) mt_release(r.values[i]);
    mti_free(r.values);
    return result;
}

/* ---- its tape ---- */

typedef struct recorded {
    const mti_expression *e;
    mt_tensor **leaves;
} recorded;

static mt_tensor *forward(void *user)
{
    const recorded *r = user;
    return mti_expression_run(r->e, r->leaves);
}

bool mti_expression_record(mti_tape *t, mt_device *device, const mti_expression *e)
{
    mt_tensor *leaves[MTI_MAX_LEAVES];
    *t = (mti_tape){0};
    if (!mti_leaves_make(e, device, leaves)) return false;
    bool done = mti_tape_of(t, forward, &(recorded){e, leaves});
    for (int i = 0; i < e->n_leaves; i++) mt_release(leaves[i]);
    return done;
}

/* ---- its peaks ---- */

static size_t peak_of(const mt_device *device)
{
    mt_mem_stats stats;
    mt_mem_get_stats(device, &stats);
    return stats.allocated.peak;
}

/* One step; the gradients of the leaves stay. */
static bool step(const mti_expression *e, mt_device *device, mt_tensor *const *leaves, bool retain,
                 size_t *forward_peak, size_t *step_peak)
{
    mt_mem_reset_peak(device);
    MT_AUTO mt_tensor *y = mti_expression_run(e, leaves);
    *step_peak = peak_of(device);
    if (forward_peak) *forward_peak = *step_peak;
    if (!y || !mt_requires_grad(y)) return y != NULL;
    MT_AUTO mt_tensor *dy = mt_normal(device, mt_dtype_of(y), mt_rank(y), mt_shape(y), 0, 1);
    const mt_backward_options options = {.gradient = dy, .retain_graph = retain};
    bool ok = dy && mt_backward_with(y, &options) == MT_OK;
    *step_peak = peak_of(device);
    return ok;
}

bool mti_expression_measure(mti_expression_peaks *out, mt_device *device, const mti_expression *e)
{
    mt_tensor *leaves[MTI_MAX_LEAVES];
    if (!mti_leaves_make(e, device, leaves)) return false;
    bool ok = step(e, device, leaves, false, &out->forward, &out->step) &&
              step(e, device, leaves, true, NULL, &out->retained) &&
              step(e, device, leaves, false, NULL, &out->step);
    for (int i = 0; i < e->n_leaves; i++) mt_release(leaves[i]);
    return ok;
}

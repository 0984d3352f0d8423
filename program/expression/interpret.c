/* interpret.c: runs an expression, term by term. */
#include <string.h>
#include "expression/walk.h"
#include "memtape/checkpoint.h"

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
    mt_tensor *leaves[MTI_MAX_LEAVES]; /* borrowed */
    mt_tensor **values;                /* of each term; NULL: of a number, or used already */
    mti_expression_walk *walk;
} run;

static bool run_range(run *r, size_t from, size_t to);
static mt_tensor *run_checkpoint(run *r, size_t place);

static mt_tensor *compute(run *r, size_t place)
{
    const mti_term *terms = r->e->terms, *t = &terms[place];
    mt_tensor *in[MTI_CASE_INPUTS] = {0};
    int n = 0;
    for (size_t i = t->first; i != MTI_NO_TERM; i = terms[i].next) in[n++] = r->values[i];
    switch (t->kind) {
    case MTI_TERM_LEAF: return mt_retain(r->leaves[t->leaf]);
    case MTI_TERM_NAME: return mt_retain(r->values[t->source]);
    case MTI_TERM_NEGATED: return mt_mul_scalar(in[0], -1);
    case MTI_TERM_BINARY:
        return binary(&terms[t->first], t->sign, &terms[terms[t->first].next], in[0], in[1]);
    case MTI_TERM_CALL: return mti_call_run(t, in);
    case MTI_TERM_CHECKPOINT: return run_checkpoint(r, place);
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

static void release_value(run *r, size_t place)
{
    mt_release(r->values[place]);
    r->values[place] = NULL;
}

/* Operands are released, each being used once, and a name with its last use. */
static void release_operands(run *r, size_t place)
{
    const mti_term *terms = r->e->terms, *t = &terms[place];
    for (size_t i = t->first; i != MTI_NO_TERM; i = terms[i].next) release_value(r, i);
    if (t->kind == MTI_TERM_NAME && terms[t->source].last_use == place) release_value(r, t->source);
}

static bool run_term(run *r, size_t place)
{
    const mti_term *t = &r->e->terms[place];
    char scope[LONGEST_SCOPE];
    uint64_t failures = mti_failures();
    if (t->kind == MTI_TERM_NUMBER) return true;
    snprintf(scope, sizeof scope, "%.*s", (int)(t->to - t->from), r->e->options.text + t->from);
    mti_make_printable(scope);
    bool scoped = t->kind != MTI_TERM_CHECKPOINT; /* those within have scopes of their own */
    if (scoped && mt_scope_push(scope) != MT_OK) return false;
    r->values[place] = compute(r, place);
    if (scoped) mt_scope_pop();
    release_operands(r, place);
    if (!r->values[place]) return point_to(r, t, failures);
    return !r->walk || mti_expression_note(r->walk, place, r->values[place]);
}

/* Terms [from, to); those within a checkpoint run in its function. */
static bool run_range(run *r, size_t from, size_t to)
{
    for (size_t i = from; i < to; i++) {
        for (size_t c = to; --c > i;) {
            const mti_term *t = &r->e->terms[c];
            if (t->kind != MTI_TERM_CHECKPOINT || t->source != i) continue;
            i = c;
            break;
        }
        if (!run_term(r, i)) return false;
    }
    return true;
}

static void release_values(run *r)
{
    for (size_t i = 0; r->values && i < r->e->n_terms; i++) mt_release(r->values[i]);
    mti_free(r->values);
}

mt_tensor *mti_expression_run(const mti_expression *e, mt_tensor *const *leaves,
                              mti_expression_walk *walk)
{
    run r = {.e = e, .values = mti_calloc(e->n_terms, sizeof *r.values), .walk = walk};
    memcpy(r.leaves, leaves, (size_t)e->n_leaves * sizeof *leaves);
    mt_tensor *result = NULL;
    if (r.values && run_range(&r, 0, e->n_terms)) result = mt_retain(r.values[e->n_terms - 1]);
    release_values(&r);
    return result;
}

/* ---- checkpoints ---- */

typedef struct again {
    const mti_expression *e;
    mti_expression_walk *walk;
    size_t place;
} again;

/* Where the run has the tensor from outside that term `i` of the checkpoint is the first to read;
 * NULL: it is none. */
static mt_tensor **outer(run *r, const mti_term *checkpoint, size_t i)
{
    const mti_term *t = &r->e->terms[i];
    bool leaf = t->kind == MTI_TERM_LEAF;
    if (!leaf && (t->kind != MTI_TERM_NAME || t->source >= checkpoint->source)) return NULL;
    for (size_t j = checkpoint->source; j < i; j++) {
        const mti_term *u = &r->e->terms[j];
        if (u->kind == t->kind && (leaf ? u->leaf == t->leaf : u->source == t->source)) return NULL;
    }
    return leaf ? &r->leaves[t->leaf] : &r->values[t->source];
}

static mt_status run_again(void *user, int n_in, mt_tensor *const *inputs, int n_out,
                           mt_tensor **outputs)
{
    (void)n_in, (void)n_out;
    const again *a = user;
    const mti_term *t = &a->e->terms[a->place];
    run r = {.e = a->e, .values = mti_calloc(a->e->n_terms, sizeof *r.values), .walk = a->walk};
    for (size_t i = t->source; r.values && i < a->place; i++) {
        mt_tensor **slot = outer(&r, t, i);
        if (!slot) continue;
        *slot = *inputs++;
        if (a->e->terms[i].kind == MTI_TERM_NAME) mt_retain(*slot);
    }
    bool ok = r.values && run_range(&r, t->source, a->place);
    if (ok) outputs[0] = mt_retain(r.values[t->first]);
    release_values(&r);
    return ok ? MT_OK : mt_last_status();
}

static mt_tensor *run_checkpoint(run *r, size_t place)
{
    const mti_term *t = &r->e->terms[place];
    mt_tensor **inputs = mti_calloc(place, sizeof *inputs), *output = NULL;
    again *a = mti_calloc(1, sizeof *a);
    int n = 0;
    for (size_t i = t->source; inputs && i < place; i++) {
        mt_tensor **slot = outer(r, t, i);
        if (slot) inputs[n++] = *slot;
    }
    if (a) *a = (again){r->e, r->walk, place};
    if (a && inputs)
        mt_checkpoint(run_again, a, mti_free, n, inputs, 1, &output, NULL);
    else
        mti_free(a);
    mti_free(inputs);
    for (size_t i = t->source; i < place; i++)
        if (r->e->terms[i].kind == MTI_TERM_NAME && r->e->terms[i].source < t->source)
            release_operands(r, i);
    return output;
}

/* ---- its tape ---- */

typedef struct recorded {
    const mti_expression *e;
    mt_tensor **leaves;
} recorded;

static mt_tensor *forward(void *user)
{
    const recorded *r = user;
    return mti_expression_run(r->e, r->leaves, NULL);
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
    MT_AUTO mt_tensor *y = mti_expression_run(e, leaves, NULL);
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

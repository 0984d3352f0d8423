/* op_calls.c: calls of ops by name, through their cases (op_cases.def). */
#include <math.h>
#include <string.h>
#include "expression/expression.h"
#include "collectives/collectives.h"
#include "ops/ops.h"
#include "stacks/torch_ops.h"

/* ---- numbers after the tensors ---- */

/* How an op takes its numbers, which are the parameters of its cases. */
typedef struct form {
    const char *op;
    const char *names; /* for messages */
    int least, most;
    int n_usual;
    double usual[MTI_CASE_PARAMETERS]; /* of those that are left out: [0] is the first of all */
    bool real;                         /* else they are whole */
} form;

#define MANY MTI_CASE_PARAMETERS

static const form forms[] = {
    {"affine", "scale, shift", 2, 2, .real = true},
    {"leaky_relu", "slope", 0, 1, 1, {0.01}, .real = true},
    {"leaky_relu_inplace", "slope", 0, 1, 1, {0.01}, .real = true},
    {"clamp", "low, high", 2, 2, .real = true},
    {"pow", "exponent", 1, 1, .real = true},
    {"softmax", "scale, causal", 0, 2, 2, {1, 0}, .real = true},
    {"log_softmax", "apart", 0, 1, 1, {0}},
    {"layer_norm", "eps", 0, 1, 1, {1e-5}, .real = true},
    {"rms_norm", "eps", 0, 1, 1, {1e-5}, .real = true},
    {"rope", "start, theta", 0, 2, 2, {0, 10000}, .real = true},
    {"dropout", "p", 1, 1, .real = true},
    {"flash_attention", "scale, causal, dropout", 0, 3, 3, {0, 0, 0}, .real = true},
    {"cross_entropy", "ignore", 0, 1, 1, {MT_IGNORE}},
    {"cross_entropy_lse", "ignore", 0, 1, 1, {MT_IGNORE}},
    {"linear_cross_entropy", "ignore, chunk", 0, 2, 2, {MT_IGNORE, 0}},
    {"linear_cross_entropy_early", "ignore, chunk, f32_logits", 0, 3, 3, {MT_IGNORE, 0, 0}},
    {"sum", "keep, dims...", 0, MANY, 1, {0}},
    {"mean", "keep, dims...", 0, MANY, 1, {0}},
    {"max", "keep, dims...", 0, MANY, 1, {0}},
    {"gather", "dim", 1, 1},
    {"topk", "k", 1, 1},
    {"permute", "order...", 1, MANY},
    {"slice", "dim, start, length", 3, 3},
    {"expand", "extents...", 1, MANY},
    {"reshape", "extents...", 1, MANY},
    {"split", "dim, part, sizes...", 3, MANY},
    {"cat", "dim", 0, 1, 1, {0}},
    {"cast", "dtype", 1, 1},
    {"all_gather", "dim, ranks", 2, 2},
    {"reduce_scatter", "dim, ranks", 2, 2},
    {"all_reduce", "ranks", 1, 1},
    {"replicate", "ranks", 1, 1},
    {"send", "rank", 1, 1},
    {"recv", "rank", 1, 1},
};

/* An op without a row takes as many numbers as its case `c`, or those of the case. */
static form form_of(const mti_case *c)
{
    for (size_t i = 0; i < sizeof forms / sizeof *forms; i++)
        if (!strcmp(forms[i].op, c->op)) return forms[i];
    form f = {
        .names = c->n_p ? "parameters..." : "", .most = c->n_p, .n_usual = c->n_p, .real = true};
    memcpy(f.usual, c->p, sizeof f.usual);
    return f;
}

/* ---- checks ---- */

static bool may_be_left_out(const mti_op *op, int i) { return op->flags & MTI_OPTIONAL(1 << i); }

/* "linear(x, w[, b])", "clamp(x, low, high)" */
static void write_call(char *to, size_t size, const mti_op *op, const form *f)
{
    snprintf(to, size, "%s(", op->name);
    for (int i = 0; i < (op->n_in < 0 ? 1 : op->n_in); i++) {
        bool optional = may_be_left_out(op, i);
        mti_append(to, size, "%s%s%s",
                   optional ? "[, "
                   : i      ? ", "
                            : "",
                   op->in[i], optional ? "]" : "");
    }
    if (op->n_in < 0) mti_append(to, size, ", ...");
    if (*f->names) mti_append(to, size, f->least ? ", %s" : "[, %s]", f->names);
    mti_append(to, size, ")");
}

static bool refuse_call(const mti_expression *e, const mti_term *call, const mti_op *op,
                        const form *f)
{
    char text[256];
    write_call(text, sizeof text, op, f);
    return mti_point_at("expr", e->options.text, call->at, "call it as %s: tensors, then numbers",
                        text);
}

static bool tensors_fit(const mti_op *op, int n)
{
    if (op->n_in < 0) return n >= 1;
    for (int i = n; i < op->n_in; i++)
        if (!may_be_left_out(op, i)) return false;
    return n >= 1 && n <= op->n_in;
}

#define LARGEST_WHOLE 2147483647.0
#define LARGEST_REAL  9007199254740992.0

/* Where an op takes indices, a leaf has them. */
static void find_indices(mti_expression *e, const mti_term *call, const mti_case *c)
{
    int i = 0;
    for (size_t t = call->first; t != MTI_NO_TERM; t = e->terms[t].next, i++)
        if (i < c->n_in && c->in[i].below && e->terms[t].kind == MTI_TERM_LEAF)
            e->leaves[e->terms[t].leaf].indices = true;
}

/* The op's first case: what it is called through, and which of its inputs are indices. */
static bool case_of(const char *op, mti_case *out)
{
    static const mti_case_sizes sizes = {8, 8, 8, 8, 8, 8, 8, 8}; /* its own tensors are not used */
    return mti_case_find(&mti_all_cases, op, MTI_CASE_AUDIT, sizes, out);
}

bool mti_call_check(mti_expression *e, mti_term *call, int n_tensors)
{
    const mti_op *op = mti_op_row(call->op);
    mti_case c;
    if (!case_of(op->name, &c))
        return mti_point_at("expr", e->options.text, call->at, "%s cannot be called here",
                            op->name);
    const form own = form_of(&c), *f = &own;
    if (!tensors_fit(op, n_tensors) || call->n_numbers < f->least || call->n_numbers > f->most)
        return refuse_call(e, call, op, f);
    for (int i = 0; i < call->n_numbers; i++) {
        double p = call->numbers[i];
        if (f->real ? fabs(p) > LARGEST_REAL : p != floor(p) || fabs(p) > LARGEST_WHOLE)
            return mti_point_at("expr", e->options.text, call->at,
                                "%s takes %s numbers, and %g is not one", op->name,
                                f->real ? "smaller" : "whole", p);
    }
    for (; call->n_numbers < f->n_usual; call->n_numbers++)
        call->numbers[call->n_numbers] = f->usual[call->n_numbers];
    find_indices(e, call, &c);
    return true;
}

/* ---- calls ---- */

/* Ops whose cases make more of the result than the op. */
static mt_tensor *run_compare(const char *op, mt_tensor **in)
{
#define COMPARE(name, sign)                                                                        \
    if (!strcmp(op, #name)) return mt_##name(in[0], in[1]);
#include "backends/comparisons.def"
    return NULL;
}

static bool is_compare(const char *op)
{
#define COMPARE(name, sign) || !strcmp(op, #name)
    return false
#include "backends/comparisons.def"
        ;
}

mt_tensor *mti_call_run(const mti_term *call, mt_tensor **in)
{
    const char *op = mt_all_ops_get(call->op).name;
    mti_case c;
    if (is_compare(op)) return run_compare(op, in);
    if (!strcmp(op, "contiguous")) return mt_contiguous(in[0]);
    if (!strcmp(op, "log_softmax") && call->numbers[0] != 0) return mti_torch_log_softmax(in[0]);
    if (!strcmp(op, "relu_inplace"))
        return mt_relu_inplace(in[0]) == MT_OK ? mt_retain(in[0]) : NULL;
    if (!strcmp(op, "leaky_relu_inplace"))
        return mt_leaky_relu_inplace(in[0], call->numbers[0]) == MT_OK ? mt_retain(in[0]) : NULL;
    if (!case_of(op, &c)) return NULL; /* checked while reading */
    c.n_p = call->n_numbers;
    memcpy(c.p, call->numbers, sizeof c.p);
    return mti_case_call(&c, in);
}

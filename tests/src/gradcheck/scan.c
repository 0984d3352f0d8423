#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "scan.h"

/* The outcome of a run: the result and the gradients of the inputs that require grad, row-major. */
typedef struct outcome {
    int rank;
    int64_t shape[MT_MAX_RANK], n;
    double *values, *grad[CASE_INPUTS];
} outcome;

/* A case in progress. Operand n_inputs is the incoming gradient. */
typedef struct scan {
    mt_device *device, *cpu;
    const grad_case *c;
    scan_breadth breadth;
    bool own_shapes; /* no extent is replaced */
    scan_result *result;
    int rank[CASE_INPUTS + 1];
    int64_t shape[CASE_INPUTS + 1][MT_MAX_RANK], n[CASE_INPUTS + 1];
    double *values[CASE_INPUTS + 1];
    tensor_layout layout[CASE_INPUTS + 1];
    const char *saved_layout; /* layout in which saved tensors come back; NULL: no hook */
    unsigned floating;        /* inputs that can require grad */
} scan;

static void free_outcome(outcome *o)
{
    free(o->values);
    for (int i = 0; i < CASE_INPUTS; i++) free(o->grad[i]);
    *o = (outcome){0};
}

/* ---- one run ---- */

static bool make_inputs(const scan *s, mt_device *device, mt_dtype dtype, unsigned wanted,
                        mt_tensor **in)
{
    bool ok = true;
    for (int i = 0; ok && i < s->c->of.n_in; i++) {
        mt_dtype of = s->floating >> i & 1 ? dtype : MT_I64;
        in[i] = layout_make(device, of, s->rank[i], s->shape[i], s->values[i], &s->layout[i]);
        ok = in[i] && (!(wanted >> i & 1) || mt_set_requires_grad(in[i], true) == MT_OK);
    }
    return ok;
}

/* If the scan does not know the result's shape yet, makes the incoming gradient for it. */
static bool run_backward(const scan *s, mt_device *device, mt_tensor *out)
{
    int g = s->c->of.n_in;
    mt_backward_options options = {.gradient =
                                       layout_make(device, mt_dtype_of(out), s->rank[g],
                                                   s->shape[g], s->values[g], &s->layout[g])};
    bool ok = options.gradient && mt_backward_with(out, &options) == MT_OK;
    mt_release(options.gradient);
    return ok;
}

/* Copies the tensors' elements into one, as f64 and row-major, each behind the last; NULL on
 * failure. */
static mt_tensor *put_together(mt_device *device, int n, mt_tensor **t, int64_t total)
{
    mt_tensor *whole = mt_zeros(device, MT_F64, MT_SHAPE(total));
    size_t offset = 0;
    for (int i = 0; whole && i < n; i++) {
        int64_t stored;
        tensor_layout dense = layout_dense(mt_rank(t[i]));
        mt_layout as = layout_of(MT_F64, mt_rank(t[i]), mt_shape(t[i]), &dense, &stored);
        as.offset = offset;
        offset += (size_t)mt_numel(t[i]) * sizeof(double);
        MT_AUTO mt_tensor *wide = mt_cast(t[i], MT_F64), *place = mt_view_as(whole, &as);
        if (!wide || !place || mt_copy(place, wide) != MT_OK) mt_set(&whole, NULL);
    }
    return whole;
}

/* Reads the result and the gradients by one copy to the host: on a GPU each would wait. */
static bool read_outcome(const scan *s, mt_device *device, unsigned wanted, mt_tensor **in,
                         mt_tensor *out, outcome *o)
{
    mt_tensor *t[1 + CASE_INPUTS] = {out};
    double **to[1 + CASE_INPUTS] = {&o->values}, *all;
    int n = 1;
    int64_t total = mt_numel(out);
    for (int i = 0; i < s->c->of.n_in; i++) {
        if (!(wanted >> i & 1)) continue;
        if (!(t[n] = mt_grad(in[i]))) return false;
        to[n] = &o->grad[i];
        total += mt_numel(t[n++]);
    }
    bool mode = mt_set_grad_mode(false);
    MT_AUTO mt_tensor *whole = put_together(device, n, t, total);
    mt_set_grad_mode(mode);
    if (!whole || !(all = mtt_doubles(whole))) return false;
    const double *from = all;
    for (int i = 0; i < n; i++) {
        size_t n_bytes = (size_t)mt_numel(t[i]) * sizeof(double);
        *to[i] = malloc(n_bytes + 1);
        assert_non_null(*to[i]);
        memcpy(*to[i], from, n_bytes);
        from += mt_numel(t[i]);
    }
    free(all);
    return true;
}

static bool forward_and_backward(const scan *s, mt_device *device, mt_dtype dtype, unsigned wanted,
                                 outcome *o)
{
    mt_tensor *in[CASE_INPUTS] = {0}, *out = NULL;
    bool ok = make_inputs(s, device, dtype, wanted, in);
    mt_seed(device, 11);
    ok = ok && (out = case_call(s->c, in));
    if (ok) {
        o->rank = mt_rank(out), o->n = mt_numel(out);
        memcpy(o->shape, mt_shape(out), sizeof o->shape);
    }
    if (wanted) ok = ok && run_backward(s, device, out);
    ok = ok && read_outcome(s, device, wanted, in, out, o);
    mt_release(out);
    for (int i = 0; i < s->c->of.n_in; i++) mt_release(in[i]);
    return ok;
}

/* ---- comparing ---- */

/* Relative to the largest element: a few roundings. Reading a wrong element is off by far more. */
static double tolerance_of(const grad_case *c, mt_dtype dtype)
{
    double rounding = dtype == MT_F64   ? 1e-10
                      : dtype == MT_F32 ? 1e-4
                      : dtype == MT_F16 ? 0.02
                                        : 0.1;
    return c->gain > 0 ? c->gain * rounding : rounding;
}

/* The index of the first element that differs by more than rounding; -1 if none does. */
static int64_t first_difference(const double *got, const double *exact, int64_t n, double tolerance)
{
    double largest = 1;
    for (int64_t j = 0; j < n; j++)
        if (isfinite(exact[j])) largest = fmax(largest, fabs(exact[j]));
    for (int64_t j = 0; j < n; j++) {
        bool same = got[j] == exact[j] || (isnan(got[j]) && isnan(exact[j]));
        if (!same && !(fabs(got[j] - exact[j]) <= tolerance * largest)) return j;
    }
    return -1;
}

static void MT_PRINTF(4, 5)
    report_wrong(scan *s, mt_dtype dtype, unsigned wanted, const char *fmt, ...)
{
    char *at = s->result->fault, *end = at + sizeof s->result->fault, text[128];
    if (s->result->n_wrong++) return;
    at += snprintf(at, (size_t)(end - at), "%s, wanted %u", mt_dtype_name(dtype), wanted);
    for (int i = 0; i <= s->c->of.n_in && at < end; i++) {
        at += snprintf(at, (size_t)(end - at), i == s->c->of.n_in ? "; dy [" : "; in%d [", i);
        for (int d = 0; d < s->rank[i] && at < end; d++)
            at +=
                snprintf(at, (size_t)(end - at), "%s%lld", d ? "," : "", (long long)s->shape[i][d]);
        if (at < end)
            at += snprintf(at, (size_t)(end - at), "] %s",
                           layout_text(&s->layout[i], s->rank[i], text));
    }
    if (at < end) at += snprintf(at, (size_t)(end - at), ": ");
    if (s->saved_layout && at < end)
        at += snprintf(at, (size_t)(end - at), "saved tensors come back %s: ", s->saved_layout);
    va_list args;
    va_start(args, fmt);
    if (at < end) vsnprintf(at, (size_t)(end - at), fmt, args);
    va_end(args);
}

static void compare(scan *s, mt_dtype dtype, unsigned wanted, const outcome *exact)
{
    outcome got = {0};
    double tolerance = tolerance_of(s->c, dtype);
    int64_t j;
    s->result->n_runs++;
    if (!forward_and_backward(s, s->device, dtype, wanted, &got)) {
        report_wrong(s, dtype, wanted, "%s", mt_last_error());
        mt_clear_error();
    } else if (got.rank != exact->rank ||
               memcmp(got.shape, exact->shape, (size_t)got.rank * sizeof *got.shape) != 0) {
        report_wrong(s, dtype, wanted, "another shape");
    } else if ((j = first_difference(got.values, exact->values, got.n, tolerance)) >= 0) {
        report_wrong(s, dtype, wanted, "element %lld is %g; should be %g", (long long)j,
                     got.values[j], exact->values[j]);
    } else {
        for (int i = 0; i < s->c->of.n_in; i++) {
            if (!(wanted >> i & 1)) continue;
            j = first_difference(got.grad[i], exact->grad[i], s->n[i], tolerance);
            if (j < 0) continue;
            report_wrong(s, dtype, wanted, "d/din%d[%lld] is %g; should be %g", i, (long long)j,
                         got.grad[i][j], exact->grad[i][j]);
            break;
        }
    }
    free_outcome(&got);
}

static void in_every_dtype(scan *s, const outcome *exact)
{
    static const mt_dtype dtypes[] = {MT_F64, MT_F32, MT_BF16, MT_F16};
    if (s->breadth == SCAN_NARROW) {
        compare(s, dtypes[s->result->n_runs % 3], s->floating, exact);
        return;
    }
    bool wide = s->breadth == SCAN_WIDE;
    for (int t = 0; t < (wide ? 4 : 3); t++) compare(s, dtypes[t], s->floating, exact);
    for (int i = 0; wide && i < s->c->of.n_in; i++)
        if (s->floating >> i & 1 && s->floating != 1u << i) compare(s, MT_F32, 1u << i, exact);
}

/* ---- layouts ---- */

/* One operand in all layouts that expand exactly these dimensions. */
static void scan_operand(scan *s, int operand, unsigned expanded)
{
    double *values = s->values[operand];
    size_t n_bytes = (size_t)s->n[operand] * sizeof *values;
    double *before = malloc(n_bytes + 1);
    assert_non_null(before);
    memcpy(before, values, n_bytes);
    layout_repeat(s->rank[operand], s->shape[operand], expanded, values);
    outcome exact = {0};
    if (!forward_and_backward(s, s->cpu, MT_F64, s->floating, &exact))
        report_wrong(s, MT_F64, s->floating, "contiguous on the CPU: %s", mt_last_error());
    else {
        tensor_layout *list;
        bool every_order = s->breadth == SCAN_WIDE && s->own_shapes && !expanded;
        int n = layouts_with(s->rank[operand], expanded, every_order, &list);
        if (s->breadth == SCAN_NARROW && expanded) n = 1;
        for (int k = 0; k < n; k++) {
            s->layout[operand] = list[k];
            in_every_dtype(s, &exact);
        }
        free(list);
        s->layout[operand] = layout_dense(s->rank[operand]);
    }
    free_outcome(&exact);
    memcpy(values, before, n_bytes);
    free(before);
}

/* All operands in the same layout: dimensions reversed in memory, or sliced, or both. */
static void scan_together(scan *s)
{
    outcome exact = {0};
    if (!forward_and_backward(s, s->cpu, MT_F64, s->floating, &exact)) return;
    for (int kind = 1; kind < 4; kind++) {
        for (int i = 0; i <= s->c->of.n_in; i++) {
            int rank = s->rank[i];
            for (int d = 0; d < rank; d++) s->layout[i].order[d] = kind & 1 ? rank - 1 - d : d;
            s->layout[i].sliced = kind & 2 ? (1u << rank) - 1 : 0;
        }
        in_every_dtype(s, &exact);
    }
    for (int i = 0; i <= s->c->of.n_in; i++) s->layout[i] = layout_dense(s->rank[i]);
    free_outcome(&exact);
}

/* ---- saved tensors in other layouts ---- */

/* The same elements in another layout. Bit 0 of kind: dimensions reversed in memory; bit 1: sliced.
 */
static mt_tensor *in_another_layout(mt_tensor *t, int kind)
{
    int rank = mt_rank(t);
    int64_t stored;
    tensor_layout l = layout_dense(rank);
    for (int d = 0; d < rank && kind & 1; d++) l.order[d] = rank - 1 - d;
    if (kind & 2) l.sliced = (1u << rank) - 1;
    mt_layout as = layout_of(mt_dtype_of(t), rank, mt_shape(t), &l, &stored);
    MT_AUTO mt_tensor *whole = mt_full(mt_device_of(t), as.dtype, 1, &stored, 1);
    mt_tensor *other = whole ? mt_view_as(whole, &as) : NULL;
    if (other && mt_copy(other, t) != MT_OK) mt_set(&other, NULL);
    return other;
}

static mt_status unpack_in_another_layout(void *user, const mt_save_info *info, mt_tensor **t,
                                          void *state)
{
    (void)info, (void)state;
    *t = in_another_layout(*t, *(int *)user);
    return *t ? MT_OK : mt_last_status();
}

/* A hook returns saved tensors in another layout. */
static void scan_saved(scan *s)
{
    static const mt_saved_hooks hooks = {.unpack = unpack_in_another_layout};
    static const char *const names[] = {"row-major", "backwards", "sliced", "backwards and sliced"};
    outcome exact = {0};
    if (!forward_and_backward(s, s->cpu, MT_F64, s->floating, &exact)) return;
    for (int kind = 0; kind < 4; kind++) {
        mtt_ok(mt_push_saved_hooks(&hooks, &kind));
        s->saved_layout = names[kind];
        in_every_dtype(s, &exact);
        s->saved_layout = NULL;
        mtt_ok(mt_pop_saved_hooks());
    }
    free_outcome(&exact);
}

/* ---- shapes ---- */

static void take_operand(scan *s, int i, int rank, const int64_t *shape)
{
    s->rank[i] = rank;
    s->n[i] = 1;
    for (int d = 0; d < rank; d++) s->n[i] *= s->shape[i][d] = shape[d];
    s->layout[i] = layout_dense(rank);
    s->values[i] = malloc((size_t)(s->n[i] + 1) * sizeof(double));
    assert_non_null(s->values[i]);
}

static bool is_finite(const scan *s, const outcome *o)
{
    bool finite = true;
    for (int64_t j = 0; j < o->n; j++) finite = finite && isfinite(o->values[j]);
    for (int i = 0; i < s->c->of.n_in; i++)
        for (int64_t j = 0; o->grad[i] && j < s->n[i]; j++)
            finite = finite && isfinite(o->grad[i][j]);
    return finite;
}

/* Checks the reference itself with central differences for shapes that no other test checks: two
 * runs for each element. */
static void check_reference(scan *s)
{
    outcome o = {0};
    int64_t n = 0;
    for (int i = 0; i < s->c->of.n_in; i++) n += s->n[i];
    if (!forward_and_backward(s, s->cpu, MT_F64, s->floating, &o))
        report_wrong(s, MT_F64, s->floating, "contiguous on the CPU: %s", mt_last_error());
    else if (!s->own_shapes && n <= 128 && is_finite(s, &o)) {
        grad_result r = grad_check(s->cpu, s->c, NULL);
        if (r.fault[0]) report_wrong(s, MT_F64, s->floating, "contiguous on the CPU: %s", r.fault);
    }
    free_outcome(&o);
}

static bool one_or_all(unsigned expanded, int rank)
{
    return (expanded & (expanded - 1)) == 0 || expanded == (1u << rank) - 1;
}

static void scan_each_operand(scan *s)
{
    bool few = s->breadth == SCAN_NARROW; /* or a large operand */
    for (int i = 0; i <= s->c->of.n_in; i++) few = few || s->n[i] > 256;
    for (int i = 0; i <= s->c->of.n_in; i++)
        for (unsigned expanded = 0; expanded < 1u << s->rank[i]; expanded++)
            if (!few || one_or_all(expanded, s->rank[i])) scan_operand(s, i, expanded);
}

static void scan_shapes(mt_device *device, mt_device *cpu, const grad_case *c, bool own_shapes,
                        scan_breadth breadth, scan_result *result)
{
    scan s = {.device = device,
              .cpu = cpu,
              .c = c,
              .breadth = breadth,
              .own_shapes = own_shapes,
              .result = result};
    int g = c->of.n_in;
    for (int i = 0; i < c->of.n_in; i++) {
        take_operand(&s, i, c->of.in[i].rank, c->of.in[i].shape);
        s.floating |= (unsigned)(c->of.in[i].below == 0) << i;
    }
    case_draw(c, 64, s.values); /* so that they are exact in bf16 */
    outcome first = {0};
    result->n_shapes++;
    if (forward_and_backward(&s, cpu, MT_F64, 0, &first)) {
        take_operand(&s, g, first.rank, first.shape);
        uint64_t state = 3;
        for (int64_t j = 0; j < s.n[g]; j++)
            s.values[g][j] = round(mtt_draw(&state, .5, 1.5) * 64) / (j % 3 == 1 ? -64 : 64);
        check_reference(&s);
        if (breadth != SCAN_NARROW || own_shapes) scan_each_operand(&s);
        scan_together(&s);
        scan_saved(&s);
    } else {
        result->n_refused++;
        mt_clear_error();
    }
    free_outcome(&first);
    for (int i = 0; i <= g; i++) free(s.values[i]);
}

#define MOST_ELEMENTS 4096 /* of an input; with more, thousands of runs take too long */

/* Sets *to to the case with every extent `was` replaced by `extent`, and with valid indices; false
 * if there are none, or if an input would be too large. */
static bool replace(const grad_case *c, int64_t was, int64_t extent, grad_case *to)
{
    *to = *c;
    to->of.users |= MTI_CASE_INNER; /* without broadcasting, another op may make the result */
    for (int i = 0; i < c->of.n_in; i++) {
        mti_case_input *in = &to->of.in[i];
        for (int d = 0; d < in->rank; d++)
            if (in->shape[d] == was) in->shape[d] = extent;
        if (case_count(in) > MOST_ELEMENTS) return false;
        if (in->below != was) continue;
        in->below = extent ? extent : 1;
        if (!extent && case_count(in) > 0) return false;
    }
    return true;
}

static bool seen_before(const grad_case *c, int input, int dimension)
{
    int64_t extent = c->of.in[input].shape[dimension];
    for (int i = 0; i <= input; i++)
        for (int d = 0; d < (i < input ? c->of.in[i].rank : dimension); d++)
            if (c->of.in[i].shape[d] == extent) return true;
    return false;
}

void scan_layouts(mt_device *device, mt_device *cpu, const grad_case *c, scan_breadth breadth,
                  scan_result *result)
{
    static const int64_t extents[] = {0, 1, 16, 70};
    int n = breadth == SCAN_WIDE ? 4 : 2;
    scan_shapes(device, cpu, c, true, breadth, result);
    for (int i = 0; i < c->of.n_in; i++)
        for (int d = 0; d < c->of.in[i].rank; d++)
            for (int e = 0; e < n && !seen_before(c, i, d); e++) {
                grad_case other;
                if (c->of.in[i].shape[d] == extents[e]) continue;
                if (replace(c, c->of.in[i].shape[d], extents[e], &other))
                    scan_shapes(device, cpu, &other, false, breadth, result);
            }
}

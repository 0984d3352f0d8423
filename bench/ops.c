/* ops.c: checks and then times one op at a time.
 *
 *     rows                  -> "row NAME" for each row of the op table
 *     cases                 -> "case NAME INPUT..." for each tiny case of ops/op_cases.def
 *     load NAME INPUT...    -> "probe Y D0 D1 ...": the result and the gradients,
 *                              each as two numbers, after a check against f64
 *     forward N             -> "ns T": N times the op, recorded
 *     both N                -> "ns T": N times the op and its backward
 * An answer ends with "done". INPUT is f (requires grad), p (the same, positive) or iN (i64 below
 * N), then ":" and its shape: f:4x8, i10:4, f: (a scalar). NAME may end with parameters:
 * affine/1.5,0.5. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "bench.h"

typedef struct op_case {
    mt_device *device;
    bench_function function;
    int n_inputs;
    char spec[BENCH_INPUTS][64];
    mt_tensor *in[BENCH_INPUTS]; /* NULL after the last */
    mt_tensor *dy;
} op_case;

static void unload(op_case *c)
{
    for (int i = 0; i < BENCH_INPUTS; i++) mt_release(c->in[i]);
    mt_release(c->dy);
    memset(c->in, 0, sizeof c->in);
    c->dy = NULL;
}

/* ---- inputs: pseudo-random numbers, the same in peer.py ---- */

/* Element i of input k, in [-1, 1): a multiple of 1/512, so exact in every float type. */
static double element(int64_t i, int k)
{
    return (double)((i * 7919 + k * 104729) % 1024) / 512 - 1;
}

static mt_tensor *make_float(mt_device *device, mt_dtype dtype, int rank, const int64_t *shape,
                             int k, bool positive)
{
    int64_t n = 1;
    for (int d = 0; d < rank; d++) n *= shape[d];
    double *values = malloc((size_t)n * sizeof *values);
    if (!values) return NULL;
    for (int64_t i = 0; i < n; i++) values[i] = positive ? element(i, k) + 1.5 : element(i, k);
    mt_tensor *t = mt_from_data(device, MT_F64, rank, shape, values, (size_t)n * sizeof *values);
    free(values);
    mt_set(&t, mt_cast(t, dtype));
    return t;
}

static mt_tensor *make_index(mt_device *device, int rank, const int64_t *shape, int64_t below)
{
    int64_t n = 1;
    for (int d = 0; d < rank; d++) n *= shape[d];
    int64_t *ids = malloc((size_t)n * sizeof *ids);
    if (!ids) return NULL;
    for (int64_t i = 0; i < n; i++) ids[i] = (i * 7919 + 104729) % below;
    mt_tensor *t = mt_from_data(device, MT_I64, rank, shape, ids, (size_t)n * sizeof *ids);
    free(ids);
    return t;
}

static mt_tensor *make_input(mt_device *device, mt_dtype dtype, const char *spec, int k)
{
    int64_t shape[MT_MAX_RANK], below = strtoll(spec + 1, NULL, 10);
    int rank = 0;
    const char *at = strchr(spec, ':');
    if (!at) return NULL;
    while (*++at && rank < MT_MAX_RANK) {
        char *end;
        shape[rank++] = strtoll(at, &end, 10);
        if (end == at || (*end && *end != 'x')) return NULL;
        at = *end ? end : end - 1;
    }
    if (*spec == 'i') return make_index(device, rank, shape, below);
    mt_tensor *t = make_float(device, dtype, rank, shape, k, *spec == 'p');
    if (t && mt_set_requires_grad(t, true) != MT_OK) mt_set(&t, NULL);
    return t;
}

/* ---- one run, and its result as numbers ---- */

static bool backward(op_case *c, mt_tensor *y)
{
    bool ok = y && mt_backward_with(y, &(mt_backward_options){.gradient = c->dy}) == MT_OK;
    mt_release(y);
    return ok;
}

static bool drop_gradients(op_case *c)
{
    for (int i = 0; i < c->n_inputs; i++)
        if (mt_grad(c->in[i]) && mt_set_grad(c->in[i], NULL) != MT_OK) return false;
    return true;
}

/* A tensor as two numbers: the sum of x_i cos(i), in which every element has a different weight,
 * and the 2-norm, which is the scale for comparing two sums. */
typedef struct probed {
    double sum, norm;
} probed;

static bool probe(mt_tensor *x, probed *out)
{
    MT_AUTO mt_tensor *wide = mt_cast(x, MT_F64);
    if (!wide) return false;
    size_t n = (size_t)mt_numel(wide);
    double *values = malloc(n * sizeof *values);
    bool ok = values && mt_to_host(wide, values, n * sizeof *values) == MT_OK;
    *out = (probed){0, 0};
    for (size_t i = 0; ok && i < n; i++) {
        out->sum += values[i] * cos((double)i);
        out->norm += values[i] * values[i];
    }
    out->norm = sqrt(out->norm);
    free(values);
    return ok;
}

/* probes[0] is for the result, probes[1 + k] for the gradient of input k (norm -1: none). */
static bool run_once(op_case *c, mt_dtype dtype, probed probes[1 + BENCH_INPUTS])
{
    unload(c);
    for (int i = 0; i < c->n_inputs; i++)
        if (!(c->in[i] = make_input(c->device, dtype, c->spec[i], i))) return false;
    mt_seed(c->device, 1);
    mt_tensor *y = bench_call(&c->function, c->in);
    if (!y || !probe(y, &probes[0])) return false;
    c->dy = make_float(c->device, mt_dtype_of(y), mt_rank(y), mt_shape(y), 9, false);
    if (!c->dy || !backward(c, y)) return false;
    for (int i = 0; i < c->n_inputs; i++) {
        probes[1 + i] = (probed){0, -1};
        if (mt_grad(c->in[i]) && !probe(mt_grad(c->in[i]), &probes[1 + i])) return false;
    }
    return drop_gradients(c);
}

/* ---- the commands ---- */

/* Compares f32 with f64; the gradient checks find formulas that are wrong in both. */
static bool check(op_case *c, const char *name)
{
    probed wide[1 + BENCH_INPUTS], narrow[1 + BENCH_INPUTS];
    if (!run_once(c, MT_F64, wide) || !run_once(c, MT_F32, narrow)) return false;
    double precision = strncmp(name, "cast", 4) == 0 ? 0x1p-7 : 0x1p-13; /* cast: to bf16 */
    printf("probe");
    for (int i = 0; i <= c->n_inputs; i++) {
        printf(" %.9g %.9g", narrow[i].sum, narrow[i].norm);
        if (wide[i].norm < 0 && narrow[i].norm < 0) continue; /* indices have no gradient */
        double allowed = precision * (wide[i].norm + 1e-6);
        if (fabs(narrow[i].sum - wide[i].sum) <= allowed) continue;
        fprintf(stderr, "memtape_bench: %s: f32 gives %.9g and f64 %.9g for %s\n", name,
                narrow[i].sum, wide[i].sum, i ? "a gradient" : "the result");
        return false;
    }
    puts("");
    return true;
}

static bool load(op_case *c, char *line)
{
    char *save = NULL, *name = strtok_r(line, " \n", &save);
    if (!name || !bench_find_function(name, &c->function)) return false;
    c->n_inputs = 0;
    for (char *spec; (spec = strtok_r(NULL, " \n", &save)) && c->n_inputs < BENCH_INPUTS;)
        snprintf(c->spec[c->n_inputs++], sizeof c->spec[0], "%s", spec);
    return check(c, name);
}

static bool repeat(op_case *c, int64_t n, bool with_backward)
{
    int64_t start = bench_now_ns();
    for (int64_t i = 0; i < n; i++) {
        mt_tensor *y = bench_call(&c->function, c->in);
        if (!y) return false;
        if (with_backward) {
            if (!backward(c, y) || !drop_gradients(c)) return false;
        } else {
            mt_release(y);
        }
    }
    printf("ns %lld\n", (long long)(bench_now_ns() - start));
    return true;
}

static void print_input(const mti_case_input *in)
{
    if (in->below)
        printf(" i%lld:", (long long)in->below);
    else
        fputs(in->low > 0 ? " p:" : " f:", stdout);
    for (int d = 0; d < in->rank; d++) printf(d ? "x%lld" : "%lld", (long long)in->shape[d]);
}

static void print_cases(void)
{
    mti_case c;
    for (int nth = 0; bench_tiny_case(nth, &c); nth++) {
        printf("case %s", c.op);
        for (int i = 0; i < c.n_p; i++) printf("%c%.15g", i ? ',' : '/', c.p[i]);
        for (int i = 0; i < c.n_in; i++) print_input(&c.in[i]);
        puts("");
    }
}

static bool obey(op_case *c, char *line)
{
    if (strncmp(line, "rows", 4) == 0) {
        for (int i = 0; i < mt_all_ops_count(); i++) printf("row %s\n", mt_all_ops_get(i).name);
        return true;
    }
    if (strncmp(line, "cases", 5) == 0) return print_cases(), true;
    if (strncmp(line, "load ", 5) == 0) return load(c, line + 5);
    if (!c->in[0]) return false;
    if (strncmp(line, "forward ", 8) == 0) return repeat(c, strtoll(line + 8, NULL, 10), false);
    return strncmp(line, "both ", 5) == 0 && repeat(c, strtoll(line + 5, NULL, 10), true);
}

int bench_ops(int argc, char **argv)
{
    char line[512];
    op_case c = {.device = mt_device_open("cpu")};
    if (argc != 1) return 2;
    bool ok = c.device && mt_device_set_threads(c.device, atoi(argv[0])) == MT_OK;
    if (ok) puts("ready");
    while (ok && fgets(line, sizeof line, stdin)) {
        ok = obey(&c, line);
        if (ok) puts("done");
    }
    unload(&c);
    mt_device_release(c.device);
    return ok ? 0 : bench_failed(line);
}

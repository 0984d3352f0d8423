/* kernels.c: times one op at a time on a device, through the public interface.
 *
 *     load NAME DTYPE INPUT...  -> "sample V V V ..." for the result and for each gradient
 *     forward N                 -> "ns T": N times the op, recorded
 *     backward N                -> "ns T": N times the backward of one recorded op
 *     rest                      -> frees all memory of the device
 * An answer ends with "done". NAME may have a number: "adamw/148" steps 148 parameters of the first
 * input's shape. T is wall time from an idle device to an idle device. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "gpu.h"

#define SAMPLE_ROWS 256

typedef struct kernel_case {
    mt_device *device;
    bool loaded;
    bench_function function;
    int64_t count; /* parameters for adamw */
    int n_inputs;
    mt_tensor *in[BENCH_INPUTS];
    mt_tensor *y, *dy; /* recorded once, for backward */
    mt_module *module; /* adamw's */
    mt_optimizer *adamw;
} kernel_case;

/* ---- functions that bench/functions.c lacks ---- */

static mt_tensor *through(mt_tensor *x, mt_quant_format format)
{
    MT_AUTO mt_tensor *packed = mt_quantize(x, &(mt_quant){.format = format});
    return mt_dequantize(packed, &(mt_quant){.format = format}, mt_dtype_of(x), mt_rank(x),
                         mt_shape(x));
}

static mt_tensor *through_int8(mt_tensor **in, const double *p)
{
    return (void)p, through(in[0], MT_QUANT_INT8);
}

static mt_tensor *through_nf4(mt_tensor **in, const double *p)
{
    return (void)p, through(in[0], MT_QUANT_NF4);
}

static bool find(const char *name, bench_function *f)
{
    /* Cases of ops/op_cases.def, with other parameters than in the benchmark. */
    static const char *const rows[][2] = {
        {"whole_softmax", "softmax/1,0"},
        {"flash_dropout", "flash_attention/0,1,0.1"},
        {"sum_rows", "sum/0,0"},
        {"to_f32", "cast/0"},
    };
    *f = (bench_function){0};
    if (strcmp(name, "through_int8") == 0) return f->composed = through_int8, true;
    if (strcmp(name, "through_nf4") == 0) return f->composed = through_nf4, true;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        if (strcmp(name, rows[i][0]) == 0) name = rows[i][1];
    return bench_find_function(name, f);
}

/* ---- loading ---- */

static void unload(kernel_case *c)
{
    for (int i = 0; i < BENCH_INPUTS; i++) mt_set(&c->in[i], NULL);
    mt_set(&c->y, NULL);
    mt_set(&c->dy, NULL);
    mt_optimizer_free(c->adamw);
    mt_module_free(c->module);
    c->adamw = NULL;
    c->module = NULL;
    c->loaded = false;
    mt_clear_error();
}

static bool drop_gradients(kernel_case *c)
{
    for (int i = 0; i < c->n_inputs; i++)
        if (mt_grad(c->in[i]) && mt_set_grad(c->in[i], NULL) != MT_OK) return false;
    return true;
}

static bool backward(kernel_case *c)
{
    return mt_backward_with(
               c->y, &(mt_backward_options){.gradient = c->dy, .retain_graph = true}) == MT_OK;
}

/* Arranges the elements in rows; prints the column at a third of their length, and the last one. */
static bool sample(mt_tensor *t)
{
    double values[SAMPLE_ROWS];
    int64_t n = mt_numel(t), rows = SAMPLE_ROWS;
    while (n % rows) rows /= 2;
    int64_t columns = n / rows, at[] = {columns / 3, columns - 1};
    MT_AUTO mt_tensor *flat = mt_contiguous(t);
    mt_set(&flat, mt_reshape(flat, MT_SHAPE(rows, columns)));
    printf("sample");
    for (int i = 0; i < 2; i++) {
        MT_AUTO mt_tensor *column = mt_slice(flat, 1, at[i], 1);
        mt_set(&column, mt_cast(column, MT_F64));
        size_t n_bytes = (size_t)rows * sizeof *values;
        if (!column || mt_to_host(column, values, n_bytes) != MT_OK) return false;
        for (int64_t r = 0; r < rows; r++) printf(" %.9g", values[r]);
    }
    puts("");
    return true;
}

/* Runs the op, and its backward if it has one, once; prints samples of the results. */
static bool try_op(kernel_case *c)
{
    mt_seed(c->device, 1);
    c->y = bench_call(&c->function, c->in);
    if (!c->y) return false;
    c->dy = gpu_values(c->device, mt_dtype_of(c->y), mt_rank(c->y), mt_shape(c->y), 9, false);
    if (!c->dy || (mt_requires_grad(c->y) && !backward(c))) return false;
    bool mode = mt_set_grad_mode(false);
    bool ok = sample(c->y);
    for (int i = 0; i < c->n_inputs; i++)
        if (mt_grad(c->in[i])) ok = ok && sample(mt_grad(c->in[i]));
    mt_set_grad_mode(mode);
    return ok && drop_gradients(c);
}

static mt_tensor *pass_on(mt_module *self, mt_tensor *x) { return (void)self, mt_retain(x); }

static bool load_adamw(kernel_case *c, mt_dtype dtype, const char *spec)
{
    c->module = mt_module_new("parameters", pass_on, NULL, NULL);
    for (int64_t i = 0; i < c->count; i++) {
        char name[32];
        snprintf(name, sizeof name, "p%lld", (long long)i);
        mt_tensor *p =
            mt_module_add_param(c->module, name, gpu_input(c->device, dtype, spec, (int)i));
        MT_AUTO mt_tensor *g = gpu_input(c->device, dtype, spec, (int)i + 1);
        mt_set(&g, mt_detach(g));
        if (!p || !g || mt_set_grad(p, g) != MT_OK) return false;
    }
    c->adamw = mt_adamw_new(c->module, &(mt_adamw_options){.lr = 0.1, .weight_decay = 0.01});
    if (!c->adamw || mt_optimizer_step(c->adamw) != MT_OK) return false;
    return sample(mt_module_param(c->module, "p0"));
}

static bool load(kernel_case *c, char *line)
{
    char *save = NULL, *name = strtok_r(line, " \n", &save), *dtype_name;
    mt_dtype dtype;
    unload(c);
    if (!name || !(dtype_name = strtok_r(NULL, " \n", &save)) ||
        !mt_dtype_parse(dtype_name, &dtype))
        return false;
    c->n_inputs = 0;
    if (strncmp(name, "adamw/", 6) == 0) {
        c->count = strtoll(name + 6, NULL, 10);
        char *spec = strtok_r(NULL, " \n", &save);
        return spec && load_adamw(c, dtype, spec);
    }
    if (!(c->loaded = find(name, &c->function))) return false;
    for (char *spec; (spec = strtok_r(NULL, " \n", &save)) && c->n_inputs < BENCH_INPUTS;) {
        int k = c->n_inputs++;
        if (!(c->in[k] = gpu_input(c->device, dtype, spec, k))) return false;
    }
    return try_op(c);
}

/* ---- timing ---- */

static bool once(kernel_case *c, bool back)
{
    if (c->adamw) return mt_optimizer_step(c->adamw) == MT_OK;
    if (back) return backward(c) && drop_gradients(c);
    mt_tensor *y = bench_call(&c->function, c->in);
    mt_release(y);
    return y != NULL;
}

static bool repeat(kernel_case *c, int64_t n, bool back)
{
    if (mt_device_sync(c->device) != MT_OK) return false;
    int64_t start = bench_now_ns();
    for (int64_t i = 0; i < n; i++)
        if (!once(c, back)) return false;
    if (mt_device_sync(c->device) != MT_OK) return false;
    printf("ns %lld\n", (long long)(bench_now_ns() - start));
    return true;
}

static bool obey(kernel_case *c, char *line)
{
    if (strncmp(line, "load ", 5) == 0) return load(c, line + 5);
    if (strncmp(line, "rest", 4) == 0) {
        unload(c);
        mt_mem_empty_cache(c->device);
        return true;
    }
    if (!c->loaded && !c->adamw) return false;
    if (strncmp(line, "forward ", 8) == 0) return repeat(c, strtoll(line + 8, NULL, 10), false);
    return strncmp(line, "backward ", 9) == 0 && repeat(c, strtoll(line + 9, NULL, 10), true);
}

int gpu_kernels(int argc, char **argv)
{
    char line[512] = "", asked[512];
    if (argc != 1) return 2;
    kernel_case c = {.device = mt_device_open(argv[0])};
    bool ok = c.device != NULL;
    snprintf(asked, sizeof asked, "%s", argv[0]);
    if (ok) puts("ready");
    while (ok && fgets(line, sizeof line, stdin)) {
        memcpy(asked, line, sizeof asked);
        ok = obey(&c, line);
        if (ok) puts("done");
    }
    int status = ok ? 0 : bench_failed(asked);
    unload(&c);
    mt_device_release(c.device);
    return status;
}

/* figures.c: the memory figures of the design, measured on a device.
 *
 * saved:  "saved N": bytes that a model's forward pass keeps; then, after a backward pass,
 *         "peak ALLOCATED RESERVED" and "left N": the kept bytes that are still allocated, except
 * x's linear: allocated bytes at each stage of a linear 256 -> 250, f32 */
#include <stdio.h>
#include <string.h>
#include "gpu.h"

static mt_mem_stats stats_of(mt_device *device)
{
    mt_mem_stats s;
    mt_mem_get_stats(device, &s);
    return s;
}

static bool measure_saved(mt_device *device, const mt_model_config *config, int64_t batch,
                          int64_t seq, mt_ledger *ledger)
{
    mt_module *model = mt_model_new(device, config);
    MT_AUTO mt_tensor *x =
        mt_normal(device, config->dtype, MT_SHAPE(batch, seq, config->hidden), 0, 1);
    bool ok =
        model && x && mt_set_requires_grad(x, true) == MT_OK && mt_ledger_begin(ledger) == MT_OK;
    MT_AUTO mt_tensor *y = ok ? mt_forward(model, x) : NULL;
    ok = ok && mt_ledger_end(ledger) == MT_OK && y && mt_device_sync(device) == MT_OK;
    if (ok) {
        printf("saved %zu\n", mt_ledger_bytes(ledger));
        mt_set(&y, mt_sum_all(y));
        ok = y && mt_backward(y) == MT_OK && mt_device_sync(device) == MT_OK;
    }
    if (ok) {
        mt_mem_stats s = stats_of(device);
        printf("peak %zu %zu\nleft %zu\n", s.allocated.peak, s.reserved.peak,
               mt_ledger_live_bytes(ledger) - mt_storage_of(x).bytes);
    }
    mt_module_free(model);
    return ok;
}

int gpu_saved(int argc, char **argv)
{
    mt_model_config config = {.causal = true, .dtype = MT_BF16};
    int64_t batch, seq;
    if (argc != 7 || mt_model_kind_parse(argv[1], &config.kind) != MT_OK ||
        mt_act_parse(argv[2], &config.act) != MT_OK)
        return 2;
    gpu_numbers(argv + 3, 4, (int64_t *const[]){&batch, &seq, &config.hidden, &config.heads});
    mt_device *device = mt_device_open(argv[0]);
    mt_ledger *ledger = device ? mt_ledger_new(device) : NULL;
    bool ok = ledger && measure_saved(device, &config, batch, seq, ledger);
    if (!ok) bench_failed("saved");
    mt_ledger_free(ledger);
    mt_device_release(device);
    return ok ? 0 : 1;
}

static void tell(const char *when, mt_device *device)
{
    mt_mem_stats s = stats_of(device);
    printf("%s %zu %zu %zu %zu %zu\n", when, s.allocated.current, s.allocated.peak,
           s.by_category[MT_WORKSPACE], s.at_peak[MT_WORKSPACE], s.reserved.current);
}

/* Lines "WHEN ALLOCATED PEAK WORKSPACE WORKSPACE-AT-PEAK RESERVED", bytes. */
int gpu_linear(int argc, char **argv)
{
    if (argc != 1) return 2;
    mt_device *device = mt_device_open(argv[0]);
    MT_AUTO mt_tensor *floats = mt_zeros(device, MT_F32, MT_SHAPE(1024));
    bool ok = floats != NULL;
    if (ok) tell("floats", device);
    mt_set(&floats, NULL);
    mt_device_release(device);

    device = mt_device_open(argv[0]);
    mt_module *linear = ok ? mt_linear_new(device, MT_F32, 256, 250, true, 0) : NULL;
    if (linear) tell("parameters", device);
    MT_AUTO mt_tensor *x = linear ? mt_normal(device, MT_F32, MT_SHAPE(1, 256), 0, 1) : NULL;
    if (x) tell("input", device);
    MT_AUTO mt_tensor *y = x ? mt_forward(linear, x) : NULL;
    ok = y && mt_device_sync(device) == MT_OK;
    if (ok) tell("forward", device);
    if (!ok) bench_failed("linear");
    mt_set(&x, NULL);
    mt_set(&y, NULL);
    mt_module_free(linear);
    mt_device_release(device);
    return ok ? 0 : 1;
}

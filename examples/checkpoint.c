/* Three ways to store a layer's activations: keep all, keep all but the core of attention, keep the
 * input alone. The rest is recomputed in backward, to the same bits. */
#include <stdio.h>
#include <string.h>
#include <memtape/all.h>

enum { B = 2, S = 64, H = 64, A = 4, LAYERS = 4 };

typedef struct cost {
    size_t saved, peak;  /* after forward; at most during backward, beyond what was there before */
    uint64_t recomputed; /* FLOPs of forward that backward repeats */
    float gradient[B * S * H];
} cost;

static cost measure(const char *preset)
{
    static cost c;
    mt_device *device = mt_device_open("cpu");
    mt_seed(device, 1);
    const mt_model_config config = {.kind = MT_MODEL_BLOCK,
                                    .hidden = H,
                                    .heads = A,
                                    .act = MT_ACT_GELU,
                                    .dropout = 0.1,
                                    .attention = MT_ATTENTION_MATH,
                                    .dtype = MT_BF16};
    mt_module *layer[LAYERS];
    for (int i = 0; i < LAYERS; i++) {
        layer[i] = mt_model_new(device, &config);
        mt_model_checkpoint(layer[i], preset);
    }
    mt_tensor *x = mt_normal(device, MT_BF16, MT_SHAPE(B, S, H), 0, 1);
    mt_set_requires_grad(x, true);

    mt_ledger *ledger = mt_ledger_new(device);
    mt_mem_stats before, after;
    mt_mem_get_stats(device, &before);
    mt_ledger_begin(ledger);
    mt_tensor *h = mt_retain(x);
    for (int i = 0; i < LAYERS; i++) mt_set(&h, mt_forward(layer[i], h));
    mt_ledger_end(ledger);
    mt_set(&h, mt_mean_all(h));
    mt_mem_reset_peak(device);
    mt_backward(h);
    mt_mem_get_stats(device, &after);
    c.saved = mt_ledger_bytes(ledger);
    c.peak = after.allocated.peak - before.allocated.current;
    c.recomputed = mt_flops_get(device).recompute;
    mt_tensor *wide = mt_cast(mt_grad(x), MT_F32);
    mt_to_host(wide, c.gradient, sizeof c.gradient);

    mt_release(wide);
    mt_release(h);
    mt_release(x);
    mt_ledger_free(ledger);
    for (int i = 0; i < LAYERS; i++) mt_module_free(layer[i]);
    mt_device_release(device);
    return c;
}

int main(void)
{
    static cost none, selective, full;
    none = measure("none"), selective = measure("selective"), full = measure("full");
    const char *names[] = {"none", "selective", "full"};
    const cost *rows[] = {&none, &selective, &full};
    printf("%d layers, b=%d s=%d h=%d a=%d, bf16, dropout 0.1\n", LAYERS, B, S, H, A);
    printf("%-10s %12s %12s %14s\n", "keep", "saved bytes", "peak bytes", "FLOPs again");
    for (int i = 0; i < 3; i++)
        printf("%-10s %12zu %12zu %14llu\n", names[i], rows[i]->saved, rows[i]->peak,
               (unsigned long long)rows[i]->recomputed);
    if (mt_last_status() != MT_OK) {
        fprintf(stderr, "%s\n", mt_last_error());
        return 1;
    }
    size_t bsh = (size_t)B * S * H, statistics = (size_t)2 * B * S * (4 + 4);
    bool formulas = full.saved == LAYERS * 2 * bsh &&
                    selective.saved == LAYERS * (34 * bsh + statistics) &&
                    none.saved == LAYERS * (34 * bsh + (size_t)5 * A * S * S * B + statistics);
    bool same = !memcmp(none.gradient, full.gradient, sizeof full.gradient) &&
                !memcmp(none.gradient, selective.gradient, sizeof full.gradient);
    printf("2bsh, 34bsh and 34bsh + 5abs^2 a layer: %s; gradients: %s\n",
           formulas ? "to the byte" : "NO", same ? "the same bits" : "DIFFERENT");
    return formulas && same && full.peak < selective.peak && selective.peak < none.peak ? 0 : 1;
}

/* What does a norm keep, by hand and as one op?
 *
 * By hand: y = (x - mean(x)) / (std(x) + 1e-6) * w, op by op. Each op keeps what its own gradient
 * needs, and none knows of the others. The fused op keeps x and two numbers a row, and works the
 * rest out again in backward. A batch norm does the same for each channel, and has statistics that
 * outlive the step. */
#include "expect.h"

enum { N = 10, FLOAT = 4 };

/* (x - mean) / (std + 1e-6) * w; the standard deviation divides by n - 1. */
static mt_tensor *by_hand(mt_tensor *x, mt_tensor *w)
{
    MT_AUTO mt_tensor *mean = mt_mean_all(x);
    MT_AUTO mt_tensor *centred = mt_sub(x, mean);
    mt_tensor *std = mt_mul(centred, centred);
    mt_set(&std, mt_sum_all(std));
    mt_set(&std, mt_mul_scalar(std, 1.0 / (N - 1)));
    mt_set(&std, mt_sqrt(std));
    mt_set(&std, mt_add_scalar(std, 1e-6));
    mt_tensor *y = mt_div(centred, std);
    mt_set(&y, mt_mul(y, w));
    mt_release(std);
    return y;
}

static mt_tensor *fused(mt_tensor *x, mt_tensor *w)
{
    MT_AUTO mt_tensor *zero = mt_zeros(mt_device_of(x), MT_F32, MT_SHAPE(N));
    return mt_layer_norm(x, w, zero, 1e-6);
}

/* Allocated bytes after forward, and what of the rest the tape keeps. */
static void measure(const char *name, mt_tensor *(*norm)(mt_tensor *, mt_tensor *),
                    bool x_wants_grad, int64_t all_blocks, int64_t kept)
{
    mt_device *device = mt_device_open("cpu");
    mt_tensor *x = mt_uniform(device, MT_F32, MT_SHAPE(N), 0, 1);
    mt_tensor *w = mt_uniform(device, MT_F32, MT_SHAPE(N), 0, 1);
    mt_set_category(w, MT_PARAMETER);
    mt_set_requires_grad(w, true);
    mt_set_requires_grad(x, x_wants_grad);
    mt_ledger *ledger = mt_ledger_new(device);
    mt_ledger_begin(ledger);
    mt_tensor *y = norm(x, w);
    mt_ledger_end(ledger);
    const char *wants = x_wants_grad ? "x wants a gradient" : "x wants none";
    char line[64];
    snprintf(line, sizeof line, "%s, %s: allocated", name, wants);
    expect(line, allocated(device), all_blocks);
    snprintf(line, sizeof line, "%s, %s: kept", name, wants);
    expect(line, (int64_t)mt_ledger_bytes(ledger), kept);
    for (size_t i = 0; i < mt_ledger_count(ledger); i++) {
        mt_ledger_entry e;
        mt_ledger_get(ledger, i, &e);
        printf("    %4zu  %s of %s\n", e.bytes, e.saver.argument, e.saver.op);
    }
    mt_release(y);
    mt_ledger_free(ledger);
    mt_release(w);
    mt_release(x);
    mt_device_release(device);
}

/* Running statistics are no part of the tape: they are changed in place. */
static void batch_norm(void)
{
    enum { BATCH = 32, CHANNELS = 64 };
    mt_device *device = mt_device_open("cpu");
    mt_tensor *x = mt_normal(device, MT_F32, MT_SHAPE(BATCH, CHANNELS), 0, 1);
    mt_set_requires_grad(x, true);
    mt_tensor *mean = mt_zeros(device, MT_F32, MT_SHAPE(CHANNELS));
    mt_tensor *var = mt_full(device, MT_F32, MT_SHAPE(CHANNELS), 1);
    const int64_t before = (int64_t)mt_storage_of(mean).version;
    mt_ledger *ledger = mt_ledger_new(device);
    mt_ledger_begin(ledger);
    mt_tensor *y = mt_batch_norm(x, NULL, NULL, mean, var, true, 0.1, 1e-5);
    mt_ledger_end(ledger);
    expect("batch norm, [32,64]: kept", (int64_t)mt_ledger_bytes(ledger),
           BATCH * CHANNELS * FLOAT + 2 * CHANNELS * FLOAT);
    expect("batch norm: running statistics beside it",
           (int64_t)(mt_storage_of(mean).bytes + mt_storage_of(var).bytes), 2 * CHANNELS * FLOAT);
    expect("batch norm: changes of the running mean", (int64_t)mt_storage_of(mean).version - before,
           1);
    mt_release(y);
    mt_ledger_free(ledger);
    mt_release(var);
    mt_release(mean);
    mt_release(x);
    mt_device_release(device);
}

int main(void)
{
    const int64_t row = N * FLOAT;
    /* x, w, y and the normalised x; x, w, b freed, y, mean and rstd. */
    measure("by hand", by_hand, false, 4 * 512, row);
    measure("fused", fused, false, 5 * 512, row + 2 * FLOAT);
    measure("by hand", by_hand, true, 7 * 512, 2 * row + 2 * FLOAT);
    measure("fused", fused, true, 5 * 512, row + 2 * FLOAT);
    batch_norm();
    return finish();
}

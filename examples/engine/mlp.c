/* mlp.c: the engine alone: two matrices, one activation, and the bytes that the tape keeps for it.
 *
 * y = act(x A^T) B^T with x [n,d], A [f,d], B [d,f]. Backward needs x for dA and act's output for
 * dB. ReLU's derivative follows from its output, which is kept anyway; GELU's does not, so GELU
 * keeps its input, [n,f] floats more. */
#include <stdio.h>
#include <memtape/memtape.h>

enum { N = 8, D = 16, F = 64, STEPS = 20 };

/* Trains for some steps towards zero; returns the bytes kept after a forward pass, 0 on failure. */
static size_t train(mt_device *device, mt_tensor *(*act)(mt_tensor *), const char *name)
{
    mt_seed(device, 1);
    mt_tensor *x = mt_normal(device, MT_F32, MT_SHAPE(N, D), 0, 1);
    mt_tensor *weight[2] = {mt_normal(device, MT_F32, MT_SHAPE(F, D), 0, 0.2),
                            mt_normal(device, MT_F32, MT_SHAPE(D, F), 0, 0.2)};
    mt_ledger *ledger = mt_ledger_new(device);
    double first = 0, last = 0;
    size_t bytes = 0;
    for (int i = 0; i < 2; i++) {
        mt_set_category(weight[i], MT_PARAMETER);
        mt_set_requires_grad(weight[i], true);
    }
    for (int step = 0; step < STEPS; step++) {
        mt_ledger_begin(ledger);
        mt_tensor *h = mt_linear(x, weight[0], NULL);
        mt_set(&h, act(h));
        mt_set(&h, mt_linear(h, weight[1], NULL));
        mt_ledger_end(ledger);
        bytes = mt_ledger_bytes(ledger);
        mt_set(&h, mt_mul(h, h));
        mt_set(&h, mt_mean_all(h));
        last = mt_item(h);
        if (step == 0) first = last;
        mt_status status = mt_backward(h);
        for (int i = 0; i < 2 && status == MT_OK; i++) { /* w = w - 0.5 dw, a new leaf */
            mt_tensor *change = mt_affine(mt_grad(weight[i]), -0.5, 0);
            mt_tensor *stepped = mt_add(weight[i], change);
            mt_set(&weight[i], mt_detach(stepped));
            mt_set_category(weight[i], MT_PARAMETER);
            status = mt_set_requires_grad(weight[i], true);
            mt_release(change), mt_release(stepped);
        }
        mt_release(h);
        mt_ledger_reset(ledger);
        if (status != MT_OK) bytes = 0;
    }
    printf("%s: loss %.4f, then %.4f; %zu bytes kept\n", name, first, last, bytes);
    if (!(last < first)) bytes = 0;
    mt_ledger_free(ledger);
    mt_release(x), mt_release(weight[0]), mt_release(weight[1]);
    return bytes;
}

int main(void)
{
    mt_device *device = mt_device_open("cpu");
    size_t relu = train(device, mt_relu, "relu"), gelu = train(device, mt_gelu, "gelu");
    mt_device_release(device);
    if (relu != (N * D + N * F) * 4 || gelu != relu + N * F * 4) {
        fprintf(stderr, "%s\n", *mt_last_error() ? mt_last_error() : "other bytes than by hand");
        return 1;
    }
    return 0;
}

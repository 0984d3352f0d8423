/* How much memory does a vocabulary of 50257 take?
 *
 * The last product of GPT-2 makes a row of 50257 logits for each token, its loss as many
 * log-probabilities, and backward as many gradients: for a small model they are most of the peak.
 * mt_linear_cross_entropy makes the logits some rows at a time, in forward and again in backward,
 * and keeps a number per row. */
#include <math.h>
#include <stdio.h>
#include <memtape/memtape.h>
#include <memtape/memtape.h>

enum { TOKENS = 256, HIDDEN = 64, VOCABULARY = 50257, CHUNK = 32 };

typedef struct outcome {
    double loss;
    size_t kept;     /* bytes the tape keeps */
    size_t forward;  /* highest use above what there was before */
    size_t backward; /* the same, gradients of x and w included */
    mt_tensor *dw;
} outcome;

static outcome step(mt_device *device, mt_tensor *x, mt_tensor *w, mt_tensor *target, bool fused)
{
    outcome o = {0};
    mt_mem_region region;
    mt_ledger *ledger = mt_ledger_new(device);
    mt_ledger_begin(ledger);
    mt_mem_region_begin(&region, device);
    mt_tensor *loss;
    if (fused) {
        loss = mt_linear_cross_entropy(x, w, target, MT_IGNORE, CHUNK);
    } else {
        loss = mt_linear(x, w, NULL);
        mt_set(&loss, mt_cross_entropy(loss, target, MT_IGNORE));
    }
    mt_mem_region_end(&region);
    mt_ledger_end(ledger);
    o.forward = (size_t)region.delta.peak;
    size_t held = (size_t)region.delta.current;
    mt_mem_region_begin(&region, device);
    mt_backward(loss);
    mt_mem_region_end(&region);
    o.backward = held + (size_t)region.delta.peak;
    o.loss = mt_item(loss);
    o.kept = mt_ledger_bytes(ledger);
    o.dw = mt_retain(mt_grad(w));
    mt_release(loss);
    mt_set_grad(x, NULL);
    mt_set_grad(w, NULL);
    mt_ledger_free(ledger);
    return o;
}

int main(void)
{
    mt_device *device = mt_device_open("cpu");
    mt_tensor *x = mt_normal(device, MT_F32, MT_SHAPE(TOKENS, HIDDEN), 0, 1);
    mt_tensor *w = mt_normal(device, MT_F32, MT_SHAPE(VOCABULARY, HIDDEN), 0, 0.02);
    int64_t next[TOKENS];
    for (int i = 0; i < TOKENS; i++) next[i] = (int64_t)i * 7919 % VOCABULARY;
    mt_tensor *target = mt_from_data(device, MT_I64, MT_SHAPE(TOKENS), next, sizeof next);
    mt_set_requires_grad(x, true);
    mt_set_requires_grad(w, true);
    mt_set_category(w, MT_PARAMETER);

    outcome plain = step(device, x, w, target, false), fused = step(device, x, w, target, true);
    double off = mt_relative_error(fused.dw, plain.dw);
    const size_t logits = (size_t)TOKENS * VOCABULARY * 4, inputs = TOKENS * (4 * HIDDEN + 8);
    const size_t gradients = 4 * (size_t)HIDDEN * (TOKENS + VOCABULARY);
    printf("%d tokens, %d classes: the logits are %zu bytes\n", TOKENS, VOCABULARY, logits);
    printf("%-10s %12s %14s %14s   %s\n", "", "kept", "forward peak", "backward peak", "loss");
    printf("%-10s %12zu %14zu %14zu   %.6f\n", "plain", plain.kept, plain.forward, plain.backward,
           plain.loss);
    printf("%-10s %12zu %14zu %14zu   %.6f\n", "fused", fused.kept, fused.forward, fused.backward,
           fused.loss);
    printf("dw off by %.2g; gradients made in forward instead would keep %zu bytes more, and save "
           "one product of four\n",
           off, gradients - fused.kept);
    bool right = plain.kept == inputs + logits && fused.kept == inputs + 4 * TOKENS &&
                 plain.forward > 2 * logits && fused.forward < logits / 4 &&
                 fused.backward - gradients < logits / 4 && off < 1e-5 &&
                 fabs(fused.loss - plain.loss) < 1e-5 * plain.loss;
    mt_release(plain.dw);
    mt_release(fused.dw);
    mt_release(x);
    mt_release(w);
    mt_release(target);
    mt_device_release(device);
    if (mt_last_status() != MT_OK) fprintf(stderr, "%s\n", mt_last_error());
    return mt_last_status() == MT_OK && right ? 0 : 1;
}

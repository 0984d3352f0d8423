/* A function of your own in a model of ours: what does SwiGLU keep as two ops instead of one?
 * It uses the public interface only. */
#include <stdio.h>
#include <memtape/all.h>

enum { TOKENS = 512, HIDDEN = 64, FFN = 256 };

static mt_tensor *two_ops(mt_tensor *gate, mt_tensor *up)
{
    mt_tensor *y = mt_silu(gate); /* which the product keeps, too */
    mt_set(&y, mt_mul(y, up));
    return y;
}

/* Returns the bytes that a layer keeps for backward. */
static size_t kept_bytes(mt_device *device, const mt_forms *forms)
{
    const mt_model_config config = {.kind = MT_MODEL_LLAMA,
                                    .hidden = HIDDEN,
                                    .heads = 2,
                                    .ffn = FFN,
                                    .vocab = 256,
                                    .context = TOKENS,
                                    .dtype = MT_BF16,
                                    .forms = forms};
    mt_module *llama = mt_model_new(device, &config);
    mt_tensor *tokens = mt_zeros(device, MT_I64, MT_SHAPE(1, TOKENS));
    mt_ledger *ledger = mt_ledger_new(device);
    mt_ledger_begin(ledger);
    mt_tensor *logits = mt_forward(llama, tokens);
    mt_ledger_end(ledger);
    size_t n_bytes = logits ? mt_ledger_bytes(ledger) : 0;
    mt_ledger_free(ledger);
    mt_release(logits), mt_release(tokens);
    mt_module_free(llama);
    return n_bytes;
}

int main(void)
{
    static const mt_forms forms = {.swiglu = two_ops};
    mt_device *device = mt_device_open("meta");
    size_t one = kept_bytes(device, NULL), two = kept_bytes(device, &forms);
    printf("swiglu as one op: %zu bytes\n", one);
    printf("as two:           %zu bytes, %zu more: silu(gate)\n", two, two - one);
    mt_device_release(device);
    return one && two - one == TOKENS * FFN * 2 ? 0 : 1; /* bytes of bf16 */
}

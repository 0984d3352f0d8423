/* What does LoRA save, and what not?
 *
 * A transformer block in bf16 under AdamW, in full and with adapters of rank r. Gradients and
 * optimizer state shrink to the adapters'; NF4 shrinks the frozen weights. Activations shrink only
 * where a linear has no adapter: a frozen linear keeps no input. With an adapter, A keeps the same
 * input, and x A^T [T,r] is kept too: adapters on all linears keep MORE than full fine-tuning.
 * With dropout, A's input is a separate tensor, with a mask: more still. */
#include <stdio.h>
#include <string.h>
#include <memtape/all.h>

enum { D = 256, HEADS = 2, BATCH = 2, SEQUENCE = 64, T = BATCH * SEQUENCE, R = 8 };

typedef struct bytes {
    size_t value, gradient, state, kept;
} bytes;

typedef struct row {
    const char *name, *target; /* target NULL: no adapters */
    mt_lora_base base;
    double dropout;
    bytes want;
} row;

/* The block's four linears are qkv 3d x d, proj d x d, fc 4d x d, proj d x 4d: 12 d^2 weights, and
 * 13 d biases and norms. An adapter has r (in + out): 16 d r on all of them, 4 d r on qkv. */
#define PARAMS  (12 * D * D + 13 * D)
#define ALL     (16 * D * R)
#define QKV     (4 * D * R)
#define UP(n)   (((size_t)(n) + 511) / 512 * 512) /* the allocator's blocks */
#define NF4(n)  UP((n) / 2 + (n) / 64 * 4)
#define NF4D(n) UP((n) / 2 + (n) / 64 + ((n) / 64 + 255) / 256 * 4 + 4)
#define FOUR(f) (f(3 * D * D) + f(D * D) + 2 * f(4 * D * D))
/* Kept per token, in bytes: 16 tensors as wide as d, two norms' statistics, each head's
 * log-sum-exp; and one generator state. */
#define BLOCK (T * (2 * 16 * D + 16 + 4 * HEADS) + 16)

/* Without adapters fc (d wide) and the second proj (4 d) keep no input; with dropout masks 7 d wide
 * are kept, and of the first proj's input two: attention keeps it as its output. */
#define ON_QKV  (BLOCK - T * 2 * 5 * D + T * 2 * R)
#define ON_ALL  (BLOCK + T * 2 * 4 * R)
#define DROPPED (ON_ALL + T * (7 * D + 2 * D))

/* Gradients in bf16, AdamW's two moments in f32; what is not frozen weights stays bf16 over NF4. */
#define TRAIN(n) 2 * (n), 8 * (n)
#define REST     2 * (13 * D + ALL)

static const row rows[] = {
    {"full", NULL, MT_LORA_KEEP, 0, {2 * PARAMS, TRAIN(PARAMS), BLOCK}},
    {"LoRA on qkv", "*.qkv", MT_LORA_KEEP, 0, {2 * (PARAMS + QKV), TRAIN(QKV), ON_QKV}},
    {"LoRA on all", "*", MT_LORA_KEEP, 0, {2 * (PARAMS + ALL), TRAIN(ALL), ON_ALL}},
    {"LoRA, dropout", "*", MT_LORA_KEEP, 0.1, {2 * (PARAMS + ALL), TRAIN(ALL), DROPPED}},
    {"QLoRA on all", "*", MT_LORA_NF4, 0, {REST + FOUR(NF4), TRAIN(ALL), ON_ALL}},
    {"QLoRA, double", "*", MT_LORA_NF4_DOUBLE, 0, {REST + FOUR(NF4D), TRAIN(ALL), ON_ALL}},
};

static bytes measure(const row *r, mt_device *device)
{
    mt_model_config c = {
        .kind = MT_MODEL_BLOCK, .hidden = D, .heads = HEADS, .act = MT_ACT_GELU, .dtype = MT_BF16};
    mt_module *block = mt_model_new(device, &c);
    if (r->target)
        mt_lora_add(block,
                    &(mt_lora_options){.rank = R,
                                       .dropout = r->dropout,
                                       .n_targets = 1,
                                       .targets = &r->target,
                                       .base = r->base},
                    NULL);
    mt_tensor *x = mt_normal(device, MT_BF16, MT_SHAPE(BATCH, SEQUENCE, D), 0, 1);
    mt_set_requires_grad(x, true); /* an inner layer's */
    mt_optimizer *adamw = mt_adamw_new(block, &(mt_adamw_options){.lr = 1e-3});
    mt_ledger *ledger = mt_ledger_new(device);
    mt_ledger_begin(ledger);
    mt_tensor *y = mt_forward(block, x);
    mt_ledger_end(ledger);
    mt_set(&y, mt_mse(y, x));
    mt_backward(y);
    mt_set_grad(x, NULL);
    mt_optimizer_step(adamw);
    mt_mem_stats m;
    mt_mem_get_stats(device, &m);
    bytes b = {m.by_category[MT_PARAMETER], m.by_category[MT_GRADIENT], m.by_category[MT_OPTIMIZER],
               mt_ledger_bytes(ledger)};
    mt_ledger_free(ledger);
    mt_optimizer_free(adamw);
    mt_release(y);
    mt_release(x);
    mt_module_free(block);
    return b;
}

int main(void)
{
    mt_device *device = mt_device_open("cpu");
    bool right = true;
    printf("%-14s %9s %9s %9s %12s %9s\n", "bytes", "values", "gradients", "state", "activations",
           "all");
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        bytes b = measure(&rows[i], device);
        bool same = !memcmp(&b, &rows[i].want, sizeof b);
        printf("%-14s %9zu %9zu %9zu %12zu %9zu%s\n", rows[i].name, b.value, b.gradient, b.state,
               b.kept, b.value + b.gradient + b.state + b.kept, same ? "" : "  NOT as counted");
        right = right && same;
    }
    mt_device_release(device);
    if (mt_last_status() != MT_OK) fprintf(stderr, "%s\n", mt_last_error());
    return right && mt_last_status() == MT_OK ? 0 : 1;
}

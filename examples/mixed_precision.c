/* What does one parameter cost, in bytes, while it trains?
 *
 * Its value, its gradient, the optimizer's state; under autocast also a 16-bit copy. Rounding
 * everything to 16 bits is cheap until updates become too small for them. Then an f32 master copy
 * is kept, perhaps f32 sums of gradients as well, and compared with f32 only activations still save
 * memory. */
#include <stdio.h>
#include <memtape/all.h>

enum { HIDDEN = 64, WIDE = 8 * HIDDEN, TOKENS = 64, N = 2 * HIDDEN * WIDE };

typedef struct regime {
    const char *name;
    mt_dtype dtype, autocast; /* autocast MT_F32: none */
    /* NARROW: AdamW, m and v in 16 bits; BYTES: in 8 */
    enum { SGD, MOMENTUM, ADAMW, NARROW, BYTES } optimizer;
    bool master, scaled;
    enum { OWN, F32, BOTH } gradients; /* F32: summed in f32; BOTH: the 16 bits are kept, too */
    size_t parameter, gradient, state, cache; /* bytes per parameter, as they should be */
} regime;

static const regime regimes[] = {
    {"f32, SGD", MT_F32, MT_F32, SGD, false, false, OWN, 4, 4, 0, 0},
    {"f32, SGD with momentum", MT_F32, MT_F32, MOMENTUM, false, false, OWN, 4, 4, 4, 0},
    {"f32, AdamW", MT_F32, MT_F32, ADAMW, false, false, OWN, 4, 4, 8, 0},
    {"f32, AdamW, autocast to bf16", MT_F32, MT_BF16, ADAMW, false, false, OWN, 4, 4, 8, 2},
    {"f32, AdamW, autocast to f16, scaled", MT_F32, MT_F16, ADAMW, false, true, OWN, 4, 4, 8, 2},
    {"bf16, SGD with momentum", MT_BF16, MT_F32, MOMENTUM, false, false, OWN, 2, 2, 4, 0},
    {"bf16, SGD, f32 master", MT_BF16, MT_F32, SGD, true, false, OWN, 2, 2, 4, 0},
    {"bf16, AdamW", MT_BF16, MT_F32, ADAMW, false, false, OWN, 2, 2, 8, 0},
    {"bf16, AdamW in bf16", MT_BF16, MT_F32, NARROW, false, false, OWN, 2, 2, 4, 0},
    {"bf16, AdamW in bf16, f32 master", MT_BF16, MT_F32, NARROW, true, false, OWN, 2, 2, 8, 0},
    {"bf16, AdamW, f32 master", MT_BF16, MT_F32, ADAMW, true, false, OWN, 2, 2, 12, 0},
    {"bf16, AdamW in 8 bits", MT_BF16, MT_F32, BYTES, false, false, OWN, 2, 2, 2, 0},
    {"f16, AdamW, f32 master, scaled", MT_F16, MT_F32, ADAMW, true, true, OWN, 2, 2, 12, 0},
    {"bf16, AdamW, f32 master, f32 sums", MT_BF16, MT_F32, ADAMW, true, false, F32, 2, 4, 12, 0},
    {"the same, gradients in bf16 as well", MT_BF16, MT_F32, ADAMW, true, false, BOTH, 2, 6, 12, 0},
};

static void add_copy(void *user, const mt_duplicate *pair)
{
    if (pair->source_category == MT_PARAMETER) *(size_t *)user += pair->copy_bytes;
}

/* The second step's forward is over, the first one's gradients are still there. */
static bool check(const regime *r, mt_device *device)
{
    mt_mem_stats m;
    size_t twice = 0;
    mt_mem_get_stats(device, &m);
    mt_visit_duplicates(device, add_copy, &twice);
    const size_t *by = m.by_category;
    size_t all = by[MT_PARAMETER] + by[MT_GRADIENT] + by[MT_OPTIMIZER] + by[MT_CACHE];
    printf("%-36s %5.2f %8.2f %6.2f %6.2f %6.2f %12.2f\n", r->name, (double)by[MT_PARAMETER] / N,
           (double)by[MT_GRADIENT] / N, (double)by[MT_OPTIMIZER] / N, (double)by[MT_CACHE] / N,
           (double)all / N, (double)twice / N);
    size_t copies = r->cache + (r->master ? 4 : 0);
    size_t scales = r->optimizer == BYTES ? 2 * N / 256 * sizeof(float) : 0;
    return by[MT_PARAMETER] == r->parameter * N && by[MT_GRADIENT] == r->gradient * N &&
           by[MT_OPTIMIZER] == r->state * N + scales && by[MT_CACHE] == r->cache * N &&
           twice == copies * N;
}

/* Training that keeps both: what backward leaves in 16 bits is added to sums in f32 by hand. Those
 * are what the optimizer sees; `narrow` holds the others until the next backward. */
static void sum_by_hand(mt_module *mlp, mt_tensor *narrow[2])
{
    const mt_named_tensor *params;
    size_t n;
    mt_module_params(mlp, &params, &n);
    for (size_t i = 0; i < n; i++) {
        mt_tensor *p = params[i].tensor, *sum = mt_cast(mt_grad(p), MT_F32);
        mt_set(&narrow[i], mt_retain(mt_grad(p)));
        mt_set_grad(p, NULL);
        mt_set_grad_dtype(p, MT_F32);
        mt_set_grad(p, sum);
        mt_release(sum);
    }
}

static bool train(const regime *r, mt_device *device)
{
    mt_model_config c = {
        .kind = MT_MODEL_MLP, .hidden = HIDDEN, .ffn = WIDE, .no_bias = true, .dtype = r->dtype};
    mt_module *mlp = mt_model_new(device, &c);
    mt_adamw_options adamw = {.lr = 1e-3,
                              .master = r->master,
                              .moments = r->optimizer == NARROW  ? MT_MOMENTS_NARROW
                                         : r->optimizer == BYTES ? MT_MOMENTS_8BIT
                                                                 : MT_MOMENTS_WIDE};
    mt_sgd_options sgd = {
        .lr = 1e-3, .momentum = r->optimizer == SGD ? 0 : 0.9, .master = r->master};
    mt_optimizer *o = r->optimizer >= ADAMW ? mt_adamw_new(mlp, &adamw) : mt_sgd_new(mlp, &sgd);
    mt_scaler *scaler = mt_scaler_new(&(mt_scaler_options){.scale = r->scaled ? 1024 : 1});
    mt_tensor *x = mt_normal(device, r->dtype, MT_SHAPE(TOKENS, HIDDEN), 0, 1);
    mt_tensor *narrow[2] = {0};
    if (r->gradients == F32) mt_module_set_grad_dtype(mlp, MT_F32);
    bool right = true;
    for (int step = 0; step < 2; step++) {
        mt_autocast_begin(r->autocast);
        mt_tensor *loss = mt_forward(mlp, x);
        mt_set(&loss, mt_mse(loss, x));
        if (step == 1) right = check(r, device);
        mt_autocast_end();
        mt_set(&loss, mt_scaler_scale(scaler, loss));
        mt_backward(loss);
        if (r->gradients == BOTH && step == 0) sum_by_hand(mlp, narrow);
        mt_scaler_step(scaler, o, NULL);
        mt_release(loss);
    }
    right = right && mt_scaler_get(scaler).steps == 2;
    mt_release(narrow[0]);
    mt_release(narrow[1]);
    mt_release(x);
    mt_scaler_free(scaler);
    mt_optimizer_free(o);
    mt_module_free(mlp);
    return right;
}

int main(void)
{
    mt_device *device = mt_device_open("cpu");
    bool right = true;
    printf("%-36s %5s %8s %6s %6s %6s %12s\n", "bytes per parameter", "value", "gradient", "state",
           "cache", "all", "in two types");
    for (size_t i = 0; i < sizeof regimes / sizeof *regimes; i++)
        if (!train(&regimes[i], device)) right = false;
    mt_device_release(device);
    if (mt_last_status() != MT_OK) fprintf(stderr, "%s\n", mt_last_error());
    printf("%s\n", right ? "as counted" : "NOT as counted");
    return right && mt_last_status() == MT_OK ? 0 : 1;
}

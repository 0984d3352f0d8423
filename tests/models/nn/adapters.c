#include "adapters.h"

mt_module *mlp(mt_dtype dtype)
{
    mt_seed(device, 11);
    mt_module *m = mt_mlp_new(
        device,
        &(mt_model_config){
            .kind = MT_MODEL_MLP, .hidden = D, .ffn = F, .act = MT_ACT_GELU, .dtype = dtype});
    assert_non_null(m);
    return m;
}

mt_tensor *tokens(mt_dtype dtype)
{
    return mtt_made(mtt_random(device, dtype, MT_SHAPE(TOKENS, D), 21, -1, 1));
}

void add(mt_module *m, mt_lora_base base, size_t want)
{
    size_t n = 0;
    mtt_ok(mt_lora_add(m, &(mt_lora_options){.rank = R, .alpha = 8, .base = base}, &n));
    assert_int_equal(n, want);
}

mt_tensor *weight(mt_module *m, const char *path)
{
    return mtt_made(mt_module_param(mt_module_find(m, path), "weight"));
}

void fill_b(mt_module *m, const char *path, uint64_t seed)
{
    mt_tensor *b = weight(m, path);
    MT_AUTO mt_tensor *values =
        mtt_random(device, mt_dtype_of(b), mt_rank(b), mt_shape(b), seed, -0.1, 0.1);
    mtt_ok(mt_copy(b, values));
}

mt_status step(mt_module *m, mt_tensor *x, mt_optimizer *o)
{
    mt_status status = mt_module_zero_grad(m);
    if (status != MT_OK) return status;
    mt_tensor *y = mt_forward(m, x);
    mt_set(&y, mt_mse(y, x));
    status = y ? mt_backward(y) : mt_last_status();
    mt_release(y);
    return status == MT_OK && o ? mt_optimizer_step(o) : status;
}

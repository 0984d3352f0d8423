/* A hook of your own between the ops and the tape: keep activations as bf16, half the bytes.
 *
 * pack receives every tensor that an op saves and returns a smaller copy to keep instead; unpack
 * widens it when backward needs it. The gradient is slightly inexact, the tape half as big. */
#include <math.h>
#include <stdio.h>
#include <memtape/all.h>

static mt_status pack(void *user, const mt_save_info *info, mt_tensor *tensor, mt_tensor **kept,
                      void **state)
{
    (void)user, (void)info, (void)state;
    /* Weights live anyway: a copy of them would cost, not save. */
    if (mt_dtype_of(tensor) != MT_F32 || mt_storage_of(tensor).category == MT_PARAMETER)
        return MT_OK;
    mt_tensor *half = mt_cast(tensor, MT_BF16);
    if (!half) return mt_last_status();
    *kept = half;
    return MT_OK;
}

static mt_status unpack(void *user, const mt_save_info *info, mt_tensor **tensor, void *state)
{
    (void)user, (void)info, (void)state;
    if (mt_dtype_of(*tensor) != MT_BF16) return MT_OK;
    mt_tensor *wide = mt_cast(*tensor, MT_F32);
    if (!wide) return mt_last_status();
    *tensor = wide;
    return MT_OK;
}

/* One forward and backward; the bytes kept in between, and the gradient's first element. */
static size_t run(mt_device *device, mt_module *mlp, mt_tensor *x, bool packed, double *gradient)
{
    const mt_saved_hooks hooks = {.pack = pack, .unpack = unpack};
    mt_module_zero_grad(mlp);
    mt_ledger *ledger = mt_ledger_new(device);
    mt_ledger_begin(ledger); /* opened outside the hook, it counts packed tensors */
    if (packed) mt_push_saved_hooks(&hooks, NULL);
    mt_tensor *h = mt_forward(mlp, x);
    mt_set(&h, mt_mean_all(h));
    if (packed) mt_pop_saved_hooks();
    mt_ledger_end(ledger);
    size_t bytes = mt_ledger_bytes(ledger);
    mt_backward(h);
    float first[64 * 16] = {0};
    mt_to_host(mt_grad(mt_module_param(mt_module_child(mlp, "fc"), "weight")), first, sizeof first);
    *gradient = first[0];
    mt_release(h);
    mt_ledger_free(ledger);
    return bytes;
}

int main(void)
{
    mt_device *device = mt_device_open("cpu");
    mt_seed(device, 1);
    mt_model_config config = {.kind = MT_MODEL_MLP, .hidden = 16, .act = MT_ACT_GELU};
    mt_module *mlp = mt_model_new(device, &config);
    mt_tensor *x = mt_normal(device, MT_F32, MT_SHAPE(128, 16), 0, 1);
    double exact = 0, rounded = 0;
    size_t whole = run(device, mlp, x, false, &exact), half = run(device, mlp, x, true, &rounded);
    printf("f32: %zu bytes kept, gradient %.9f\nbf16: %zu bytes kept, gradient %.9f\n", whole,
           exact, half, rounded);
    mt_release(x);
    mt_module_free(mlp);
    mt_device_release(device);
    if (mt_last_status() != MT_OK) fprintf(stderr, "%s\n", mt_last_error());
    bool close = fabs(exact - rounded) < 0.02 * fabs(exact) && exact != rounded;
    return mt_last_status() == MT_OK && 2 * half == whole && close ? 0 : 1;
}

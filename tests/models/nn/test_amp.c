/* Tensors in two dtypes, master weights, loss scaling, and a step with all of them. */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "base/base.h"
#include "mtt.h"
#include "mtt_fixture.h"

static mt_tensor *draw(mt_dtype dtype, int rank, const int64_t *shape, uint64_t seed)
{
    return mtt_made(mtt_random(device, dtype, rank, shape, seed, 0.5, 1.5));
}

/* ---- one tensor in two dtypes ---- */

typedef struct pairs {
    int n;
    mt_duplicate last;
} pairs;

static void count_pair(void *user, const mt_duplicate *pair)
{
    pairs *p = user;
    p->n++;
    p->last = *pair;
}

static void tensors_in_two_dtypes_are_reported_while_both_live(void **state)
{
    (void)state;
    MT_AUTO mt_tensor *w = draw(MT_F32, MT_SHAPE(16, 16), 2);
    MT_AUTO mt_tensor *row = mtt_made(mt_slice(w, 0, 0, 1));
    mt_tensor *low = mtt_made(mt_cast(w, MT_BF16));
    MT_AUTO mt_tensor *part =
        mtt_made(mt_cast(row, MT_BF16)); /* part of the tensor, so not a duplicate */
    pairs p = {0};
    mtt_ok(mt_visit_duplicates(device, count_pair, &p));
    assert_int_equal(p.n, 1);
    assert_int_equal(p.last.source, mt_storage_of(w).serial);
    assert_int_equal(p.last.copy, mt_storage_of(low).serial);
    assert_int_equal(p.last.source_dtype, MT_F32);
    assert_int_equal(p.last.copy_dtype, MT_BF16);
    assert_int_equal(p.last.source_bytes, 16 * 16 * 4);
    assert_int_equal(p.last.copy_bytes, 16 * 16 * 2);
    assert_string_equal(p.last.op, "cast");
    mt_release(low);
    p.n = 0;
    mtt_ok(mt_visit_duplicates(device, count_pair, &p));
    assert_int_equal(p.n, 0);
    assert_int_equal(mt_visit_duplicates(NULL, count_pair, &p), MT_ERR_ARGUMENT);
    mtt_failed(MT_ERR_ARGUMENT, "device");
}

/* ---- master weights ---- */

enum { N = 700 };

static mt_module *one_param(mt_dtype dtype)
{
    mt_module *m = mt_module_new("m", mtt_pass, NULL, NULL);
    MT_AUTO mt_tensor *bf16 = draw(MT_BF16, MT_SHAPE(N / 7, 7), 5); /* exact in bf16 and f32 */
    mtt_made(mt_module_add_param(m, "w", mt_cast(bf16, dtype)));
    return m;
}

typedef enum kind { ADAMW, SGD, SGD_MOMENTUM, N_KINDS } kind;

static mt_optimizer *optimizer(mt_module *m, kind k, bool master)
{
    mt_optimizer *o =
        k == ADAMW ? mt_adamw_new(
                         m, &(mt_adamw_options){.lr = 1e-4, .weight_decay = 0.1, .master = master})
                   : mt_sgd_new(m, &(mt_sgd_options){.lr = 1e-4,
                                                     .momentum = k == SGD ? 0 : 0.9,
                                                     .weight_decay = 0.1,
                                                     .master = master});
    assert_non_null(o);
    return o;
}

/* Sets the gradient to bf16 values times `scale`, in the parameter's dtype. */
static void set_grad(mt_module *m, uint64_t seed, double scale)
{
    mt_tensor *w = mt_module_param(m, "w");
    MT_AUTO mt_tensor *g = mtt_random(device, MT_BF16, MT_SHAPE(N / 7, 7), seed, -1, 1);
    mt_set(&g, mt_mul_scalar(g, scale));
    mt_set(&g, mt_cast(g, mt_dtype_of(w)));
    mtt_ok(mt_set_grad(w, mtt_made(g)));
}

static mt_tensor *master_of(mt_optimizer *o)
{
    mt_optimizer_entry e;
    for (size_t i = 0; i < mt_optimizer_state_count(o); i++) {
        mtt_ok(mt_optimizer_state(o, i, &e));
        if (!strcmp(e.name, "master")) return e.tensor;
    }
    return NULL;
}

static void a_master_takes_the_steps_of_an_f32_parameter_bit_for_bit(void **state)
{
    (void)state;
    for (kind k = ADAMW; k < N_KINDS; k++) {
        mt_module *wide = one_param(MT_F32), *narrow = one_param(MT_BF16);
        mt_optimizer *o32 = optimizer(wide, k, true), *o16 = optimizer(narrow, k, true);
        for (uint64_t step = 0; step < 5; step++) {
            set_grad(wide, step, 1);
            set_grad(narrow, step, 1);
            mtt_ok(mt_optimizer_step(o32));
            mtt_ok(mt_optimizer_step(o16));
        }
        assert_null(master_of(o32)); /* an f32 parameter needs no master */
        mt_tensor *master = mtt_made(master_of(o16));
        assert_int_equal(mt_storage_of(master).category, MT_OPTIMIZER);
        assert_true(mtt_same_bits(master, mt_module_param(wide, "w")));
        MT_AUTO mt_tensor *rounded = mtt_made(mt_cast(master, MT_BF16));
        assert_true(mtt_same_bits(rounded, mt_module_param(narrow, "w")));
        pairs p = {0};
        mt_release(rounded), rounded = NULL;
        mtt_ok(mt_visit_duplicates(device, count_pair, &p));
        assert_int_equal(p.n, 1);
        assert_int_equal(p.last.copy_category, MT_OPTIMIZER);
        mt_optimizer_free(o32), mt_optimizer_free(o16);
        mt_module_free(wide), mt_module_free(narrow);
    }
}

static void steps_too_small_for_bf16_add_up_in_the_master_only(void **state)
{
    (void)state;
    double moved[2];
    for (int master = 0; master < 2; master++) {
        mt_module *m = one_param(MT_BF16);
        mt_tensor *w = mt_module_param(m, "w");
        mtt_ok(mt_fill(w, 1));
        mt_optimizer *o = mt_sgd_new(m, &(mt_sgd_options){.lr = 1e-4, .master = master});
        for (int step = 0; step < 100; step++) { /* of 1/39 of a bf16 step below 1 */
            MT_AUTO mt_tensor *one = mt_full(device, MT_BF16, MT_SHAPE(N / 7, 7), 1);
            mtt_ok(mt_set_grad(w, one));
            mtt_ok(mt_optimizer_step(o));
        }
        double *at = mtt_doubles(w);
        moved[master] = 1 - at[0];
        free(at);
        mt_optimizer_free(o);
        mt_module_free(m);
    }
    assert_true(moved[0] == 0);
    assert_true(fabs(moved[1] - 0.01) <= 0x1p-9);
}

static void a_parameter_written_by_others_gets_a_new_master(void **state)
{
    (void)state;
    mt_module *m = one_param(MT_F16);
    mt_tensor *w = mt_module_param(m, "w");
    mt_optimizer *o = optimizer(m, SGD, true);
    set_grad(m, 1, 1);
    mtt_ok(mt_optimizer_step(o));
    mtt_ok(mt_fill(w, 2));
    set_grad(m, 1, 0);
    mtt_ok(mt_optimizer_set_lr(o, 0));
    mtt_ok(mt_optimizer_step(o));
    double *at = mtt_doubles(master_of(o));
    for (int i = 0; i < N; i++) assert_true(at[i] == 2);
    free(at);
    mt_optimizer_free(o);
    mt_module_free(m);
}

static void masters_are_saved_and_restored_bit_for_bit(void **state)
{
    (void)state;
    char path[MTT_PATH];
    mtt_temporary_file(path);
    mt_module *m[2] = {one_param(MT_BF16), one_param(MT_BF16)};
    mt_optimizer *o[2] = {optimizer(m[0], SGD, true), optimizer(m[1], SGD, true)};
    for (uint64_t step = 0; step < 3; step++) {
        set_grad(m[0], step, 1);
        mtt_ok(mt_optimizer_step(o[0]));
    }
    assert_int_equal(mt_optimizer_state_count(o[0]), 1);
    mtt_ok(mt_checkpoint_save(path, m[0], o[0], 3, 0, NULL));
    mt_safetensors *file = mt_safetensors_open(path);
    assert_non_null(file);
    int64_t step = 0;
    mtt_ok(mt_checkpoint_load(file, m[1], o[1], &step));
    mt_safetensors_free(file);
    assert_int_equal(step, 3);
    for (int i = 0; i < 2; i++) {
        set_grad(m[i], 9, 1);
        mtt_ok(mt_optimizer_step(o[i]));
    }
    assert_true(mtt_same_bits(master_of(o[0]), master_of(o[1])));
    assert_true(mtt_same_bits(mt_module_param(m[0], "w"), mt_module_param(m[1], "w")));

    /* An optimizer without masters refuses a file that has them. */
    mt_optimizer *plain = optimizer(m[1], SGD, false);
    file = mt_safetensors_open(path);
    assert_int_equal(mt_checkpoint_load(file, m[1], plain, &step), MT_ERR_ARGUMENT);
    mtt_failed(MT_ERR_ARGUMENT, "state");
    mt_safetensors_free(file);
    mt_optimizer_free(plain);
    for (int i = 0; i < 2; i++) mt_optimizer_free(o[i]), mt_module_free(m[i]);
    unlink(path);
}

/* ---- loss scaling ---- */

static void overflow(mt_module *m, double value)
{
    mt_tensor *g = mt_grad(mt_module_param(m, "w"));
    MT_AUTO mt_tensor *last = mtt_made(mt_slice(g, 0, N / 7 - 1, 1));
    mtt_ok(mt_fill(last, value));
}

static void the_scale_grows_after_good_steps_and_backs_off_from_overflows(void **state)
{
    (void)state;
    mt_module *m = one_param(MT_F32);
    mt_optimizer *o = optimizer(m, SGD, false);
    mt_scaler *s = mt_scaler_new(&(mt_scaler_options){.interval = 3});
    /* torch.amp.GradScaler(growth_interval=3) over the same sequence */
    const struct {
        double bad, scale;
    } steps[] = {{0, 65536}, {0, 65536},   {0, 131072},        {INFINITY, 65536},
                 {0, 65536}, {NAN, 32768}, {0, 32768},         {0, 32768},
                 {0, 65536}, {0, 65536},   {-INFINITY, 32768}, {INFINITY, 16384}};
    int64_t skipped = 0;
    for (size_t i = 0; i < sizeof steps / sizeof *steps; i++) {
        MT_AUTO mt_tensor *before = mtt_made(mt_clone(mt_module_param(m, "w")));
        set_grad(m, i, mt_scaler_get(s).scale);
        if (steps[i].bad != 0) overflow(m, steps[i].bad);
        bool stepped;
        mtt_ok(mt_scaler_step(s, o, &stepped));
        assert_int_equal(stepped, steps[i].bad == 0);
        assert_int_equal(mtt_same_bits(before, mt_module_param(m, "w")), !stepped);
        skipped += !stepped;
        assert_true(mt_scaler_get(s).scale == steps[i].scale);
        assert_int_equal(mt_scaler_get(s).skipped, skipped);
        assert_int_equal(mt_scaler_get(s).steps, (int64_t)i + 1 - skipped);
    }
    mt_scaler_free(s);
    mt_optimizer_free(o);
    mt_module_free(m);
}

static void a_fixed_scale_stays_and_overflowing_steps_are_still_skipped(void **state)
{
    (void)state;
    mt_module *m = one_param(MT_F32);
    mt_optimizer *o = optimizer(m, ADAMW, false);
    mt_scaler *s = mt_scaler_new(&(mt_scaler_options){.scale = 1024, .fixed = true, .interval = 1});
    for (int i = 0; i < 4; i++) {
        set_grad(m, 1, 1024);
        if (i == 2) overflow(m, NAN);
        bool stepped;
        mtt_ok(mt_scaler_step(s, o, &stepped));
        assert_int_equal(stepped, i != 2);
        assert_true(mt_scaler_get(s).scale == 1024);
    }
    mt_optimizer_entry e;
    mtt_ok(mt_optimizer_state(o, 0, &e));
    assert_int_equal(e.step, 3); /* a skipped step is not counted */
    mt_scaler_free(s);
    mt_optimizer_free(o);
    mt_module_free(m);
}

/* Scales are powers of 2, so dividing by them in f32 is exact. */
static void a_scaled_step_has_the_bits_of_the_plain_one_in_each_form(void **state)
{
    (void)state;
    for (kind k = ADAMW; k < N_KINDS; k++)
        for (int way = 0; way < 4; way++) {
            mt_module *m[2] = {one_param(MT_F32), one_param(MT_F32)};
            mt_optimizer *o[2] = {optimizer(m[0], k, false), optimizer(m[1], k, false)};
            mt_scaler *s = mt_scaler_new(NULL);
            for (uint64_t step = 0; step < 3; step++) {
                double plain_norm = 0, norm = 0;
                set_grad(m[0], step, 1);
                set_grad(m[1], step, 65536);
                if (way == 1 || way == 3) mtt_ok(mt_scaler_unscale(s, o[1]));
                if (way == 1)
                    assert_true(mtt_same_bits(mt_grad(mt_module_param(m[0], "w")),
                                              mt_grad(mt_module_param(m[1], "w"))));
                if (way >= 2) {
                    mtt_ok(mt_clip_grad_norm(m[0], 1e9, &plain_norm));
                    mtt_ok(mt_scaler_clip(s, o[1], 1e9, &norm));
                    assert_true(norm == plain_norm);
                }
                bool stepped;
                mtt_ok(mt_optimizer_step(o[0]));
                mtt_ok(mt_scaler_step(s, o[1], &stepped));
                assert_true(stepped);
            }
            assert_true(mtt_same_bits(mt_module_param(m[0], "w"), mt_module_param(m[1], "w")));
            mt_scaler_free(s);
            for (int i = 0; i < 2; i++) mt_optimizer_free(o[i]), mt_module_free(m[i]);
        }
}

static void clipping_uses_the_unscaled_gradients(void **state)
{
    (void)state;
    mt_module *m[2] = {one_param(MT_F32), one_param(MT_F32)};
    mt_optimizer *o[2] = {optimizer(m[0], SGD, false), optimizer(m[1], SGD, false)};
    mt_scaler *s = mt_scaler_new(NULL);
    set_grad(m[0], 3, 1);
    set_grad(m[1], 3, 65536);
    mtt_ok(mt_clip_grad_norm(m[0], 0.5, NULL));
    mtt_ok(mt_scaler_clip(s, o[1], 0.5, NULL));
    mtt_ok(mt_optimizer_step(o[0]));
    mtt_ok(mt_scaler_step(s, o[1], NULL));
    double *a = mtt_doubles(mt_module_param(m[0], "w")),
           *b = mtt_doubles(mt_module_param(m[1], "w"));
    for (int i = 0; i < N; i++) assert_true(fabs(a[i] - b[i]) <= 1e-7);
    free(a), free(b);
    assert_int_equal(mt_scaler_clip(s, o[1], 0, NULL), MT_ERR_ARGUMENT);
    mtt_failed(MT_ERR_ARGUMENT, "max_norm");
    mt_scaler_free(s);
    for (int i = 0; i < 2; i++) mt_optimizer_free(o[i]), mt_module_free(m[i]);
}

static void f16_gradients_are_unscaled_only_in_the_step(void **state)
{
    (void)state;
    mt_module *m = one_param(MT_F16);
    mt_tensor *w = mt_module_param(m, "w");
    mt_optimizer *o = mt_sgd_new(m, &(mt_sgd_options){.lr = 1, .master = true});
    mt_scaler *s = mt_scaler_new(NULL);
    mtt_ok(mt_fill(w, 0));
    MT_AUTO mt_tensor *g = mtt_made(mt_full(device, MT_F16, MT_SHAPE(N / 7, 7), 0x1p-10));
    mtt_ok(mt_set_grad(w, g)); /* unscaled it is 2^-26, which is 0 in f16 */
    assert_int_equal(mt_scaler_unscale(s, o), MT_ERR_ARGUMENT);
    mtt_failed(MT_ERR_ARGUMENT, "f16", "w");
    mtt_ok(mt_scaler_step(s, o, NULL));
    double *at = mtt_doubles(master_of(o));
    for (int i = 0; i < N; i++) assert_true(at[i] == -0x1p-26);
    free(at);
    mt_scaler_free(s);
    mt_optimizer_free(o);
    mt_module_free(m);
}

static void a_scaler_refuses_invalid_input(void **state)
{
    (void)state;
    const mt_scaler_options bad[] = {
        {.scale = -1}, {.scale = INFINITY}, {.growth = 1}, {.backoff = 1}, {.interval = -1}};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        assert_null(mt_scaler_new(&bad[i]));
        mtt_failed(MT_ERR_ARGUMENT, "scaler", "need");
    }
    mt_scaler *s = mt_scaler_new(NULL);
    mt_module *m = one_param(MT_F32);
    mt_optimizer *o = optimizer(m, SGD, false);
    assert_null(mt_scaler_scale(s, NULL));
    mt_clear_error();
    assert_int_equal(mt_scaler_step(s, NULL, NULL), MT_ERR_ARGUMENT);
    mtt_failed(MT_ERR_ARGUMENT, "optimizer");
    assert_int_equal(mt_scaler_set(s, &(mt_scaler_state){.scale = 0}), MT_ERR_ARGUMENT);
    mtt_failed(MT_ERR_ARGUMENT, "scale");
    mtt_ok(mt_scaler_set(s, &(mt_scaler_state){.scale = 8, .good_steps = 1999, .steps = 1999}));
    set_grad(m, 1, 8);
    mtt_ok(mt_scaler_unscale(s, o));
    assert_int_equal(mt_scaler_unscale(s, o), MT_ERR_STATE);
    mtt_failed(MT_ERR_STATE, "called twice");
    mtt_ok(mt_scaler_step(s, o, NULL));
    assert_true(mt_scaler_get(s).scale == 16);
    MT_AUTO mt_tensor *half = mtt_made(mt_full(device, MT_F16, 0, NULL, 2));
    MT_AUTO mt_tensor *scaled = mtt_made(mt_scaler_scale(s, half));
    assert_int_equal(mt_dtype_of(scaled), MT_F32);
    assert_true(mt_item(scaled) == 32);
    mt_scaler_free(s);
    mt_optimizer_free(o);
    mt_module_free(m);
}

/* ---- a step with all of them, with allocations that fail ---- */

static mt_status step(mt_module *mlp, mt_tensor *x, mt_optimizer *o, mt_scaler *s)
{
    mt_status status = mt_module_zero_grad(mlp);
    if (status == MT_OK) status = mt_autocast_begin(MT_F16);
    if (status != MT_OK) return status;
    mt_tensor *y = mt_forward(mlp, x);
    mt_set(&y, mt_mse(y, x));
    status = mt_autocast_end();
    mt_set(&y, mt_scaler_scale(s, y));
    if (status == MT_OK) status = mt_backward(y);
    mt_release(y);
    if (status == MT_OK) status = mt_scaler_clip(s, o, 1, NULL);
    return status == MT_OK ? mt_scaler_step(s, o, NULL) : status;
}

static void any_allocation_of_a_scaled_autocast_step_may_fail(void **state)
{
    (void)state;
    MT_AUTO mt_tensor *x = draw(MT_F32, MT_SHAPE(3, 8), 1);
    mt_tensor *expected = NULL;
    uint64_t n_refused = 0;
    bool reached = true;
    for (uint64_t n = 0; reached; n++) { /* n 0: nothing fails */
        mt_seed(device, 3);
        mt_module *mlp = mt_mlp_new(device, &(mt_model_config){.hidden = 8, .ffn = 16});
        mt_optimizer *o = mt_adamw_new(mlp, &(mt_adamw_options){.lr = 0.1});
        mt_scaler *s = mt_scaler_new(&(mt_scaler_options){.scale = 256});
        assert_non_null(s);
        mt_mem_stats before, after;
        mt_mem_get_stats(device, &before);
        mti_fail_nth_alloc(n);
        mt_status status = step(mlp, x, o, s);
        reached = n == 0 || mti_alloc_count() >= n;
        mti_fail_nth_alloc(0);
        if (status != MT_OK) {
            n_refused++;
            assert_int_equal(status, MT_ERR_MEMORY);
            mt_clear_error();
            mtt_ok(mt_module_zero_grad(mlp));
            mt_optimizer_reset(o);
            mt_mem_get_stats(device, &after);
            assert_int_equal(after.allocated.current, before.allocated.current);
            assert_int_equal(mt_autocast_end(), MT_ERR_STATE);
            mt_clear_error();
            mtt_ok(step(mlp, x, o, s));
        }
        mt_tensor *w = mt_module_param(mt_module_child(mlp, "fc"), "weight");
        if (!expected) expected = mtt_made(mt_clone(w)), mt_set(&expected, mt_detach(expected));
        assert_true(mtt_same_bits(expected, w));
        mt_scaler_free(s);
        mt_optimizer_free(o);
        mt_module_free(mlp);
    }
    assert_true(n_refused > 50);
    mt_release(expected);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        mtt_test(tensors_in_two_dtypes_are_reported_while_both_live),
        mtt_test(a_master_takes_the_steps_of_an_f32_parameter_bit_for_bit),
        mtt_test(steps_too_small_for_bf16_add_up_in_the_master_only),
        mtt_test(a_parameter_written_by_others_gets_a_new_master),
        mtt_test(masters_are_saved_and_restored_bit_for_bit),
        mtt_test(the_scale_grows_after_good_steps_and_backs_off_from_overflows),
        mtt_test(a_fixed_scale_stays_and_overflowing_steps_are_still_skipped),
        mtt_test(a_scaled_step_has_the_bits_of_the_plain_one_in_each_form),
        mtt_test(clipping_uses_the_unscaled_gradients),
        mtt_test(f16_gradients_are_unscaled_only_in_the_step),
        mtt_test(a_scaler_refuses_invalid_input),
        mtt_test(any_allocation_of_a_scaled_autocast_step_may_fail),
    };
    return cmocka_run_group_tests(tests, mtt_open_device, mtt_close_device);
}

/* Optimizers: state and its types, gradients, restoring; clipping; the schedule; accumulation. */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "two_params.h"

static void state_is_made_in_f32_at_the_first_step(void **state)
{
    (void)state;
    const double g[N] = {1, 2, 3, 4, 5, 6};
    mt_module *m = two_params(MT_BF16, 3);
    mt_optimizer *o = mt_adamw_new(m, &(mt_adamw_options){.lr = 1e-3});
    mt_mem_stats stats;
    mt_mem_get_stats(device, &stats);
    assert_int_equal(stats.by_category[MT_OPTIMIZER], 0);
    set_grad(mt_module_param(m, "matrix"), g);
    set_grad(mt_module_param(m, "vector"), g);
    mtt_ok(mt_optimizer_step(o));
    mt_mem_get_stats(device, &stats);
    assert_int_equal(stats.by_category[MT_OPTIMIZER], 4 * 512);
    assert_int_equal(mt_optimizer_state_count(o), 4);
    static const char *const want[][2] = {
        {"matrix", "m"}, {"matrix", "v"}, {"vector", "m"}, {"vector", "v"}};
    for (size_t i = 0; i < 4; i++) {
        mt_optimizer_entry e;
        mtt_ok(mt_optimizer_state(o, i, &e));
        assert_string_equal(e.param, want[i][0]);
        assert_string_equal(e.name, want[i][1]);
        assert_int_equal(e.step, 1);
        assert_int_equal(mt_dtype_of(e.tensor), MT_F32);
        assert_string_equal(mt_storage_of(e.tensor).op, "adamw");
        assert_string_equal(mt_storage_of(e.tensor).module, want[i][0]);
    }
    mt_optimizer_entry none;
    mt_optimizer_state(o, 4, &none);
    mtt_failed(MT_ERR_ARGUMENT, "no state tensor 4");
    mt_optimizer_reset(o);
    mt_mem_get_stats(device, &stats);
    assert_int_equal(stats.by_category[MT_OPTIMIZER], 0);
    mt_optimizer_free(o);
    mt_module_free(m);
}

/* 2 bytes each for parameter, gradient, m and v; the master stays f32. */
static void narrow_state_has_the_dtype_of_16_bit_parameters(void **state)
{
    (void)state;
    const double g[N] = {1, 2, 3, 4, 5, 6};
    static const mt_dtype dtypes[] = {MT_BF16, MT_F16, MT_F32, MT_F64};
    for (int d = 0; d < 4; d++)
        for (int master = 0; master < 2; master++) {
            mt_module *m = two_params(dtypes[d], 3);
            mt_optimizer *o = mt_adamw_new(
                m, &(mt_adamw_options){.lr = 1e-3, .master = master, .moments = MT_MOMENTS_NARROW});
            set_grad(mt_module_param(m, "matrix"), g);
            set_grad(mt_module_param(m, "vector"), g);
            mtt_ok(mt_optimizer_step(o));
            bool has_master = master && d < 2;
            assert_int_equal(mt_optimizer_state_count(o), has_master ? 6 : 4);
            for (size_t i = 0; i < mt_optimizer_state_count(o); i++) {
                mt_optimizer_entry e;
                mtt_ok(mt_optimizer_state(o, i, &e));
                assert_int_equal(mt_dtype_of(e.tensor),
                                 strcmp(e.name, "master") ? dtypes[d] : MT_F32);
            }
            mt_optimizer_free(o);
            mt_module_free(m);
        }
}

/* A byte and a 256th of a float for each element, but f32 below 4096 elements and f64 for f64. */
static void moments_in_8_bits_take_a_byte_each(void **state)
{
    (void)state;
    static const int64_t sizes[] = {4095, 4096, 4097, 10000};
    for (int d = 0; d < 4; d++)
        for (size_t k = 0; k < 4; k++) {
            const mt_dtype dtypes[] = {MT_BF16, MT_F16, MT_F32, MT_F64};
            int64_t n = sizes[k], scales = (n + 255) / 256;
            bool coded = d < 3 && n >= 4096, master = d < 2;
            mt_module *m = mt_module_new("m", mtt_pass, NULL, NULL);
            mt_tensor *p = mt_module_add_param(
                m, "p", mtt_made(mt_normal(device, dtypes[d], MT_SHAPE(n), 0, 1)));
            MT_AUTO mt_tensor *g = mtt_made(mt_normal(device, dtypes[d], MT_SHAPE(n), 0, 1));
            mtt_ok(mt_set_grad(p, g));
            mt_optimizer *o = mt_adamw_new(
                m, &(mt_adamw_options){.lr = 1e-3, .master = true, .moments = MT_MOMENTS_8BIT});
            mtt_ok(mt_optimizer_step(o));
            assert_int_equal(mt_optimizer_state_count(o), 2 + master);
            for (size_t i = 0; i < 2; i++) {
                mt_optimizer_entry e;
                mtt_ok(mt_optimizer_state(o, i, &e));
                int64_t want = coded ? (n + 3) / 4 * 4 + 4 * scales : n * (d == 3 ? 8 : 4);
                assert_int_equal(mt_storage_of(e.tensor).bytes, want);
                assert_int_equal(mt_moment_bytes(MT_MOMENTS_8BIT, dtypes[d], n), want);
                assert_int_equal(mt_dtype_of(e.tensor), coded ? MT_U8 : d == 3 ? MT_F64 : MT_F32);
            }
            mt_optimizer_free(o);
            mt_module_free(m);
        }
}

/* The same steps; codes are in host memory and no bytes of the device, their scales are there. */
static void paged_moments_lie_in_host_memory(void **state)
{
    (void)state;
    enum { LARGE = MT_PAGED_LEAST, SMALL = MT_PAGED_LEAST - 1 };
    static const int64_t sizes[] = {LARGE, SMALL};
    for (int k = 0; k < 4; k++) {
        int64_t n = sizes[k / 2], blocks = (n + 255) / 256;
        bool codes = k % 2, host = n == LARGE;
        mt_module *m[2];
        mt_optimizer *o[2];
        mt_tensor *p[2];
        bool stepped = true;
        for (int paged = 0; paged < 2; paged++) {
            mt_seed(device, 5);
            m[paged] = mt_module_new("m", mtt_pass, NULL, NULL);
            p[paged] = mt_module_add_param(m[paged], "p",
                                           mtt_made(mt_normal(device, MT_F32, MT_SHAPE(n), 0, 1)));
            MT_AUTO mt_tensor *g = mtt_made(mt_normal(device, MT_F32, MT_SHAPE(n), 0, 1));
            mtt_ok(mt_set_grad(p[paged], g));
            o[paged] = mt_adamw_new(
                m[paged], &(mt_adamw_options){.lr = 1e-2,
                                              .moments = codes ? MT_MOMENTS_8BIT : MT_MOMENTS_WIDE,
                                              .paged = paged});
            for (int step = 0; stepped && step < 3; step++)
                stepped = mt_optimizer_step(o[paged]) == MT_OK;
        }
        if (!stepped) { /* no paging on a GPU */
            mtt_failed(MT_ERR_UNSUPPORTED, "paged state; need cpu or meta");
            assert_int_not_equal(strcmp(mt_device_kind(device), "cpu"), 0);
        } else {
            assert_true(mtt_same_bits(p[0], p[1]));
            assert_int_equal(mt_optimizer_state_count(o[1]), codes ? 4 : 2);
            for (size_t i = 0; i < mt_optimizer_state_count(o[1]); i++) {
                mt_optimizer_entry e;
                mtt_ok(mt_optimizer_state(o[1], i, &e));
                size_t bytes = mt_storage_of(e.tensor).bytes;
                assert_int_equal(bytes, i > 1 ? 4 * blocks : codes ? (n + 3) / 4 * 4 : 4 * n);
                assert_int_equal(mt_storage_of(e.tensor).allocated > 0, i > 1 || !host);
            }
        }
        for (int paged = 0; paged < 2; paged++)
            mt_optimizer_free(o[paged]), mt_module_free(m[paged]);
    }
    mt_module *m = two_params(MT_F32, 3);
    assert_null(
        mt_adamw_new(m, &(mt_adamw_options){.paged = true, .moments = MT_MOMENTS_TORCHAO_FP8}));
    mtt_failed(MT_ERR_ARGUMENT, "paged goes with no moments of torchao's");
    assert_null(mt_adamw_new(m, &(mt_adamw_options){.paged = true, .host = true}));
    mtt_failed(MT_ERR_ARGUMENT, "not with paged");
    mt_module_free(m);
}

/* Makes two steps of a module; returns how far the second one's peak is above what it keeps. */
static size_t peak_above_what_is_kept(mt_dtype dtype, mt_adamw_options options, mt_module **module)
{
    const double g[N] = {1, -2, 3, -4, 5, -6};
    mt_module *m = *module = two_params(dtype, 3);
    mt_optimizer *o = mt_adamw_new(m, &options);
    set_grad(mt_module_param(m, "matrix"), g);
    set_grad(mt_module_param(m, "vector"), g);
    mtt_ok(mt_optimizer_step(o));
    mt_mem_stats stats;
    mt_mem_reset_peak(device);
    mtt_ok(mt_optimizer_step(o));
    mt_mem_get_stats(device, &stats);
    mt_optimizer_free(o);
    return stats.allocated.peak - stats.allocated.current;
}

static void forms_have_roots_of_second_moments_in_a_step(void **state)
{
    (void)state;
    const mt_dtype dtypes[] = {MT_F32, MT_BF16};
    const mt_moments moments[] = {MT_MOMENTS_WIDE, MT_MOMENTS_NARROW, MT_MOMENTS_BF16};
    for (int k = 0; k < 6; k++) {
        mt_adamw_options options = {.lr = 0.1, .moments = moments[k / 2]};
        mt_module *plain, *each, *loop;
        assert_int_equal(peak_above_what_is_kept(dtypes[k % 2], options, &plain), 0);
        options.form = MT_ADAMW_FOREACH;
        assert_int_equal(peak_above_what_is_kept(dtypes[k % 2], options, &each), 2 * 512);
        options.form = MT_ADAMW_LOOP; /* two of one parameter at a time, too */
        assert_int_equal(peak_above_what_is_kept(dtypes[k % 2], options, &loop), 2 * 512);
        for (int i = 0; i < 2; i++) {
            const char *name = i ? "vector" : "matrix";
            assert_true(mtt_same_bits(mt_module_param(plain, name), mt_module_param(each, name)));
            assert_true(mtt_same_bits(mt_module_param(plain, name), mt_module_param(loop, name)));
        }
        mt_module_free(plain);
        mt_module_free(each);
        mt_module_free(loop);
    }
    mt_module *m = two_params(MT_F32, 3);
    assert_null(
        mt_adamw_new(m, &(mt_adamw_options){.form = MT_ADAMW_FOREACH, .moments = MT_MOMENTS_8BIT}));
    mtt_failed(MT_ERR_ARGUMENT, "forms foreach and loop go with moments of floats alone");
    assert_null(mt_adamw_new(m, &(mt_adamw_options){.form = 3}));
    mtt_failed(MT_ERR_ARGUMENT, "adamw: form is 3");
    mt_module_free(m);
}

/* Beside zero gradients v is multiplied by 0.999, which half a unit in bf16's last place hides. */
static void v_cannot_shrink_in_bf16(void **state)
{
    (void)state;
    const double g[N] = {1, 2, 3, 4, 5, 6}, zero[N] = {0};
    for (int narrow = 0; narrow < 2; narrow++) {
        mt_module *m = two_params(MT_BF16, 3);
        mt_optimizer *o = mt_adamw_new(
            m, &(mt_adamw_options){.lr = 1e-3,
                                   .moments = narrow ? MT_MOMENTS_NARROW : MT_MOMENTS_WIDE});
        mt_optimizer_entry v;
        double first = 0, last = 0;
        for (int step = 0; step < 100; step++) {
            set_grad(mt_module_param(m, "matrix"), step ? zero : g);
            mtt_ok(mt_optimizer_step(o));
            mtt_ok(mt_optimizer_state(o, 1, &v));
            assert_string_equal(v.name, "v");
            last = mt_item_at(v.tensor, MT_SHAPE(0, 0));
            if (step == 0) first = last;
        }
        if (narrow)
            assert_true(last == first && first > 0);
        else
            assert_true(last < 0.91 * first);
        mt_optimizer_free(o);
        mt_module_free(m);
    }
}

/* 16-bit parameters step with f32 gradients as with gradients of their own; others are refused. */
static void gradients_may_be_f32_beside_16_bits(void **state)
{
    (void)state;
    const double g[N] = {1, 2, 3, 4, 5, 6}; /* exact in 16 bits */
    double *after[2];
    for (int wide = 0; wide < 2; wide++) {
        mt_module *m = two_params(MT_BF16, 3);
        mt_tensor *p = mt_module_param(m, "matrix");
        if (wide) mtt_ok(mt_module_set_grad_dtype(m, MT_F32));
        mt_optimizer *o = mt_adamw_new(m, &(mt_adamw_options){.lr = 1e-2, .master = true});
        MT_AUTO mt_tensor *grad =
            mtt_from_doubles(device, wide ? MT_F32 : MT_BF16, mt_rank(p), mt_shape(p), g);
        mtt_ok(mt_set_grad(p, grad));
        double norm;
        mtt_ok(mt_clip_grad_norm(m, 100, &norm));
        assert_true(fabs(norm - sqrt(91)) < 1e-5);
        mtt_ok(mt_optimizer_step(o));
        after[wide] = mtt_doubles(p);
        mt_optimizer_free(o);
        mt_module_free(m);
    }
    assert_memory_equal(after[0], after[1], N * sizeof *g);
    free(after[0]), free(after[1]);

    mt_module *m = two_params(MT_F32, 3);
    mtt_ok(mt_module_set_grad_dtype(m, MT_BF16));
    mt_optimizer *o = mt_sgd_new(m, &(mt_sgd_options){.lr = 1e-2});
    mt_tensor *p = mt_module_param(m, "vector");
    MT_AUTO mt_tensor *grad = mtt_from_doubles(device, MT_BF16, mt_rank(p), mt_shape(p), g);
    mtt_ok(mt_set_grad(p, grad));
    assert_int_equal(mt_optimizer_step(o), MT_ERR_ARGUMENT);
    mtt_failed(MT_ERR_ARGUMENT, "sgd: the gradient of vector is bf16; need f32", "");
    mt_optimizer_free(o);
    mt_module_free(m);
}

static void a_late_parameter_starts_at_its_own_first_step(void **state)
{
    (void)state;
    double g[N], p[N], mean[N] = {0}, square[N] = {0};
    draw(9, g);
    mt_module *m = two_params(MT_F64, 4);
    mt_tensor *late = mt_module_param(m, "vector");
    double *at = mtt_doubles(late);
    memcpy(p, at, sizeof p);
    free(at);
    mt_optimizer *o = mt_adamw_new(m, &(mt_adamw_options){.lr = 0.1});
    for (int t = 1; t <= 3; t++) {
        set_grad(mt_module_param(m, "matrix"), g);
        mtt_ok(mt_optimizer_step(o));
    }
    assert_near(late, p, 0);
    for (int t = 1; t <= 3; t++) {
        set_grad(late, g);
        mtt_ok(mt_optimizer_step(o));
        reference_adamw(p, g, mean, square, t, 0.1, 0.9, 0.999, 1e-8, 0);
        assert_near(late, p, 1e-14);
    }
    mt_optimizer_free(o);
    mt_module_free(m);
}

static void a_frozen_parameter_does_not_change(void **state)
{
    (void)state;
    const double g[N] = {1, 1, 1, 1, 1, 1};
    mt_module *m = two_params(MT_F32, 5);
    mt_tensor *frozen = mt_module_param(m, "vector");
    MT_AUTO mt_tensor *before = mt_clone(frozen);
    mtt_ok(mt_set_requires_grad(frozen, false));
    mt_optimizer *o = mt_adamw_new(m, &(mt_adamw_options){.lr = 0.1, .weight_decay = 0.5});
    set_grad(mt_module_param(m, "matrix"), g);
    mtt_ok(mt_optimizer_step(o));
    assert_true(mtt_same_bits(frozen, before));
    mt_optimizer_free(o);
    mt_module_free(m);
}

static void a_strided_gradient_is_read_in_its_layout(void **state)
{
    (void)state;
    double g[N], turned[N];
    draw(6, g);
    for (int i = 0; i < 2; i++)
        for (int j = 0; j < 3; j++) turned[2 * j + i] = g[3 * i + j];
    for (int clip = 0; clip < 2; clip++) {
        mt_module *dense = two_params(MT_F64, 6), *strided = two_params(MT_F64, 6);
        set_grad(mt_module_param(dense, "matrix"), g);
        MT_AUTO mt_tensor *grad = mtt_from_doubles(device, MT_F64, MT_SHAPE(3, 2), turned);
        mtt_ok(mt_set(&grad, mt_transpose(grad, 0, 1)));
        mtt_ok(mt_set_grad(mt_module_param(strided, "matrix"), grad));
        mt_module *both[] = {dense, strided};
        for (int k = 0; k < 2; k++) {
            mt_optimizer *o = mt_sgd_new(both[k], &(mt_sgd_options){.lr = 0.1});
            if (clip) mtt_ok(mt_clip_grad_norm(both[k], 0.5, NULL));
            mtt_ok(mt_optimizer_step(o));
            mt_optimizer_free(o);
        }
        assert_true(
            mtt_same_bits(mt_module_param(dense, "matrix"), mt_module_param(strided, "matrix")));
        mt_module_free(dense);
        mt_module_free(strided);
    }
}

static void a_step_changes_versions_so_that_a_stale_graph_is_an_error(void **state)
{
    (void)state;
    mt_module *fc = mt_linear_new(device, MT_F32, 3, 2, false, 0);
    MT_AUTO mt_tensor *x = mt_full(device, MT_F32, MT_SHAPE(1, 3), 1);
    mtt_ok(mt_set_requires_grad(x, true)); /* so that the weight is kept */
    mt_optimizer *o = mt_sgd_new(fc, &(mt_sgd_options){.lr = 0.1});
    MT_AUTO mt_tensor *loss = mt_forward(fc, x);
    mtt_ok(mt_set(&loss, mt_sum_all(loss)));
    mtt_ok(mt_backward_with(loss, &(mt_backward_options){.retain_graph = true}));
    mtt_ok(mt_optimizer_step(o));
    assert_int_not_equal(mt_backward(loss), MT_OK);
    mtt_failed(MT_ERR_STATE, "linear");
    mt_optimizer_free(o);
    mt_module_free(fc);
}

static void restored_state_continues_bit_for_bit(void **state)
{
    (void)state;
    double g[N];
    mt_module *a = two_params(MT_F32, 7), *b = two_params(MT_F32, 7);
    mt_optimizer *oa = mt_adamw_new(a, &(mt_adamw_options){.lr = 0.1});
    mt_optimizer *ob = mt_adamw_new(b, &(mt_adamw_options){.lr = 0.1});
    for (uint64_t t = 0; t < 3; t++) {
        draw(t, g);
        set_grad(mt_module_param(a, "matrix"), g);
        mtt_ok(mt_optimizer_step(oa));
    }
    mtt_ok(mt_copy(mt_module_param(b, "matrix"), mt_module_param(a, "matrix")));
    for (size_t i = 0; i < mt_optimizer_state_count(oa); i++) {
        mt_optimizer_entry e;
        mtt_ok(mt_optimizer_state(oa, i, &e));
        mtt_ok(mt_optimizer_restore(ob, &e));
    }
    set_grad(mt_module_param(a, "matrix"), g);
    set_grad(mt_module_param(b, "matrix"), g);
    mtt_ok(mt_optimizer_step(oa));
    mtt_ok(mt_optimizer_step(ob));
    assert_true(mtt_same_bits(mt_module_param(a, "matrix"), mt_module_param(b, "matrix")));

    mt_optimizer_entry e;
    mtt_ok(mt_optimizer_state(oa, 0, &e));
    const char *param = e.param;
    e.param = "nobody";
    mt_optimizer_restore(ob, &e);
    mtt_failed(MT_ERR_ARGUMENT, "\"nobody\"");
    e.param = "vector";
    mt_optimizer_restore(ob, &e);
    mtt_failed(MT_ERR_ARGUMENT, "[2,3]", "need [6]");
    e.param = param;
    e.step = 0;
    mt_optimizer_restore(ob, &e);
    mtt_failed(MT_ERR_ARGUMENT, "step 0");
    mt_optimizer_free(oa);
    mt_optimizer_free(ob);
    mt_module_free(a);
    mt_module_free(b);
}

static void bad_options_are_refused_by_name(void **state)
{
    (void)state;
    mt_module *m = two_params(MT_F32, 8);
    assert_null(mt_adamw_new(m, &(mt_adamw_options){.lr = -1}));
    mtt_failed(MT_ERR_ARGUMENT, "adamw: lr is -1");
    assert_null(mt_adamw_new(m, &(mt_adamw_options){.lr = NAN}));
    mtt_failed(MT_ERR_ARGUMENT, "lr is");
    assert_null(mt_adamw_new(m, &(mt_adamw_options){.beta1 = 1}));
    mtt_failed(MT_ERR_ARGUMENT, "beta1 is 1");
    assert_null(mt_sgd_new(m, &(mt_sgd_options){.momentum = -0.5}));
    mtt_failed(MT_ERR_ARGUMENT, "sgd: momentum is -0.5");
    assert_null(mt_sgd_new(NULL, &(mt_sgd_options){.lr = 1}));
    mtt_failed(MT_ERR_ARGUMENT, "NULL");
    assert_null(mt_sgd_new(m, NULL));
    mtt_failed(MT_ERR_ARGUMENT, "NULL");
    mt_optimizer *o = mt_sgd_new(m, &(mt_sgd_options){.lr = 1});
    mt_optimizer_set_lr(o, INFINITY);
    mtt_failed(MT_ERR_ARGUMENT, "lr is inf");
    assert_true(mt_optimizer_lr(o) == 1);
    mt_optimizer_free(o);
    mt_module_free(m);
}

static void clipping_scales_all_gradients_by_their_joint_norm(void **state)
{
    (void)state;
    double g[2][N], squares = 0, norm;
    mt_module *m = two_params(MT_F64, 9);
    mt_tensor *param[] = {mt_module_param(m, "matrix"), mt_module_param(m, "vector")};
    for (int j = 0; j < 2; j++) {
        draw((uint64_t)j + 50, g[j]);
        set_grad(param[j], g[j]);
        for (int i = 0; i < N; i++) squares += g[j][i] * g[j][i];
    }
    /* Below the limit, no bit changes. */
    mtt_ok(mt_clip_grad_norm(m, 100, &norm));
    assert_float_equal(norm, sqrt(squares), 1e-14);
    for (int j = 0; j < 2; j++) assert_near(mt_grad(param[j]), g[j], 0);
    mtt_ok(mt_clip_grad_norm(m, 0.3, &norm));
    assert_float_equal(norm, sqrt(squares), 1e-14);
    for (int j = 0; j < 2; j++) {
        for (int i = 0; i < N; i++) g[j][i] *= 0.3 / (sqrt(squares) + 1e-6);
        assert_near(mt_grad(param[j]), g[j], 1e-15);
    }
    g[0][3] = NAN;
    set_grad(param[0], g[0]);
    mtt_ok(mt_clip_grad_norm(m, 0.3, &norm));
    assert_true(isnan(norm));
    double *seen = mtt_doubles(mt_grad(param[1]));
    assert_true(isnan(seen[0]));
    free(seen);
    mtt_ok(mt_module_zero_grad(m));
    mtt_ok(mt_clip_grad_norm(m, 1, &norm));
    assert_true(norm == 0);
    assert_int_equal(mt_clip_grad_norm(m, -1, NULL), MT_ERR_ARGUMENT);
    mtt_failed(MT_ERR_ARGUMENT, "max_norm is -1");
    mt_module_free(m);
}

static void the_schedule_warms_up_decays_and_stays(void **state)
{
    (void)state;
    assert_float_equal(mt_cosine_lr(0, 4, 14, 1, 0.1), 0.25, 1e-15);
    assert_float_equal(mt_cosine_lr(3, 4, 14, 1, 0.1), 1, 1e-15);
    assert_float_equal(mt_cosine_lr(4, 4, 14, 1, 0.1), 1, 1e-15);
    assert_float_equal(mt_cosine_lr(9, 4, 14, 1, 0.1), 0.55, 1e-15);
    assert_float_equal(mt_cosine_lr(14, 4, 14, 1, 0.1), 0.1, 1e-15);
    assert_float_equal(mt_cosine_lr(1000, 4, 14, 1, 0.1), 0.1, 1e-15);
    assert_float_equal(mt_cosine_lr(0, 0, 0, 1, 0.1), 0.1, 1e-15);
    for (int64_t t = 4; t < 14; t++)
        assert_true(mt_cosine_lr(t + 1, 4, 14, 1, 0.1) < mt_cosine_lr(t, 4, 14, 1, 0.1));
}

static void micro_batches_add_up_to_the_big_batch(void **state)
{
    (void)state;
    enum { B = 6, S = 5, K = 3 };
    mt_model_config c = {
        .hidden = 12, .heads = 3, .layers = 2, .vocab = 11, .context = S, .dtype = MT_F64};
    mt_seed(device, 1);
    mt_module *whole = mt_model_new(device, &c);
    mt_seed(device, 1);
    mt_module *parts = mt_model_new(device, &c);
    int64_t index[B * S];
    uint64_t seed = 5;
    for (int i = 0; i < B * S; i++) index[i] = (int64_t)mtt_draw(&seed, 0, 11);
    MT_AUTO mt_tensor *x = mt_from_data(device, MT_I64, MT_SHAPE(B, S), index, sizeof index);
    MT_AUTO mt_tensor *h = mt_forward(whole, x);
    mtt_ok(mt_set(&h, mt_cross_entropy(h, x, MT_IGNORE)));
    mtt_ok(mt_backward(h));
    for (int k = 0; k < K; k++) {
        MT_AUTO mt_tensor *part = mt_slice(x, 0, k * B / K, B / K);
        mtt_ok(mt_set(&h, mt_forward(parts, part)));
        mtt_ok(mt_set(&h, mt_cross_entropy(h, part, MT_IGNORE)));
        mtt_ok(mt_set(&h, mt_mul_scalar(h, 1.0 / K)));
        mtt_ok(mt_backward(h));
    }
    const mt_named_tensor *one, *many;
    size_t n;
    mtt_ok(mt_module_params(whole, &one, &n));
    mtt_ok(mt_module_params(parts, &many, &n));
    for (size_t i = 0; i < n; i++) {
        double *a = mtt_doubles(mt_grad(one[i].tensor)), *b = mtt_doubles(mt_grad(many[i].tensor));
        for (int64_t j = 0; j < mt_numel(one[i].tensor); j++)
            if (!(fabs(a[j] - b[j]) <= 1e-13 + 1e-11 * fabs(a[j])))
                fail_msg("%s: %.17g and %.17g", one[i].name, a[j], b[j]);
        free(a);
        free(b);
    }
    mt_module_free(whole);
    mt_module_free(parts);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        mtt_test(narrow_state_has_the_dtype_of_16_bit_parameters),
        mtt_test(gradients_may_be_f32_beside_16_bits),
        mtt_test(moments_in_8_bits_take_a_byte_each),
        mtt_test(paged_moments_lie_in_host_memory),
        mtt_test(forms_have_roots_of_second_moments_in_a_step),
        mtt_test(v_cannot_shrink_in_bf16),
        mtt_test(state_is_made_in_f32_at_the_first_step),
        mtt_test(a_late_parameter_starts_at_its_own_first_step),
        mtt_test(a_frozen_parameter_does_not_change),
        mtt_test(a_strided_gradient_is_read_in_its_layout),
        mtt_test(a_step_changes_versions_so_that_a_stale_graph_is_an_error),
        mtt_test(restored_state_continues_bit_for_bit),
        mtt_test(bad_options_are_refused_by_name),
        mtt_test(clipping_scales_all_gradients_by_their_joint_norm),
        mtt_test(the_schedule_warms_up_decays_and_stays),
        mtt_test(micro_batches_add_up_to_the_big_batch),
    };
    return cmocka_run_group_tests(tests, mtt_open_device, mtt_close_device);
}

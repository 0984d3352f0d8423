/* Optimizer steps over many tensors on the device, against the CPU. */
#include "twins.h"

#define N_ITEMS 150 /* more than one launch covers */

typedef struct tensors {
    mtt_twin p[N_ITEMS], g[N_ITEMS], m[N_ITEMS], v[N_ITEMS], master[N_ITEMS];
    mti_opt_item host[N_ITEMS], dev[N_ITEMS];
} tensors;

/* Short, long, empty and unaligned tensors; dtype MT_DTYPE_COUNT: all four dtypes in turn. Every
 * third 16-bit tensor has a gradient in f32 if there is momentum.
 * narrow_moments: those of every second 16-bit tensor have its dtype. */
static tensors *make(const mtt_pair *pair, mt_dtype dtype, bool momentum, bool narrow_moments)
{
    const int64_t sizes[] = {1, 0, 1000, 17, 8192, 3, 20011, 64};
    tensors *t = calloc(1, sizeof *t);
    assert_non_null(t);
    for (int k = 0; k < N_ITEMS; k++) {
        mt_dtype narrow = dtype == MT_DTYPE_COUNT ? mtt_floats[k % 4] : dtype;
        mt_dtype wide = narrow == MT_F64 ? MT_F64 : MT_F32;
        int64_t n = sizes[k % 8], skip = k % 5 == 0, *shape = &n;
        t->p[k] = mtt_twin_make(pair, narrow, 1, shape, MTT_PLACED_DENSE, skip, -1, 1);
        bool wide_grad = momentum && mt_dtype_size(narrow) == 2 && k % 3 == 1;
        mt_dtype grad = wide_grad ? wide : narrow;
        t->g[k] = mtt_twin_make(pair, grad, 1, shape, MTT_PLACED_DENSE, k % 11 == 0, -2, 1);
        bool few_bits = narrow_moments && mt_dtype_size(narrow) == 2 && k % 2;
        mt_dtype moment = few_bits ? narrow : wide;
        t->m[k] = mtt_twin_make(pair, moment, 1, shape, MTT_PLACED_DENSE, 0, -1, 2);
        t->v[k] = mtt_twin_make(pair, moment, 1, shape, MTT_PLACED_DENSE, skip, 0.01, 1);
        t->master[k] = mtt_twin_make(pair, wide, 1, shape, MTT_PLACED_DENSE, k % 7 == 0, -1, 1);
        bool master = mt_dtype_size(narrow) == 2 && k % 3 == 0;
        t->host[k] = (mti_opt_item){.n = n,
                                    .dtype = narrow,
                                    .p = t->p[k].host.data,
                                    .g = t->g[k].host.data,
                                    .wide_grad = wide_grad,
                                    .m = momentum ? t->m[k].host.data : NULL,
                                    .v = t->v[k].host.data,
                                    .moments = few_bits ? MTI_MOMENTS_NARROW : MTI_MOMENTS_WIDE,
                                    .master = master ? t->master[k].host.data : NULL,
                                    .weight_decay = 0.01 * k};
        t->dev[k] = t->host[k];
        t->dev[k].p = t->p[k].dev.data, t->dev[k].g = t->g[k].dev.data;
        t->dev[k].m = momentum ? t->m[k].dev.data : NULL, t->dev[k].v = t->v[k].dev.data;
        t->dev[k].master = master ? t->master[k].dev.data : NULL;
    }
    return t;
}

static void check_and_drop(const mtt_pair *pair, tensors *t)
{
    for (int k = 0; k < N_ITEMS; k++) {
        double wide = t->host[k].dtype == MT_F64 ? 8 * 0x1p-52 : 8 * 0x1p-23;
        mtt_twin_check(pair, &t->p[k], wide + mtt_epsilon(t->host[k].dtype), "p");
        mtt_twin_check(pair, &t->g[k], 0, "g");
        /* SGD adds decay * p to the gradient, and the step before may have rounded a p between two
         * 16-bit numbers the other way. */
        double decayed = t->host[k].weight_decay * mtt_epsilon(t->host[k].dtype);
        double moment = t->host[k].moments ? wide + mtt_epsilon(t->host[k].dtype) : wide;
        mtt_twin_check(pair, &t->m[k], moment + decayed, "m");
        mtt_twin_check(pair, &t->v[k], moment, "v");
        mtt_twin_check(pair, &t->master[k], wide, "master");
        mtt_twin_drop(pair, &t->p[k]), mtt_twin_drop(pair, &t->g[k]);
        mtt_twin_drop(pair, &t->m[k]), mtt_twin_drop(pair, &t->v[k]);
        mtt_twin_drop(pair, &t->master[k]);
    }
    free(t);
}

static void adamw_steps_match_the_cpu(void **state)
{
    mtt_pair *p = *state;
    for (int d = 0; d <= 4; d++) {
        tensors *t = make(p, d < 4 ? mtt_floats[d] : MT_DTYPE_COUNT, true, d > 1);
        for (int64_t step = 1; step <= 2; step++) {
            mti_opt_params o = {.lr = 0.01, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .step = step};
            if (d % 2) o.grad_scale = 0.25;
            mtt_ok(p->cpu->adamw(p->cpu_ctx, &o, N_ITEMS, t->host), "adamw");
            mtt_ok(p->dev->adamw(p->dev_ctx, &o, N_ITEMS, t->dev), "adamw");
        }
        check_and_drop(p, t);
    }
}

/* A rule's sums round where it says, with fma: of a b + c d a compiler may round either product
 * first, and another one in each kernel, so that kernels of one rule would differ. */
static void adamw_rounds_where_its_rule_says(void **state)
{
    mtt_pair *pair = *state;
    tensors *t = make(pair, MT_F32, true, false);
    const mti_opt_params o = {
        .lr = 0.01, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .grad_scale = 0.3, .step = 3};
    float b1 = (float)0.9, a1 = (float)(1 - 0.9), b2 = (float)0.95, a2 = (float)(1 - 0.95);
    float rate = (float)(0.01 / (1 - pow(0.9, 3))), eps = (float)1e-8;
    float root_scale = (float)(1 / sqrt(1 - pow(0.95, 3)));
    for (int k = 0; k < N_ITEMS; k++) {
        float *p = t->host[k].p, *m = t->host[k].m, *v = t->host[k].v;
        float keep = fmaf(-(float)0.01, (float)t->host[k].weight_decay, 1);
        for (int64_t i = 0; i < t->host[k].n; i++) {
            float g = (float)0.3 * ((const float *)t->host[k].g)[i];
            m[i] = fmaf(b1, m[i], a1 * g);
            v[i] = fmaf(b2, v[i], a2 * g * g);
            p[i] = fmaf(keep, p[i], -(rate * m[i] / fmaf(sqrtf(v[i]), root_scale, eps)));
        }
    }
    mtt_ok(pair->dev->adamw(pair->dev_ctx, &o, N_ITEMS, t->dev), "adamw");
    for (int k = 0; k < N_ITEMS; k++) {
        mtt_twin_check(pair, &t->m[k], 0, "m");
        mtt_twin_check(pair, &t->v[k], 0, "v");
        mtt_twin_check(pair, &t->p[k], 0, "p");
    }
    check_and_drop(pair, t);
}

static void sgd_rounds_where_its_rule_says(void **state)
{
    mtt_pair *pair = *state;
    tensors *t = make(pair, MT_F32, true, false);
    const mti_opt_params o = {.lr = 0.1, .momentum = 0.9, .grad_scale = 0.3, .step = 3};
    for (int k = 0; k < N_ITEMS; k++) {
        float *p = t->host[k].p, *m = t->host[k].m, decay = (float)t->host[k].weight_decay;
        for (int64_t i = 0; i < t->host[k].n; i++) {
            float g = fmaf((float)0.3, ((const float *)t->host[k].g)[i], decay * p[i]);
            m[i] = fmaf((float)0.9, m[i], g);
            p[i] = fmaf(-(float)0.1, m[i], p[i]);
        }
    }
    mtt_ok(pair->dev->sgd(pair->dev_ctx, &o, N_ITEMS, t->dev), "sgd");
    for (int k = 0; k < N_ITEMS; k++) {
        mtt_twin_check(pair, &t->m[k], 0, "m");
        mtt_twin_check(pair, &t->p[k], 0, "p");
    }
    check_and_drop(pair, t);
}

static void sgd_steps_match_the_cpu_with_and_without_momentum(void **state)
{
    mtt_pair *p = *state;
    for (int d = 0; d <= 4; d++)
        for (int momentum = 0; momentum < 2; momentum++) {
            tensors *t = make(p, d < 4 ? mtt_floats[d] : MT_DTYPE_COUNT, momentum, false);
            for (int k = 0; k < N_ITEMS && momentum; k++) { /* before step 1 momentum is not read */
                if (t->host[k].n) mtt_set(&t->m[k].host, 0, (double)NAN);
                mtt_twin_push(p, &t->m[k]);
            }
            for (int64_t step = 1; step <= 2; step++) {
                mti_opt_params o = {.lr = 0.1, .momentum = 0.9 * momentum, .step = step};
                if (d % 2) o.grad_scale = 0.25;
                mtt_ok(p->cpu->sgd(p->cpu_ctx, &o, N_ITEMS, t->host), "sgd");
                mtt_ok(p->dev->sgd(p->dev_ctx, &o, N_ITEMS, t->dev), "sgd");
            }
            check_and_drop(p, t);
        }
}

static void lion_steps_match_the_cpu(void **state)
{
    mtt_pair *p = *state;
    for (int d = 0; d <= 4; d++) {
        tensors *t = make(p, d < 4 ? mtt_floats[d] : MT_DTYPE_COUNT, true, false);
        for (int64_t step = 1; step <= 2; step++) {
            mti_opt_params o = {.lr = 0.01, .beta1 = 0.9, .beta2 = 0.99, .step = step};
            if (d % 2) o.grad_scale = 0.25;
            mtt_ok(p->cpu->lion(p->cpu_ctx, &o, N_ITEMS, t->host), "lion");
            mtt_ok(p->dev->lion(p->dev_ctx, &o, N_ITEMS, t->dev), "lion");
        }
        check_and_drop(p, t);
    }
}

static void lion_rounds_where_its_rule_says(void **state)
{
    mtt_pair *pair = *state;
    tensors *t = make(pair, MT_F32, true, false);
    const mti_opt_params o = {
        .lr = 0.01, .beta1 = 0.9, .beta2 = 0.99, .grad_scale = 0.3, .step = 3};
    float b1 = (float)0.9, a1 = (float)(1 - 0.9), b2 = (float)0.99, a2 = (float)(1 - 0.99);
    for (int k = 0; k < N_ITEMS; k++) {
        float *p = t->host[k].p, *m = t->host[k].m;
        float keep = fmaf(-(float)0.01, (float)t->host[k].weight_decay, 1);
        for (int64_t i = 0; i < t->host[k].n; i++) {
            float g = (float)0.3 * ((const float *)t->host[k].g)[i], c = fmaf(b1, m[i], a1 * g);
            m[i] = fmaf(b2, m[i], a2 * g);
            p[i] = fmaf(keep, p[i], -((float)0.01 * (float)((c > 0) - (c < 0))));
        }
    }
    mtt_ok(pair->dev->lion(pair->dev_ctx, &o, N_ITEMS, t->dev), "lion");
    for (int k = 0; k < N_ITEMS; k++) {
        mtt_twin_check(pair, &t->m[k], 0, "m");
        mtt_twin_check(pair, &t->p[k], 0, "p");
    }
    check_and_drop(pair, t);
}

#define N_FACTORED 60 /* more than one launch covers */

/* Matrices with more rows and columns than a tile, batches of them, vectors, none. */
static void adafactor_steps_match_the_cpu(void **state)
{
    mtt_pair *p = *state;
    const int64_t shapes[][3] = {{1, 3, 5},    {1, 130, 7},   {0, 1, 600}, {1, 5, 1030},
                                 {3, 4, 6},    {1, 0, 4},     {0, 1, 3},   {1, 1, 9},
                                 {2, 129, 33}, {1, 300, 520}, {1, 64, 64}, {0, 1, 1}};
    mtt_twin param[N_FACTORED], g[N_FACTORED], row[N_FACTORED], col[N_FACTORED], master[N_FACTORED];
    mti_opt_item host[N_FACTORED], dev[N_FACTORED];
    for (int k = 0; k < N_FACTORED; k++) {
        const int64_t *s = shapes[k % 12], one = 1;
        int64_t batch = s[0] ? s[0] : 1, n = batch * s[1] * s[2];
        int64_t n_rows = batch * s[1], n_columns = batch * s[2];
        mt_dtype dtype = mtt_floats[k / 12 % 4], wide = dtype == MT_F64 ? MT_F64 : MT_F32;
        bool is_16 = mt_dtype_size(dtype) == 2, has_master = is_16 && k % 3 == 0;
        bool wide_grad = is_16 && k % 2, narrow = is_16 && !has_master;
        int64_t skip = k % 5 == 0;
        param[k] = mtt_twin_make(p, dtype, 1, &n, MTT_PLACED_DENSE, skip, -1, 1);
        g[k] =
            mtt_twin_make(p, wide_grad ? wide : dtype, 1, &n, MTT_PLACED_DENSE, k % 7 == 0, -2, 1);
        row[k] = mtt_twin_make(p, narrow ? dtype : wide, 1, s[0] ? &n_rows : &one, MTT_PLACED_DENSE,
                               skip, 0.1, 2);
        col[k] =
            mtt_twin_make(p, narrow ? dtype : wide, 1, &n_columns, MTT_PLACED_DENSE, 0, 0.1, 2);
        master[k] =
            mtt_twin_make(p, wide, 1, has_master ? &n : &one, MTT_PLACED_DENSE, skip, -1, 1);
        host[k] = (mti_opt_item){.n = n,
                                 .dtype = dtype,
                                 .p = param[k].host.data,
                                 .g = g[k].host.data,
                                 .wide_grad = wide_grad,
                                 .m = s[0] ? row[k].host.data : NULL,
                                 .v = col[k].host.data,
                                 .moments = narrow ? MTI_MOMENTS_NARROW : MTI_MOMENTS_WIDE,
                                 .rows = s[1],
                                 .columns = s[2],
                                 .master = has_master ? master[k].host.data : NULL,
                                 .weight_decay = 0.01 * k};
        dev[k] = host[k];
        dev[k].p = param[k].dev.data, dev[k].g = g[k].dev.data, dev[k].v = col[k].dev.data;
        if (s[0]) dev[k].m = row[k].dev.data;
        if (has_master) dev[k].master = master[k].dev.data;
    }
    void *here = malloc(p->cpu->adafactor_scratch(p->cpu_ctx, N_FACTORED, host));
    size_t n_bytes = p->dev->adafactor_scratch(p->dev_ctx, N_FACTORED, dev);
    void *there = p->dev->alloc(p->dev_ctx, n_bytes);
    assert_true(here && there);
    for (int64_t step = 3; step <= 4; step++) {
        mti_opt_params o = {.lr = 0.4,
                            .beta2_decay = -0.8,
                            .eps2 = 1e-3,
                            .clip = 1,
                            .grad_scale = 0.25,
                            .step = step};
        mtt_ok(p->cpu->adafactor(p->cpu_ctx, &o, N_FACTORED, host, here), "adafactor");
        mtt_ok(p->dev->adafactor(p->dev_ctx, &o, N_FACTORED, dev, there), "adafactor");
    }
    for (int k = 0; k < N_FACTORED; k++) {
        double wide = host[k].dtype == MT_F64 ? 0x1p-46 : 0x1p-17;
        double own = wide + 2 * mtt_epsilon(host[k].dtype);
        mtt_twin_check(p, &param[k], own, "p"), mtt_twin_check(p, &g[k], 0, "g");
        mtt_twin_check(p, &row[k], host[k].moments ? own : wide, "row");
        mtt_twin_check(p, &col[k], host[k].moments ? own : wide, "col");
        mtt_twin_check(p, &master[k], host[k].moments ? 0 : wide, "master");
        mtt_twin_drop(p, &param[k]), mtt_twin_drop(p, &g[k]), mtt_twin_drop(p, &row[k]);
        mtt_twin_drop(p, &col[k]), mtt_twin_drop(p, &master[k]);
    }
    p->dev->free(p->dev_ctx, there, n_bytes);
    free(here);
}

static void clipping_measures_and_scales_as_the_cpu_does(void **state)
{
    mtt_pair *p = *state;
    for (int d = 0; d <= 4; d++) {
        tensors *t = make(p, d < 4 ? mtt_floats[d] : MT_DTYPE_COUNT, false, false);
        double want, got, again;
        mtt_ok(p->cpu->sum_squares(p->cpu_ctx, N_ITEMS, t->host, &want), "sum_squares");
        mtt_ok(p->dev->sum_squares(p->dev_ctx, N_ITEMS, t->dev, &got), "sum_squares");
        mtt_ok(p->dev->sum_squares(p->dev_ctx, N_ITEMS, t->dev, &again), "sum_squares");
        mtt_close(got, want, 1e-12, "sum of squares", 0);
        assert_true(got == again);
        mtt_ok(p->cpu->scale_all(p->cpu_ctx, 0.3, N_ITEMS, t->host), "scale");
        mtt_ok(p->dev->scale_all(p->dev_ctx, 0.3, N_ITEMS, t->dev), "scale");
        check_and_drop(p, t);
    }
    double none = 1;
    mtt_ok(p->dev->sum_squares(p->dev_ctx, 0, NULL, &none), "sum_squares");
    assert_true(none == 0);
}

/* More chunks than there is room for partial sums. */
static void squares_of_a_large_tensor_are_all_counted(void **state)
{
    mtt_pair *p = *state;
    const int64_t n = 1100 * 8192 + 5;
    mtt_twin g = mtt_twin_make(p, MT_BF16, 1, &n, MTT_PLACED_DENSE, 0, 0, 1);
    mtt_ok(p->dev->fill(p->dev_ctx, &g.dev, 3), "fill");
    const mti_opt_item item = {.n = n, .dtype = MT_BF16, .g = g.dev.data};
    double got;
    mtt_ok(p->dev->sum_squares(p->dev_ctx, 1, &item, &got), "sum_squares");
    assert_true(got == 9.0 * (double)n);
    mtt_twin_drop(p, &g);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(adamw_steps_match_the_cpu),
        cmocka_unit_test(adamw_rounds_where_its_rule_says),
        cmocka_unit_test(sgd_rounds_where_its_rule_says),
        cmocka_unit_test(sgd_steps_match_the_cpu_with_and_without_momentum),
        cmocka_unit_test(lion_steps_match_the_cpu),
        cmocka_unit_test(lion_rounds_where_its_rule_says),
        cmocka_unit_test(adafactor_steps_match_the_cpu),
        cmocka_unit_test(clipping_measures_and_scales_as_the_cpu_does),
        cmocka_unit_test(squares_of_a_large_tensor_are_all_counted),
    };
    return cmocka_run_group_tests(tests, mtt_open, mtt_close_pair);
}

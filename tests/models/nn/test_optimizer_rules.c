/* Each optimizer against a reference in f64. */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "optim/optim.h"
#include "two_params.h"

static void adamw_follows_the_reference(void **state)
{
    (void)state;
    const struct {
        mt_dtype dtype;
        bool matrices_only;
        double tolerance;
    } cases[] = {{MT_F64, false, 1e-14}, {MT_F64, true, 1e-14}, {MT_F32, false, 1e-6}};
    for (size_t k = 0; k < sizeof cases / sizeof cases[0]; k++) {
        mt_module *m = two_params(cases[k].dtype, 1);
        mt_optimizer *o =
            mt_adamw_new(m, &(mt_adamw_options){.lr = 0.01,
                                                .beta1 = 0.8,
                                                .beta2 = 0.95,
                                                .eps = 1e-6,
                                                .weight_decay = 0.1,
                                                .decay_matrices_only = cases[k].matrices_only});
        assert_non_null(o);
        double p[2][N], mean[2][N] = {{0}}, square[2][N] = {{0}};
        mt_tensor *param[] = {mt_module_param(m, "matrix"), mt_module_param(m, "vector")};
        for (int j = 0; j < 2; j++) {
            double *at = mtt_doubles(param[j]);
            memcpy(p[j], at, sizeof p[j]);
            free(at);
        }
        for (int t = 1; t <= 10; t++) {
            double lr = 0.01 / t;
            mtt_ok(mt_optimizer_set_lr(o, lr));
            for (int j = 0; j < 2; j++) {
                double g[N];
                draw((uint64_t)(100 * t + j), g);
                if (cases[k].dtype == MT_F32)
                    for (int i = 0; i < N; i++) g[i] = (float)g[i];
                set_grad(param[j], g);
                double decay = j && cases[k].matrices_only ? 0 : 0.1;
                reference_adamw(p[j], g, mean[j], square[j], t, lr, 0.8, 0.95, 1e-6, decay);
            }
            mtt_ok(mt_optimizer_step(o));
            for (int j = 0; j < 2; j++) assert_near(param[j], p[j], cases[k].tolerance);
        }
        mt_optimizer_free(o);
        mt_module_free(m);
    }
}

/* Chen et al. 2023, algorithm 2; in 16 bits the master is stepped, and the parameter its rounding.
 */
static void lion_follows_the_reference(void **state)
{
    (void)state;
    const mt_dtype dtypes[] = {MT_F64, MT_F32, MT_BF16};
    for (int k = 0; k < 3; k++) {
        mt_dtype dtype = dtypes[k];
        double tolerance = k ? 2e-6 : 1e-14;
        mt_module *m = two_params(dtype, 1);
        mt_optimizer *o = mt_lion_new(m, &(mt_lion_options){.lr = 0.01,
                                                            .beta1 = 0.8,
                                                            .beta2 = 0.95,
                                                            .weight_decay = 0.1,
                                                            .decay_matrices_only = true,
                                                            .master = true});
        assert_non_null(o);
        assert_string_equal(mt_optimizer_kind(o), "lion");
        double p[2][N], mean[2][N] = {{0}};
        mt_tensor *param[] = {mt_module_param(m, "matrix"), mt_module_param(m, "vector")};
        for (int j = 0; j < 2; j++) {
            double *at = mtt_doubles(param[j]);
            memcpy(p[j], at, sizeof p[j]);
            free(at);
        }
        for (int t = 1; t <= 10; t++) {
            for (int j = 0; j < 2; j++) {
                double g[N];
                draw((uint64_t)(100 * t + j), g);
                set_grad(param[j], g);
                double *given = mtt_doubles(mt_grad(param[j]));
                for (int i = 0; i < N; i++) {
                    double c = 0.8 * mean[j][i] + 0.2 * given[i], sign = (c > 0) - (c < 0);
                    p[j][i] = p[j][i] * (j ? 1 : 1 - 0.01 * 0.1) - 0.01 * sign;
                    mean[j][i] = 0.95 * mean[j][i] + 0.05 * given[i];
                }
                free(given);
            }
            mtt_ok(mt_optimizer_step(o));
        }
        assert_int_equal(mt_optimizer_state_count(o), k == 2 ? 4 : 2);
        for (size_t i = 0; i < mt_optimizer_state_count(o); i++) {
            mt_optimizer_entry e;
            mtt_ok(mt_optimizer_state(o, i, &e));
            int j = !strcmp(e.param, "vector");
            assert_int_equal(mt_dtype_of(e.tensor), dtype == MT_F64 ? MT_F64 : MT_F32);
            assert_near(e.tensor, strcmp(e.name, "m") ? p[j] : mean[j], tolerance);
        }
        for (int j = 0; j < 2; j++) assert_near(param[j], p[j], k == 2 ? 0x1p-8 : tolerance);
        mt_optimizer_free(o);
        mt_module_free(m);
    }
    assert_null(mt_lion_new(NULL, NULL));
    mtt_failed(MT_ERR_ARGUMENT, "lion: the options are NULL");
    mt_module *m = two_params(MT_F32, 1);
    assert_null(mt_lion_new(m, &(mt_lion_options){.beta2 = 1}));
    mtt_failed(MT_ERR_ARGUMENT, "lion: beta2 is 1; need 0 <= beta2 < 1");
    mt_module_free(m);
}

/* Hidden matrices are Muon's, experts' stacks of them, too; the embeddings, of which one is the
 * head, norms and biases AdamW's, with its learning rate. State is in the parameters' type, or in
 * f32 beside masters. */
static void muon_leaves_to_adamw_what_is_no_hidden_matrix(void **state)
{
    (void)state;
    for (int master = 0; master < 2; master++) {
        mt_model_config c = {.kind = MT_MODEL_LLAMA,
                             .hidden = 8,
                             .heads = 2,
                             .layers = 1,
                             .vocab = 11,
                             .context = 4,
                             .experts = master ? 3 : 0,
                             .experts_per_token = master ? 2 : 0,
                             .dtype = MT_BF16};
        mt_module *m = mt_model_new(device, &c);
        assert_non_null(m);
        mt_optimizer *o =
            mt_muon_new(m, &(mt_muon_options){.lr = 0.02, .adamw_lr = 0.01, .master = master});
        assert_non_null(o);
        assert_string_equal(mt_optimizer_kind(o), "muon");
        const mt_named_tensor *list;
        size_t n, matrices = 0;
        mtt_ok(mt_module_params(m, &list, &n));
        for (size_t i = 0; i < n; i++) {
            mt_tensor *g = mtt_made(
                mt_full(device, MT_BF16, mt_rank(list[i].tensor), mt_shape(list[i].tensor), 1));
            mtt_ok(mt_set_grad(list[i].tensor, g));
            mt_release(g);
        }
        mt_tensor *table = mt_module_param(mt_module_child(m, "wte"), "weight");
        double *before = mtt_doubles(table);
        mtt_ok(mt_optimizer_step(o));
        for (size_t i = 0; i < mt_optimizer_state_count(o); i++) {
            mt_optimizer_entry e;
            mtt_ok(mt_optimizer_state(o, i, &e));
            bool hidden = strstr(e.param, "h.0.") == e.param && !strstr(e.param, "ln_");
            if (strcmp(e.name, "master")) assert_int_equal(hidden, !strcmp(e.name, "momentum"));
            matrices += !strcmp(e.name, "momentum");
            assert_int_equal(mt_dtype_of(e.tensor), master ? MT_F32 : MT_BF16);
            if (!strcmp(e.param, "wte.weight") && !strcmp(e.name, "master")) {
                double *after = mtt_doubles(e.tensor); /* AdamW's first step is its lr */
                for (int k = 0; k < 11 * 8; k++)
                    assert_true(fabs(before[k] - after[k] - 0.01) < 1e-6);
                free(after);
            }
        }
        assert_true(matrices >= 5);
        free(before);
        mt_optimizer_free(o), mt_module_free(m);
    }
    assert_null(mt_muon_new(NULL, NULL));
    mtt_failed(MT_ERR_ARGUMENT, "muon: the options are NULL");
    mt_module *m = two_params(MT_F32, 1);
    assert_null(mt_muon_new(m, &(mt_muon_options){.adjust = 2}));
    mtt_failed(MT_ERR_ARGUMENT, "muon: adjust is 2; need an mt_muon_adjust");
    assert_null(mt_muon_new(m, &(mt_muon_options){.adamw_lr = -1}));
    mtt_failed(MT_ERR_ARGUMENT, "muon: adamw_lr is -1; need 0 <= adamw_lr");
    mt_module_free(m);
}

static double root_mean_square(const double *x, int n)
{
    double sum = 0;
    for (int i = 0; i < n; i++) sum += x[i] * x[i];
    return sqrt(sum / n);
}

/* Shazeer & Stern 2018 as torch.optim.Adafactor has it: r[rows], c[columns], or v[N] of a vector.
 */
static void reference_adafactor(double p[N], const double g[N], double *r, double *c, int rows,
                                int t, double lr, double eps, double decay)
{
    int columns = N / rows;
    double weight = pow(t, -0.8), rate = fmin(lr, 1 / sqrt(t)), mean = 0, u[N];
    double alpha = fmax(1e-3, root_mean_square(p, N)) * rate;
    for (int i = 0; i < rows && r; i++) {
        double sum = 0;
        for (int j = 0; j < columns; j++) sum += pow(g[i * columns + j], 2);
        r[i] += weight * (sum / columns - r[i]);
        mean += r[i] / rows;
    }
    for (int j = 0; j < columns; j++) {
        double sum = 0;
        for (int i = 0; i < rows; i++) sum += pow(g[i * columns + j], 2);
        c[j] += weight * (sum / rows - c[j]);
    }
    for (int i = 0; i < N; i++) {
        double v = r ? r[i / columns] * c[i % columns] / fmax(mean, eps) : c[i];
        u[i] = g[i] / sqrt(fmax(v, eps * eps));
    }
    double clipped = fmax(1, root_mean_square(u, N));
    for (int i = 0; i < N; i++) p[i] = p[i] * (1 - lr * decay) - alpha * u[i] / clipped;
}

static void adafactor_follows_the_reference(void **state)
{
    (void)state;
    const mt_dtype dtypes[] = {MT_F64, MT_F32};
    for (int k = 0; k < 4; k++) {
        mt_dtype dtype = dtypes[k % 2];
        double least = dtype == MT_F64 ? 0x1p-52 : 0x1p-23, tolerance = k % 2 ? 2e-6 : 1e-14;
        if (k > 1) least = 0.3; /* both bounds are reached */
        mt_module *m = two_params(dtype, 1);
        mt_optimizer *o = mt_adafactor_new(
            m, &(mt_adafactor_options){.lr = 0.5, .eps1 = k > 1 ? 0.3 : 0, .weight_decay = 0.1});
        assert_non_null(o);
        double p[2][N], r[2] = {0}, c[3] = {0}, v[N] = {0};
        mt_tensor *param[] = {mt_module_param(m, "matrix"), mt_module_param(m, "vector")};
        for (int j = 0; j < 2; j++) {
            double *at = mtt_doubles(param[j]);
            memcpy(p[j], at, sizeof p[j]);
            free(at);
        }
        for (int t = 1; t <= 10; t++) {
            for (int j = 0; j < 2; j++) {
                double g[N];
                draw((uint64_t)(100 * t + j), g);
                for (int i = 0; i < N && dtype == MT_F32; i++) g[i] = (float)g[i];
                set_grad(param[j], g);
                reference_adafactor(p[j], g, j ? NULL : r, j ? v : c, j ? 1 : 2, t, 0.5, least,
                                    0.1);
            }
            mtt_ok(mt_optimizer_step(o));
            for (int j = 0; j < 2; j++) assert_near(param[j], p[j], tolerance);
        }
        mt_optimizer_free(o);
        mt_module_free(m);
    }
}

/* A matrix has a number for each row and column, in the dtype of the parameter or its master. */
static void adafactor_keeps_rows_and_columns(void **state)
{
    (void)state;
    const double g[N] = {1, 2, 3, 4, 5, 6};
    const mt_dtype dtypes[] = {MT_BF16, MT_F16, MT_F32, MT_F64};
    for (int k = 0; k < 8; k++) {
        mt_dtype dtype = dtypes[k % 4];
        bool master = k / 4, has_master = master && k % 4 < 2;
        mt_module *m = two_params(dtype, 3);
        mt_optimizer *o =
            mt_adafactor_new(m, &(mt_adafactor_options){.lr = 1e-2, .master = master});
        set_grad(mt_module_param(m, "matrix"), g);
        set_grad(mt_module_param(m, "vector"), g);
        mtt_ok(mt_optimizer_step(o));
        const struct {
            const char *name;
            int rank;
            int64_t shape[2];
        } want[] = {{"row_var", 2, {2, 1}},
                    {"col_var", 2, {1, 3}},
                    {"master", 2, {2, 3}},
                    {"variance", 1, {6}},
                    {"master", 1, {6}}};
        size_t n = 0;
        int64_t bytes = 0;
        for (size_t i = 0; i < 5; i++) {
            if (!has_master && !strcmp(want[i].name, "master")) continue;
            mt_optimizer_entry e;
            mtt_ok(mt_optimizer_state(o, n++, &e));
            assert_string_equal(e.name, want[i].name);
            assert_int_equal(mt_rank(e.tensor), want[i].rank);
            for (int d = 0; d < want[i].rank; d++)
                assert_int_equal(mt_shape(e.tensor)[d], want[i].shape[d]);
            assert_int_equal(mt_dtype_of(e.tensor), has_master ? MT_F32 : dtype);
            if (strcmp(e.name, "master")) bytes += (int64_t)mt_storage_of(e.tensor).bytes;
        }
        assert_int_equal(mt_optimizer_state_count(o), n);
        assert_int_equal(bytes, mt_adafactor_bytes(dtype, 2, (int64_t[]){2, 3}, master) +
                                    mt_adafactor_bytes(dtype, 1, (int64_t[]){6}, master));
        mt_optimizer_free(o);
        mt_module_free(m);
    }
}

static void adafactor_refuses_what_it_cannot_do(void **state)
{
    (void)state;
    mt_module *m = two_params(MT_F32, 3);
    const struct {
        mt_adafactor_options options;
        const char *text;
    } cases[] = {{{.lr = -1}, "lr is -1"},
                 {{.beta2_decay = 0.5}, "-beta2_decay is -0.5"},
                 {{.eps1 = -1}, "eps1 is -1"},
                 {{.eps2 = (double)NAN}, "eps2 is nan"},
                 {{.clip = 0.5}, "clip is 0.5; need 1 <= clip"},
                 {{.weight_decay = -1}, "weight_decay is -1"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        assert_null(mt_adafactor_new(m, &cases[i].options));
        mtt_failed(MT_ERR_ARGUMENT, "adafactor", cases[i].text);
    }
    assert_null(mt_adafactor_new(m, NULL));
    mtt_failed(MT_ERR_ARGUMENT, "adafactor: the options are NULL");
    mt_module_free(m);
}

static void sgd_follows_the_reference(void **state)
{
    (void)state;
    const double momenta[] = {0, 0.9};
    for (int k = 0; k < 2; k++) {
        mt_module *m = two_params(MT_F64, 2);
        mt_tensor *param = mt_module_param(m, "matrix");
        mt_optimizer *o = mt_sgd_new(
            m, &(mt_sgd_options){.lr = 0.1, .momentum = momenta[k], .weight_decay = 0.01});
        double *p = mtt_doubles(param), buffer[N] = {0};
        for (int t = 1; t <= 5; t++) {
            double g[N];
            draw((uint64_t)t, g);
            set_grad(param, g);
            mtt_ok(mt_optimizer_step(o));
            for (int i = 0; i < N; i++) {
                double d = g[i] + 0.01 * p[i];
                buffer[i] = t == 1 ? d : momenta[k] * buffer[i] + d;
                p[i] -= 0.1 * (momenta[k] > 0 ? buffer[i] : d);
            }
            assert_near(param, p, 1e-14);
        }
        /* Only the parameter with a gradient has state. */
        assert_int_equal(mt_optimizer_state_count(o), momenta[k] > 0);
        free(p);
        mt_optimizer_free(o);
        mt_module_free(m);
    }
}

/* ---- rules in tensors ---- */

/* Numbers of few bits: with figures of few bits no product or sum of theirs is rounded in f64. */
static void draw_short(uint64_t seed, double g[N])
{
    for (int i = 0; i < N; i++) g[i] = floor(mtt_draw(&seed, -8, 8)) / 4;
}

static mt_optimizer *with_short_figures(mti_optimizer_choice choice, mt_module *m, bool by_rule)
{
    mt_optimizer *o = mti_optimizer_make(choice, m, 0.25, 0.5, true);
    assert_non_null(o);
    o->params.beta1 = 0.5, o->params.beta2 = 0.75, o->params.momentum = 0.5, o->params.eps = 0.125;
    o->params.others_lr = 2, o->params.eps2 = 1.25; /* some parameters are smaller, some larger */
    o->by_rule = by_rule;
    for (int j = 0; j < 2; j++) {
        mt_tensor *p = mt_module_param(m, j ? "vector" : "matrix");
        double x[N];
        draw_short((uint64_t)j + 50, x);
        MT_AUTO mt_tensor *at =
            mtt_from_doubles(device, mt_dtype_of(p), mt_rank(p), mt_shape(p), x);
        mtt_ok(mt_copy(p, at));
    }
    return o;
}

static void assert_same(mt_tensor *got, mt_tensor *want, double tolerance)
{
    double *a = mtt_doubles(got), *b = mtt_doubles(want);
    assert_int_equal(mt_dtype_of(got), mt_dtype_of(want));
    assert_int_equal(mt_numel(got), mt_numel(want));
    for (int64_t i = 0; i < mt_numel(got); i++)
        if (!(fabs(a[i] - b[i]) <= tolerance))
            fail_msg("element %d is %.17g, need %.17g", (int)i, a[i], b[i]);
    free(a), free(b);
}

/* By the kernel and by the rule: == in f64 where nothing is rounded, which is so without roots. */
static void compare_steps(mti_optimizer_choice choice, mt_dtype dtype, double tolerance)
{
    mt_module *m[2];
    mt_optimizer *o[2];
    for (int k = 0; k < 2; k++) {
        m[k] = two_params(dtype, 1);
        o[k] = with_short_figures(choice, m[k], k);
    }
    for (int t = 0; t < 4; t++)
        for (int k = 0; k < 2; k++) {
            for (int j = 0; j < 2; j++) {
                double g[N];
                draw_short((uint64_t)(10 * t + j), g);
                set_grad(mt_module_param(m[k], j ? "vector" : "matrix"), g);
            }
            mt_mem_reset_peak(device);
            mtt_ok(mti_optimizer_step_scaled(o[k], 0.5) ? MT_OK : mt_last_status());
            mt_mem_stats stats;
            mt_mem_get_stats(device, &stats);
            assert_int_equal(stats.at_peak[MT_ACTIVATION], 0);
            assert_true(!k || stats.at_peak[MT_TEMPORARY] > 0);
        }
    assert_int_equal(mt_optimizer_state_count(o[0]), mt_optimizer_state_count(o[1]));
    for (size_t i = 0; i < mt_optimizer_state_count(o[0]); i++) {
        mt_optimizer_entry kernel, rule;
        mtt_ok(mt_optimizer_state(o[0], i, &kernel));
        mtt_ok(mt_optimizer_state(o[1], i, &rule));
        assert_same(rule.tensor, kernel.tensor,
                    mt_dtype_size(mt_dtype_of(rule.tensor)) == 2 ? 0x1p-6 : tolerance);
    }
    for (int j = 0; j < 2; j++)
        assert_same(mt_module_param(m[1], j ? "vector" : "matrix"),
                    mt_module_param(m[0], j ? "vector" : "matrix"),
                    mt_dtype_size(dtype) == 2 ? 0x1p-6 : tolerance);
    for (int k = 0; k < 2; k++) mt_optimizer_free(o[k]), mt_module_free(m[k]);
}

static void kernels_take_the_steps_of_their_rules(void **state)
{
    (void)state;
    int compared = 0;
    for (mti_optimizer_choice c = MTI_OPT_NONE + 1; c < MTI_OPTIMIZERS; c++) {
        const mti_optimizer_row *row = mti_optimizer_row_of(c);
        const bool elsewhere =
            (row->paged || row->host) && strcmp(mt_device_kind(device), "cpu") != 0;
        if (!row->rule->tensors || !row->rule->step || elsewhere) continue;
        /* Muon's iteration is in bf16, whose sums may be rounded otherwise in another order. */
        const double least = row->rule->others ? 4e-3 : 0;
        compare_steps(c, MT_F64, fmax(least, row->n_state < 2 ? 0 : 1e-14));
        compare_steps(c, MT_F32, fmax(least, 4e-6));
        compare_steps(c, MT_BF16, fmax(least, 4e-6));
        compared++;
    }
    assert_true(compared >= 3);
}

/* What an optimizer is made of by name is its row. */
static void optimizers_have_names(void **state)
{
    (void)state;
    mt_module *m = two_params(MT_F32, 1);
    for (mti_optimizer_choice c = MTI_OPT_NONE + 1; c < MTI_OPTIMIZERS; c++) {
        mt_optimizer *o = mt_optimizer_new(mti_optimizer_name(c), m, 0, 0, false);
        assert_non_null(o);
        assert_string_equal(mt_optimizer_kind(o), mti_optimizer_row_of(c)->rule->name);
        assert_true(mt_optimizer_lr(o) == mti_optimizer_row_of(c)->params.lr);
        mt_optimizer_free(o);
    }
    assert_null(mt_optimizer_new("none", m, 0, 0, false));
    mtt_failed(MT_ERR_ARGUMENT, "optimizer_new", "none", "sgd");
    assert_null(mt_optimizer_new("adamv", m, 0, 0, false));
    mtt_failed(MT_ERR_ARGUMENT, "adamv", "adamw");
    assert_null(mt_optimizer_new(NULL, m, 0, 0, false));
    mtt_failed(MT_ERR_ARGUMENT, "optimizer_new: the name is NULL");
    mt_module_free(m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        mtt_test(adamw_follows_the_reference),
        mtt_test(lion_follows_the_reference),
        mtt_test(adafactor_follows_the_reference),
        mtt_test(adafactor_keeps_rows_and_columns),
        mtt_test(adafactor_refuses_what_it_cannot_do),
        mtt_test(sgd_follows_the_reference),
        mtt_test(muon_leaves_to_adamw_what_is_no_hidden_matrix),
        mtt_test(kernels_take_the_steps_of_their_rules),
        mtt_test(optimizers_have_names),
    };
    return cmocka_run_group_tests(tests, mtt_open_device, mtt_close_device);
}

/* Experts with a bound on their rows: values by hand, gradients by differences, what is kept. */
#include <math.h>
#include <string.h>
#include "base/base.h"
#include "mtt.h"
#include "mtt_fixture.h"
#include "memtape/models.h"
#include "memtape/ops.h"

enum { T = 10, D = 4, F = 3, E = 4, K = 2 };

static mt_model_config config_of(double capacity, bool padded)
{
    return (mt_model_config){.kind = MT_MODEL_MLP,
                             .hidden = D,
                             .ffn = F,
                             .experts = E,
                             .experts_per_token = K,
                             .dtype = MT_F64,
                             .ops.expert_form = MT_EXPERTS_MEGATRON,
                             .expert_capacity = capacity,
                             .expert_padding = padded};
}

typedef struct mixture {
    mt_module *m;
    mt_tensor *x, *w[4]; /* x, then router, gate and up, down: what has gradients */
    double data[4][E * 2 * F * D];
    size_t n[4];
} mixture;

static void read_all(mixture *s)
{
    for (int i = 0; i < 4; i++) {
        s->n[i] = (size_t)mt_numel(s->w[i]);
        mtt_ok(mt_to_host(s->w[i], s->data[i], s->n[i] * sizeof(double)));
    }
}

static mixture set_up(double capacity, bool padded)
{
    const mt_model_config c = config_of(capacity, padded);
    mixture s = {0};
    mt_seed(device, 5);
    s.m = mt_mlp_new(device, &c);
    s.x = mtt_made(mtt_random(device, MT_F64, MT_SHAPE(T, D), 3, -1, 1));
    mtt_ok(mt_set_requires_grad(s.x, true));
    s.w[0] = s.x;
    static const char *const paths[] = {"router", "experts_gate_up", "experts_down"};
    for (int i = 0; i < 3; i++) {
        s.w[i + 1] = mt_module_param(mt_module_child(s.m, paths[i]), "weight");
        MT_AUTO mt_tensor *wide = mtt_made(mtt_random(
            device, MT_F64, mt_rank(s.w[i + 1]), mt_shape(s.w[i + 1]), 7 + (uint64_t)i, -1, 1));
        mtt_ok(mt_copy(s.w[i + 1], wide));
    }
    read_all(&s);
    return s;
}

static void tear_down(mixture *s)
{
    mt_module_free(s->m);
    mt_release(s->x);
}

/* ---- by hand ---- */

static double dot(const double *a, const double *b, int n)
{
    double sum = 0;
    for (int i = 0; i < n; i++) sum += a[i] * b[i];
    return sum;
}

/* p[t][e]: the weights of the K that a token takes, else 0 */
static void weigh(const mixture *s, double p[T][E])
{
    for (int t = 0; t < T; t++) {
        double sum = 0;
        for (int e = 0; e < E; e++)
            sum += p[t][e] = exp(dot(s->data[0] + t * D, s->data[1] + e * D, D));
        double all[E];
        for (int e = 0; e < E; e++) all[e] = p[t][e] / sum;
        for (int e = 0; e < E; e++) {
            int larger = 0;
            for (int k = 0; k < E; k++) larger += all[k] > all[e];
            p[t][e] = larger < K ? all[e] : 0;
        }
    }
}

static int by_hand(const mixture *s, int most, double y[T][D])
{
    double p[T][E];
    int dropped = 0;
    weigh(s, p);
    for (int i = 0; i < T * D; i++) y[i / D][i % D] = 0;
    for (int e = 0; e < E; e++)
        for (int t = 0; t < T; t++) {
            int larger = 0;
            double h[F];
            if (p[t][e] == 0) continue;
            for (int k = 0; k < T; k++) larger += p[k][e] > p[t][e];
            dropped += larger >= most;
            if (larger >= most) continue;
            for (int f = 0; f < F; f++) {
                const double *w = s->data[2] + (e * 2 * F + f) * D, *x = s->data[0] + t * D;
                const double gate = dot(x, w, D), up = dot(x, w + F * D, D);
                h[f] = gate / (1 + exp(-gate)) * up * p[t][e];
            }
            for (int d = 0; d < D; d++) y[t][d] += dot(h, s->data[3] + (e * D + d) * F, F);
        }
    return dropped;
}

static void an_expert_takes_the_rows_with_the_largest_weights(void **state)
{
    (void)state;
    static const double factors[] = {0.2, 0.5, 1, 1.4, 10};
    for (int i = 0; i < 10; i++) {
        mixture s = set_up(factors[i / 2], i % 2);
        double wanted[T][D], got[T][D];
        const int most = (int)ceil((double)(T * K) / E * factors[i / 2]);
        const int dropped = by_hand(&s, most, wanted);
        assert_true(most < T / 2 ? dropped > 0 : most < T || dropped == 0);
        MT_AUTO mt_tensor *y = mtt_made(mt_forward(s.m, s.x));
        mtt_ok(mt_to_host(y, got, sizeof got));
        for (int k = 0; k < T * D; k++)
            assert_true(fabs(got[k / D][k % D] - wanted[k / D][k % D]) < 1e-12);
        tear_down(&s);
    }
}

static double loss_of(mixture *s, mt_tensor **loss)
{
    mt_tensor *y = mtt_made(mt_forward(s->m, s->x));
    mt_set(&y, mt_mul(y, y));
    mt_set(&y, mt_sum_all(y));
    const double value = mt_item(y);
    if (loss) *loss = y;
    if (!loss) mt_release(y);
    return value;
}

static void gradients_are_those_of_the_rows_that_are_left(void **state)
{
    (void)state;
    const double step = 1e-6;
    for (int padded = 0; padded < 2; padded++) {
        mixture s = set_up(0.6, padded);
        mt_tensor *loss;
        loss_of(&s, &loss);
        mtt_ok(mt_backward(loss));
        mt_release(loss);
        for (int i = 0; i < 4; i++) {
            double grad[E * 2 * F * D];
            mtt_ok(mt_to_host(mt_grad(s.w[i]), grad, s.n[i] * sizeof *grad));
            for (size_t k = 0; k < s.n[i]; k++) {
                double side[2];
                for (int j = 0; j < 2; j++) {
                    double moved[E * 2 * F * D];
                    memcpy(moved, s.data[i], sizeof moved);
                    moved[k] += j ? step : -step;
                    MT_AUTO mt_tensor *at =
                        mtt_made(mt_from_data(device, MT_F64, mt_rank(s.w[i]), mt_shape(s.w[i]),
                                              moved, s.n[i] * sizeof *moved));
                    const bool was = mt_set_grad_mode(false);
                    mtt_ok(mt_copy(s.w[i], at));
                    side[j] = loss_of(&s, NULL);
                    mt_set_grad_mode(was);
                }
                assert_true(fabs((side[1] - side[0]) / (2 * step) - grad[k]) <
                            1e-6 * (1 + fabs(grad[k])));
            }
            MT_AUTO mt_tensor *back =
                mtt_made(mt_from_data(device, MT_F64, mt_rank(s.w[i]), mt_shape(s.w[i]), s.data[i],
                                      s.n[i] * sizeof(double)));
            const bool was = mt_set_grad_mode(false);
            mtt_ok(mt_copy(s.w[i], back));
            mt_set_grad_mode(was);
        }
        tear_down(&s);
    }
}

static void any_allocation_may_fail(void **state)
{
    (void)state;
    mixture s = set_up(0.6, true);
    const size_t before = mtt_allocated(device);
    bool reached = true;
    for (uint64_t n = 1; reached; n = mtt_next_refusal(n)) {
        mti_fail_nth_alloc(n);
        mt_tensor *y = mt_forward(s.m, s.x);
        mt_set(&y, y ? mt_sum_all(y) : NULL);
        const bool ok = y && mt_backward(y) == MT_OK;
        reached = mti_alloc_count() >= n;
        mti_fail_nth_alloc(0);
        assert_true(ok || mt_last_status() == MT_ERR_MEMORY);
        mt_clear_error();
        mt_release(y);
        mtt_ok(mt_module_zero_grad(s.m));
        mtt_ok(mt_set_grad(s.x, NULL));
        assert_int_equal(mtt_allocated(device), before);
    }
    tear_down(&s);
}

static void a_bound_needs_megatrons_order(void **state)
{
    (void)state;
    mt_model_config c = config_of(1, false);
    c.ops.expert_form = MT_EXPERTS_TORCHTITAN;
    assert_null(mt_mlp_new(device, &c));
    mtt_failed(MT_ERR_ARGUMENT, "expert_capacity", "megatron");
    c = config_of(0, true);
    assert_null(mt_mlp_new(device, &c));
    mtt_failed(MT_ERR_ARGUMENT, "expert_padding", "expert_capacity");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        mtt_test(an_expert_takes_the_rows_with_the_largest_weights),
        mtt_test(gradients_are_those_of_the_rows_that_are_left),
        mtt_test(any_allocation_may_fail),
        mtt_test(a_bound_needs_megatrons_order),
    };
    return cmocka_run_group_tests(tests, mtt_open_device, mtt_close_device);
}

/* The f32 functions of scalar.h against the C library in f64: the largest errors that scalar.h
 * states, and the results for extreme inputs. */
#include "views.h"
#include <stdio.h>
#include "backends/scalar.h"

/* |got - want| in units of the last place of want as f32, at least the spacing of subnormals. */
static double ulps(float got, double want)
{
    float rounded = (float)want;
    if (got == rounded || (isnan(got) && isnan(rounded))) return 0;
    int e;
    frexp(want, &e);
    double unit = ldexp(1.0, e - 24 < -149 ? -149 : e - 24);
    return fabs((double)got - want) / unit;
}

/* The largest error over every 509th f32, with both signs, infinities and NaN. */
static double worst(float (*f)(float), double (*exact)(double), double smallest)
{
    double most = 0;
    for (uint64_t u = 0; u <= UINT32_MAX; u += 509) {
        float x = mti_f32_from_bits((uint32_t)u);
        double want = exact(x);
        if (fabs(want) < smallest && want != 0) continue;
        double d = ulps(f(x), want);
        if (!(d <= most)) most = d;
    }
    return most;
}

#define WORST_IS_UNDER(bound, f, exact, smallest) assert_true(worst(f, exact, smallest) < (bound))

static void exp_is_as_exact_as_stated(void **state)
{
    (void)state;
    WORST_IS_UNDER(1.1, mti_exp_f32, exp, 0);
}

static float falling_exp_f32(float x) { return mti_exp_nonpositive_f32(x > 0 ? -x : x); }
static double falling_exp_f64(double x) { return exp(x > 0 ? -x : x); }

static void exp_of_nonpositive_numbers_is_as_exact_and_ends_in_zero(void **state)
{
    (void)state;
    WORST_IS_UNDER(1.1, falling_exp_f32, falling_exp_f64, 0x1p-126);
    assert_true(mti_exp_nonpositive_f32(-88.0f) == 0.0f);
    assert_true(mti_exp_nonpositive_f32(-INFINITY) == 0.0f);
    assert_true(mti_exp_nonpositive_f32(0.0f) == 1.0f);
}

static void log_is_as_exact_as_stated(void **state)
{
    (void)state;
    WORST_IS_UNDER(0.8, mti_log_f32, log, 0);
}

static float cdf_f32(float x)
{
    float bell;
    return mti_normal_cdf_f32(x, &bell);
}
static double cdf_f64(double x) { return 0.5 * erfc(-x / sqrt(2.0)); }

static void the_normal_distribution_is_as_exact_as_stated(void **state)
{
    (void)state;
    double most = 0;
    for (float x = -8; x < 8; x += 1e-5f) {
        double d = fabs((double)cdf_f32(x) - cdf_f64((double)x));
        if (!(d <= most)) most = d;
    }
    assert_true(most < 1e-7);
}

static void tanh_is_as_exact_as_stated(void **state)
{
    (void)state;
    WORST_IS_UNDER(2.5, mti_tanh_f32, tanh, 0x1p-126);
}

static void sigmoid_is_as_exact_as_stated(void **state)
{
    (void)state;
    WORST_IS_UNDER(2.3, mti_sigmoid_f32, mti_sigmoid_f64, 0x1p-126);
}

static float gpu_exp(float x) { return mti_gpu_exp_nonpositive(x > 0 ? -x : x); }
static float gpu_cdf(float x)
{
    float bell;
    return mti_gpu_normal_cdf(x, &bell);
}

static float gpu_slope(float x)
{
    float slope;
    mti_gpu_sigmoid_slope(x, &slope);
    return slope;
}

static double slope_f64(double x)
{
    double e = exp(-fabs(x));
    return e / ((1 + e) * (1 + e));
}

/* The GPU's 2^x and 1/x add 2 and 1 units in the last place to these errors. */
static void the_gpus_functions_are_as_exact_as_its_instructions(void **state)
{
    (void)state;
    double most = 0;
    for (float x = -100; x <= 0; x += 1e-4f) {
        double want = exp((double)x), d = want < 0x1p-126 ? 0 : ulps(gpu_exp(x), want);
        if (!(d <= most)) most = d;
    }
    assert_true(most < 1.1);
    WORST_IS_UNDER(3.2, mti_gpu_sigmoid, mti_sigmoid_f64, 0x1p-126);
    WORST_IS_UNDER(5.2, gpu_slope, slope_f64, 0x1p-126); /* s (1 - s) loses it near 1 */
    most = 0;
    for (float x = -8; x < 8; x += 1e-5f) {
        double d = fabs((double)gpu_cdf(x) - cdf_f64((double)x));
        if (!(d <= most)) most = d;
    }
    assert_true(most < 1e-7);
    assert_true(mti_gpu_sigmoid(INFINITY) == 1.0f && mti_gpu_sigmoid(-INFINITY) == 0.0f);
    assert_true(mti_gpu_sigmoid(0.0f) == 0.5f && isnan(mti_gpu_sigmoid(NAN)));
    assert_true(gpu_cdf(0.0f) == 0.5f && gpu_cdf(INFINITY) == 1.0f && gpu_cdf(-INFINITY) == 0.0f);
}

static void results_for_extreme_inputs_are_exact(void **state)
{
    (void)state;
    assert_true(mti_exp_f32(-INFINITY) == 0.0f);
    assert_true(isinf(mti_exp_f32(INFINITY)));
    assert_true(mti_exp_f32(0.0f) == 1.0f);
    assert_true(mti_tanh_f32(INFINITY) == 1.0f && mti_tanh_f32(-INFINITY) == -1.0f);
    assert_true(cdf_f32(0.0f) == 0.5f);
    assert_true(cdf_f32(INFINITY) == 1.0f && cdf_f32(-INFINITY) == 0.0f);
    assert_true(mti_log_f32(0.0f) == -INFINITY && isnan(mti_log_f32(-1.0f)));
    assert_true(mti_log_f32(INFINITY) == INFINITY && mti_log_f32(1.0f) == 0.0f);
    assert_true(isnan(mti_exp_f32(NAN)) && isnan(mti_tanh_f32(NAN)));
    assert_true(isnan(mti_gelu_f32(NAN)) && isnan(mti_gelu_tanh_f32(NAN)) &&
                isnan(mti_silu_f32(NAN)));
}

static void box_muller_gives_the_textbook_pair(void **state)
{
    (void)state;
    for (uint32_t a = 0; a < 4000000000u; a += 39916801u)
        for (uint32_t b = 0; b < 4000000000u; b += 47916829u) {
            float first, second;
            mti_box_muller(a, b, &first, &second);
            double r = sqrt(-2 * log(1 - (double)mti_u32_to_unit(a)));
            double angle = 2 * acos(-1.0) * (double)mti_u32_to_unit(b);
            mtt_close(first, r * cos(angle), 2e-6, "first", a);
            mtt_close(second, r * sin(angle), 2e-6, "second", a);
        }
}

/* The largest error of cosine and sine at `n` positions up to `last`. */
static double worst_angle(int64_t last, int64_t n)
{
    const double theta = 10000;
    const int64_t d = 128;
    double most = 0;
    for (int64_t k = 0; k <= n; k++)
        for (int64_t i = 0; i < d / 2; i += 7) {
            double position = (double)(last - last * k / n);
            long double exact = powl((long double)theta, -2.0L * (long double)i / (long double)d);
            float c, s;
            mti_rope_turn_f32(position, mti_rope_frequency_f32(theta, i, d), &c, &s);
            most = fmax(most, fabs((double)c - (double)cosl((long double)position * exact)));
            most = fmax(most, fabs((double)s - (double)sinl((long double)position * exact)));
        }
    return most;
}

static void rotary_angles_are_as_exact_as_stated(void **state)
{
    (void)state;
    assert_true(worst_angle(4095, 4095) < 2e-7);
    assert_true(worst_angle((int64_t)1 << 24, 5000) < 2e-7);
    assert_true(worst_angle(INT32_MAX, 5000) < 1e-6);
    float c, s;
    mti_rope_turn_f32(0, mti_rope_frequency_f32(10000, 0, 2), &c, &s);
    assert_true(c == 1 && s == 0);
}

static void the_drop_threshold_counts_the_draws_below_p(void **state)
{
    (void)state;
    const double p[] = {0.0, 0.1, 0.25, 0.5, 0.9, 0.99, 1.0};
    for (size_t i = 0; i < sizeof p / sizeof *p; i++) {
        uint32_t t = mti_drop_threshold(p[i]);
        if (t > 0) assert_true((double)mti_u32_to_unit((t - 1) << 8) < p[i]);
        if (t < 1u << 24) assert_true((double)mti_u32_to_unit(t << 8) >= p[i]);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(exp_is_as_exact_as_stated),
        cmocka_unit_test(exp_of_nonpositive_numbers_is_as_exact_and_ends_in_zero),
        cmocka_unit_test(log_is_as_exact_as_stated),
        cmocka_unit_test(the_normal_distribution_is_as_exact_as_stated),
        cmocka_unit_test(tanh_is_as_exact_as_stated),
        cmocka_unit_test(sigmoid_is_as_exact_as_stated),
        cmocka_unit_test(the_gpus_functions_are_as_exact_as_its_instructions),
        cmocka_unit_test(results_for_extreme_inputs_are_exact),
        cmocka_unit_test(box_muller_gives_the_textbook_pair),
        cmocka_unit_test(rotary_angles_are_as_exact_as_stated),
        cmocka_unit_test(the_drop_threshold_counts_the_draws_below_p),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

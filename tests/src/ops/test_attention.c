/* Flash attention where scores are large. */
#include <math.h>
#include <stdlib.h>
#include "mtt_fixture.h"

enum { HEADS = 2, S = 70 };

/* [1,HEADS,S,d] in f64, of numbers that f32 holds: rows of noise of size 1, each with one element
 * near `large` if that is not 0. */
static mt_tensor *rows(int64_t d, double large, uint64_t seed)
{
    int64_t n = HEADS * S * d;
    double *values = malloc((size_t)n * sizeof *values);
    assert_non_null(values);
    for (int64_t i = 0; i < n; i++) {
        double one = i / d % S % d == i % d ? large : 0;
        values[i] = (double)(float)(one + mtt_draw(&seed, -1, 1));
    }
    mt_tensor *t = mtt_made(mtt_from_doubles(device, MT_F64, MT_SHAPE(1, HEADS, S, d), values));
    free(values);
    return t;
}

/* The gradients of q, k and v [3] in f64, computed in `dtype`. */
static void gradients(mt_dtype dtype, mt_tensor *const in[4], double scale, bool causal,
                      mt_tensor *grad[3])
{
    mt_tensor *x[4];
    for (int i = 0; i < 4; i++) x[i] = mtt_made(mt_cast(in[i], dtype));
    for (int i = 0; i < 3; i++) mtt_ok(mt_set_requires_grad(x[i], true));
    mt_tensor *y = mtt_made(mt_flash_attention(x[0], x[1], x[2], scale, causal, 0));
    mtt_ok(mt_backward_with(y, &(mt_backward_options){.gradient = x[3]}));
    for (int i = 0; i < 3; i++) grad[i] = mtt_made(mt_cast(mt_grad(x[i]), MT_F64));
    for (int i = 0; i < 4; i++) mt_release(x[i]);
    mt_release(y);
}

/* The largest difference, relative to the largest element. */
static double error(mt_tensor *a, mt_tensor *b)
{
    double *x = mtt_doubles(a), *y = mtt_doubles(b), off = 0, most = 0;
    for (int64_t i = 0; i < mt_numel(a); i++)
        off = fmax(off, fabs(x[i] - y[i])), most = fmax(most, fabs(y[i]));
    free(x);
    free(y);
    return off / most;
}

/* A score is rounded to 2^-24 of its size, and so is lse: no gradient can be nearer than that. But
 * a score that backward rounds otherwise than forward did is off by as much as its sum of d terms.
 */
static void a_large_score_costs_a_gradient_no_more_than_its_own_rounding(void **state)
{
    (void)state;
    static const int64_t widths[] = {24, 40, 64};
    for (int w = 0; w < 3; w++)
        for (int causal = 0; causal < 2; causal++)
            for (double score = 100; score < 2000; score *= 2.1) {
                double scale = 1 / sqrt((double)widths[w]), large = sqrt(score / scale);
                mt_tensor *in[4], *got[3], *want[3];
                for (int i = 0; i < 4; i++)
                    in[i] = rows(widths[w], i < 2 ? large : 0, (uint64_t)(i + 1));
                gradients(MT_F32, in, scale, causal, got);
                gradients(MT_F64, in, scale, causal, want);
                for (int i = 0; i < 3; i++) {
                    double off = error(got[i], want[i]), bound = 10 * score * 0x1p-24;
                    if (off > bound)
                        fail_msg(
                            "score %g, d %d, %s: the gradient of %c is off by %.2g, bound %.2g",
                            score, (int)widths[w], causal ? "causal" : "all", "qkv"[i], off, bound);
                    mt_release(got[i]), mt_release(want[i]);
                }
                for (int i = 0; i < 4; i++) mt_release(in[i]);
            }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        mtt_test(a_large_score_costs_a_gradient_no_more_than_its_own_rounding),
    };
    return cmocka_run_group_tests(tests, mtt_open_device, mtt_close_device);
}

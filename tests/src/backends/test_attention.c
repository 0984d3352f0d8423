/* Flash attention against its definition in f64. */
#include <stdarg.h>
#include <setjmp.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "backends/cpu/cpu.h"
#include "mtt_engine.h"
#include "attention_call.h"

/* Odd sizes, one block and several, more keys than queries and fewer, grouped heads; and every
 * width for which the tensor cores have a kernel. */
static const attention_sizes cases[] = {
    {1, 1, 1, 1, 1, 1, false, 0},
    {2, 3, 3, 5, 7, 3, false, 0},
    {1, 2, 2, 8, 8, 16, true, 0},
    {2, 2, 1, 33, 33, 17, true, 0},
    {1, 4, 2, 65, 70, 8, true, 0},
    {1, 2, 2, 70, 65, 8, true, 0},
    {1, 1, 1, 3, 300, 40, false, 0},
    {1, 6, 2, 129, 257, 24, false, 0},
    {1, 2, 2, 40, 40, 200, true, 0},
    {2, 2, 2, 16, 16, 8, true, 0.25},
    {2, 4, 2, 67, 131, 9, true, 0.1},
    {1, 2, 1, 50, 45, 12, true, 0.9},
    {1, 2, 2, 9, 10, 4, false, 1},
    {1, 3, 1, 530, 140, 32, true, 0},
    {1, 2, 1, 50, 45, 32, true, 0.9},
    {2, 2, 1, 65, 70, 64, true, 0},
    {1, 2, 2, 40, 44, 64, false, 0.25},
    {1, 4, 2, 70, 65, 80, true, 0},
    {2, 2, 1, 36, 68, 80, false, 0.3},
    {1, 1, 1, 20, 130, 96, false, 0},
    {1, 3, 3, 66, 36, 96, true, 0.5},
    {1, 2, 1, 67, 67, 128, true, 0},
    {1, 1, 1, 67, 131, 128, true, 0.1},
    {1, 1, 1, 130, 195, 33, true, 0},
    {1, 2, 1, 140, 9, 40, true, 0},
    {1, 2, 1, 37, 41, 33, true, 0.2},
    {1, 1, 1, 12, 20, 200, true, 0.1},
    {1, 1, 1, 65, 66, 112, true, 0},
    /* windows: of one key, of a block, of less and of more, with more keys and with fewer */
    {1, 2, 1, 40, 40, 16, true, 0, 1},
    {2, 2, 1, 65, 70, 17, true, 0, 7},
    {1, 4, 2, 300, 300, 64, true, 0, 64},
    {1, 2, 2, 530, 600, 32, true, 0, 100},
    {1, 2, 1, 300, 260, 80, true, 0, 33},
    {1, 2, 1, 67, 131, 40, true, 0.2, 20},
    {1, 1, 1, 330, 330, 128, true, 0, 130},
    {1, 4, 2, 200, 200, 96, true, 0.1, 70},
    /* sinks: with fewer keys than queries, so that some see none, and each width's kernel */
    {1, 2, 1, 5, 3, 3, true, 0, 0, true},
    {2, 4, 2, 65, 70, 17, false, 0, 0, true},
    {2, 4, 2, 150, 150, 64, true, 0, 100, true},
    {1, 3, 1, 140, 66, 80, true, 0.3, 0, true},
    {1, 2, 2, 67, 67, 128, true, 0.1, 9, true},
    {1, 2, 1, 1, 90, 96, true, 0, 0, true},
    {1, 1, 1, 20, 20, 200, true, 0, 0, true},
};
enum { CASES = sizeof cases / sizeof *cases };
static const mt_dtype each_dtype[] = {MT_F32, MT_F64, MT_BF16, MT_F16};

/* ---- one call, and the answers of the definition, in f64 ---- */

/* Computes with `threads`; the size of the scratch was asked for with `asked` threads. */
static void forward_after(attention_call *c, int asked, int threads, bool with_lse)
{
    const mti_backend *be = mtt_chosen();
    mti_ctx *ctx = values_open(asked);
    mti_attention at = attention_of(c, with_lse);
    size_t n_bytes = be->attention_scratch(ctx, &at);
    mtt_did(be->set_threads(ctx, threads));
    char *scratch = values_scratch(n_bytes);
    mtt_did(be->attention(ctx, &at, scratch, n_bytes));
    values_scratch_free(scratch, n_bytes);
    be->close(ctx);
}

static void backward_after(attention_call *c, int asked, int threads)
{
    const mti_backend *be = mtt_chosen();
    mti_ctx *ctx = values_open(asked);
    mti_attention at = attention_of(c, true);
    size_t n_bytes = be->attention_backward_scratch(ctx, &at);
    mtt_did(be->set_threads(ctx, threads));
    char *scratch = values_scratch(n_bytes);
    assert_true(
        be->attention_backward(ctx, &at, &c->d_o, &c->dq, &c->dk, &c->dv, scratch, n_bytes));
    if (at.sinks)
        mtt_did(be->attention_sinks_backward(ctx, &at, &c->d_o, &c->d_sinks, scratch, true));
    values_scratch_free(scratch, n_bytes);
    be->close(ctx);
}

static void forward(attention_call *c, int threads, bool with_lse)
{
    forward_after(c, threads, threads, with_lse);
}

static void backward(attention_call *c, int threads) { backward_after(c, threads, threads); }

/* The arguments as f64, and the results. */
typedef struct answers {
    double *q, *k, *v, *d_o;
    double *o, *lse, *dq, *dk, *dv, *sinks, *d_sinks;
} answers;

static double *numbers(int64_t n)
{
    double *x = calloc((size_t)n + 1, sizeof *x);
    assert_non_null(x);
    return x;
}

static double keep_factor(const attention_call *c, int64_t draw)
{
    mti_u32x4 u = mti_philox((uint64_t)c->seed, (uint64_t)(c->offset + draw / 4));
    bool keep = (double)mti_u32_to_unit(u.v[draw % 4]) >= c->z.p;
    return c->z.p == 0 ? 1 : keep ? 1 / (1 - c->z.p) : 0;
}

static double dot(const double *x, const double *y, int64_t d)
{
    double sum = 0;
    for (int64_t e = 0; e < d; e++) sum += x[e] * y[e];
    return sum;
}

static void add_times(double *sum, double factor, const double *x, int64_t d)
{
    for (int64_t e = 0; e < d; e++) sum[e] += factor * x[e];
}

/* Computes row `row` of the queries (b, h, i counted together) and adds its part to dk and dv. */
static void answer_row(const attention_call *c, const answers *w, int64_t row)
{
    const attention_sizes *z = &c->z;
    int64_t i = row % z->s, bh = row / z->s, d = z->d;
    int64_t kv = (bh / z->a * z->a_kv + bh % z->a / (z->a / z->a_kv)) * z->t;
    int64_t n = z->causal ? i + (z->t - z->s) + 1 : z->t;
    const double *q = w->q + row * d, *d_o = w->d_o + row * d;
    const double *k = w->k + kv * d, *v = w->v + kv * d;
    int64_t first = z->window && n > z->window ? n - z->window : 0;
    double *o = w->o + row * d, *p = numbers(z->t), sum = 0;
    double sink = z->sinks ? w->sinks[bh % z->a] : -(double)INFINITY, max = sink;
    for (int64_t j = first; j < n; j++) {
        p[j] = c->scale * dot(q, k + j * d, d);
        max = p[j] > max ? p[j] : max;
    }
    for (int64_t j = first; j < n; j++) sum += exp(p[j] - max);
    if (z->sinks) sum += exp(sink - max);
    w->lse[row] = n > 0 || z->sinks ? max + log(sum) : -(double)INFINITY;
    for (int64_t j = first; j < n; j++) {
        double keep = keep_factor(c, row * z->t + j);
        p[j] = exp(p[j] - w->lse[row]);
        add_times(o, keep * p[j], v + j * d, d);
        add_times(w->dv + (kv + j) * d, keep * p[j], d_o, d);
    }
    double delta = dot(o, d_o, d);
    if (z->sinks) w->d_sinks[bh % z->a] -= exp(sink - w->lse[row]) * delta;
    for (int64_t j = first; j < n; j++) {
        double dp = keep_factor(c, row * z->t + j) * dot(d_o, v + j * d, d);
        double ds = c->scale * p[j] * (dp - delta);
        add_times(w->dq + row * d, ds, k + j * d, d);
        add_times(w->dk + (kv + j) * d, ds, q, d);
    }
    free(p);
}

static answers answers_make(const attention_call *c)
{
    const attention_sizes *z = &c->z;
    int64_t queries = z->b * z->a * z->s, keys = z->b * z->a_kv * z->t;
    answers w = {values_all(&c->q),
                 values_all(&c->k),
                 values_all(&c->v),
                 values_all(&c->d_o),
                 numbers(queries * z->d),
                 numbers(queries),
                 numbers(queries * z->d),
                 numbers(keys * z->d),
                 numbers(keys * z->d),
                 values_all(&c->sinks),
                 numbers(z->a)};
    for (int64_t row = 0; row < queries; row++) answer_row(c, &w, row);
    return w;
}

static void answers_free(answers *w)
{
    free(w->q), free(w->k), free(w->v), free(w->d_o);
    free(w->o), free(w->lse), free(w->dq), free(w->dk), free(w->dv);
    free(w->sinks), free(w->d_sinks);
}

/* Each element is within `bound` of the largest magnitude in `want`, or of 1; nothing else was
 * written. */
static void check(const char *what, const attention_call *c, const mti_view *got,
                  const double *want, double bound)
{
    double size = 1;
    for (int64_t i = 0; i < mti_view_count(got); i++)
        if (isfinite(want[i])) size = fabs(want[i]) > size ? fabs(want[i]) : size;
    for (int64_t i = 0; i < mti_view_count(got); i++) {
        double x = values_get(got, i);
        if (x == want[i] || fabs(x - want[i]) <= bound * size) continue;
        fail_msg("s %d, t %d, d %d, p %g, %s, %s[%lld]: %.9g, want %.9g", (int)c->z.s, (int)c->z.t,
                 (int)c->z.d, c->z.p, mt_dtype_name(got->dtype), what, (long long)i, x, want[i]);
    }
    assert_true(values_surroundings_untouched(got));
}

/* ---- tests ---- */

static void check_call(attention_call *c, double bound)
{
    answers w = answers_make(c);
    forward(c, 2, true);
    check("o", c, &c->o, w.o, bound);
    check("lse", c, &c->lse, w.lse, c->lse.dtype == MT_F64 ? 1e-12 : 1e-5);
    backward(c, 2);
    check("dq", c, &c->dq, w.dq, 4 * bound);
    check("dk", c, &c->dk, w.dk, 4 * bound);
    check("dv", c, &c->dv, w.dv, 4 * bound);
    if (c->z.sinks) check("d_sinks", c, &c->d_sinks, w.d_sinks, 4 * bound);
    answers_free(&w);
    values_free_all();
}

/* The short form has each case in every second of the dtypes. */
static void check_cases(mt_dtype dtype, mt_dtype lse, double bound)
{
    static int turn;
    turn++;
    for (int i = 0; i < CASES; i++) {
        if (!mtt_long() && (i + turn) % 2) continue;
        attention_call c;
        attention_call_make_with(&c, &cases[i], dtype, lse);
        check_call(&c, bound);
    }
}

static void f64_agrees_with_the_definition(void **state)
{
    (void)state;
    check_cases(MT_F64, MT_F64, 1e-12);
}

static void f64_with_lse_in_f32_agrees_to_its_precision(void **state)
{
    (void)state;
    if (strcmp(mtt_chosen()->kind, "cpu") != 0) skip(); /* only the CPU allows it */
    check_cases(MT_F64, MT_F32, 1e-6);
}

static void f32_agrees_with_the_definition(void **state)
{
    (void)state;
    check_cases(MT_F32, MT_F32, 4e-6);
}

static void sixteen_bit_floats_agree_with_the_definition(void **state)
{
    (void)state;
    check_cases(MT_BF16, MT_F32, 2 * values_rounding(MT_BF16));
    check_cases(MT_F16, MT_F32, 2 * values_rounding(MT_F16));
}

/* Rows whose distance is not a multiple of 16 bytes, and a scale that is not positive: a GPU's
 * tensor cores take neither. */
static void other_strides_and_a_negative_scale_agree_with_the_definition(void **state)
{
    (void)state;
    static const attention_sizes z = {1, 2, 1, 35, 41, 32, true, 0.2};
    for (int odd = 0; odd < 2; odd++) {
        attention_call c;
        attention_call_make(&c, &z, MT_BF16);
        if (odd) {
            c.d_o = values_new_laid_out(MT_BF16, 4, (int64_t[]){z.b, z.a, z.s, z.d}, false, 3);
            c.k = values_new_laid_out(MT_BF16, 4, (int64_t[]){z.b, z.a_kv, z.t, z.d}, false, 1);
            values_random(&c.d_o, 4), values_random(&c.k, 2);
        } else
            c.scale = -0.3;
        check_call(&c, 2 * values_rounding(MT_BF16));
    }
}

/* The loss sum(o * d_o). */
static double loss(attention_call *c)
{
    double sum = 0;
    forward(c, 1, false);
    for (int64_t i = 0; i < mti_view_count(&c->o); i++)
        sum += values_get(&c->o, i) * values_get(&c->d_o, i);
    return sum;
}

static void backward_agrees_with_finite_differences(void **state)
{
    (void)state;
    static const attention_sizes few[] = {{2, 2, 1, 5, 7, 3, true, 0.25},
                                          {1, 4, 2, 7, 5, 4, true, 0}};
    for (size_t n = 0; n < sizeof few / sizeof *few; n++) {
        attention_call c;
        attention_call_make(&c, &few[n], MT_F64);
        forward(&c, 1, true);
        backward(&c, 1);
        const mti_view *x[] = {&c.q, &c.k, &c.v}, *dx[] = {&c.dq, &c.dk, &c.dv};
        for (int which = 0; which < 3; which++)
            for (int64_t i = 0; i < mti_view_count(x[which]); i++) {
                double was = values_get(x[which], i), h = 1e-5;
                values_set(x[which], i, was + h);
                double above = loss(&c);
                values_set(x[which], i, was - h);
                double below = loss(&c);
                values_set(x[which], i, was);
                assert_true(fabs((above - below) / (2 * h) - values_get(dx[which], i)) < 1e-7);
            }
        values_free_all();
    }
}

static void bits_do_not_depend_on_the_number_of_threads(void **state)
{
    (void)state;
    static const mt_dtype dtypes[] = {MT_F32, MT_F64, MT_BF16};
    for (int i = 0; i < CASES; i++)
        for (size_t t = 0; t < 3; t++) {
            if (!mtt_long() && ((size_t)i + t) % (mtt_short_simulation() ? 6 : 3) != 0) continue;
            attention_call one, more;
            attention_call_make(&one, &cases[i], dtypes[t]);
            forward(&one, 1, true), backward(&one, 1);
            /* the size of the scratch was asked for with as many threads; then before another host
             * thread set more, or fewer */
            static const int asked_and_set[][2] = {{2, 2}, {3, 3}, {1, 4}, {4, 1}};
            for (int k = 0; k < 4; k++) {
                int asked = asked_and_set[k][0], threads = asked_and_set[k][1];
                attention_call_make(&more, &cases[i], dtypes[t]);
                forward_after(&more, asked, threads, true), backward_after(&more, asked, threads);
                assert_true(values_same_bits(&one.o, &more.o));
                assert_true(values_same_bits(&one.lse, &more.lse));
                assert_true(values_same_bits(&one.dq, &more.dq));
                assert_true(values_same_bits(&one.dk, &more.dk));
                assert_true(values_same_bits(&one.dv, &more.dv));
            }
            values_free_all();
        }
}

static void lse_may_be_left_out_of_forward(void **state)
{
    (void)state;
    for (int i = 0; i < CASES; i++) {
        attention_call with, without;
        attention_call_make(&with, &cases[i], each_dtype[i % 4]);
        attention_call_make(&without, &cases[i], each_dtype[i % 4]);
        forward(&with, 1, true), forward(&without, 1, false);
        assert_true(values_same_bits(&with.o, &without.o));
        assert_true(values_surroundings_untouched(&without.lse));
        values_free_all();
    }
}

static void queries_that_see_no_key_give_zeros(void **state)
{
    (void)state;
    static const attention_sizes z = {1, 2, 1, 200, 30, 16, true, 0};
    for (int t = 0; t < 4; t++) {
        attention_call c;
        attention_call_make(&c, &z, each_dtype[t]);
        forward(&c, 2, true), backward(&c, 2);
        for (int64_t h = 0; h < z.a; h++)
            for (int64_t i = 0; i < z.s - z.t; i++) {
                assert_true(values_get(&c.lse, h * z.s + i) == -(double)INFINITY);
                for (int64_t e = 0; e < z.d; e++) {
                    assert_true(values_get(&c.o, (h * z.s + i) * z.d + e) == 0);
                    assert_true(values_get(&c.dq, (h * z.s + i) * z.d + e) == 0);
                }
            }
        for (int64_t i = 0; i < mti_view_count(&c.dk); i++)
            assert_true(isfinite(values_get(&c.dk, i)) && isfinite(values_get(&c.dv, i)));
        values_free_all();
    }
}

static void without_keys_or_queries_everything_is_zero(void **state)
{
    (void)state;
    static const attention_sizes none[] = {{1, 2, 2, 3, 0, 32, false, 0},
                                           {1, 2, 2, 0, 5, 32, true, 0}};
    for (int n = 0; n < 2; n++)
        for (int t = 0; t < 4; t++) {
            attention_call c;
            attention_call_make(&c, &none[n], each_dtype[t]);
            forward(&c, 1, true), backward(&c, 1);
            for (int64_t i = 0; i < mti_view_count(&c.o); i++)
                assert_true(values_get(&c.o, i) == 0 && values_get(&c.dq, i) == 0);
            for (int64_t i = 0; i < mti_view_count(&c.dk); i++)
                assert_true(values_get(&c.dk, i) == 0 && values_get(&c.dv, i) == 0);
            values_free_all();
        }
}

/* With v the identity, o is the dropped probabilities themselves; with d_o the identity of the
 * queries, dv is their transpose. */
static void check_mask(const attention_sizes *z, mt_dtype dtype)
{
    attention_call c;
    attention_call_make(&c, z, dtype);
    for (int64_t i = 0; i < mti_view_count(&c.v); i++)
        values_set(&c.v, i, i / z->d % z->t == i % z->d ? 1 : 0);
    for (int64_t i = 0; i < mti_view_count(&c.d_o); i++)
        values_set(&c.d_o, i, i / z->d % z->s == i % z->d ? 1 : 0);
    forward(&c, 1, true), backward(&c, 1);
    int64_t rows = z->b * z->a * z->s, draws = rows * z->t, kept = 0;
    mti_view ones = values_new(MT_F32, 1, &draws), dropped = values_new(MT_F32, 1, &draws);
    values_fill(&ones, 1);
    mti_ctx *ctx = mti_cpu_backend.open();
    assert_true(mti_cpu_backend.dropout(ctx, z->p, (uint64_t)c.seed, (uint64_t)c.offset, &ones,
                                        &dropped, NULL));
    mti_cpu_backend.close(ctx);
    for (int64_t draw = 0; draw < draws; draw++) {
        int64_t row = draw / z->t, j = draw % z->t, head = row / z->s;
        bool keep = values_get(&dropped, draw) != 0;
        kept += keep;
        assert_int_equal(keep, values_get(&c.o, row * z->d + j) != 0);
        assert_int_equal(keep, values_get(&c.dv, (head * z->t + j) * z->d + row % z->s) != 0);
    }
    assert_in_range(kept, draws / 2, draws * 9 / 10);
    values_free_all();
}

static void the_mask_is_that_of_dropout_on_the_cpu(void **state)
{
    (void)state;
    static const int64_t keys[] = {41, 44}; /* a counter's four draws in two rows, or in one */
    for (int n = 0; n < 2; n++)
        for (int t = 0; t < 4; t++) {
            const attention_sizes z = {2, 3, 3, 48, keys[n], 48, false, 0.3};
            check_mask(&z, each_dtype[t]);
        }
}

static mti_attention only_shapes(mti_view v[5], int64_t s)
{
    for (int i = 0; i < 5; i++)
        v[i] = (mti_view){.dtype = MT_F32,
                          .rank = 4,
                          .shape = {1, 8, s, 64},
                          .stride = {8 * s * 64, s * 64, 64, 1}};
    return (mti_attention){.q = &v[0], .k = &v[1], .v = &v[2], .o = &v[3], .scale = 1};
}

static void scratch_does_not_grow_with_s_times_t(void **state)
{
    (void)state;
    if (strcmp(mtt_chosen()->kind, "cpu") != 0) skip();
    mti_ctx ctx = {.threads = 2};
    mti_view v[5], w[5];
    mti_attention small = only_shapes(v, 4096), large = only_shapes(w, 65536);
    assert_int_equal(mti_cpu_attention_scratch(&ctx, &small),
                     mti_cpu_attention_scratch(&ctx, &large));
    size_t few = mti_cpu_attention_backward_scratch(&ctx, &small);
    size_t many = mti_cpu_attention_backward_scratch(&ctx, &large);
    /* two floats per query of the current head: lse and delta */
    assert_int_equal(many - few, 2 * (65536 - 4096) * 2 * sizeof(float));
    assert_true(few < (size_t)1 << 20);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(f64_agrees_with_the_definition),
        cmocka_unit_test(f64_with_lse_in_f32_agrees_to_its_precision),
        cmocka_unit_test(f32_agrees_with_the_definition),
        cmocka_unit_test(sixteen_bit_floats_agree_with_the_definition),
        cmocka_unit_test(other_strides_and_a_negative_scale_agree_with_the_definition),
        cmocka_unit_test(backward_agrees_with_finite_differences),
        cmocka_unit_test(bits_do_not_depend_on_the_number_of_threads),
        cmocka_unit_test(lse_may_be_left_out_of_forward),
        cmocka_unit_test(queries_that_see_no_key_give_zeros),
        cmocka_unit_test(without_keys_or_queries_everything_is_zero),
        cmocka_unit_test(the_mask_is_that_of_dropout_on_the_cpu),
        cmocka_unit_test(scratch_does_not_grow_with_s_times_t),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

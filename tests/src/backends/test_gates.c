/* RMS norm, rotary positions, swiglu, pow, max and where against their definitions in f64, in every
 * dtype and many layouts. */
#include "views.h"

static double silu(double x) { return x / (1 + exp(-x)); }

/* ---- RMS norm ---- */

enum { LONGEST = 1100 };

typedef struct rms_case {
    mti_view x, w, y, rstd, dy, dx, dw;
    int64_t n_rows, n;
    bool has_w;
    double tolerance;
} rms_case;

static mti_view rows(mt_dtype dtype, int64_t n_rows, int64_t n, mtt_placing placing)
{
    return mtt_view(dtype, 3, (const int64_t[]){n_rows, 1, n}, placing);
}

static void check_rms_values(const rms_case *c)
{
    double dw[LONGEST] = {0};
    for (int64_t r = 0; r < c->n_rows; r++) {
        double squares = 0, sum_gx = 0;
        for (int64_t j = 0; j < c->n; j++) {
            double x = mtt_get(&c->x, r * c->n + j);
            squares += x * x;
            sum_gx += x * mtt_get(&c->dy, r * c->n + j) * (c->has_w ? mtt_get(&c->w, j) : 1);
        }
        double rstd = 1 / sqrt(squares / (double)c->n + 1e-5);
        mtt_close(mtt_get(&c->rstd, r), rstd, c->tolerance, "rstd", r);
        for (int64_t j = 0; j < c->n; j++) {
            double x = mtt_get(&c->x, r * c->n + j), dy = mtt_get(&c->dy, r * c->n + j);
            double w = c->has_w ? mtt_get(&c->w, j) : 1;
            mtt_close(mtt_get(&c->y, r * c->n + j), x * rstd * w, c->tolerance, "rms_norm", j);
            double want = rstd * (dy * w - x * rstd * rstd * sum_gx / (double)c->n);
            mtt_close(mtt_get(&c->dx, r * c->n + j), want, c->tolerance * fmax(1, rstd), "dx", j);
            dw[j] += dy * x * rstd;
        }
    }
    for (int64_t j = 0; j < c->n; j++)
        mtt_close(mtt_get(&c->dw, j), dw[j], 4 * c->tolerance, "dw", j);
}

static void check_rms(const mti_backend *be, mti_ctx *ctx, mt_dtype dtype, int64_t n_rows,
                      int64_t n, bool has_w)
{
    mt_dtype wide = dtype == MT_F64 ? MT_F64 : MT_F32;
    mtt_placing placing = has_w ? MTT_PLACED_PADDED : MTT_PLACED_DENSE;
    rms_case c = {.n_rows = n_rows,
                  .n = n,
                  .has_w = has_w,
                  .tolerance = (dtype == MT_F64 || dtype == MT_F32 ? 128 : 4) * mtt_epsilon(dtype)};
    c.x = rows(dtype, n_rows, n, placing), c.y = rows(dtype, n_rows, n, MTT_PLACED_DENSE);
    c.dy = rows(dtype, n_rows, n, MTT_PLACED_DENSE), c.dx = rows(dtype, n_rows, n, placing);
    c.w = mtt_dense(dtype, n), c.dw = mtt_dense(dtype, n), c.rstd = mtt_dense(wide, n_rows);
    mtt_fill(&c.x, 1, -1, 3), mtt_fill(&c.dy, 2, -1, 1), mtt_fill(&c.w, 3, 0.5, 2);
    const mti_view *w = has_w ? &c.w : NULL;
    void *scratch = mtt_memory(be->rms_norm_backward_scratch(ctx, &c.x));
    assert_true(scratch && be->rms_norm(ctx, 1e-5, &c.x, w, &c.y, &c.rstd));
    mtt_did(be->rms_norm_backward(ctx, &c.dy, &c.x, w, &c.rstd, &c.dx, &c.dw, scratch));
    check_rms_values(&c);
    mti_view y = rows(dtype, n_rows, n, placing), dx = rows(dtype, n_rows, n, placing),
             dw = mtt_dense(dtype, n);
    mtt_did(be->rms_norm(ctx, 1e-5, &c.x, w, &y, NULL));
    mtt_did(be->rms_norm_backward(ctx, &c.dy, &c.x, w, &c.rstd, &dx, NULL, NULL));
    mtt_did(be->rms_norm_backward(ctx, &c.dy, &c.x, w, &c.rstd, NULL, &dw, scratch));
    mtt_same(&y, &c.y, "y without rstd");
    mtt_same(&dx, &c.dx, "dx alone");
    mtt_same(&dw, &c.dw, "dw alone");
    mtt_memory_free(scratch);
    mti_view *all[] = {&c.x, &c.w, &c.y, &c.rstd, &c.dy, &c.dx, &c.dw, &y, &dx, &dw};
    for (size_t k = 0; k < sizeof all / sizeof *all; k++) mtt_drop(all[k]);
}

static void rms_norm_matches_its_definition_and_its_gradients(void **state)
{
    (void)state;
    static const int64_t lengths[] = {1, 2, 7, 17, 64, 65, 513, 1000, LONGEST};
    mti_ctx *ctx;
    const mti_backend *be = mtt_backend(&ctx);
    for (int t = 0; t < 4; t++)
        for (int has_w = 0; has_w < 2; has_w++) {
            for (size_t k = 0; k < sizeof lengths / sizeof *lengths; k++)
                check_rms(be, ctx, mtt_floats[t], 6, lengths[k], has_w);
            check_rms(be, ctx, mtt_floats[t], 1100, 33, has_w);
        }
    be->close(ctx);
}

/* ---- rotary positions ---- */

/* In f64 the angle is a product in radians, so its rounding error grows with the position. */
static double rope_tolerance(mt_dtype dtype, int64_t last_position)
{
    return dtype == MT_F32   ? 1e-6
           : dtype == MT_F64 ? 4 * (double)(last_position + 4) * mtt_epsilon(dtype)
                             : 2 * mtt_epsilon(dtype);
}

static void check_rope(const mti_backend *be, mti_ctx *ctx, mt_dtype dtype, const int64_t *shape,
                       mtt_placing placing, int64_t start)
{
    const double theta = 10000;
    mti_view x = mtt_view(dtype, 4, shape, placing),
             y = mtt_view(dtype, 4, shape, MTT_PLACED_DENSE);
    int64_t s = shape[2], d = shape[3], half = d / 2;
    double tolerance = rope_tolerance(dtype, start + s);
    mtt_fill(&x, 1, -2, 2);
    mtt_did(be->rope(ctx, &(mti_rope){theta, .scale = 1}, start, false, &x, &y));
    for (int64_t r = 0; r < shape[0] * shape[1] * s; r++)
        for (int64_t i = 0; i < half; i++) {
            long double angle = (long double)(start + r % s) *
                                powl((long double)theta, -2.0L * (long double)i / (long double)d);
            double c = (double)cosl(angle), sine = (double)sinl(angle);
            double low = mtt_get(&x, r * d + i), high = mtt_get(&x, r * d + i + half);
            mtt_close(mtt_get(&y, r * d + i), low * c - high * sine, tolerance, "rope", i);
            mtt_close(mtt_get(&y, r * d + i + half), high * c + low * sine, tolerance, "rope", i);
        }
    /* the inverse restores x, in place and not */
    mti_view back = mtt_view(dtype, 4, shape, placing);
    mtt_did(be->rope(ctx, &(mti_rope){theta, .scale = 1}, start, true, &y, &back));
    mtt_did(be->rope(ctx, &(mti_rope){theta, .scale = 1}, start, true, &y, &y));
    mtt_same(&back, &y, "rope in place");
    for (int64_t i = 0; i < mti_view_count(&x); i++)
        mtt_close(mtt_get(&y, i), mtt_get(&x, i), 2 * tolerance, "rope back", i);
    mtt_drop(&x), mtt_drop(&y), mtt_drop(&back);
}

static void rope_rotates_every_pair_by_its_angle_and_back(void **state)
{
    (void)state;
    static const int64_t shapes[][4] = {{2, 3, 5, 6},   {1, 1, 1, 2},   {1, 2, 70, 64},
                                        {2, 1, 3, 128}, {1, 1, 2, 770}, {3, 9, 1, 16}};
    mti_ctx *ctx;
    const mti_backend *be = mtt_backend(&ctx);
    for (int t = 0; t < 4; t++)
        for (size_t k = 0; k < sizeof shapes / sizeof *shapes; k++) {
            check_rope(be, ctx, mtt_floats[t], shapes[k], MTT_PLACED_DENSE, 0);
            check_rope(be, ctx, mtt_floats[t], shapes[k], MTT_PLACED_PADDED, 11);
        }
    check_rope(be, ctx, MT_F32, (const int64_t[]){1, 2, 4, 64}, MTT_PLACED_DENSE, 16777000);
    be->close(ctx);
}

/* ---- element-wise, in every layout ---- */

static const int64_t shape3[] = {5, 7, 66};
enum { COUNT3 = 5 * 7 * 66 };

static void check_swiglu(const mti_backend *be, mti_ctx *ctx, mt_dtype dtype, mtt_placing placing)
{
    mti_view gate = mtt_view(dtype, 3, shape3, placing), up = mtt_view(dtype, 3, shape3, placing);
    mti_view dy = mtt_view(dtype, 3, shape3, MTT_PLACED_DENSE),
             y = mtt_view(dtype, 3, shape3, placing);
    mti_view dgate = mtt_view(dtype, 3, shape3, MTT_PLACED_DENSE),
             dup = mtt_view(dtype, 3, shape3, MTT_PLACED_DENSE),
             alone = mtt_view(dtype, 3, shape3, MTT_PLACED_DENSE);
    double tolerance = 16 * mtt_epsilon(dtype);
    mtt_fill(&gate, 1, -6, 6), mtt_fill(&up, 2, -2, 2), mtt_fill(&dy, 3, -1, 1);
    mtt_did(be->swiglu(ctx, &gate, &up, &y));
    mtt_did(be->swiglu_backward(ctx, &gate, &up, &dy, &dgate, &dup));
    for (int64_t i = 0; i < COUNT3; i++) {
        double g = mtt_get(&gate, i), u = mtt_get(&up, i), d = mtt_get(&dy, i);
        double s = 1 / (1 + exp(-g));
        mtt_close(mtt_get(&y, i), silu(g) * u, tolerance, "swiglu", i);
        mtt_close(mtt_get(&dgate, i), d * u * s * (1 + g * (1 - s)), tolerance, "dgate", i);
        mtt_close(mtt_get(&dup, i), d * silu(g), tolerance, "dup", i);
    }
    mtt_did(be->swiglu_backward(ctx, &gate, &up, &dy, &alone, NULL));
    mtt_same(&alone, &dgate, "dgate alone");
    mtt_did(be->swiglu_backward(ctx, &gate, NULL, &dy, NULL, &alone));
    mtt_same(&alone, &dup, "dup alone");
    mtt_did(be->copy(ctx, &dy, &alone));
    mtt_did(be->swiglu_backward(ctx, &gate, &up, &alone, &alone, &dup));
    mtt_same(&alone, &dgate, "dgate in place of dy");
    mti_view *all[] = {&gate, &up, &dy, &y, &dgate, &dup, &alone};
    for (size_t k = 0; k < sizeof all / sizeof *all; k++) mtt_drop(all[k]);
}

static void swiglu_matches_its_definition_and_its_gradients(void **state)
{
    (void)state;
    mti_ctx *ctx;
    const mti_backend *be = mtt_backend(&ctx);
    for (int t = 0; t < 4; t++)
        for (mtt_placing placing = 0; placing < MTT_PLACING_COUNT; placing++)
            check_swiglu(be, ctx, mtt_floats[t], placing);
    be->close(ctx);
}

static void check_where(const mti_backend *be, mti_ctx *ctx, mt_dtype dtype, mtt_placing placing,
                        int given)
{
    mti_view mask = mtt_view(MT_BOOL, 3, shape3, placing), a = mtt_view(dtype, 3, shape3, placing);
    mti_view b = mtt_view(dtype, 3, shape3, MTT_PLACED_BROADCAST),
             y = mtt_view(dtype, 3, shape3, MTT_PLACED_DENSE);
    for (int64_t i = 0; i < COUNT3; i++) mtt_set(&mask, i, i * 7 % 3 == 1);
    mtt_fill(&a, 1, -2, 2), mtt_fill(&b, 2, -2, 2);
    mtt_did(be->where(ctx, &mask, given & 1 ? &a : NULL, given & 2 ? &b : NULL, &y));
    for (int64_t i = 0; i < COUNT3; i++) {
        double want = mtt_get(&mask, i) != 0 ? (given & 1 ? mtt_get(&a, i) : 0)
                                             : (given & 2 ? mtt_get(&b, i) : 0);
        mtt_close(mtt_get(&y, i), want, 0, "where", i);
    }
    mtt_drop(&mask), mtt_drop(&a), mtt_drop(&b), mtt_drop(&y);
}

static void where_takes_each_element_from_the_side_that_the_mask_gives(void **state)
{
    (void)state;
    mti_ctx *ctx;
    const mti_backend *be = mtt_backend(&ctx);
    for (int t = 0; t < 4; t++)
        for (mtt_placing placing = 0; placing < MTT_PLACING_COUNT; placing++)
            for (int given = 1; given < 4; given++)
                check_where(be, ctx, mtt_floats[t], placing, given);
    be->close(ctx);
}

static void pow_matches_the_c_library_for_every_kind_of_exponent(void **state)
{
    (void)state;
    static const double exponents[] = {-2, -1.25, -1, -0.5, 0, 0.5, 1, 1.7, 2, 3, 4};
    mti_ctx *ctx;
    const mti_backend *be = mtt_backend(&ctx);
    for (int t = 0; t < 4; t++)
        for (size_t k = 0; k < sizeof exponents / sizeof *exponents; k++) {
            double p = (double)(float)exponents[k], tolerance = 8 * mtt_epsilon(mtt_floats[t]);
            mti_view x = mtt_dense(mtt_floats[t], 517), y = mtt_dense(mtt_floats[t], 517);
            mti_view dy = mtt_dense(mtt_floats[t], 517), dx = mtt_dense(mtt_floats[t], 517);
            bool any_sign = p >= 0 && p == floor(p);
            mtt_fill(&x, 1, any_sign ? -3 : 0.25, 3), mtt_fill(&dy, 2, -1, 1);
            mtt_did(be->unary(ctx, MTI_UNARY_pow, p, 0, &x, &y));
            mtt_did(be->unary_backward(ctx, MTI_UNARY_pow, p, 0, &x, &dy, &dx));
            for (int64_t i = 0; i < 517; i++) {
                double v = mtt_get(&x, i), slope = p == 0 ? 0 : p * pow(v, p - 1);
                mtt_close(mtt_get(&y, i), pow(v, p), tolerance, "pow", i);
                mtt_close(mtt_get(&dx, i), mtt_get(&dy, i) * slope, tolerance, "pow backward", i);
            }
            mtt_drop(&x), mtt_drop(&y), mtt_drop(&dy), mtt_drop(&dx);
        }
    be->close(ctx);
}

/* ---- max ---- */

/* Element i of y is the maximum over the elements j of the searched dimensions, both in row-major
 * order. */
static void check_max(const mti_backend *be, mti_ctx *ctx, mt_dtype dtype, const mti_view *x,
                      int rank, bool odd)
{
    int64_t kept = 1, searched = 1;
    for (int d = 0; d < x->rank; d++) *(d < rank ? &kept : &searched) *= x->shape[d];
    mti_view y = mtt_view(dtype, rank, x->shape, MTT_PLACED_DENSE),
             index = mtt_view(MT_I64, rank, x->shape, MTT_PLACED_DENSE),
             dy = mtt_view(dtype, rank, x->shape, MTT_PLACED_DENSE),
             dx = mtt_view(dtype, x->rank, x->shape, MTT_PLACED_REVERSED);
    mtt_fill(&dy, 5, -1, 1);
    if (odd) mtt_set(x, searched / 2, (double)NAN);
    mtt_did(be->max(ctx, x, &y, &index));
    mtt_did(be->max_backward(ctx, &index, &dy, &dx));
    for (int64_t i = 0; i < kept; i++) {
        int64_t best = 0;
        for (int64_t j = 1; j < searched; j++) {
            double here = mtt_get(x, i * searched + j), top = mtt_get(x, i * searched + best);
            if (here > top || (isnan(here) && !isnan(top))) best = j;
        }
        assert_int_equal((int64_t)mtt_get(&index, i), best);
        mtt_close(mtt_get(&y, i), mtt_get(x, i * searched + best), 0, "max", i);
        for (int64_t j = 0; j < searched; j++)
            mtt_close(mtt_get(&dx, i * searched + j), j == best ? mtt_get(&dy, i) : 0, 0,
                      "max backward", j);
    }
    mti_view again = mtt_view(dtype, rank, x->shape, MTT_PLACED_DENSE);
    mtt_did(be->max(ctx, x, &again, NULL));
    mtt_same(&again, &y, "max without the index");
    mtt_drop(&y), mtt_drop(&index), mtt_drop(&dy), mtt_drop(&dx), mtt_drop(&again);
}

static void max_finds_the_first_of_the_largest_elements(void **state)
{
    (void)state;
    static const struct shape {
        int rank, kept;
        int64_t at[3];
    } shapes[] = {{3, 2, {3, 5, 7}}, {3, 1, {3, 5, 7}},   {3, 0, {3, 5, 7}},
                  {2, 1, {3, 1300}}, {2, 1, {1300, 3}},   {3, 3, {2, 3, 4}},
                  {1, 0, {2000}},    {3, 1, {2, 70, 65}}, {3, 2, {2, 600, 9}}};
    mti_ctx *ctx;
    const mti_backend *be = mtt_backend(&ctx);
    for (int t = 0; t < 4; t++)
        for (size_t k = 0; k < sizeof shapes / sizeof *shapes; k++)
            for (mtt_placing placing = 0; placing < MTT_PLACING_COUNT; placing++)
                for (int variant = 0; variant < 3; variant++) {
                    mti_view x = mtt_view(mtt_floats[t], shapes[k].rank, shapes[k].at, placing);
                    mtt_fill(&x, 1, -2,
                             variant == 1 ? -1.96875 : 2); /* variant 1: many equal values */
                    check_max(be, ctx, mtt_floats[t], &x, shapes[k].kept, variant == 2);
                    mtt_drop(&x);
                }
    be->close(ctx);
}

static void max_of_minus_infinities_is_the_first(void **state)
{
    (void)state;
    mti_ctx *ctx;
    const mti_backend *be = mtt_backend(&ctx);
    mti_view x = mtt_dense(MT_F32, 2, 40), y = mtt_dense(MT_F32, 2), index = mtt_dense(MT_I64, 2);
    for (int64_t i = 0; i < 80; i++) mtt_set(&x, i, -(double)INFINITY);
    mtt_set(&index, 0, 7), mtt_set(&index, 1, 7);
    mtt_did(be->max(ctx, &x, &y, &index));
    for (int64_t i = 0; i < 2; i++)
        assert_true(mtt_get(&y, i) == -(double)INFINITY && mtt_get(&index, i) == 0);
    mtt_drop(&x), mtt_drop(&y), mtt_drop(&index);
    be->close(ctx);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rms_norm_matches_its_definition_and_its_gradients),
        cmocka_unit_test(rope_rotates_every_pair_by_its_angle_and_back),
        cmocka_unit_test(swiglu_matches_its_definition_and_its_gradients),
        cmocka_unit_test(where_takes_each_element_from_the_side_that_the_mask_gives),
        cmocka_unit_test(pow_matches_the_c_library_for_every_kind_of_exponent),
        cmocka_unit_test(max_finds_the_first_of_the_largest_elements),
        cmocka_unit_test(max_of_minus_infinities_is_the_first),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* RMS norm, rotary positions, swiglu, where, pow and max on the device, against the CPU: rows and
 * vectors of many lengths, also unaligned ones. */
#include <float.h>
#include "double.h"
#include "twins.h"

/* Rows that fit into a warp's registers, into a block's, and into neither. */
static const int64_t lengths[] = {1, 2, 7, 8, 31, 64, 127, 256, 513, 1000, 1031, 4104, 9001};
#define N_LENGTHS (int)(sizeof lengths / sizeof *lengths)

static double tolerance_of(mt_dtype dtype)
{
    return (dtype == MT_F32 || dtype == MT_F64 ? 32 : 1) * mtt_epsilon(dtype);
}

/* ---- RMS norm ---- */

enum { X, W, Y, RSTD, DY, DX, DW, N_RMS };

static void rms_forward(const mtt_pair *p, mtt_twin *t, bool has_w)
{
    mtt_ok(p->cpu->rms_norm(p->cpu_ctx, 1e-5, &t[X].host, has_w ? &t[W].host : NULL, &t[Y].host,
                            &t[RSTD].host),
           "rms_norm");
    mtt_ok(p->dev->rms_norm(p->dev_ctx, 1e-5, &t[X].dev, has_w ? &t[W].dev : NULL, &t[Y].dev,
                            &t[RSTD].dev),
           "rms_norm");
}

/* wanted: 1 dx, 2 dw */
static void rms_backward(const mtt_pair *p, mtt_twin *t, bool has_w, int wanted)
{
    size_t n_cpu = p->cpu->rms_norm_backward_scratch(p->cpu_ctx, &t[X].host);
    size_t n_dev = p->dev->rms_norm_backward_scratch(p->dev_ctx, &t[X].dev);
    void *cpu = malloc(n_cpu), *dev = n_dev ? p->dev->alloc(p->dev_ctx, n_dev) : NULL;
    mtt_ok(p->cpu->rms_norm_backward(p->cpu_ctx, &t[DY].host, &t[X].host, has_w ? &t[W].host : NULL,
                                     &t[RSTD].host, wanted & 1 ? &t[DX].host : NULL,
                                     wanted & 2 ? &t[DW].host : NULL, cpu),
           "rms_norm backward");
    mtt_ok(p->dev->rms_norm_backward(p->dev_ctx, &t[DY].dev, &t[X].dev, has_w ? &t[W].dev : NULL,
                                     &t[RSTD].dev, wanted & 1 ? &t[DX].dev : NULL,
                                     wanted & 2 ? &t[DW].dev : NULL, dev),
           "rms_norm backward");
    mtt_ok(p->dev->sync(p->dev_ctx), "sync");
    free(cpu);
    if (dev) p->dev->free(p->dev_ctx, dev, n_dev);
}

static void check_rms(const mtt_pair *p, mt_dtype dtype, int64_t rows, int64_t n,
                      mtt_placing placing, int64_t skip, bool has_w, int wanted)
{
    const int64_t shape[] = {rows, 2, n}, row[] = {n}, column[] = {2 * rows};
    mt_dtype wide = dtype == MT_F64 ? MT_F64 : MT_F32;
    double eps = tolerance_of(dtype);
    mtt_twin t[N_RMS] = {
        [X] = mtt_twin_make(p, dtype, 3, shape, placing, skip, -2, 3),
        [W] = mtt_twin_make(p, dtype, 1, row, MTT_PLACED_DENSE, skip, 0.5, 2),
        [Y] = mtt_twin_make(p, dtype, 3, shape, MTT_PLACED_DENSE, 0, 0, 1),
        [RSTD] = mtt_twin_make(p, wide, 1, column, MTT_PLACED_DENSE, 0, 0, 1),
        [DY] = mtt_twin_make(p, dtype, 3, shape, MTT_PLACED_DENSE, skip, -1, 1),
        [DX] = mtt_twin_make(p, dtype, 3, shape, placing, 0, 0, 1),
        [DW] = mtt_twin_make(p, dtype, 1, row, MTT_PLACED_DENSE, skip, 0, 1),
    };
    rms_forward(p, t, has_w);
    mtt_twin_check(p, &t[Y], 4 * eps, "y");
    mtt_twin_check(p, &t[RSTD], 4 * eps, "rstd");
    rms_backward(p, t, has_w, wanted);
    mtt_twin_check(p, &t[DX], 4 * eps, "dx");
    mtt_twin_check(p, &t[DW], 8 * eps, "dw");
    for (int i = 0; i < N_RMS; i++) mtt_twin_drop(p, &t[i]);
}

static void rms_norm_of_rows_of_any_length_matches_the_cpu(void **state)
{
    for (int t = 0; t < 4; t++)
        for (int k = 0; k < N_LENGTHS; k++) {
            check_rms(*state, mtt_floats[t], 3, lengths[k], MTT_PLACED_DENSE, 0, true, 3);
            check_rms(*state, mtt_floats[t], 2, lengths[k], MTT_PLACED_PADDED, 1, k & 1, 3);
        }
    check_rms(*state, MT_F32, 700, 24, MTT_PLACED_DENSE, 0, true, 3);
    check_rms(*state, MT_BF16, 1300, 130, MTT_PLACED_DENSE, 0, true, 3);
    check_rms(*state, MT_F32, 0, 40, MTT_PLACED_DENSE, 0, true, 3);
    for (int wanted = 0; wanted < 3; wanted++)
        check_rms(*state, MT_BF16, 3, 9001, MTT_PLACED_DENSE, 0, true, wanted);
}

/* ---- rotary positions ---- */

static void check_rope(const mtt_pair *p, mt_dtype dtype, const int64_t *shape, mtt_placing placing,
                       int64_t skip, bool inverse)
{
    double tolerance = dtype == MT_F32 ? 1e-6 : dtype == MT_F64 ? 1e-13 : 2 * mtt_epsilon(dtype);
    mtt_twin x = mtt_twin_make(p, dtype, 4, shape, placing, skip, -2, 2),
             y = mtt_twin_make(p, dtype, 4, shape, MTT_PLACED_DENSE, skip, -2, 2);
    /* angles scaled by angle, by pair, or not at all */
    const mti_rope rope = {10000,           skip ? 4 : 0, inverse ? 0.01 : 1, inverse ? 0.5 : 3,
                           skip ? 1.25 : 1, inverse};
    mtt_ok(p->cpu->rope(p->cpu_ctx, &rope, 37, inverse, &x.host, &y.host), "rope");
    mtt_ok(p->dev->rope(p->dev_ctx, &rope, 37, inverse, &x.dev, &y.dev), "rope");
    mtt_twin_check(p, &y, tolerance, "rope");
    mtt_ok(p->dev->rope(p->dev_ctx, &rope, 37, inverse, &x.dev, &x.dev), "rope in place");
    mtt_ok(p->cpu->rope(p->cpu_ctx, &rope, 37, inverse, &x.host, &x.host), "rope in place");
    mtt_twin_check(p, &x, tolerance, "rope in place");
    mtt_twin_drop(p, &x), mtt_twin_drop(p, &y);
}

static void rope_of_any_shape_matches_the_cpu(void **state)
{
    static const int64_t shapes[][4] = {{1, 1, 1, 2},   {2, 3, 5, 6},   {2, 9, 33, 32},
                                        {1, 17, 3, 64}, {3, 1, 2, 128}, {1, 2, 3, 1030},
                                        {0, 2, 3, 8},   {1, 2, 0, 8},   {1, 2, 600, 16}};
    for (int t = 0; t < 4; t++)
        for (size_t k = 0; k < sizeof shapes / sizeof *shapes; k++) {
            check_rope(*state, mtt_floats[t], shapes[k], MTT_PLACED_DENSE, 0, false);
            check_rope(*state, mtt_floats[t], shapes[k], MTT_PLACED_DENSE, 1, false);
            check_rope(*state, mtt_floats[t], shapes[k], MTT_PLACED_DENSE, 1, true);
            check_rope(*state, mtt_floats[t], shapes[k], MTT_PLACED_PADDED, 0, true);
        }
}

/* ---- element-wise ---- */

static void check_swiglu(const mtt_pair *p, mt_dtype dtype, const mtt_shape *s, mtt_placing placing,
                         int64_t skip)
{
    double tolerance = 16 * mtt_epsilon(dtype);
    mtt_twin gate = mtt_twin_make(p, dtype, s->rank, s->at, placing, skip, -6, 6),
             up = mtt_twin_make(p, dtype, s->rank, s->at, placing, 0, -2, 2),
             dy = mtt_twin_make(p, dtype, s->rank, s->at, MTT_PLACED_DENSE, skip, -1, 1);
    mtt_twin out[3];
    for (int i = 0; i < 3; i++)
        out[i] = mtt_twin_make(p, dtype, s->rank, s->at, MTT_PLACED_DENSE, 0, 0, 1);
    mtt_ok(p->cpu->swiglu(p->cpu_ctx, &gate.host, &up.host, &out[0].host), "swiglu");
    mtt_ok(p->dev->swiglu(p->dev_ctx, &gate.dev, &up.dev, &out[0].dev), "swiglu");
    mtt_twin_check(p, &out[0], tolerance, "swiglu");
    for (int wanted = 1; wanted < 4; wanted++) {
        const mti_view *h1 = wanted & 1 ? &out[1].host : NULL,
                       *h2 = wanted & 2 ? &out[2].host : NULL;
        const mti_view *d1 = wanted & 1 ? &out[1].dev : NULL, *d2 = wanted & 2 ? &out[2].dev : NULL;
        mtt_ok(
            p->cpu->swiglu_backward(p->cpu_ctx, &gate.host, h1 ? &up.host : NULL, &dy.host, h1, h2),
            "swiglu backward");
        mtt_ok(p->dev->swiglu_backward(p->dev_ctx, &gate.dev, d1 ? &up.dev : NULL, &dy.dev, d1, d2),
               "swiglu backward");
        mtt_twin_check(p, &out[1], tolerance, "dgate");
        mtt_twin_check(p, &out[2], tolerance, "dup");
    }
    for (int i = 0; i < 3; i++) mtt_twin_drop(p, &out[i]);
    mtt_twin_drop(p, &gate), mtt_twin_drop(p, &up), mtt_twin_drop(p, &dy);
}

static void swiglu_of_any_layout_matches_the_cpu(void **state)
{
    for (int t = 0; t < 4; t++)
        for (int k = 0; k < mtt_n_shapes; k++)
            for (mtt_placing placing = 0; placing < MTT_PLACING_COUNT; placing++)
                check_swiglu(*state, mtt_floats[t], &mtt_shapes[k], placing, k & 1);
}

static void check_where(const mtt_pair *p, mt_dtype dtype, const mtt_shape *s, mtt_placing placing,
                        int given)
{
    mtt_twin mask = mtt_twin_make(p, MT_BOOL, s->rank, s->at, placing, 0, 0, 1),
             a = mtt_twin_make(p, dtype, s->rank, s->at, placing, 1, -2, 2),
             b = mtt_twin_make(p, dtype, s->rank, s->at, MTT_PLACED_DENSE, 0, -2, 2),
             y = mtt_twin_make(p, dtype, s->rank, s->at, MTT_PLACED_DENSE, 0, 0, 1);
    for (int64_t i = 0; i < mti_view_count(&mask.host); i++) mtt_set(&mask.host, i, i * 7 % 3 == 1);
    mtt_twin_push(p, &mask);
    /* b repeated along the last dimension */
    if (s->rank) b.host.stride[s->rank - 1] = b.dev.stride[s->rank - 1] = 0;
    mtt_ok(p->cpu->where(p->cpu_ctx, &mask.host, given & 1 ? &a.host : NULL,
                         given & 2 ? &b.host : NULL, &y.host),
           "where");
    mtt_ok(p->dev->where(p->dev_ctx, &mask.dev, given & 1 ? &a.dev : NULL,
                         given & 2 ? &b.dev : NULL, &y.dev),
           "where");
    mtt_twin_check(p, &y, 0, "where");
    mtt_twin_drop(p, &mask), mtt_twin_drop(p, &a), mtt_twin_drop(p, &b), mtt_twin_drop(p, &y);
}

static void where_of_any_layout_is_the_same_to_the_bit(void **state)
{
    for (int t = 0; t < 4; t++)
        for (int k = 0; k < mtt_n_shapes; k++)
            for (mtt_placing placing = 0; placing < MTT_PLACING_COUNT; placing++)
                check_where(*state, mtt_floats[t], &mtt_shapes[k], placing,
                            1 + (k + (int)placing) % 3);
}

static void pow_matches_the_cpu_for_every_kind_of_exponent(void **state)
{
    static const double exponents[] = {-2, -1.25, -1, -0.5, 0, 0.5, 1, 1.75, 2, 3, 4};
    const mtt_pair *p = *state;
    const int64_t shape[] = {1037};
    for (int t = 0; t < 4; t++)
        for (size_t k = 0; k < sizeof exponents / sizeof *exponents; k++) {
            double e = exponents[k], tolerance = 8 * mtt_epsilon(mtt_floats[t]);
            mtt_twin v[4]; /* x, dy, y, dx */
            for (int i = 0; i < 4; i++)
                v[i] = mtt_twin_make(p, mtt_floats[t], 1, shape, MTT_PLACED_DENSE, i & 1,
                                     i == 1 ? -1 : 0.25, 3);
            mtt_ok(p->cpu->unary(p->cpu_ctx, MTI_UNARY_pow, e, 0, &v[0].host, &v[2].host), "pow");
            mtt_ok(p->dev->unary(p->dev_ctx, MTI_UNARY_pow, e, 0, &v[0].dev, &v[2].dev), "pow");
            mtt_ok(p->cpu->unary_backward(p->cpu_ctx, MTI_UNARY_pow, e, 0, &v[0].host, &v[1].host,
                                          &v[3].host),
                   "pow backward");
            mtt_ok(p->dev->unary_backward(p->dev_ctx, MTI_UNARY_pow, e, 0, &v[0].dev, &v[1].dev,
                                          &v[3].dev),
                   "pow backward");
            mtt_twin_check(p, &v[2], tolerance, "pow");
            mtt_twin_check(p, &v[3], tolerance, "pow backward");
            for (int i = 0; i < 4; i++) mtt_twin_drop(p, &v[i]);
        }
}

/* ---- max ---- */

static void check_max(const mtt_pair *p, mt_dtype dtype, const mtt_shape *s, int kept,
                      mtt_placing placing, bool odd)
{
    mtt_twin x = mtt_twin_make(p, dtype, s->rank, s->at, placing, 1, -2, odd ? -1.875 : 2),
             y = mtt_twin_make(p, dtype, kept, s->at, MTT_PLACED_DENSE, 0, 0, 1),
             index = mtt_twin_make(p, MT_I64, kept, s->at, MTT_PLACED_DENSE, 0, 0, 1),
             dy = mtt_twin_make(p, dtype, kept, s->at, placing, 0, -1, 1),
             dx = mtt_twin_make(p, dtype, s->rank, s->at, placing, 0, 0, 1);
    int64_t n = mti_view_count(&x.host);
    if (odd && n > 0) {
        mtt_set(&x.host, n / 2, (double)NAN), mtt_set(&x.host, n - 1, (double)NAN);
        mtt_twin_push(p, &x);
    }
    mtt_ok(p->cpu->max(p->cpu_ctx, &x.host, &y.host, &index.host), "max");
    mtt_ok(p->dev->max(p->dev_ctx, &x.dev, &y.dev, &index.dev), "max");
    mtt_twin_check(p, &y, odd ? DBL_MIN : 0, "max"); /* any NaN is accepted */
    mtt_twin_check(p, &index, 0, "index");
    mtt_ok(p->cpu->max_backward(p->cpu_ctx, &index.host, &dy.host, &dx.host), "max backward");
    mtt_ok(p->dev->max_backward(p->dev_ctx, &index.dev, &dy.dev, &dx.dev), "max backward");
    mtt_twin_check(p, &dx, 0, "max backward");
    mtt_twin_drop(p, &x), mtt_twin_drop(p, &y), mtt_twin_drop(p, &index);
    mtt_twin_drop(p, &dy), mtt_twin_drop(p, &dx);
}

static void max_finds_the_same_element_as_the_cpu(void **state)
{
    static const mtt_shape shapes[] = {{1, {5000}},      {2, {3, 9001}},   {2, {600, 3}},
                                       {3, {2, 65, 70}}, {3, {4, 600, 9}}, {3, {0, 3, 2}}};
    for (int t = 0; t < 4; t++)
        for (size_t k = 0; k < sizeof shapes / sizeof *shapes; k++)
            for (int kept = 0; kept <= shapes[k].rank; kept++)
                for (mtt_placing placing = 0; placing < MTT_PLACING_COUNT; placing++)
                    if (kept > 0 || shapes[k].at[0] > 0)
                        check_max(*state, mtt_floats[t], &shapes[k], kept, placing, placing & 1);
}

/* 200,000 elements and one y: 24 blocks of 256 threads, whose results one warp joins. */
static void blocks_share_what_one_max_is_chosen_from(void **state)
{
    const mtt_pair *p = *state;
    const int64_t shape[] = {1000, 200};
    for (int t = 0; t < 4; t++)
        for (mtt_placing placing = 0; placing < MTT_PLACING_COUNT; placing++) {
            mtt_twin x = mtt_twin_make(p, mtt_floats[t], 2, shape, placing, 1, -2, 2),
                     y = mtt_twin_make(p, mtt_floats[t], 0, NULL, MTT_PLACED_DENSE, 0, 0, 1),
                     index = mtt_twin_make(p, MT_I64, 0, NULL, MTT_PLACED_DENSE, 0, 0, 1);
            /* equal ones in two blocks' parts: the first wins */
            mtt_set(&x.host, 150007, 3), mtt_set(&x.host, 90011, 3);
            mtt_twin_push(p, &x);
            mtt_ok(p->cpu->max(p->cpu_ctx, &x.host, &y.host, &index.host), "max");
            uint64_t before = mtt_double_threads();
            mtt_ok(p->dev->max(p->dev_ctx, &x.dev, &y.dev, &index.dev), "max");
            mtt_ok(p->dev->sync(p->dev_ctx), "sync");
            if (mtt_double("cudasim_counts"))
                assert_int_equal(mtt_double_threads() - before, 24 * 256 + 32);
            mtt_twin_check(p, &y, 0, "max");
            mtt_twin_check(p, &index, 0, "index");
            assert_int_equal(mtt_get(&index.host, 0), 90011);
            mtt_twin_drop(p, &x), mtt_twin_drop(p, &y), mtt_twin_drop(p, &index);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rms_norm_of_rows_of_any_length_matches_the_cpu),
        cmocka_unit_test(rope_of_any_shape_matches_the_cpu),
        cmocka_unit_test(swiglu_of_any_layout_matches_the_cpu),
        cmocka_unit_test(where_of_any_layout_is_the_same_to_the_bit),
        cmocka_unit_test(pow_matches_the_cpu_for_every_kind_of_exponent),
        cmocka_unit_test(max_finds_the_same_element_as_the_cpu),
        cmocka_unit_test(blocks_share_what_one_max_is_chosen_from),
    };
    return cmocka_run_group_tests(tests, mtt_open, mtt_close_pair);
}

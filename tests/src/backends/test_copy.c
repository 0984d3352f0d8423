/* Copies between layouts and casts between types. */
#include "views.h"
#include "backends/cpu/cpu.h"

static void a_copy_moves_every_element_between_any_two_layouts(void **state)
{
    (void)state;
    mti_ctx *ctx;
    const mti_backend *be = mtt_backend(&ctx);
    const mt_dtype types[] = {MT_F64, MT_F32, MT_BF16, MT_U8};
    for (int t = 0; t < 4; t++)
        for (int s = 0; s < 9; s++)
            for (mtt_placing from = 0; from <= MTT_PLACED_BROADCAST; from++)
                for (mtt_placing to = 0; to < MTT_PLACING_COUNT; to++) {
                    if (from == MTT_PLACING_COUNT) continue;
                    const int64_t shape[4] = {37, 2, 1, mtt_sizes[s]};
                    mti_view x = mtt_view(types[t], 4, shape, from),
                             y = mtt_view(types[t], 4, shape, to);
                    mtt_fill(&x, 5, 0, 200);
                    mtt_did(be->copy(ctx, &x, &y));
                    mtt_same(&x, &y, "copy");
                    mtt_drop(&x), mtt_drop(&y);
                }
    be->close(ctx);
}

/* The result of a cast; doubles hold all values of this test exactly. */
static double cast(double x, mt_dtype to)
{
    mti_view v = mtt_dense(to, 1);
    if (to == MT_BOOL)
        mtt_set(&v, 0, x != 0);
    else
        mtt_set(&v, 0, x);
    double value = mtt_get(&v, 0);
    mtt_drop(&v);
    return value;
}

static void casts_between_all_pairs_of_types_round_once(void **state)
{
    (void)state;
    mti_ctx *ctx;
    const mti_backend *be = mtt_backend(&ctx);
    for (mt_dtype from = 0; from < MT_DTYPE_COUNT; from++)
        for (mt_dtype to = 0; to < MT_DTYPE_COUNT; to++)
            for (int s = 0; s < 9; s++)
                for (mtt_placing placing = 0; placing < MTT_PLACING_COUNT; placing++) {
                    const int64_t shape[2] = {3, mtt_sizes[s]};
                    mti_view x = mtt_view(from, 2, shape, placing), y = mtt_view(to, 2, shape, 0);
                    bool positive =
                        !mt_dtype_bits(from).sign || (to != MT_BOOL && !mt_dtype_bits(to).sign);
                    mtt_fill(&x, 6, positive ? 0 : -100, from == MT_BOOL ? 2 : 100);
                    mtt_did(be->copy(ctx, &x, &y));
                    for (int64_t i = 0; i < mti_view_count(&x); i++)
                        mtt_close(mtt_get(&y, i), cast(mtt_get(&x, i), to), 0, "cast", i);
                    mtt_drop(&x), mtt_drop(&y);
                }
    be->close(ctx);
}

static void floats_out_of_range_become_the_nearest_integer(void **state)
{
    (void)state;
    mti_ctx *ctx;
    const mti_backend *be = mtt_backend(&ctx);
    mti_view x = mtt_dense(MT_F64, 4), y = mtt_dense(MT_I64, 4), b = mtt_dense(MT_BOOL, 4);
    double *at = x.data;
    at[0] = NAN, at[1] = 1e300, at[2] = -INFINITY, at[3] = -0.25;
    mtt_did(be->copy(ctx, &x, &y) && be->copy(ctx, &x, &b));
    const int64_t *got = y.data;
    assert_true(got[0] == 0 && got[1] == INT64_MAX && got[2] == INT64_MIN && got[3] == 0);
    for (int64_t i = 0; i < 4; i++) assert_true(mtt_get(&b, i) == 1);
    mtt_drop(&x), mtt_drop(&y), mtt_drop(&b);
    be->close(ctx);
}

static void every_8_bit_float_widens_exactly_and_comes_back(void **state)
{
    (void)state;
    static const mt_dtype dtypes[] = {MT_F8_E4M3, MT_F8_E5M2};
    for (int t = 0; t < 2; t++) {
        mti_view v = mtt_dense(dtypes[t], 256);
        uint8_t *bits = v.data, back[256];
        float wide[256];
        for (int i = 0; i < 256; i++) bits[i] = (uint8_t)i;
        mti_cpu_load_f32(v.dtype, bits, wide, 256);
        mti_cpu_store_f32(v.dtype, wide, back, 256);
        for (int i = 0; i < 256; i++) {
            mtt_close((double)wide[i], mtt_get(&v, i), 0, "widened", i);
            assert_int_equal(!!signbit(wide[i]), i >> 7);
            if (!isnan(wide[i])) assert_int_equal(back[i], i);
            if (isnan(wide[i])) assert_int_equal(back[i] & 0x7f, 0x7f);
        }
        mtt_drop(&v);
    }
}

static void every_16_bit_float_widens_exactly_and_narrows_back(void **state)
{
    (void)state;
    mti_view v = mtt_dense(MT_F16, 1 << 16);
    uint16_t *bits = v.data, *back = malloc(2 << 16);
    float *wide = malloc(4 << 16);
    assert_true(back && wide);
    for (int t = 2; t < 4; t++) {
        v.dtype = mtt_floats[t];
        for (int i = 0; i < 1 << 16; i++) bits[i] = (uint16_t)i;
        mti_cpu_load_f32(v.dtype, bits, wide, 1 << 16);
        mti_cpu_store_f32(v.dtype, wide, back, 1 << 16);
        for (int i = 0; i < 1 << 16; i++) {
            mtt_close((double)wide[i], mtt_get(&v, i), 0, "widened", i);
            assert_true(!!signbit(wide[i]) == i >> 15);
            if (!isnan(wide[i])) assert_int_equal(back[i], i);
            mti_view one = {.data = &back[i], .dtype = v.dtype};
            if (isnan(wide[i])) assert_true(isnan(mtt_get(&one, 0)));
        }
    }
    free(back), free(wide);
    mtt_drop(&v);
}

static void f32_narrows_to_the_nearest_narrow_float_ties_to_even(void **state)
{
    (void)state;
    static const mt_dtype dtypes[] = {MT_BF16, MT_F16, MT_F8_E4M3, MT_F8_E5M2};
    for (int t = 0; t < 4; t++) {
        mti_view want = mtt_dense(dtypes[t], 1);
        int bits = 8 * (int)mt_dtype_size(dtypes[t]),
            dropped = 23 - mt_dtype_bits(dtypes[t]).mantissa;
        uint16_t got = 0;
        for (uint64_t u = 0; u <= UINT32_MAX; u += 1021) {
            /* half of them lie exactly between two neighbours */
            uint32_t pattern = (uint32_t)u & (u & 1 ? ~0u : ~0u << (dropped - 1));
            float x;
            memcpy(&x, &pattern, sizeof x);
            mti_cpu_store_f32(want.dtype, &x, &got, 1);
            mtt_set(&want, 0, (double)x);
            mti_view one = {.data = &got, .dtype = want.dtype};
            mtt_close(mtt_get(&one, 0), mtt_get(&want, 0), 0, mt_dtype_name(want.dtype),
                      (int64_t)u);
            assert_true(got >> (bits - 1) == !!signbit(x));
        }
        mtt_drop(&want);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_copy_moves_every_element_between_any_two_layouts),
        cmocka_unit_test(casts_between_all_pairs_of_types_round_once),
        cmocka_unit_test(floats_out_of_range_become_the_nearest_integer),
        cmocka_unit_test(every_8_bit_float_widens_exactly_and_comes_back),
        cmocka_unit_test(every_16_bit_float_widens_exactly_and_narrows_back),
        cmocka_unit_test(f32_narrows_to_the_nearest_narrow_float_ties_to_even),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* Bits, blocks and cross-entropy in pieces on the device, against the CPU: packed tensors have the
 * same bits on both. */
#include "twins.h"
#include "memtape/status.h"

#define IGNORE (-100)

static const int64_t sizes[] = {0,  1,   2,   7,   8,   9,   31,  32,  33,   63,   64,
                                65, 127, 128, 129, 255, 257, 511, 513, 1000, 4103, 70001};
#define N_SIZES (int)(sizeof sizes / sizeof *sizes)

static mtt_twin line(const mtt_pair *p, mt_dtype dtype, int64_t n, double lo, double hi)
{
    return mtt_twin_make(p, dtype, 1, &n, MTT_PLACED_DENSE, 0, lo, hi);
}

/* ---- bits ---- */

static void check_bits(const mtt_pair *p, mt_dtype dtype, int64_t n)
{
    bool is_bool = dtype == MT_BOOL;
    mtt_twin x = line(p, dtype, n, is_bool ? 0 : -1, is_bool ? 2 : 1);
    mtt_twin bits = line(p, MT_U8, (n + 7) / 8, 0, 9), y = line(p, dtype, n, 0, 1);
    mtt_ok(p->cpu->pack_bits(p->cpu_ctx, &x.host, &bits.host), "pack_bits");
    mtt_ok(p->dev->pack_bits(p->dev_ctx, &x.dev, &bits.dev), "pack_bits");
    mtt_twin_check(p, &bits, 0, "pack_bits");
    mtt_ok(p->cpu->unpack_bits(p->cpu_ctx, &bits.host, &y.host), "unpack_bits");
    mtt_ok(p->dev->unpack_bits(p->dev_ctx, &bits.dev, &y.dev), "unpack_bits");
    mtt_twin_check(p, &y, 0, "unpack_bits");
    mtt_twin_drop(p, &x), mtt_twin_drop(p, &bits), mtt_twin_drop(p, &y);
}

static void bits_of_any_number_of_elements_are_the_same(void **state)
{
    for (int k = 0; k < N_SIZES; k++) {
        for (int t = 0; t < 4; t++) check_bits(*state, mtt_floats[t], sizes[k]);
        check_bits(*state, MT_BOOL, sizes[k]);
    }
}

static void the_mask_of_a_dropout_is_the_same(void **state)
{
    const mtt_pair *p = *state;
    for (int k = 0; k < N_SIZES; k++) {
        mtt_twin mask = line(p, MT_BOOL, sizes[k], 0, 1);
        mtt_ok(p->cpu->dropout_mask(p->cpu_ctx, 0.3, 7, 11, &mask.host), "dropout_mask");
        mtt_ok(p->dev->dropout_mask(p->dev_ctx, 0.3, 7, 11, &mask.dev), "dropout_mask");
        mtt_twin_check(p, &mask, 0, "dropout_mask");
        mtt_twin_drop(p, &mask);
    }
}

/* ---- blocks ---- */

static void check_blocks(const mtt_pair *p, mti_code code, mt_dtype dtype, int64_t block, int64_t n,
                         bool shifted, double size)
{
    int64_t blocks = (n + block - 1) / block;
    mtt_twin x = line(p, dtype, n, -size, size);
    /* half of the lengths begin where no vector may */
    mtt_twin y = mtt_twin_make(p, dtype, 1, &n, MTT_PLACED_DENSE, shifted && n % 2, 0, 1);
    mtt_twin codes = line(p, MT_U8, code == MTI_CODE_INT8 ? n : (n + 1) / 2, 0, 1);
    mtt_twin scales = line(p, code == MTI_CODE_MXFP4 ? MT_U8 : MT_F32, blocks, 0, 1),
             shift = line(p, MT_F32, 1, 0.1, 0.2);
    if (n > 3 * block) { /* a block with values that are not finite, and a block of zeros */
        mtt_set(&x.host, block + 1, NAN), mtt_set(&x.host, 2 * block, INFINITY);
        for (int64_t i = 0; i < block; i++) mtt_set(&x.host, i, 0);
        mtt_twin_push(p, &x);
    }
    const mti_view *host = shifted ? &shift.host : NULL, *dev = shifted ? &shift.dev : NULL;
    mtt_ok(p->cpu->quantize(p->cpu_ctx, code, block, &x.host, host, &codes.host, &scales.host), "");
    mtt_ok(p->dev->quantize(p->dev_ctx, code, block, &x.dev, dev, &codes.dev, &scales.dev), "");
    mtt_twin_check(p, &codes, 0, "codes");
    mtt_twin_check(p, &scales, 0, "scales");
    mtt_ok(p->cpu->dequantize(p->cpu_ctx, code, block, &codes.host, &scales.host, host, &y.host),
           "");
    mtt_ok(p->dev->dequantize(p->dev_ctx, code, block, &codes.dev, &scales.dev, dev, &y.dev), "");
    /* equal, or both NaN: the bits of a NaN may differ between machines */
    mtt_twin_check(p, &y, n > 3 * block ? 1e-300 : 0, "dequantize");
    mtt_twin_drop(p, &x), mtt_twin_drop(p, &y), mtt_twin_drop(p, &codes);
    mtt_twin_drop(p, &scales), mtt_twin_drop(p, &shift);
}

static void codes_scales_and_restored_values_are_the_same(void **state)
{
    for (int code = 0; code < 3; code++)
        for (int t = 0; t < 4; t++)
            for (int k = 0; k < N_SIZES; k++)
                for (int64_t block = 64; block <= 256; block *= 2) {
                    check_blocks(*state, (mti_code)code, mtt_floats[t], block, sizes[k], false, 3);
                    check_blocks(*state, (mti_code)code, mtt_floats[t], block, sizes[k], true, 3);
                }
    for (int code = 0; code < 3; code++)
        for (int64_t block = 8; block <= 512; block *= 8)
            for (double size = 1e-44; size < 1e38; size *= 1e9)
                check_blocks(*state, (mti_code)code, MT_F32, block, 3000, false, size);
}

static void the_mean_of_scales_is_the_same(void **state)
{
    const mtt_pair *p = *state;
    for (int k = 1; k < N_SIZES; k++) {
        mtt_twin x = line(p, MT_F32, sizes[k], 0, 1), y = line(p, MT_F32, 1, 0, 1);
        mtt_ok(p->cpu->lane_mean(p->cpu_ctx, &x.host, &y.host), "lane_mean");
        mtt_ok(p->dev->lane_mean(p->dev_ctx, &x.dev, &y.dev), "lane_mean");
        mtt_twin_check(p, &y, 0, "lane_mean");
        mtt_twin_drop(p, &x), mtt_twin_drop(p, &y);
    }
}

/* ---- cross-entropy in pieces ---- */

static void check_entropy(const mtt_pair *p, mt_dtype dtype, int64_t rows, int64_t n,
                          mtt_placing placing, int64_t skip)
{
    const int64_t shape[] = {rows, n}, first = skip ? n / 2 : 0;
    mt_dtype wide = dtype == MT_F64 ? MT_F64 : MT_F32;
    double eps = 16 * mtt_epsilon(wide), rounding = wide == dtype ? eps : mtt_epsilon(dtype);
    mtt_twin target = line(p, MT_I64, rows, 0, (double)n);
    for (int64_t r = 0; r < rows; r += 3) mtt_set(&target.host, r, IGNORE);
    mtt_twin_push(p, &target);
    mtt_twin x = mtt_twin_make(p, dtype, 2, shape, placing, skip, -8, 8);
    mtt_twin dx = mtt_twin_make(p, dtype, 2, shape, placing, 0, 0, 1);
    mtt_twin lse = line(p, wide, rows, 0, 1), loss = line(p, wide, rows, 0, 1);
    mtt_twin mean = line(p, dtype, 1, 0, 1), scale = line(p, wide, 1, 0.25, 0.5);
    mtt_ok(p->cpu->entropy_rows(p->cpu_ctx, IGNORE, &x.host, &target.host, &lse.host, &loss.host),
           "entropy_rows");
    mtt_ok(p->dev->entropy_rows(p->dev_ctx, IGNORE, &x.dev, &target.dev, &lse.dev, &loss.dev),
           "entropy_rows");
    mtt_twin_check(p, &lse, eps, "lse");
    mtt_twin_check(p, &loss, eps, "loss");
    mtt_twin_push(p, &lse), mtt_twin_push(p, &loss);
    mtt_ok(p->cpu->counted_mean(p->cpu_ctx, IGNORE, n, &target.host, &loss.host, &mean.host), "");
    mtt_ok(p->dev->counted_mean(p->dev_ctx, IGNORE, n, &target.dev, &loss.dev, &mean.dev), "");
    mtt_twin_check(p, &mean, rounding, "mean");
    mtt_ok(p->cpu->entropy_rows_backward(p->cpu_ctx, IGNORE, first, &x.host, &target.host,
                                         &lse.host, &scale.host, &dx.host),
           "backward");
    mtt_ok(p->dev->entropy_rows_backward(p->dev_ctx, IGNORE, first, &x.dev, &target.dev, &lse.dev,
                                         &scale.dev, &dx.dev),
           "backward");
    mtt_twin_check(p, &dx, rounding, "dx");
    mtt_ok(p->cpu->entropy_rows_backward(p->cpu_ctx, IGNORE, first, &x.host, &target.host,
                                         &lse.host, &scale.host, &x.host),
           "in place");
    mtt_ok(p->dev->entropy_rows_backward(p->dev_ctx, IGNORE, first, &x.dev, &target.dev, &lse.dev,
                                         &scale.dev, &x.dev),
           "in place");
    mtt_twin_check(p, &x, rounding, "dx in place of x");
    mtt_twin *all[] = {&target, &x, &dx, &lse, &loss, &mean, &scale};
    for (int i = 0; i < 7; i++) mtt_twin_drop(p, all[i]);
}

static void cross_entropy_in_pieces_matches_the_cpu(void **state)
{
    static const int64_t widths[] = {1, 2, 7, 8, 9, 31, 64, 65, 513, 1000, 4103};
    for (int t = 0; t < 4; t++) {
        for (int k = 0; k < 11; k++) {
            check_entropy(*state, mtt_floats[t], 7, widths[k], MTT_PLACED_DENSE, 0);
            check_entropy(*state, mtt_floats[t], 6, widths[k], MTT_PLACED_PADDED, 1);
        }
        check_entropy(*state, mtt_floats[t], 3, 50257, MTT_PLACED_DENSE, 0);
        check_entropy(*state, mtt_floats[t], 0, 5, MTT_PLACED_DENSE, 0);
    }
    check_entropy(*state, MT_F32, 5000, 3, MTT_PLACED_DENSE, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bits_of_any_number_of_elements_are_the_same),
        cmocka_unit_test(the_mask_of_a_dropout_is_the_same),
        cmocka_unit_test(codes_scales_and_restored_values_are_the_same),
        cmocka_unit_test(the_mean_of_scales_is_the_same),
        cmocka_unit_test(cross_entropy_in_pieces_matches_the_cpu),
    };
    return cmocka_run_group_tests(tests, mtt_open, mtt_close_pair);
}

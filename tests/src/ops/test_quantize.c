/* Tensors in fewer bits: the restored values, their errors, and the bytes taken. */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "base/base.h"
#include "mtt_fixture.h"

static const mt_dtype floats[] = {MT_F32, MT_F64, MT_BF16, MT_F16};
static const int64_t sizes[] = {0,   1,   2,   7,   8,   9,    31,   63,   64,   65,
                                127, 128, 129, 255, 257, 1000, 4096, 4103, 70001};
#define N_SIZES (int)(sizeof sizes / sizeof *sizes)

/* ---- bits ---- */

static void packed_bits_come_back_and_take_an_eighth(void **state)
{
    (void)state;
    for (int t = 0; t < 4; t++)
        for (int k = 0; k < N_SIZES; k++) {
            int64_t n = sizes[k];
            MT_AUTO mt_tensor *x = mtt_made(mtt_random(device, floats[t], 1, &n, 3, -1, 1));
            MT_AUTO mt_tensor *bits = mtt_made(mt_pack_bits(x));
            assert_int_equal(mt_storage_of(bits).bytes, (n + 7) / 8);
            MT_AUTO mt_tensor *y = mtt_made(mt_unpack_bits(bits, floats[t], 1, &n));
            MT_AUTO mt_tensor *mask = mtt_made(mt_unpack_bits(bits, MT_BOOL, 1, &n));
            MT_AUTO mt_tensor *again = mtt_made(mt_pack_bits(mask));
            assert_true(mtt_same_bits(bits, again));
            double *in = mtt_doubles(x), *out = mtt_doubles(y);
            for (int64_t i = 0; i < n; i++) assert_true(out[i] == (in[i] > 0));
            free(in);
            free(out);
        }
}

static void bits_of_a_view_are_those_of_its_elements_in_order(void **state)
{
    (void)state;
    MT_AUTO mt_tensor *x = mtt_made(mtt_random(device, MT_F32, MT_SHAPE(13, 9), 5, -1, 1));
    MT_AUTO mt_tensor *turned = mtt_made(mt_transpose(x, 0, 1));
    MT_AUTO mt_tensor *dense = mtt_made(mt_contiguous(turned));
    MT_AUTO mt_tensor *a = mtt_made(mt_pack_bits(turned)), *b = mtt_made(mt_pack_bits(dense));
    assert_true(mtt_same_bits(a, b));
}

static void nan_counts_as_positive_and_zero_of_either_sign_does_not(void **state)
{
    (void)state;
    const double values[] = {NAN, 0, -0.0, 1e-40, -1e-40, INFINITY, -INFINITY, 1};
    uint8_t byte = 0;
    MT_AUTO mt_tensor *x = mtt_made(mtt_from_doubles(device, MT_F32, MT_SHAPE(8), values));
    MT_AUTO mt_tensor *bits = mtt_made(mt_pack_bits(x));
    mtt_ok(mt_to_host(bits, &byte, 1));
    assert_int_equal(byte, 0xa9);
}

/* ---- a dropout mask is drawn again ---- */

typedef struct record {
    mt_save_info info;
    mt_tensor *mask;
} record;

static mt_status record_saved(void *user, const mt_save_info *info, mt_tensor *t, mt_tensor **kept,
                              void **state)
{
    record *s = user;
    (void)kept, (void)state;
    s->info = *info;
    s->mask = mt_retain(t);
    return MT_OK;
}

static void a_dropout_mask_is_drawn_again_from_p_seed_and_offset(void **state)
{
    (void)state;
    for (int k = 1; k < N_SIZES; k++) {
        record s = {.mask = NULL};
        MT_AUTO mt_tensor *x = mtt_made(mt_full(device, MT_F32, 1, &sizes[k], 1));
        mtt_ok(mt_set_requires_grad(x, true));
        MT_AUTO mt_tensor *earlier = mtt_made(mt_dropout(x, 0.2)); /* advances the generator */
        mtt_ok(mt_push_saved_hooks(&(mt_saved_hooks){.pack = record_saved}, &s));
        MT_AUTO mt_tensor *y = mtt_made(mt_dropout(x, 0.3));
        mtt_ok(mt_pop_saved_hooks());
        assert_true(s.info.p == 0.3);
        MT_AUTO mt_tensor *again =
            mtt_made(mt_dropout_mask(device, 1, &sizes[k], s.info.p, s.info.seed, s.info.offset));
        assert_true(mtt_same_bits(again, s.mask));
        mt_release(s.mask);
    }
}

static void ops_that_draw_nothing_report_p_0_to_hooks(void **state)
{
    (void)state;
    record s = {.info.p = 9};
    MT_AUTO mt_tensor *x = mtt_made(mt_full(device, MT_F32, MT_SHAPE(3), 1));
    mtt_ok(mt_set_requires_grad(x, true));
    mtt_ok(mt_push_saved_hooks(&(mt_saved_hooks){.pack = record_saved}, &s));
    MT_AUTO mt_tensor *y = mtt_made(mt_gelu(x));
    mtt_ok(mt_pop_saved_hooks());
    assert_true(s.info.p == 0 && s.info.seed == 0 && s.info.offset == 0);
    mt_release(s.mask);
}

/* ---- blocks ---- */

static const mt_quant formats[] = {
    {MT_QUANT_INT8, 0, false}, {MT_QUANT_INT8, 64, false}, {MT_QUANT_INT8, 256, false},
    {MT_QUANT_INT8, 64, true}, {MT_QUANT_NF4, 0, false},   {MT_QUANT_NF4, 128, false},
    {MT_QUANT_NF4, 64, true},  {MT_QUANT_MXFP4, 0, false},
};
#define N_FORMATS (int)(sizeof formats / sizeof *formats)

static const double nf4[16] = {-1.0,
                               -0.6961928009986877,
                               -0.5250730514526367,
                               -0.39491748809814453,
                               -0.28444138169288635,
                               -0.18477343022823334,
                               -0.09105003625154495,
                               0.0,
                               0.07958029955625534,
                               0.16093020141124725,
                               0.24611230194568634,
                               0.33791524171829224,
                               0.44070982933044434,
                               0.5626170039176941,
                               0.7229568362236023,
                               1.0};

static double normal_cdf(double x) { return 0.5 * erfc(-x * 0.70710678118654752440); }

static double normal_quantile(double p)
{
    double lo = -9, hi = 9;
    for (int i = 0; i < 200; i++) {
        double middle = (lo + hi) / 2;
        if (normal_cdf(middle) < p)
            lo = middle;
        else
            hi = middle;
    }
    return lo;
}

/* The paper's levels: quantiles at equal steps from d to 1/2 (8 steps) and from 1/2 to 1 - d (7),
 * d the mean of 1/32 and 1/30, divided by the largest. */
static void nf4_levels_are_quantiles_of_the_normal_distribution(void **state)
{
    (void)state;
    double d = (1.0 / 32 + 1.0 / 30) / 2, top = -normal_quantile(d);
    double values[64] = {1}; /* the largest value is 1, so the scale is 1 */
    for (int i = 0; i < 16; i++) {
        double p = i < 8 ? d + (0.5 - d) * (i / 7.0) : 0.5 + (0.5 - d) * ((i - 7) / 8.0);
        values[i + 1] = normal_quantile(p) / top;
    }
    MT_AUTO mt_tensor *x = mtt_made(mtt_from_doubles(device, MT_F32, MT_SHAPE(64), values));
    MT_AUTO mt_tensor *q = mtt_made(mt_quantize(x, &formats[4]));
    MT_AUTO mt_tensor *y = mtt_made(mt_dequantize(q, &formats[4], MT_F32, MT_SHAPE(64)));
    double *out = mtt_doubles(y);
    for (int i = 0; i < 16; i++) {
        assert_true(out[i + 1] == (float)nf4[i]);
        assert_true(fabs(out[i + 1] - values[i + 1]) < 3e-7);
    }
    free(out);
}

/* Half the largest gap between two of nf4's levels. */
#define NF4_HALF_GAP 0.1519036

/* The largest error of a scale, where no scale exceeds `largest`. */
static double scale_error(const mt_quant *q, double largest)
{
    return q->double_scales ? largest / 254 : 0;
}

static void check_round_trip(const mt_quant *q, mt_dtype dtype, int64_t n)
{
    bool is_nf4 = q->format == MT_QUANT_NF4, is_mx = q->format == MT_QUANT_MXFP4;
    int64_t block = q->block ? q->block : is_nf4 ? 64 : is_mx ? 32 : 128;
    MT_AUTO mt_tensor *x = mtt_made(mtt_random(device, dtype, 1, &n, 11, -3, 3));
    MT_AUTO mt_tensor *packed = mtt_made(mt_quantize(x, q));
    MT_AUTO mt_tensor *y = mtt_made(mt_dequantize(packed, q, dtype, 1, &n));
    int64_t m = (n + block - 1) / block, codes = is_nf4 || is_mx ? (n + 1) / 2 : n;
    int64_t scales = q->double_scales ? m + 4 * ((m + 255) / 256) + 4 * (m > 0) : is_mx ? m : 4 * m;
    assert_int_equal(mt_storage_of(packed).bytes, codes + scales);
    assert_int_equal(mt_quantized_bytes(q, n), codes + scales);
    double *in = mtt_doubles(x), *out = mtt_doubles(y);
    double rounding = dtype == MT_BF16 ? 0x1p-8 : dtype == MT_F16 ? 0x1p-11 : 0x1p-22;
    for (int64_t b = 0; b < m; b++) {
        double top = 0, worst = 0;
        int64_t end = (b + 1) * block < n ? (b + 1) * block : n;
        for (int64_t i = b * block; i < end; i++) top = fmax(top, fabs(in[i]));
        for (int64_t i = b * block; i < end; i++) worst = fmax(worst, fabs(in[i] - out[i]));
        double off = is_mx ? 0.25 * top : is_nf4 ? NF4_HALF_GAP * top : 0.5 * top / 127;
        off += scale_error(q, is_nf4 ? 3 : 3.0 / 127) * (is_nf4 ? 1 : 127);
        if (worst > off + top * rounding)
            fail_msg("block %d of %d: off by %g, allowed %g", (int)b, (int)n, worst, off);
    }
    free(in);
    free(out);
}

static void restored_values_are_within_half_a_step_of_the_input(void **state)
{
    (void)state;
    for (int f = 0; f < N_FORMATS; f++)
        for (int t = 0; t < 4; t++)
            for (int k = 0; k < N_SIZES; k++) check_round_trip(&formats[f], floats[t], sizes[k]);
}

static void quantising_restored_values_changes_nothing(void **state)
{
    (void)state;
    int64_t n = 1000;
    for (int f = 0; f < N_FORMATS; f++) {
        if (formats[f].double_scales) continue;
        MT_AUTO mt_tensor *x = mtt_made(mtt_random(device, MT_F32, 1, &n, 2, -1, 1));
        MT_AUTO mt_tensor *a = mtt_made(mt_quantize(x, &formats[f]));
        MT_AUTO mt_tensor *y = mtt_made(mt_dequantize(a, &formats[f], MT_F32, 1, &n));
        MT_AUTO mt_tensor *b = mtt_made(mt_quantize(y, &formats[f]));
        MT_AUTO mt_tensor *z = mtt_made(mt_dequantize(b, &formats[f], MT_F32, 1, &n));
        double *p = mtt_doubles(y), *q = mtt_doubles(z);
        for (int64_t i = 0; i < n; i++) assert_true(fabs(p[i] - q[i]) <= 0x1p-22 * fabs(p[i]));
        free(p);
        free(q);
    }
}

/* All codes with all scales but NaN, and the nearest of two levels, in a tie the even code. */
static void mxfp4_has_the_levels_of_e2m1_times_powers_of_two(void **state)
{
    (void)state;
    static const double level[] = {0, 0.5, 1, 1.5, 2, 3, 4, 6};
    static const double in[] = {6,    .25,  .26, .74, .75,  1.25, 1.26, 1.74, 1.75, 2.5,
                                2.51, 3.49, 3.5, 5,   5.01, 7.9,  -.25, -2.5, -7};
    static const double want[] = {6, 0, .5, .5, 1, 1, 1.5, 1.5, 2, 2, 3, 3, 4, 4, 6, 6, 0, -2, -6};
    const mt_quant q = {MT_QUANT_MXFP4, 0, false};
    const int64_t n = 255 * 32;
    uint8_t bytes[255 * 17];
    for (int e = 0; e < 255; e++) {
        bytes[e] = (uint8_t)e;
        for (int i = 0; i < 16; i++) bytes[255 + 16 * e + i] = (uint8_t)((15 - i) << 4 | i);
    }
    MT_AUTO mt_tensor *packed =
        mtt_made(mt_from_data(device, MT_U8, MT_SHAPE(sizeof bytes), bytes, sizeof bytes));
    MT_AUTO mt_tensor *y = mtt_made(mt_dequantize(packed, &q, MT_F32, MT_SHAPE(n)));
    double *out = mtt_doubles(y);
    for (int64_t i = 0; i < n; i++) {
        int64_t code = i % 2 ? 15 - i % 32 / 2 : i % 32 / 2;
        double v = ldexp(code < 8 ? level[code] : -level[code - 8], (int)(i / 32) - 127);
        assert_true(out[i] == (double)(float)v);
    }
    free(out);
    double values[32] = {0};
    memcpy(values, in, sizeof in);
    MT_AUTO mt_tensor *x = mtt_made(mtt_from_doubles(device, MT_F32, MT_SHAPE(32), values));
    mt_set(&packed, mtt_made(mt_quantize(x, &q)));
    mt_set(&y, mtt_made(mt_dequantize(packed, &q, MT_F32, MT_SHAPE(32))));
    out = mtt_doubles(y);
    for (size_t i = 0; i < sizeof in / sizeof *in; i++) assert_true(out[i] == want[i]);
    free(out);
}

static void int8_ties_go_to_even_and_nf4_ties_to_the_lower_level(void **state)
{
    (void)state;
    /* the scale is 1, so halves are exact */
    double values[64] = {127, 0.5, 1.5, 2.5, -0.5, -1.5, -2.5, 126.5};
    const double want[] = {127, 0, 2, 2, 0, -2, -2, 126};
    MT_AUTO mt_tensor *x = mtt_made(mtt_from_doubles(device, MT_F32, MT_SHAPE(64), values));
    MT_AUTO mt_tensor *q = mtt_made(mt_quantize(x, &formats[1]));
    MT_AUTO mt_tensor *y = mtt_made(mt_dequantize(q, &formats[1], MT_F32, MT_SHAPE(64)));
    double *out = mtt_doubles(y);
    for (int i = 0; i < 8; i++) assert_true(out[i] == want[i]);
    free(out);
    /* midpoints that are f32 numbers, and the next f32 numbers on either side */
    memset(values, 0, sizeof values);
    values[0] = 1;
    for (int i = 0; i < 15; i++) {
        float middle = (float)(((double)(float)nf4[i] + (float)nf4[i + 1]) / 2);
        bool exact = (double)middle == ((double)(float)nf4[i] + (float)nf4[i + 1]) / 2;
        values[3 * i + 1] = exact ? middle : nextafterf(middle, -2);
        values[3 * i + 2] = nextafterf(middle, -2);
        values[3 * i + 3] = nextafterf(middle, 2);
    }
    MT_AUTO mt_tensor *middles = mtt_made(mtt_from_doubles(device, MT_F32, MT_SHAPE(64), values));
    mt_set(&q, mtt_made(mt_quantize(middles, &formats[4])));
    mt_set(&y, mtt_made(mt_dequantize(q, &formats[4], MT_F32, MT_SHAPE(64))));
    out = mtt_doubles(y);
    for (int i = 0; i < 15; i++) {
        assert_true(out[3 * i + 1] == (float)nf4[i]);
        assert_true(out[3 * i + 2] == (float)nf4[i]);
        assert_true(out[3 * i + 3] == (float)nf4[i + 1]);
    }
    free(out);
}

static void a_block_that_is_not_finite_comes_back_as_nan_and_its_neighbours_do_not(void **state)
{
    (void)state;
    for (int f = 0; f < N_FORMATS; f++)
        for (int inf = 0; inf < 2; inf++) {
            double values[600];
            for (int i = 0; i < 600; i++) values[i] = 0.01 * i;
            values[300] = inf ? -INFINITY : NAN;
            int64_t block = formats[f].block ? formats[f].block : f < 4 ? 128 : f < 7 ? 64 : 32;
            MT_AUTO mt_tensor *x =
                mtt_made(mtt_from_doubles(device, MT_F32, MT_SHAPE(600), values));
            MT_AUTO mt_tensor *q = mtt_made(mt_quantize(x, &formats[f]));
            MT_AUTO mt_tensor *y = mtt_made(mt_dequantize(q, &formats[f], MT_F32, MT_SHAPE(600)));
            double *out = mtt_doubles(y);
            for (int i = 0; i < 600; i++)
                assert_true(isnan(out[i]) ==
                            (formats[f].double_scales || i / block == 300 / block));
            free(out);
        }
}

static void zeros_and_the_smallest_numbers_survive(void **state)
{
    (void)state;
    const double tops[] = {0, 1e-45, 1e-41, 1e-38, 3e38};
    for (int f = 0; f < N_FORMATS; f++)
        for (int k = 0; k < 5; k++) {
            double values[100] = {0};
            values[3] = -tops[k], values[70] = tops[k] / 2;
            MT_AUTO mt_tensor *x =
                mtt_made(mtt_from_doubles(device, MT_F32, MT_SHAPE(100), values));
            MT_AUTO mt_tensor *q = mtt_made(mt_quantize(x, &formats[f]));
            MT_AUTO mt_tensor *y = mtt_made(mt_dequantize(q, &formats[f], MT_F32, MT_SHAPE(100)));
            double *out = mtt_doubles(y);
            /* a subnormal scale is coarse: the error is at most 127 of its smallest steps */
            double allowed = fmax(tops[k], 127 * 1.5e-45);
            for (int i = 0; i < 100; i++) {
                assert_true(isfinite(out[i]));
                assert_true(fabs(out[i] - (double)(float)values[i]) <= allowed);
            }
            free(out);
        }
}

static void any_strides_give_the_bits_of_a_dense_copy(void **state)
{
    (void)state;
    MT_AUTO mt_tensor *x = mtt_made(mtt_random(device, MT_BF16, MT_SHAPE(33, 20), 5, -1, 1));
    MT_AUTO mt_tensor *turned = mtt_made(mt_transpose(x, 0, 1));
    MT_AUTO mt_tensor *sliced = mtt_made(mt_slice(turned, 1, 3, 17));
    MT_AUTO mt_tensor *dense = mtt_made(mt_contiguous(sliced));
    for (int f = 0; f < N_FORMATS; f++) {
        MT_AUTO mt_tensor *a = mtt_made(mt_quantize(sliced, &formats[f]));
        MT_AUTO mt_tensor *b = mtt_made(mt_quantize(dense, &formats[f]));
        assert_true(mtt_same_bits(a, b));
        /* the packed bytes may be strided, too */
        int64_t n = mt_numel(a);
        MT_AUTO mt_tensor *wide = mtt_made(mt_zeros(device, MT_U8, MT_SHAPE(n + 1)));
        MT_AUTO mt_tensor *odd = mtt_made(mt_slice(wide, 0, 1, n));
        mtt_ok(mt_copy(odd, a));
        MT_AUTO mt_tensor *c = mtt_made(mt_dequantize(a, &formats[f], MT_F32, MT_SHAPE(20, 17)));
        MT_AUTO mt_tensor *d = mtt_made(mt_dequantize(odd, &formats[f], MT_F32, MT_SHAPE(20, 17)));
        assert_true(mtt_same_bits(c, d));
    }
}

static void the_bits_do_not_depend_on_the_number_of_threads(void **state)
{
    (void)state;
    int64_t n = 1000003;
    int threads = mt_device_threads(device);
    MT_AUTO mt_tensor *x = mtt_made(mtt_random(device, MT_F32, 1, &n, 5, -1, 1));
    for (int f = 0; f < N_FORMATS; f++) {
        mt_tensor *packed[3] = {0}, *back[3] = {0};
        for (int i = 0; i < 3; i++) {
            mtt_ok(mt_device_set_threads(device, i + 1));
            packed[i] = mtt_made(mt_quantize(x, &formats[f]));
            back[i] = mtt_made(mt_dequantize(packed[i], &formats[f], MT_BF16, 1, &n));
        }
        for (int i = 1; i < 3; i++) assert_true(mtt_same_bits(packed[0], packed[i]));
        for (int i = 1; i < 3; i++) assert_true(mtt_same_bits(back[0], back[i]));
        for (int i = 0; i < 3; i++) mt_release(packed[i]), mt_release(back[i]);
    }
    mtt_ok(mt_device_set_threads(device, threads));
}

/* ---- errors ---- */

static void invalid_input_is_refused_by_name(void **state)
{
    (void)state;
    MT_AUTO mt_tensor *whole = mtt_made(mt_zeros(device, MT_I64, MT_SHAPE(64)));
    MT_AUTO mt_tensor *x = mtt_made(mt_zeros(device, MT_F32, MT_SHAPE(64)));
    MT_AUTO mt_tensor *bytes = mtt_made(mt_zeros(device, MT_U8, MT_SHAPE(64)));
    assert_null(mt_pack_bits(whole));
    mtt_failed(MT_ERR_ARGUMENT, "pack_bits", "i64", "bool");
    assert_null(mt_quantize(whole, &formats[0]));
    mtt_failed(MT_ERR_ARGUMENT, "quantize", "i64");
    assert_null(mt_quantize(x, NULL));
    mtt_failed(MT_ERR_ARGUMENT, "quantize", "NULL");
    assert_null(mt_quantize(NULL, &formats[0]));
    mtt_failed(MT_ERR_ARGUMENT, "quantize", "NULL");
    assert_null(mt_quantize(x, &(mt_quant){.block = 100}));
    mtt_failed(MT_ERR_ARGUMENT, "quantize", "100", "64, 128 or 256");
    assert_null(mt_quantize(x, &(mt_quant){.format = (mt_quant_format)7}));
    mtt_failed(MT_ERR_ARGUMENT, "quantize", "7");
    assert_int_equal(mt_quantized_bytes(&formats[0], -1), 0);
    mtt_failed(MT_ERR_ARGUMENT, "-1");
    assert_null(mt_dequantize(bytes, &formats[0], MT_F32, MT_SHAPE(61)));
    mtt_failed(MT_ERR_ARGUMENT, "dequantize", "[61]", "u8 [65]");
    assert_null(mt_dequantize(bytes, &formats[0], MT_I64, MT_SHAPE(60)));
    mtt_failed(MT_ERR_ARGUMENT, "dequantize", "i64");
    assert_null(mt_dequantize(x, &formats[0], MT_F32, MT_SHAPE(60)));
    mtt_failed(MT_ERR_ARGUMENT, "dequantize", "f32 [64]");
    assert_null(mt_unpack_bits(bytes, MT_BOOL, MT_SHAPE(504)));
    mtt_failed(MT_ERR_ARGUMENT, "unpack_bits", "[504]", "63");
    assert_null(mt_unpack_bits(bytes, MT_I32, MT_SHAPE(512)));
    mtt_failed(MT_ERR_ARGUMENT, "unpack_bits", "i32");
    assert_null(mt_unpack_bits(x, MT_BOOL, MT_SHAPE(512)));
    mtt_failed(MT_ERR_ARGUMENT, "unpack_bits", "f32");
    assert_null(mt_dropout_mask(device, MT_SHAPE(4), 1, 0, 0));
    mtt_failed(MT_ERR_ARGUMENT, "dropout_mask", "p is 1");
    assert_null(mt_dropout_mask(NULL, MT_SHAPE(4), 0.5, 0, 0));
    mtt_failed(MT_ERR_ARGUMENT, "NULL");
}

static void any_allocation_may_fail(void **state)
{
    (void)state;
    MT_AUTO mt_tensor *x = mtt_made(mtt_random(device, MT_F32, MT_SHAPE(40, 30), 5, -1, 1));
    MT_AUTO mt_tensor *turned = mtt_made(mt_transpose(x, 0, 1));
    const mt_quant *q = &formats[6];
    size_t before = mtt_allocated(device);
    int refused = 0;
    for (uint64_t n = 1;; n++) {
        mti_fail_nth_alloc(n);
        mt_tensor *packed = mt_quantize(turned, q);
        mt_tensor *back = packed ? mt_dequantize(packed, q, MT_F32, MT_SHAPE(30, 40)) : NULL;
        mt_tensor *bits = back ? mt_pack_bits(turned) : NULL;
        mt_tensor *mask = bits ? mt_unpack_bits(bits, MT_BOOL, MT_SHAPE(30, 40)) : NULL;
        bool reached = mti_alloc_count() >= n;
        mti_fail_nth_alloc(0);
        refused += !mask;
        if (!mask) assert_int_equal(mt_last_status(), MT_ERR_MEMORY);
        mt_clear_error();
        mt_release(packed), mt_release(back), mt_release(bits), mt_release(mask);
        assert_int_equal(mtt_allocated(device), before);
        if (!reached) break;
    }
    assert_true(refused > 10);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        mtt_test(packed_bits_come_back_and_take_an_eighth),
        mtt_test(bits_of_a_view_are_those_of_its_elements_in_order),
        mtt_test(nan_counts_as_positive_and_zero_of_either_sign_does_not),
        mtt_test(a_dropout_mask_is_drawn_again_from_p_seed_and_offset),
        mtt_test(ops_that_draw_nothing_report_p_0_to_hooks),
        mtt_test(nf4_levels_are_quantiles_of_the_normal_distribution),
        mtt_test(restored_values_are_within_half_a_step_of_the_input),
        mtt_test(quantising_restored_values_changes_nothing),
        mtt_test(mxfp4_has_the_levels_of_e2m1_times_powers_of_two),
        mtt_test(int8_ties_go_to_even_and_nf4_ties_to_the_lower_level),
        mtt_test(a_block_that_is_not_finite_comes_back_as_nan_and_its_neighbours_do_not),
        mtt_test(zeros_and_the_smallest_numbers_survive),
        mtt_test(any_strides_give_the_bits_of_a_dense_copy),
        mtt_test(the_bits_do_not_depend_on_the_number_of_threads),
        mtt_test(invalid_input_is_refused_by_name),
        mtt_test(any_allocation_may_fail),
    };
    return cmocka_run_group_tests(tests, mtt_open_device, mtt_close_device);
}

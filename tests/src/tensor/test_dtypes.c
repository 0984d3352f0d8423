/* The dtypes that are only stored: what can be done with them on every device, and what is refused.
 */
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
#include "mtt_fixture.h"

static const mt_dtype stored[] = {MT_I8, MT_U8, MT_I16, MT_U16, MT_F8_E4M3, MT_F8_E5M2};
enum { N_STORED = sizeof stored / sizeof *stored };

static bool is_real(mt_dtype dtype) { return mt_dtype_bits(dtype).exponent > 0; }

static mt_tensor *row(mt_dtype dtype, int n, const double *values)
{
    return mtt_made(mtt_from_doubles(device, dtype, 1, &(int64_t){n}, values));
}

static void holds(mt_tensor *t, int n, const double *want)
{
    assert_int_equal(mt_numel(t), n);
    for (int i = 0; i < n; i++) assert_true(mt_item_at(t, MT_SHAPE(i)) == want[i]);
}

/* From each to each, and back: numbers that all of them have. */
static void small_numbers_pass_through_every_pair_of_dtypes(void **state)
{
    (void)state;
    const double values[5] = {0, 1, 2, 3, 96}, one[5] = {0, 1, 1, 1, 1};
    for (int s = 0; s < N_STORED; s++)
        for (mt_dtype to = 0; to < MT_DTYPE_COUNT; to++) {
            MT_AUTO mt_tensor *x = row(stored[s], 5, values);
            MT_AUTO mt_tensor *y = mtt_made(mt_cast(x, to));
            MT_AUTO mt_tensor *back = mtt_made(mt_cast(y, stored[s]));
            holds(y, 5, to == MT_BOOL ? one : values);
            holds(back, 5, to == MT_BOOL ? one : values);
        }
}

static void what_a_dtype_cannot_hold_becomes_what_the_header_says(void **state)
{
    (void)state;
    const double wide[6] = {448, 464, 1e9, -INFINITY, 0.3, 1.0 / 1024};
    MT_AUTO mt_tensor *x = row(MT_F32, 6, wide);
    MT_AUTO mt_tensor *e4m3 = mtt_made(mt_cast(x, MT_F8_E4M3));
    MT_AUTO mt_tensor *e5m2 = mtt_made(mt_cast(x, MT_F8_E5M2));
    holds(e4m3, 6, (double[]){448, 448, 448, -448, 0.3125, 0}); /* half of 2^-9, to even */
    holds(e5m2, 6, (double[]){448, 448, INFINITY, -INFINITY, 0.3125, 1.0 / 1024});
    MT_AUTO mt_tensor *none = row(MT_F64, 1, (double[]){NAN});
    for (int s = 4; s < 6; s++) {
        MT_AUTO mt_tensor *y = mtt_made(mt_cast(none, stored[s]));
        assert_true(isnan(mt_item(y)));
    }
    const double whole[3] = {-1, 200, 65537};
    MT_AUTO mt_tensor *n = row(MT_I64, 3, whole);
    const double low_bits[4][3] = {{-1, -56, 1}, {255, 200, 1}, {-1, 200, 1}, {65535, 200, 1}};
    for (int s = 0; s < 4; s++) {
        MT_AUTO mt_tensor *y = mtt_made(mt_cast(n, stored[s]));
        holds(y, 3, low_bits[s]);
    }
}

static void they_are_filled_copied_moved_and_compared(void **state)
{
    (void)state;
    for (int s = 0; s < N_STORED; s++) {
        double low = mt_dtype_bits(stored[s]).sign ? -3 : 3;
        MT_AUTO mt_tensor *x = mtt_made(mt_full(device, stored[s], MT_SHAPE(2, 3), low));
        MT_AUTO mt_tensor *y = mtt_made(mt_zeros(device, stored[s], MT_SHAPE(3, 2)));
        MT_AUTO mt_tensor *turned = mtt_made(mt_transpose(y, 0, 1));
        mtt_ok(mt_copy(turned, x));
        assert_true(mt_item_at(y, MT_SHAPE(2, 1)) == low);
        MT_AUTO mt_tensor *two = mtt_made(mt_cat(2, (mt_tensor *[]){x, turned}, 0));
        MT_AUTO mt_tensor *same = mtt_made(mt_compare_scalar(two, MT_EQ, low));
        MT_AUTO mt_tensor *less = mtt_made(mt_compare_scalar(two, MT_LT, low));
        assert_true(mt_item_at(same, MT_SHAPE(3, 2)) == 1 && mt_item_at(less, MT_SHAPE(3, 2)) == 0);
        unsigned char bytes[12];
        size_t n_bytes = 6 * mt_dtype_size(stored[s]);
        mtt_ok(mt_to_host(x, bytes, n_bytes));
        MT_AUTO mt_tensor *again =
            mtt_made(mt_from_data(device, stored[s], MT_SHAPE(2, 3), bytes, n_bytes));
        assert_true(mtt_same_bits(again, x));
    }
}

static void a_byte_is_counted_as_a_byte(void **state)
{
    (void)state;
    mt_device *meta = mt_device_open("meta");
    mt_device *const devices[] = {device, meta};
    for (int d = 0; d < 2; d++)
        for (int s = 0; s < N_STORED; s++) {
            MT_AUTO mt_tensor *wide = mtt_made(mt_zeros(devices[d], MT_F32, MT_SHAPE(32, 64)));
            size_t before = mtt_allocated(devices[d]), size = mt_dtype_size(stored[s]);
            MT_AUTO mt_tensor *x = mtt_made(mt_cast(wide, stored[s]));
            assert_int_equal(mt_storage_of(x).bytes, 2048 * size);
            assert_int_equal(mtt_allocated(devices[d]) - before, 2048 * size);
        }
    mt_device_release(meta);
}

static void they_are_printed_as_numbers(void **state)
{
    (void)state;
    const char *want[N_STORED] = {"i8 [2] on %s\n[1, 2]\n",        "u8 [2] on %s\n[1, 2]\n",
                                  "i16 [2] on %s\n[1, 2]\n",       "u16 [2] on %s\n[1, 2]\n",
                                  "f8_e4m3 [2] on %s\n[1., 2.]\n", "f8_e5m2 [2] on %s\n[1., 2.]\n"};
    for (int s = 0; s < N_STORED; s++) {
        MT_AUTO mt_tensor *x = row(stored[s], 2, (double[]){1, 2});
        char text[128] = "", expected[128];
        FILE *out = fmemopen(text, sizeof text, "w");
        assert_non_null(out);
        mtt_ok(mt_print(x, out));
        fclose(out);
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
        snprintf(expected, sizeof expected, want[s], mt_device_kind(device));
#pragma GCC diagnostic pop
        assert_string_equal(text, expected);
    }
}

static void arithmetic_on_them_is_refused_by_name(void **state)
{
    (void)state;
    for (int s = 0; s < N_STORED; s++) {
        const char *name = mt_dtype_name(stored[s]);
        MT_AUTO mt_tensor *x = mtt_made(mt_full(device, stored[s], MT_SHAPE(4, 4), 1));
        assert_null(mt_add(x, x));
        mtt_failed(MT_ERR_ARGUMENT, "add: a is", name, "need f32, f64, bf16 or f16");
        assert_null(mt_matmul(x, x));
        mtt_failed(MT_ERR_ARGUMENT, "matmul: a is", name);
        assert_null(mt_relu(x));
        mtt_failed(MT_ERR_ARGUMENT, "relu: x is", name);
        assert_null(mt_sum(x, 0, NULL, false));
        mtt_failed(MT_ERR_ARGUMENT, "sum: x is", name);
        assert_null(mt_softmax(x, 1, false));
        mtt_failed(MT_ERR_ARGUMENT, "softmax: x is", name);
        assert_int_equal(mt_set_requires_grad(x, true), MT_ERR_ARGUMENT);
        mtt_failed(MT_ERR_ARGUMENT, name, "has no gradient");
        assert_null(mt_arange(device, stored[s], 0, 1, 3));
        mtt_failed(MT_ERR_ARGUMENT, "arange", name);
        assert_null(mt_normal(device, stored[s], MT_SHAPE(3), 0, 1));
        mtt_failed(MT_ERR_ARGUMENT, "normal", name);
    }
}

/* To whole numbers nothing is recorded; what looks like a float may not lose its gradient unseen.
 */
static void a_cast_that_would_lose_a_gradient_is_refused(void **state)
{
    (void)state;
    MT_AUTO mt_tensor *w = mtt_made(mt_full(device, MT_F32, MT_SHAPE(3), 0.3));
    mtt_ok(mt_set_requires_grad(w, true));
    for (int s = 0; s < N_STORED; s++) {
        MT_AUTO mt_tensor *y = mt_cast(w, stored[s]);
        if (is_real(stored[s])) {
            assert_null(y);
            mtt_failed(MT_ERR_ARGUMENT, "cast: x wants a gradient", mt_dtype_name(stored[s]),
                       "mt_detach");
        } else {
            assert_false(mt_requires_grad(mtt_made(y)));
        }
        bool mode = mt_set_grad_mode(false);
        MT_AUTO mt_tensor *narrow = mtt_made(mt_cast(w, stored[s]));
        mt_set_grad_mode(mode);
        assert_true(mt_item_at(narrow, MT_SHAPE(0)) == (is_real(stored[s]) ? 0.3125 : 0));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        mtt_test(small_numbers_pass_through_every_pair_of_dtypes),
        mtt_test(what_a_dtype_cannot_hold_becomes_what_the_header_says),
        mtt_test(they_are_filled_copied_moved_and_compared),
        mtt_test(a_byte_is_counted_as_a_byte),
        mtt_test(they_are_printed_as_numbers),
        mtt_test(arithmetic_on_them_is_refused_by_name),
        mtt_test(a_cast_that_would_lose_a_gradient_is_refused),
    };
    return cmocka_run_group_tests(tests, mtt_open_device, mtt_close_device);
}

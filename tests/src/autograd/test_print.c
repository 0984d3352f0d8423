/* A tensor as text, and single elements of a tensor. tests/parity/printing.py compares the layout
 * of values with PyTorch's; here are the head line and the errors. */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "base/base.h"
#include "mtt_fixture.h"

static void expect(mt_tensor *t, const char *text)
{
    char got[4096] = "";
    size_t before = mtt_allocated(device);
    FILE *out = tmpfile();
    assert_non_null(out);
    mtt_ok(mt_print(mtt_made(t), out));
    rewind(out);
    got[fread(got, 1, sizeof got - 1, out)] = 0;
    fclose(out);
    /* $ stands for the device's name. */
    char *want = malloc(strlen(text) + 64), *at = want;
    assert_non_null(want);
    for (; *text; text++)
        if (*text == '$')
            at = stpcpy(at, mt_device_kind(mt_device_of(t)));
        else
            *at++ = *text;
    *at = 0;
    assert_string_equal(got, want);
    free(want);
    assert_int_equal(mtt_allocated(device), before);
}

static mt_tensor *counting(mt_dtype dtype, int rank, const int64_t *shape)
{
    double values[64];
    for (int i = 0; i < 64; i++) values[i] = i;
    return mtt_made(mtt_from_doubles(device, dtype, rank, shape, values));
}

static void the_head_names_dtype_shape_device_and_op(void **state)
{
    (void)state;
    MT_AUTO mt_tensor *x = counting(MT_F32, MT_SHAPE(2, 3));
    expect(x, "f32 [2,3] on $\n[[0., 1., 2.],\n [3., 4., 5.]]\n");
    mtt_ok(mt_set_requires_grad(x, true));
    expect(x, "f32 [2,3] on $, requires grad\n[[0., 1., 2.],\n [3., 4., 5.]]\n");
    MT_AUTO mt_tensor *y = mtt_made(mt_mul_scalar(x, -0.25));
    expect(y, "f32 [2,3] on $, made by affine\n"
              "[[ 0.0000, -0.2500, -0.5000],\n [-0.7500, -1.0000, -1.2500]]\n");
    MT_AUTO mt_tensor *mean = mtt_made(mt_mean_all(x));
    expect(mean, "f32 [] on $, made by mean\n2.5000\n");
}

static void views_show_their_own_elements(void **state)
{
    (void)state;
    MT_AUTO mt_tensor *x = counting(MT_I64, MT_SHAPE(2, 3));
    MT_AUTO mt_tensor *turned = mtt_made(mt_transpose(x, 0, 1));
    expect(turned, "i64 [3,2] on $\n[[0, 3],\n [1, 4],\n [2, 5]]\n");
    MT_AUTO mt_tensor *row = mtt_made(mt_slice(x, 0, 1, 1));
    MT_AUTO mt_tensor *repeated = mtt_made(mt_expand(row, MT_SHAPE(2, 2, 3)));
    expect(repeated,
           "i64 [2,2,3] on $\n[[[3, 4, 5],\n  [3, 4, 5]],\n\n [[3, 4, 5],\n  [3, 4, 5]]]\n");
}

static void nan_and_inf_are_aligned_with_the_numbers(void **state)
{
    (void)state;
    const double values[] = {1, NAN, INFINITY, -INFINITY, 2, 3};
    for (int i = 0; i < 4; i++) {
        static const mt_dtype dtypes[] = {MT_F32, MT_F64, MT_BF16, MT_F16};
        MT_AUTO mt_tensor *x =
            mtt_made(mtt_from_doubles(device, dtypes[i], MT_SHAPE(2, 3), values));
        char text[128];
        snprintf(text, sizeof text, "%s [2,3] on $\n[[  1.,  nan,  inf],\n [-inf,   2.,   3.]]\n",
                 mt_dtype_name(dtypes[i]));
        expect(x, text);
    }
    MT_AUTO mt_tensor *mask =
        mtt_made(mt_from_data(device, MT_BOOL, MT_SHAPE(3), (unsigned char[]){1, 0, 1}, 3));
    expect(mask, "bool [3] on $\n[ true, false,  true]\n");
}

static void long_dimensions_show_their_ends_and_empty_ones_show_nothing(void **state)
{
    (void)state;
    MT_AUTO mt_tensor *x = mtt_made(mt_full(device, MT_U8, MT_SHAPE(300, 2, 7), 7));
    expect(x, "u8 [300,2,7] on $\n"
              "[[[7, 7, 7,  ..., 7, 7, 7],\n  [7, 7, 7,  ..., 7, 7, 7]],\n\n"
              " [[7, 7, 7,  ..., 7, 7, 7],\n  [7, 7, 7,  ..., 7, 7, 7]],\n\n"
              " [[7, 7, 7,  ..., 7, 7, 7],\n  [7, 7, 7,  ..., 7, 7, 7]],\n\n"
              " ...,\n\n"
              " [[7, 7, 7,  ..., 7, 7, 7],\n  [7, 7, 7,  ..., 7, 7, 7]],\n\n"
              " [[7, 7, 7,  ..., 7, 7, 7],\n  [7, 7, 7,  ..., 7, 7, 7]],\n\n"
              " [[7, 7, 7,  ..., 7, 7, 7],\n  [7, 7, 7,  ..., 7, 7, 7]]]\n");
    MT_AUTO mt_tensor *none = mtt_made(mt_zeros(device, MT_F32, MT_SHAPE(3, 0, 2)));
    expect(none, "f32 [3,0,2] on $\n[]\n");
    MT_AUTO mt_tensor *deep = mtt_made(mt_zeros(device, MT_I32, MT_SHAPE(1, 1, 1, 1, 1, 1, 1, 1)));
    expect(deep, "i32 [1,1,1,1,1,1,1,1] on $\n[[[[[[[[0]]]]]]]]\n");
}

static void without_data_only_the_head_is_printed(void **state)
{
    (void)state;
    mt_device *meta = mt_device_open("meta");
    mt_tensor *x = mtt_made(mt_zeros(meta, MT_BF16, MT_SHAPE(4096, 4096)));
    expect(x, "bf16 [4096,4096] on meta, no data\n");
    assert_true(isnan(mt_item_at(x, MT_SHAPE(1, -1))));
    mtt_failed(MT_ERR_UNSUPPORTED, "meta");
    mt_release(x);
    mt_device_release(meta);
}

static void a_failed_write_is_an_error(void **state)
{
    (void)state;
    MT_AUTO mt_tensor *x = counting(MT_F32, MT_SHAPE(2, 3));
    FILE *full = fopen("/dev/full", "w"), *unbuffered = fopen("/dev/full", "w");
    assert_true(full && unbuffered);
    setbuf(unbuffered, NULL);
    mt_print(x, full);
    mtt_failed(MT_ERR_IO, "print: No space left on device");
    mt_print(x, unbuffered);
    mtt_failed(MT_ERR_IO, "print: No space left on device");
    fclose(full);
    fclose(unbuffered);
    mt_print(x, NULL);
    mtt_failed(MT_ERR_ARGUMENT, "print: out is NULL");
    mt_print(NULL, stderr);
    mtt_failed(MT_ERR_ARGUMENT, "print: the tensor is NULL");
    mti_fail_nth_alloc(1);
    mt_print(x, stderr); /* nothing is written */
    mti_fail_nth_alloc(0);
    mtt_failed(MT_ERR_MEMORY, "");
}

/* ---- single elements ---- */

static void indices_count_from_either_end_of_a_dimension(void **state)
{
    (void)state;
    for (mt_dtype dtype = 0; dtype < MT_DTYPE_COUNT; dtype++) {
        if (dtype == MT_BOOL) continue;
        MT_AUTO mt_tensor *x = counting(dtype, MT_SHAPE(2, 4)); /* up to 7: two bits of mantissa */
        MT_AUTO mt_tensor *turned = mtt_made(mt_transpose(x, 0, 1));
        size_t before = mtt_allocated(device);
        for (int64_t i = -2; i < 2; i++)
            for (int64_t j = -4; j < 4; j++) {
                double want = (double)(4 * (i < 0 ? i + 2 : i) + (j < 0 ? j + 4 : j));
                assert_true(mt_item_at(x, MT_SHAPE(i, j)) == want);
                assert_true(mt_item_at(turned, MT_SHAPE(j, i)) == want);
            }
        assert_int_equal(mtt_allocated(device), before);
    }
    MT_AUTO mt_tensor *mask =
        mtt_made(mt_from_data(device, MT_BOOL, MT_SHAPE(2), (unsigned char[]){0, 1}, 2));
    assert_true(mt_item_at(mask, MT_SHAPE(-1)) == 1 && mt_item_at(mask, MT_SHAPE(0)) == 0);
    MT_AUTO mt_tensor *scalar = mtt_made(mt_full(device, MT_I64, 0, NULL, 5));
    assert_true(mt_item_at(scalar, 0, NULL) == 5);
}

static void a_missing_element_is_an_error(void **state)
{
    (void)state;
    MT_AUTO mt_tensor *x = counting(MT_F32, MT_SHAPE(3, 4));
    assert_true(isnan(mt_item_at(x, MT_SHAPE(0, 4))));
    mtt_failed(MT_ERR_ARGUMENT, "item_at: there is no element [0,4] in [3,4]: dimension 1 has 4");
    assert_true(isnan(mt_item_at(x, MT_SHAPE(-4, 0))));
    mtt_failed(MT_ERR_ARGUMENT, "[-4,0]", "dimension 0 has 3");
    assert_true(isnan(mt_item_at(x, MT_SHAPE(INT64_MIN, 0))));
    mtt_failed(MT_ERR_ARGUMENT, "dimension 0 has 3");
    assert_true(isnan(mt_item_at(x, MT_SHAPE(1))));
    mtt_failed(MT_ERR_ARGUMENT, "item_at: the index has another rank; the tensor is [3,4]");
    assert_true(isnan(mt_item_at(x, 2, NULL)));
    mtt_failed(MT_ERR_ARGUMENT, "item_at: the index is NULL");
    assert_true(isnan(mt_item(x)));
    mtt_failed(MT_ERR_ARGUMENT, "item: [3,4] has 12 elements; need 1");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        mtt_test(the_head_names_dtype_shape_device_and_op),
        mtt_test(views_show_their_own_elements),
        mtt_test(nan_and_inf_are_aligned_with_the_numbers),
        mtt_test(long_dimensions_show_their_ends_and_empty_ones_show_nothing),
        mtt_test(without_data_only_the_head_is_printed),
        mtt_test(a_failed_write_is_an_error),
        mtt_test(indices_count_from_either_end_of_a_dimension),
        mtt_test(a_missing_element_is_an_error),
    };
    return cmocka_run_group_tests(tests, mtt_open_device, mtt_close_device);
}

/* How many bytes has an element, and what are its bits for?
 *
 * Bytes are measured on a tensor of 1024 elements. The bits of a floating type are found by
 * rounding: 1 + 2^-m survives if the mantissa has m bits; the smallest power of two that is not
 * rounded to 0 is 2^(2 - 2^(e - 1) - m) if the exponent has e bits. */
#include <math.h>
#include <string.h>
#include "expect.h"

enum { N = 1024 };

static const struct {
    const char *name;
    int bytes, exponent, mantissa; /* by hand; 0 for what is not floating */
} types[] = {
    {"f64", 8, 11, 52},   {"f32", 4, 8, 23}, {"f16", 2, 5, 10}, {"bf16", 2, 8, 7},
    {"i64", 8, 0, 0},     {"i32", 4, 0, 0},  {"u8", 1, 0, 0},   {"bool", 1, 0, 0},
    {"i8", 1, 0, 0},      {"i16", 2, 0, 0},  {"u16", 2, 0, 0},  {"f8_e4m3", 1, 4, 3},
    {"f8_e5m2", 1, 5, 2},
};

/* What is left of x in this type. */
static double rounded(mt_device *device, mt_dtype dtype, double x)
{
    mt_tensor *t = mt_full(device, MT_F64, 0, NULL, x);
    mt_set(&t, mt_cast(t, dtype));
    mt_set(&t, mt_cast(t, MT_F64));
    double left = mt_item(t);
    mt_release(t);
    return left;
}

static int mantissa_bits(mt_device *device, mt_dtype dtype)
{
    int m = 0;
    while (rounded(device, dtype, 1 + ldexp(1, -m - 1)) != 1) m++;
    return m;
}

static int exponent_bits(mt_device *device, mt_dtype dtype, int mantissa)
{
    int smallest = 0, e = 1;
    while (smallest > -1074 && rounded(device, dtype, ldexp(1, smallest - 1)) != 0) smallest--;
    while (2 - (1 << (e - 1)) - mantissa > smallest) e++;
    return e;
}

static int64_t bytes_of(mt_device *device, mt_dtype dtype)
{
    mt_tensor *t = mt_zeros(device, dtype, MT_SHAPE(N));
    int64_t bytes = (int64_t)mt_storage_of(t).bytes;
    mt_release(t);
    return bytes;
}

/* One row, and whether it is as by hand. */
static bool row(mt_device *device, mt_dtype dtype)
{
    size_t i = 0;
    while (i < sizeof types / sizeof *types && strcmp(types[i].name, mt_dtype_name(dtype))) i++;
    if (i == sizeof types / sizeof *types) {
        printf("%s is not in the list\n", mt_dtype_name(dtype));
        return false;
    }
    int m = 0, e = 0;
    int64_t bytes = bytes_of(device, dtype);
    printf("%-8s %4lld", types[i].name, (long long)(bytes / N));
    if (types[i].exponent) {
        m = mantissa_bits(device, dtype);
        e = exponent_bits(device, dtype, m);
        printf(" %5d %9d %9d", 1, e, m);
    }
    printf("\n");
    return bytes == (int64_t)N * types[i].bytes && e == types[i].exponent &&
           m == types[i].mantissa && (m == 0 || 1 + e + m == 8 * types[i].bytes);
}

int main(void)
{
    mt_device *device = mt_device_open("cpu");
    printf("dtype   bytes  sign  exponent  mantissa\n");
    for (int d = 0; d < MT_DTYPE_COUNT; d++) n_wrong += !row(device, (mt_dtype)d);
    /* TF32 is what a tensor core makes of an f32 while it multiplies; stored it never is. */
    printf("tf32        4     1         8        10   of the f32 that is stored\n\n");

    /* Four bits a value, and the scales without which four bits say little. */
    mt_tensor *x = mt_normal(device, MT_F32, MT_SHAPE(N), 0, 1);
    mt_tensor *nf4 = mt_quantize(x, &(mt_quant){.format = MT_QUANT_NF4});
    mt_tensor *int8 = mt_quantize(x, &(mt_quant){.format = MT_QUANT_INT8});
    expect("bytes of 1024 values as NF4", (int64_t)mt_storage_of(nf4).bytes, N / 2 + N / 64 * 4);
    expect("bytes of 1024 values as int8 with scales", (int64_t)mt_storage_of(int8).bytes,
           N + N / 128 * 4);
    mt_release(nf4);
    mt_release(int8);
    mt_release(x);
    mt_device_release(device);
    return finish();
}

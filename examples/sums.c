/* How many bits does a sum need, whose terms have 16?
 *
 * 4096 times 1, added one by one with each sum rounded to 16 bits; and as a product of two 16-bit
 * vectors, whose sums have 32 bits, here as in a tensor core. f16 has 11 bits of precision, so that
 * 2048 + 1 is 2048 again; bf16 has 8, and stops at 256. */
#include "expect.h"

enum { TERMS = 4096 };

/* 1 + 1 + ... in this type, each sum rounded to it. */
static int64_t one_by_one(mt_device *device, mt_dtype dtype)
{
    mt_tensor *sum = mt_zeros(device, dtype, 0, NULL), *one = mt_full(device, dtype, 0, NULL, 1);
    for (int i = 0; i < TERMS; i++) mt_set(&sum, mt_add(sum, one));
    int64_t total = (int64_t)mt_item(sum);
    mt_release(one);
    mt_release(sum);
    return total;
}

/* The same as a product of 16-bit vectors: its sums have 32 bits. */
static int64_t as_product(mt_device *device, mt_dtype dtype)
{
    mt_tensor *row = mt_full(device, dtype, MT_SHAPE(1, TERMS), 1);
    mt_tensor *column = mt_full(device, dtype, MT_SHAPE(TERMS, 1), 1);
    mt_tensor *y = mt_matmul(row, column);
    int64_t total = (int64_t)mt_item(y);
    mt_release(y);
    mt_release(column);
    mt_release(row);
    return total;
}

int main(void)
{
    mt_device *device = mt_device_open("cpu");
    expect("ones added in f16, of 4096", one_by_one(device, MT_F16), 2048);
    expect("ones added in bf16, of 4096", one_by_one(device, MT_BF16), 256);
    expect("ones added in f32, as a product in f16, of 4096", as_product(device, MT_F16), 4096);
    expect("ones added in f32, as a product in bf16, of 4096", as_product(device, MT_BF16), 4096);
    mt_device_release(device);
    return finish();
}

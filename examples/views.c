/* Which tensors are the same memory?
 *
 * A view is another look at a storage. It takes no bytes, and what the tape keeps is counted by
 * storage, once. "The same" means the same storage: neither an equal tensor nor an equal address.
 */
#include "expect.h"

enum { KIB = 256 /* floats */, ROOM = 10 << 20 };

static void four_parts(mt_device *device)
{
    mt_tensor *t = mt_zeros(device, MT_F32, MT_SHAPE(16)), *part[4];
    const int64_t sizes[4] = {4, 4, 4, 4};
    mt_mem_region region;
    mt_mem_region_begin(&region, device);
    mt_split(t, 0, 4, sizes, part);
    mt_mem_region_end(&region);
    expect("bytes that split(4) allocates", (int64_t)region.delta.allocated, 0);
    int64_t shared = 0, begin = 0;
    for (int i = 0; i < 4; i++) {
        shared += mt_same_storage(t, part[i]);
        begin += mt_layout_of(part[i]).offset == 0;
        mt_release(part[i]);
    }
    expect("of the four parts, in the storage of the whole", shared, 4);
    expect("of the four parts, at the address of the whole", begin, 1);
    mt_release(t);
}

static void transposed_weight(mt_device *device)
{
    mt_module *linear = mt_linear_new(device, MT_F32, 8, 4, false, 0);
    mt_tensor *w = mt_module_param(linear, "weight"), *wt = mt_transpose(w, 0, 1);
    expect("a weight and its transpose are one storage", mt_same_storage(w, wt), 1);
    expect("and not one tensor", w == wt, 0);

    /* y = x w^T keeps x and, for dx, the weight: which is a parameter, so no activation. */
    mt_tensor *x = mt_zeros(device, MT_F32, MT_SHAPE(2, 8));
    mt_set_requires_grad(x, true);
    mt_ledger *ledger = mt_ledger_new(device);
    mt_ledger_begin(ledger);
    mt_tensor *y = mt_matmul(x, wt);
    mt_ledger_end(ledger);
    expect("bytes kept by x @ w.T: those of x", (int64_t)mt_ledger_bytes(ledger), 2 * 8 * 4);
    mt_release(y);
    mt_ledger_free(ledger);
    mt_release(x);
    mt_release(wt);
    mt_module_free(linear);
}

/* Two tensors of 1 KiB, the second freed; a third, freed. */
static void a_region(mt_device *device)
{
    mt_mem_region region;
    mt_mem_region_begin(&region, device);
    mt_tensor *t1 = mt_zeros(device, MT_F32, MT_SHAPE(KIB));
    mt_tensor *t2 = mt_zeros(device, MT_F32, MT_SHAPE(KIB));
    mt_release(t2);
    mt_tensor *t3 = mt_zeros(device, MT_F32, MT_SHAPE(KIB));
    mt_release(t3);
    mt_mem_region_end(&region);
    expect("allocated within the region", (int64_t)region.delta.allocated, 3072);
    expect("current: what is left of it", region.delta.current, 1024);
    expect("freed within the region", (int64_t)region.delta.freed, 2048);
    expect("peak within the region", region.delta.peak, 2048);
    mt_release(t1);
}

/* Where there is room for one tensor only, the next one has its address, and is another. */
static void one_address(void)
{
    mt_device *device = mt_device_open("cpu");
    mt_mem_set_capacity(device, ROOM);
    uint64_t serial[2];
    for (int i = 0; i < 2; i++) {
        mt_tensor *t = mt_zeros(device, MT_F32, MT_SHAPE(ROOM / 4));
        serial[i] = mt_storage_of(t).serial;
        mt_release(t);
    }
    expect("reserved, after two tensors of 10 MiB in turn", reserved(device), ROOM);
    expect("whether they were one storage", serial[0] == serial[1], 0);
    mt_device_release(device);
}

int main(void)
{
    mt_device *device = mt_device_open("cpu");
    four_parts(device);
    transposed_weight(device);
    a_region(device);
    mt_device_release(device);
    one_address();
    return finish();
}

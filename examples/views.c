/* Which tensors are the same memory?
 *
 * A view is another look at a storage. It takes no bytes, and what the tape keeps is counted by
 * storage, once. "The same" means the same storage: neither an equal tensor nor an equal address.
 * With a path as its argument the program draws which elements of its storage a view has. */
#include "expect.h"
#include "svg.h"

enum { KIB = 256 /* floats */, ROOM = 10 << 20, CELLS = 32 /* of the picture */ };

/* The cells of a storage of n floats: which ones a view has, and in strong blue its first row. */
static void draw_view(svg picture, int row, const char *name, const mt_tensor *t, int n)
{
    const mt_layout l = mt_layout_of(t);
    const int64_t columns = l.shape[l.rank - 1], rows = mt_numel(t) / columns;
    const int64_t step = l.rank > 1 ? l.strides[l.rank - 2] : 0;
    const double top = 58 + 26 * row;
    const char *colours[CELLS] = {0};
    for (int64_t i = 0; i < rows * columns; i++) {
        int64_t cell =
            (int64_t)l.offset / 4 + i / columns * step + i % columns * l.strides[l.rank - 1];
        colours[cell] = i < columns ? "#1f6fb4" : "#a9cdec";
    }
    svg_text(picture, 16, top + 15, "start", 0, name);
    for (int cell = 0; cell < n; cell++)
        svg_rect(picture, 190 + 16 * cell, top, 14, 20, colours[cell] ? colours[cell] : "#e3e7ea");
}

static void four_parts(mt_device *device, svg picture)
{
    mt_tensor *t = mt_zeros(device, MT_F32, MT_SHAPE(16)), *part[4];
    const int64_t sizes[4] = {4, 4, 4, 4};
    mt_mem_region region;
    mt_mem_region_begin(&region, device);
    mt_split(t, 0, 4, sizes, part);
    mt_mem_region_end(&region);
    expect("bytes that split(4) allocates", (int64_t)region.delta.allocated, 0);
    int64_t shared = 0, begin = 0;
    draw_view(picture, 0, "t [16]", t, 16);
    for (int i = 0; i < 4; i++) {
        char name[32];
        snprintf(name, sizeof name, "part %d [4]", i);
        draw_view(picture, 1 + i, name, part[i], 16);
        shared += mt_same_storage(t, part[i]);
        begin += mt_layout_of(part[i]).offset == 0;
        mt_release(part[i]);
    }
    expect("of the four parts, in the storage of the whole", shared, 4);
    expect("of the four parts, at the address of the whole", begin, 1);
    mt_release(t);
}

static void transposed_weight(mt_device *device, svg picture)
{
    mt_module *linear = mt_linear_new(device, MT_F32, 8, 4, false, 0);
    mt_tensor *w = mt_module_param(linear, "weight"), *wt = mt_transpose(w, 0, 1);
    expect("a weight and its transpose are one storage", mt_same_storage(w, wt), 1);
    expect("and not one tensor", w == wt, 0);
    draw_view(picture, 6, "w [4,8]", w, 32);
    draw_view(picture, 7, "its transpose [8,4]", wt, 32);

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

int main(int argc, char **argv)
{
    const char *path = svg_path(argc, argv);
    svg picture = svg_begin(path, 720, 280, "Views and their storages");
    svg_text(
        picture, 16, 30, "start", 0,
        "A cell is a float of the storage. Blue: the view has it; strong blue: in its first row.");
    mt_device *device = mt_device_open("cpu");
    four_parts(device, picture);
    transposed_weight(device, picture);
    expect("pictures drawn as wanted", svg_end(picture, path), 1);
    a_region(device);
    mt_device_release(device);
    one_address();
    return finish();
}

/* What does one tensor take?
 *
 * Three answers: the bytes it has (requested), those in blocks of 512 (allocated), and what the
 * allocator holds from the system, in segments of 2 MiB (reserved). With a path as its argument the
 * program draws allocated bytes against the number of elements. */
#include "expect.h"
#include "svg.h"

enum { SIZES = 1050, FLOAT = 4 };

static void made_and_freed(mt_device *device)
{
    expect("reserved, before anything is made", reserved(device), 0);
    expect("allocated", allocated(device), 0);
    mt_tensor *x = mt_zeros(device, MT_F32, MT_SHAPE(1024));
    expect("reserved, with a tensor of 1024 floats", reserved(device), 2097152);
    expect("allocated", allocated(device), 4096);
    mt_release(x);
    expect("reserved, after it is freed", reserved(device), 2097152);
    expect("allocated", allocated(device), 0);
    mt_mem_empty_cache(device);
    expect("reserved, after the cache is emptied", reserved(device), 0);
    expect("allocated", allocated(device), 0);
}

/* Allocated bytes of n floats; *held is what is reserved meanwhile. */
static int64_t floats(mt_device *device, int64_t n, int64_t *held)
{
    mt_tensor *x = mt_zeros(device, MT_F32, MT_SHAPE(n));
    int64_t bytes = allocated(device);
    *held = reserved(device);
    mt_release(x);
    return bytes;
}

/* A picture's point for n elements and their bytes. */
static double right(int64_t n) { return 60 + 0.5 * (double)n; }
static double up(int64_t bytes) { return 400 - 0.08 * (double)bytes; }

static void axes(svg picture)
{
    char label[16];
    for (int bytes = 0; bytes <= 4096; bytes += 1024) {
        snprintf(label, sizeof label, "%d", bytes);
        svg_line(picture, right(0), up(bytes), right(SIZES), up(bytes), "#e3e7ea");
        svg_text(picture, right(0) - 6, up(bytes) + 4, "end", 0, label);
    }
    for (int n = 0; n < SIZES; n += 200) {
        snprintf(label, sizeof label, "%d", n);
        svg_text(picture, right(n), up(0) + 18, "middle", 0, label);
    }
    svg_text(picture, right(0), 30, "start", 0, "allocated bytes of a tensor of n floats");
    svg_text(picture, right(SIZES), up(0) + 36, "end", 0, "n");
}

static void staircase(mt_device *device, svg picture)
{
    int64_t stair = 0, begin = 0, stairs = 0, equal = 0, two_mib = 0;
    axes(picture);
    for (int64_t n = 0; n <= SIZES; n++) {
        int64_t held = 0, bytes = n < SIZES ? floats(device, n, &held) : stair;
        equal += n < SIZES && bytes == blocks(n * FLOAT);
        two_mib += held == 2097152;
        if (bytes == stair && n < SIZES) continue;
        svg_line(picture, right(begin), up(stair), right(n), up(stair), "#1f6fb4");
        svg_line(picture, right(n), up(stair), right(n), up(bytes), "#1f6fb4");
        stairs += bytes != stair;
        stair = bytes;
        begin = n;
    }
    expect("sizes from 0 to 1049 floats, in whole blocks of 512 bytes", equal, SIZES);
    expect("stairs, one for every 128 floats", stairs, 9);
    /* All that nvidia-smi could see of it: nothing for the empty tensor, then always the same. */
    expect("sizes of these for which 2097152 bytes are reserved", two_mib, SIZES - 1);
}

int main(int argc, char **argv)
{
    const char *path = svg_path(argc, argv);
    mt_device *device = mt_device_open("cpu");
    made_and_freed(device);

    mt_tensor *x = mt_zeros(device, MT_F32, MT_SHAPE(800));
    expect("bytes of 800 floats", (int64_t)mt_storage_of(x).bytes, 3200);
    expect("allocated for 800 floats", allocated(device), 3584);
    mt_release(x);
    mt_mem_empty_cache(device);

    svg picture = svg_begin(path, 640, 450, "What a tensor of n floats takes");
    staircase(device, picture);
    expect("pictures drawn as wanted", svg_end(picture, path), 1);
    mt_device_release(device);
    return finish();
}

/* copy.c: y = x in any layout. Copies between two types are casts (cast.c). */
#include "backends/cpu/cpu.h"

typedef struct copy_job {
    mti_walk walk; /* operand 0: y, 1: x */
    size_t size;
    bool past;      /* y goes past the caches */
    int transposed; /* x's contiguous dimension, if it is not y's; else -1 */
} copy_job;

#define TILE 64 /* bytes of a cache line; a tile of 8-byte elements has 32 KiB */

static void copy_past(float *restrict y, const float *x, int64_t n)
{
    MTI_EACH_LINE(float, true, i, n, MTI_FETCH(x + from, MTI_AHEAD), y, x[i]);
}

/* Elements [begin, end) in the walk's order, row by row. */
static void copy_rows(const void *arg, int64_t begin, int64_t end)
{
    const copy_job *job = arg;
    const mti_walk *w = &job->walk;
    int64_t index[MT_MAX_RANK], last = w->rank - 1, size = (int64_t)job->size;
    mti_walk_seek(w, begin, index);
    for (int64_t i = begin, n; i < end; i += n) {
        int64_t left = w->shape[last] - index[last];
        n = end - i < left ? end - i : left;
        void *to = w->data[0] + mti_walk_offset(w, 0, index) * size;
        const void *from = w->data[1] + mti_walk_offset(w, 1, index) * size;
        if (job->past)
            copy_past(to, from, n);
        else
            mti_cpu_move(job->size, to, w->stride[0][last], from, w->stride[1][last], n);
        mti_walk_advance(w, n, index);
    }
}

/* dst[r * dst_row + c] = src[c * src_row + r], r < rows, c < cols, both at most TILE. The tile
 * is first read row by row into a packed copy: rows of x that are a power of two apart would
 * evict each other from the cache before a whole line is used. */
#define DEFINE_COPY_TILE(name, T)                                                                  \
    static void name(void *dst, int64_t dst_row, const void *src, int64_t src_row, int64_t rows,   \
                     int64_t cols)                                                                 \
    {                                                                                              \
        T tile[TILE][TILE];                                                                        \
        for (int64_t c = 0; c < cols; c++)                                                         \
            memcpy(tile[c], (const T *)src + c * src_row, (size_t)rows * sizeof(T));               \
        for (int64_t r = 0; r < rows; r++)                                                         \
            for (int64_t c = 0; c < cols; c++) ((T *)dst)[r * dst_row + c] = tile[c][r];           \
    }
DEFINE_COPY_TILE(copy_tile_1, uint8_t)
DEFINE_COPY_TILE(copy_tile_2, uint16_t)
DEFINE_COPY_TILE(copy_tile_4, uint32_t)
DEFINE_COPY_TILE(copy_tile_8, uint64_t)

typedef void tile_fn(void *dst, int64_t dst_row, const void *src, int64_t src_row, int64_t rows,
                     int64_t cols);

static tile_fn *tile_fn_of(size_t size)
{
    return size == 1   ? copy_tile_1
           : size == 2 ? copy_tile_2
           : size == 4 ? copy_tile_4
                       : copy_tile_8;
}

/* Bands of TILE rows of y. `band` numbers all dimensions but the walk's last and the
 * transposed one, which are covered tile by tile. */
static void copy_bands(const void *arg, int64_t begin, int64_t end)
{
    const copy_job *job = arg;
    const mti_walk *w = &job->walk;
    tile_fn *tile = tile_fn_of(job->size);
    int t = job->transposed, last = w->rank - 1;
    int64_t size = (int64_t)job->size, bands = (w->shape[t] + TILE - 1) / TILE;
    for (int64_t item = begin; item < end; item++) {
        int64_t r0 = item % bands * TILE, rest = item / bands;
        int64_t rows = w->shape[t] - r0 < TILE ? w->shape[t] - r0 : TILE;
        int64_t y_at = r0 * w->stride[0][t], x_at = r0; /* x's stride there is 1 */
        for (int d = last - 1; d >= 0; d--) {
            if (d == t) continue;
            y_at += rest % w->shape[d] * w->stride[0][d];
            x_at += rest % w->shape[d] * w->stride[1][d];
            rest /= w->shape[d];
        }
        for (int64_t c0 = 0; c0 < w->shape[last]; c0 += TILE) {
            int64_t cols = w->shape[last] - c0 < TILE ? w->shape[last] - c0 : TILE;
            tile(w->data[0] + (y_at + c0) * size, w->stride[0][t],
                 w->data[1] + (x_at + c0 * w->stride[1][last]) * size, w->stride[1][last], rows,
                 cols);
        }
    }
}

static int find_transposed(const mti_walk *w)
{
    int last = w->rank - 1;
    if (w->stride[0][last] != 1 || w->stride[1][last] == 1 || w->shape[last] < 4) return -1;
    for (int d = 0; d < last; d++)
        if (w->stride[1][d] == 1 && w->shape[d] >= 4) return d;
    return -1;
}

static void copy_same_type(mti_ctx *ctx, const mti_view *x, const mti_view *y)
{
    copy_job job;
    mti_walk_init(&job.walk, 2, (const mti_view *[]){y, x}, false);
    const mti_walk *w = &job.walk;
    job.size = mt_dtype_size(y->dtype);
    job.past = mti_cpu_is_past(y) && w->rank == 1 && w->stride[1][0] == 1;
    job.transposed = find_transposed(w);
    if (job.transposed < 0) {
        mti_cpu_parallel(ctx, w->count, mti_cpu_chunk(w->count, MTI_CPU_MOVE), copy_rows, &job);
        return;
    }
    if (w->count == 0) return;
    int64_t row = w->shape[w->rank - 1], tall = w->shape[job.transposed];
    int64_t items = (tall + TILE - 1) / TILE * (w->count / row / tall);
    mti_cpu_parallel(ctx, items, mti_cpu_chunk(items, row * TILE), copy_bands, &job);
}

bool mti_cpu_copy(mti_ctx *ctx, const mti_view *x, const mti_view *y)
{
    if (x->dtype == y->dtype)
        copy_same_type(ctx, x, y);
    else
        mti_cpu_cast(ctx, x, y);
    return true;
}

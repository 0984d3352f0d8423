/* embedding.c: rows of a table by index, and the sum of gradients into them. */
#include "backends/cpu/rows/rows.h"
#ifdef __SSE2__
#include <emmintrin.h>
#endif

static bool check_indices(const int64_t *index, int64_t count, int64_t rows, bool part)
{
    for (int64_t i = 0; i < count; i++)
        if ((index[i] < 0 && !(part && index[i] == MTI_NO_ROW)) || index[i] >= rows)
            return mti_fault_report(&(mti_fault){MTI_FAULT_INDEX, i, index[i], rows, 0});
    return true;
}

typedef struct gather_job {
    const int64_t *index;
    mti_rows w, y;
    size_t row_bytes;
} gather_job;

static void gather_chunk(const void *arg, int64_t begin, int64_t end)
{
    const gather_job *job = arg;
    for (int64_t i = begin; i < end; i++)
        if (job->index[i] == MTI_NO_ROW)
            memset(mti_row(&job->y, i), 0, job->row_bytes);
        else
            memcpy(mti_row(&job->y, i), mti_row(&job->w, job->index[i]), job->row_bytes);
}

bool mti_cpu_embedding(mti_ctx *ctx, bool part, const mti_view *index, const mti_view *w,
                       const mti_view *y)
{
    int64_t count = mti_view_count(index), n = w->shape[1];
    if (!check_indices(index->data, count, w->shape[0], part)) return false;
    if (n == 0) return true;
    gather_job job = {index->data, mti_rows_of(w), mti_rows_of(y),
                      (size_t)n * mt_dtype_size(w->dtype)};
    mti_cpu_parallel(ctx, count, mti_cpu_chunk(count, n), gather_chunk, &job);
    return true;
}

/* ---- backward ----
 *
 * Of a large vocabulary a batch uses few rows. The others are zeros, which are written first: past
 * the caches if the table does not fit into them, so that no line is read to be overwritten.
 *
 * A counting sort orders the positions by index and keeps their order within an index; then every
 * row of dw is the sum of its rows of dy, by whichever thread. Tiles of columns divide the work
 * even if one index is frequent. */

#define TILE_COLUMNS 64
#define TILE_ROWS    4096
#define STREAM_BYTES ((size_t)16 << 20) /* of a table: more than caches of a core hold */

typedef struct scatter_job {
    const int64_t *start;    /* [rows + 1]: where row r's positions begin in `position` */
    const int64_t *position; /* [count] */
    mti_rows dy, dw;
    int64_t rows, n, column_tiles;
} scatter_job;

static bool is_used(const scatter_job *job, int64_t r) { return job->start[r] < job->start[r + 1]; }

/* Zeros, whole cache lines past the caches if `stream`. */
static void clear(char *p, size_t n_bytes, bool stream)
{
#ifdef __SSE2__
    size_t head = -(uintptr_t)p % 64, lines = n_bytes > head ? (n_bytes - head) / 64 : 0;
    if (stream && lines > 0) {
        memset(p, 0, head);
        __m128i *to = (__m128i *)(void *)(p + head), *end = to + 4 * lines;
        for (; to < end; to++) _mm_stream_si128(to, _mm_setzero_si128());
        p = (char *)to, n_bytes -= head + 64 * lines;
    }
#else
    (void)stream;
#endif
    memset(p, 0, n_bytes);
}

/* Writes zeros to those of rows [begin, end) that no index uses. */
static void clear_chunk(const void *arg, int64_t begin, int64_t end)
{
    const scatter_job *job = arg;
    size_t row_bytes = (size_t)job->n * mti_dtype_size(job->dw.dtype);
    bool stream = (size_t)job->rows * row_bytes >= STREAM_BYTES;
    for (int64_t r = begin, last; r < end; r = last + 1) {
        for (last = r; last < end && !is_used(job, last); last++)
            if (!job->dw.contiguous) clear(mti_row(&job->dw, last), row_bytes, stream);
        if (job->dw.contiguous && last > r)
            clear(mti_row(&job->dw, r), (size_t)(last - r) * row_bytes, stream);
    }
#ifdef __SSE2__
    if (stream) _mm_sfence(); /* before another thread may see that this chunk is done */
#endif
}

#define MTI_TYPED "backends/cpu/rows/embedding.inc"
#include "backends/cpu/typed.inc"

size_t mti_cpu_embedding_backward_scratch(mti_ctx *ctx, const mti_view *index, const mti_view *dw)
{
    (void)ctx;
    return ((size_t)dw->shape[0] + 1 + (size_t)mti_view_count(index)) * sizeof(int64_t);
}

/* Fills scatter_job's start and position. Placing positions advances start[r] to where row
 * r + 1 begins; a shift by one at the end corrects that. */
static void sort_positions(const int64_t *index, int64_t count, int64_t rows, int64_t *start,
                           int64_t *position)
{
    memset(start, 0, ((size_t)rows + 1) * sizeof *start);
    for (int64_t i = 0; i < count; i++)
        if (index[i] != MTI_NO_ROW) start[index[i] + 1]++;
    for (int64_t r = 0; r < rows; r++) start[r + 1] += start[r];
    for (int64_t i = 0; i < count; i++)
        if (index[i] != MTI_NO_ROW) position[start[index[i]]++] = i;
    memmove(start + 1, start, (size_t)rows * sizeof *start);
    start[0] = 0;
}

bool mti_cpu_embedding_backward(mti_ctx *ctx, bool part, const mti_view *index, const mti_view *dy,
                                const mti_view *dw, void *scratch)
{
    int64_t count = mti_view_count(index), rows = dw->shape[0], n = dw->shape[1];
    if (!check_indices(index->data, count, rows, part)) return false;
    if (rows == 0 || n == 0) return true;
    int64_t *start = scratch, *position = start + rows + 1;
    sort_positions(index->data, count, rows, start, position);
    scatter_job job = {.start = start,
                       .position = position,
                       .dy = mti_rows_of(dy),
                       .dw = mti_rows_of(dw),
                       .rows = rows,
                       .n = n,
                       .column_tiles = (n + TILE_COLUMNS - 1) / TILE_COLUMNS};
    int64_t row_tiles = (rows + TILE_ROWS - 1) / TILE_ROWS, tiles = row_tiles * job.column_tiles;
    int64_t work = 2 * count * n / tiles;
    mti_cpu_parallel(ctx, rows, mti_cpu_chunk(rows, n), clear_chunk, &job);
    mti_cpu_parallel(ctx, tiles, mti_cpu_chunk(tiles, work < 1 ? 1 : work),
                     dw->dtype == MT_F64 ? scatter_chunk_f64 : scatter_chunk_f32, &job);
    return true;
}

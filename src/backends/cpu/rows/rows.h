/* rows.h: row kernels are written once, in files ending in .inc (typed.inc), over a type T, float
 * or double. Rows of 16-bit floats are converted block by block in a buffer of T. f32 and f64 rows
 * are used directly, also in blocks: only short sums are made in f32, and the blocks' sums are
 * added in f64. */
#ifndef MTI_CPU_ROWS_H
#define MTI_CPU_ROWS_H

#include "backends/cpu/cpu.h"

typedef struct mti_rows {
    char *data;
    const mti_view *view;
    int64_t row_bytes; /* distance of rows, if contiguous */
    bool contiguous;
    bool past; /* if these are outputs, they go past the caches */
    mt_dtype dtype;
} mti_rows;

static inline mti_rows mti_rows_of(const mti_view *v)
{
    int64_t n = v->rank ? v->shape[v->rank - 1] : 1;
    mti_rows rows = {v->data,
                     v,
                     n * (int64_t)mti_dtype_size(v->dtype),
                     mti_view_is_contiguous(v),
                     mti_cpu_is_past(v),
                     v->dtype};
    return rows;
}

static inline void *mti_row(const mti_rows *rows, int64_t r)
{
    if (rows->contiguous) return rows->data + r * rows->row_bytes;
    return rows->data + mti_cpu_row_offset(rows->view, r) * (int64_t)mti_dtype_size(rows->dtype);
}

static inline bool mti_is_native(mt_dtype dtype) { return dtype == MT_F32 || dtype == MT_F64; }

/* Elements per block for a row of n. */
static inline int64_t mti_block_size(mt_dtype dtype, int64_t n)
{
    int64_t block = mti_is_native(dtype) ? 4 * MTI_CPU_RUN : MTI_CPU_RUN;
    return n < block ? n : block;
}

/* Elements [at, at + n) of a row: the row itself, or converted into buffer. */
static inline const float *mti_block_f32(mt_dtype dtype, const void *row, int64_t at, int64_t n,
                                         float *buffer)
{
    if (dtype == MT_F32) return (const float *)row + at;
    mti_cpu_load_f32(dtype, (const uint16_t *)row + at, buffer, n);
    return buffer;
}

static inline const double *mti_block_f64(mt_dtype dtype, const void *row, int64_t at, int64_t n,
                                          double *buffer)
{
    (void)dtype, (void)n, (void)buffer;
    return (const double *)row + at;
}

/* Where to write them; mti_block_done_... then copies the buffer to the row. */
static inline float *mti_block_out_f32(mt_dtype dtype, void *row, int64_t at, float *buffer)
{
    return dtype == MT_F32 ? (float *)row + at : buffer;
}

static inline double *mti_block_out_f64(mt_dtype dtype, void *row, int64_t at, double *buffer)
{
    (void)dtype, (void)buffer;
    return (double *)row + at;
}

static inline void mti_block_done_f32(mt_dtype dtype, void *row, int64_t at, int64_t n,
                                      const float *buffer)
{
    if (dtype != MT_F32) mti_cpu_store_f32(dtype, buffer, (uint16_t *)row + at, n);
}

static inline void mti_block_done_f64(mt_dtype dtype, void *row, int64_t at, int64_t n,
                                      const double *buffer)
{
    (void)dtype, (void)row, (void)at, (void)n, (void)buffer;
}

/* part = the sum of value over j in [0, n), a line at a time, in one order on every processor;
 * `fetch` as in MTI_LINES. */
#define MTI_SUM_BY_LINE(T, part, j, n, fetch, value)                                               \
    do {                                                                                           \
        T sums[MTI_LINE] = {0};                                                                    \
        int64_t from = 0;                                                                          \
        for (; from + MTI_LINE <= (n); from += MTI_LINE) {                                         \
            fetch;                                                                                 \
            MTI_SIMD                                                                               \
            for (int64_t j = from; j < from + MTI_LINE; j++) sums[j - from] += (value);            \
        }                                                                                          \
        for (int64_t j = from; j < (n); j++) sums[j - from] += (value);                            \
        for (int half = MTI_LINE / 2; half > 0; half /= 2)                                         \
            for (int k = 0; k < half; k++) sums[k] += sums[k + half];                              \
        (part) = sums[0];                                                                          \
    } while (0)

/* Each block of a row of n elements: `at` is its start, `len` its length. */
#define MTI_EACH_BLOCK(dtype, n)                                                                   \
    for (int64_t at = 0, len = mti_block_size(dtype, n); at < (n);                                 \
         at += len, len = (n)-at < len ? (n)-at : len)

#endif

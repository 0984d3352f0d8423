/* cpu.h: shared by the files of the CPU backend.
 *
 * A kernel divides its work into chunks whose bounds depend on the shapes only,
 * passes the chunks to mti_cpu_parallel, and computes in a static
 * MTI_MULTIVERSION function. So the result has the same bits at every number
 * of threads, and the loops are compiled for SSE2, AVX2 and AVX-512. */
#ifndef MTI_CPU_H
#define MTI_CPU_H

#include <stdatomic.h>
#include <stdlib.h>
#if defined(__SSE2__)
#include <emmintrin.h>
#endif
#include "backends/backend.h"

/* a * b + c may be contracted to one rounding, and comparisons may be evaluated
 * early: exception flags are not read. NaN and infinity behave as before. */
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC optimize("fp-contract=fast", "no-trapping-math")
#endif

#include "backends/scalar.h"

typedef struct mti_cpu_copies mti_cpu_copies;
typedef struct mti_cpu_team mti_cpu_team;
struct mti_ctx {
    atomic_int threads; /* any host thread may set it while another computes */
    atomic_int shared;  /* kernels that several threads shared since AdamW's last step */
    mti_cpu_copies *copies;
    mti_cpu_team *team; /* threads that share kernels */
};

/* Granules of memory (ranges.c), where the system has them. */
#if defined(__linux__)
extern const mti_ranges mti_cpu_ranges;
#define MTI_CPU_RANGES &mti_cpu_ranges
#else
#define MTI_CPU_RANGES NULL
#endif

/* Compiles a function for x86-64, AVX2 + FMA and AVX-512; the loader chooses one.
 * Needs GCC's target_clones with architecture levels and glibc's ifunc. Functions
 * inlined into it are cloned too. */
#if !defined(MTI_NO_MULTIVERSION) && defined(__x86_64__) && defined(__GLIBC__) &&                  \
    defined(__GNUC__) && !defined(__clang__) && __GNUC__ >= 12
#define MTI_MULTIVERSION                                                                           \
    __attribute__((target_clones("default", "arch=x86-64-v3", "arch=x86-64-v4")))
#else
#define MTI_MULTIVERSION
#endif

/* For functions with loops that an MTI_MULTIVERSION function calls: not inlined, they would
 * be compiled once only, for the baseline machine. */
#if defined(__GNUC__)
#define MTI_INLINE static inline __attribute__((always_inline))
#else
#define MTI_INLINE static inline
#endif

#define MTI_PRAGMA(text) _Pragma(#text)
/* Before a loop with independent iterations. */
#if defined(__clang__)
#define MTI_SIMD
#define MTI_SIMD_SUM(...)
#define MTI_SIMD_MAX(...)
#else
#define MTI_SIMD          MTI_PRAGMA(omp simd)
/* Before a loop that may accumulate (sum or maximum) the named variables in any order. */
#define MTI_SIMD_SUM(...) MTI_PRAGMA(omp simd reduction(+ : __VA_ARGS__))
#define MTI_SIMD_MAX(...) MTI_PRAGMA(omp simd reduction(max : __VA_ARGS__))
#endif

/* out[i] = value for n elements. */
#define MTI_EACH(out, value)                                                                       \
    do {                                                                                           \
        MTI_SIMD                                                                                   \
        for (int64_t i = 0; i < n; i++) out[i] = (value);                                          \
    } while (0)

/* ---- large outputs, past the caches ----
 *
 * They would be evicted before anybody reads them. Stores around the caches need not read their
 * lines first, and keep what else is there. The lines are written one by one between the
 * arithmetic, which goes on while they are on their way, and the inputs are fetched ahead, because
 * the processor does not do so in time. Other processors than x86 recognize such outputs
 * themselves. */

#define MTI_LINE 16 /* f32 elements of a cache line */

/* Whether y is one. Its lines must be whole, so rows must be of whole lines. */
static inline bool mti_cpu_is_past(const mti_view *y)
{
    return y->dtype == MT_F32 && mti_view_count(y) > (8 << 20) && mti_view_is_contiguous(y) &&
           (uintptr_t)y->data % 64 == 0 && y->shape[y->rank - 1] % MTI_LINE == 0;
}

MTI_INLINE void mti_cpu_put(void *out, const void *line, size_t n_bytes)
{
#if defined(__SSE2__)
    for (size_t i = 0; i < n_bytes; i += sizeof(__m128i))
        _mm_stream_si128((__m128i *)((char *)out + i),
                         _mm_load_si128((const __m128i *)((const char *)line + i)));
#else
    memcpy(out, line, n_bytes);
#endif
}

/* The line that is `bytes` after p. */
#if defined(__GNUC__)
#define MTI_FETCH(p, bytes) __builtin_prefetch((const char *)(p) + (bytes))
#else
#define MTI_FETCH(p, bytes) ((void)0)
#endif
#define MTI_AHEAD 4096 /* bytes */

/* For i in [0, n): in_place, which stores element i where it belongs; but if it goes past the
 * caches, in_line, which stores it in lines[0][i - from] (and lines[1]), after `fetch` and before
 * `put`, which see the line that begins at `from`. */
#define MTI_LINES(T, past, i, n, fetch, in_line, put, in_place)                                    \
    do {                                                                                           \
        int64_t from = 0;                                                                          \
        for (; (past) && from + MTI_LINE <= (n); from += MTI_LINE) {                               \
            _Alignas(64) T lines[2][MTI_LINE];                                                     \
            fetch;                                                                                 \
            MTI_SIMD                                                                               \
            for (int64_t i = from; i < from + MTI_LINE; i++) in_line;                              \
            put;                                                                                   \
        }                                                                                          \
        MTI_SIMD                                                                                   \
        for (int64_t i = from; i < (n); i++) in_place;                                             \
    } while (0)

/* out[i] = value */
#define MTI_EACH_LINE(T, past, i, n, fetch, out, value)                                            \
    MTI_LINES(T, past, i, n, fetch, lines[0][i - from] = (value),                                  \
              mti_cpu_put((out) + from, lines[0], sizeof lines[0]), (out)[i] = (value))

/* ---- threads ---- */

static inline int mti_cpu_threads(const mti_ctx *ctx)
{
    return atomic_load_explicit(&ctx->threads, memory_order_relaxed);
}

/* Below this many simple element operations a second thread does not pay. */
#define MTI_CPU_GRAIN 65536
/* The cost of copying or adding an element. A second thread does not copy sooner, but each then has
 * its rows in its cache for the next kernel, which would wait for half of them. */
#define MTI_CPU_MOVE 2

/* Does items [begin, end). `begin` is a multiple of the chunk size. */
typedef void mti_cpu_range_fn(const void *arg, int64_t begin, int64_t end);

/* Calls fn over [0, n) in chunks of `chunk` items, one call per chunk. The chunks run on
 * ctx->threads threads if there are at least two chunks, else on the calling thread; which of them
 * runs a chunk depends on the moment. A call from within fn, or while another host thread's call
 * has the threads, runs on the calling thread alone. */
void mti_cpu_parallel(mti_ctx *ctx, int64_t n, int64_t chunk, mti_cpu_range_fn *fn,
                      const void *arg);

/* The threads of a context, none of which has started; OMP_WAIT_POLICY=passive: they never spin. */
mti_cpu_team *mti_cpu_team_new(void);
void mti_cpu_team_free(mti_cpu_team *team);

/* The chunk size for n items of `cost` simple operations each: all n if that is too little
 * work for a second thread, else an eighth of MTI_CPU_GRAIN operations. A function of its
 * arguments only. */
int64_t mti_cpu_chunk(int64_t n, int64_t cost);

/* ---- 16-bit and 8-bit floats: contiguous elements to and from f32 ---- */

/* Whether kernels see the dtype's elements as f32. */
static inline bool mti_cpu_is_narrow(mt_dtype dtype)
{
    return dtype == MT_BF16 || dtype == MT_F16 || dtype == MT_F8_E4M3 || dtype == MT_F8_E5M2;
}

/* Elements that kernels convert at once, in buffers on the stack. */
#define MTI_CPU_RUN 512

/* dtype is f32 or narrow. Stores round to nearest even; NaN stays NaN. */
void mti_cpu_load_f32(mt_dtype dtype, const void *src, float *dst, int64_t n);
void mti_cpu_store_f32(mt_dtype dtype, const float *src, void *dst, int64_t n);

/* n elements of v in f64, from the at-th in memory on. */
void mti_cpu_read_wide(const mti_view *v, int64_t at, double *out, int64_t n);
void mti_cpu_write_wide(const mti_view *v, int64_t at, const double *in, int64_t n);

/* ---- walking several views of one shape together ---- */

/* Moves n elements of `size` bytes between strided addresses. */
void mti_cpu_move(size_t size, void *dst, int64_t dst_step, const void *src, int64_t src_step,
                  int64_t n);

/* The offset of element i, in row-major order, of `rank` dimensions. */
static inline int64_t mti_cpu_offset(int rank, const int64_t *shape, const int64_t *stride,
                                     int64_t i)
{
    int64_t offset = 0;
    for (int d = rank - 1; d > 0; d--) {
        offset += i % shape[d] * stride[d];
        i /= shape[d];
    }
    return rank > 0 ? offset + i * stride[0] : 0;
}

#define MTI_CPU_MAX_OPERANDS 5

/* Views of one shape, without dimensions of size 1; dimensions that are contiguous with
 * each other in every view are merged. */
typedef struct mti_walk {
    int n_operands, rank;       /* rank >= 1 */
    int64_t count;              /* elements in all */
    int64_t shape[MT_MAX_RANK]; /* slowest first */
    int64_t stride[MTI_CPU_MAX_OPERANDS][MT_MAX_RANK];
    char *data[MTI_CPU_MAX_OPERANDS];
    mt_dtype dtype[MTI_CPU_MAX_OPERANDS];
} mti_walk;

/* row_major: keep the order of elements; else sort dimensions by operand 0's strides. */
void mti_walk_init(mti_walk *walk, int n_operands, const mti_view *const *views, bool row_major);
/* The multi-index of element i in the walk's order. */
void mti_walk_seek(const mti_walk *walk, int64_t i, int64_t index[MT_MAX_RANK]);
/* The next index; the last dimension moves by `by` and must not pass its end. */
void mti_walk_advance(const mti_walk *walk, int64_t by, int64_t index[MT_MAX_RANK]);
int64_t mti_walk_offset(const mti_walk *walk, int operand, const int64_t index[MT_MAX_RANK]);

/* A run of elements. */
typedef struct mti_cpu_span {
    int64_t first; /* the number of the first one in the walk's order */
    bool past;     /* f32 outputs go past the caches; a kernel need not heed it */
} mti_cpu_span;

/* The arithmetic of an element-wise kernel on n contiguous elements. p[0] is the
 * output; narrow floats are converted to and from f32 by the caller. p[0] may equal another
 * pointer.
 */
typedef void mti_cpu_run_fn(const void *op, void *const *p, mti_cpu_span part, int64_t n);

/* y[i] = run(inputs[i]) over views of one shape in any layout; views[0] is y;
 * if `outputs` is 2, views[1] is an output too. `cost` as in mti_cpu_chunk. */
void mti_cpu_map(mti_ctx *ctx, int n_operands, const mti_view *const *views, int outputs,
                 bool row_major, int64_t cost, mti_cpu_run_fn *run, const void *op);

/* The offset of row r, in elements, in a view whose last dimension is contiguous. For a
 * contiguous view it is one multiplication. */
int64_t mti_cpu_row_offset(const mti_view *v, int64_t row);
int64_t mti_cpu_row_count(const mti_view *v); /* product of all but the last dimension */

/* ---- copies beside compute: transfer.c ---- */
mti_cpu_copies *mti_cpu_copies_new(void);
void mti_cpu_copies_free(mti_cpu_copies *copies); /* finishes all copies that have begun */
bool mti_cpu_copy_begin(mti_ctx *ctx, mti_direction direction, void *dst, const void *src,
                        size_t n_bytes, uint64_t *ticket);
bool mti_cpu_copy_wait(mti_ctx *ctx, uint64_t ticket);
bool mti_cpu_copy_finish(mti_ctx *ctx, uint64_t ticket);
bool mti_cpu_copy_times(mti_ctx *ctx, mti_copy_times *out);

/* ---- the kernels: mti_cpu_NAME for each row of kernels.def, which has their contracts ---- */
#define KERNEL(name, parameters, arguments)                                                        \
    bool mti_cpu_##name(mti_ctx *ctx, MTI_UNWRAP parameters);
#define SCRATCH(name, parameters, arguments)                                                       \
    size_t mti_cpu_##name(mti_ctx *ctx, MTI_UNWRAP parameters);
#include "backends/kernels.def"

/* cast.c: mti_cpu_copy between two dtypes. */
void mti_cpu_cast(mti_ctx *ctx, const mti_view *x, const mti_view *y);

#endif

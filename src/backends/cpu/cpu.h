/* cpu.h: what the files of the CPU backend share.
 *
 * A kernel splits its work into chunks whose bounds depend on the shapes only,
 * hands the chunks to mti_cpu_parallel, and does the arithmetic in a static
 * MTI_MULTIVERSION function: so the result has the same bits at every number
 * of threads, and the loops exist for SSE2, AVX2 and AVX-512. */
#ifndef MTI_CPU_H
#define MTI_CPU_H

#include <stdatomic.h>
#include <stdlib.h>
#include "backends/backend.h"

/* a * b + c may become one rounding, and comparisons may be evaluated early:
 * nobody reads the exception flags. Neither changes what NaN or infinity do. */
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC optimize("fp-contract=fast", "no-trapping-math")
#endif

#include "backends/scalar.h"

typedef struct mti_cpu_copies mti_cpu_copies;
struct mti_ctx {
    atomic_int threads; /* any host thread may set it while another computes */
    mti_cpu_copies *copies;
};

/* Compile a function for x86-64, AVX2 + FMA and AVX-512; the loader chooses.
 * Needs GCC's target_clones with architecture levels and glibc's ifunc. What
 * is inlined into it is cloned too; an outlined OpenMP body would not be, which
 * is why the parallel loop lives in mti_cpu_parallel and nowhere else. */
#if !defined(MTI_NO_MULTIVERSION) && defined(__x86_64__) && defined(__GLIBC__) &&                  \
    defined(__GNUC__) && !defined(__clang__) && __GNUC__ >= 12
#define MTI_MULTIVERSION                                                                           \
    __attribute__((target_clones("default", "arch=x86-64-v3", "arch=x86-64-v4")))
#else
#define MTI_MULTIVERSION
#endif

/* For what a MTI_MULTIVERSION function calls and has loops: out of line it would be the
 * one version for any machine. */
#if defined(__GNUC__)
#define MTI_INLINE static inline __attribute__((always_inline))
#else
#define MTI_INLINE static inline
#endif

#define MTI_PRAGMA(text) _Pragma(#text)
/* Before a loop whose iterations are independent. */
#if defined(__clang__)
#define MTI_SIMD
#define MTI_SIMD_SUM(...)
#define MTI_SIMD_MAX(...)
#else
#define MTI_SIMD          MTI_PRAGMA(omp simd)
/* Before a loop that may add to (take the maximum into) the named variables in any order. */
#define MTI_SIMD_SUM(...) MTI_PRAGMA(omp simd reduction(+ : __VA_ARGS__))
#define MTI_SIMD_MAX(...) MTI_PRAGMA(omp simd reduction(max : __VA_ARGS__))
#endif

/* ---- threads ---- */

static inline int mti_cpu_threads(const mti_ctx *ctx)
{
    return atomic_load_explicit(&ctx->threads, memory_order_relaxed);
}

/* Below this many simple element operations a second thread costs more than it brings. */
#define MTI_CPU_GRAIN 65536

/* The work on items [begin, end). `begin` is a multiple of the chunk size. */
typedef void mti_cpu_range_fn(const void *arg, int64_t begin, int64_t end);

/* fn over [0, n) in chunks of `chunk` items, each chunk one call. The chunks run
 * on ctx->threads threads if there are at least two, else right here. */
void mti_cpu_parallel(const mti_ctx *ctx, int64_t n, int64_t chunk, mti_cpu_range_fn *fn,
                      const void *arg);

/* The chunk for n items of `cost` simple operations each: all n when together they
 * are too little for a second thread, else an eighth of MTI_CPU_GRAIN operations.
 * Depends on its arguments only. */
int64_t mti_cpu_chunk(int64_t n, int64_t cost);

/* ---- 16-bit floats: runs of contiguous elements to and from f32 ---- */

/* Elements that kernels convert at a time, in buffers on the stack. */
#define MTI_CPU_RUN 512

/* dtype is f32, bf16 or f16. Stores round to nearest even; NaN stays NaN. */
void mti_cpu_load_f32(mt_dtype dtype, const void *src, float *dst, int64_t n);
void mti_cpu_store_f32(mt_dtype dtype, const float *src, void *dst, int64_t n);

/* ---- walking several views of one shape together ---- */

#define MTI_CPU_MAX_OPERANDS 5

/* Views of one shape, dimensions of size 1 dropped, dimensions that lie one
 * behind the other in every view merged. */
typedef struct mti_walk {
    int n_operands, rank;       /* rank >= 1 */
    int64_t count;              /* elements in all */
    int64_t shape[MT_MAX_RANK]; /* slowest first */
    int64_t stride[MTI_CPU_MAX_OPERANDS][MT_MAX_RANK];
    char *data[MTI_CPU_MAX_OPERANDS];
    mt_dtype dtype[MTI_CPU_MAX_OPERANDS];
} mti_walk;

/* row_major: keep the order of elements; else operand 0's largest stride first. */
void mti_walk_init(mti_walk *walk, int n_operands, const mti_view *const *views, bool row_major);
/* The multi-index of element i in the walk's order. */
void mti_walk_seek(const mti_walk *walk, int64_t i, int64_t index[MT_MAX_RANK]);
/* The next index; the last dimension moves by `by` and must not pass its end. */
void mti_walk_advance(const mti_walk *walk, int64_t by, int64_t index[MT_MAX_RANK]);
int64_t mti_walk_offset(const mti_walk *walk, int operand, const int64_t index[MT_MAX_RANK]);

/* The arithmetic of an element-wise kernel on n contiguous elements: p[0] is
 * the output, 16-bit floats have become f32. `first` is the number of the first
 * element in the walk's order. p[0] may equal another pointer. */
typedef void mti_cpu_run_fn(const void *op, void *const *p, int64_t first, int64_t n);

/* y[i] = run(inputs[i]) over views of one shape in any layout; views[0] is y,
 * and views[1] too when `outputs` is 2. `cost` as in mti_cpu_chunk. */
void mti_cpu_map(const mti_ctx *ctx, int n_operands, const mti_view *const *views, int outputs,
                 bool row_major, int64_t cost, mti_cpu_run_fn *run, const void *op);

/* Rows of a view whose last dimension is contiguous: the start of row r, in
 * elements. A view that is contiguous as a whole costs one multiplication. */
int64_t mti_cpu_row_offset(const mti_view *v, int64_t row);
int64_t mti_cpu_row_count(const mti_view *v); /* product of all but the last dimension */

/* ---- copies beside compute: transfer.c ---- */
mti_cpu_copies *mti_cpu_copies_new(void);
void mti_cpu_copies_free(mti_cpu_copies *copies); /* finishes what was begun */
bool mti_cpu_copy_begin(mti_ctx *ctx, mti_direction direction, void *dst, const void *src,
                        size_t n_bytes, uint64_t *ticket);
bool mti_cpu_copy_wait(mti_ctx *ctx, uint64_t ticket);
bool mti_cpu_copy_finish(mti_ctx *ctx, uint64_t ticket);
bool mti_cpu_copy_times(mti_ctx *ctx, mti_copy_times *out);

/* ---- the kernels, in the order of the table; contracts in backends/backend.h ---- */

/* elementwise.c, copy.c, cast.c */
bool mti_cpu_fill(mti_ctx *ctx, const mti_view *y, double value);
bool mti_cpu_copy(mti_ctx *ctx, const mti_view *x, const mti_view *y);
void mti_cpu_cast(const mti_ctx *ctx, const mti_view *x, const mti_view *y);
/* Out of range gives the nearest end, NaN gives 0. */
int64_t mti_cpu_f64_to_i64(double x);
bool mti_cpu_unary(mti_ctx *ctx, mti_unary op, double p0, double p1, const mti_view *x,
                   const mti_view *y);
bool mti_cpu_unary_backward(mti_ctx *ctx, mti_unary op, double p0, const mti_view *kept,
                            const mti_view *dy, const mti_view *dx);
bool mti_cpu_binary(mti_ctx *ctx, mti_binary op, const mti_view *a, const mti_view *b,
                    const mti_view *y);

/* reduce.c */
size_t mti_cpu_sum_scratch(mti_ctx *ctx, const mti_view *x, const mti_view *y);
bool mti_cpu_sum(mti_ctx *ctx, double scale, const mti_view *x, const mti_view *y, void *scratch);

/* random.c */
bool mti_cpu_uniform(mti_ctx *ctx, double lo, double hi, uint64_t seed, uint64_t offset,
                     const mti_view *y);
bool mti_cpu_normal(mti_ctx *ctx, double mean, double std, uint64_t seed, uint64_t offset,
                    const mti_view *y);
bool mti_cpu_dropout(mti_ctx *ctx, double p, uint64_t seed, uint64_t offset, const mti_view *x,
                     const mti_view *y, const mti_view *mask);
bool mti_cpu_dropout_mask(mti_ctx *ctx, double p, uint64_t seed, uint64_t offset,
                          const mti_view *mask);
bool mti_cpu_dropout_backward(mti_ctx *ctx, double p, const mti_view *mask, const mti_view *dy,
                              const mti_view *dx);

/* gemm.c */
size_t mti_cpu_gemm_scratch(mti_ctx *ctx, const mti_view *a, const mti_view *b, const mti_view *c);
bool mti_cpu_gemm(mti_ctx *ctx, double alpha, const mti_view *a, const mti_view *b, double beta,
                  const mti_view *c, const mti_view *bias, void *scratch, size_t n_scratch);

/* rows.c */
bool mti_cpu_softmax(mti_ctx *ctx, double scale, bool causal, const mti_view *x, const mti_view *y);
bool mti_cpu_softmax_backward(mti_ctx *ctx, double scale, const mti_view *y, const mti_view *dy,
                              const mti_view *dx);
bool mti_cpu_log_softmax(mti_ctx *ctx, const mti_view *x, const mti_view *y);
bool mti_cpu_log_softmax_backward(mti_ctx *ctx, const mti_view *y, const mti_view *dy,
                                  const mti_view *dx);

/* norm.c */
bool mti_cpu_layer_norm(mti_ctx *ctx, double eps, const mti_view *x, const mti_view *w,
                        const mti_view *b, const mti_view *y, const mti_view *mean,
                        const mti_view *rstd);
size_t mti_cpu_layer_norm_backward_scratch(mti_ctx *ctx, const mti_view *x);
bool mti_cpu_layer_norm_backward(mti_ctx *ctx, const mti_view *dy, const mti_view *x,
                                 const mti_view *w, const mti_view *mean, const mti_view *rstd,
                                 const mti_view *dx, const mti_view *dw, const mti_view *db,
                                 void *scratch);

size_t mti_cpu_rms_norm_backward_scratch(mti_ctx *ctx, const mti_view *x);
bool mti_cpu_rms_norm(mti_ctx *ctx, double eps, const mti_view *x, const mti_view *w,
                      const mti_view *y, const mti_view *rstd);
bool mti_cpu_rms_norm_backward(mti_ctx *ctx, const mti_view *dy, const mti_view *x,
                               const mti_view *w, const mti_view *rstd, const mti_view *dx,
                               const mti_view *dw, void *scratch);

/* gate.c, max.c, rope.c */
bool mti_cpu_where(mti_ctx *ctx, const mti_view *mask, const mti_view *a, const mti_view *b,
                   const mti_view *y);
bool mti_cpu_swiglu(mti_ctx *ctx, const mti_view *gate, const mti_view *up, const mti_view *y);
bool mti_cpu_swiglu_backward(mti_ctx *ctx, const mti_view *gate, const mti_view *up,
                             const mti_view *dy, const mti_view *dgate, const mti_view *dup);
bool mti_cpu_max(mti_ctx *ctx, const mti_view *x, const mti_view *y, const mti_view *index);
bool mti_cpu_max_backward(mti_ctx *ctx, const mti_view *index, const mti_view *dy,
                          const mti_view *dx);
bool mti_cpu_rope(mti_ctx *ctx, double theta, int64_t start, bool inverse, const mti_view *x,
                  const mti_view *y);

/* embedding.c */
bool mti_cpu_embedding(mti_ctx *ctx, const mti_view *index, const mti_view *w, const mti_view *y);
size_t mti_cpu_embedding_backward_scratch(mti_ctx *ctx, const mti_view *index, const mti_view *dw);
bool mti_cpu_embedding_backward(mti_ctx *ctx, const mti_view *index, const mti_view *dy,
                                const mti_view *dw, void *scratch);

/* loss.c */
bool mti_cpu_cross_entropy(mti_ctx *ctx, int64_t ignore, const mti_view *x, const mti_view *target,
                           const mti_view *logp, const mti_view *loss);
bool mti_cpu_cross_entropy_backward(mti_ctx *ctx, int64_t ignore, const mti_view *logp,
                                    const mti_view *target, const mti_view *dloss,
                                    const mti_view *dx);

/* attention.c */
size_t mti_cpu_attention_scratch(mti_ctx *ctx, const mti_attention *at);
bool mti_cpu_attention(mti_ctx *ctx, const mti_attention *at, void *scratch, size_t n_scratch);
size_t mti_cpu_attention_backward_scratch(mti_ctx *ctx, const mti_attention *at);
bool mti_cpu_attention_backward(mti_ctx *ctx, const mti_attention *at, const mti_view *d_o,
                                const mti_view *dq, const mti_view *dk, const mti_view *dv,
                                void *scratch, size_t n_scratch);

/* quantize.c */
bool mti_cpu_pack_bits(mti_ctx *ctx, const mti_view *x, const mti_view *bits);
bool mti_cpu_unpack_bits(mti_ctx *ctx, const mti_view *bits, const mti_view *y);
bool mti_cpu_quantize(mti_ctx *ctx, mti_code code, int64_t block, const mti_view *x,
                      const mti_view *shift, const mti_view *codes, const mti_view *scales);
bool mti_cpu_dequantize(mti_ctx *ctx, mti_code code, int64_t block, const mti_view *codes,
                        const mti_view *scales, const mti_view *shift, const mti_view *y);
bool mti_cpu_lane_mean(mti_ctx *ctx, const mti_view *x, const mti_view *y);

/* entropy.c */
bool mti_cpu_entropy_rows(mti_ctx *ctx, int64_t ignore, const mti_view *x, const mti_view *target,
                          const mti_view *lse, const mti_view *loss);
bool mti_cpu_entropy_rows_backward(mti_ctx *ctx, int64_t ignore, const mti_view *x,
                                   const mti_view *target, const mti_view *lse,
                                   const mti_view *scale, const mti_view *dx);
bool mti_cpu_counted_mean(mti_ctx *ctx, int64_t ignore, int64_t classes, const mti_view *target,
                          const mti_view *a, const mti_view *y);

/* optim.c */
bool mti_cpu_adamw(mti_ctx *ctx, const mti_opt_params *p, int n_items, const mti_opt_item *items);
bool mti_cpu_sgd(mti_ctx *ctx, const mti_opt_params *p, int n_items, const mti_opt_item *items);
bool mti_cpu_sum_squares(mti_ctx *ctx, int n_items, const mti_opt_item *items, double *out);
bool mti_cpu_scale_all(mti_ctx *ctx, double factor, int n_items, const mti_opt_item *items);

#endif

/* gemm.c: c = alpha a b + beta c + bias, batched, through OpenBLAS or oneDNN.
 *
 * A product is divided into tiles of c; one thread computes a tile with serial
 * calls. The tiles depend on shapes, layouts and dtype, never on the number of
 * threads, so the bits of c do not either. */
#include <assert.h>
#include <limits.h>
#include <signal.h>
#include <string.h>
#include "backends/cpu/products/gemm.h"

/* OpenBLAS's AVX-512 builds multiply up to this many multiply-adds without packing;
 * above it they first copy both operands, which costs thin products more than it gains. */
#define UNPACKED_MACS 1000000
/* Products with at most so many rows or columns are never packed by OpenBLAS's AVX-512 builds. */
#define THIN 32
/* Unpacked tiles read each operand again for every 32 rows or columns of the other, so both
 * should fit in this much cache; in three times as much if they are read few times. */
#define UNPACKED_BYTES (4 << 20)
/* Short dot products (a b^T with few columns) are OpenBLAS's slowest form. To transpose a
 * tile of b first gains a fifth if at least this many rows use it. */
#define TRANSPOSE_ROWS     24
#define TRANSPOSE_COLS     64
#define TRANSPOSE_K        128
#define TRANSPOSE_ELEMENTS (TRANSPOSE_COLS * TRANSPOSE_K)
/* From here on a second thread pays; a thread takes at least GRAIN_MACS at a time. */
#define PARALLEL_MACS (1 << 20)
#define GRAIN_MACS    (1 << 18)
/* Large products: small tiles have about TILE_MACS or more and no side shorter than LEAST_ROWS or
 * LEAST_COLS; large ones STRIP_MACS and STRIP_SIDE. */
#define TILE_MACS  (1 << 20)
#define FEW_TILES  4 /* on a processor without rows of its own */
#define LEAST_ROWS 64
#define LEAST_COLS 96
#define STRIP_MACS ((int64_t)1 << 26)
#define STRIP_SIDE 256
#define MAX_STRIPS 32
/* 16-bit floats: the most of a tile in f32, whose operands are widened in blocks of k. */
#define HALF_SIDE   256
#define HALF_K      512
#define HALF_WIDE   384 /* columns that fit in the same room */
#define HALF_WIDE_K 320 /* with these blocks of k */
#define HALF_NARROW 192 /* columns of oneDNN's tiles if they are few */
/* The longest dimension of a tile, so that OpenBLAS's int can hold it. Rows that are farther apart
 * than it can hold are multiplied one at a time. */
#define MAX_SIDE ((int64_t)1 << 30)

static int64_t min64(int64_t a, int64_t b) { return a < b ? a : b; }
static int64_t max64(int64_t a, int64_t b) { return a > b ? a : b; }

static int64_t divide_up(int64_t a, int64_t b) { return (a + b - 1) / b; }

/* ---- reading the views ---- */

static mti_gemm_operand operand_of(const mti_view *v)
{
    int64_t rows = v->shape[v->rank - 2], cols = v->shape[v->rank - 1];
    int64_t row = v->stride[v->rank - 2], col = v->stride[v->rank - 1];
    mti_gemm_operand s = {.data = v->data};
    memcpy(s.batch_stride, v->stride, sizeof s.batch_stride);
    if ((cols == 1 || col == 1) && (rows == 1 || row >= cols)) {
        s.ld = rows == 1 ? cols : row;
    } else {
        assert((rows == 1 || row == 1) && (cols == 1 || col >= rows));
        s.trans = true;
        s.ld = cols == 1 ? rows : col;
    }
    return s;
}

/* If c is column-major, compute c^T = b^T a^T. */
static void transpose(mti_gemm *g)
{
    mti_gemm_operand a = g->a;
    int64_t m = g->m;
    g->a = g->b, g->b = a;
    g->m = g->n, g->n = m;
    g->a.trans = !g->a.trans, g->b.trans = !g->b.trans, g->c.trans = false;
    g->bias_per_row = true;
}

/* A batch that shares one b is one product with a taller a, if a's and c's rows are evenly
 * spaced. */
static void fold_batch_into_rows(mti_gemm *g)
{
    while (g->batch_rank > 0) {
        int last = g->batch_rank - 1;
        bool size_one = g->batch_shape[last] == 1;
        bool evenly_spaced = !g->a.trans && !g->bias_per_row && g->b.batch_stride[last] == 0 &&
                             g->a.batch_stride[last] == g->m * g->a.ld &&
                             g->c.batch_stride[last] == g->m * g->c.ld;
        if (!size_one && !evenly_spaced) return;
        g->m *= g->batch_shape[last];
        g->batch_rank = last;
    }
}

static void read_views(mti_gemm *g, const mti_view *a, const mti_view *b, const mti_view *c)
{
    int rank = c->rank;
    assert(rank >= 2 && a->rank == rank && b->rank == rank);
    assert(a->dtype == b->dtype && mt_dtype_is_float(a->dtype));
    assert(a->dtype == c->dtype || (mti_dtype_size(a->dtype) == 2 && c->dtype == MT_F32));
    *g = (mti_gemm){.dtype = a->dtype,
                    .c_dtype = c->dtype,
                    .size = mti_dtype_size(a->dtype),
                    .c_size = mti_dtype_size(c->dtype),
                    .m = c->shape[rank - 2],
                    .n = c->shape[rank - 1],
                    .k = a->shape[rank - 1],
                    .batch_rank = rank - 2,
                    .a = operand_of(a),
                    .b = operand_of(b),
                    .c = operand_of(c)};
    memcpy(g->batch_shape, c->shape, sizeof g->batch_shape);
    if (g->c.trans) transpose(g);
    fold_batch_into_rows(g);
    g->n_batch = 1;
    for (int i = 0; i < g->batch_rank; i++) g->n_batch *= g->batch_shape[i];
}

/* ---- tiling ---- */

/* Does this OpenBLAS multiply small matrices without packing them? */
static bool has_unpacked_kernels(void)
{
    const char *core = openblas_get_corename();
    return strcmp(core, "SkylakeX") == 0 || strcmp(core, "Cooperlake") == 0 ||
           strcmp(core, "SapphireRapids") == 0;
}

static mti_gemm_choice choice_of(const mti_gemm *g)
{
    mti_gemm_form form = mti_gemm_form_of(g);
    if (form == MTI_GEMM_NT && min64(g->m, g->n) <= THIN) form = MTI_GEMM_THIN_NT;
    return mti_gemm_choose(g->dtype, form, g->m, g->n, g->k);
}

static double macs_of(const mti_gemm *g) { return (double)g->m * (double)g->n * (double)g->k; }

/* Does transposing tiles of b pay? */
static bool transpose_pays(const mti_gemm *g)
{
    return g->b.ld <= INT_MAX && g->dtype == MT_F32 && !g->a.trans && g->b.trans &&
           g->m >= TRANSPOSE_ROWS && g->n >= 16 &&
           (g->k <= TRANSPOSE_K || macs_of(g) <= UNPACKED_MACS) && has_unpacked_kernels();
}

/* Tiles of about a thousand elements, which OpenBLAS multiplies without packing. */
static void plan_small_tiles(mti_gemm *g)
{
    if (g->transpose_b) {
        g->tile_m = min64(g->m, 100), g->tile_n = min64(g->n, TRANSPOSE_COLS);
    } else if (g->m <= 32) {
        g->tile_m = g->m;
        g->tile_n = min64(g->n, max64(32, min64(256, 1024 / g->m)));
    } else if (g->n <= 32) {
        g->tile_n = g->n;
        g->tile_m = min64(g->m, max64(32, min64(256, 1024 / g->n)));
    } else {
        bool plain = !g->a.trans && !g->b.trans;
        g->tile_m = plain ? 16 : 32;
        g->tile_n = plain ? 64 : 32;
    }
    int64_t max_k = g->transpose_b ? TRANSPOSE_K : UNPACKED_MACS / (g->tile_m * g->tile_n);
    int64_t blocks = divide_up(g->k, max_k);
    g->tile_k = blocks == 1 ? g->k : min64(max_k, divide_up(g->k, 16 * blocks) * 16);
}

/* Halves one tile of everything, if that leaves enough to do: up to `few` tiles may be small, more
 * only large. A library copies its operands in every call: to halve the rows costs about twice as
 * much as to halve the columns. */
static void halve_tiles(mti_gemm *g, int64_t few)
{
    double small = macs_of(g) / TILE_MACS, large = macs_of(g) / (double)STRIP_MACS;
    for (int64_t tiles = 1;; tiles *= 2) {
        bool by_row = g->tile_m > MAX_SIDE, by_col = g->tile_n > MAX_SIDE;
        if (!by_row && !by_col && tiles < few && (double)tiles < small)
            by_row = g->tile_m >= 2 * LEAST_ROWS, by_col = g->tile_n >= 2 * LEAST_COLS;
        if (!by_row && !by_col && tiles < MAX_STRIPS && (double)tiles < large)
            by_row = g->tile_m >= 2 * STRIP_SIDE, by_col = g->tile_n >= 2 * STRIP_SIDE;
        if (!by_row && !by_col) break;
        bool rows_next = by_row && (!by_col || g->tile_m > 2 * g->tile_n);
        int64_t *side = rows_next ? &g->tile_m : &g->tile_n;
        *side = (*side / 2 + 15) / 16 * 16;
    }
}

static void plan_large_tiles(mti_gemm *g, int64_t few)
{
    g->tile_m = g->m, g->tile_n = g->n, g->tile_k = min64(g->k, MAX_SIDE);
    halve_tiles(g, few);
}

/* One tile that is worth a second thread: its halves, in blocks of half the length, so that both
 * threads find room where one would have been alone. */
static void halve_alone(mti_gemm *g)
{
    g->tile_n /= 2, g->tile_k = (g->tile_k + 1) / 2;
    g->scratch_per_worker = g->scratch_bytes / 128 * 64; /* on a cache line */
}

/* A few tiles should be an even number, for two threads. */
static void even_out_columns(mti_gemm *g, int64_t n_cols, int64_t n_rows)
{
    if (n_cols * n_rows < 16 && n_cols * n_rows % 2) n_cols++;
    g->tile_n = min64(g->tile_n, divide_up(g->n, 16 * n_cols) * 16);
}

/* oneDNN copies b, or both operands, in each call: wider tiles gain up to a tenth where there are
 * enough of them. It is asked for the scratch of these tiles, so they stay. */
static void plan_bf16_tiles(mti_gemm *g)
{
    int64_t n_rows = divide_up(g->m, g->tile_m), flat = min64(2048, 16384 / g->tile_m);
    g->tile_n = min64(g->n, max64(HALF_SIDE, flat));
    /* One tile is worth a second worker's scratch only if it is a large one. */
    if (n_rows > 1 || g->tile_n < g->n || macs_of(g) >= 4 * PARALLEL_MACS) {
        bool many = n_rows * divide_up(g->n, HALF_WIDE) >= 16;
        g->tile_n = min64(g->n, max64(many ? HALF_WIDE : HALF_NARROW, flat));
        even_out_columns(g, divide_up(g->n, g->tile_n), n_rows);
    }
    mti_gemm_bf16_plan(g);
}

/* Wider tiles and shorter blocks are faster where the sum is long. */
static void plan_half_tiles(mti_gemm *g)
{
    bool native =
        g->dtype == MT_BF16 && mti_gemm_bf16_fits(g) && choice_of(g).library == MTI_ONEDNN;
    g->tile_m = min64(g->m, HALF_SIDE), g->tile_n = min64(g->n, HALF_SIDE);
    g->tile_k = min64(g->k, HALF_K);
    if (native) plan_bf16_tiles(g);
    g->scratch_per_worker = g->scratch_bytes = mti_gemm_half_scratch(g);
    /* As its blocks in f32 may be; for signals. */
    g->library = mti_gemm_choose(MT_F32, mti_gemm_form_of(g), g->m, g->n, g->k).library;
    if (native) return;
    if (g->k >= HALF_K) g->tile_n = min64(g->n, HALF_WIDE), g->tile_k = HALF_WIDE_K;
    int64_t n_cols = divide_up(g->n, g->tile_n), n_rows = divide_up(g->m, g->tile_m);
    if (n_cols * n_rows > 1) {
        even_out_columns(g, n_cols, n_rows);
    } else if (g->n_batch == 1 && macs_of(g) >= 2 * PARALLEL_MACS && g->tile_n % 32 == 0) {
        halve_alone(g);
    }
}

/* What lies too far apart for a library, rows of a matrix or its columns: one in each tile. */
static void take_far_rows_alone(mti_gemm *g)
{
    if (g->a.ld > INT_MAX) *(g->a.trans ? &g->tile_k : &g->tile_m) = 1;
    if (g->b.ld > INT_MAX) *(g->b.trans ? &g->tile_n : &g->tile_k) = 1;
    if (g->c.ld > INT_MAX) g->tile_m = 1;
}

/* f32 and f64. Without packing, OpenBLAS wants small tiles; otherwise large ones. */
static void plan_full_tiles(mti_gemm *g, mti_gemm_choice choice)
{
    double operands = ((double)g->m + (double)g->n) * (double)g->k * (double)g->size;
    int64_t shorter = min64(g->m, g->n);
    g->library = choice.library;
    g->transpose_b = g->library == MTI_OPENBLAS && transpose_pays(g);
    if (choice.tiles != MTI_GEMM_UNPACKED) {
        plan_large_tiles(g, choice.tiles);
    } else if (macs_of(g) <= UNPACKED_MACS &&
               (!g->transpose_b || g->n * g->k <= TRANSPOSE_ELEMENTS)) {
        g->tile_m = g->m, g->tile_n = g->n, g->tile_k = g->k;
    } else if (shorter <= THIN ||
               (operands <= (shorter <= 128 ? 3 : 1) * UNPACKED_BYTES && has_unpacked_kernels())) {
        plan_small_tiles(g);
    } else {
        plan_large_tiles(g, has_unpacked_kernels() ? 1 : FEW_TILES);
    }
    take_far_rows_alone(g);
    g->transpose_b = g->transpose_b && g->tile_n * g->tile_k <= TRANSPOSE_ELEMENTS;
}

static void plan_tiles(mti_ctx *ctx, mti_gemm *g, const mti_gemm_choice *given)
{
    double macs = macs_of(g);
    if (g->size == 2)
        plan_half_tiles(g);
    else
        plan_full_tiles(g, given ? *given : choice_of(g));
    g->tiles_m = divide_up(g->m, g->tile_m);
    g->tiles_n = divide_up(g->n, g->tile_n);
    g->n_items = g->n_batch * g->tiles_m * g->tiles_n;
    double tile_macs = (double)g->tile_m * (double)g->tile_n * (double)g->k;
    g->grain = max64(1, (int64_t)(GRAIN_MACS / (tile_macs < 1 ? 1 : tile_macs)));
    bool serial = macs * (double)g->n_batch < PARALLEL_MACS;
    g->n_workers = serial ? 1 : (int)min64(mti_cpu_threads(ctx), divide_up(g->n_items, g->grain));
    if (g->scratch_bytes == g->scratch_per_worker) g->scratch_bytes *= (size_t)g->n_workers;
}

/* ---- computing a tile ---- */

static mti_mat block(const mti_gemm *g, const mti_gemm_operand *s, const char *data, int64_t i,
                     int64_t j)
{
    int64_t skip = s->trans ? j * s->ld + i : i * s->ld + j;
    return (mti_mat){data + skip * (int64_t)g->size, min64(s->ld, INT_MAX), s->trans};
}

/* Fills rows of c with the bias (plus c), or with 0 if k is 0 and nothing else writes them. */
#define DEFINE_START_TILE(name, T)                                                                 \
    static MTI_MULTIVERSION void name(const mti_gemm *g, const mti_gemm_tile *t)                   \
    {                                                                                              \
        const T *bias = (const T *)(const void *)g->bias;                                          \
        const T *restrict columns = bias == NULL || g->bias_per_row ? NULL : bias + t->j;          \
        for (int64_t i = t->i, n = t->n; i < t->i + t->m; i++) {                                   \
            T *restrict row = (T *)(void *)t->c + i * g->c.ld + t->j;                              \
            T start = bias != NULL && g->bias_per_row ? bias[i] : 0;                               \
            if (columns != NULL && g->accumulate)                                                  \
                for (int64_t j = 0; j < n; j++) row[j] += columns[j];                              \
            else if (columns != NULL)                                                              \
                for (int64_t j = 0; j < n; j++) row[j] = columns[j];                               \
            else if (g->accumulate)                                                                \
                for (int64_t j = 0; j < n; j++) row[j] += start;                                   \
            else                                                                                   \
                for (int64_t j = 0; j < n; j++) row[j] = start;                                    \
        }                                                                                          \
    }
DEFINE_START_TILE(start_tile_f32, float)
DEFINE_START_TILE(start_tile_f64, double)

/* b is transposed first, so that its rows are contiguous. */
static void transposed_product(const mti_gemm *g, const mti_gemm_tile *t, int64_t k, mti_mat a,
                               mti_mat b, float beta, float *c, int64_t ldc)
{
    float transposed[TRANSPOSE_ELEMENTS];
    mti_stranspose(t->n, k, 1, b.data, b.ld, transposed, t->n);
    mti_sgemm(t->m, t->n, k, (float)g->alpha, a, (mti_mat){transposed, t->n, false}, beta, c, ldc);
}

static void full_tile(const mti_gemm *g, const mti_gemm_tile *t)
{
    bool started = g->bias != NULL || g->k == 0;
    if (started) (g->dtype == MT_F64 ? start_tile_f64 : start_tile_f32)(g, t);
    for (int64_t p = 0; p < g->k; p += g->tile_k) {
        int64_t k = min64(g->tile_k, g->k - p), skip = t->i * g->c.ld + t->j;
        int64_t ld = min64(g->c.ld, INT_MAX);
        mti_mat a = block(g, &g->a, t->a, t->i, p), b = block(g, &g->b, t->b, p, t->j);
        int beta = started || g->accumulate || p > 0;
        float *c = (float *)(void *)t->c + skip;
        if (g->dtype == MT_F64)
            mti_dgemm(t->m, t->n, k, g->alpha, a, b, beta, (double *)(void *)t->c + skip, ld);
        else if (g->transpose_b)
            transposed_product(g, t, k, a, b, (float)beta, c, ld);
        else
            mti_gemm_serial_f32(g, g->library, t->m, t->n, k, a, b, (float)beta, c, ld);
    }
}

/* Consecutive items share rows of a, so that a worker's range of items is a range of rows: most
 * often of tokens, which the same worker has in the ops before and after. If c is more than twice
 * as wide as it is tall, they share columns of b. */
static void run_tiles(const mti_gemm *g, int worker, int64_t begin, int64_t end)
{
    const bool by_row = g->n <= 2 * g->m;
    for (int64_t item = begin; item < end; item++) {
        int64_t tile = item % (g->tiles_m * g->tiles_n), batch = item / (g->tiles_m * g->tiles_n);
        int64_t a = 0, b = 0, c = 0;
        for (int d = g->batch_rank - 1; d >= 0; d--) {
            int64_t i = batch % g->batch_shape[d];
            batch /= g->batch_shape[d];
            a += i * g->a.batch_stride[d], b += i * g->b.batch_stride[d];
            c += i * g->c.batch_stride[d];
        }
        int64_t i = (by_row ? tile / g->tiles_n : tile % g->tiles_m) * g->tile_m;
        int64_t j = (by_row ? tile % g->tiles_n : tile / g->tiles_m) * g->tile_n;
        int64_t size = (int64_t)g->size;
        mti_gemm_tile t = {.i = i,
                           .j = j,
                           .m = min64(g->tile_m, g->m - i),
                           .n = min64(g->tile_n, g->n - j),
                           .a = g->a.data + a * size,
                           .b = g->b.data + b * size,
                           .c = g->c.data + c * (int64_t)g->c_size};
        if (g->size == 2)
            mti_gemm_half_tile(g, &t, g->scratch + (size_t)worker * g->scratch_per_worker);
        else
            full_tile(g, &t);
    }
}

/* Signals wait for oneDNN: where one was handled in the midst of dnnl_sgemm (2.6, AVX-512) the heap
 * was damaged, in 6 of 50 interrupted runs; with OpenBLAS in none of 30. Probably its kernels keep
 * the stack pointer in memory of the heap. */
static void run_items(void *arg, int worker, int64_t begin, int64_t end)
{
    const mti_gemm *g = arg;
    const bool waits = g->native || g->library == MTI_ONEDNN;
    sigset_t every, before;
    if (waits) sigfillset(&every), pthread_sigmask(SIG_BLOCK, &every, &before);
    run_tiles(g, worker, begin, end);
    if (waits) pthread_sigmask(SIG_SETMASK, &before, NULL);
}

/* ---- the kernels ---- */

size_t mti_cpu_gemm_scratch(mti_ctx *ctx, const mti_view *a, const mti_view *b, const mti_view *c)
{
    mti_gemm g;
    if (mti_dtype_size(a->dtype) != 2 || mti_view_count(c) == 0) return 0;
    read_views(&g, a, b, c);
    plan_tiles(ctx, &g, NULL);
    return g.scratch_bytes;
}

static bool compute(mti_ctx *ctx, mti_gemm *g, size_t n_scratch, const mti_gemm_choice *given)
{
    atomic_int failure = 0; /* dnnl_success */
    g->failure = &failure;
    plan_tiles(ctx, g, given);
    g->n_workers = mti_cpu_scratch_workers(g->n_workers, n_scratch, g->scratch_per_worker);
    if (!mti_cpu_workers(ctx, g->n_workers, g->n_items, g->grain, run_items, g)) return false;
    return !atomic_load(&failure) || mti_gemm_f32_report(g);
}

bool mti_cpu_gemm(mti_ctx *ctx, double alpha, const mti_view *a, const mti_view *b, double beta,
                  const mti_view *c, const mti_view *bias, void *scratch, size_t n_scratch)
{
    mti_gemm g;
    if (mti_view_count(c) == 0) return true;
    read_views(&g, a, b, c);
    assert(beta == 0 || beta == 1 || g.size == 2);
    g.alpha = alpha, g.accumulate = beta != 0, g.beta = (float)beta;
    g.bias = bias == NULL ? NULL : bias->data;
    g.scratch = scratch;
    return compute(ctx, &g, n_scratch, NULL);
}

bool mti_gemm_chosen(mti_ctx *ctx, mti_gemm_choice choice, const mti_view *a, const mti_view *b,
                     const mti_view *c)
{
    mti_gemm g;
    assert(a->dtype == MT_F32);
    read_views(&g, a, b, c);
    g.alpha = 1;
    return compute(ctx, &g, 0, &choice);
}

/* ---- with the sums of a's rows: one after the other, in the same scratch ---- */

size_t mti_cpu_gemm_sums_scratch(mti_ctx *ctx, const mti_view *a, const mti_view *b,
                                 const mti_view *c)
{
    mti_view x, y;
    mti_view_sums(a, NULL, &x, &y);
    size_t product = mti_cpu_gemm_scratch(ctx, a, b, c), sum = mti_cpu_sum_scratch(ctx, &x, &y);
    return product > sum ? product : sum;
}

bool mti_cpu_gemm_sums(mti_ctx *ctx, const mti_view *a, const mti_view *b, const mti_view *c,
                       const mti_view *sums, void *scratch, size_t n_scratch)
{
    mti_view x, y;
    mti_view_sums(a, sums, &x, &y);
    return mti_cpu_gemm(ctx, 1, a, b, 0, c, NULL, scratch, n_scratch) &&
           mti_cpu_sum(ctx, 1, &x, &y, scratch);
}

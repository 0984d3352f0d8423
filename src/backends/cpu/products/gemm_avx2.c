/* gemm_avx2.c: products of f32 by kernels of our own, for processors with AVX2 and without AVX-512.
 *
 * OpenBLAS copies both operands in every call, which costs short sums a third of their rate, and
 * how fast oneDNN is depends on how far rows are apart. Here 6 x 16 elements of c are summed in
 * registers. b is copied in panels of 16 columns, a only where its columns are contiguous. An
 * element is one chain of multiply-adds over each block of k, in the order of k: its bits depend
 * neither on the tile it is in nor on its place there. */
#include <assert.h>
#include <string.h>
#include "backends/cpu/products/gemm.h"

#if defined(__x86_64__) && defined(__GNUC__)
#include <immintrin.h>

#define AVX2        __attribute__((target("avx2,fma")))
#define AVX2_INLINE AVX2 MTI_INLINE

#define MR       6
#define NR       16
#define BLOCK_K  384       /* a panel of b is three quarters of the first cache */
#define B_FLOATS (3 << 14) /* of a block of b: less than half of the second cache */
#define A_FLOATS (48 * BLOCK_K)
/* The least of both, on the stack. */
#define LITTLE_B (NR * BLOCK_K)
#define LITTLE_A (MR * BLOCK_K)

bool mti_gemm_avx2_runs(void)
{
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
}

/* ---- copies of the operands ---- */

/* to [8 rows of `step` floats] = the transpose of 8 rows of `from`, ld apart. */
AVX2_INLINE void transpose_8x8(const float *from, int64_t ld, float *to, int64_t step)
{
    __m256 r[8], s[8];
    for (int i = 0; i < 8; i++) r[i] = _mm256_loadu_ps(from + i * ld);
    for (int i = 0; i < 8; i += 2) {
        s[i] = _mm256_unpacklo_ps(r[i], r[i + 1]);
        s[i + 1] = _mm256_unpackhi_ps(r[i], r[i + 1]);
    }
    for (int i = 0; i < 8; i += 4) {
        r[i] = _mm256_shuffle_ps(s[i], s[i + 2], 0x44);
        r[i + 1] = _mm256_shuffle_ps(s[i], s[i + 2], 0xee);
        r[i + 2] = _mm256_shuffle_ps(s[i + 1], s[i + 3], 0x44);
        r[i + 3] = _mm256_shuffle_ps(s[i + 1], s[i + 3], 0xee);
    }
    for (int i = 0; i < 4; i++) {
        _mm256_storeu_ps(to + i * step, _mm256_permute2f128_ps(r[i], r[i + 4], 0x20));
        _mm256_storeu_ps(to + (i + 4) * step, _mm256_permute2f128_ps(r[i], r[i + 4], 0x31));
    }
}

/* A panel is NR columns of b, row after row; columns past the last are 0. It is aligned to 64
 * bytes, but to 16 where the system refused OpenBLAS a mapping and its buffer came from malloc. */
AVX2_INLINE void copy_any_panel(mti_mat b, const float *from, int64_t k, int64_t n, float *to)
{
    const int64_t row = b.trans ? 1 : b.ld, col = b.trans ? b.ld : 1;
    for (int64_t i = 0; i < k; i++)
        for (int64_t c = 0; c < NR; c++) to[i * NR + c] = c < n ? from[i * row + c * col] : 0;
}

AVX2_INLINE void transpose_panel(mti_mat b, const float *from, int64_t k, float *to)
{
    int64_t i = 0;
    for (; i + 8 <= k; i += 8) {
        transpose_8x8(from + i, b.ld, to + i * NR, NR);
        transpose_8x8(from + i + 8 * b.ld, b.ld, to + i * NR + 8, NR);
    }
    copy_any_panel(b, from + i, k - i, NR, to + i * NR);
}

/* `count` panels beside each other, whose rows are contiguous in b. */
AVX2_INLINE void copy_panels(const int count, const float *from, int64_t ld, int64_t k, float *to)
{
    for (int64_t i = 0; i < k; i++, from += ld, to += NR)
        for (int c = 0; c < count; c++) {
            _mm256_storeu_ps(to + c * k * NR, _mm256_loadu_ps(from + c * NR));
            _mm256_storeu_ps(to + c * k * NR + 8, _mm256_loadu_ps(from + c * NR + 8));
        }
}

/* k rows from row p on and n columns from column j on. */
AVX2 static void copy_b(mti_mat b, int64_t p, int64_t j, int64_t k, int64_t n, float *to)
{
    const float *from = (const float *)b.data + (b.trans ? j * b.ld + p : p * b.ld + j);
    int64_t c = 0;
    for (; !b.trans && c + 4 * NR <= n; c += 4 * NR) copy_panels(4, from + c, b.ld, k, to + c * k);
    for (; !b.trans && c + NR <= n; c += NR) copy_panels(1, from + c, b.ld, k, to + c * k);
    for (; b.trans && c + NR <= n; c += NR) transpose_panel(b, from + c * b.ld, k, to + c * k);
    if (c < n) copy_any_panel(b, from + (b.trans ? c * b.ld : c), k, n - c, to + c * k);
}

/* A strip is MR rows of a, whose columns are contiguous in memory, column after column. m rows from
 * row i on, k columns from column p on. */
AVX2 static void copy_a(mti_mat a, int64_t i, int64_t p, int64_t m, int64_t k, float *to)
{
    const float *from = (const float *)a.data + p * a.ld + i;
    const int64_t whole = m / MR * MR, rest = m - whole;
    for (int64_t q = 0; q < k; q++, from += a.ld) {
        MTI_FETCH(from + 8 * a.ld, 0);
        MTI_FETCH(from + 8 * a.ld, 64);
        MTI_FETCH(from + 8 * a.ld, 128);
        float *out = to + q * MR;
        for (int64_t r = 0; r < whole; r += MR, out += k * MR) {
            _mm_storeu_ps(out, _mm_loadu_ps(from + r));
            memcpy(out + 4, from + r + 4, 2 * sizeof *out);
        }
        for (int64_t x = 0; x < rest; x++) to[whole * k + q * rest + x] = from[whole + x];
    }
}

/* ---- the kernel ---- */

typedef struct result {
    float *c;
    int64_t ld, n; /* n <= NR columns */
    float alpha;
    const float *added; /* NULL: nothing */
    int64_t ld_added;   /* may be 0: the same row for all */
} result;

AVX2_INLINE void store(const result *to, int64_t i, __m256 left, __m256 right)
{
    const __m256 alpha = _mm256_set1_ps(to->alpha);
    float *row = to->c + i * to->ld, whole[NR];
    float *out = to->n == NR ? row : whole;
    const float *added = to->added ? to->added + i * to->ld_added : NULL;
    if (out == whole && added) {
        for (int64_t j = 0; j < NR; j++) whole[j] = j < to->n ? added[j] : 0;
        added = whole;
    }
    if (added) {
        left = _mm256_fmadd_ps(alpha, left, _mm256_loadu_ps(added));
        right = _mm256_fmadd_ps(alpha, right, _mm256_loadu_ps(added + 8));
    } else {
        left = _mm256_mul_ps(alpha, left), right = _mm256_mul_ps(alpha, right);
    }
    _mm256_storeu_ps(out, left);
    _mm256_storeu_ps(out + 8, right);
    if (out == whole)
        for (int64_t j = 0; j < to->n; j++) row[j] = whole[j];
}

/* c [rows,NR] = alpha a b + added: element (i, p) of a at i * row + p * col; b is a panel. */
AVX2_INLINE void sum_rows(const int rows, const float *a, int64_t row, int64_t col, const float *b,
                          int64_t k, const result *to)
{
    __m256 left[MR], right[MR];
#pragma GCC unroll 6
    for (int i = 0; i < rows; i++) left[i] = right[i] = _mm256_setzero_ps();
    for (int64_t p = 0; p < k; p++, b += NR) {
        const __m256 b0 = _mm256_loadu_ps(b), b1 = _mm256_loadu_ps(b + 8);
#pragma GCC unroll 6
        for (int i = 0; i < rows; i++) {
            const __m256 x = _mm256_broadcast_ss(a + i * row + p * col);
            left[i] = _mm256_fmadd_ps(x, b0, left[i]);
            right[i] = _mm256_fmadd_ps(x, b1, right[i]);
        }
    }
#pragma GCC unroll 6
    for (int i = 0; i < rows; i++) store(to, i, left[i], right[i]);
}

#define ROWS(n)                                                                                    \
    case n: sum_rows(n, a, row, col ? col : n, b, k, to); break
/* The same for as many rows as there are, which a constant lets the registers hold. col is 0 for a
 * strip. */
AVX2_INLINE void sum_any_rows(int64_t rows, const float *a, int64_t row, int64_t col,
                              const float *b, int64_t k, const result *to)
{
    switch (rows) {
        ROWS(1);
        ROWS(2);
        ROWS(3);
        ROWS(4);
        ROWS(5);
        ROWS(6);
    }
}

AVX2 static void sum_strip(int64_t rows, const float *a, const float *b, int64_t k,
                           const result *to)
{
    sum_any_rows(rows, a, 1, 0, b, k, to);
}

AVX2 static void sum_lines(int64_t rows, const float *a, int64_t ld, const float *b, int64_t k,
                           const result *to)
{
    sum_any_rows(rows, a, ld, 1, b, k, to);
}

/* ---- a product ---- */

static int64_t at_most(int64_t n, int64_t most) { return n < most ? n : most; }

/* Where copies go. */
typedef struct room {
    float *b, *a;
    int64_t b_floats, a_floats;
} room;

/* Rows [i, i + m) of c, by a block of b that is copied. */
static void block_row(mti_mat a, int64_t i, int64_t p, int64_t m, int64_t k, const room *at,
                      int64_t n, result to)
{
    float *const strips = at->a;
    const float *lines = (const float *)a.data + i * a.ld + p;
    float *const c = to.c;
    const float *const added = to.added;
    if (a.trans) copy_a(a, i, p, m, k, strips);
    for (int64_t j = 0; j < n; j += NR)
        for (int64_t r = 0; r < m; r += MR) {
            const float *panel = at->b + j * k;
            to.c = c + r * to.ld + j, to.n = at_most(n - j, NR);
            if (added) to.added = added + r * to.ld_added + j;
            if (a.trans)
                sum_strip(at_most(m - r, MR), strips + r * k, panel, k, &to);
            else
                sum_lines(at_most(m - r, MR), lines + r * a.ld, a.ld, panel, k, &to);
        }
}

typedef struct product {
    int64_t m, n, k;
    mti_mat a, b;
    const float *added;
    int64_t ld_added;
    result to;
} product;

static void compute(const product *x, const room *at)
{
    const int64_t most_k = at_most(x->k, BLOCK_K), most_n = at->b_floats / most_k / NR * NR;
    const int64_t most_m = at->a_floats / most_k / MR * MR;
    for (int64_t p = 0; p < x->k; p += most_k)
        for (int64_t j = 0; j < x->n; j += most_n) {
            const int64_t k = at_most(x->k - p, most_k), n = at_most(x->n - j, most_n);
            copy_b(x->b, p, j, k, n, at->b);
            for (int64_t i = 0; i < x->m; i += most_m) {
                result to = x->to;
                to.c += i * to.ld + j;
                to.added = p > 0 ? to.c : x->added ? x->added + i * x->ld_added + j : NULL;
                to.ld_added = p > 0 ? to.ld : x->ld_added;
                block_row(x->a, i, p, at_most(x->m - i, most_m), k, at, n, to);
            }
        }
}

void mti_gemm_avx2_product(int64_t m, int64_t n, int64_t k, float alpha, mti_mat a, mti_mat b,
                           const float *added, int64_t ld_added, float *c, int64_t ldc)
{
    const product x = {m, n, k, a, b, added, ld_added, {.c = c, .ld = ldc, .alpha = alpha}};
    assert(k > 0);
    float *buffer = n * k <= LITTLE_B ? NULL : mti_openblas_buffer();
    if (buffer != NULL) {
        compute(&x, &(room){buffer, buffer + B_FLOATS, B_FLOATS, A_FLOATS});
        mti_openblas_buffer_free(buffer);
    } else {
        _Alignas(64) float little[LITTLE_B + LITTLE_A];
        compute(&x, &(room){little, little + LITTLE_B, LITTLE_B, LITTLE_A});
    }
}

#else

bool mti_gemm_avx2_runs(void) { return false; }

void mti_gemm_avx2_product(int64_t m, int64_t n, int64_t k, float alpha, mti_mat a, mti_mat b,
                           const float *added, int64_t ld_added, float *c, int64_t ldc)
{
    (void)m, (void)n, (void)k, (void)alpha, (void)a, (void)b, (void)added, (void)ld_added;
    (void)c, (void)ldc;
    assert(false && "it does not run here");
}

#endif

/* gemm_half.c: products of bf16 and f16. The tile of c is summed in f32 in scratch and rounded
 * once, or kept where c is in f32. Blocks of both operands are widened to f32 in scratch too,
 * unless oneDNN takes them directly, in bf16. */
#include <assert.h>
#include <stdint.h>
#include "backends/cpu/products/gemm.h"

/* A worker's scratch: offsets in floats; every part starts on a cache line. */
typedef struct parts {
    size_t c, bias, added; /* the tile; its part of bias; the addend of one row */
    size_t a, b, native;   /* widened blocks or oneDNN's scratchpad */
    size_t total;
} parts;

static size_t line(int64_t n) { return ((size_t)n + 15) / 16 * 16; }

static parts parts_of(const mti_gemm *g)
{
    parts p = {.c = 0};
    p.bias = p.c + line(g->tile_m * g->tile_n);
    p.added = p.bias + line(g->tile_m > g->tile_n ? g->tile_m : g->tile_n);
    p.a = p.native = p.added + line(g->tile_n);
    p.b = p.a + line(g->tile_m * g->tile_k);
    p.total = p.b + line(g->tile_k * g->tile_n);
    size_t native = p.native + g->native_scratch / sizeof(float) + 1;
    if (p.total < native) p.total = line((int64_t)native);
    return p;
}

size_t mti_gemm_half_scratch(const mti_gemm *g) { return parts_of(g).total * sizeof(float); }

/* Widens rows x cols elements from (i, j) on to f32, in memory order. */
static mti_mat widen(const mti_gemm *g, const mti_gemm_operand *s, const char *data, int64_t i,
                     int64_t j, int64_t rows, int64_t cols, float *out)
{
    int64_t outer = s->trans ? cols : rows, inner = s->trans ? rows : cols;
    int64_t first = s->trans ? j * s->ld + i : i * s->ld + j;
    for (int64_t r = 0; r < outer; r++)
        mti_cpu_load_f32(g->dtype, data + (first + r * s->ld) * 2, out + r * inner, inner);
    return (mti_mat){out, inner, s->trans};
}

static char *row_of_c(const mti_gemm *g, const mti_gemm_tile *t, int64_t i)
{
    return t->c + ((t->i + i) * g->c.ld + t->j) * (int64_t)g->c_size;
}

/* The addend of row r of the tile: bias, beta c, their sum or zeros. */
static MTI_MULTIVERSION void added_to_row(const mti_gemm *g, const mti_gemm_tile *t, int64_t r,
                                          const float *restrict bias, float *restrict row)
{
    const int64_t n = t->n;
    const bool per_row = g->bias != NULL && g->bias_per_row;
    const float beta = g->beta, of_row = per_row ? bias[r] : 0;
    if (g->accumulate)
        mti_cpu_load_f32(g->c_dtype, row_of_c(g, t, r), row, n);
    else
        MTI_EACH(row, 0);
    if (g->accumulate && beta != 1) MTI_EACH(row, row[i] * beta);
    if (per_row)
        MTI_EACH(row, row[i] + of_row);
    else if (g->bias != NULL)
        MTI_EACH(row, row[i] + bias[i]);
}

static MTI_MULTIVERSION void scale_and_add(int64_t n, float alpha, float *restrict row,
                                           const float *restrict added)
{
    MTI_EACH(row, alpha * row[i] + added[i]);
}

/* c += alpha a b, block by block. */
static void widened_product(const mti_gemm *g, const mti_gemm_tile *t, float *a, float *b, float *c)
{
    for (int64_t p = 0; p < g->k; p += g->tile_k) {
        int64_t k = g->tile_k < g->k - p ? g->tile_k : g->k - p;
        mti_mat wide_a = widen(g, &g->a, t->a, t->i, p, t->m, k, a);
        mti_mat wide_b = widen(g, &g->b, t->b, p, t->j, k, t->n, b);
        mti_library library = mti_gemm_choose(MT_F32, mti_gemm_form_of(g), t->m, t->n, k).library;
        mti_gemm_serial_f32(g, library, t->m, t->n, k, wide_a, wide_b, 1, c, t->n);
    }
}

void mti_gemm_half_tile(const mti_gemm *g, const mti_gemm_tile *t, void *scratch)
{
    parts part = parts_of(g);
    assert(part.total * sizeof(float) <= g->scratch_per_worker);
    float *f = scratch, *c = f + part.c, *bias = f + part.bias, *added = f + part.added;
    int64_t first = g->bias_per_row ? t->i : t->j;
    if (g->bias != NULL)
        mti_cpu_load_f32(g->c_dtype, g->bias + first * (int64_t)g->c_size, bias,
                         g->bias_per_row ? t->m : t->n);
    bool native = g->native && mti_gemm_bf16_product(g, t, c, f + part.native);
    if (!native) {
        for (int64_t i = 0; i < t->m; i++) added_to_row(g, t, i, bias, c + i * t->n);
        widened_product(g, t, f + part.a, f + part.b, c);
    }
    for (int64_t i = 0; i < t->m; i++) {
        float *row = c + i * t->n;
        if (native && (g->accumulate || g->bias != NULL || g->alpha != 1)) {
            added_to_row(g, t, i, bias, added);
            scale_and_add(t->n, (float)g->alpha, row, added);
        }
        mti_cpu_store_f32(g->c_dtype, row, row_of_c(g, t, i), t->n);
    }
}

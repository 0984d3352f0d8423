/* gemm_half.c: products of bf16 and f16 through f32: blocks of both operands are
 * widened into scratch, the tile of c is summed there and rounded once. */
#include <stdint.h>
#include "backends/cpu/gemm.h"

/* Scratch of one worker, in floats; every part starts on a cache line. */
typedef struct parts {
    size_t a, b, c, bias, total;
} parts;

static size_t line(int64_t n) { return ((size_t)n + 15) / 16 * 16; }

static parts parts_of(const mti_gemm *g)
{
    parts p = {.a = 0};
    p.b = p.a + line(g->tile_m * g->tile_k);
    p.c = p.b + line(g->tile_k * g->tile_n);
    p.bias = p.c + line(g->tile_m * g->tile_n);
    p.total = p.bias + line(g->tile_m > g->tile_n ? g->tile_m : g->tile_n);
    return p;
}

size_t mti_gemm_half_scratch(const mti_gemm *g) { return parts_of(g).total * sizeof(float); }

/* Widen rows x cols elements from (i, j) on, in the order in which they lie. */
static mti_mat widen(const mti_gemm *g, const mti_gemm_side *s, const char *at, int64_t i,
                     int64_t j, int64_t rows, int64_t cols, float *to)
{
    int64_t outer = s->trans ? cols : rows, inner = s->trans ? rows : cols;
    int64_t first = s->trans ? j * s->ld + i : i * s->ld + j;
    for (int64_t r = 0; r < outer; r++)
        mti_cpu_load_f32(g->dtype, at + (first + r * s->ld) * 2, to + r * inner, inner);
    return (mti_mat){to, inner, s->trans};
}

/* The tile before the product: bias, c, their sum or zeros. */
static void start(const mti_gemm *g, const mti_gemm_tile *t, float *c, float *bias)
{
    int64_t first = g->bias_per_row ? t->i : t->j;
    if (g->bias != NULL)
        mti_cpu_load_f32(g->dtype, g->bias + first * 2, bias, g->bias_per_row ? t->m : t->n);
    for (int64_t i = 0; i < t->m; i++) {
        float *row = c + i * t->n;
        if (g->accumulate)
            mti_cpu_load_f32(g->dtype, t->c + ((t->i + i) * g->c.ld + t->j) * 2, row, t->n);
        else
            for (int64_t j = 0; j < t->n; j++) row[j] = 0;
        if (g->bias != NULL)
            for (int64_t j = 0; j < t->n; j++) row[j] += bias[g->bias_per_row ? i : j];
    }
}

void mti_gemm_half_tile(const mti_gemm *g, const mti_gemm_tile *t, void *scratch)
{
    parts at = parts_of(g);
    float *f = scratch, *c = f + at.c;
    start(g, t, c, f + at.bias);
    for (int64_t p = 0; p < g->k; p += g->tile_k) {
        int64_t k = g->tile_k < g->k - p ? g->tile_k : g->k - p;
        mti_mat a = widen(g, &g->a, t->a, t->i, p, t->m, k, f + at.a);
        mti_mat b = widen(g, &g->b, t->b, p, t->j, k, t->n, f + at.b);
        mti_sgemm(t->m, t->n, k, (float)g->alpha, a, b, 1, c, t->n);
    }
    for (int64_t i = 0; i < t->m; i++)
        mti_cpu_store_f32(g->dtype, c + i * t->n, t->c + ((t->i + i) * g->c.ld + t->j) * 2, t->n);
}

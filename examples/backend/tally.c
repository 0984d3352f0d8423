/* tally.c: the smallest backend there can be, in a file of its own. Its memory is the
 * process's, its kernels are lent, but for the product of matrices, which is three loops. It counts
 * products and requests for memory, and prints both when it is closed. Compiled to
 * libmemtape-tally.so, which mt_device_open("tally") finds beside the program. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "backends/loaded_module.h"
#include "backends/reference.h"

struct mti_ctx {
    int threads;
    int n_products, n_lent, n_allocs;
    size_t n_bytes;
};

/* ---- state and memory ---- */

static mti_ctx *open_tally(void)
{
    mti_ctx *ctx = mti_calloc(1, sizeof *ctx);
    if (ctx) ctx->threads = 1;
    return ctx;
}

static void close_tally(mti_ctx *ctx)
{
    printf("products by our loops: %d, by the lent gemm_sums: %d\n", ctx->n_products, ctx->n_lent);
    printf("requests for memory: %d, of %zu bytes\n", ctx->n_allocs, ctx->n_bytes);
    mti_free(ctx);
}

static int threads(const mti_ctx *ctx) { return ctx->threads; }
static bool sync_tally(mti_ctx *ctx) { return ctx != NULL; /* no work is ever waiting */ }

static bool set_threads(mti_ctx *ctx, int n)
{
    ctx->threads = n;
    return true;
}

static void *alloc_raw(mti_ctx *ctx, size_t n_bytes)
{
    ctx->n_allocs++;
    ctx->n_bytes += n_bytes;
    return aligned_alloc(512, (n_bytes + 511) / 512 * 512);
}

static void free_raw(mti_ctx *ctx, void *p, size_t n_bytes)
{
    (void)ctx, (void)n_bytes;
    free(p);
}

static size_t room(mti_ctx *ctx)
{
    (void)ctx;
    return SIZE_MAX; /* unknown */
}

static bool copy_bytes(mti_ctx *ctx, void *dst, const void *src, size_t n_bytes)
{
    (void)ctx;
    if (n_bytes) memcpy(dst, src, n_bytes);
    return true;
}

/* ---- products: c = alpha a b + beta c + bias ---- */

static float *at(const mti_view *v, int64_t i, int64_t j)
{
    return (float *)v->data + i * v->stride[v->rank - 2] + j * v->stride[v->rank - 1];
}

/* Its loops are for matrices of f32; a batch, and other dtypes, are lent. */
static bool ours(const mti_view *a, const mti_view *c)
{
    return a->dtype == MT_F32 && c->dtype == MT_F32 && c->rank == 2;
}

static size_t tally_gemm_scratch(mti_ctx *ctx, const mti_view *a, const mti_view *b,
                                 const mti_view *c)
{
    return ours(a, c) ? 0 : mti_reference_gemm_scratch(ctx, a, b, c);
}

static bool tally_gemm(mti_ctx *ctx, double alpha, const mti_view *a, const mti_view *b,
                       double beta, const mti_view *c, const mti_view *bias, void *scratch,
                       size_t n_scratch)
{
    if (!ours(a, c)) return mti_reference_gemm(ctx, alpha, a, b, beta, c, bias, scratch, n_scratch);
    ctx->n_products++;
    for (int64_t i = 0; i < c->shape[0]; i++)
        for (int64_t j = 0; j < c->shape[1]; j++) {
            double sum = 0;
            for (int64_t k = 0; k < a->shape[1]; k++) sum += (double)*at(a, i, k) * *at(b, k, j);
            sum = alpha * sum + (beta != 0 ? beta * *at(c, i, j) : 0);
            if (bias) sum += ((const float *)bias->data)[j * bias->stride[bias->rank - 1]];
            *at(c, i, j) = (float)sum;
        }
    return true;
}

/* Lent, and counted: the gradients of a linear layer's weight and bias in one. */
static bool tally_gemm_sums(mti_ctx *ctx, const mti_view *a, const mti_view *b, const mti_view *c,
                            const mti_view *sums, void *scratch, size_t n_scratch)
{
    ctx->n_lent++;
    return mti_reference_gemm_sums(ctx, a, b, c, sums, scratch, n_scratch);
}

/* ---- the table: lent kernels, then ours instead of those of the same name ---- */

#if defined(__clang__)
#pragma clang diagnostic ignored "-Winitializer-overrides"
#else
#pragma GCC diagnostic ignored "-Woverride-init"
#endif
const mti_backend mti_module_backend = {
    .kind = "tally",
    .traits = MTI_HOST_MEMORY,
    .open = open_tally,
    .close = close_tally,
    .set_threads = set_threads,
    .threads = threads,
    .sync = sync_tally,
    .alloc = alloc_raw,
    .free = free_raw,
    .room = room,
    .upload = copy_bytes,
    .download = copy_bytes,
#define KERNEL(name, parameters, arguments)  .name = mti_reference_##name,
#define SCRATCH(name, parameters, arguments) .name = mti_reference_##name,
#include "backends/kernels.def"
    .gemm_scratch = tally_gemm_scratch,
    .gemm = tally_gemm,
    .gemm_sums = tally_gemm_sums,
};

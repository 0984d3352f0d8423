/* kernels.h: the entries of the kernel table, as backends/backend.h describes them. Each is in the
 * file that its kind of work names. */
#ifndef MTI_CUDA_KERNELS_H
#define MTI_CUDA_KERNELS_H

#include "backends/cuda/gpu.h"

extern "C" {
mti_ctx *mti_cuda_open(void);
void mti_cuda_close(mti_ctx *ctx);
bool mti_cuda_set_threads(mti_ctx *ctx, int n);
int mti_cuda_threads(const mti_ctx *ctx);
bool mti_cuda_sync(mti_ctx *ctx);
void *mti_cuda_alloc(mti_ctx *ctx, size_t n_bytes);
size_t mti_cuda_room(mti_ctx *ctx);
void mti_cuda_free(mti_ctx *ctx, void *p, size_t n_bytes);
bool mti_cuda_upload(mti_ctx *ctx, void *dst, const void *host, size_t n_bytes);
bool mti_cuda_download(mti_ctx *ctx, void *host, const void *src, size_t n_bytes);
void *mti_cuda_host_alloc(mti_ctx *ctx, size_t n_bytes);
void mti_cuda_host_free(mti_ctx *ctx, void *p, size_t n_bytes);
bool mti_cuda_copy_begin(mti_ctx *ctx, mti_direction direction, void *dst, const void *src,
                         size_t n_bytes, uint64_t *ticket);
bool mti_cuda_copy_wait(mti_ctx *ctx, uint64_t ticket);
bool mti_cuda_copy_finish(mti_ctx *ctx, uint64_t ticket);
bool mti_cuda_copy_times(mti_ctx *ctx, mti_copy_times *out);
bool mti_cuda_fill(mti_ctx *ctx, const mti_view *y, double value);
bool mti_cuda_copy(mti_ctx *ctx, const mti_view *x, const mti_view *y);
bool mti_cuda_unary(mti_ctx *ctx, mti_unary op, double p0, double p1, const mti_view *x,
                    const mti_view *y);
bool mti_cuda_unary_backward(mti_ctx *ctx, mti_unary op, double p0, const mti_view *kept,
                             const mti_view *dy, const mti_view *dx);
bool mti_cuda_binary(mti_ctx *ctx, mti_binary op, const mti_view *a, const mti_view *b,
                     const mti_view *y);
size_t mti_cuda_sum_scratch(mti_ctx *ctx, const mti_view *x, const mti_view *y);
bool mti_cuda_sum(mti_ctx *ctx, double scale, const mti_view *x, const mti_view *y, void *scratch);
bool mti_cuda_uniform(mti_ctx *ctx, double lo, double hi, uint64_t seed, uint64_t offset,
                      const mti_view *y);
bool mti_cuda_normal(mti_ctx *ctx, double mean, double std, uint64_t seed, uint64_t offset,
                     const mti_view *y);
size_t mti_cuda_gemm_scratch(mti_ctx *ctx, const mti_view *a, const mti_view *b, const mti_view *c);
bool mti_cuda_gemm(mti_ctx *ctx, double alpha, const mti_view *a, const mti_view *b, double beta,
                   const mti_view *c, const mti_view *bias, void *scratch, size_t n_scratch);
bool mti_cuda_softmax(mti_ctx *ctx, double scale, bool causal, const mti_view *x,
                      const mti_view *y);
bool mti_cuda_softmax_backward(mti_ctx *ctx, double scale, const mti_view *y, const mti_view *dy,
                               const mti_view *dx);
bool mti_cuda_log_softmax(mti_ctx *ctx, const mti_view *x, const mti_view *y);
bool mti_cuda_log_softmax_backward(mti_ctx *ctx, const mti_view *y, const mti_view *dy,
                                   const mti_view *dx);
bool mti_cuda_layer_norm(mti_ctx *ctx, double eps, const mti_view *x, const mti_view *w,
                         const mti_view *b, const mti_view *y, const mti_view *mean,
                         const mti_view *rstd);
size_t mti_cuda_layer_norm_backward_scratch(mti_ctx *ctx, const mti_view *x);
bool mti_cuda_layer_norm_backward(mti_ctx *ctx, const mti_view *dy, const mti_view *x,
                                  const mti_view *w, const mti_view *mean, const mti_view *rstd,
                                  const mti_view *dx, const mti_view *dw, const mti_view *db,
                                  void *scratch);
bool mti_cuda_rms_norm(mti_ctx *ctx, double eps, const mti_view *x, const mti_view *w,
                       const mti_view *y, const mti_view *rstd);
size_t mti_cuda_rms_norm_backward_scratch(mti_ctx *ctx, const mti_view *x);
bool mti_cuda_rms_norm_backward(mti_ctx *ctx, const mti_view *dy, const mti_view *x,
                                const mti_view *w, const mti_view *rstd, const mti_view *dx,
                                const mti_view *dw, void *scratch);
bool mti_cuda_rope(mti_ctx *ctx, double theta, int64_t start, bool inverse, const mti_view *x,
                   const mti_view *y);
bool mti_cuda_swiglu(mti_ctx *ctx, const mti_view *gate, const mti_view *up, const mti_view *y);
bool mti_cuda_swiglu_backward(mti_ctx *ctx, const mti_view *gate, const mti_view *up,
                              const mti_view *dy, const mti_view *dgate, const mti_view *dup);
bool mti_cuda_max(mti_ctx *ctx, const mti_view *x, const mti_view *y, const mti_view *index);
bool mti_cuda_max_backward(mti_ctx *ctx, const mti_view *index, const mti_view *dy,
                           const mti_view *dx);
bool mti_cuda_where(mti_ctx *ctx, const mti_view *mask, const mti_view *a, const mti_view *b,
                    const mti_view *y);
bool mti_cuda_dropout(mti_ctx *ctx, double p, uint64_t seed, uint64_t offset, const mti_view *x,
                      const mti_view *y, const mti_view *mask);
bool mti_cuda_dropout_backward(mti_ctx *ctx, double p, const mti_view *mask, const mti_view *dy,
                               const mti_view *dx);
bool mti_cuda_embedding(mti_ctx *ctx, const mti_view *index, const mti_view *w, const mti_view *y);
size_t mti_cuda_embedding_backward_scratch(mti_ctx *ctx, const mti_view *index, const mti_view *dw);
bool mti_cuda_embedding_backward(mti_ctx *ctx, const mti_view *index, const mti_view *dy,
                                 const mti_view *dw, void *scratch);
bool mti_cuda_cross_entropy(mti_ctx *ctx, int64_t ignore, const mti_view *x, const mti_view *target,
                            const mti_view *logp, const mti_view *loss);
bool mti_cuda_cross_entropy_backward(mti_ctx *ctx, int64_t ignore, const mti_view *logp,
                                     const mti_view *target, const mti_view *dloss,
                                     const mti_view *dx);
size_t mti_cuda_attention_scratch(mti_ctx *ctx, const mti_attention *at);
bool mti_cuda_attention(mti_ctx *ctx, const mti_attention *at, void *scratch, size_t n_scratch);
size_t mti_cuda_attention_backward_scratch(mti_ctx *ctx, const mti_attention *at);
bool mti_cuda_attention_backward(mti_ctx *ctx, const mti_attention *at, const mti_view *d_o,
                                 const mti_view *dq, const mti_view *dk, const mti_view *dv,
                                 void *scratch, size_t n_scratch);
bool mti_cuda_adamw(mti_ctx *ctx, const mti_opt_params *p, int n_items, const mti_opt_item *items);
bool mti_cuda_sgd(mti_ctx *ctx, const mti_opt_params *p, int n_items, const mti_opt_item *items);
bool mti_cuda_sum_squares(mti_ctx *ctx, int n_items, const mti_opt_item *items, double *out);
bool mti_cuda_scale_all(mti_ctx *ctx, double factor, int n_items, const mti_opt_item *items);
bool mti_cuda_dropout_mask(mti_ctx *ctx, double p, uint64_t seed, uint64_t offset,
                           const mti_view *mask);
bool mti_cuda_pack_bits(mti_ctx *ctx, const mti_view *x, const mti_view *bits);
bool mti_cuda_unpack_bits(mti_ctx *ctx, const mti_view *bits, const mti_view *y);
bool mti_cuda_quantize(mti_ctx *ctx, mti_code code, int64_t block, const mti_view *x,
                       const mti_view *shift, const mti_view *codes, const mti_view *scales);
bool mti_cuda_dequantize(mti_ctx *ctx, mti_code code, int64_t block, const mti_view *codes,
                         const mti_view *scales, const mti_view *shift, const mti_view *y);
bool mti_cuda_lane_mean(mti_ctx *ctx, const mti_view *x, const mti_view *y);
bool mti_cuda_entropy_rows(mti_ctx *ctx, int64_t ignore, const mti_view *x, const mti_view *target,
                           const mti_view *lse, const mti_view *loss);
bool mti_cuda_entropy_rows_backward(mti_ctx *ctx, int64_t ignore, const mti_view *x,
                                    const mti_view *target, const mti_view *lse,
                                    const mti_view *scale, const mti_view *dx);
bool mti_cuda_counted_mean(mti_ctx *ctx, int64_t ignore, int64_t classes, const mti_view *target,
                           const mti_view *a, const mti_view *y);
}

/* desk.cu: closed once no call is under way. */
bool mti_cuda_desks_open(mti_ctx *ctx);
void mti_cuda_desks_close(mti_ctx *ctx);

/* blas.cu: what the products of a device hold. */
bool mti_cuda_blas_open(mti_ctx *ctx);
void mti_cuda_blas_close(mti_ctx *ctx);

/* transfer.cu: the copies of a device; closed once its streams are idle. */
bool mti_cuda_copies_open(mti_ctx *ctx);
void mti_cuda_copies_close(mti_ctx *ctx);

#endif

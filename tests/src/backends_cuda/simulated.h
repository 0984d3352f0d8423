/* simulated.h: the CUDA attention kernels under the simulator, declared for C. */
#ifndef MTT_SIMULATED_H
#define MTT_SIMULATED_H

#ifdef __cplusplus
extern "C" {
#else
#include "backends/backend.h"
size_t mti_cuda_attention_backward_scratch(mti_ctx *ctx, const mti_attention *at);
bool mti_cuda_attention(mti_ctx *ctx, const mti_attention *at, void *scratch, size_t n_scratch);
bool mti_cuda_attention_sinks_backward(mti_ctx *ctx, const mti_attention *at, const mti_view *d_o,
                                       const mti_view *d_sinks, void *scratch, bool after_backward);
bool mti_cuda_attention_backward(mti_ctx *ctx, const mti_attention *at, const mti_view *d_o,
                                 const mti_view *dq, const mti_view *dk, const mti_view *dv,
                                 void *scratch, size_t n_scratch);
bool cudasim_set_schedule(const char *text);
void cudasim_without_barrier(const char *file, int line);
size_t cudasim_barriers(const char **files, int *lines, size_t n);
#endif

mti_ctx *simulated_ctx(void);

#ifdef __cplusplus
}
#endif
#endif

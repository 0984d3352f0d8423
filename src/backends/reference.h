/* reference.h: kernels to begin with, for a backend that has few of its own.
 *
 * mti_reference_NAME is the CPU's kernel on one thread: right and slow, for backends whose memory
 * the process can read (MTI_HOST_MEMORY). mti_missing_NAME, for all others, fails and says which
 * kernel is not there. A table takes them all and then names its own (C lets a later member win):
 *
 *     const mti_backend mti_module_backend = {
 *         .kind = "mine", .traits = MTI_HOST_MEMORY, .open = ...,
 *     #define KERNEL(name, parameters, arguments)  .name = mti_reference_##name,
 *     #define SCRATCH(name, parameters, arguments) .name = mti_reference_##name,
 *     #include "backends/kernels.def"
 *         .gemm = my_gemm,
 *     };
 *
 * A kernel and its NAME_scratch go together: whoever replaces one replaces both. */
#ifndef MTI_REFERENCE_H
#define MTI_REFERENCE_H

#include "backends/backend.h"

#define KERNEL(name, parameters, arguments)                                                        \
    bool mti_reference_##name(mti_ctx *ctx, MTI_UNWRAP parameters);                                \
    bool mti_missing_##name(mti_ctx *ctx, MTI_UNWRAP parameters);
#define SCRATCH(name, parameters, arguments)                                                       \
    size_t mti_reference_##name(mti_ctx *ctx, MTI_UNWRAP parameters);                              \
    size_t mti_missing_##name(mti_ctx *ctx, MTI_UNWRAP parameters);
#include "backends/kernels.def"

#endif

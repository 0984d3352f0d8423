/* reference.h: kernels for a new backend that has few yet.
 *
 * mti_reference_NAME is the CPU's kernel on one thread: correct and slow, for backends whose memory
 * the process can read (MTI_HOST_MEMORY). mti_missing_NAME, for all other backends, fails with the
 * name of the kernel. A table lists them all, then overrides some (in C the later initialiser
 * wins):
 *
 *     const mti_backend mti_module_backend = {
 *         .kind = "mine", .traits = MTI_HOST_MEMORY, .open = ...,
 *     #define KERNEL(name, parameters, arguments)  .name = mti_reference_##name,
 *     #define SCRATCH(name, parameters, arguments) .name = mti_reference_##name,
 *     #include "backends/kernels.def"
 *         .gemm = my_gemm,
 *     };
 *
 * Override a kernel and its NAME_scratch together. */
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

/* reference.c: the CPU's kernels, lent to other backends, and refusals in place of kernels. */
#include "backends/reference.h"
#include "backends/cpu/cpu.h"

/* The CPU's state for one call of a kernel; the other backend's own is none of its business. */
#define ON_ONE_THREAD (&(mti_ctx){.threads = 1})

#pragma GCC diagnostic ignored "-Wunused-parameter"

#define KERNEL(name, parameters, arguments)                                                        \
    bool mti_reference_##name(mti_ctx *ctx, MTI_UNWRAP parameters)                                 \
    {                                                                                              \
        return mti_cpu_##name(ON_ONE_THREAD, MTI_UNWRAP arguments);                                \
    }                                                                                              \
    bool mti_missing_##name(mti_ctx *ctx, MTI_UNWRAP parameters)                                   \
    {                                                                                              \
        return mti_fail_bool(MT_ERR_UNSUPPORTED, "this device has no kernel \"" #name "\"");       \
    }
#define SCRATCH(name, parameters, arguments)                                                       \
    size_t mti_reference_##name(mti_ctx *ctx, MTI_UNWRAP parameters)                               \
    {                                                                                              \
        return mti_cpu_##name(ON_ONE_THREAD, MTI_UNWRAP arguments);                                \
    }                                                                                              \
    size_t mti_missing_##name(mti_ctx *ctx, MTI_UNWRAP parameters) { return 0; }
#include "backends/kernels.def"

/* reference.c: the CPU's kernels for use by other backends, and stubs that refuse. */
#include "backends/reference.h"
#include "backends/cpu/cpu.h"

/* A CPU context for one call; the CPU's kernels must not see the other backend's ctx. */
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

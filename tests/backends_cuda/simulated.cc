/* simulated.cc: what attention's files ask of the rest of the backend, for a test that links them
 * alone with the simulator. Device memory is the host's here. */
#include "backends/cuda/gpu.h"
#include "simulated.h"

bool mti_cuda_ok(cudaError_t status, const char *what)
{
    return status == cudaSuccess ||
           mti_fail_bool(MT_ERR_INTERNAL, "%s: %s", what, cudasim_take_fault());
}

mti_ctx *simulated_ctx(void)
{
    static mti_ctx ctx;
    return &ctx;
}

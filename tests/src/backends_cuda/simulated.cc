/* simulated.cc: the functions of the backend that attention's files call, for a test that links
 * only those files with the simulator. Device memory is host memory here. */
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

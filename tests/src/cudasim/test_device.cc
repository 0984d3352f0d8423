/* The simulated device: what a fault leaves behind, which error the next launch reports, how much
 * shared memory a block may have, and when pageable memory is read. meson.build runs it as several
 * GPUs. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
extern "C" {
#include <cmocka.h>
}
#include "cudasim/cudasim.h"

extern "C" bool cudasim_fail_nth_call(uint64_t n);

static bool mti_cuda_ok(cudaError_t status, const char *) { return status == cudaSuccess; }
struct stream_holder {
    cudaStream_t stream;
};
static stream_holder none = {nullptr};

__global__ void count_up(float *y) { y[threadIdx.x] += 1; }
__global__ void leave_before_barrier(float *y)
{
    if (threadIdx.x == 5) return;
    __syncthreads();
    y[threadIdx.x] = 1;
}
__global__ void share_32_kib(float *y)
{
    MTI_SHARED(float, fixed[8192]);
    MTI_DYNAMIC_SHARED(float, dynamic);
    fixed[threadIdx.x] = dynamic[threadIdx.x] = 1;
    y[threadIdx.x] = fixed[threadIdx.x] + dynamic[threadIdx.x];
}

static float *zeros()
{
    float *y = nullptr;
    assert_int_equal(cudaMalloc(&y, 32 * sizeof *y), cudaSuccess);
    memset(y, 0, 32 * sizeof *y);
    return y;
}

static void after_a_fault_every_call_fails(void **)
{
    float *y = zeros(), *more = nullptr, host[32];
    cudaStream_t stream;
    assert_int_equal(cudaStreamCreate(&stream), cudaSuccess);
    assert_false(MTI_LAUNCH(&none, leave_before_barrier, 1, 32, 0, y));
    for (int again = 0; again < 2; again++) {
        assert_int_equal(cudaGetLastError(), cudaErrorLaunchFailure);
        assert_int_equal(cudaPeekAtLastError(), cudaErrorLaunchFailure);
        assert_int_equal(cudaMalloc(&more, 4), cudaErrorLaunchFailure);
        assert_int_equal(cudaMemcpyAsync(host, y, sizeof host, cudaMemcpyDeviceToHost, stream),
                         cudaErrorLaunchFailure);
        assert_int_equal(cudaMemsetAsync(y, 0, 4, stream), cudaErrorLaunchFailure);
        assert_int_equal(cudaStreamSynchronize(stream), cudaErrorLaunchFailure);
        assert_int_equal(cudaDeviceSynchronize(), cudaErrorLaunchFailure);
        assert_false(MTI_LAUNCH(&none, count_up, 1, 32, 0, y));
        assert_true(y[0] == 0);
    }
    assert_non_null(strstr(cudasim_take_fault(), "leave_before_barrier"));
    assert_int_equal(cudaGetLastError(), cudaSuccess);
    assert_true(MTI_LAUNCH(&none, count_up, 1, 32, 0, y));
    assert_true(y[0] == 1);
    cudaStreamDestroy(stream), cudaFree(y);
}

/* Once, and the launch itself has run. */
static void an_error_that_nobody_took_is_the_next_launchs(void **)
{
    float *y = zeros();
    assert_true(cudasim_fail_nth_call(2));
    assert_int_equal(cudaMemsetAsync(y, 0, 4), cudaSuccess);
    assert_int_equal(cudaMemsetAsync(y, 0xff, 4), cudaErrorInvalidValue);
    assert_false(MTI_LAUNCH(&none, count_up, 1, 32, 0, y));
    assert_true(MTI_LAUNCH(&none, count_up, 1, 32, 0, y));
    assert_true(y[0] == 2);
    assert_int_equal(cudaGetLastError(), cudaSuccess);
    assert_true(cudasim_fail_nth_call(0));
    cudaFree(y);
}

/* CUDA C++ Programming Guide, compute capabilities: shared memory of a thread block. */
static int known_kib()
{
    const char *gpu = getenv("CUDASIM_GPU");
    bool small = gpu && (!strcmp(gpu, "8.6") || !strcmp(gpu, "8.9") || !strcmp(gpu, "12.0"));
    return !gpu || !strcmp(gpu, "8.0") ? 163 : small ? 99 : 227;
}

static void a_block_has_as_much_shared_memory_as_on_its_gpu(void **)
{
    int most = 0, major = 0, minor = 0;
    float *y = zeros();
    assert_int_equal(cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin, 0),
                     cudaSuccess);
    assert_int_equal(most, known_kib() << 10);
    cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, 0);
    cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, 0);
    const char *gpu = getenv("CUDASIM_GPU");
    assert_int_equal(major, gpu ? atoi(gpu) : 8);
    assert_int_equal(minor, gpu ? atoi(strchr(gpu, '.') + 1) : 0);
    const cudaFuncAttribute dynamic = cudaFuncAttributeMaxDynamicSharedMemorySize;
    assert_int_equal(cudaFuncSetAttribute(count_up, dynamic, most + 1), cudaErrorInvalidValue);
    assert_int_equal(cudaGetLastError(), cudaErrorInvalidValue);
    assert_int_equal(cudaFuncSetAttribute(count_up, dynamic, most), cudaSuccess);
    assert_true(MTI_LAUNCH(&none, count_up, 1, 32, (size_t)most, y));
    assert_int_equal(cudaFuncSetAttribute(share_32_kib, dynamic, most), cudaSuccess);
    assert_true(MTI_LAUNCH(&none, share_32_kib, 1, 32, (size_t)most - 32768, y));
    assert_false(MTI_LAUNCH(&none, share_32_kib, 1, 32, (size_t)most - 32764, y));
    assert_non_null(strstr(cudasim_take_fault(), "bytes of shared memory"));
    cudaFree(y);
}

/* What the copy finds is what was there on return, or what the host writes then. */
static void pageable_memory_is_read_late_where_the_gpu_reads_it_itself(void **)
{
    const char *hmm = getenv("CUDASIM_HMM");
    int reads = -1;
    float *y = zeros(), host[32], back = 0;
    cudaStream_t stream;
    assert_int_equal(cudaStreamCreate(&stream), cudaSuccess);
    assert_int_equal(cudaDeviceGetAttribute(&reads, cudaDevAttrPageableMemoryAccess, 0),
                     cudaSuccess);
    assert_int_equal(reads, hmm && !strcmp(hmm, "1"));
    for (int i = 0; i < 32; i++) host[i] = 3;
    assert_int_equal(cudaMemcpyAsync(y, host, sizeof host, cudaMemcpyHostToDevice, stream),
                     cudaSuccess);
    host[0] = 7;
    assert_int_equal(cudaStreamSynchronize(stream), cudaSuccess);
    assert_true(y[0] == (reads ? 7 : 3));
    assert_int_equal(cudaMemcpyAsync(&back, y, sizeof back, cudaMemcpyDeviceToHost, stream),
                     cudaSuccess);
    assert_true(back == (reads ? 0 : 3));
    assert_int_equal(cudaStreamSynchronize(stream), cudaSuccess);
    assert_true(back == y[0]);
    cudaStreamDestroy(stream), cudaFree(y);
}

int main()
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(after_a_fault_every_call_fails),
        cmocka_unit_test(an_error_that_nobody_took_is_the_next_launchs),
        cmocka_unit_test(a_block_has_as_much_shared_memory_as_on_its_gpu),
        cmocka_unit_test(pageable_memory_is_read_late_where_the_gpu_reads_it_itself),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}

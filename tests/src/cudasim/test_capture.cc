/* The simulator's stream capture: what is captured runs with its graph, as often as that is
 * launched, and what CUDA's runtime refuses in a capture is refused. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include "cudasim/cudasim.h"
extern "C" {
#include <cmocka.h>
}

struct stream_holder {
    cudaStream_t stream;
};
static cudaStream_t mti_stream(const stream_holder *s) { return s->stream; }
static bool mti_cuda_ok(cudaError_t status, const char *) { return status == cudaSuccess; }

static constexpr int n_block = 128;

static int *device(size_t n)
{
    int *p;
    assert_int_equal(cudaMalloc(&p, n * sizeof *p), cudaSuccess);
    return p;
}

__global__ void add_to(int *y, const int *x) { y[threadIdx.x] += *x; }

static void a_captured_launch_runs_when_its_graph_does_as_often_as_it_does(void **)
{
    stream_holder s;
    int *y = device(n_block), *x = device(1), *staged;
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    size_t n;
    assert_int_equal(cudaStreamCreate(&s.stream), cudaSuccess);
    assert_int_equal(cudaMallocHost(&staged, sizeof *staged), cudaSuccess);
    assert_true(MTI_LAUNCH(&s, add_to, 1, n_block, 0, y, x)); /* loads it */
    cudaMemset(y, 0, n_block * sizeof *y);
    assert_int_equal(cudaStreamBeginCapture(s.stream, cudaStreamCaptureModeThreadLocal),
                     cudaSuccess);
    assert_int_equal(cudaStreamBeginCapture(s.stream, cudaStreamCaptureModeThreadLocal),
                     cudaErrorIllegalState);
    assert_int_equal(cudaGetLastError(), cudaErrorIllegalState); /* or the launch would report it */
    *staged = 1000;                                              /* never read */
    assert_int_equal(cudaMemcpyAsync(x, staged, sizeof *x, cudaMemcpyHostToDevice, s.stream),
                     cudaSuccess);
    assert_true(MTI_LAUNCH(&s, add_to, 1, n_block, 0, y, x));
    assert_int_equal(cudaStreamEndCapture(s.stream, &graph), cudaSuccess);
    assert_int_equal(cudaGraphGetNodes(graph, nullptr, &n), cudaSuccess);
    assert_int_equal(n, 2);
    assert_int_equal(cudaGraphInstantiateWithFlags(&exec, graph, 0), cudaSuccess);
    cudaGraphDestroy(graph);
    cudaStreamSynchronize(s.stream);
    int host[n_block];
    cudaMemcpy(host, y, sizeof host, cudaMemcpyDeviceToHost);
    assert_int_equal(host[3], 0);
    for (int i = 1; i <= 3; i++) {
        *staged = i;
        assert_int_equal(cudaGraphLaunch(exec, s.stream), cudaSuccess);
        cudaStreamSynchronize(s.stream);
        cudaMemcpy(host, y, sizeof host, cudaMemcpyDeviceToHost);
        assert_int_equal(host[n_block - 1], i * (i + 1) / 2);
    }
    cudaGraphExecDestroy(exec);
    cudaFree(x), cudaFree(y), cudaFreeHost(staged), cudaStreamDestroy(s.stream);
}

static void a_call_that_cannot_be_captured_fails_and_spoils_the_capture(void **)
{
    stream_holder s;
    int *y = device(n_block), local = 0;
    void *p;
    assert_int_equal(cudaStreamCreate(&s.stream), cudaSuccess);
    for (int call = 0; call < 6; call++) {
        assert_int_equal(cudaStreamBeginCapture(s.stream, cudaStreamCaptureModeThreadLocal),
                         cudaSuccess);
        assert_true(MTI_LAUNCH(&s, add_to, 1, n_block, 0, y, y));
        cudaError_t status =
            call == 0   ? cudaStreamSynchronize(s.stream)
            : call == 1 ? cudaMemcpyAsync(y, &local, sizeof local, cudaMemcpyHostToDevice, s.stream)
            : call == 2 ? cudaMalloc(&p, 512)
            : call == 3 ? cudaFree(nullptr)
            : call == 4 ? cudaDeviceSynchronize()
                        : cudaMallocHost(&p, 512);
        assert_int_equal(status, cudaErrorStreamCaptureUnsupported);
        cudaGetLastError();
        assert_false(MTI_LAUNCH(&s, add_to, 1, n_block, 0, y, y));
        cudaGraph_t graph;
        assert_int_equal(cudaStreamEndCapture(s.stream, &graph), cudaErrorStreamCaptureInvalidated);
        assert_null(graph);
        cudaGetLastError();
        assert_int_equal(cudaStreamSynchronize(s.stream), cudaSuccess); /* it is over */
    }
    cudaFree(y), cudaStreamDestroy(s.stream);
}

__global__ void never_launched(int *y) { y[threadIdx.x] = 0; }

static void a_kernel_is_not_loaded_in_a_capture(void **)
{
    stream_holder s;
    int *y = device(n_block);
    assert_int_equal(cudaStreamCreate(&s.stream), cudaSuccess);
    for (int loaded = 0; loaded < 2; loaded++) {
        cudaGraph_t graph;
        if (loaded) assert_true(MTI_LAUNCH(&s, never_launched, 1, n_block, 0, y));
        assert_int_equal(cudaStreamBeginCapture(s.stream, cudaStreamCaptureModeThreadLocal),
                         cudaSuccess);
        assert_int_equal(MTI_LAUNCH(&s, never_launched, 1, n_block, 0, y), loaded);
        assert_int_equal(cudaStreamEndCapture(s.stream, &graph),
                         loaded ? cudaSuccess : cudaErrorStreamCaptureInvalidated);
        cudaGraphDestroy(graph);
        cudaGetLastError();
    }
    cudaFree(y), cudaStreamDestroy(s.stream);
}

int main()
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_captured_launch_runs_when_its_graph_does_as_often_as_it_does),
        cmocka_unit_test(a_call_that_cannot_be_captured_fails_and_spoils_the_capture),
        cmocka_unit_test(a_kernel_is_not_loaded_in_a_capture),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

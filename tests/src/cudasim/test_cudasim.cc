/* The simulator: it finds planted faults of kernels, and correct kernels give correct results. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
#include <initializer_list>
#include "cudasim/cudasim.h"
extern "C" {
#include <cmocka.h>
}

struct stream_holder {
    cudaStream_t stream;
};
static stream_holder none = {nullptr};

static bool mti_cuda_ok(cudaError_t status, const char *) { return status == cudaSuccess; }

static constexpr unsigned whole = 0xffffffffu;
static constexpr int n_block = 128;

template <class T> static T *device(size_t n)
{
    void *p;
    assert_int_equal(cudaMalloc(&p, n * sizeof(T)), cudaSuccess);
    return static_cast<T *>(p);
}

/* Asserts that the last launch failed and that the message has both texts. */
static void failed_with(bool ok, const char *a, const char *b)
{
    const char *fault = cudasim_take_fault();
    assert_false(ok);
    if (!strstr(fault, a) || !strstr(fault, b))
        fail_msg("\"%s\" lacks \"%s\" or \"%s\"", fault, a, b);
}

/* ---- correct kernels ---- */

template <class T, int n> __global__ void sum_block(const T *x, T *y)
{
    MTI_SHARED(T, warps[n / 32]);
    T sum = x[blockIdx.x * n + threadIdx.x];
    for (int i = 16; i; i /= 2) sum += __shfl_xor_sync(whole, sum, i);
    if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = sum;
    __syncthreads();
    if (threadIdx.x == 0) {
        for (int i = 1; i < n / 32; i++) sum += warps[i];
        y[blockIdx.x] = sum;
    }
}

static void blocks_sum_through_shuffles_and_shared_memory(void **)
{
    double *x = device<double>(3 * n_block), *y = device<double>(3);
    for (int i = 0; i < 3 * n_block; i++) x[i] = i;
    assert_true(MTI_LAUNCH(&none, (sum_block<double, n_block>), 3, n_block, 0, x, y));
    for (int b = 0; b < 3; b++)
        assert_true(y[b] == n_block * (b * n_block) + n_block * (n_block - 1) / 2);
    cudaFree(x), cudaFree(y);
}

__global__ void collect(unsigned *votes, int *up, int *sum)
{
    int lane = (int)threadIdx.x;
    unsigned odd = __ballot_sync(whole, lane % 2);
    if (lane == 0)
        votes[0] = odd, votes[1] = (unsigned)__any_sync(whole, 0);
    else
        __any_sync(whole, 0);
    up[lane] = __shfl_up_sync(whole, lane, 1) * 100 + __shfl_down_sync(whole, lane, 1, 8);
    atomicAdd(sum, lane);
}

static void divergent_call_sites_of_one_collective_are_distinguished(void **)
{
    unsigned *votes = device<unsigned>(2);
    int *up = device<int>(32), *sum = device<int>(1);
    failed_with(MTI_LAUNCH(&none, collect, 1, 32, 0, votes, up, sum), "a ballot", "kernel collect");
    cudaFree(votes), cudaFree(up), cudaFree(sum);
}

__global__ void vote(unsigned *votes, int *moved, int *sum)
{
    int lane = (int)threadIdx.x;
    unsigned odd = __ballot_sync(whole, lane % 2);
    int any = __any_sync(whole, lane == 7), all = __all_sync(whole, lane < 31);
    if (lane == 0) votes[0] = odd, votes[1] = (unsigned)(any * 2 + all);
    moved[lane] = __shfl_up_sync(whole, lane, 1) * 100 + __shfl_down_sync(whole, lane, 1, 8);
    atomicAdd(sum, lane);
}

static void ballots_shuffles_and_atomics_follow_the_manual(void **)
{
    unsigned *votes = device<unsigned>(2);
    int *moved = device<int>(32), *sum = device<int>(1);
    *sum = 0;
    assert_true(MTI_LAUNCH(&none, vote, 1, 32, 0, votes, moved, sum));
    assert_int_equal(votes[0], 0xaaaaaaaau);
    assert_int_equal(votes[1], 2);
    for (int i = 0; i < 32; i++)
        assert_int_equal(moved[i], (i ? i - 1 : 0) * 100 + (i % 8 == 7 ? i : i + 1));
    assert_int_equal(*sum, 31 * 16);
    cudaFree(votes), cudaFree(moved), cudaFree(sum);
}

/* d = a b: a is in shared memory and read by ldmatrix; b's pairs are read one by one. */
__global__ void multiply_tile(const __nv_bfloat16 *a, const __nv_bfloat16 *b, float *d,
                              int transposed)
{
    MTI_SHARED(__nv_bfloat16, tile[16][24]);
    int lane = (int)threadIdx.x, g = lane / 4, t = lane % 4;
    for (int i = lane; i < 256; i += 32) {
        if (transposed)
            tile[i % 16][i / 16] = a[i];
        else
            tile[i / 16][i % 16] = a[i];
    }
    __syncwarp();
    uint32_t fa[4], fb[2];
    /* matrices in the order of a's registers: (0,0), (8,0), (0,8), (8,8) */
    int m = lane / 8, r = lane % 8;
    if (transposed)
        mti_ldmatrix_x4_trans(fa, &tile[m / 2 * 8 + r][m % 2 * 8]);
    else
        mti_ldmatrix_x4(fa, &tile[m % 2 * 8 + r][m / 2 * 8]);
    for (int i = 0; i < 2; i++) {
        int k = 2 * t + 8 * i;
        fb[i] = b[k * 8 + g].bits | (uint32_t)b[(k + 1) * 8 + g].bits << 16;
    }
    float sum[4] = {0.5f, 0.5f, 0.5f, 0.5f};
    mti_mma_bf16(sum, fa, fb);
    for (int i = 0; i < 4; i++) d[(g + i / 2 * 8) * 8 + 2 * t + i % 2] = sum[i];
}

static void tensor_core_tiles_give_the_matrix_product(void **)
{
    __nv_bfloat16 *a = device<__nv_bfloat16>(256), *b = device<__nv_bfloat16>(128);
    float *d = device<float>(128);
    for (int i = 0; i < 256; i++) a[i] = (float)(i * 7 % 13 - 6);
    for (int i = 0; i < 128; i++) b[i] = (float)(i * 5 % 11 - 5);
    for (int transposed = 0; transposed < 2; transposed++) {
        assert_true(MTI_LAUNCH(&none, multiply_tile, 1, 32, 0, a, b, d, transposed));
        for (int i = 0; i < 128; i++) {
            float want = 0.5f;
            for (int k = 0; k < 16; k++) want += (float)a[i / 8 * 16 + k] * (float)b[k * 8 + i % 8];
            assert_true(d[i] == want);
        }
    }
    cudaFree(a), cudaFree(b), cudaFree(d);
}

static void sixteen_bit_floats_round_to_nearest_even(void **)
{
    for (uint32_t bits = 0; bits < 65536; bits++) {
        float bf16 = cudasim_bf16_value((uint16_t)bits), half = cudasim_half_value((uint16_t)bits);
        if (bf16 == bf16) assert_int_equal(cudasim_bf16_bits(bf16), bits);
        if (half == half) assert_int_equal(cudasim_half_bits(half), bits);
    }
    assert_int_equal(cudasim_bf16_bits(1 + 0x1p-8f), 0x3f80);
    assert_int_equal(cudasim_bf16_bits(1 + 3 * 0x1p-8f), 0x3f82);
    assert_int_equal(cudasim_half_bits(1 + 0x1p-11f), 0x3c00);
    assert_int_equal(cudasim_half_bits(1 + 3 * 0x1p-11f), 0x3c02);
    assert_int_equal(cudasim_half_bits(65519), 0x7bff);
    assert_int_equal(cudasim_half_bits(65520), 0x7c00);
    assert_int_equal(cudasim_half_bits(0x1p-25f), 0);
    assert_int_equal(cudasim_half_bits(0x1.8p-25f), 1);
    assert_int_equal(cudasim_half_bits(-0x1p-24f), 0x8001);
}

/* ---- planted faults ---- */

__global__ void leave_before_barrier(float *y)
{
    if (threadIdx.x == 5) return;
    __syncthreads();
    y[threadIdx.x] = 1;
}

__global__ void wait_elsewhere(float *y)
{
    if (threadIdx.x < 32)
        __syncthreads();
    else
        __syncthreads();
    y[threadIdx.x] = 1;
}

__global__ void loop_unevenly(float *y)
{
    for (unsigned i = 0; i <= threadIdx.x / 32; i++) __syncthreads();
    y[threadIdx.x] = 1;
}

static void a_barrier_that_not_all_threads_reach_is_found(void **)
{
    float *y = device<float>(n_block);
    for (const char *schedule : {"forward", "reverse", "7"}) {
        assert_true(cudasim_set_schedule(schedule));
        failed_with(MTI_LAUNCH(&none, leave_before_barrier, 1, n_block, 0, y), "barrier", "ended");
        failed_with(MTI_LAUNCH(&none, wait_elsewhere, 2, n_block, 0, y), "another barrier",
                    "thread");
        failed_with(MTI_LAUNCH(&none, loop_unevenly, 1, n_block, 0, y), "barrier", "ended");
    }
    cudasim_set_schedule("forward");
    cudaFree(y);
}

__global__ void store_a_vector(float *y) { *mti_at<float4>(y) = {1, 2, 3, 4}; }

static void a_vector_access_that_is_not_aligned_is_found(void **)
{
    float *y = device<float>(8);
    assert_true(MTI_LAUNCH(&none, store_a_vector, 1, 1, 0, y + 4));
    failed_with(MTI_LAUNCH(&none, store_a_vector, 1, 1, 0, y + 1), "16 bytes", "not aligned");
    cudaFree(y);
}

__global__ void shuffle_in_a_branch(float *y)
{
    float value = (float)threadIdx.x;
    if (threadIdx.x < 16) value = __shfl_xor_sync(whole, value, 1);
    y[threadIdx.x] = value;
}

__global__ void shuffle_with_other_masks(float *y)
{
    unsigned mask = threadIdx.x == 3 ? 0xfffffff7u | 8u : 0x0000ffffu;
    y[threadIdx.x] = __shfl_xor_sync(threadIdx.x < 16 ? mask : 0xffff0000u, 1.0f, 1);
}

__global__ void shuffle_from_outside(float *y)
{
    if (threadIdx.x < 16) y[threadIdx.x] = __shfl_sync(0xffffu, 1.0f, 20);
}

__global__ void shuffle_against_barrier(float *y)
{
    if (threadIdx.x == 0)
        __syncwarp();
    else
        __syncthreads();
    y[threadIdx.x] = 1;
}

static void a_shuffle_that_lanes_disagree_on_is_found(void **)
{
    float *y = device<float>(64);
    for (const char *schedule : {"forward", "reverse", "7"}) {
        assert_true(cudasim_set_schedule(schedule));
        failed_with(MTI_LAUNCH(&none, shuffle_in_a_branch, 1, 32, 0, y), "a shuffle", "ended");
        failed_with(MTI_LAUNCH(&none, shuffle_with_other_masks, 1, 32, 0, y), "a shuffle", "mask");
        failed_with(MTI_LAUNCH(&none, shuffle_from_outside, 1, 32, 0, y), "lane 20",
                    "not in the mask");
        failed_with(MTI_LAUNCH(&none, shuffle_against_barrier, 1, 32, 0, y), "__syncwarp",
                    "for ever");
    }
    cudasim_set_schedule("forward");
    /* the block has only half a warp */
    failed_with(MTI_LAUNCH(&none, shuffle_in_a_branch, 1, 16, 0, y), "a shuffle", "for ever");
    cudaFree(y);
}

template <bool guarded> __global__ void neighbours(const float *x, float *y)
{
    MTI_SHARED(float, row[n_block]);
    unsigned i = threadIdx.x;
    row[i] = x[i];
    __syncthreads();
    float next = row[(i + 1) % n_block];
    if (guarded) __syncthreads();
    row[i] = next * 2; /* a planted race: the neighbour may not have read it yet */
    __syncthreads();
    y[i] = row[i];
}

struct race {
    float *x, *y;
};

template <bool guarded> static bool run_neighbours(void *state)
{
    race *r = static_cast<race *>(state);
    return MTI_LAUNCH(&none, neighbours<guarded>, 1, n_block, 0, r->x, r->y);
}

static void permuted_schedules_reveal_a_race_on_shared_memory(void **)
{
    race r = {device<float>(n_block), device<float>(n_block)};
    for (int i = 0; i < n_block; i++) r.x[i] = (float)i;
    const char *differs = NULL;
    size_t n_bytes = n_block * sizeof(float);
    assert_true(cudasim_same_under_all_schedules(run_neighbours<true>, &r, r.y, n_bytes, &differs));
    assert_false(
        cudasim_same_under_all_schedules(run_neighbours<false>, &r, r.y, n_bytes, &differs));
    assert_non_null(differs);
    cudaFree(r.x), cudaFree(r.y);
}

__global__ void order_of_blocks(float *y)
{
    if (threadIdx.x == 0) y[0] = (float)blockIdx.x; /* the block that runs last decides */
}

static bool run_order(void *state)
{
    return MTI_LAUNCH(&none, order_of_blocks, 5, 32, 0, static_cast<float *>(state));
}

static void permuted_schedules_reveal_blocks_that_write_to_one_place(void **)
{
    float *y = device<float>(1);
    const char *differs = NULL;
    assert_false(cudasim_same_under_all_schedules(run_order, y, y, sizeof *y, &differs));
    cudaFree(y);
}

__global__ void read_unwritten(float *y)
{
    MTI_SHARED(float, fixed[n_block]);
    MTI_DYNAMIC_SHARED(float, dynamic);
    y[threadIdx.x] = fixed[threadIdx.x];
    y[n_block + threadIdx.x] = dynamic[threadIdx.x];
    fixed[threadIdx.x] = dynamic[threadIdx.x] = 1; /* the next block must not read it */
}

static void unwritten_memory_reads_as_nan(void **)
{
    float *fresh = device<float>(8), *y = device<float>(2 * n_block);
    for (int i = 0; i < 8; i++) assert_true(fresh[i] != fresh[i]);
    assert_true(MTI_LAUNCH(&none, read_unwritten, 1, n_block, n_block * sizeof(float), y));
    for (int i = 0; i < 2 * n_block; i++) assert_true(y[i] != y[i]);
    assert_true(MTI_LAUNCH(&none, read_unwritten, 3, n_block, n_block * sizeof(float), y));
    for (int i = 0; i < 2 * n_block; i++) assert_true(y[i] != y[i]);
    cudaFree(fresh), cudaFree(y);
}

__global__ void overrun_shared(int by)
{
    MTI_SHARED(int, few[32]);
    volatile int *p = few;
    p[threadIdx.x + by] = 1;
}

static void a_write_past_a_shared_array_is_found(void **)
{
    assert_true(MTI_LAUNCH(&none, overrun_shared, 1, 32, 0, 0));
    failed_with(MTI_LAUNCH(&none, overrun_shared, 1, 32, 0, 1), "past the end", "few");
}

__global__ void fetch(const float *x, float *y, int n_left)
{
    MTI_SHARED(float4, staged[32]);
    mti_cp_async_16(&staged[threadIdx.x], x + threadIdx.x * 4);
    mti_cp_async_commit();
    if (n_left)
        mti_cp_async_wait<1>();
    else
        mti_cp_async_wait<0>();
    y[threadIdx.x] = staged[threadIdx.x].y;
}

static void an_asynchronous_copy_arrives_when_it_is_waited_for(void **)
{
    float *x = device<float>(128), *y = device<float>(32);
    for (int i = 0; i < 128; i++) x[i] = (float)i;
    assert_true(MTI_LAUNCH(&none, fetch, 1, 32, 0, x, y, 0));
    for (int i = 0; i < 32; i++) assert_true(y[i] == 4 * i + 1);
    assert_true(MTI_LAUNCH(&none, fetch, 1, 32, 0, x, y, 1));
    for (int i = 0; i < 32; i++) assert_true(y[i] != y[i]);
    failed_with(MTI_LAUNCH(&none, fetch, 1, 32, 0, x + 1, y, 0), "cp.async", "16");
    cudaFree(x), cudaFree(y);
}

/* ---- asynchronous copies ---- */

__global__ void twice(const float *x, float *y) { y[threadIdx.x] = 2 * x[threadIdx.x]; }

/* A copy of 1, 2, ... from page-locked memory to x, in a stream of its own. */
struct pending_copy {
    cudaStream_t compute, copy;
    cudaEvent_t arrived;
    void *host;
    float *x, *y;
};

static pending_copy begin_copy()
{
    pending_copy a = {};
    cudaStreamCreate(&a.compute), cudaStreamCreate(&a.copy), cudaEventCreate(&a.arrived);
    assert_int_equal(cudaMallocHost(&a.host, 32 * sizeof(float)), cudaSuccess);
    for (int i = 0; i < 32; i++) static_cast<float *>(a.host)[i] = (float)i;
    a.x = device<float>(32), a.y = device<float>(32);
    cudaMemcpyAsync(a.x, a.host, 32 * sizeof(float), cudaMemcpyHostToDevice, a.copy);
    cudaEventRecord(a.arrived, a.copy);
    return a;
}

static void end_copy(pending_copy *a)
{
    cudaStreamDestroy(a->compute), cudaStreamDestroy(a->copy), cudaEventDestroy(a->arrived);
    cudaFreeHost(a->host), cudaFree(a->x), cudaFree(a->y);
}

static void a_kernel_that_waits_for_a_copy_on_another_stream_reads_it(void **)
{
    pending_copy a = begin_copy();
    stream_holder compute = {a.compute};
    assert_int_equal((cudaEventQuery(a.arrived), cudaGetLastError()), cudaErrorNotReady);
    cudaStreamWaitEvent(a.compute, a.arrived);
    assert_int_equal(cudaEventQuery(a.arrived), cudaSuccess);
    assert_true(MTI_LAUNCH(&compute, twice, 1, 32, 0, a.x, a.y));
    for (int i = 0; i < 32; i++) assert_true(a.y[i] == 2 * i);
    end_copy(&a);
}

static void a_kernel_that_does_not_wait_for_a_copy_reads_nan(void **)
{
    pending_copy a = begin_copy();
    stream_holder compute = {a.compute};
    assert_true(MTI_LAUNCH(&compute, twice, 1, 32, 0, a.x, a.y));
    for (int i = 0; i < 32; i++) assert_true(a.y[i] != a.y[i]);
    end_copy(&a);
}

static void memory_written_before_the_wait_for_its_copy_is_copied_as_written(void **)
{
    pending_copy a = begin_copy();
    memset(a.host, 0, 32 * sizeof(float));
    cudaStreamSynchronize(a.copy);
    for (int i = 0; i < 32; i++) assert_true(a.x[i] == 0);
    end_copy(&a);
}

static void copies_of_one_stream_keep_their_order_and_an_event_takes_those_before_it(void **)
{
    pending_copy a = begin_copy();
    cudaMemcpyAsync(a.y, a.host, 32 * sizeof(float), cudaMemcpyHostToDevice, a.copy);
    cudaEventSynchronize(a.arrived);
    assert_true(a.x[5] == 5 && a.y[5] != a.y[5]);
    stream_holder copy = {a.copy};
    assert_true(MTI_LAUNCH(&copy, twice, 1, 32, 0, a.y,
                           a.x)); /* in the same stream, so after both copies */
    assert_true(a.x[5] == 10);
    end_copy(&a);
}

static void an_invalid_grid_is_refused(void **)
{
    float *y = device<float>(1);
    failed_with(MTI_LAUNCH(&none, order_of_blocks, 0, 32, 0, y), "order_of_blocks", "empty");
    failed_with(MTI_LAUNCH(&none, order_of_blocks, 1, 1025, 0, y), "threads", "block");
    failed_with(MTI_LAUNCH(&none, order_of_blocks, dim3(1, 65536), 32, 0, y), "blocks", "grid");
    failed_with(MTI_LAUNCH(&none, order_of_blocks, 1, 32, 49153, y), "shared", "allowed");
    assert_int_equal(
        cudaFuncSetAttribute(order_of_blocks, cudaFuncAttributeMaxDynamicSharedMemorySize, 65536),
        cudaSuccess);
    assert_true(MTI_LAUNCH(&none, order_of_blocks, 1, 32, 65536, y));
    assert_int_equal(cudaFuncSetAttribute(order_of_blocks,
                                          cudaFuncAttributeMaxDynamicSharedMemorySize,
                                          (227 << 10) + 1),
                     cudaErrorInvalidValue);
    cudaFree(y);
}

/* ---- what the environment chooses: this program again, with an argument ---- */

/* For AddressSanitizer: meson expects it to die. */
__global__ void overrun_global(float *y) { y[threadIdx.x + 1] = 1; }

static int overrun()
{
    float *y = device<float>(32);
    return MTI_LAUNCH(&none, overrun_global, 1, 32, 0, y) ? 0 : 2;
}

/* CUDASIM_GUARD=pages: kernels and copies reach device memory, the host does not. */
static int touch()
{
    float *x = device<float>(32), *y = device<float>(32), back[32];
    for (int i = 0; i < 32; i++) back[i] = (float)i;
    cudaMemcpy(x, back, sizeof back, cudaMemcpyHostToDevice);
    if (!MTI_LAUNCH(&none, twice, 1, 32, 0, x, y)) return 2;
    cudaMemcpy(back, y, sizeof back, cudaMemcpyDeviceToHost);
    if (back[5] != 10) return 3;
    fprintf(stderr, "reached\n");
    float seen = static_cast<volatile float *>(y)[5];
    cudaFree(x), cudaFree(y);
    return seen == 10 ? 4 : 5;
}

__global__ void leave_unmet(float *y)
{
    if (threadIdx.x < 16) __syncthreads();
    y[threadIdx.x] = 0;
}

/* CUDASIM_LATE=kernels: what page-locked memory has got once the copy is waited for. */
static float copied(bool wait_for_the_kernel)
{
    pending_copy a = begin_copy();
    stream_holder compute = {a.compute};
    cudaDeviceSynchronize();
    MTI_LAUNCH(&compute, twice, 1, 32, 0, a.x, a.y);
    cudaEventRecord(a.arrived, a.compute);
    if (wait_for_the_kernel) cudaStreamWaitEvent(a.copy, a.arrived);
    cudaMemcpyAsync(a.host, a.y, 32 * sizeof(float), cudaMemcpyDeviceToHost, a.copy);
    cudaStreamSynchronize(a.copy);
    float got = static_cast<float *>(a.host)[5];
    end_copy(&a);
    return got;
}

static int late()
{
    float too_early = copied(false);
    if (too_early == too_early) return 2;
    if (copied(true) != 10) return 3;
    float *y = device<float>(32);
    stream_holder compute = {nullptr};
    cudaStreamCreate(&compute.stream);
    if (!MTI_LAUNCH(&compute, leave_unmet, 1, 32, 0, y)) return 4;
    if (cudaStreamSynchronize(compute.stream) != cudaErrorLaunchFailure) return 5;
    if (cudaStreamSynchronize(compute.stream) != cudaErrorLaunchFailure) return 6;
    cudaStreamDestroy(compute.stream), cudaFree(y);
    return 0;
}

/* How this program ends, as waitpid has it; what it said goes to text. */
static int status_of(const char *setting, const char *argument, char *text, size_t n)
{
    char command[256], self[128];
    ssize_t length = readlink("/proc/self/exe", self, sizeof self - 1);
    assert_true(length > 0 && length < (ssize_t)sizeof self - 1);
    self[length] = 0;
    snprintf(command, sizeof command, "exec env %s '%s' %s 2>&1", setting, self, argument);
    FILE *out = popen(command, "r");
    assert_non_null(out);
    size_t n_read = fread(text, 1, n - 1, out);
    text[n_read] = 0;
    return pclose(out);
}

static void device_memory_can_be_kept_from_the_host(void **)
{
    char text[4096];
    int status = status_of("CUDASIM_GUARD=pages", "touch", text, sizeof text);
    assert_false(WIFEXITED(status) && WEXITSTATUS(status) < 6);
    assert_non_null(strstr(text, "reached\ncudasim: the host touches device memory\n"));
    status = status_of("CUDASIM_GUARD=", "touch", text, sizeof text);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 4);
}

static void kernels_can_be_later_than_copies_that_do_not_wait_for_them(void **)
{
    char text[4096];
    int status = status_of("CUDASIM_LATE=kernels", "late", text, sizeof text);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
    status = status_of("CUDASIM_LATE=copies", "late", text, sizeof text);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 2);
}

int main(int argc, char **argv)
{
    if (argc > 1 && !strcmp(argv[1], "overrun")) return overrun();
    if (argc > 1 && !strcmp(argv[1], "touch")) return touch();
    if (argc > 1 && !strcmp(argv[1], "late")) return late();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(blocks_sum_through_shuffles_and_shared_memory),
        cmocka_unit_test(ballots_shuffles_and_atomics_follow_the_manual),
        cmocka_unit_test(divergent_call_sites_of_one_collective_are_distinguished),
        cmocka_unit_test(tensor_core_tiles_give_the_matrix_product),
        cmocka_unit_test(sixteen_bit_floats_round_to_nearest_even),
        cmocka_unit_test(a_barrier_that_not_all_threads_reach_is_found),
        cmocka_unit_test(a_vector_access_that_is_not_aligned_is_found),
        cmocka_unit_test(a_shuffle_that_lanes_disagree_on_is_found),
        cmocka_unit_test(permuted_schedules_reveal_a_race_on_shared_memory),
        cmocka_unit_test(permuted_schedules_reveal_blocks_that_write_to_one_place),
        cmocka_unit_test(unwritten_memory_reads_as_nan),
        cmocka_unit_test(a_write_past_a_shared_array_is_found),
        cmocka_unit_test(an_asynchronous_copy_arrives_when_it_is_waited_for),
        cmocka_unit_test(a_kernel_that_waits_for_a_copy_on_another_stream_reads_it),
        cmocka_unit_test(a_kernel_that_does_not_wait_for_a_copy_reads_nan),
        cmocka_unit_test(memory_written_before_the_wait_for_its_copy_is_copied_as_written),
        cmocka_unit_test(copies_of_one_stream_keep_their_order_and_an_event_takes_those_before_it),
        cmocka_unit_test(an_invalid_grid_is_refused),
        cmocka_unit_test(device_memory_can_be_kept_from_the_host),
        cmocka_unit_test(kernels_can_be_later_than_copies_that_do_not_wait_for_them),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

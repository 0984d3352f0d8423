/* context.cu: the device, its streams and memory, what its errors mean, and the kernel table. */
#include <stdlib.h>
#include <string.h>
#include "backends/cuda/device/cleanup.h"
#include "backends/cuda/device/desk.h"
#include "backends/cuda/kernels.h"

/* Parses cuBLAS's ":KiB:count", once or more: the bytes of all buffers; 0 if malformed. */
static size_t workspace_bytes(const char *config)
{
    size_t n_bytes = 0;
    while (*config == ':') {
        char *end;
        size_t kib = strtoull(config + 1, &end, 10);
        if (end == config + 1 || *end != ':') return 0;
        const char *count = end + 1;
        n_bytes += kib * strtoull(count, &end, 10) * 1024;
        if (end == count) return 0;
        config = end;
    }
    return *config ? 0 : n_bytes;
}

/* cuBLAS's own default; 32 MiB from Hopper on, as NVIDIA recommends and PyTorch takes. */
static const char *workspace_config(int capability)
{
    const char *config = getenv("CUBLAS_WORKSPACE_CONFIG");
    return config ? config : capability >= 9 ? ":4096:8" : ":4096:2:16:8";
}

bool mti_cuda_ok(cudaError_t status, const char *what)
{
    if (status == cudaSuccess) return true;
    cudaGetLastError(); /* clears it, or the next launch would report it again */
    return mti_fail_bool(status == cudaErrorMemoryAllocation ? MT_ERR_MEMORY : MT_ERR_UNSUPPORTED,
                         "cuda: %s: %s (%s)", what, cudaGetErrorString(status),
                         cudaGetErrorName(status));
}

static bool find_device(int *n_devices)
{
    cudaError_t status = cudaGetDeviceCount(n_devices);
    if (status == cudaErrorInsufficientDriver) {
        int version = 0;
        bool found = cudaDriverGetVersion(&version) == cudaSuccess && version > 0;
        cudaGetLastError();
        return mti_fail_bool(MT_ERR_UNSUPPORTED,
                             found ? "device \"cuda\": the NVIDIA driver is too old: it is for "
                                     "CUDA %d.%d; need one for CUDA %d"
                                   : "device \"cuda\": no NVIDIA driver here (libcuda.so.1)",
                             version / 1000, version % 1000 / 10, CUDART_VERSION / 1000);
    }
    if (status == cudaErrorNoDevice || (status == cudaSuccess && *n_devices == 0)) {
        cudaGetLastError();
        return mti_fail_bool(MT_ERR_UNSUPPORTED,
                             "device \"cuda\": the NVIDIA driver is here, but no GPU");
    }
    return mti_cuda_ok(status, "looking for a GPU");
}

static bool open_streams(mti_ctx *ctx)
{
    int &major = ctx->capability;
    return mti_cuda_ok(cudaSetDevice(ctx->device), "choosing the GPU") &&
           mti_cuda_ok(
               cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, ctx->device),
               "asking for its architecture") &&
           (major >= 8 || mti_fail_bool(MT_ERR_UNSUPPORTED,
                                        "device \"cuda\": compute capability %d.x; need 8.0 or "
                                        "more (Ampere)",
                                        major)) &&
           mti_cuda_ok(cudaDeviceGetAttribute(&ctx->multiprocessors, cudaDevAttrMultiProcessorCount,
                                              ctx->device),
                       "counting multiprocessors") &&
           mti_cuda_ok(cudaStreamCreateWithFlags(&ctx->stream, cudaStreamNonBlocking), "stream") &&
           mti_cuda_ok(cudaStreamCreateWithFlags(&ctx->copy, cudaStreamNonBlocking), "stream") &&
           mti_cuda_ok(cudaMalloc(&ctx->fault, sizeof *ctx->fault), "memory for faults") &&
           mti_cuda_ok(cudaMemsetAsync(ctx->fault, 0, sizeof *ctx->fault, ctx->stream),
                       "clearing faults");
}

mti_ctx *mti_cuda_open(void)
{
    int n_devices = 0;
    if (!find_device(&n_devices)) return nullptr;
    mti_ctx *ctx = static_cast<mti_ctx *>(mti_calloc(1, sizeof *ctx));
    if (!ctx) return nullptr;
    const char *tf32 = getenv("MEMTAPE_TF32");
    ctx->tf32 = tf32 && !strcmp(tf32, "1");
    ctx->threads = 1;
    pthread_mutex_init(&ctx->clearing_fault, nullptr);
    if (open_streams(ctx) && mti_cuda_desks_open(ctx) && mti_cuda_copies_open(ctx) &&
        mti_cuda_blas_open(ctx) && mti_cuda_nccl_open(ctx)) {
        ctx->n_workspace = workspace_bytes(workspace_config(ctx->capability));
        return ctx;
    }
    mti_cuda_close(ctx);
    return nullptr;
}

void mti_cuda_close(mti_ctx *ctx)
{
    if (ctx->stream) mti_cuda_forgive(cudaStreamSynchronize(ctx->stream));
    if (ctx->copy) mti_cuda_forgive(cudaStreamSynchronize(ctx->copy));
    mti_cuda_nccl_close(ctx);
    mti_cuda_copies_close(ctx);
    mti_cuda_blas_close(ctx);
    mti_cuda_desks_close(ctx);
    if (ctx->fault) mti_cuda_forgive(cudaFree(ctx->fault));
    if (ctx->copy) mti_cuda_forgive(cudaStreamDestroy(ctx->copy));
    if (ctx->stream) mti_cuda_forgive(cudaStreamDestroy(ctx->stream));
    pthread_mutex_destroy(&ctx->clearing_fault);
    mti_free(ctx);
}

bool mti_cuda_set_threads(mti_ctx *ctx, int n)
{
    if (n < 1) return mti_fail_bool(MT_ERR_ARGUMENT, "threads: %d; need at least 1", n);
    ctx->threads = n;
    return true;
}

int mti_cuda_threads(const mti_ctx *ctx) { return ctx->threads; }

static bool copy_to_host(mti_ctx *ctx, void *host, const void *src, size_t n_bytes)
{
    return !n_bytes ||
           mti_cuda_ok(cudaMemcpyAsync(host, src, n_bytes, cudaMemcpyDeviceToHost, ctx->stream),
                       "download");
}

/* Copies the fault with them, ahead of them, since a copy to pageable memory waits: one wait in
 * all. */
static bool read(mti_ctx *ctx, mti_fault *note, void *host, const void *src, size_t n_bytes)
{
    return copy_to_host(ctx, note, ctx->fault, sizeof *note) &&
           copy_to_host(ctx, host, src, n_bytes) &&
           mti_cuda_ok(cudaStreamSynchronize(ctx->stream), "waiting for the GPU");
}

static bool clear_fault(mti_ctx *ctx)
{
    return mti_cuda_ok(cudaMemsetAsync(ctx->fault, 0, sizeof *ctx->fault, ctx->stream),
                       "clearing faults");
}

/* Waits for the stream, then reports a fault that its kernels noted. Only one host thread reports a
 * fault: the one that still finds it under the lock, and clears it. */
bool mti_cuda_download(mti_ctx *ctx, void *host, const void *src, size_t n_bytes)
{
    if (!mti_cuda_wait_for_ranks(ctx)) return false;
    mti_borrowed_desk desk(ctx);
    if (!desk.place || !read(ctx, desk.place->note, host, src, n_bytes)) return false;
    mti_fault *note = desk.place->note;
    if (note->kind == MTI_FAULT_NONE) return true;
    pthread_mutex_lock(&ctx->clearing_fault);
    bool ok = read(ctx, note, NULL, NULL, 0) && (note->kind == MTI_FAULT_NONE || clear_fault(ctx));
    pthread_mutex_unlock(&ctx->clearing_fault);
    return ok && (note->kind == MTI_FAULT_NONE || mti_fault_report(note));
}

bool mti_cuda_sync(mti_ctx *ctx) { return mti_cuda_download(ctx, nullptr, nullptr, 0); }

void *mti_cuda_alloc(mti_ctx *, size_t n_bytes)
{
    void *p = nullptr;
    if (mti_alloc_should_fail()) return nullptr;
    return mti_cuda_allocated(cudaMalloc(&p, n_bytes ? n_bytes : 1)) ? p : nullptr;
}

/* cudaFree waits for all work that may still use the memory. If that fails, there is none left. */
void mti_cuda_free(mti_ctx *ctx, void *p, size_t)
{
    mti_cuda_wait_for_ranks(ctx);
    mti_cuda_forgive(cudaFree(p));
}

size_t mti_cuda_room(mti_ctx *)
{
    size_t n_free = 0, n_total = 0;
    return mti_cuda_forgive(cudaMemGetInfo(&n_free, &n_total)) ? n_free : SIZE_MAX;
}

#ifdef MTI_CUDASIM
#define KIND   "cudasim"
#define TRAITS MTI_HOST_MEMORY
#else
#define KIND   "cuda"
#define TRAITS 0
#endif

/* In the order of mti_backend, since C++17 has no designated initialisers; the kernels come from
 * the same list as the members. */
extern "C" {
extern const mti_backend mti_module_backend;
const mti_backend mti_module_backend = {
    KIND,
    TRAITS,
    mti_cuda_open,
    mti_cuda_close,
    mti_cuda_set_threads,
    mti_cuda_threads,
    mti_cuda_sync,
    mti_cuda_alloc,
    mti_cuda_free,
    mti_cuda_room,
    mti_cuda_upload,
    mti_cuda_download,
    mti_cuda_host_alloc,
    mti_cuda_host_free,
    mti_cuda_copy_begin,
    mti_cuda_copy_wait,
    mti_cuda_copy_finish,
    mti_cuda_copy_times,
    &mti_cuda_links,
    &mti_cuda_ranges,
#define KERNEL(name, parameters, arguments)  mti_cuda_##name,
#define SCRATCH(name, parameters, arguments) mti_cuda_##name,
#include "backends/kernels.def"
};
}

/* ranges.cu: addresses of a GPU that get memory in granules, for expandable segments, through the
 * driver's virtual memory management.
 *
 * A granule is one allocation, because a mapping can only be taken away as it was made. Its handle
 * is dropped at once: the memory lives as long as its mapping. */
#include <dlfcn.h>
#include <string.h>
#include "backends/cuda/device/driver.h"
#include "backends/cuda/kernels.h"
#include "backends/cuda/device/library.h"

#ifdef MTI_CUDASIM
static void *symbol_of(const char *name) { return cudasim_driver(name); }
#else
static void *symbol_of(const char *name)
{
    void *library = mti_cuda_find_library("libcuda.so.1");
    return library ? dlsym(library, name) : NULL;
}
#endif

/* False, without mti_fail, if the driver has not all of them (CUDA 10.2). */
static bool find(cu_functions *call)
{
#define FIND(member, name, parameters)                                                             \
    {                                                                                              \
        void *found = symbol_of(#name);                                                            \
        if (!found) return false;                                                                  \
        memcpy(&call->member, &found, sizeof found);                                               \
    }
    CU_FUNCTIONS(FIND)
#undef FIND
    return true;
}

static cu_kind kind_of(const mti_ctx *ctx)
{
    cu_kind kind = {};
    kind.type = CU_PINNED, kind.location.type = CU_ON_DEVICE, kind.location.id = ctx->device;
    return kind;
}

static cu_address address_of(const void *p) { return (cu_address)(uintptr_t)p; }

static size_t page(mti_ctx *ctx)
{
    cu_functions call;
    cu_kind kind = kind_of(ctx);
    size_t n_bytes = 0;
    bool ok = find(&call) && call.granularity(&n_bytes, &kind, CU_LEAST_GRANULARITY) == CU_OK;
    return ok ? n_bytes : 0;
}

static size_t total(mti_ctx *)
{
    size_t n_free = 0, n_total = 0;
    if (cudaMemGetInfo(&n_free, &n_total) == cudaSuccess) return n_total;
    cudaGetLastError();
    return 0;
}

static void *reserve(mti_ctx *, size_t n_bytes)
{
    cu_functions call;
    cu_address at = 0;
    if (mti_alloc_should_fail() || !find(&call)) return NULL;
    return call.reserve(&at, n_bytes, 0, 0, 0) == CU_OK ? (void *)(uintptr_t)at : NULL;
}

static void release(mti_ctx *, void *p, size_t n_bytes)
{
    cu_functions call;
    if (find(&call)) call.release(address_of(p), n_bytes);
}

static bool unmap_granules(const cu_functions *call, cu_address at, size_t n_bytes, size_t granule)
{
    bool ok = true;
    for (size_t done = 0; done < n_bytes; done += granule)
        ok = call->unmap(at + done, granule) == CU_OK && ok;
    return ok;
}

static bool map_granule(const cu_functions *call, const cu_kind *kind, cu_address at,
                        size_t granule)
{
    cu_memory memory;
    if (call->create(&memory, granule, kind, 0) != CU_OK) return false;
    bool mapped = call->map(at, granule, 0, memory, 0) == CU_OK;
    call->drop(memory);
    return mapped;
}

static bool map(mti_ctx *ctx, void *p, size_t n_bytes, size_t granule)
{
    cu_functions call;
    cu_kind kind = kind_of(ctx);
    cu_access access = {kind.location, CU_READ_WRITE};
    cu_address at = address_of(p);
    if (mti_alloc_should_fail() || !find(&call)) return false;
    size_t done = 0;
    while (done < n_bytes && map_granule(&call, &kind, at + done, granule)) done += granule;
    if (done == n_bytes && call.set_access(at, n_bytes, &access, 1) == CU_OK) return true;
    unmap_granules(&call, at, done, granule);
    return false;
}

/* What may still use the memory is waited for, as cudaFree does: unmapping does not. */
static bool unmap(mti_ctx *ctx, void *p, size_t n_bytes, size_t granule)
{
    cu_functions call;
    mti_cuda_wait_for_ranks(ctx);
    if (cudaStreamSynchronize(ctx->stream) != cudaSuccess ||
        cudaStreamSynchronize(ctx->copy) != cudaSuccess) {
        cudaGetLastError();
        return false;
    }
    return find(&call) && unmap_granules(&call, address_of(p), n_bytes, granule);
}

const mti_ranges mti_cuda_ranges = {page, total, reserve, release, map, unmap};

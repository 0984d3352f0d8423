/* cudasim.cc: runs grids, one block after another. */
#include <stddef.h>
#include <stdlib.h>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <thread>
#include "cudasim/memory.h"
#include "cudasim/simulator.h"

uint3 threadIdx, blockIdx;
dim3 blockDim, gridDim;

namespace cudasim
{

simulator sim;

static constexpr size_t default_dynamic_bytes = 48 << 10;

static bool run_grid(dim3 grid)
{
    uint64_t n_blocks = (uint64_t)grid.x * grid.y * grid.z;
    std::vector<unsigned> blocks;
    if (sim.schedule == order::random && n_blocks < 1u << 20) {
        set_turns(blocks, (unsigned)n_blocks);
    }
    for (uint64_t i = 0; i < n_blocks; i++) {
        uint64_t b = !blocks.empty()                  ? blocks[i]
                     : sim.schedule == order::reverse ? n_blocks - 1 - i
                                                      : i;
        blockIdx.x = (unsigned)(b % grid.x);
        blockIdx.y = (unsigned)(b / grid.x % grid.y);
        blockIdx.z = (unsigned)(b / grid.x / grid.y);
        if (!run_block()) return false;
    }
    return true;
}

static cudaError_t refuse(const char *name, const char *why)
{
    snprintf(sim.text, sizeof sim.text, "kernel %s: %s", name, why);
    fprintf(stderr, "cudasim: %s\n", sim.text);
    return cudaErrorInvalidConfiguration;
}

static bool read_environment()
{
    const char *schedule = getenv("CUDASIM_SCHEDULE"), *place = getenv("CUDASIM_WITHOUT_BARRIER");
    if (schedule && !cudasim_set_schedule(schedule)) return false;
    sim.environment_read = true;
    const char *colon = place ? strchr(place, ':') : nullptr;
    if (colon) cudasim_without_barrier(std::string(place, colon).c_str(), atoi(colon + 1));
    return !place || colon;
}

/* How long a host thread waits for others, in milliseconds; 0: not at all. */
static int turn_timeout()
{
    const char *turns = getenv("CUDASIM_TURNS");
    return turns ? atoi(turns) : 0;
}

void take_turns()
{
    static const std::chrono::milliseconds at_most(turn_timeout());
    static std::mutex lock;
    static std::condition_variable moved_on;
    static std::thread::id last;
    static bool alone; /* no other thread came in time; do not wait until one comes */
    if (at_most.count() == 0) return;
    std::unique_lock<std::mutex> mine(lock);
    std::thread::id self = std::this_thread::get_id();
    if (last != self) alone = false;
    last = self;
    moved_on.notify_all();
    if (!alone) alone = !moved_on.wait_for(mine, at_most, [self] { return last != self; });
}

/* Only one grid runs at a time, for all host threads. */
static std::mutex one_grid;

/* A kernel, how it is called, and copies of its arguments: each at a multiple of the largest
 * alignment. */
struct bound {
    const char *name;
    const void *kernel;
    kernel_call call;
    std::vector<max_align_t> bytes;
    std::vector<size_t> first; /* of each argument, in units of bytes' elements */
};

static bound bind(const char *name, const void *kernel, kernel_call call, const argument *arguments,
                  size_t n_arguments)
{
    bound b = {name, kernel, call, {}, {}};
    for (size_t i = 0; i < n_arguments; i++) {
        size_t first = b.bytes.size(), n_bytes = arguments[i].n_bytes;
        b.first.push_back(first);
        b.bytes.resize(first + (n_bytes + sizeof b.bytes[0] - 1) / sizeof b.bytes[0]);
        memcpy(&b.bytes[first], arguments[i].value, n_bytes);
    }
    return b;
}

static cudaError_t run(const bound &work, dim3 grid, dim3 block, size_t n_shared)
{
    const char *name = work.name;
    std::lock_guard<std::mutex> turn(one_grid);
    uint64_t n_threads = (uint64_t)block.x * block.y * block.z;
    if (!grid.x || !grid.y || !grid.z || !n_threads) return refuse(name, "an empty grid or block");
    if (n_threads > max_threads || block.z > 64)
        return refuse(name, "more threads than a block may have");
    if (grid.x > 0x7fffffffu || grid.y > 65535 || grid.z > 65535)
        return refuse(name, "more blocks than a grid may have");
    auto limit = sim.dynamic_limits.find(work.kernel);
    if (n_shared > (limit == sim.dynamic_limits.end() ? default_dynamic_bytes : limit->second))
        return refuse(name, "more dynamic shared memory than cudaFuncSetAttribute allowed");
    if (sim.layout_only) {
        cudasim_launch note = {};
        note.name = name, note.grid[0] = grid.x, note.grid[1] = grid.y, note.grid[2] = grid.z;
        sim.recorded.push_back(note);
        return cudaSuccess;
    }
    if (!sim.environment_read && !read_environment())
        return refuse(name, "CUDASIM_SCHEDULE or CUDASIM_WITHOUT_BARRIER is invalid");
    if (!sim.warps) sim.warps = (warp *)calloc(max_threads / 32, sizeof *sim.warps);
    void *dynamic = nullptr;
    if (!sim.warps || posix_memalign(&dynamic, 128, n_shared ? n_shared : 1))
        return cudaErrorMemoryAllocation;

    std::vector<const void *> arguments;
    for (size_t first : work.first) arguments.push_back(&work.bytes[first]);
    sim.name = name, sim.kernel = work.kernel, sim.call = work.call;
    sim.arguments = arguments.data();
    sim.failed = false;
    sim.host.is_host = true;
    sim.running = &sim.host;
    sim.random = sim.seed;
    sim.n_threads = (unsigned)n_threads;
    sim.dynamic = (unsigned char *)dynamic;
    gridDim = grid, blockDim = block;
    sim.n_launches++;
    sim.n_all_threads += n_threads * grid.x * grid.y * grid.z;
    sim.n_dynamic = n_shared;
    access open;
    bool ok = run_grid(grid);
    free(dynamic);
    if (ok) return cudaSuccess;
    reclaim_fibers();
    fprintf(stderr, "cudasim: %s\n", sim.text);
    return break_device(cudaErrorLaunchFailure);
}

cudaError_t launch(const char *name, const void *kernel, kernel_call call,
                   const argument *arguments, size_t n_arguments, dim3 grid, dim3 block,
                   size_t n_shared, cudaStream_t stream)
{
    cudaError_t status = enter();
    if (status == cudaSuccess) {
        bound work = bind(name, kernel, call, arguments, n_arguments);
        status = submit(stream, [=] { return run(work, grid, block, n_shared); });
        take_turns();
    }
    keep(status);
    return cudaGetLastError(); /* which may be an earlier call's */
}

} // namespace cudasim

using namespace cudasim;

cudaError_t cudasim_set_attribute(const void *kernel, cudaFuncAttribute attribute, int value)
{
    cudaError_t status = enter();
    if (status != cudaSuccess || attribute != cudaFuncAttributeMaxDynamicSharedMemorySize)
        return status;
    if (value < 0 || (size_t)value > most_shared()) return keep(cudaErrorInvalidValue);
    std::lock_guard<std::mutex> turn(one_grid);
    sim.dynamic_limits[kernel] = (size_t)value;
    return cudaSuccess;
}

const char *cudasim_take_fault(void)
{
    static char taken[sizeof sim.text];
    memcpy(taken, sim.text, sizeof taken);
    sim.text[0] = 0;
    mend_device();
    return taken;
}

void cudasim_layout_only(bool on)
{
    sim.layout_only = on;
    sim.recorded.clear();
}

const cudasim_launch *cudasim_noted(size_t *n)
{
    *n = sim.recorded.size();
    return sim.recorded.data();
}

__attribute__((visibility("default"))) void cudasim_counts(uint64_t *n_launches,
                                                           uint64_t *n_threads)
{
    *n_launches = sim.n_launches;
    *n_threads = sim.n_all_threads;
}

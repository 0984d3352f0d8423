/* stream.cc: streams, events and copies, in two orders that the device may choose, too.
 *
 * By default kernels run when they are launched, but a copy from or to page-locked memory is made
 * only when something waits for it, as late as a device may make it. So code that does not wait
 * reads the old bytes, and code that frees memory too early copies whatever was written there
 * later. With CUDASIM_LATE=kernels in the environment, kernels run only when something waits for
 * them, and copies are made as early as their stream allows. So a copy in another stream that does
 * not wait for the kernel whose result it copies gets the old bytes.
 *
 * What ranks do together (nccl.cc) waits in its stream for the other ranks, and what comes later in
 * the stream behind it. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <atomic>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <set>
#include <thread>
#include <vector>
#include "cudasim/memory.h"
#include "cudasim/simulator.h"

struct task {
    std::function<cudaError_t()> work;
    std::function<bool()>
        is_over; /* of work that others end; empty: work is over when it returns */
};

struct cudasim_stream {
    std::deque<task> tasks;
    uint64_t n_done;  /* tasks done so far */
    uint64_t awaited; /* how many are done with the last that others end */
    bool runs;        /* one of its tasks, now */
    bool asked;       /* for something since the host last waited */
    std::thread::id maker;
};
struct cudasim_event {
    cudaStream_t stream; /* NULL: never recorded, or all its copies are done */
    uint64_t n_before;   /* the stream's tasks when the event was recorded */
    double ms;           /* the clock then */
};

static std::recursive_mutex turn; /* recursive: a task may wait for one of another stream */
typedef std::lock_guard<std::recursive_mutex> my_turn;
static std::set<cudaStream_t> streams;
static std::map<const char *, size_t> page_locked;
static double now_ms;
static cudaError_t late_fault; /* the fault of a kernel since the last wait */

void cudasim::pass_time(double ms)
{
    my_turn mine(turn);
    now_ms += ms;
}

static bool kernels_are_late()
{
    static const char *const text = getenv("CUDASIM_LATE");
    return text && !strcmp(text, "kernels");
}

static bool is_page_locked(const void *p)
{
    auto after = page_locked.upper_bound((const char *)p);
    if (after == page_locked.begin()) return false;
    auto block = std::prev(after);
    return (size_t)((const char *)p - block->first) < block->second;
}

/* Runs tasks of a stream until n are done, or until one waits for others. */
static void advance(cudaStream_t stream, uint64_t n)
{
    while (stream->n_done < n && !stream->tasks.empty() && !stream->runs) {
        if (stream->tasks.front().is_over && !stream->tasks.front().is_over()) return;
        task next = std::move(stream->tasks.front());
        stream->tasks.pop_front();
        stream->runs = true;
        cudaError_t status = next.work ? next.work() : cudaSuccess;
        stream->runs = false;
        if (status != cudaSuccess) late_fault = status;
        stream->n_done++;
    }
}

/* What waits for others gets on in every stream. */
static void advance_awaited()
{
    for (cudaStream_t stream : std::set<cudaStream_t>(streams))
        if (streams.count(stream)) advance(stream, stream->awaited);
}

/* Waits for n tasks of the stream: without the lock, as other host threads have to call for what a
 * task may wait for. */
static void await(cudaStream_t stream, uint64_t n)
{
    for (;; usleep(20)) {
        my_turn mine(turn);
        if (!stream || !streams.count(stream)) return;
        advance(stream, n);
        if (stream->n_done >= n || stream->tasks.empty()) return;
        advance_awaited();
    }
}
/* For the device. Threads that make streams of their own are ranks, each with a device: of the
 * others' streams, what waits for ranks is not waited for. */
static void await_all()
{
    std::set<cudaStream_t> own;
    {
        my_turn mine(turn);
        for (cudaStream_t stream : std::set<cudaStream_t>(streams)) {
            advance(stream, UINT64_MAX);
            if (stream->maker == std::this_thread::get_id()) own.insert(stream);
        }
    }
    for (cudaStream_t stream : own) await(stream, UINT64_MAX);
}
static void push(cudaStream_t stream, std::function<cudaError_t()> work)
{
    stream->tasks.push_back({std::move(work), {}});
}
static void push_awaited(cudaStream_t stream, std::function<bool()> is_over)
{
    stream->tasks.push_back({{}, std::move(is_over)});
    stream->awaited = stream->n_done + stream->tasks.size();
    advance_awaited();
}
static cudaError_t after_waiting()
{
    cudaError_t status = late_fault;
    late_fault = cudaSuccess;
    return cudasim::keep(status);
}
static bool is_reached(cudaStream_t stream, uint64_t n_before)
{
    return !stream || !streams.count(stream) || stream->n_done >= n_before;
}
/* Tries to. */
static bool reach(cudaStream_t stream, uint64_t n_before)
{
    if (stream && streams.count(stream)) advance(stream, n_before);
    return is_reached(stream, n_before);
}

/* How often the host has waited for a stream that had been asked for something since. */
static uint64_t n_waits;
static void note_wait(cudaStream_t stream)
{
    my_turn mine(turn);
    if (stream && stream->asked) n_waits++, stream->asked = false;
}
static void note_asked(cudaStream_t stream)
{
    my_turn mine(turn);
    if (stream) stream->asked = true;
}
extern "C" __attribute__((visibility("default"))) uint64_t cudasim_waits(void) { return n_waits; }
extern "C" __attribute__((visibility("default"))) size_t cudasim_page_locked(void)
{
    my_turn mine(turn);
    return page_locked.size();
}

static cudaError_t copy(void *to, const void *from, size_t n_bytes)
{
    if (cudasim::sim.layout_only) return cudaSuccess;
    cudasim::access open;
    if (n_bytes) memmove(to, from, n_bytes);
    return cudaSuccess;
}

cudaError_t cudasim::submit(cudaStream_t stream, std::function<cudaError_t()> work)
{
    note_asked(stream);
    {
        my_turn mine(turn);
        if (stream && !kernels_are_late()) advance(stream, UINT64_MAX);
        if (stream && (kernels_are_late() || !stream->tasks.empty())) {
            push(stream, std::move(work));
            return cudaSuccess;
        }
    }
    return work();
}

cudaError_t cudasim::submit_awaited(cudaStream_t stream, std::function<bool()> is_over)
{
    my_turn mine(turn);
    push_awaited(stream, std::move(is_over));
    return cudaSuccess;
}

cudaError_t cudaDeviceSynchronize()
{
    cudaError_t status = cudasim::enter();
    if (status != cudaSuccess) return status;
    await_all();
    my_turn mine(turn);
    return after_waiting();
}

/* ---- memory: freeing it waits for the device ---- */

cudaError_t cudaFree(void *p)
{
    cudaError_t status = cudasim::enter();
    if (status != cudaSuccess && !cudasim::is_broken()) return status;
    await_all();
    my_turn mine(turn);
    cudasim::device_free(p);
    return cudasim::keep(cudaSuccess);
}
/* What a process has page-locked so far. A GPU's driver takes some 0.1 ms for each allocation and
 * for each MiB: with CUDASIM_COUNTS=1 in the environment the counts are printed at the end, and
 * more than the most that CUDASIM_MOST_PINNED names, of allocations and of MiB alike, fails. */
static struct counts {
    std::atomic<uint64_t> pinned, bytes, streams, waits;
    ~counts()
    {
        if (!getenv("CUDASIM_COUNTS")) return;
        fprintf(stderr, "cudasim: %llu waits for a stream\n", (unsigned long long)waits);
        fprintf(stderr, "cudasim: %llu allocations page-locked, %llu MiB in all, %llu streams\n",
                (unsigned long long)pinned, (unsigned long long)bytes >> 20,
                (unsigned long long)streams);
    }
} made;
static bool may_lock(size_t n_bytes)
{
    const char *most = getenv("CUDASIM_MOST_PINNED");
    uint64_t n = ++made.pinned, mib = (made.bytes += n_bytes) >> 20;
    if (!most || (n <= strtoull(most, nullptr, 10) && mib <= strtoull(most, nullptr, 10)))
        return true;
    fprintf(stderr, "cudasim: %llu allocations page-locked, %llu MiB in all: a GPU is slow at it\n",
            (unsigned long long)n, (unsigned long long)mib);
    return false;
}
cudaError_t cudaMallocHost(void **p, size_t n_bytes) { return cudaHostAlloc(p, n_bytes, 0); }
cudaError_t cudaHostAlloc(void **p, size_t n_bytes, unsigned)
{
    *p = nullptr;
    cudaError_t status = cudasim::enter();
    if (status != cudaSuccess) return status;
    if (!n_bytes) return cudaSuccess;
    if (!may_lock(n_bytes) || posix_memalign(p, 512, n_bytes))
        return cudasim::keep(cudaErrorMemoryAllocation);
    memset(*p, 0xff, n_bytes);
    my_turn mine(turn);
    page_locked[(const char *)*p] = n_bytes;
    return cudaSuccess;
}
cudaError_t cudaFreeHost(void *p)
{
    cudaError_t status = cudasim::enter();
    if (status != cudaSuccess && !cudasim::is_broken()) return status;
    await_all();
    my_turn mine(turn);
    page_locked.erase((const char *)p);
    free(p);
    return cudasim::keep(cudaSuccess);
}

/* Only host memory is asked for. */
cudaError_t cudaPointerGetAttributes(cudaPointerAttributes *out, const void *p)
{
    cudaError_t status = cudasim::enter();
    if (status != cudaSuccess) return status;
    my_turn mine(turn);
    out->type = is_page_locked(p) ? cudaMemoryTypeHost : cudaMemoryTypeUnregistered;
    return cudaSuccess;
}

/* ---- copies ---- */

cudaError_t cudaMemcpy(void *to, const void *from, size_t n_bytes, cudaMemcpyKind)
{
    cudaError_t status = cudasim::enter();
    if (status != cudaSuccess) return status;
    await_all();
    my_turn mine(turn);
    copy(to, from, n_bytes);
    return after_waiting();
}
/* Copies within the device run when kernels do; copies from pageable memory have read it, copies to
 * it are done, on return: unless the device uses such memory as it is (CUDASIM_HMM=1), as it does
 * with heterogeneous memory management and on Grace. */
cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t n_bytes, cudaMemcpyKind kind,
                            cudaStream_t stream)
{
    std::function<cudaError_t()> work = [=] { return copy(to, from, n_bytes); };
    cudaError_t begun = cudasim::enter();
    if (begun != cudaSuccess) return begun;
    if (kind == cudaMemcpyDeviceToDevice) return cudasim::submit(stream, work);
    {
        my_turn mine(turn);
        bool locked = is_page_locked(to) || is_page_locked(from) || cudasim::copies_pageable_late();
        note_asked(stream);
        if (!locked && kind == cudaMemcpyDeviceToHost) note_wait(stream);
        if (stream && locked && (!kernels_are_late() || !stream->tasks.empty())) {
            push(stream, work);
            return cudaSuccess;
        }
        if (stream) advance(stream, UINT64_MAX);
        if (stream && !stream->tasks.empty() && kind == cudaMemcpyHostToDevice) {
            const char *bytes = static_cast<const char *>(from);
            std::vector<char> staged(bytes, bytes + n_bytes);
            push(stream, [=] { return copy(to, staged.data(), n_bytes); });
            return cudaSuccess;
        }
    }
    await(stream, UINT64_MAX);
    my_turn mine(turn);
    return work();
}
cudaError_t cudaMemset(void *p, int value, size_t n_bytes)
{
    if (cudasim::sim.layout_only) return cudaSuccess;
    cudasim::access open;
    if (n_bytes) memset(p, value, n_bytes);
    return cudaSuccess;
}
cudaError_t cudaMemsetAsync(void *p, int value, size_t n_bytes, cudaStream_t stream)
{
    cudaError_t status = cudasim::enter();
    if (status != cudaSuccess) return status;
    return cudasim::submit(stream, [=] { return cudaMemset(p, value, n_bytes); });
}

/* ---- streams and events ---- */

cudaError_t cudaStreamCreate(cudaStream_t *stream) { return cudaStreamCreateWithFlags(stream, 0); }
cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned)
{
    cudaError_t status = cudasim::enter();
    if (status != cudaSuccess) return status;
    *stream = new cudasim_stream();
    made.streams++;
    (*stream)->maker = std::this_thread::get_id();
    my_turn mine(turn);
    streams.insert(*stream);
    return cudaSuccess;
}
cudaError_t cudaStreamDestroy(cudaStream_t stream)
{
    await(stream, UINT64_MAX);
    my_turn mine(turn);
    streams.erase(stream);
    delete stream;
    return cudasim::keep(cudaSuccess);
}
cudaError_t cudaStreamSynchronize(cudaStream_t stream)
{
    cudaError_t status = cudasim::enter();
    if (status != cudaSuccess) return status;
    note_wait(stream);
    made.waits++;
    await(stream, UINT64_MAX);
    {
        my_turn mine(turn);
        status = after_waiting();
    }
    cudasim::take_turns();
    return status;
}
/* The device gets on while it is asked. */
cudaError_t cudaStreamQuery(cudaStream_t stream)
{
    cudaError_t status = cudasim::enter();
    if (status != cudaSuccess) return status;
    my_turn mine(turn);
    advance(stream, UINT64_MAX);
    advance_awaited();
    advance(stream, UINT64_MAX);
    return stream->tasks.empty() ? after_waiting() : cudasim::keep(cudaErrorNotReady);
}
/* If the stream's kernels run at once, the tasks that the event waits for run now. */
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned)
{
    cudaError_t status = cudasim::enter();
    if (status != cudaSuccess) return status;
    my_turn mine(turn);
    cudaStream_t other = event->stream;
    uint64_t n_before = event->n_before;
    auto is_over = [=] { return reach(other, n_before); };
    bool reached = stream && kernels_are_late() ? is_reached(other, n_before) : is_over();
    if (stream && !reached) push_awaited(stream, is_over);
    return cudaSuccess;
}
cudaError_t cudaEventCreate(cudaEvent_t *event) { return cudaEventCreateWithFlags(event, 0); }
cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned)
{
    cudaError_t status = cudasim::enter();
    if (status != cudaSuccess) return status;
    *event = new cudasim_event();
    return cudaSuccess;
}
cudaError_t cudaEventDestroy(cudaEvent_t event)
{
    delete event;
    return cudasim::keep(cudaSuccess);
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream)
{
    cudaError_t status = cudasim::enter();
    if (status != cudaSuccess) return status;
    my_turn mine(turn);
    event->stream = stream;
    event->n_before = stream ? stream->n_done + stream->tasks.size() : 0;
    event->ms = now_ms;
    return cudaSuccess;
}
cudaError_t cudaEventSynchronize(cudaEvent_t event)
{
    cudaError_t status = cudasim::enter();
    if (status != cudaSuccess) return status;
    await(event->stream, event->n_before);
    my_turn mine(turn);
    return after_waiting();
}
cudaError_t cudaEventQuery(cudaEvent_t event)
{
    cudaError_t status = cudasim::enter();
    if (status != cudaSuccess) return status;
    my_turn mine(turn);
    return cudasim::keep(is_reached(event->stream, event->n_before) ? cudaSuccess
                                                                    : cudaErrorNotReady);
}
/* No time passes but what a test asks for (cudasim::pass_time). */
cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t from, cudaEvent_t to)
{
    cudaError_t status = cudasim::enter();
    if (status != cudaSuccess) return status;
    *ms = (float)(to->ms - from->ms);
    return cudaSuccess;
}

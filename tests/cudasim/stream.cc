/* stream.cc: streams, events and copies. Kernels run when they are launched, but a copy from or to
 * page-locked memory only when something waits for it: at the latest moment the device may take. So
 * whoever forgets to wait reads what was there before, and whoever gives memory back too early
 * copies what came after. */
#include <stdlib.h>
#include <string.h>
#include <deque>
#include <map>
#include <mutex>
#include <set>
#include "cudasim/cudasim.h"

struct pending {
    void *to;
    const void *from;
    size_t n_bytes;
};
struct cudasim_stream {
    std::deque<pending> copies;
    uint64_t n_done; /* copies made, ever */
};
struct cudasim_event {
    cudaStream_t stream; /* NULL: none, or all there was is done */
    uint64_t n_before;   /* copies of that stream when it was recorded */
};

static std::mutex turn;
static std::set<cudaStream_t> streams;
static std::map<const char *, size_t> page_locked;

static bool is_page_locked(const void *p)
{
    auto after = page_locked.upper_bound((const char *)p);
    if (after == page_locked.begin()) return false;
    auto block = std::prev(after);
    return (size_t)((const char *)p - block->first) < block->second;
}

/* The copies of a stream until n are done in all. */
static void advance(cudaStream_t stream, uint64_t n)
{
    while (stream->n_done < n && !stream->copies.empty()) {
        pending p = stream->copies.front();
        memmove(p.to, p.from, p.n_bytes);
        stream->copies.pop_front();
        stream->n_done++;
    }
}
static void finish(cudaStream_t stream)
{
    if (stream) advance(stream, UINT64_MAX);
}
static void finish_all()
{
    for (cudaStream_t stream : streams) finish(stream);
}
static void reach(cudaEvent_t event)
{
    if (event->stream && streams.count(event->stream)) advance(event->stream, event->n_before);
}

void cudasim::settle(cudaStream_t stream)
{
    std::lock_guard<std::mutex> mine(turn);
    finish(stream);
}

cudaError_t cudaDeviceSynchronize()
{
    std::lock_guard<std::mutex> mine(turn);
    finish_all();
    return cudaSuccess;
}

/* ---- memory: giving it back waits for the device ---- */

cudaError_t cudaFree(void *p)
{
    std::lock_guard<std::mutex> mine(turn);
    finish_all();
    free(p);
    return cudaSuccess;
}
cudaError_t cudaMallocHost(void **p, size_t n_bytes) { return cudaHostAlloc(p, n_bytes, 0); }
cudaError_t cudaHostAlloc(void **p, size_t n_bytes, unsigned)
{
    cudaError_t status = cudaMalloc(p, n_bytes);
    std::lock_guard<std::mutex> mine(turn);
    if (*p) page_locked[(const char *)*p] = n_bytes;
    return status;
}
cudaError_t cudaFreeHost(void *p)
{
    std::lock_guard<std::mutex> mine(turn);
    finish_all();
    page_locked.erase((const char *)p);
    free(p);
    return cudaSuccess;
}

/* ---- copies ---- */

cudaError_t cudaMemcpy(void *to, const void *from, size_t n_bytes, cudaMemcpyKind)
{
    std::lock_guard<std::mutex> mine(turn);
    finish_all();
    if (n_bytes) memmove(to, from, n_bytes);
    return cudaSuccess;
}
cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t n_bytes, cudaMemcpyKind,
                            cudaStream_t stream)
{
    std::lock_guard<std::mutex> mine(turn);
    if (stream && n_bytes && (is_page_locked(to) || is_page_locked(from))) {
        stream->copies.push_back({to, from, n_bytes});
        return cudaSuccess;
    }
    finish(stream);
    if (n_bytes) memmove(to, from, n_bytes);
    return cudaSuccess;
}
cudaError_t cudaMemset(void *p, int value, size_t n_bytes)
{
    if (n_bytes) memset(p, value, n_bytes);
    return cudaSuccess;
}
cudaError_t cudaMemsetAsync(void *p, int value, size_t n_bytes, cudaStream_t stream)
{
    cudasim::settle(stream);
    return cudaMemset(p, value, n_bytes);
}

/* ---- streams and events ---- */

cudaError_t cudaStreamCreate(cudaStream_t *stream) { return cudaStreamCreateWithFlags(stream, 0); }
cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned)
{
    *stream = new cudasim_stream();
    std::lock_guard<std::mutex> mine(turn);
    streams.insert(*stream);
    return cudaSuccess;
}
cudaError_t cudaStreamDestroy(cudaStream_t stream)
{
    std::lock_guard<std::mutex> mine(turn);
    finish(stream);
    streams.erase(stream);
    delete stream;
    return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t stream)
{
    cudasim::settle(stream);
    cudasim::take_turns();
    return cudaSuccess;
}
/* The stream's kernels do not wait for their turn, so what it waits for happens now. */
cudaError_t cudaStreamWaitEvent(cudaStream_t, cudaEvent_t event, unsigned)
{
    std::lock_guard<std::mutex> mine(turn);
    reach(event);
    return cudaSuccess;
}
cudaError_t cudaEventCreate(cudaEvent_t *event) { return cudaEventCreateWithFlags(event, 0); }
cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned)
{
    *event = new cudasim_event();
    return cudaSuccess;
}
cudaError_t cudaEventDestroy(cudaEvent_t event)
{
    delete event;
    return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream)
{
    std::lock_guard<std::mutex> mine(turn);
    event->stream = stream;
    event->n_before = stream ? stream->n_done + stream->copies.size() : 0;
    return cudaSuccess;
}
cudaError_t cudaEventSynchronize(cudaEvent_t event)
{
    std::lock_guard<std::mutex> mine(turn);
    reach(event);
    return cudaSuccess;
}
cudaError_t cudaEventQuery(cudaEvent_t event)
{
    std::lock_guard<std::mutex> mine(turn);
    cudaStream_t stream = event->stream;
    bool done = !stream || !streams.count(stream) || stream->n_done >= event->n_before;
    return done ? cudaSuccess : cudaErrorNotReady;
}
/* Time is not simulated. */
cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t, cudaEvent_t)
{
    *ms = 0;
    return cudaSuccess;
}

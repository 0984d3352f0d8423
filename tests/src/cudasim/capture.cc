/* capture.cc: stream capture and graphs. What is asked of a stream that captures is noted, not
 * done; a launch of the graph asks for it again, of another stream. As with CUDA's runtime, calls
 * that cannot be captured fail and make the capture useless: waiting for the stream, copies of
 * pageable memory, of the thread that captures allocating and freeing, and of any thread waiting
 * for the whole device. */
#include <pthread.h>
#include <map>
#include <mutex>
#include <vector>
#include "cudasim/memory.h"
#include "cudasim/simulator.h"

typedef std::function<cudaError_t(cudaStream_t)> node;

struct cudasim_graph {
    std::vector<node> nodes;
};
struct cudasim_graph_exec {
    std::vector<node> nodes;
};

struct capture {
    pthread_t thread;
    cudaStreamCaptureMode mode;
    bool invalid;
    std::vector<node> nodes;
};

static std::mutex lock;
typedef std::lock_guard<std::mutex> locked;
static std::map<cudaStream_t, capture> captures;

bool cudasim::capture_node(cudaStream_t stream, node work, cudaError_t *status)
{
    locked mine(lock);
    auto found = captures.find(stream);
    if (found == captures.end()) return false;
    *status = found->second.invalid ? cudaErrorStreamCaptureInvalidated : cudaSuccess;
    if (!found->second.invalid) found->second.nodes.push_back(std::move(work));
    return true;
}

cudaError_t cudasim::refuse_in_capture(cudaStream_t stream)
{
    locked mine(lock);
    auto found = captures.find(stream);
    if (found == captures.end()) return cudaSuccess;
    found->second.invalid = true;
    return cudasim::keep(cudaErrorStreamCaptureUnsupported);
}

static cudaError_t refuse_for(bool (*concerns)(const capture &c))
{
    locked mine(lock);
    cudaError_t status = cudaSuccess;
    for (auto &each : captures) {
        if (!concerns(each.second)) continue;
        each.second.invalid = true;
        status = cudaErrorStreamCaptureUnsupported;
    }
    return cudasim::keep(status);
}

cudaError_t cudasim::refuse_while_capturing()
{
    return refuse_for([](const capture &c) {
        return c.mode == cudaStreamCaptureModeGlobal ||
               (c.mode == cudaStreamCaptureModeThreadLocal &&
                pthread_equal(c.thread, pthread_self()));
    });
}

cudaError_t cudasim::refuse_beside_captures()
{
    return refuse_for([](const capture &) { return true; });
}

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode mode)
{
    cudaError_t status = cudasim::enter();
    if (status != cudaSuccess) return status;
    if (!stream) return cudasim::keep(cudaErrorStreamCaptureUnsupported);
    locked mine(lock);
    if (captures.count(stream)) return cudasim::keep(cudaErrorIllegalState);
    captures[stream] = {pthread_self(), mode, false, {}};
    return cudaSuccess;
}

cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t *graph)
{
    *graph = nullptr;
    locked mine(lock);
    auto found = captures.find(stream);
    if (found == captures.end()) return cudasim::keep(cudaErrorIllegalState);
    capture &c = found->second;
    if (c.mode != cudaStreamCaptureModeRelaxed && !pthread_equal(c.thread, pthread_self()))
        return cudasim::keep(cudaErrorStreamCaptureWrongThread);
    cudaError_t status = c.invalid ? cudaErrorStreamCaptureInvalidated : cudaSuccess;
    if (status == cudaSuccess) *graph = new cudasim_graph{std::move(c.nodes)};
    captures.erase(found);
    return cudasim::keep(status);
}

cudaError_t cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t *, size_t *n)
{
    *n = graph->nodes.size();
    return cudasim::enter();
}
cudaError_t cudaGraphDestroy(cudaGraph_t graph)
{
    delete graph;
    return cudaSuccess;
}
cudaError_t cudaGraphInstantiateWithFlags(cudaGraphExec_t *exec, cudaGraph_t graph,
                                          unsigned long long)
{
    *exec = nullptr;
    cudaError_t status = cudasim::enter();
    if (status == cudaSuccess) *exec = new cudasim_graph_exec{graph->nodes};
    return status;
}
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec)
{
    delete exec;
    return cudaSuccess;
}
cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream)
{
    cudaError_t status = cudasim::enter();
    if (status == cudaSuccess)
        status = cudasim::refuse_in_capture(stream); /* a graph in a graph: not simulated */
    for (size_t i = 0; status == cudaSuccess && i < exec->nodes.size(); i++)
        status = exec->nodes[i](stream);
    return status;
}

/* capture.cu: a sequence of calls noted once, as a graph, and launched as often as wanted.
 *
 * The calls are noted from a stream of their own, which runs nothing, so calls of other host
 * threads go on as ever. A launch repeats them with new contents of what was uploaded, and with
 * random draws counted from another offset. Whatever needs the GPU's answer cannot be noted and
 * fails.
 *
 * A graph keeps what its kernels use besides its caller's memory: desks, the offset, and
 * page-locked memory for uploads. */
#include "backends/cuda/desk.h"
#include "backends/cuda/kernels.h"

#define MOST_INPUTS 4
#define DESKS       2 /* that one call may have at a time */

struct graph_input {
    size_t at, n_bytes; /* in `staging` */
};

struct mti_graph {
    cudaGraphExec_t exec;
    size_t n_nodes;
    cudaEvent_t read; /* the last launch has read `staging` */
    bool launched;
    unsigned char *staging; /* page-locked: the offset, then the inputs */
    size_t n_staging, used;
    uint64_t *offset; /* device memory */
    int n_inputs;
    graph_input inputs[MOST_INPUTS];
    mti_desk_place *desks; /* idle ones */
};

bool mti_cuda_refuse_noting(const mti_ctx *ctx, const char *what)
{
    return !mti_noting(ctx) ||
           mti_fail_bool(MT_ERR_STATE, "cuda: %s cannot be captured in a graph", what);
}

void mti_cuda_graph_free(mti_ctx *ctx, mti_graph *g)
{
    if (!g) return;
    if (g->launched) cudaStreamSynchronize(ctx->stream);
    if (g->exec) cudaGraphExecDestroy(g->exec);
    if (g->read) cudaEventDestroy(g->read);
    if (g->staging) cudaFreeHost(g->staging);
    if (g->offset) cudaFree(g->offset);
    mti_cuda_desks_free(g->desks);
    mti_free(g);
}

static bool make_room(mti_graph *g, size_t n_inputs_bytes)
{
    for (int i = 0; i < DESKS; i++) {
        mti_desk_place *place = mti_cuda_desk_new();
        if (!place) return false;
        place->next = g->desks;
        g->desks = place;
    }
    g->n_staging = sizeof(uint64_t) + n_inputs_bytes;
    g->used = sizeof(uint64_t);
    if (mti_alloc_should_fail())
        return mti_fail_bool(MT_ERR_MEMORY, "cuda: no memory for a graph's inputs");
    return mti_cuda_ok(cudaMallocHost(&g->staging, g->n_staging), "memory for a graph's inputs") &&
           mti_cuda_ok(cudaMalloc(&g->offset, sizeof *g->offset), "memory for a graph's offset") &&
           mti_cuda_ok(cudaEventCreateWithFlags(&g->read, cudaEventDisableTiming), "an event");
}

static bool begin(mti_notes *notes)
{
    mti_graph *g = notes->graph;
    return mti_cuda_ok(cudaStreamCreateWithFlags(&notes->stream, cudaStreamNonBlocking),
                       "a stream to capture") &&
           mti_cuda_ok(cudaStreamBeginCapture(notes->stream, cudaStreamCaptureModeThreadLocal),
                       "beginning to capture") &&
           mti_cuda_ok(cudaMemcpyAsync(g->offset, g->staging, sizeof *g->offset,
                                       cudaMemcpyHostToDevice, notes->stream),
                       "capturing the offset");
}

static void forget(mti_ctx *ctx, mti_notes *notes)
{
    cudaGraph_t graph = nullptr;
    if (notes->stream) {
        if (cudaStreamEndCapture(notes->stream, &graph) == cudaSuccess) cudaGraphDestroy(graph);
        cudaGetLastError();
        cudaStreamDestroy(notes->stream);
    }
    mti_cuda_graph_free(ctx, notes->graph);
    mti_free(notes);
}

bool mti_cuda_capture_begin(mti_ctx *ctx, uint64_t offset, size_t n_input_bytes)
{
    mti_notes *notes = static_cast<mti_notes *>(mti_calloc(1, sizeof *notes)), *none = nullptr;
    if (!notes) return false;
    notes->thread = pthread_self();
    notes->offset = offset;
    notes->graph = static_cast<mti_graph *>(mti_calloc(1, sizeof *notes->graph));
    bool ok = notes->graph && make_room(notes->graph, n_input_bytes) && begin(notes);
    if (ok) notes->offset_at = notes->graph->offset;
    if (ok && !ctx->notes.compare_exchange_strong(none, notes))
        ok = mti_fail_bool(MT_ERR_STATE, "cuda: another capture has begun on this device");
    if (!ok) forget(ctx, notes);
    return ok;
}

mti_graph *mti_cuda_capture_end(mti_ctx *ctx, bool keep)
{
    mti_notes *notes = ctx->notes.exchange(nullptr);
    mti_graph *g = notes->graph;
    cudaGraph_t graph = nullptr;
    bool ended = mti_cuda_ok(cudaStreamEndCapture(notes->stream, &graph), "ending a capture");
    bool ok = ended && keep &&
              mti_cuda_ok(cudaGraphGetNodes(graph, nullptr, &g->n_nodes), "counting a graph's "
                                                                          "nodes") &&
              mti_cuda_ok(cudaGraphInstantiateWithFlags(&g->exec, graph, 0), "making a graph");
    if (graph) cudaGraphDestroy(graph);
    cudaStreamDestroy(notes->stream);
    mti_free(notes);
    if (ok) return g;
    mti_cuda_graph_free(ctx, g);
    return nullptr;
}

/* The host's bytes of now are not noted: each launch brings its own. */
bool mti_cuda_note_upload(const mti_ctx *ctx, void *dst, size_t n_bytes)
{
    const mti_notes *notes = mti_noting(ctx);
    mti_graph *g = notes->graph;
    if (g->n_inputs == MOST_INPUTS || n_bytes > g->n_staging - g->used)
        return mti_fail_bool(MT_ERR_STATE,
                             "cuda: an upload of %zu bytes cannot be captured in a graph: it is "
                             "not one of the inputs",
                             n_bytes);
    graph_input in = {g->used, n_bytes};
    g->used += n_bytes;
    g->inputs[g->n_inputs++] = in;
    return mti_cuda_ok(
        cudaMemcpyAsync(dst, g->staging + in.at, n_bytes, cudaMemcpyHostToDevice, notes->stream),
        "capturing an upload");
}

bool mti_cuda_graph_takes(const mti_graph *g, int n_inputs, const size_t *n_bytes)
{
    bool same = n_inputs == g->n_inputs;
    for (int i = 0; same && i < n_inputs; i++) same = n_bytes[i] == g->inputs[i].n_bytes;
    return same;
}

size_t mti_cuda_graph_nodes(const mti_graph *g) { return g->n_nodes; }

bool mti_cuda_graph_launch(mti_ctx *ctx, mti_graph *g, uint64_t offset, const void *const *inputs)
{
    if (g->launched && !mti_cuda_ok(cudaEventSynchronize(g->read), "waiting for a graph"))
        return false;
    memcpy(g->staging, &offset, sizeof offset);
    for (int i = 0; i < g->n_inputs; i++)
        memcpy(g->staging + g->inputs[i].at, inputs[i], g->inputs[i].n_bytes);
    g->launched = true;
    return mti_cuda_ok(cudaGraphLaunch(g->exec, ctx->stream), "launching a graph") &&
           mti_cuda_ok(cudaEventRecord(g->read, ctx->stream), "recording an event");
}

mti_desk_place **mti_cuda_noted_desks(const mti_ctx *ctx)
{
    const mti_notes *notes = mti_noting(ctx);
    return notes ? &notes->graph->desks : nullptr;
}

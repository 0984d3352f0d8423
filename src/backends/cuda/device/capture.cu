/* capture.cu: a sequence of calls noted once, as a graph, and launched as often as wanted.
 *
 * The calls are noted from a stream of their own, which runs nothing, so calls of other host
 * threads go on as ever. A launch repeats them with new contents of what was uploaded, and with
 * random draws counted from another offset. Whatever needs the GPU's answer cannot be noted and
 * fails.
 *
 * A graph keeps what its kernels use besides its caller's memory: desks, and what a launch brings,
 * the offset and the inputs. The host writes these into one of two page-locked halves, and one copy
 * ahead of the graph takes them to the device, where the graph reads them. So the host waits for no
 * graph: only, at the third launch, for the copy of the first. */
#include "backends/cuda/device/cleanup.h"
#include "backends/cuda/device/desk.h"
#include "backends/cuda/kernels.h"

#define MOST_INPUTS 4
#define DESKS       2 /* that one call may have at a time */
#define HALVES      2

struct graph_input {
    size_t at, n_bytes; /* in `brought` */
};

struct mti_graph {
    cudaGraphExec_t exec;
    size_t n_nodes;
    uint64_t n_launches;
    size_t n_brought, used;
    unsigned char *brought;       /* device memory: the offset, then the inputs */
    unsigned char *staging;       /* page-locked: the same, once for each half */
    cudaEvent_t was_read[HALVES]; /* the last copy from that half is done */
    int n_inputs;
    graph_input inputs[MOST_INPUTS];
    mti_desk_place *desks; /* idle ones */
};

struct mti_late_free {
    mti_late_free *next;
    void *p;
    cudaError_t (*free)(void *);
};

/* Memory that the thread gives back while it captures: a driver refuses that, and the capture would
 * be lost. */
bool mti_cuda_note_free(const mti_ctx *ctx, void *p, cudaError_t (*free)(void *))
{
    if (!mti_noting(ctx)) return false;
    mti_notes *notes = ctx->notes.load();
    mti_late_free *late = static_cast<mti_late_free *>(mti_calloc(1, sizeof *late));
    if (!late) return true; /* lost, with the step that has no memory */
    *late = {notes->to_free, p, free};
    notes->to_free = late;
    return true;
}

/* The capture is over. */
static void notes_free(mti_notes *notes)
{
    if (notes->stream) mti_cuda_forgive(cudaStreamDestroy(notes->stream));
    while (mti_late_free *late = notes->to_free) {
        notes->to_free = late->next;
        mti_cuda_forgive(late->free(late->p));
        mti_free(late);
    }
    mti_free(notes);
}

bool mti_cuda_refuse_noting(const mti_ctx *ctx, const char *what)
{
    return !mti_noting(ctx) ||
           mti_fail_bool(MT_ERR_STATE, "cuda: %s cannot be captured in a graph", what);
}

void mti_cuda_graph_free(mti_ctx *ctx, mti_graph *g)
{
    if (!g) return;
    if (g->n_launches)
        mti_cuda_wait_for_ranks(ctx), mti_cuda_forgive(cudaStreamSynchronize(ctx->stream));
    if (g->exec) mti_cuda_forgive(cudaGraphExecDestroy(g->exec));
    for (cudaEvent_t e : g->was_read)
        if (e) mti_cuda_forgive(cudaEventDestroy(e));
    if (g->staging) mti_cuda_forgive(cudaFreeHost(g->staging));
    if (g->brought) mti_cuda_forgive(cudaFree(g->brought));
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
    g->used = sizeof(uint64_t);
    g->n_brought = g->used + n_inputs_bytes;
    if (mti_alloc_should_fail())
        return mti_fail_bool(MT_ERR_MEMORY, "cuda: no memory for a graph's inputs");
    for (cudaEvent_t &e : g->was_read)
        if (!mti_cuda_ok(cudaEventCreateWithFlags(&e, cudaEventDisableTiming), "an event"))
            return false;
    return mti_cuda_ok(cudaMallocHost(&g->staging, HALVES * g->n_brought),
                       "memory for a graph's inputs") &&
           mti_cuda_ok(cudaMalloc(&g->brought, g->n_brought), "memory for a graph's inputs");
}

/* The kernels that only a graph launches are launched once before: older drivers cannot load one
 * while they capture. */
static bool begin(mti_ctx *ctx, mti_notes *notes)
{
    notes->stream = ctx->stream;
    bool ok = mti_cuda_try_noted_draws(ctx);
    notes->stream = nullptr;
    return ok &&
           mti_cuda_ok(cudaStreamCreateWithFlags(&notes->stream, cudaStreamNonBlocking),
                       "a stream to capture") &&
           mti_cuda_ok(cudaStreamBeginCapture(notes->stream, cudaStreamCaptureModeThreadLocal),
                       "beginning to capture");
}

static void forget(mti_ctx *ctx, mti_notes *notes)
{
    cudaGraph_t graph = nullptr;
    mti_notes *mine = notes;
    ctx->notes.compare_exchange_strong(mine, nullptr);
    if (notes->stream) {
        if (cudaStreamEndCapture(notes->stream, &graph) == cudaSuccess)
            mti_cuda_forgive(cudaGraphDestroy(graph));
        cudaGetLastError();
    }
    mti_cuda_graph_free(ctx, notes->graph);
    notes_free(notes);
}

bool mti_cuda_capture_begin(mti_ctx *ctx, uint64_t offset, size_t n_input_bytes)
{
    mti_notes *notes = static_cast<mti_notes *>(mti_calloc(1, sizeof *notes)), *none = nullptr;
    if (!notes) return false;
    notes->thread = pthread_self();
    notes->offset = offset;
    notes->graph = static_cast<mti_graph *>(mti_calloc(1, sizeof *notes->graph));
    bool ok = notes->graph && make_room(notes->graph, n_input_bytes);
    if (ok) notes->offset_at = reinterpret_cast<const uint64_t *>(notes->graph->brought);
    if (ok && !ctx->notes.compare_exchange_strong(none, notes))
        ok = mti_fail_bool(MT_ERR_STATE, "cuda: another capture has begun on this device");
    ok = ok && begin(ctx, notes);
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
    if (graph) mti_cuda_forgive(cudaGraphDestroy(graph));
    notes_free(notes);
    if (ok) return g;
    mti_cuda_graph_free(ctx, g);
    return nullptr;
}

/* The host's bytes of now are not noted: each launch brings its own. */
bool mti_cuda_note_upload(const mti_ctx *ctx, void *dst, size_t n_bytes)
{
    const mti_notes *notes = mti_noting(ctx);
    mti_graph *g = notes->graph;
    if (g->n_inputs == MOST_INPUTS || n_bytes > g->n_brought - g->used)
        return mti_fail_bool(MT_ERR_STATE,
                             "cuda: an upload of %zu bytes cannot be captured in a graph: it is "
                             "not one of the inputs",
                             n_bytes);
    graph_input in = {g->used, n_bytes};
    g->used += n_bytes;
    g->inputs[g->n_inputs++] = in;
    return mti_cuda_ok(
        cudaMemcpyAsync(dst, g->brought + in.at, n_bytes, cudaMemcpyDeviceToDevice, notes->stream),
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
    uint64_t half = g->n_launches % HALVES;
    unsigned char *staging = g->staging + half * g->n_brought;
    if (g->n_launches >= HALVES &&
        !mti_cuda_wait_for_event(ctx, g->was_read[half], "waiting for a graph's inputs"))
        return false;
    memcpy(staging, &offset, sizeof offset);
    for (int i = 0; i < g->n_inputs; i++)
        memcpy(staging + g->inputs[i].at, inputs[i], g->inputs[i].n_bytes);
    g->n_launches++;
    return mti_cuda_ok(cudaMemcpyAsync(g->brought, staging, g->n_brought, cudaMemcpyHostToDevice,
                                       ctx->stream),
                       "copying a graph's inputs") &&
           mti_cuda_ok(cudaEventRecord(g->was_read[half], ctx->stream), "recording an event") &&
           mti_cuda_ok(cudaGraphLaunch(g->exec, ctx->stream), "launching a graph");
}

mti_desk_place **mti_cuda_noted_desks(const mti_ctx *ctx)
{
    const mti_notes *notes = mti_noting(ctx);
    return notes ? &notes->graph->desks : nullptr;
}

/* nccl.cu: NCCL, opened when ranks first meet, their groups, and waits that end when a rank is
 * gone.
 *
 * Groups do not block the host (ncclConfig_t.blocking = 0): their calls return ncclInProgress, and
 * are waited for here, with a limit of time. Each call is waited for before the next one, of
 * whichever group: older versions keep what is in progress in variables of the host thread,
 * of which there is one set. Other ranks' absence shows in no error, only in a stream that does not
 * get on; so the host waits for a stream with the same limit, and on failure gives all groups of
 * the device up (ncclCommAbort), which ends NCCL's kernels. */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include "backends/cuda/kernels.h"
#include "backends/cuda/device/library.h"
#include "backends/cuda/device/link.h"

#define LIMIT_S 600.0 /* as PyTorch's groups */
#define NAP_NS  20000
#define TESTS   1000 /* before the first nap */

/* ---- the library ---- */

#ifdef MTI_CUDASIM
static void *open_library(void) { return (void *)cudasim_nccl; }
static void *symbol_of(void *, const char *name) { return cudasim_nccl(name); }
#else
static void *open_library(void) { return mti_cuda_find_library("libnccl.so.2"); }
static void *symbol_of(void *library, const char *name) { return dlsym(library, name); }
#endif

static bool read_limit(double *limit_s)
{
    const char *text = getenv("MEMTAPE_NCCL_TIMEOUT");
    char *end = NULL;
    *limit_s = text ? mti_strtod(text, &end) : LIMIT_S;
    return !text || (end != text && !*end && *limit_s > 0 && *limit_s < 1e9) ||
           mti_fail_bool(MT_ERR_ARGUMENT,
                         "nccl: MEMTAPE_NCCL_TIMEOUT is \"%s\"; need a number of seconds above 0",
                         text);
}

static bool load(struct mti_nccl *nccl)
{
    int version = 0;
    void *library = open_library();
    if (!library)
        return mti_fail_bool(MT_ERR_UNSUPPORTED,
                             "nccl: no libnccl.so.2 (of NVIDIA's NCCL, and of pip's "
                             "nvidia-nccl-cu13; MEMTAPE_CUDA_LIBS=FOLDER:... says where)");
#define LOAD(member, name, result, parameters)                                                     \
    {                                                                                              \
        void *found = symbol_of(library, #name);                                                   \
        if (!found)                                                                                \
            return mti_fail_bool(MT_ERR_UNSUPPORTED,                                               \
                                 "nccl: libnccl.so.2 has no " #name "; need NCCL 2.14 or later");  \
        memcpy(&nccl->call.member, &found, sizeof found);                                          \
    }
    NCCL_FUNCTIONS(LOAD)
#undef LOAD
    if (nccl->call.version(&version) != NCCL_OK || version < NCCL_NEEDED)
        return mti_fail_bool(MT_ERR_UNSUPPORTED, "nccl: version code %d; need %d (2.14) or more",
                             version, NCCL_NEEDED);
    return read_limit(&nccl->limit_s);
}

bool mti_cuda_nccl_open(mti_ctx *ctx)
{
    ctx->nccl = static_cast<mti_nccl *>(mti_calloc(1, sizeof *ctx->nccl));
    if (ctx->nccl) pthread_mutex_init(&ctx->nccl->lock, NULL);
    return ctx->nccl != NULL;
}

/* Its links have been closed. */
void mti_cuda_nccl_close(mti_ctx *ctx)
{
    if (ctx->nccl && ctx->nccl->bytes) cudaFree(ctx->nccl->bytes);
    if (ctx->nccl) pthread_mutex_destroy(&ctx->nccl->lock);
    mti_free(ctx->nccl);
}

bool mti_nccl_find(mti_ctx *ctx, void *id)
{
    struct mti_nccl *nccl = ctx->nccl;
    nccl_id made;
    static_assert(sizeof made == MTI_LINK_ID, "ids have one size");
    pthread_mutex_lock(&nccl->lock);
    if (!nccl->found) nccl->found = load(nccl);
    bool found = nccl->found;
    pthread_mutex_unlock(&nccl->lock);
    if (!found || !id) return found;
    int status = nccl->call.unique_id(&made);
    memcpy(id, &made, sizeof made);
    return status == NCCL_OK || mti_fail_bool(MT_ERR_UNSUPPORTED, "nccl: ncclGetUniqueId: %s",
                                              nccl->call.error_text(status));
}

/* ---- failures ---- */

static void nap(int tests)
{
    const struct timespec length = {0, NAP_NS};
    if (tests >= TESTS) nanosleep(&length, NULL);
}

int mti_nccl_end_group(mti_link *l)
{
    bool open = l->grouped;
    l->grouped = false;
    return open ? l->ctx->nccl->call.group_end() : (int)NCCL_OK;
}

/* After one group has failed what the others have begun may not end either. Groups of calls are
 * closed first: ncclGroupEnd would launch calls of groups that are gone. */
static void give_up(mti_ctx *ctx)
{
    pthread_mutex_lock(&ctx->nccl->lock);
    for (mti_link *l = ctx->nccl->links; l; l = l->next) mti_nccl_end_group(l);
    for (mti_link *l = ctx->nccl->links; l; l = l->next) {
        if (l->comm) ctx->nccl->call.abort(l->comm);
        l->comm = NULL;
    }
    pthread_mutex_unlock(&ctx->nccl->lock);
}

static bool fail_link(mti_link *l, const char *what, const char *why)
{
    const char *more = l->comm ? l->ctx->nccl->call.last_error(l->comm) : "";
    mti_fail(MT_ERR_UNSUPPORTED, "nccl: rank %lld of %lld: %s: %s%s%.160s", (long long)l->rank,
             (long long)l->ranks, what, why, more && *more ? "; " : "", more ? more : "");
    give_up(l->ctx);
    return false;
}

static bool fail_late(mti_link *l, const char *what)
{
    char why[160];
    mti_format(
        why, sizeof why,
        "nothing has moved for %g s (MEMTAPE_NCCL_TIMEOUT): another rank has ended, or makes "
        "other calls",
        l->ctx->nccl->limit_s);
    return fail_link(l, what, why);
}

static int ask(const mti_link *l)
{
    int status = NCCL_OK, asked = l->ctx->nccl->call.async_error(l->comm, &status);
    return asked == NCCL_OK ? status : asked;
}

bool mti_nccl_ok(mti_link *l, int status, const char *what)
{
    double began = mti_now();
    for (int tests = 0; status == NCCL_IN_PROGRESS && !l->grouped; nap(tests++)) {
        if (mti_now() - began > l->ctx->nccl->limit_s) return fail_late(l, what);
        status = ask(l);
    }
    return status == NCCL_OK || status == NCCL_IN_PROGRESS ||
           fail_link(l, what, l->ctx->nccl->call.error_text(status));
}

bool mti_nccl_ready(const mti_link *l, const char *what)
{
    return l->comm || mti_fail_bool(MT_ERR_UNSUPPORTED,
                                    "nccl: rank %lld of %lld: %s: an earlier call has failed",
                                    (long long)l->rank, (long long)l->ranks, what);
}

/* Whether no group has failed since: a rank that is gone, a network. */
static bool check_links(mti_ctx *ctx)
{
    pthread_mutex_lock(&ctx->nccl->lock);
    mti_link *bad = NULL;
    int status = NCCL_OK;
    for (mti_link *l = ctx->nccl->links; l && !bad; l = l->next) {
        if (!l->comm) continue;
        status = ask(l);
        if (status != NCCL_OK && status != NCCL_IN_PROGRESS) bad = l;
    }
    pthread_mutex_unlock(&ctx->nccl->lock);
    return !bad || fail_link(bad, "what ranks send", ctx->nccl->call.error_text(status));
}

template <class T> static bool wait_for(mti_ctx *ctx, cudaError_t (*query)(T), T what)
{
    double began = mti_now();
    for (int tests = 0;; nap(tests++)) {
        cudaError_t status = query(what);
        if (status != cudaErrorNotReady) {
            if (!mti_cuda_ok(status, "waiting for ranks")) return false;
            return check_links(ctx);
        }
        cudaGetLastError();
        if (!check_links(ctx)) return false;
        if (mti_now() - began > ctx->nccl->limit_s) return fail_late(ctx->nccl->links, "a wait");
    }
}

bool mti_cuda_wait_for_ranks(mti_ctx *ctx)
{
    return !ctx->nccl || !ctx->nccl->links || wait_for(ctx, cudaStreamQuery, ctx->stream);
}

bool mti_cuda_wait_for_event(mti_ctx *ctx, cudaEvent_t event, const char *what)
{
    return (!ctx->nccl || !ctx->nccl->links || wait_for(ctx, cudaEventQuery, event)) &&
           mti_cuda_ok(cudaEventSynchronize(event), what);
}

/* ---- groups ---- */

static bool make_stream(mti_link *l)
{
    return mti_cuda_ok(cudaStreamCreateWithFlags(&l->stream, cudaStreamNonBlocking), "stream") &&
           mti_cuda_ok(cudaEventCreateWithFlags(&l->compute_done, cudaEventDisableTiming),
                       "an event for ranks") &&
           mti_cuda_ok(cudaEventCreateWithFlags(&l->end, cudaEventDisableTiming),
                       "an event for ranks") &&
           mti_cuda_ok(cudaEventRecord(l->end, l->stream), "recording an event");
}

static bool join(mti_link *l, const void *id)
{
    nccl_config config = {sizeof config, NCCL_MAGIC, NCCL_NEEDED, 0};
    nccl_id name;
    memcpy(&name, id, sizeof name);
    if (!mti_cuda_ok(cudaSetDevice(l->ctx->device), "choosing the GPU")) return false;
    int status = l->ctx->nccl->call.init(&l->comm, (int)l->ranks, name, (int)l->rank, &config);
    return mti_nccl_ok(l, status, "ncclCommInitRankConfig");
}

mti_link *mti_nccl_open(mti_ctx *ctx, const void *id, int64_t ranks, int64_t rank, bool beside)
{
    if (!mti_nccl_find(ctx, NULL)) return NULL;
    mti_link *l = static_cast<mti_link *>(mti_calloc(1, sizeof *l));
    if (!l) return NULL;
    l->ctx = ctx, l->ranks = ranks, l->rank = rank, l->beside = beside;
    l->stream = beside ? NULL : ctx->stream;
    pthread_mutex_lock(&ctx->nccl->lock);
    l->next = ctx->nccl->links;
    ctx->nccl->links = l;
    pthread_mutex_unlock(&ctx->nccl->lock);
    if ((!beside || make_stream(l)) && join(l, id)) return l;
    mti_nccl_close(l, true);
    return NULL;
}

/* NCCL asks that all has been sent before a group ends. */
static void end_group(mti_link *l)
{
    const nccl_functions *call = &l->ctx->nccl->call;
    if (wait_for(l->ctx, cudaStreamQuery, l->stream) && l->comm &&
        mti_nccl_ok(l, call->finalize(l->comm), "ncclCommFinalize"))
        call->destroy(l->comm);
    else if (l->comm)
        call->abort(l->comm);
    l->comm = NULL;
}

void mti_nccl_close(mti_link *l, bool failed)
{
    mti_ctx *ctx = l->ctx;
    if (l->comm && !failed) end_group(l);
    if (l->comm) ctx->nccl->call.abort(l->comm);
    pthread_mutex_lock(&ctx->nccl->lock);
    mti_link **at = &ctx->nccl->links;
    while (*at != l) at = &(*at)->next;
    *at = l->next;
    pthread_mutex_unlock(&ctx->nccl->lock);
    if (l->compute_done) cudaEventDestroy(l->compute_done);
    if (l->end) cudaEventDestroy(l->end);
    if (l->beside && l->stream) cudaStreamDestroy(l->stream);
    mti_free(l);
}

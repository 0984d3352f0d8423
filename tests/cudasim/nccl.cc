/* nccl.cc: a double of NCCL whose ranks are host threads, all on the simulator's device. What its
 * calls do starts on a rank when the rank's stream has come to it, and ends when it has started on
 * all ranks that it needs. It is as strict as NCCL's documentation allows the library to be, and
 * finds what the library would not:
 *   - collectives of one group must agree in kind, count, dtype, operation and root, call by call;
 * a message must have the count and dtype that its receiver expects. NCCL does not check this, and
 *     hangs or garbles; here all ranks of the group get ncclInvalidUsage, and a line on stderr says
 * why;
 *   - a rank that does not call keeps the others waiting for ever, also in ncclCommInitRankConfig,
 *     ncclCommFinalize, and for its ncclSend, of which nothing is buffered;
 *   - what is sent is read when the other rank is there, not before;
 *   - the calls of one group (ncclGroupStart) start together; others of a communicator one after
 * the other, on whichever streams; a rank sends to itself only in a group that receives it, too.
 * Sums are in the order of the ranks; of 16-bit numbers each addition is rounded. Two ranks may not
 * be on one GPU, but with CUDASIM_SHARED_GPU=1 in the environment, for tests of several ranks. */
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <atomic>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>
#include "backends/cuda/device/nccl.h"
#include "cudasim/memory.h"
#include "cudasim/simulator.h"

enum { CUDA_ERROR = 1, INVALID_ARGUMENT = 4, INVALID_USAGE = 5 };

namespace
{

enum struct kind { all_gather, reduce_scatter, all_reduce, reduce, broadcast, send, recv };
const char *const names[] = {"ncclAllGather", "ncclReduceScatter", "ncclAllReduce", "ncclReduce",
                             "ncclBroadcast", "ncclSend",          "ncclRecv"};

/* What one rank asks for. */
struct call {
    kind what;
    const void *from;
    void *to;
    size_t n;
    int dtype, op, root; /* or peer */
    cudaStream_t stream;
    bool started, over;
};
typedef std::shared_ptr<call> call_t;

struct group {
    int ranks;
    std::vector<bool> joined, finalized;
    int n_joined = 0, n_finalized = 0;
    std::vector<std::vector<call_t>> collectives; /* [nth][rank]: those that are not over */
    uint64_t n_over = 0;                          /* collectives before these */
    std::map<std::pair<int, int>, std::deque<call_t>> sent, wanted; /* by sender and receiver */
    int error = NCCL_OK;
    std::string why;
};

} // namespace

/* A rank's end. */
struct nccl_comm {
    std::shared_ptr<group> of;
    int rank;
    uint64_t n_collectives, n_batches, n_batches_over;
    bool finalizing, aborted, gone;
};

namespace
{

typedef std::shared_ptr<nccl_comm> comm_t;

std::recursive_mutex lock;
typedef std::lock_guard<std::recursive_mutex> locked;
std::map<std::string, std::shared_ptr<group>> groups; /* that ranks still join, by name */
std::map<nccl_comm *, comm_t> comms;
uint64_t n_names;
std::atomic<uint64_t> n_moved;

struct batch_call {
    comm_t comm;
    call_t what;
};
thread_local int depth;
thread_local std::vector<batch_call> batch;

int fail(group *g, int status, const char *format, ...)
{
    char text[512];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    fprintf(stderr, "nccl double: %s\n", text);
    if (g && g->error == NCCL_OK) g->error = status, g->why = text;
    return status;
}

comm_t find(nccl_comm *comm)
{
    auto found = comms.find(comm);
    return found == comms.end() ? nullptr : found->second;
}

/* ---- what moves ---- */

size_t size_of(int dtype)
{
    return dtype == NCCL_F64 ? 8 : dtype == NCCL_F32 ? 4 : dtype == NCCL_U8 ? 1 : 2;
}

template <class T> void add_to(void *to, const void *part, size_t n)
{
    T *sum = static_cast<T *>(to);
    const T *x = static_cast<const T *>(part);
    for (size_t i = 0; i < n; i++) sum[i] = sum[i] + x[i];
}
void add_bf16(void *to, const void *part, size_t n)
{
    __nv_bfloat16 *sum = static_cast<__nv_bfloat16 *>(to);
    const __nv_bfloat16 *x = static_cast<const __nv_bfloat16 *>(part);
    for (size_t i = 0; i < n; i++)
        sum[i] = __float2bfloat16(__bfloat162float(sum[i]) + __bfloat162float(x[i]));
}
void add_f16(void *to, const void *part, size_t n)
{
    __half *sum = static_cast<__half *>(to);
    const __half *x = static_cast<const __half *>(part);
    for (size_t i = 0; i < n; i++) sum[i] = __float2half(__half2float(sum[i]) + __half2float(x[i]));
}
void add(int dtype, void *to, const void *part, size_t n)
{
    switch (dtype) {
    case NCCL_F32: add_to<float>(to, part, n); break;
    case NCCL_F64: add_to<double>(to, part, n); break;
    case NCCL_BF16: add_bf16(to, part, n); break;
    case NCCL_F16: add_f16(to, part, n); break;
    default: add_to<unsigned char>(to, part, n);
    }
}

const char *byte_at(const void *p, size_t n_bytes)
{
    return static_cast<const char *>(p) + n_bytes;
}
char *byte_at(void *p, size_t n_bytes) { return static_cast<char *>(p) + n_bytes; }

/* Of elements [first, first + n) of what every rank gives. */
std::vector<char> sum_of(const std::vector<call_t> &all, size_t first, size_t n)
{
    size_t size = size_of(all[0]->dtype);
    const char *own = byte_at(all[0]->from, first * size);
    std::vector<char> sum(own, own + n * size);
    for (size_t r = 1; r < all.size(); r++)
        add(all[0]->dtype, sum.data(), byte_at(all[r]->from, first * size), n);
    return sum;
}

void put(void *to, const std::vector<char> &bytes)
{
    if (!bytes.empty()) memcpy(to, bytes.data(), bytes.size());
}

void carry_out(const std::vector<call_t> &all)
{
    cudasim::access open;
    const call &c = *all[0];
    size_t ranks = all.size(), n_bytes = c.n * size_of(c.dtype);
    size_t others = n_bytes * (ranks - 1);
    std::vector<std::vector<char>> parts;
    switch (c.what) {
    case kind::all_gather:
        n_moved += ranks * others;
        for (size_t r = 0; r < ranks; r++)
            parts.emplace_back(byte_at(all[r]->from, 0), byte_at(all[r]->from, n_bytes));
        for (size_t r = 0; r < ranks; r++)
            for (size_t s = 0; s < ranks; s++) put(byte_at(all[r]->to, s * n_bytes), parts[s]);
        break;
    case kind::reduce_scatter:
        n_moved += ranks * others;
        for (size_t r = 0; r < ranks; r++) parts.push_back(sum_of(all, r * c.n, c.n));
        for (size_t r = 0; r < ranks; r++) put(all[r]->to, parts[r]);
        break;
    case kind::all_reduce:
        n_moved += 2 * others;
        parts.push_back(sum_of(all, 0, c.n));
        for (size_t r = 0; r < ranks; r++) put(all[r]->to, parts[0]);
        break;
    case kind::reduce:
        n_moved += others;
        put(all[(size_t)c.root]->to, sum_of(all, 0, c.n));
        break;
    default:
        n_moved += others;
        parts.emplace_back(byte_at(all[(size_t)c.root]->from, 0),
                           byte_at(all[(size_t)c.root]->from, n_bytes));
        for (size_t r = 0; r < ranks; r++) put(all[r]->to, parts[0]);
    }
}

/* ---- when it does ---- */

/* In place only as the library allows it: a rank's part where it belongs in the whole. */
bool lies_well(const call &c, int rank, size_t ranks)
{
    size_t n_bytes = c.n * size_of(c.dtype), n_from = n_bytes, n_to = n_bytes;
    const char *from = byte_at(c.from, 0), *to = byte_at(c.to, 0);
    switch (c.what) {
    case kind::send:
    case kind::recv: return true;
    case kind::all_gather:
        if (from == to + (size_t)rank * n_bytes) return true;
        n_to *= ranks;
        break;
    case kind::reduce_scatter:
        if (to == from + (size_t)rank * n_bytes) return true;
        n_from *= ranks;
        break;
    default:
        if (from == to) return true;
    }
    return from + n_from <= to || to + n_to <= from;
}

bool same(const call &a, const call &b)
{
    return a.what == b.what && a.n == b.n && a.dtype == b.dtype && a.op == b.op && a.root == b.root;
}

/* The nth collective of this rank is the nth of every other. */
int enter(const comm_t &comm, const call_t &c)
{
    group *g = comm->of.get();
    uint64_t nth = comm->n_collectives++ - g->n_over;
    while (g->collectives.size() <= nth) g->collectives.emplace_back((size_t)g->ranks);
    std::vector<call_t> &all = g->collectives[nth];
    all[(size_t)comm->rank] = c;
    for (int r = 0; r < g->ranks; r++) {
        const call *other = all[(size_t)r].get();
        if (other && !same(*other, *c))
            return fail(
                g, INVALID_USAGE,
                "collective %llu of %d ranks: rank %d calls %s of %zu of dtype %d, root %d, "
                "and rank %d %s of %zu of dtype %d, root %d",
                (unsigned long long)(nth + g->n_over), g->ranks, comm->rank, names[(int)c->what],
                c->n, c->dtype, c->root, r, names[(int)other->what], other->n, other->dtype,
                other->root);
    }
    return NCCL_OK;
}

void enter_message(const comm_t &comm, const call_t &c)
{
    group *g = comm->of.get();
    if (c->what == kind::send)
        g->sent[{comm->rank, c->root}].push_back(c);
    else
        g->wanted[{c->root, comm->rank}].push_back(c);
}

/* What has started on all ranks that it needs happens now. */
void try_collectives(group *g)
{
    while (!g->collectives.empty()) {
        std::vector<call_t> &all = g->collectives.front();
        for (const call_t &c : all)
            if (!c || !c->started) return;
        carry_out(all);
        for (const call_t &c : all) c->over = true;
        g->collectives.erase(g->collectives.begin());
        g->n_over++;
    }
}
void try_messages(group *g)
{
    for (auto &each : g->sent) {
        std::deque<call_t> &out = each.second, &in = g->wanted[each.first];
        while (!out.empty() && !in.empty() && out.front()->started && in.front()->started) {
            call &from = *out.front(), &to = *in.front();
            if (from.n != to.n || from.dtype != to.dtype) {
                fail(g, INVALID_USAGE,
                     "rank %d sends %zu of dtype %d to rank %d, which wants %zu of dtype %d",
                     each.first.first, from.n, from.dtype, each.first.second, to.n, to.dtype);
                return;
            }
            cudasim::access open;
            size_t n_bytes = from.n * size_of(from.dtype);
            if (n_bytes) memmove(to.to, from.from, n_bytes);
            n_moved += n_bytes;
            from.over = to.over = true;
            out.pop_front(), in.pop_front();
        }
    }
}

/* NCCL refuses a group in which a rank sends itself what it does not receive. */
bool matches_itself(const comm_t &comm, const std::vector<call_t> &calls)
{
    int more_sent = 0;
    for (const call_t &c : calls)
        if (c->root == comm->rank) more_sent += (c->what == kind::send) - (c->what == kind::recv);
    return more_sent == 0;
}

/* Of the calls of a batch that one communicator has, when the stream has come to them. */
bool is_over(const comm_t &comm, uint64_t nth, const std::vector<call_t> &calls)
{
    locked mine(lock);
    group *g = comm->of.get();
    if (comm->aborted || g->error != NCCL_OK) return true;
    if (comm->n_batches_over < nth) return false;
    bool over = true;
    for (const call_t &c : calls) c->started = true;
    try_collectives(g);
    try_messages(g);
    for (const call_t &c : calls) over = over && c->over;
    if (over) comm->n_batches_over = nth + 1;
    return over || g->error != NCCL_OK;
}

int issue(const comm_t &comm, const std::vector<call_t> &calls)
{
    group *g = comm->of.get();
    if (!matches_itself(comm, calls))
        return fail(g, INVALID_USAGE, "rank %d sends itself more or less than it receives",
                    comm->rank);
    for (const call_t &c : calls) {
        if (c->stream != calls[0]->stream)
            return fail(g, INVALID_USAGE, "one group on two streams: not simulated");
        int status = NCCL_OK;
        if (c->what == kind::send || c->what == kind::recv)
            enter_message(comm, c);
        else
            status = enter(comm, c);
        if (status != NCCL_OK) return status;
    }
    return NCCL_OK;
}

int end_batch()
{
    std::vector<batch_call> all = std::move(batch);
    batch.clear();
    while (!all.empty()) {
        comm_t comm = all[0].comm;
        std::vector<call_t> calls;
        std::vector<batch_call> rest;
        for (batch_call &b : all)
            if (b.comm == comm)
                calls.push_back(b.what);
            else
                rest.push_back(b);
        uint64_t nth;
        {
            locked mine(lock);
            int status = issue(comm, calls);
            if (status != NCCL_OK) return status;
            nth = comm->n_batches++;
        }
        cudaError_t status = cudasim::submit_awaited(
            calls[0]->stream, [comm, nth, calls] { return is_over(comm, nth, calls); });
        if (status != cudaSuccess) return CUDA_ERROR;
        all = std::move(rest);
    }
    return NCCL_OK;
}

int add_call(nccl_comm *end, const call &c)
{
    {
        locked mine(lock);
        comm_t comm = find(end);
        if (!comm)
            return fail(nullptr, INVALID_ARGUMENT, "%s: no communicator", names[(int)c.what]);
        group *g = comm->of.get();
        if (g->error != NCCL_OK) return g->error;
        if (g->n_joined < g->ranks || comm->finalizing)
            return fail(g, INVALID_USAGE, "%s: rank %d's communicator %s", names[(int)c.what],
                        comm->rank, comm->finalizing ? "is finalized" : "is not ready");
        bool message = c.what == kind::send || c.what == kind::recv;
        if (c.root < 0 || c.root >= g->ranks || (message && c.root == comm->rank && !depth) ||
            c.dtype > NCCL_BF16 || c.dtype < 0 || c.op != NCCL_SUM ||
            (c.n && (!c.from || !c.to) && !message) || !lies_well(c, comm->rank, (size_t)g->ranks))
            return fail(g, INVALID_ARGUMENT,
                        "%s: rank %d of %d: root or peer %d, dtype %d, %zu from "
                        "%p to %p",
                        names[(int)c.what], comm->rank, g->ranks, c.root, c.dtype, c.n, c.from,
                        c.to);
        batch.push_back({comm, std::make_shared<call>(c)});
    }
    return depth ? (int)NCCL_OK : end_batch();
}

} // namespace

/* ---- the library's functions ---- */

static int ncclGetVersion(int *version)
{
    *version = 22000;
    return NCCL_OK;
}
static const char *ncclGetErrorString(int status)
{
    switch (status) {
    case NCCL_OK: return "no error";
    case CUDA_ERROR: return "unhandled cuda error";
    case INVALID_ARGUMENT: return "invalid argument";
    case INVALID_USAGE: return "invalid usage";
    case 6: return "remote process exited or there was a network error";
    case NCCL_IN_PROGRESS: return "NCCL operation in progress";
    }
    return "unknown result code";
}
static const char *ncclGetLastError(nccl_comm_t comm)
{
    locked mine(lock);
    comm_t found = find(comm);
    return found ? found->of->why.c_str() : "";
}
static int ncclGetUniqueId(nccl_id *id)
{
    locked mine(lock);
    memset(id, 0, sizeof *id);
    snprintf(id->bytes, sizeof id->bytes, "group %llu", (unsigned long long)++n_names);
    return NCCL_OK;
}

static int ncclCommInitRankConfig(nccl_comm_t *comm, int ranks, nccl_id id, int rank,
                                  nccl_config *config)
{
    locked mine(lock);
    std::string name(id.bytes, strnlen(id.bytes, sizeof id.bytes));
    if (config->magic != NCCL_MAGIC || config->size < sizeof *config ||
        config->version < NCCL_NEEDED || config->blocking)
        return fail(nullptr, INVALID_ARGUMENT, "a config that is none, or blocks: not simulated");
    std::shared_ptr<group> &g = groups[name];
    if (!g) {
        g = std::make_shared<group>();
        g->ranks = ranks;
        g->joined.resize((size_t)ranks), g->finalized.resize((size_t)ranks);
    }
    if (ranks != g->ranks || rank < 0 || rank >= ranks || g->joined[(size_t)rank])
        return fail(g.get(), INVALID_ARGUMENT, "rank %d of %d joins \"%s\", which has %d ranks",
                    rank, ranks, name.c_str(), g->ranks);
    g->joined[(size_t)rank] = true;
    comm_t made(new nccl_comm{g, rank, 0, 0, 0, false, false, false});
    comms[made.get()] = made;
    *comm = made.get();
    const char *shared = getenv("CUDASIM_SHARED_GPU");
    if (++g->n_joined > 1 && (!shared || strcmp(shared, "1") != 0))
        fail(g.get(), INVALID_USAGE, "Duplicate GPU detected: rank %d and another are on GPU 0",
             rank);
    if (g->n_joined == ranks) groups.erase(name);
    return NCCL_IN_PROGRESS;
}

static int ncclCommGetAsyncError(nccl_comm_t end, int *status)
{
    locked mine(lock);
    comm_t comm = find(end);
    if (!comm) return fail(nullptr, INVALID_ARGUMENT, "ncclCommGetAsyncError: no communicator");
    const group *g = comm->of.get();
    bool ready = g->n_joined == g->ranks && (!comm->finalizing || g->n_finalized == g->ranks);
    *status = g->error != NCCL_OK ? g->error : ready ? NCCL_OK : NCCL_IN_PROGRESS;
    return NCCL_OK;
}

static int ncclCommFinalize(nccl_comm_t end)
{
    locked mine(lock);
    comm_t comm = find(end);
    if (!comm) return fail(nullptr, INVALID_ARGUMENT, "ncclCommFinalize: no communicator");
    if (comm->finalizing || comm->n_batches_over < comm->n_batches)
        return fail(comm->of.get(), INVALID_USAGE, "ncclCommFinalize: rank %d %s", comm->rank,
                    comm->finalizing ? "has called it before" : "still waits for other ranks");
    comm->finalizing = true;
    comm->of->n_finalized++;
    return NCCL_IN_PROGRESS;
}

static int ncclCommDestroy(nccl_comm_t end)
{
    locked mine(lock);
    comm_t comm = find(end);
    if (!comm) return fail(nullptr, INVALID_ARGUMENT, "ncclCommDestroy: no communicator");
    if (!comm->finalizing || comm->of->n_finalized < comm->of->ranks)
        return fail(comm->of.get(), INVALID_USAGE, "ncclCommDestroy: rank %d is not finalized",
                    comm->rank);
    comms.erase(end);
    return NCCL_OK;
}

static int ncclCommAbort(nccl_comm_t end)
{
    locked mine(lock);
    comm_t comm = find(end);
    if (!comm) return fail(nullptr, INVALID_ARGUMENT, "ncclCommAbort: no communicator");
    if (depth) {
        fail(nullptr, INVALID_USAGE, "ncclCommAbort in a group that is open");
        abort(); /* the library's ncclGroupEnd reads the communicator that is gone */
    }
    comm->aborted = true;
    comms.erase(end);
    return NCCL_OK;
}

static int ncclGroupStart(void)
{
    depth++;
    return NCCL_OK;
}
static int ncclGroupEnd(void)
{
    if (depth == 0) return fail(nullptr, INVALID_USAGE, "ncclGroupEnd without ncclGroupStart");
    return --depth ? (int)NCCL_OK : end_batch();
}

static int ncclAllGather(const void *own, void *all, size_t n_own, int dtype, nccl_comm_t comm,
                         cudaStream_t stream)
{
    return add_call(comm,
                    {kind::all_gather, own, all, n_own, dtype, NCCL_SUM, 0, stream, false, false});
}
static int ncclReduceScatter(const void *all, void *own, size_t n_own, int dtype, int op,
                             nccl_comm_t comm, cudaStream_t stream)
{
    return add_call(comm,
                    {kind::reduce_scatter, all, own, n_own, dtype, op, 0, stream, false, false});
}
static int ncclAllReduce(const void *from, void *to, size_t n, int dtype, int op, nccl_comm_t comm,
                         cudaStream_t stream)
{
    return add_call(comm, {kind::all_reduce, from, to, n, dtype, op, 0, stream, false, false});
}
static int ncclReduce(const void *from, void *to, size_t n, int dtype, int op, int root,
                      nccl_comm_t comm, cudaStream_t stream)
{
    return add_call(comm, {kind::reduce, from, to, n, dtype, op, root, stream, false, false});
}
static int ncclBroadcast(const void *from, void *to, size_t n, int dtype, int root,
                         nccl_comm_t comm, cudaStream_t stream)
{
    return add_call(comm,
                    {kind::broadcast, from, to, n, dtype, NCCL_SUM, root, stream, false, false});
}
static int ncclSend(const void *from, size_t n, int dtype, int peer, nccl_comm_t comm,
                    cudaStream_t stream)
{
    return add_call(comm,
                    {kind::send, from, nullptr, n, dtype, NCCL_SUM, peer, stream, false, false});
}
static int ncclRecv(void *to, size_t n, int dtype, int peer, nccl_comm_t comm, cudaStream_t stream)
{
    return add_call(comm,
                    {kind::recv, nullptr, to, n, dtype, NCCL_SUM, peer, stream, false, false});
}

void *cudasim_nccl(const char *name)
{
#define FOUND(member, function, result, parameters)                                                \
    {                                                                                              \
        result(*typed) parameters = function;                                                      \
        if (!strcmp(name, #function)) return (void *)typed;                                        \
    }
    NCCL_FUNCTIONS(FOUND)
#undef FOUND
    return nullptr;
}

/* ---- the double's own ---- */

extern "C" {
/* Bytes that have gone from rank to rank so far, as rings would send them. */
__attribute__((visibility("default"))) uint64_t cudasim_nccl_moved(void) { return n_moved; }
/* From now on the groups that exist fail with this ncclResult_t, as after a network's failure. */
__attribute__((visibility("default"))) void cudasim_nccl_break(int status)
{
    locked mine(lock);
    for (auto &each : comms) fail(each.second->of.get(), status, "broken on purpose");
}
/* Communicators that exist. */
__attribute__((visibility("default"))) size_t cudasim_nccl_comms(void)
{
    locked mine(lock);
    return comms.size();
}
}

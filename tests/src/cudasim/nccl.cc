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
 * the other, on whichever streams; a rank sends to itself only in a group that receives it, too;
 *   - two ranks are connected at the first message between them, in each direction, and all of a
 *     group at their first collective: ncclInProgress until the other ranks have made the call,
 *     too. Joining and connecting takes up to MOST_DELAY_MS on each rank, mostly
 *     far less;
 *   - calls reach their streams when ncclCommGetAsyncError is asked, not before; a message outside
 * a group returns ncclSuccess all the same;
 *   - a host thread has one group under way at a time: older versions refuse or garble a second.
 * Sums are in the order of the ranks; of 16-bit numbers each addition is rounded. Two ranks may not
 * be on one GPU, but with CUDASIM_SHARED_GPU=1 in the environment, for tests of several ranks. */
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <atomic>
#include <chrono>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <set>
#include <string>
#include <vector>
#include "backends/cuda/device/nccl.h"
#include "cudasim/memory.h"
#include "cudasim/nccl_data.h"
#include "cudasim/simulator.h"

enum { CUDA_ERROR = 1, INVALID_ARGUMENT = 4, INVALID_USAGE = 5, MOST_DELAY_MS = 40 };

using namespace nccl_double;

namespace
{

typedef std::chrono::steady_clock::time_point moment;

/* What several ranks make together: over on a rank some time after the last has come. */
struct meeting {
    std::vector<bool> here; /* by rank */
    int n_here = 0;
    std::vector<moment> over; /* by rank, once all are here */
};

struct group {
    int ranks;
    std::vector<bool> joined;
    int n_joined = 0;
    meeting joining, finalizing, collecting;
    std::map<std::pair<int, int>, meeting> connecting; /* by sender and receiver: here[0], [1] */
    std::vector<std::vector<call_t>> collectives;      /* [nth][rank]: those that are not over */
    uint64_t n_over = 0;                               /* collectives before these */
    std::map<std::pair<int, int>, std::deque<call_t>> sent, wanted; /* by sender and receiver */
    int error = NCCL_OK;
    std::string why;
};

} // namespace

namespace
{
struct launch;
}

/* A rank's end. */
struct nccl_comm {
    std::shared_ptr<group> of;
    int rank;
    uint64_t n_collectives, n_batches, n_batches_over;
    bool finalizing, aborted;
    std::shared_ptr<launch> last;
};

namespace
{

typedef std::shared_ptr<nccl_comm> comm_t;

/* What a group of calls, or a call alone, has begun. */
struct part {
    comm_t comm;
    uint64_t nth;
    std::vector<call_t> calls;
};
struct launch {
    std::vector<std::pair<meeting *, size_t>> meetings; /* and this rank's place in each */
    std::vector<std::shared_ptr<group>> of;             /* which keep them */
    std::vector<part> parts;                            /* for the streams after that */
    enum { WAITS, IS_QUEUED, IS_OVER } state = WAITS;
};
typedef std::shared_ptr<launch> launch_t;

std::recursive_mutex lock;
typedef std::lock_guard<std::recursive_mutex> locked;
std::map<std::string, std::shared_ptr<group>> groups; /* that ranks still join, by name */
std::set<std::string>
    spent; /* names of groups that all have joined: NCCL would wait for them in vain */
std::map<nccl_comm *, comm_t> comms;
uint64_t n_names;

struct batch_call {
    comm_t comm;
    call_t what;
};
thread_local int depth;
thread_local std::vector<batch_call> batch;
thread_local std::vector<comm_t> joiners; /* in the group of calls that is open */
thread_local launch_t last_of_thread;

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

/* ---- meetings ---- */

moment soon()
{
    static std::minstd_rand random(1);
    double share = std::uniform_real_distribution<>()(random);
    return std::chrono::steady_clock::now() +
           std::chrono::microseconds((int)(1e3 * MOST_DELAY_MS * pow(share, 8)));
}

/* This rank comes, if it has not before. */
void come(const launch_t &l, const std::shared_ptr<group> &g, meeting *m, size_t place,
          size_t n_places)
{
    m->here.resize(n_places);
    m->n_here += !m->here[place];
    m->here[place] = true;
    if (m->n_here == (int)n_places && m->over.empty())
        for (size_t i = 0; i < n_places; i++) m->over.push_back(soon());
    l->meetings.push_back({m, place});
    l->of.push_back(g);
}

bool are_over(const launch &l)
{
    for (const auto &each : l.meetings)
        if (each.first->over.empty() ||
            std::chrono::steady_clock::now() < each.first->over[each.second])
            return false;
    return true;
}

bool has_failed(const launch &l)
{
    for (const auto &g : l.of)
        if (g->error != NCCL_OK) return true;
    return false;
}

bool is_under_way(const launch_t &l) { return l && l->state != launch::IS_OVER && !has_failed(*l); }

/* Needs the lock. */
int begin_launch(const char *what, launch_t *l)
{
    if (is_under_way(last_of_thread))
        return fail(nullptr, INVALID_USAGE, "%s: what this thread began before is not over", what);
    *l = last_of_thread = std::make_shared<launch>();
    return NCCL_OK;
}

/* ---- when it does ---- */

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

void connect(const launch_t &l, const comm_t &comm, const call &c)
{
    const std::shared_ptr<group> &g = comm->of;
    if (c.what == kind::send)
        come(l, g, &g->connecting[{comm->rank, c.root}], 0, 2);
    else if (c.what == kind::recv)
        come(l, g, &g->connecting[{c.root, comm->rank}], 1, 2);
    else
        come(l, g, &g->collecting, (size_t)comm->rank, (size_t)g->ranks);
}

/* The calls of one communicator among those of a group. */
part take_part(std::vector<batch_call> *all)
{
    part p = {(*all)[0].comm, 0, {}};
    std::vector<batch_call> rest;
    for (batch_call &b : *all)
        if (b.comm == p.comm)
            p.calls.push_back(b.what);
        else
            rest.push_back(b);
    *all = std::move(rest);
    return p;
}

int end_batch(const char *what)
{
    locked mine(lock);
    std::vector<batch_call> all = std::move(batch);
    std::vector<comm_t> joining = std::move(joiners);
    launch_t l;
    batch.clear(), joiners.clear();
    if (all.empty() && joining.empty()) return NCCL_OK;
    int status = begin_launch(what, &l);
    for (const comm_t &comm : joining) {
        group *g = comm->of.get();
        comm->last = l;
        come(l, comm->of, &g->joining, (size_t)comm->rank, (size_t)g->ranks);
    }
    while (status == NCCL_OK && !all.empty()) {
        part p = take_part(&all);
        status = issue(p.comm, p.calls);
        p.nth = p.comm->n_batches++;
        p.comm->last = l;
        for (const call_t &c : p.calls) connect(l, p.comm, *c);
        l->parts.push_back(std::move(p));
    }
    return status == NCCL_OK ? (int)NCCL_IN_PROGRESS : status;
}

/* Queues what nothing is missing for. Not under the lock, which streams take. */
int progress(const launch_t &l)
{
    {
        locked mine(lock);
        if (!is_under_way(l) || l->state != launch::WAITS || !are_over(*l)) return NCCL_OK;
        l->state = launch::IS_QUEUED;
    }
    for (const part &p : l->parts)
        if (cudasim::submit_awaited(p.calls[0]->stream,
                                    [p] { return is_over(p.comm, p.nth, p.calls); }) != cudaSuccess)
            return CUDA_ERROR;
    locked mine(lock);
    l->state = launch::IS_OVER;
    return NCCL_OK;
}

int add_call(nccl_comm *end, const call &c)
{
    bool message = c.what == kind::send || c.what == kind::recv;
    {
        locked mine(lock);
        comm_t comm = find(end);
        if (!comm)
            return fail(nullptr, INVALID_ARGUMENT, "%s: no communicator", names[(int)c.what]);
        group *g = comm->of.get();
        if (g->error != NCCL_OK) return g->error;
        if (is_under_way(comm->last) || comm->finalizing)
            return fail(g, INVALID_USAGE, "%s: rank %d's communicator %s", names[(int)c.what],
                        comm->rank, comm->finalizing ? "is finalized" : "is not ready");
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
    if (depth) return NCCL_OK;
    int status = end_batch(names[(int)c.what]);
    return message && status == NCCL_IN_PROGRESS ? (int)NCCL_OK : status;
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
    if (spent.count(name))
        return fail(nullptr, INVALID_USAGE, "\"%s\" was the name of a group", name.c_str());
    std::shared_ptr<group> &g = groups[name];
    if (!g) {
        g = std::make_shared<group>();
        g->ranks = ranks;
        g->joined.resize((size_t)ranks);
    }
    if (ranks != g->ranks || rank < 0 || rank >= ranks || g->joined[(size_t)rank])
        return fail(g.get(), INVALID_ARGUMENT, "rank %d of %d joins \"%s\", which has %d ranks",
                    rank, ranks, name.c_str(), g->ranks);
    g->joined[(size_t)rank] = true;
    comm_t made(new nccl_comm{g, rank, 0, 0, 0, false, false, nullptr});
    comms[made.get()] = made;
    *comm = made.get();
    const char *shared = getenv("CUDASIM_SHARED_GPU");
    if (++g->n_joined > 1 && (!shared || strcmp(shared, "1") != 0))
        fail(g.get(), INVALID_USAGE, "Duplicate GPU detected: rank %d and another are on GPU 0",
             rank);
    if (g->n_joined == ranks) groups.erase(name), spent.insert(name);
    joiners.push_back(made);
    return depth ? (int)NCCL_OK : end_batch("ncclCommInitRankConfig");
}

static int ncclCommGetAsyncError(nccl_comm_t end, int *status)
{
    comm_t comm;
    {
        locked mine(lock);
        comm = find(end);
        if (!comm) return fail(nullptr, INVALID_ARGUMENT, "ncclCommGetAsyncError: no communicator");
    }
    int queued = comm->last ? progress(comm->last) : (int)NCCL_OK;
    locked mine(lock);
    const group *g = comm->of.get();
    *status = queued != NCCL_OK          ? queued
              : g->error != NCCL_OK      ? g->error
              : is_under_way(comm->last) ? NCCL_IN_PROGRESS
                                         : NCCL_OK;
    return NCCL_OK;
}

static int ncclCommFinalize(nccl_comm_t end)
{
    locked mine(lock);
    comm_t comm = find(end);
    if (!comm) return fail(nullptr, INVALID_ARGUMENT, "ncclCommFinalize: no communicator");
    if (comm->finalizing || is_under_way(comm->last) || comm->n_batches_over < comm->n_batches)
        return fail(comm->of.get(), INVALID_USAGE, "ncclCommFinalize: rank %d %s", comm->rank,
                    comm->finalizing ? "has called it before" : "still waits for other ranks");
    launch_t l;
    int status = begin_launch("ncclCommFinalize", &l);
    if (status != NCCL_OK) return status;
    comm->finalizing = true;
    comm->last = l;
    come(l, comm->of, &comm->of->finalizing, (size_t)comm->rank, (size_t)comm->of->ranks);
    return NCCL_IN_PROGRESS;
}

static int ncclCommDestroy(nccl_comm_t end)
{
    locked mine(lock);
    comm_t comm = find(end);
    if (!comm) return fail(nullptr, INVALID_ARGUMENT, "ncclCommDestroy: no communicator");
    if (!comm->finalizing || is_under_way(comm->last))
        return fail(comm->of.get(), INVALID_USAGE, "ncclCommDestroy: rank %d is not finalized",
                    comm->rank);
    comm->last.reset(); /* which refers to the communicator */
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
    if (comm->last) comm->last->state = launch::IS_OVER;
    comm->last.reset(); /* which refers to the communicator */
    comms.erase(end);
    return NCCL_OK;
}

static int ncclGroupStart(void)
{
    locked mine(lock);
    if (depth == 0 && is_under_way(last_of_thread))
        return fail(nullptr, INVALID_USAGE,
                    "ncclGroupStart: what this thread began before is not over");
    depth++;
    return NCCL_OK;
}
static int ncclGroupEnd(void)
{
    if (depth == 0) return fail(nullptr, INVALID_USAGE, "ncclGroupEnd without ncclGroupStart");
    return --depth ? (int)NCCL_OK : end_batch("ncclGroupEnd");
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

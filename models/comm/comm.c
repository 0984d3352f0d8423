/* comm.c: opening, splitting and closing, and what neighbours send each other. */
#include <dlfcn.h>
#include "backends/loaded_module.h"
#include "comm/comm.h"

mt_comm *mti_comm_new(const mti_comm_kind *kind, const mti_comm_end *end)
{
    mt_comm *c = mti_calloc(1, sizeof *c);
    size_t ranks = (size_t)end->ranks;
    if (c) *c = (mt_comm){.kind = kind, .end = *end};
    if (c && (c->out = mti_calloc(ranks, sizeof *c->out)) &&
        (c->in = mti_calloc(ranks, sizeof *c->in)))
        return c;
    if (c) mti_free(c->out);
    mti_free(c);
    return NULL;
}

/* mti_comm_new, which closes the end on failure. */
static mt_comm *take_over(const mti_comm_kind *kind, const mti_comm_end *end)
{
    mt_comm *c = mti_comm_new(kind, end);
    if (!c) kind->close(end, true);
    return c;
}

/* The module's table; NULL on failure. It is never unloaded. */
static const mti_comm_kind *load(const char *kind)
{
    char path[MTI_MODULE_PATH];
    if (!mti_module_find(kind, path))
        return mti_fail_null(
            MT_ERR_UNSUPPORTED,
            "comm_open: \"%.40s\" has no module libmemtape-%.40s.so beside the "
            "program or in %s; there is one for mpi if MPI was there when memtape was "
            "built: install it (Debian, Ubuntu: mpich libmpich-dev), build again",
            kind, kind, mti_module_folder());
    void *module = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!module) return mti_fail_null(MT_ERR_UNSUPPORTED, "comm_open: %s: %s", kind, dlerror());
    mti_comm_entry_fn *entry;
    *(void **)&entry = dlsym(module, MTI_COMM_ENTRY);
    const mti_comm_kind *table = entry ? entry(sizeof *table) : NULL;
    return table ? table
                 : mti_fail_null(MT_ERR_UNSUPPORTED,
                                 "comm_open: %s was not built for this version of memtape", path);
}

mt_comm *mt_comm_open(const char *kind)
{
    char error[MTI_COMM_ERROR] = "";
    mti_comm_end end = {0};
    if (!kind) return mti_fail_null(MT_ERR_ARGUMENT, "comm_open: the kind is NULL");
    const mti_comm_kind *table = load(kind);
    if (!table) return NULL;
    if (!table->open(&end, error))
        return mti_fail_null(MT_ERR_UNSUPPORTED, "comm_open: %s: %s", kind, error);
    return take_over(table, &end);
}

mt_comm *mt_comm_split(mt_comm *comm, int64_t color, int64_t key)
{
    char error[MTI_COMM_ERROR] = "";
    mti_comm_end part = {0};
    if (!mti_given(comm, "comm_split", "the comm")) return NULL;
    if (!comm->kind->split(&comm->end, color, key, &part, error))
        return mti_fail_null(MT_ERR_UNSUPPORTED, "comm_split: %s", error);
    return take_over(comm->kind, &part);
}

mt_group mt_comm_group(mt_comm *comm)
{
    return comm ? (mt_group){comm->end.ranks, comm->end.rank, comm} : (mt_group){.ranks = 1};
}

bool mti_comm_is(const mt_group *group)
{
    const mti_comm_end *end = &group->comm->end;
    return end->ranks == group->ranks && end->rank == group->rank;
}

uint64_t mt_comm_sent(const mt_comm *comm) { return comm ? comm->sent : 0; }
double mt_comm_seconds(const mt_comm *comm) { return comm ? comm->seconds : 0; }
double mt_comm_hidden(const mt_comm *comm) { return comm ? comm->hidden : 0; }

/* ---- between neighbours ---- */

static bool settle(mt_comm *comm, mti_way way)
{
    char error[MTI_COMM_ERROR] = "";
    mti_posted *p = &comm->posted[way];
    if (!p->owner) return true;
    double began = mti_now();
    bool ok = p->moving == MTI_STAYS       ? true
              : p->moving == MTI_BY_DEVICE ? mti_comm_settle_link(comm, way)
                                           : comm->kind->settle(&comm->end, way, error);
    bool unchanged = p->let_go(p->owner);
    *p = (mti_posted){0};
    return mti_comm_count_time(comm, began, ok, error) && unchanged;
}

bool mti_comm_post(mt_comm *comm, mti_way way, const mti_span *what, mti_posted posted)
{
    char error[MTI_COMM_ERROR] = "";
    if (!settle(comm, way)) return false;
    double began = mti_now();
    bool ok = posted.moving == MTI_STAYS       ? true
              : posted.moving == MTI_BY_DEVICE ? mti_comm_send_link(comm, way, what)
                                               : comm->kind->post(&comm->end, way, what, error);
    if (!mti_comm_count_time(comm, began, ok, error)) return false;
    if (posted.moving != MTI_STAYS) comm->sent += what->n_bytes;
    comm->posted[way] = posted;
    return true;
}

bool mti_comm_fetch(mt_comm *comm, mti_way way, const mti_span *where, mti_moving moving)
{
    char error[MTI_COMM_ERROR] = "";
    double began = mti_now();
    bool ok = moving == MTI_STAYS       ? true
              : moving == MTI_BY_DEVICE ? mti_comm_receive_link(comm, way, where)
                                        : comm->kind->fetch(&comm->end, way, where, error);
    if (!mti_comm_count_time(comm, began, ok, error)) return false;
    return settle(comm, way);
}

mt_status mt_comm_settle(mt_comm *comm)
{
    bool ok = true;
    for (int way = 0; comm && way < MTI_WAYS; way++) ok = settle(comm, (mti_way)way) && ok;
    return ok ? MT_OK : mt_last_status();
}

/* ---- closing ---- */

bool mti_comm_reports(const mt_comm *comm)
{
    return !comm->kind->reports || comm->kind->reports(&comm->end);
}

static void close_end(mt_comm *comm, bool failed)
{
    char error[MTI_COMM_ERROR];
    if (!comm) return;
    for (int way = 0; way < MTI_WAYS; way++)
        if (!failed && comm->posted[way].moving == MTI_BY_HOST)
            comm->kind->settle(&comm->end, (mti_way)way, error);
        else if (!failed && comm->posted[way].moving == MTI_BY_DEVICE)
            mti_comm_settle_link(comm, (mti_way)way);
    mti_comm_drop_device(comm, failed);
    /* A failed rank of a kind that cannot interrupt may wait there for ever. */
    if (!failed || comm->kind->interrupt) mti_behind_close(comm->behind);
    comm->kind->close(&comm->end, failed);
    for (int way = 0; way < MTI_WAYS; way++)
        if (comm->posted[way].owner) comm->posted[way].let_go(comm->posted[way].owner);
    mti_free(comm->out);
    mti_free(comm->in);
    mti_free(comm);
}

void mt_comm_free(mt_comm *comm) { close_end(comm, false); }
void mt_comm_abort(mt_comm *comm) { close_end(comm, true); }

/* ---- without others ---- */

static void close_nothing(const mti_comm_end *end, bool failed) { (void)end, (void)failed; }

mt_comm *mti_comm_unconnected(int64_t ranks, int64_t rank)
{
    static const mti_comm_kind kind = {sizeof kind, "unconnected", .close = close_nothing};
    return mti_comm_new(&kind, &(mti_comm_end){.ranks = ranks, .rank = rank});
}

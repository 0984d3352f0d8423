/* device_links.c: links between the device memories of a comm's ranks. They are made when first
 * needed: one of all ranks at their first collective; at their first message those of two, between
 * all neighbours, a direction each (see backends/cuda/device/link.cu). Their names go through the
 * memory of the host: all ranks must come to their first collective, and all to a first message. */
#include "comm/comm.h"

bool mti_comm_use_device(mt_comm *comm, const mti_comm_device *device)
{
    if (comm->device.ctx == device->ctx) return true;
    for (int way = 0; way < MTI_WAYS; way++)
        if (comm->posted[way].moving == MTI_BY_DEVICE)
            return mti_fail_bool(MT_ERR_STATE, "a message from another device is still on the way; "
                                               "call mt_comm_settle before");
    mti_comm_drop_device(comm, false);
    device->retain(device->owner);
    comm->device = *device;
    return true;
}

static void close_link(mt_comm *comm, mti_link **link, bool failed)
{
    if (*link) comm->device.kind->close(*link, failed);
    *link = NULL;
}

/* Opening and closing a link wait for the other rank. Ranks of even numbers begin with the link
 * that they send by, the others with the one that they receive by; so no ranks wait for each other
 * in a circle, however many there are. */
static bool to_first(const mt_comm *comm) { return comm->end.rank % 2 == 0; }

static void close_way(mt_comm *comm, mti_way way, bool failed)
{
    if (to_first(comm)) close_link(comm, &comm->to[way], failed);
    close_link(comm, &comm->from[way], failed);
    close_link(comm, &comm->to[way], failed);
}

void mti_comm_drop_device(mt_comm *comm, bool failed)
{
    if (!comm->device.kind) return;
    for (int way = 0; way < MTI_WAYS; way++) close_way(comm, (mti_way)way, failed);
    close_link(comm, &comm->all, failed);
    comm->ring_tried = false;
    comm->device.release(comm->device.owner);
    comm->device = (mti_comm_device){0};
}

/* ---- names ---- */

/* What each rank tells the others before they join: a failure of one is one of all. */
typedef struct mti_comm_names {
    bool found;
    unsigned char id[MTI_WAYS][MTI_LINK_ID]; /* as many as the rank makes */
} names;

static bool agree(const mt_comm *comm, const names *all)
{
    for (int64_t r = 0; r < comm->end.ranks; r++)
        if (!all[r].found)
            return mti_fail_bool(MT_ERR_UNSUPPORTED,
                                 "rank %lld of %lld cannot send from its device's memory",
                                 (long long)r, (long long)comm->end.ranks);
    return true;
}

/* Makes n names and gets those of all ranks, [ranks]; the caller's. NULL on failure. */
static names *share_names(mt_comm *comm, int n)
{
    const mti_comm_device *d = &comm->device;
    uint64_t sent = comm->sent;
    names own = {0}, *all = mti_calloc((size_t)comm->end.ranks, sizeof *all);
    if (!all) return NULL;
    own.found = d->kind->find(d->ctx, NULL);
    for (int i = 0; i < n; i++) own.found = own.found && d->kind->find(d->ctx, own.id[i]);
    bool ok = mti_comm_share(comm, &own, sizeof own, all) && own.found && agree(comm, all);
    comm->sent = sent; /* counts what tensors sent */
    if (ok) return all;
    mti_free(all);
    return NULL;
}

/* ---- of all ranks ---- */

mti_link *mti_comm_link(mt_comm *comm)
{
    const mti_comm_device *d = &comm->device;
    if (comm->all) return comm->all;
    names *all = share_names(comm, comm->end.rank == 0);
    if (all)
        comm->all = d->kind->open(d->ctx, all[0].id[0], comm->end.ranks, comm->end.rank, false);
    mti_free(all);
    return comm->all;
}

/* ---- between neighbours ---- */

/* The rank that sends, which is 0 of the two, has made the name. */
static bool open_between(mt_comm *comm, const names *all, mti_way way, bool to)
{
    const mti_comm_device *d = &comm->device;
    int64_t sender = to ? comm->end.rank : mti_neighbour(&comm->end, way, false);
    mti_link *link = d->kind->open(d->ctx, all[sender].id[way], 2, !to, true);
    *(to ? &comm->to[way] : &comm->from[way]) = link;
    return link != NULL;
}

/* Opens all links at the first message, while all ranks are there: opening waits for the other
 * rank, and later two may each have a message for the other before either receives. */
static bool open_ring(mt_comm *comm)
{
    bool ok = comm->to[MTI_WAYS - 1] && comm->from[MTI_WAYS - 1];
    if (ok) return true;
    if (comm->ring_tried)
        return mti_fail_bool(MT_ERR_STATE,
                             "rank %lld of %lld: the links for messages could not be opened",
                             (long long)comm->end.rank, (long long)comm->end.ranks);
    names *all = share_names(comm, MTI_WAYS);
    comm->ring_tried = true;
    ok = all != NULL;
    for (int way = 0; ok && way < MTI_WAYS; way++)
        ok = open_between(comm, all, (mti_way)way, to_first(comm)) &&
             open_between(comm, all, (mti_way)way, !to_first(comm));
    mti_free(all);
    return ok;
}

bool mti_comm_send_link(mt_comm *comm, mti_way way, const mti_span *what)
{
    return open_ring(comm) && comm->device.kind->send(comm->to[way], what->at, what->n_bytes, 1);
}

bool mti_comm_receive_link(mt_comm *comm, mti_way way, const mti_span *where)
{
    return open_ring(comm) &&
           comm->device.kind->receive(comm->from[way], where->at, where->n_bytes, 0);
}

bool mti_comm_settle_link(mt_comm *comm, mti_way way)
{
    return comm->device.kind->settle(comm->to[way]);
}

/* comm.h: ways for ranks to reach each other. Every collective is made of one function, exchange;
 * what is computed on the way is the op's (collectives/collective.c), so that sums have the same
 * bits whatever carries them. */
#ifndef MTI_COMM_H
#define MTI_COMM_H

#include "backends/link.h"
#include "base/base.h"
#include "memtape/models/group.h"

typedef struct mti_span {
    void *at;
    size_t n_bytes;
} mti_span;

typedef struct mti_comm_end {
    void *state;
    int64_t ranks, rank;
} mti_comm_end;

#define MTI_COMM_MOST 65536 /* ranks */

/* Ways around the ring of a group: to the next rank, to the one before. Each keeps its order. */
typedef enum mti_way { MTI_ONWARD, MTI_RETURNING, MTI_WAYS } mti_way;
static inline int64_t mti_neighbour(const mti_comm_end *end, mti_way way, bool ahead)
{
    int64_t by = (way == MTI_ONWARD) == ahead ? 1 : end->ranks - 1;
    return (end->rank + by) % end->ranks;
}

/* One way for ranks to reach each other. A module has such a table and links nothing of the
 * library. A function that fails returns false and writes the reason to `error`, of MTI_COMM_ERROR
 * bytes. */
#define MTI_COMM_ERROR 256
typedef struct mti_comm_kind {
    size_t n_kind; /* sizeof of this table: both sides must agree */
    const char *kind;
    bool (*open)(mti_comm_end *end, char *error);
    /* Sends out[r] to each other rank r, and receives in[r] from it. */
    bool (*exchange)(const mti_comm_end *end, const mti_span *out, const mti_span *in, char *error);
    bool (*split)(const mti_comm_end *end, int64_t color, int64_t key, mti_comm_end *part,
                  char *error);
    void (*close)(const mti_comm_end *end, bool failed);
    /* Begins to send to the neighbour on that way; `what` must not change until settle. At most one
     * send is under way in each direction. */
    bool (*post)(const mti_comm_end *end, mti_way way, const mti_span *what, char *error);
    /* Receives what the neighbour behind has posted, waiting for it. */
    bool (*fetch)(const mti_comm_end *end, mti_way way, const mti_span *where, char *error);
    /* Waits until what this rank has posted has arrived. */
    bool (*settle)(const mti_comm_end *end, mti_way way, char *error);
    /* As mti_comm_reports; NULL: it does. */
    bool (*reports)(const mti_comm_end *end);
    /* Another end to the same ranks, for another thread of each; NULL: there is none. */
    bool (*aside)(const mti_comm_end *end, mti_comm_end *part, char *error);
    /* Makes an exchange that waits for other ranks fail, in this rank or another. NULL: no exchange
     * waits without end. */
    void (*interrupt)(const mti_comm_end *end);
} mti_comm_kind;

/* A device whose memory the host cannot read: its tensors go from device to device
 * (device_links.c). The owner keeps it open. */
typedef struct mti_comm_device {
    const mti_link_kind *kind;
    mti_ctx *ctx;
    void *owner;
    void (*retain)(void *owner);
    void (*release)(void *owner);
} mti_comm_device;

/* How data moves: not at all, on a device without data; between memory that the host reads; from
 * device to device. */
typedef enum mti_moving { MTI_STAYS, MTI_BY_HOST, MTI_BY_DEVICE } mti_moving;

/* The owner of memory that is being sent. let_go is called once it has arrived, or cannot arrive
 * any more; it returns false if the memory was changed meanwhile. */
typedef struct mti_posted {
    void *owner; /* NULL: nothing is on the way */
    bool (*let_go)(void *owner);
    mti_moving moving; /* the memory is held as long in each case */
} mti_posted;

/* Exchanges while the rank computes (async.c). */
typedef struct mti_behind mti_behind;
typedef struct mti_job mti_job;

struct mt_comm {
    const mti_comm_kind *kind;
    mti_comm_end end;
    uint64_t sent;
    double seconds, hidden;
    mti_behind *behind; /* NULL: none */
    mti_span *out, *in; /* [ranks] each, for the call that runs */
    mti_posted posted[MTI_WAYS];
    mti_comm_device device;   /* kind NULL: nothing was sent from a device's memory */
    mti_link *all;            /* of all ranks; NULL until the first collective */
    mti_link *to[MTI_WAYS];   /* to the neighbour ahead; NULL until the first message */
    mti_link *from[MTI_WAYS]; /* from the neighbour behind; likewise */
    bool ring_tried;          /* all of those have been opened, or one could not be */
};

/* A module exports this function under MTI_COMM_ENTRY: it returns the table if its size is n_kind.
 */
typedef const mti_comm_kind *mti_comm_entry_fn(size_t n_kind);
#define MTI_COMM_ENTRY "mti_comm_entry"

/* Takes the end over unless it fails. */
mt_comm *mti_comm_new(const mti_comm_kind *kind, const mti_comm_end *end);
/* Makes a comm that reaches nobody, for a device without data. It holds what is sent as long as a
 * comm that moves it would. */
mt_comm *mti_comm_unconnected(int64_t ranks, int64_t rank);

/* Every rank sends comm->out[r] to each rank r, itself included, and receives comm->in[r] from it.
 */
bool mti_comm_exchange(mt_comm *comm);
/* Adds the time since `began` to the comm's and returns ok. A failure is recorded with the text
 * `error`; "": it has been recorded. */
bool mti_comm_count_time(mt_comm *comm, double began, bool ok, const char *error);

/* Makes the thread that mti_comm_begin needs; without this call the first mti_comm_begin makes it.
 * It waits for all ranks, so they call it once they have told each other that none has failed. */
bool mti_comm_go_behind(mt_comm *comm);
/* Begins to send comm->out[r] to each other rank r and to receive comm->in[r] from it. What they
 * point to must stay until mti_comm_finish, which every begun exchange needs. Exchanges are made in
 * the order in which they begin, which is the same on all ranks. NULL on failure. */
mti_job *mti_comm_begin(mt_comm *comm);
/* Begins run(user, behind) in another thread, where `behind` is a comm of the same ranks. run
 * allocates no tensors, and fails as functions of the library do. Order and mti_comm_finish as
 * above. */
typedef bool mti_behind_fn(void *user, mt_comm *behind);
mti_job *mti_comm_begin_run(mt_comm *comm, mti_behind_fn *run, void *user);
bool mti_comm_finish(mt_comm *comm, mti_job *job);
void mti_behind_close(mti_behind *behind);

/* Sends what.at[n_bytes] to the neighbour without waiting for it; it waits for what was posted that
 * way before. Takes posted over unless it fails. */
bool mti_comm_post(mt_comm *comm, mti_way way, const mti_span *what, mti_posted posted);
/* Receives from the neighbour, if data moves, and settles what this rank has posted the same way.
 * It does not settle the other way: in an interleaved schedule two stages would wait for each other
 * forever (tests/models/comm/stages.c runs the schedules). */
bool mti_comm_fetch(mt_comm *comm, mti_way way, const mti_span *where, mti_moving moving);

/* ---- device memory (device_links.c) ----
 * What is sent MTI_BY_DEVICE uses the device that was last given here. All ranks give theirs before
 * the same call. */
bool mti_comm_use_device(mt_comm *comm, const mti_comm_device *device);
/* The link of all ranks; they all ask for it at the same time. NULL on failure. */
mti_link *mti_comm_link(mt_comm *comm);
/* What mti_comm_post, mti_comm_fetch and settling do. */
bool mti_comm_send_link(mt_comm *comm, mti_way way, const mti_span *what);
bool mti_comm_receive_link(mt_comm *comm, mti_way way, const mti_span *where);
bool mti_comm_settle_link(mt_comm *comm, mti_way way);
void mti_comm_drop_device(mt_comm *comm, bool failed);

/* Fills all[ranks] with the n_bytes that each rank gives. Every rank calls it. */
bool mti_comm_share(mt_comm *comm, const void *own, size_t n_bytes, void *all);
/* On rank 0 *all becomes the ranks' texts one after the other, each with its 0, to be freed; on the
 * others NULL. */
bool mti_comm_gather_texts(mt_comm *comm, const char *own, char **all);

/* Whether this rank, which has failed, is the one to report it: among ranks that fail at about the
 * same time the first one reports. */
bool mti_comm_reports(const mt_comm *comm);

/* Whether the group is its comm's. */
bool mti_comm_is(const mt_group *group);

#endif

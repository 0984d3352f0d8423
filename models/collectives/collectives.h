/* collectives.h: what the ranks of a parallel model exchange: ops between them, as rows of their
 * own table, and calls beside the tape. */
#ifndef MTI_COLLECTIVES_H
#define MTI_COLLECTIVES_H

#include "comm/comm.h"
#include "memtape/models/collectives.h"
#include "ops/ops.h"

/* The rows of collectives.def, and the code of each. */
#define OP(name, ...)                                                                              \
    extern const mti_op mti_op_##name;                                                             \
    extern const mti_op_code mti_code_##name;
#include "collectives/collectives.def"
#undef OP

/* Row i of all tables, as mt_all_ops_get counts. */
const mti_op *mti_op_row(int i);

/* mt_all_gather along `dim` of keys or values [b,s,k,h], or of tokens [b,s], counted as sent to
 * ranks with other positions. */
mt_tensor *mti_gather_positions(mt_tensor *x, int dim, const mt_group *group);
/* Which elements of n a rank's shard has: each rank `length` of them, but the last ones fewer, or
 * none. */
typedef struct mti_shard_range {
    int64_t from, n, length;
} mti_shard_range;
static inline mti_shard_range mti_shard_of(int64_t n, const mt_group *group)
{
    const int64_t length = (n + group->ranks - 1) / group->ranks, begin = group->rank * length,
                  from = begin < n ? begin : n;
    return (mti_shard_range){from, n - from < length ? n - from : length, length};
}

/* What may hang on a leaf, as its guest: takes the gradient of what was gathered of the leaf,
 * c->dout[0], in the leaf's stead. */
typedef struct mti_collector {
    bool (*collect)(struct mti_collector *self, const mti_leaf *leaf, mti_call *c);
} mti_collector;
/* mt_all_gather along dimension 0 of shards that are cast to dtype before. Gradients are cast back
 * after they are summed over the ranks or, with f32_sum, before. leaf: of which x is a view; where
 * somebody collects gradients for it, the sum is theirs to make. NULL: nobody does. */
mt_tensor *mti_gather_shard(mt_tensor *x, mt_dtype dtype, bool f32_sum, mti_leaf *leaf,
                            const mt_group *group);

typedef struct mti_entropy_options {
    bool keep_logits, sum; /* as of mt_cross_entropy_options */
    bool apart;            /* backward makes two more [..,v] */
} mti_entropy_options;
/* mt_cross_entropy_with where each rank of the group has columns of the logits, [..,v]: rank r
 * those from r v on. There are `classes` in all; columns beyond are padding, and have no part in
 * it. Every rank gets the loss, and the gradient of its columns. The tape keeps its columns as
 * there. Ranks send each other two numbers a row. */
mt_tensor *mti_cross_entropy_shard(mt_tensor *logits, mt_tensor *target, int64_t ignore,
                                   int64_t classes, const mt_group *group,
                                   const mti_entropy_options *options);

/* ---- within a call (exchange_host.c); without a comm nothing moves, but scratch and copies are
 * the same ---- */

/* Counts what this rank sends, where: the numbers of the device's counters. */
typedef enum mti_route {
    MTI_TO_LAYERS,
    MTI_TO_SHARDS,
    MTI_TO_CONTEXT,
    MTI_TO_STAGES,
    MTI_TO_REPLICAS,
    MTI_TO_EXPERTS,
    MTI_ROUTES
} mti_route;
void mti_count_sent(mti_call *c, mti_route route, uint64_t n_bytes);
/* Whether a group can be one, by the caller's name; whether its ranks can reach each other. */
bool mti_check_group(const char *name, const mt_group *group);
bool mti_check_ranks(const mti_call *c, const mt_group *group);
/* Whether ranks reach each other from this device's memory, which the host cannot read
 * (exchange_device.c). */
bool mti_has_links(const mti_call *c);
/* y, contiguous: every rank's x side by side along dim. */
bool mti_gather_ranks(mti_call *c, const mt_group *group, int dim, const mti_view *x,
                      const mti_view *y);
/* y, contiguous: this rank's shard, along dim, of the sum of every rank's x. */
bool mti_scatter_sum(mti_call *c, const mt_group *group, int dim, const mti_view *x,
                     const mti_view *y);
/* y, contiguous: becomes the sum of every rank's y. */
bool mti_sum_ranks(mti_call *c, const mt_group *group, const mti_view *y);
/* Sends x to the neighbour on the way; its memory is held until it has arrived. */
bool mti_send_on(mti_call *c, const mt_group *group, mti_way way, mt_tensor *x);
/* What is on the way; NULL: nothing. Borrowed. */
const mt_tensor *mti_on_the_way(const mt_comm *comm, mti_way way);
/* y <- what the neighbour behind has sent; its memory lies side by side. */
bool mti_receive(mti_call *c, const mt_group *group, mti_way way, const mti_view *y);
/* y is contiguous and cut into a shard for each rank, the last of which may be shorter or empty.
 * The first sums this rank's shard over the ranks; the second sets each shard to what its rank has.
 */
bool mti_scatter_sum_inside(mti_call *c, const mt_group *group, const mti_view *y);
/* The same without links, in scratch that the caller has, of mti_sums_scratch bytes; in any thread.
 */
bool mti_scatter_sum_with(mti_call *c, const mt_group *group, const mti_view *y, void *scratch);
size_t mti_sums_scratch(const mti_call *c, int64_t ranks);
bool mti_gather_inside(mti_call *c, const mt_group *group, const mti_view *y);

/* ---- between ranks beside the tape, on a contiguous tensor (replicas.c); its version stays ----
 */

typedef enum mti_collective { MTI_ALL_REDUCE, MTI_REDUCE_SCATTER, MTI_ALL_GATHER } mti_collective;
/* Nothing where the group has one rank. */
bool mti_collective_run(mt_tensor *t, mti_collective how, const mt_group *group);
/* Several of these sums, which go on while this rank computes (mti_comm_begin_run), one after the
 * other. Of a device without links. */
typedef struct mti_collective_queue mti_collective_queue;
mti_collective_queue *mti_collective_queue_new(mt_device *device, const mt_group *group);
/* After mti_collective_end. */
void mti_collective_queue_free(mti_collective_queue *queue);
/* Begins to sum or scatter t, which is held, and in which nothing is read or written, until the
 * end. Scratch for all of them stays from the first one to the end. */
bool mti_collective_begin(mti_collective_queue *queue, mt_tensor *t, mti_collective how);
/* Waits for all that have begun; also after a failure. */
bool mti_collective_end(mti_collective_queue *queue);
/* *value: its sum over the group; as it is on a device without data. */
bool mti_sum_value(mt_device *device, const mt_group *group, double *value);

/* ---- the shards of several parameters, gathered as one (shard_gather.c) ---- */

typedef struct mti_shard {
    mt_tensor *shard; /* contiguous */
    mt_dtype dtype;   /* to which it is cast before */
    bool is_staged;   /* in memory of its own before, cast or not */
} mti_shard;
typedef struct mti_gathering mti_gathering;
/* Begins to gather n shards of each rank, which stay until the end. behind: while this rank
 * computes (mti_comm_begin). NULL on failure. */
mti_gathering *mti_shards_begin(mt_device *device, int n, const mti_shard *shards,
                                const mt_group *group, bool behind);
/* Frees g. flats[n]: all ranks' shards, one after the other, of category MT_PARAMETER; the
 * caller's. On failure all are NULL. *buffer, the caller's too: what they were copied from; NULL:
 * there was none. buffer NULL: it is freed. */
bool mti_shards_end(mti_gathering *g, mt_tensor **flats, mt_tensor **buffer);
/* Waits, and frees g; NULL is allowed. */
void mti_shards_drop(mti_gathering *g);
/* How gradients of all ranks' shards are summed as one. */
typedef struct mti_summing {
    mti_call *call;
    mt_group group, replicas; /* the sums of ranks with the same shard are summed, too; one: none */
    mt_dtype dtype, to;       /* in which they are summed; to which the sum is cast */
    mt_tensor *buffer;        /* what they are copied to, and ... */
    mt_tensor *sum;           /* ... what replicas sum: the caller's, also on failure */
} mti_summing;
/* The n gradients are let go once they are copied, and each becomes this rank's shard of the sum, a
 * view of one tensor. */
bool mti_shards_sum(mti_summing *s, int n, mt_tensor **grads);

#endif

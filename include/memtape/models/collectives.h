/* collectives.h: ops between the ranks of a group, as one of them sees it. They keep nothing, but
 * mt_all_to_all its counts. All ranks call the others with equal shapes. Among more than one rank
 * they need the group's comm and memory that the host can read (cpu), or a device without data. Any
 * floating dtype. A sum is formed in the order of the ranks, of 16-bit numbers in f32, and rounded
 * once. */
#ifndef MEMTAPE_COLLECTIVES_H
#define MEMTAPE_COLLECTIVES_H

#include "memtape/models/group.h"
#include "memtape/op_table.h"
#include "memtape/tensor.h"

MT_C_BEGIN

/* x [..,m,..] of every rank -> [.., ranks m, ..] along dim; dx is this rank's shard of the sum. */
MT_API mt_tensor *mt_all_gather(mt_tensor *x, int dim, const mt_group *group);
/* The sum of every rank's x [.., ranks m, ..], this rank's shard of it -> [..,m,..] */
MT_API mt_tensor *mt_reduce_scatter(mt_tensor *x, int dim, const mt_group *group);
/* The sum of every rank's x; dx is dy. */
MT_API mt_tensor *mt_all_reduce(mt_tensor *x, const mt_group *group);
/* x itself, a view; dx is the sum of every rank's dy. */
MT_API mt_tensor *mt_replicate(mt_tensor *x, const mt_group *group);
/* Sends x to the next rank of the group, the next stage of a pipeline; from the last to the first.
 * It does not wait for x to arrive: the comm holds it until the next mt_recv or mt_send, or
 * mt_comm_settle; x must not be changed in place before. (Gradients on their way back: until the
 * next one is received or sent.) The result has x's shape and a storage of one element: call
 * backward on it, with any gradient of that shape. x's gradient comes from the next stage. */
MT_API mt_tensor *mt_send(mt_tensor *x, const mt_group *group);
/* What the previous stage sent, in the order in which it did: a new tensor of x's shape. x may be
 * an expanded scalar. */
MT_API mt_tensor *mt_recv(mt_tensor *x, const mt_group *group);

/* Which rows go to which rank's experts. Each of the group's ranks has as many experts, in the
 * ranks' order. */
typedef struct mt_routes {
    mt_tensor *sent;     /* i32 [experts]: how many of this rank's rows go to each; n_sent in all */
    mt_tensor *received; /* i32 [ranks,experts/ranks]: rows that come from each rank to each of this
                          * rank's experts; n_received in all */
    mt_tensor *counts;   /* i32 [experts/ranks]: the same from all ranks */
    int64_t n_sent, n_received;
} mt_routes;
/* Tells all ranks how many of its `rows` rows each sends; counts: i32 [experts]. A device without
 * data receives as many as it sends: routing is balanced. */
MT_API mt_status mt_routes_make(mt_tensor *counts, int64_t rows, const mt_group *group,
                                mt_routes *out);
MT_API void mt_routes_release(mt_routes *routes);
/* Rows x [n_sent,d], sorted by expert, to the ranks that have the experts -> [n_received,d], sorted
 * by this rank's experts, and by the rank that sends them. back: the other way. Keeps the counts.
 */
MT_API mt_tensor *mt_all_to_all(mt_tensor *x, const mt_routes *routes, bool back,
                                const mt_group *group);

/* Bytes that a device's ops sent to other ranks since it was opened: as rings do, (n-1)/n of what
 * all n ranks have together, and twice that for a sum that all of them get. */
typedef struct mt_sent {
    uint64_t layers;   /* to ranks that share layers: sums, and shards of sequences */
    uint64_t shards;   /* to ranks with other data: shards of parameters, along dimension 0 */
    uint64_t context;  /* to ranks with other positions: keys and values, and their gradients */
    uint64_t stages;   /* to other stages of a pipeline */
    uint64_t replicas; /* once a step, to ranks with the same parameters: gradients to add up, and
                        * what each has stepped; exactly what this rank sends */
    uint64_t experts;  /* to ranks with a layer's other experts: rows, and their counts; exactly */
} mt_sent;
MT_API mt_sent mt_sent_get(const mt_device *device);

/* All ops: the rows of mt_op_get, then those of the ops above. As mt_op_count, mt_op_get and
 * mt_op_find. */
MT_API int mt_all_ops_count(void);
MT_API mt_op_info mt_all_ops_get(int i);
MT_API int mt_all_ops_find(const char *name);

MT_C_END
#endif

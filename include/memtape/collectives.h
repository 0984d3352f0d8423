/* collectives.h: ops between the ranks of a group, as one of them sees it. They keep nothing. All
 * ranks call them with equal shapes. Among more than one rank they need the group's comm and memory
 * that the host can read (cpu), or a device without data. Any floating dtype. A sum is formed in
 * the order of the ranks, of 16-bit numbers in f32, and rounded once. */
#ifndef MEMTAPE_COLLECTIVES_H
#define MEMTAPE_COLLECTIVES_H

#include "memtape/group.h"
#include "memtape/tensor.h"

MT_C_BEGIN

/* x [..,m,..] of every rank -> [.., ranks m, ..] along dim; dx is this rank's part of the sum. */
MT_API mt_tensor *mt_all_gather(mt_tensor *x, int dim, const mt_group *group);
/* The sum of every rank's x [.., ranks m, ..], this rank's part of it -> [..,m,..] */
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

MT_C_END
#endif

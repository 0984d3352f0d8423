/* ops.h: the op table and what op files share. */
#ifndef MTI_OPS_H
#define MTI_OPS_H

#include "autograd/autograd.h"
#include "comm/comm.h"
#include "memtape/ops.h"

/* Rows of ops.def, in its order. */
enum mti_op_id {
#define OP(name, ...) MTI_OP_##name,
#include "ops/ops.def"
#undef OP
    MTI_OP_COUNT
};
extern const mti_op mti_ops[MTI_OP_COUNT];

#define OP(name, ...) extern const mti_op_code mti_code_##name;
#include "ops/ops.def"
#undef OP

/* Run the op with one output; NULL on failure. */
mt_tensor *mti_op1(enum mti_op_id id, const mti_params *params, mt_tensor *x);
mt_tensor *mti_op2(enum mti_op_id id, const mti_params *params, mt_tensor *a, mt_tensor *b);
mt_tensor *mti_op3(enum mti_op_id id, const mti_params *params, mt_tensor *a, mt_tensor *b,
                   mt_tensor *c);

/* Shape rules that several ops share. */
bool mti_shape_same(mti_call *c); /* out 0 has the shape and dtype of in0, which must be floating */
/* out 0: all inputs' shapes broadcast together, in that dtype. */
bool mti_shape_broadcast(mti_call *c, mt_dtype dtype);
/* x's shape without the dimensions of params.reduce (extent 1 if kept); returns the rank. */
int mti_reduced_shape(const mti_call *c, int64_t shape[MT_MAX_RANK]);

/* Checks dims, puts them into params.reduce and runs the op. */
mt_tensor *mti_reduce(enum mti_op_id id, mt_tensor *x, int n_dims, const int *dims, bool keep);

/* Where to compute the gradient of input i: din i itself, or, if the input was broadcast, a
 * temporary of y's shape, *full, which mti_close_din sums to din i. */
const mti_view *mti_open_din(mti_call *c, int i, mt_tensor **full);
bool mti_close_din(mti_call *c, int i, mt_tensor *full);

/* Scatters: adds the elements of dout 0 to din 0 along dim, at the indices saved in this slot. */
bool mti_scatter_to_din(mti_call *c, int dim, unsigned slot);
/* mt_log_softmax whose gradient is never written over the one that comes in, as in PyTorch. */
mt_tensor *mti_log_softmax_apart(mt_tensor *x);

/* The gradient of input i [b,a,s,d] with the strides of [b,s,a,d]: splitting heads in forward was a
 * view, and so is merging them here. */
const mti_view *mti_din_heads_inside(mti_call *c, int i);

/* ---- views of the same memory, for kernels (layout.c) ---- */

mti_view mti_flat(const mti_view *v); /* [..] row-major as [n] */
mti_view mti_rows(const mti_view *v); /* [..,n] row-major as [m,n] */
/* [start, start + length) of one dimension */
mti_view mti_range(const mti_view *v, int dim, int64_t start, int64_t length);
mti_view mti_permuted(const mti_view *v, const int *order); /* dimension d is v's order[d] */
mti_view mti_transposed(const mti_view *v);                 /* the last two dimensions swapped */
mti_view mti_last_two(const mti_view *v);                   /* [1,..,m,n] as [m,n] */
/* v's dimensions broadcast to `shape` (stride 0 where extent 1 meets more). */
mti_view mti_broadcast_view(const mti_view *v, int rank, const int64_t *shape);
/* [b,a,s,d] with the strides of a row-major [b,s,a,d], so that merging heads is a view; no data. */
mti_view mti_heads_inside(const mti_view *v);

/* ---- between the ranks of params.collective (exchange.c); without a comm nothing moves, but
 * scratch and copies are the same ---- */

/* Whether a group can be one, by the caller's name; whether its ranks can reach each other. */
bool mti_check_group(const char *name, const mt_group *group);
bool mti_check_ranks(const mti_call *c, const mt_group *group);
/* Whether ranks reach each other from this device's memory, which the host cannot read
 * (exchange_device.c). */
bool mti_has_links(const mti_call *c);
/* y, contiguous: every rank's x side by side along dim. */
bool mti_gather_ranks(mti_call *c, int dim, const mti_view *x, const mti_view *y);
/* y, contiguous: this rank's part, along dim, of the sum of every rank's x. */
bool mti_scatter_sum(mti_call *c, int dim, const mti_view *x, const mti_view *y);
/* y, contiguous: becomes the sum of every rank's y. */
bool mti_sum_ranks(mti_call *c, const mti_view *y);
/* Sends x to the neighbour on the way; its memory is held until it has arrived. */
bool mti_send_on(mti_call *c, mti_way way, mt_tensor *x);
/* What is on the way; NULL: nothing. Borrowed. */
const mt_tensor *mti_on_the_way(const mt_comm *comm, mti_way way);
/* y <- what the neighbour behind has sent; its memory lies side by side. */
bool mti_receive(mti_call *c, mti_way way, const mti_view *y);
/* Of y, contiguous, cut into a piece for each rank, the last of which may be shorter or empty: this
 * rank's piece becomes its sum; all pieces become what their ranks have there. */
bool mti_scatter_sum_inside(mti_call *c, const mti_view *y);
/* The same without links, in scratch that the caller has, of mti_sums_scratch bytes; in any thread.
 */
bool mti_scatter_sum_with(mti_call *c, const mti_view *y, void *scratch);
size_t mti_sums_scratch(const mti_call *c);
bool mti_gather_inside(mti_call *c, const mti_view *y);

/* ---- of a vocabulary that ranks share (vocabulary.c) ---- */

/* *own: [n] indices into the rows of params.embedding that this rank has; MTI_NO_ROW for others'.
 */
bool mti_own_rows(mti_call *c, const mti_view *index, int64_t rows, mti_view *own);
/* cross_entropy among the ranks of params.loss: x, logp [n,v], target [n]. */
bool mti_ranks_entropy(mti_call *c, const mti_view *x, const mti_view *target,
                       const mti_view *logp);
bool mti_ranks_entropy_backward(mti_call *c, const mti_view *logp, const mti_view *target,
                                const mti_view *dx);

/* ---- random numbers of a part of a tensor (dropout.c) ---- */

/* Numbers that the whole tensor takes, where this one is `part` of it. */
uint64_t mti_draws_of(const mti_draw_part *part, const mti_view *x);
/* Runs of elements that lie side by side in the whole: how many, each of some rows of dimension 0.
 */
int64_t mti_draw_runs(const mti_draw_part *part, const mti_view *x, int64_t *rows);
/* *offset: the counter of the i-th run's first element. Fails where that stands between two. */
bool mti_draw_offset(const mti_call *c, const mti_draw_part *part, const mti_view *x, int64_t i,
                     uint64_t *offset);

/* ---- between ranks beside the tape, on a contiguous tensor (replicas.c); its version stays ----
 */

typedef enum mti_replicas {
    MTI_REPLICAS_SUM,
    MTI_REPLICAS_SCATTER,
    MTI_REPLICAS_GATHER
} mti_replicas;
/* mt_all_gather along `dim` of keys or values [b,s,k,h], counted as sent to ranks with other
 * positions. */
mt_tensor *mti_gather_positions(mt_tensor *x, int dim, const mt_group *group);
/* mt_all_gather along dimension 0 of pieces that are cast to dtype before. Gradients are cast back
 * after they are summed over the ranks or, with f32_sum, before. */
mt_tensor *mti_gather_shard(mt_tensor *x, mt_dtype dtype, bool f32_sum, const mt_group *group);
/* Nothing where the group has one rank. */
bool mti_replicas_meet(mt_tensor *t, mti_replicas how, const mt_group *group);
/* Several of these sums, which go on while this rank computes (mti_comm_begin_run), one after the
 * other. Of a device without links. */
typedef struct mti_replicas_queue mti_replicas_queue;
mti_replicas_queue *mti_replicas_queue_new(mt_device *device, const mt_group *group);
/* After mti_replicas_end. */
void mti_replicas_queue_free(mti_replicas_queue *queue);
/* Begins to sum or scatter t, which is held, and in which nothing is read or written, until the
 * end. Scratch for all of them stays from the first one to the end. */
bool mti_replicas_begin(mti_replicas_queue *queue, mt_tensor *t, mti_replicas how);
/* Waits for all that have begun; also after a failure. */
bool mti_replicas_end(mti_replicas_queue *queue);
/* *value: its sum over the group; as it is on a device without data. */
bool mti_replicas_sum(mt_device *device, const mt_group *group, double *value);

/* ---- the pieces of several parameters, gathered as one (pieces.c) ---- */

typedef struct mti_piece {
    mt_tensor *piece; /* contiguous */
    mt_dtype dtype;   /* to which it is cast before */
} mti_piece;
typedef struct mti_gathering mti_gathering;
/* Begins to gather n pieces of each rank, which stay until the end. behind: while this rank
 * computes (mti_comm_begin). NULL on failure. */
mti_gathering *mti_pieces_begin(mt_device *device, int n, const mti_piece *pieces,
                                const mt_group *group, bool behind);
/* Frees g. flats[n]: all ranks' pieces, one after the other, of category MT_PARAMETER; the
 * caller's. On failure all are NULL. */
bool mti_pieces_end(mti_gathering *g, mt_tensor **flats);
/* Waits, and frees g; NULL is allowed. */
void mti_pieces_drop(mti_gathering *g);

/* Makes a negative dim count from the end; fails if there is no such dimension. */
bool mti_dim(const char *caller, int rank, int *dim);

#endif

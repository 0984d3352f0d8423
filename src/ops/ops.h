/* ops.h: the op table, seen from inside. */
#ifndef MTI_OPS_H
#define MTI_OPS_H

#include "autograd/autograd.h"
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
bool mti_shape_same(mti_call *c); /* out 0 like a floating in0 */
/* out 0 of that dtype: the larger extent of each dimension of the inputs, counted from the end */
bool mti_shape_broadcast(mti_call *c, mt_dtype dtype);
/* x without the dimensions of params.reduce (or with extent 1 there); returns the rank. */
int mti_reduced_shape(const mti_call *c, int64_t shape[MT_MAX_RANK]);

/* Run an op over dimensions: dims into params.reduce, checked. */
mt_tensor *mti_reduce(enum mti_op_id id, mt_tensor *x, int n_dims, const int *dims, bool keep);

/* A place for the gradient of input i before summing: the gradient itself where nothing was
 * repeated, else a temporary of y's shape, *full; mti_close_din sums that. */
const mti_view *mti_open_din(mti_call *c, int i, mt_tensor **full);
bool mti_close_din(mti_call *c, int i, mt_tensor *full);

/* din 0 = dout 0 added up along dim by the index in this slot. */
bool mti_scatter_to_din(mti_call *c, int dim, unsigned slot);

/* The gradient of input i, made with its heads inside: so splitting them again is a view. */
const mti_view *mti_din_heads_inside(mti_call *c, int i);

/* ---- the same memory in another shape, for kernels (layout.c) ---- */

mti_view mti_flat(const mti_view *v); /* [..] row-major as [n] */
mti_view mti_rows(const mti_view *v); /* [..,n] row-major as [m,n] */
/* [start, start + length) of one dimension */
mti_view mti_range(const mti_view *v, int dim, int64_t start, int64_t length);
mti_view mti_permuted(const mti_view *v, const int *order); /* dimension d is v's order[d] */
mti_view mti_transposed(const mti_view *v);                 /* the last two dimensions swapped */
mti_view mti_last_two(const mti_view *v);                   /* [1,..,m,n] as [m,n] */
/* v's dimensions broadcast to `shape` (stride 0 where extent 1 meets more). */
mti_view mti_broadcast_view(const mti_view *v, int rank, const int64_t *shape);
/* [b,a,s,d] whose memory runs as [b,s,a,d], so that merging heads is a view; without data. */
mti_view mti_heads_inside(const mti_view *v);

/* dim counted from the end when negative; false with a text if there is no such dimension. */
bool mti_dim(const char *who, int rank, int *dim);

#endif

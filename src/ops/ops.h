/* ops.h: the op table and what op files share. */
#ifndef MTI_OPS_H
#define MTI_OPS_H

#include "autograd/autograd.h"
#include "memtape/op_table.h"
#include "memtape/ops.h"
#include "memtape/quantize.h"

/* The rows of ops.def, and the code of each. */
#define OP(name, ...)                                                                              \
    extern const mti_op mti_op_##name;                                                             \
    extern const mti_op_code mti_code_##name;
#include "ops/ops.def"
#undef OP

/* Says what a row of any table says, in public words. */
mt_op_info mti_op_describe(const mti_op *op);

/* Run the op with one output; NULL on failure. */
mt_tensor *mti_op1(const mti_op *op, const mti_params *params, mt_tensor *x);
mt_tensor *mti_op2(const mti_op *op, const mti_params *params, mt_tensor *a, mt_tensor *b);
mt_tensor *mti_op3(const mti_op *op, const mti_params *params, mt_tensor *a, mt_tensor *b,
                   mt_tensor *c);

/* Shape rules that several ops share. */
bool mti_shape_same(mti_call *c); /* out 0 has the shape and dtype of in0, which must be floating */
/* out 0: all inputs' shapes broadcast together, in that dtype. */
bool mti_shape_broadcast(mti_call *c, mt_dtype dtype);
/* x's shape without the dimensions of params.reduce (extent 1 if kept); returns the rank. */
int mti_reduced_shape(const mti_call *c, int64_t shape[MT_MAX_RANK]);

/* Checks dims, puts them into params.reduce and runs the op. */
mt_tensor *mti_reduce(const mti_op *op, mt_tensor *x, int n_dims, const int *dims, bool keep);

/* Where to compute the gradient of input i: din i itself, or, if the input was broadcast, a
 * temporary of y's shape, *full, which mti_close_din sums to din i. */
const mti_view *mti_open_din(mti_call *c, int i, mt_tensor **full);
bool mti_close_din(mti_call *c, int i, mt_tensor *full);

/* mt_embedding of a table of which w has rows [first, first + w's), of `rows` in all: zeros for the
 * others. rows 0: w is the whole table. */
mt_tensor *mti_embedding_part(mt_tensor *index, mt_tensor *w, int64_t first, int64_t rows,
                              const mt_embedding_options *options);
/* Scatters: adds the elements of dout 0 to din 0 along dim, at the indices saved in this slot. */
bool mti_scatter_to_din(mti_call *c, int dim, unsigned slot);

bool mti_check_heads(const char *caller, const mti_view *q, const mti_view *k, const mti_view *v);
bool mti_check_dropout(const char *caller, double p);
double mti_scale_or_default(const mt_tensor *q, double scale);
mt_tensor *mti_flash_attention(mt_tensor *q, mt_tensor *k, mt_tensor *v, mt_tensor *mask,
                               const mt_attention_options *o);
/* mt_math_attention, with more to choose. */
typedef struct mti_math_options {
    double scale, cap, dropout; /* cap 0: none */
    bool causal;
    bool wide;       /* the softmax of 2-byte floats in f32 */
    mt_tensor *mask; /* [s,t], added to the scores; NULL: none */
} mti_math_options;
mt_tensor *mti_math_attention(mt_tensor *q, mt_tensor *k, mt_tensor *v, const mti_math_options *o);
/* What is added to scores [s,t] or [b,1,s,t]: 0 where a query sees a key within the window up to
 * its own, the last query's being the last; else -infinity. */
mt_tensor *mti_window_mask(mt_device *device, mt_dtype dtype, int rank, const int64_t *shape,
                           int64_t window);

/* The gradient of input i [b,a,s,d] with the strides of [b,s,a,d]: splitting heads in forward was a
 * view, and so is merging them here. */
const mti_view *mti_din_heads_inside(mti_call *c, int i);

/* ---- views of the same memory, for kernels (layout.c) ---- */

mti_view mti_flat(const mti_view *v);    /* [..] row-major as [n] */
mti_view mti_as_rows(const mti_view *v); /* [..,n] row-major as [m,n] */
/* [start, start + length) of one dimension */
mti_view mti_range(const mti_view *v, int dim, int64_t start, int64_t length);
mti_view mti_permuted(const mti_view *v, const int *order); /* dimension d is v's order[d] */
mti_view mti_transposed(const mti_view *v);                 /* the last two dimensions swapped */
mti_view mti_last_two(const mti_view *v);                   /* [1,..,m,n] as [m,n] */
/* v's dimensions broadcast to `shape` (stride 0 where extent 1 meets more). */
mti_view mti_broadcast_view(const mti_view *v, int rank, const int64_t *shape);
/* [b,a,s,d] with the strides of a row-major [b,s,a,d], so that merging heads is a view; no data. */
mti_view mti_heads_inside(const mti_view *v);

/* ---- random numbers of a part of a tensor (dropout.c) ---- */

/* Numbers that the whole tensor takes, where this one is `part` of it. */
uint64_t mti_draws_of(const mti_draw_part *part, const mti_view *x);
/* Runs of elements that lie side by side in the whole: how many, each of some rows of dimension 0.
 */
int64_t mti_draw_runs(const mti_draw_part *part, const mti_view *x, int64_t *rows);
/* *offset: the counter of the i-th run's first element. Fails where that stands between two. */
bool mti_draw_offset(const mti_call *c, const mti_draw_part *part, const mti_view *x, int64_t i,
                     uint64_t *offset);

/* Makes a negative dim count from the end; fails if there is no such dimension. */
bool mti_dim(const char *caller, int rank, int *dim);

#endif

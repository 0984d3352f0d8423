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

/* Shape rules that several ops share. */
bool mti_shape_same(mti_call *c); /* out 0 like a floating in0 */

/* dim counted from the end when negative; false with a text if there is no such dimension. */
bool mti_dim(const char *who, int rank, int *dim);

#endif

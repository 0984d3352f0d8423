/* table.c: the rows of ops.def, and calls by them. */
#include "ops/ops.h"
#include "ops/row.h"

#define OP MTI_ROW
#include "ops/ops.def"

mt_tensor *mti_op1(const mti_op *op, const mti_params *params, mt_tensor *x)
{
    mt_tensor *y;
    return mti_apply(op, params, 1, &x, 1, &y) ? y : NULL;
}

mt_tensor *mti_op2(const mti_op *op, const mti_params *params, mt_tensor *a, mt_tensor *b)
{
    mt_tensor *in[2] = {a, b}, *y;
    return mti_apply(op, params, 2, in, 1, &y) ? y : NULL;
}

mt_tensor *mti_op3(const mti_op *op, const mti_params *params, mt_tensor *a, mt_tensor *b,
                   mt_tensor *c)
{
    mt_tensor *in[3] = {a, b, c}, *y;
    return mti_apply(op, params, 3, in, 1, &y) ? y : NULL;
}

bool mti_shape_same(mti_call *c) { return mti_need_float(c, 0) && mti_out_like(c, mti_in(c, 0)); }

bool mti_dim(const char *caller, int rank, int *dim)
{
    int d = *dim < 0 ? *dim + rank : *dim;
    if (d < 0 || d >= rank)
        return mti_fail_bool(MT_ERR_ARGUMENT, "%s: dimension %d; the tensor has rank %d", caller,
                             *dim, rank);
    *dim = d;
    return true;
}

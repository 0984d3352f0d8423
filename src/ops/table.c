/* table.c: the rows of ops.def, and calls by them. */
#include <string.h>
#include "ops/ops.h"
#include "ops/row.h"

#define OP MTI_ROW
#include "ops/ops.def"
#undef OP

static const mti_op *const rows[] = {
#define OP(name, ...) &mti_op_##name,
#include "ops/ops.def"
};

int mt_op_count(void) { return (int)(sizeof rows / sizeof *rows); }

mt_op_info mti_op_describe(const mti_op *op)
{
    mt_op_info info = {.name = op->name,
                       .n_inputs = op->n_in,
                       .formula = op->formula,
                       .why = op->why,
                       .autocast = op->flags & MTI_LOW    ? "low"
                                   : op->flags & MTI_FULL ? "f32"
                                                          : "widest"};
    for (int k = 0; k < MTI_MAX_KEEP; k++) info.keep[k] = (unsigned)op->keep[k] & MTI_SLOTS;
    memcpy(info.inputs, op->in, sizeof info.inputs);
    for (int k = 0; k < 2; k++) info.outputs[k] = mti_out_letter(op, k);
    memcpy(info.auxiliaries, op->aux, sizeof info.auxiliaries);
    return info;
}

mt_op_info mt_op_get(int i)
{
    if (i >= 0 && i < mt_op_count()) return mti_op_describe(rows[i]);
    mti_fail(MT_ERR_ARGUMENT, "op_get: row %d; there are %d", i, mt_op_count());
    return (mt_op_info){0};
}

int mt_op_find(const char *name)
{
    for (int i = 0; name && i < mt_op_count(); i++)
        if (!strcmp(rows[i]->name, name)) return i;
    return -1;
}

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

/* table.c: ops.def as an array, calls by its rows, and the public mt_op_get. */
#include <string.h>
#include "ops/ops.h"

#define KEEP(...)                                                                                  \
    {                                                                                              \
        __VA_ARGS__                                                                                \
    }
#define IN(...)                                                                                    \
    {                                                                                              \
        __VA_ARGS__                                                                                \
    }
#define AUX(...)                                                                                   \
    {                                                                                              \
        __VA_ARGS__                                                                                \
    }
#define IN0      MTI_IN0
#define IN1      MTI_IN1
#define IN2      MTI_IN2
#define OUT0     MTI_OUT0
#define OUT1     MTI_OUT1
#define OUT(...) __VA_ARGS__
#define AUX0     MTI_AUX0
#define AUX1     MTI_AUX1
#define AUX2     MTI_AUX2
#define SIGN     MTI_SIGN
#define DRAWN    MTI_DRAWN
#define OPTIONAL MTI_OPTIONAL
#define OP(name_, n_in_, n_aux_, keep_, flags_, in_, out_, aux_, formula_, why_)                   \
    [MTI_OP_##name_] = {.name = #name_,                                                            \
                        .n_in = n_in_,                                                             \
                        .n_aux = n_aux_,                                                           \
                        .keep = keep_,                                                             \
                        .flags = flags_,                                                           \
                        .in = in_,                                                                 \
                        .out = {out_},                                                             \
                        .aux = aux_,                                                               \
                        .formula = formula_,                                                       \
                        .why = why_,                                                               \
                        .code = &mti_code_##name_},
const mti_op mti_ops[MTI_OP_COUNT] = {
#include "ops/ops.def"
};

mt_tensor *mti_op1(enum mti_op_id id, const mti_params *params, mt_tensor *x)
{
    mt_tensor *y;
    return mti_apply(&mti_ops[id], params, 1, &x, 1, &y) ? y : NULL;
}

mt_tensor *mti_op2(enum mti_op_id id, const mti_params *params, mt_tensor *a, mt_tensor *b)
{
    mt_tensor *in[2] = {a, b}, *y;
    return mti_apply(&mti_ops[id], params, 2, in, 1, &y) ? y : NULL;
}

mt_tensor *mti_op3(enum mti_op_id id, const mti_params *params, mt_tensor *a, mt_tensor *b,
                   mt_tensor *c)
{
    mt_tensor *in[3] = {a, b, c}, *y;
    return mti_apply(&mti_ops[id], params, 3, in, 1, &y) ? y : NULL;
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

int mt_op_count(void) { return MTI_OP_COUNT; }

mt_op_info mt_op_get(int i)
{
    mt_op_info info = {0};
    if (i < 0 || i >= MTI_OP_COUNT) {
        mti_fail(MT_ERR_ARGUMENT, "op_get: row %d; there are %d", i, (int)MTI_OP_COUNT);
        return info;
    }
    const mti_op *op = &mti_ops[i];
    info = (mt_op_info){.name = op->name,
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

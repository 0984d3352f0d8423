/* torch_ops.c: ops that take more memory in PyTorch than here. Each is one more row, with the
 * name and the code of ours, and with what differs. */
#include "ops/ops.h"
#include "stacks/torch_ops.h"

/* ---- log_softmax: y = x - log sum exp x;  dx = dy - exp(y) sum(dy), beside dy ---- */

static bool log_softmax_shape(mti_call *c) { return mti_code_log_softmax.shape(c); }
static bool log_softmax_forward(mti_call *c) { return mti_code_log_softmax.forward(c); }
static bool log_softmax_backward(mti_call *c)
{
    const mti_view *dy = mti_dense_rows(c, mti_dout(c)), *dx = mti_din(c, 0);
    return dy && dx && c->k->log_softmax_backward(c->ctx, mti_saved(c, MTI_OUT0), dy, dx);
}

mt_tensor *mti_torch_log_softmax(mt_tensor *x)
{
    static const mti_op_code code = {log_softmax_shape, log_softmax_forward, log_softmax_backward};
    static const mti_op row = {.name = "log_softmax",
                               .n_in = 1,
                               .keep = {MTI_OUT0},
                               .flags = MTI_FULL,
                               .in = {"x"},
                               .out = {"y"},
                               .formula = "y = x - log sum exp x, rows",
                               .why = "the output: dx = dy - exp(y) sum(dy)",
                               .code = &code};
    return mti_op1(&row, NULL, x);
}

/* ---- combine: y = the sum of the rows of x by index ---- */

mt_tensor *mti_torch_index_add(mt_tensor *x, mt_tensor *index, int64_t rows)
{
    static const mti_op row = {.name = "combine",
                               .n_in = 2,
                               .keep = {MTI_IN0 | MTI_IN1},
                               .in = {"x", "index"},
                               .out = {"y"},
                               .formula = "y = the sum of the rows of x by index",
                               .why = "the index: from where in dy each row comes; and x, unread",
                               .code = &mti_code_combine};
    return mti_op2(&row, &(mti_params){.groups = {rows}}, x, index);
}

/* all_ops.c: the rows of collectives.def, and the list of all rows: theirs and those of ops.def. */
#include <string.h>
#include "collectives/collectives.h"
#include "ops/row.h"

#define OP MTI_ROW
#include "collectives/collectives.def"
#undef OP

static const mti_op *const rows[] = {
#define OP(name, ...) &mti_op_##name,
#include "ops/ops.def"
#include "collectives/collectives.def"
};
#define COUNT ((int)(sizeof rows / sizeof *rows))

const mti_op *mti_op_row(int i) { return rows[i]; }

int mt_op_count(void) { return COUNT; }

mt_op_info mt_op_get(int i)
{
    mt_op_info info = {0};
    if (i < 0 || i >= COUNT) {
        mti_fail(MT_ERR_ARGUMENT, "op_get: row %d; there are %d", i, COUNT);
        return info;
    }
    const mti_op *op = rows[i];
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

/* all_ops.c: the rows of collectives.def, and the list of all rows: those of ops.def, then these.
 */
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

const mti_op *mti_op_row(int i) { return rows[i]; }

int mt_all_ops_count(void) { return (int)(sizeof rows / sizeof *rows); }

mt_op_info mt_all_ops_get(int i)
{
    if (i >= 0 && i < mt_all_ops_count()) return mti_op_describe(rows[i]);
    mti_fail(MT_ERR_ARGUMENT, "all_ops_get: row %d; there are %d", i, mt_all_ops_count());
    return (mt_op_info){0};
}

int mt_all_ops_find(const char *name)
{
    for (int i = 0; name && i < mt_all_ops_count(); i++)
        if (!strcmp(rows[i]->name, name)) return i;
    return -1;
}

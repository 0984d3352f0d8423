/* collective_cases.c: calls of the rows of collectives.def. */
#include "collectives/collective_cases.h"
#include "collectives/collectives.h"
#include "ops/case_row.h"

/* in[1]: which of 4 experts each row goes to */
static mt_tensor *routed(mt_tensor **in)
{
    mt_routes routes = {0};
    MT_AUTO mt_tensor *counts = mti_case_counts(in[1], 4);
    bool ok = counts && in[0] &&
              mt_routes_make(counts, mt_shape(in[0])[0], MT_RANKS(1), &routes) == MT_OK;
    mt_tensor *y = ok ? mt_all_to_all(in[0], &routes, false, MT_RANKS(1)) : NULL;
    mt_routes_release(&routes);
    return y;
}

#define ROW MTI_CASE_ROW
#include "collectives/collective_cases.def"

#define ROW(name, ...) &row_##name,
static const mti_case_row *const rows[] = {
#include "collectives/collective_cases.def"
};

/* Each row of collectives.def has cases: otherwise row_NAME is undeclared. */
#define OP(name, ...) +sizeof row_##name
_Static_assert(0
#include "collectives/collectives.def"
                   == sizeof(mti_case_row) * COUNT(rows),
               "one ROW for each row");
#undef OP

const mti_case_table mti_collective_cases = {NULL, (int)COUNT(rows), rows};
const mti_case_table mti_all_cases = {&mti_op_cases, (int)COUNT(rows), rows};

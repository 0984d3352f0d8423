/* collective_cases.h: collective_cases.def as data. */
#ifndef MTI_COLLECTIVE_CASES_H
#define MTI_COLLECTIVE_CASES_H

#include "ops/op_cases.h"

extern const mti_case_table mti_collective_cases; /* of collectives.def */
extern const mti_case_table mti_all_cases;        /* of ops.def, then of collectives.def */

#endif

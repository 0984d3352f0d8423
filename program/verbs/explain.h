/* explain.h: what `memtape explain --expr --json` writes. */
#ifndef MTI_CLI_EXPLAIN_H
#define MTI_CLI_EXPLAIN_H

#include "expression/walk.h"
#include "report/results.h"

mti_describe mti_describe_explained; /* a mti_expression_walk */

#endif

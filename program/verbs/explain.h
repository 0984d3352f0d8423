/* explain.h: what `memtape explain --expr --json` writes, and `explain --prompt`. */
#ifndef MTI_CLI_EXPLAIN_H
#define MTI_CLI_EXPLAIN_H

#include "expression/walk.h"
#include "options/options.h"
#include "report/results.h"

mti_describe mti_describe_explained; /* a mti_expression_walk */

int mti_explain_prompts(const mti_options *o);
bool mti_explain_prompts_check(mti_options *o); /* before there is a model */

#endif

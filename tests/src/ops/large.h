/* large.h: cases of a table with extents beyond what a library's int holds. */
#ifndef LARGE_H
#define LARGE_H

#include "mtt_fixture.h"
#include "ops/op_cases.h"

enum { LARGE_SIZES = 5, LARGE_DTYPES = 4 };
extern const int64_t large[LARGE_SIZES];
extern const mt_dtype large_dtypes[LARGE_DTYPES];
/* Runs forward and backward on `device`; returns whether nothing failed. */
bool large_run(const mti_case *c, mt_dtype dtype);
/* Runs every case of the benchmark with each extent large in turn: fails the test without an answer
 * or an error. Returns how many had an answer. */
int large_answers(const mti_case_table *table);
/* Opens the device without data, which counts the CPU's scratch, for a group of tests. */
int large_open_meta(void **state);

#endif

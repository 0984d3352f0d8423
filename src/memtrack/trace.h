/* trace.h: what one piece of a program asks of the allocator, recorded once and asked again.
 *
 * A graph of launches has the addresses of its tensors in it. Whoever launches it first repeats the
 * requests: if they lead to the same addresses, the memory is the graph's to use, and every figure
 * of the books moves as if the piece had run. If they do not, the requests are taken back. */
#ifndef MTI_TRACE_H
#define MTI_TRACE_H

#include "memtrack/memtrack.h"

typedef struct mti_trace mti_trace;

/* Records what the calling thread asks from now on; meanwhile the pool gives this thread no new
 * segment. NULL, with an error, also if the pool is recording already. */
mti_trace *mti_trace_begin(mti_pool *pool);
/* NULL, or why the trace cannot be repeated. */
const char *mti_trace_end(mti_trace *trace);
void mti_trace_free(mti_trace *trace);

/* Blocks that the piece left, and where they were. */
size_t mti_trace_survivors(const mti_trace *trace);
const void *mti_trace_survivor(const mti_trace *trace, size_t i);

/* Repeats the requests, then calls run before any other thread gets memory of the pool. blocks[i]:
 * survivor i, the caller's from now on. False: nothing has changed, since they led elsewhere, or
 * the pool would have to grow, or run failed; there may be an error. */
bool mti_trace_repeat(mti_trace *trace, bool (*run)(void *user), void *user, mti_block **blocks);
/* Whether somebody observes the pool: a repeated piece would show him no names. */
bool mti_pool_is_observed(mti_pool *pool);

#endif

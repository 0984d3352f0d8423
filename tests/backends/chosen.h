/* chosen.h: the backend that a run of the tests is for, and memory that both it and the test can
 * reach. A GPU reaches page-locked host memory, and computes beside the test: so each of its
 * kernels is waited for, and tests need not know. MTT_WAITING=1 does the same to any backend. */
#ifndef MTT_CHOSEN_H
#define MTT_CHOSEN_H

#include "backends/backend.h"

/* Of MTT_DEVICE, "cpu" if it is not set. */
const mti_backend *mtt_chosen(void);
const mti_backend *mtt_backend(mti_ctx **ctx); /* and a context: close it */
/* Zeroed memory that the kernels can reach as well as the test. */
void *mtt_memory(size_t n_bytes);
void mtt_memory_free(void *p); /* NULL is allowed */
bool mtt_is_heap(void);        /* it is malloc's, which sanitizers watch */

#endif

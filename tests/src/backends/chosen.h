/* chosen.h: the backend under test, and memory that both it and the test can reach. A GPU reaches
 * page-locked host memory and computes asynchronously, so every kernel in this table is followed by
 * a wait. MTT_WAITING=1 does all this for any backend. */
#ifndef MTT_CHOSEN_H
#define MTT_CHOSEN_H

#include "backends/backend.h"

/* The backend that MTT_DEVICE names; "cpu" if it is not set. */
const mti_backend *mtt_chosen(void);
/* And a context, which the caller closes: a new one, but on a device always the same. */
const mti_backend *mtt_backend(mti_ctx **ctx);
/* Fails with the error's words if a call of the backend does. */
#define mtt_did(call) mtt_did_at((call), #call, __FILE__, __LINE__)
void mtt_did_at(bool ok, const char *call, const char *file, int line);
/* Memory that both the kernels and the test can reach, zeroed or with what it held before. */
void *mtt_memory(size_t n_bytes);
void *mtt_memory_dirty(size_t n_bytes);
void mtt_memory_free(void *p); /* NULL is allowed */
bool mtt_is_heap(void);        /* whether it comes from malloc, which sanitizers watch */

#endif

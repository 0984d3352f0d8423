/* context_parallel.h: attention whose keys and values lie in shards on several ranks. */
#ifndef MTI_NN_CONTEXT_PARALLEL_H
#define MTI_NN_CONTEXT_PARALLEL_H

#include "memtape/models/group.h"
#include "memtape/tensor.h"

typedef struct mti_gathered mti_gathered;
/* part: q [b,a,s,h], k, v [b,k,s,h] of this rank's positions. Replaces k and v by those of all
 * ranks or, with a causal mask, of those up to this one; until mti_gather_end, saves of them keep
 * the shards. NULL on failure. */
mti_gathered *mti_gather_begin(const mt_group *group, bool causal, mt_tensor *part[3]);
bool mti_gather_end(mti_gathered *g);

#endif

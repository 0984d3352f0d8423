/* snapshot.h: PyTorch's memory snapshot, for pytorch.org/memory_viz and torch.cuda._memory_viz.
 *
 * The keys are those of torch.cuda.memory._snapshot(), as its documentation (torch/cuda/memory.py)
 * and torch/csrc/cuda/memory_snapshot.cpp have them in PyTorch 2.13. It is written as the events
 * come: in memory are only the blocks and segments that are there now, and a number for each place
 * in the model that allocates. */
#ifndef MTI_REPORT_SNAPSHOT_H
#define MTI_REPORT_SNAPSHOT_H

#include "measure/timeline.h"

typedef struct mti_snapshot mti_snapshot;

/* Begins the file, for a device of that kind. clocked: the seconds of events are meaningful. NULL
 * on failure. */
mti_snapshot *mti_snapshot_begin(const char *path, const char *kind, bool clocked);
/* The next event of the device, from the first on. False once something failed. */
bool mti_snapshot_add(mti_snapshot *s, const mt_mem_event *event, double seconds);
/* Adds what is there after the last event, and puts the file in its place. Frees s, whatever
 * happens. */
mt_status mti_snapshot_end(mti_snapshot *s);
/* Leaves no file. NULL is allowed. */
void mti_snapshot_abandon(mti_snapshot *s);

/* All of a timeline. */
mt_status mti_snapshot_write(const mti_timeline *t, const char *kind, const char *path);

#endif

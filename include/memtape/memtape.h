/* memtape.h: the engine: tensors, ops, the tape, the ledger. What stands on it has headers of its
 * own; all.h has everything.
 *
 *   models.h      modules, models, generation, files
 *   training.h    optimizers, mixed precision, adapters
 *   techniques.h  less memory: hooks, checkpoints, offload, fewer bits
 *   ranks.h       groups of ranks, and models that they share
 *   planning.h    what a model costs, what fits, and how to divide it
 *   reports.h     the table of ops, counters of a device, reports */
#ifndef MEMTAPE_H
#define MEMTAPE_H

#include "memtape/status.h"
#include "memtape/dtype.h"
#include "memtape/memory.h"
#include "memtape/device.h"
#include "memtape/tensor.h"
#include "memtape/print.h"
#include "memtape/autograd.h"
#include "memtape/ops.h"

#endif

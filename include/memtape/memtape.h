/* memtape.h: the engine: tensors, ops, the tape, its hooks and what they spare, the ledger. What
 * stands on it has its own headers; all.h has everything.
 *
 *   models.h      what is trained: modules, models, optimizers, files, generation, ranks, budgets
 *   lab.h         what a model costs, what fits, and how many sequences are served at once */
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
#include "memtape/op_table.h"
#include "memtape/autocast.h"
#include "memtape/hooks.h"
#include "memtape/host_copy.h"
#include "memtape/quantize.h"
#include "memtape/checkpoint.h"
#include "memtape/offload.h"
#include "memtape/compress.h"
#include "memtape/counters.h"
#include "memtape/openblas.h"
#include "memtape/dlpack.h"

#endif

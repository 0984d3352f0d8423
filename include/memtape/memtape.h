/* memtape.h: the engine: tensors, the tape, the ledger, ops, and what acts on saved tensors. Models
 * and their training stand above it: all.h has everything. */
#ifndef MEMTAPE_H
#define MEMTAPE_H

#include "memtape/status.h"
#include "memtape/dtype.h"
#include "memtape/memory.h"
#include "memtape/device.h"
#include "memtape/openblas.h"
#include "memtape/tensor.h"
#include "memtape/print.h"
#include "memtape/autograd.h"
#include "memtape/ops.h"
#include "memtape/op_table.h"
#include "memtape/autocast.h"
#include "memtape/offload.h"
#include "memtape/compress.h"
#include "memtape/checkpoint.h"

#endif

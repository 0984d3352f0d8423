/* memtape.h: everything. */
#ifndef MEMTAPE_H
#define MEMTAPE_H

#include "memtape/status.h"
#include "memtape/dtype.h"
#include "memtape/memory.h"
#include "memtape/device.h"
#include "memtape/tensor.h"
#include "memtape/autograd.h"
#include "memtape/ops.h"
#include "memtape/autocast.h"
#include "memtape/offload.h"
#include "memtape/compress.h"
#include "memtape/checkpoint.h"
#include "memtape/nn.h"
#include "memtape/amp.h"
#include "memtape/generate.h"
#include "memtape/io.h"
#include "memtape/lora.h"
#include "memtape/parallel.h"
#include "memtape/plan.h"
#include "memtape/budget.h"

#endif

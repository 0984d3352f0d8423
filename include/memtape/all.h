/* all.h: everything. */
#ifndef MEMTAPE_ALL_H
#define MEMTAPE_ALL_H

#include "memtape/memtape.h"
#include "memtape/module.h"
#include "memtape/model.h"
#include "memtape/optimizer.h"
#include "memtape/amp.h"
#include "memtape/step_graph.h"
#include "memtape/generate.h"
#include "memtape/io.h"
#include "memtape/lora.h"
#include "memtape/collectives.h"
#include "memtape/parallel.h"
#include "memtape/plan.h"
#include "memtape/budget.h"
#include "memtape/fit.h"
#include "memtape/serve.h"
#include "memtape/report.h"
#include "memtape/dlpack.h"

#endif

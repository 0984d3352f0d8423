/* models.h: what is trained: modules and models, optimizers, mixed precision, adapters, files,
 * generation, ranks that compute together, and checkpoints for a budget. */
#ifndef MEMTAPE_MODELS_H
#define MEMTAPE_MODELS_H

#include "memtape/memtape.h"
#include "memtape/models/group.h"
#include "memtape/models/collectives.h"
#include "memtape/models/module.h"
#include "memtape/models/stacks.h"
#include "memtape/models/model.h"
#include "memtape/models/lora.h"
#include "memtape/models/tokens.h"
#include "memtape/models/generate.h"
#include "memtape/models/io.h"
#include "memtape/models/optimizer.h"
#include "memtape/models/amp.h"
#include "memtape/models/parallel.h"
#include "memtape/models/budget.h"

#endif

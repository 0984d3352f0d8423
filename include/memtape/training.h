/* training.h: optimizers, mixed precision, adapters, and steps captured as a graph. */
#ifndef MEMTAPE_TRAINING_H
#define MEMTAPE_TRAINING_H

#include "memtape/optimizer.h"
#include "memtape/amp.h"
#include "memtape/autocast.h"
#include "memtape/lora.h"
#include "memtape/step_graph.h"

#endif

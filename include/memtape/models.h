/* models.h: modules and models, generation, files. */
#ifndef MEMTAPE_MODELS_H
#define MEMTAPE_MODELS_H

#include "memtape/module.h"
#include "memtape/model.h"
#include "memtape/generate.h"
#include "memtape/io.h"

#endif

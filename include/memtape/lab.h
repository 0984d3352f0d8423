/* lab.h: what a model costs, what fits, and how to divide it. */
#ifndef MEMTAPE_LAB_H
#define MEMTAPE_LAB_H

#include "memtape/models.h"
#include "memtape/lab/plan.h"
#include "memtape/lab/fit.h"
#include "memtape/lab/serve.h"

#endif

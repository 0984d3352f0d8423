/* planning.h: what a model costs, what fits, and how to divide it. */
#ifndef MEMTAPE_PLANNING_H
#define MEMTAPE_PLANNING_H

#include "memtape/plan.h"
#include "memtape/budget.h"
#include "memtape/fit.h"
#include "memtape/serve.h"

#endif

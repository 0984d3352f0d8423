/* all.h: everything. */
#ifndef MEMTAPE_ALL_H
#define MEMTAPE_ALL_H

#include "memtape/memtape.h"
#include "memtape/models.h"
#include "memtape/training.h"
#include "memtape/techniques.h"
#include "memtape/ranks.h"
#include "memtape/planning.h"
#include "memtape/reports.h"
#include "memtape/dlpack.h"

#endif

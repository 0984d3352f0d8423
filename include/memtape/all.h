/* all.h: everything. */
#ifndef MEMTAPE_ALL_H
#define MEMTAPE_ALL_H

#include "memtape/memtape.h"
#include "memtape/models.h"
#include "memtape/lab.h"
#include "memtape/report.h"

#endif

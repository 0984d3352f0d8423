/* reports.h: what there is to report: the table of ops, a device's counters, reports themselves. */
#ifndef MEMTAPE_REPORTS_H
#define MEMTAPE_REPORTS_H

#include "memtape/op_table.h"
#include "memtape/counters.h"
#include "memtape/openblas.h"
#include "memtape/report.h"

#endif

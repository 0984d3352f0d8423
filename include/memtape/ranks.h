/* ranks.h: ranks that compute together: groups, collectives, models that they share. */
#ifndef MEMTAPE_RANKS_H
#define MEMTAPE_RANKS_H

#include "memtape/group.h"
#include "memtape/collectives.h"
#include "memtape/parallel.h"

#endif

/* mtt.h: helpers for tests of what stands on the engine, beside those for all (mtt_engine.h). */
#ifndef MTT_H
#define MTT_H

#include "mtt_engine.h"
#include "memtape/all.h"

/* A module's forward that returns its input. */
mt_tensor *mtt_pass(mt_module *self, mt_tensor *x);

#endif

/* techniques.h: ways to spend less memory: hooks, checkpoints, offload, fewer bits. */
#ifndef MEMTAPE_TECHNIQUES_H
#define MEMTAPE_TECHNIQUES_H

#include "memtape/hooks.h"
#include "memtape/host_copy.h"
#include "memtape/quantize.h"
#include "memtape/checkpoint.h"
#include "memtape/offload.h"
#include "memtape/compress.h"

#endif

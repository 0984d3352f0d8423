/* memory_hooks.h: memory options applied to a model's steps. */
#ifndef MTI_MEMORY_HOOKS_H
#define MTI_MEMORY_HOOKS_H

#include "memtape/autocast.h"
#include "memtape/compress.h"
#include "memtape/models/amp.h"
#include "memtape/models/lora.h"
#include "memtape/offload.h"
#include "memory/memory_options.h"
#include "parallel/parallel.h"

/* What they did; complete after mti_memory_hooks_report. */
typedef struct mti_memory_stats {
    int64_t forwards;
    size_t asked; /* bytes that the ops of a step's first forwards saved, before offload and
                   * compression */
    /* checkpointing: inputs held, the most that one segment recomputes, warnings */
    size_t n_segments, between, inside;
    int n_warnings;
    char warnings[1024];
    mt_offload_stats offload; /* since the last forward began */
    uint64_t offloaded;       /* bytes that left, of all forwards until now ... */
    size_t host_peak;         /* ... and the most that host memory held of them */
    mt_compress_stats compress;
    mt_scaler_state scaler;
    /* autocast: copies in the cache and all tensors in two dtypes at the end of the first forward
     */
    size_t cast_copies, cast_bytes, duplicates, duplicate_bytes;
} mti_memory_stats;

typedef struct mti_memory_hooks {
    const mti_memory_options *options; /* borrowed; NULL: none */
    mt_device *device;                 /* borrowed */
    int64_t ahead;                     /* forwards that a step begins with */
    mt_ledger *asked;                  /* until those are over */
    mt_ledger *ledger;                 /* borrowed; NULL: none */
    int64_t in_ledger;                 /* forwards that it has seen */
    bool under_ledger;                 /* now */
    mt_checkpoint_report *report;
    mt_offload *offload;
    mt_compress *compress;
    mt_scaler *scaler;
    mti_memory_stats memory_stats;
} mti_memory_hooks;

/* What lora_rank, lora_targets, lora_dropout, f32_adapters, lora_on_weights, qlora and qlora_double
 * ask for; borrows *options' targets. */
mt_lora_options mti_adapters_of(const mti_memory_options *options);
/* The adapters that `options` (may be NULL) asks for, if any: put into a model, or into a new one
 * layer by layer, so that with --qlora it is never there as a whole. */
bool mti_adapt(mt_module *model, const mti_memory_options *options);
mt_module *mti_adapted_new(mt_device *device, const mt_model_config *config,
                           const mti_memory_options *options);
/* Elements of the parameters that are trained, and bytes of the others; model NULL: of the whole
 * model, of which a rank has a part. */
void mti_count_trained(mt_module *model, const mt_model_config *config,
                       const mti_memory_options *options, int64_t *n, uint64_t *frozen_bytes);

/* All but adapters, for the steps of a stage, which borrows the scaler and p itself: p observes it.
 * Free in any case. */
bool mti_memory_hooks_make(mti_memory_hooks *p, const mti_memory_options *options,
                           mti_stage *stage);
void mti_memory_hooks_free(mti_memory_hooks *p);
/* The ledger, which p borrows, sees the next forwards before a first backward, outside of all that
 * p does: what is saved after offload and compression. */
void mti_memory_hooks_watch(mti_memory_hooks *p, mt_ledger *ledger);
/* After a backward: completes p->memory_stats. */
bool mti_memory_hooks_report(mti_memory_hooks *p);

#endif

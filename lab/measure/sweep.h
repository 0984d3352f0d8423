/* sweep.h: workloads measured side by side, and the gradients of each compared with those of the
 * first. */
#ifndef MTI_MEASURE_SWEEP_H
#define MTI_MEASURE_SWEEP_H

#include "measure/two_steps.h"
#include "plan/plan.h"

typedef struct mti_gradient_difference {
    size_t compared; /* gradients that both have, in equal shapes */
    size_t alone;    /* those that one of them lacks */
    bool same_bits;  /* of all that were compared */
    double relative; /* |b - a| / |a| over them; INFINITY where not finite */
} mti_gradient_difference;

typedef struct mti_sweep_entry {
    const char *label;
    mti_workload workload;
    int64_t steps; /* that are timed, where there is data */
} mti_sweep_entry;

typedef struct mti_sweep_result {
    const mti_sweep_entry *entry;
    size_t saved, asked; /* kept after forward; what the ops saved, as mti_memory_stats.asked */
    mti_steady steady;
    double step_s;               /* median of the steady steps; NaN on meta, and if refused */
    double loss;                 /* NaN: none */
    mti_gradient_difference off; /* from the first entry */
    bool has_data;               /* false on meta: no gradients to compare */
    bool refused;                /* out of memory: there are no figures */
    mti_formula formula;
    mti_memory_stats memory_stats;
    mt_flops flops;
} mti_sweep_result;

/* Called before each run. */
typedef struct mti_sweep_listener {
    void (*on_turn)(void *user, int64_t turn, int64_t n_turns, size_t entry);
    void *user;
} mti_sweep_listener;

/* Fills in results[n]. If the machine has no room for an entry the sweep fails before it begins,
 * and the message ends in `advice`; out of memory at a set capacity is a result. */
bool mti_sweep_run(const mti_sweep_entry *entries, size_t n, mti_sweep_result *results,
                   const mti_sweep_listener *listener, const char *advice);

#endif

/* two_steps.h: two training steps of a model with everything about their memory: the first, and one
 * in the steady state, which begins with the optimizer's state.
 *
 * Of one rank of several, "forward" is the forwards that come before the first backward, and
 * "backward" all other forwards and backwards. */
#ifndef MTI_MEASURE_TWO_STEPS_H
#define MTI_MEASURE_TWO_STEPS_H

#include "memory/memory_hooks.h"
#include "memtape/models/collectives.h"
#include "measure/timeline.h"
#include "workload/workload.h"
#include "parallel/parallel.h"

/* What training steps are made of: a model, or one rank of several, and its inputs. */
typedef struct mti_subject {
    mt_device *device;            /* borrowed */
    const mti_workload *workload; /* borrowed */
    mti_stage stage;
    mt_tensor *input; /* [b,s,d] requiring grad, or i64 token ids [b,s]; NULL for a rank, which gets
                       * others for each microbatch */
    mt_tensor *target; /* i64 [b,s] for a whole model, whose output is then the loss; else NULL */
    bool has_loss;     /* some forward ends in one */
    bool learns;       /* as mti_in_flight has it */
    mti_routing routing;
} mti_subject;

/* With the workload's adapters, if any; all other random numbers are the same. `target`: a whole
 * model gets one. Free in any case. */
bool mti_subject_make(mti_subject *s, mt_device *device, const mti_workload *w, bool target);
void mti_subject_free(mti_subject *s);
/* Gives a part's forward its input, and the target if there is one: `take` of mti_batches. */
bool mti_subject_take(void *subject, mti_turn turn, mti_in_flight *f);

/* A part of a step. */
typedef struct mti_phase {
    const char *name;
    size_t requested, allocated, reserved;                             /* at its end */
    size_t requested_peak, peak, reserved_peak;                        /* the highest within it */
    size_t by_category[MT_CATEGORY_COUNT], at_peak[MT_CATEGORY_COUNT]; /* allocated */
    size_t rests[MT_CATEGORY_COUNT]; /* of by_category: what of blocks was not split off */
    double seconds;                  /* NaN on a device without data */
} mti_phase;

#define MTI_MAX_PHASES 4 /* init, forward, backward, step */
typedef struct mti_phases {
    int n;
    mti_phase at[MTI_MAX_PHASES];
} mti_phases;

/* The second step: every later one needs the same. */
typedef struct mti_steady {
    size_t requested, peak, reserved;      /* the highest within it */
    size_t by_category[MT_CATEGORY_COUNT]; /* at the peak, which they sum to */
    mti_phases phases;                     /* forward, backward and, with an optimizer, step */
    mt_ledger *ledger;                     /* of its forward, with a timeline; else NULL */
    mt_flops flops;
    mt_traffic traffic; /* of forward and backward, as flops; and what they sent: */
    mt_sent sent;
    uint64_t offloaded; /* bytes that left the device, and came back */
    double seconds;     /* all of it; NaN on a device without data */
    bool skipped;       /* by the loss scaler, as a gradient was not finite; never without data */
} mti_steady;

/* The allocator's growth over forward, and what it is made of. */
typedef struct mti_growth {
    int64_t measured;
#define PART(member, ...) int64_t member;
#include "measure/growth.def"
#undef PART
    int64_t residual; /* bytes not accounted for: 0, or there is a bug */
} mti_growth;

/* What else is recorded. */
typedef struct mti_watch {
    bool timeline; /* every event of both steps */
    /* Called after the first backward. loss is NaN for what has none; gradients are `scale` times
     * the true ones. May be NULL. */
    bool (*look)(void *user, const mti_subject *s, double loss, double scale);
    void *user;
} mti_watch;

typedef struct mti_measurement {
    mt_ledger *ledger;              /* of the first forward */
    uint64_t n_params, param_bytes; /* of a rank: before ZeRO cuts them; as it does */
    size_t grad_bytes;              /* of parameters, before they are dropped; requested */
    size_t optimizer_bytes;         /* state, after a step; requested */
    size_t optimizer_host;          /* ... and beside that, in host memory ... */
    size_t param_host;              /* ... where shards of parameters may be, too */
    int64_t layers, in_flight;      /* of a rank: layers; forwards before the first backward */
    uint64_t newest_before;         /* serial of the newest storage made before forward */
    mti_phases
        phases; /* init, and the first step's forward, backward and, with an optimizer, step */
    mti_growth growth; /* of the first forward, like `ledger` */
    mt_flops flops;    /* of the first step */
    mti_steady steady;
    mti_memory_stats memory_stats; /* in the steady step */
    mti_timeline timeline;         /* of a failed step too: up to the failure */
} mti_measurement;

/* Builds the model on `device`, which may differ from the workload's, and makes two steps of
 * forward, backward and, with an optimizer, step. Afterwards only the measurement remains. watch
 * may be NULL. Free in any case. */
bool mti_measure(mti_measurement *m, mt_device *device, const mti_workload *w,
                 const mti_watch *watch);
/* One forward pass without a tape, dropout off, and without the options for what a tape keeps; a
 * whole model's ends with the logits. Of *m the phases init and forward, n_params, param_bytes, the
 * ledger (which finds nothing) and flops are set. Free in any case. */
bool mti_measure_inference(mti_measurement *m, mt_device *device, const mti_workload *w);
void mti_measurement_free(mti_measurement *m);
/* The phase with the highest peak, in init, the first step or (*steady) the second; of equal ones
 * the second. A device must have room for it. steady may be NULL. */
const mti_phase *mti_highest_phase(const mti_measurement *m, bool *steady);

/* The highest of both steps; the second begins with the optimizer's state. */
typedef struct mti_requirement {
    size_t requested;      /* whatever the allocator does, it takes no less ... */
    size_t peak, reserved; /* ... but these depend on where blocks lie, and so on the capacity */
    const char *phase;     /* of the peak */
    size_t at_peak[MT_CATEGORY_COUNT];
    size_t gradients; /* whenever they are there, as mti_measurement.grad_bytes */
} mti_requirement;

/* Measures two steps on a new device with the workload's capacity. False with *refused if that is
 * too little. watch may be NULL. Free m in any case. */
bool mti_measure_requirement(mti_requirement *need, mti_measurement *m, const mti_workload *w,
                             const mti_watch *watch, bool *refused);
/* Whether the last failure was out of memory on `device` (may be NULL). */
bool mti_was_refused(mt_device *device);

#endif

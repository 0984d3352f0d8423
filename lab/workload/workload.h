/* workload.h: what is measured, the device that it runs on, and what a plan asks besides. */
#ifndef MTI_WORKLOAD_H
#define MTI_WORKLOAD_H

#include "memtape/models/parallel.h"
#include "memory/memory_options.h"
#include "optim/optimizers.h"

typedef struct mti_device_options {
    const char *kind;       /* as mt_device_open takes it */
    int64_t threads;        /* 0: the device's own choice */
    size_t capacity;        /* in bytes; 0: what there is */
    bool expandable;        /* segments (mt_mem_set_expandable) */
    size_t granule;         /* theirs, in bytes; 0: PyTorch's */
    bool reclaim;           /* free granules before they grow */
    size_t gemm_workspace;  /* in bytes; 0: none */
    const char *scratch_of; /* without data: whose kernels' scratch is counted; NULL: nobody's */
} mti_device_options;

/* A device with these options; NULL on failure. */
mt_device *mti_device_make(const mti_device_options *options);
/* The options of a meta device whose books are those of a device with these: its twin, on which
 * everything is predicted. It is given all that the device is given. */
mti_device_options mti_device_twin(const mti_device_options *options);
/* Gives a meta device what the twin is given, except for the capacity. */
bool mti_device_pretend(mt_device *meta, const mti_device_options *options);

/* What a stack holds and a measurement here does not. */
typedef struct mti_left_out {
    const char *what;
    uint64_t bytes; /* about so many; 0: not known */
} mti_left_out;
#define MTI_MOST_LEFT_OUT 8

/* Training steps of a model. Zero is a default for all but config, batch, seq and the device's
 * kind. */
typedef struct mti_workload {
    const char *name;   /* for messages: "mlp", "gpt2", a path */
    const char *preset; /* the name of `config`; NULL: none */
    mt_model_config config;
    char recipe[64];          /* "": none */
    char recipe_options[480]; /* what it set: "--loss f32 --recipe plain:rope=unfused" */
    mt_op_choices own_ops;    /* config.ops before the recipe */
    mti_left_out left_out[MTI_MOST_LEFT_OUT];
    int n_left_out;
    int64_t batch, seq;
    uint64_t seed;
    mti_optimizer_choice optimizer;
    mti_memory_options memory;
    bool usual_rank;     /* its lora_rank is the default of --qlora */
    const char *routing; /* of experts, on a device without data: see routing.h; NULL: balanced */
    bool ranked;         /* one rank of several: */
    mt_parallel parallel;
    int64_t rank;  /* its number: those of `tensor` come first, then those of `data`, then stages */
    size_t budget; /* bytes of the peak that checkpoints are chosen for; 0: none */
    mti_device_options device;
} mti_workload;

/* How much of a workload's two steps is compared with a measurement. */
typedef enum mti_until { MTI_UNTIL_END, MTI_UNTIL_FIRST_STEP, MTI_UNTIL_FORWARD } mti_until;
extern const mti_choice mti_untils; /* "end", "first-step", "forward" */

/* A change to try, and the workload with it. Of one kind, one that fits is enough. */
typedef struct mti_change {
    int kind;
    char words[96]; /* "--checkpoint full" */
    mti_workload workload;
} mti_change;
typedef MTI_VEC(mti_change) mti_changes;

/* What a plan takes besides its workload. */
typedef struct mti_plan_options {
    double parameters;  /* N as a paper rounds it; 0: counted */
    double tokens;      /* to train on; 0: unknown */
    double flops_rate;  /* of a device, FLOP/s; 0: no time is computed */
    double utilisation; /* of it, in (0,1] */
    int64_t devices;
    int64_t kv; /* tokens to generate after the first seq; negative: no KV cache */
} mti_plan_options;

#endif

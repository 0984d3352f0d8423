/* fit.h: does a model fit some GPUs, and how is it best split among them?
 *
 * Tries the ways to divide a model and its batch among the GPUs. What each way needs is measured on
 * `meta`, two steps of the first and of the last stage, as `memtape profile` does; how long a step
 * takes is a model, never a measurement: docs/fit.md has its formulas. Letters as in parallel.h,
 * and m: microbatches of a step, v: parts of a stage. */
#ifndef MEMTAPE_FIT_H
#define MEMTAPE_FIT_H

#include "memtape/models/parallel.h"

MT_C_BEGIN

/* ---- GPUs ---- */

/* One kind, as its datasheet has it; rates in a second, bandwidths in one direction. */
typedef struct mt_gpu {
    char name[32];
    size_t memory;      /* bytes that a process can have */
    double flops;       /* of dense products of 16-bit floats that are summed in 32 bits */
    double bandwidth;   /* bytes of its memory */
    double link;        /* bytes to other GPUs of its node */
    double network;     /* bytes to GPUs of other nodes, for each GPU */
    double host;        /* bytes to host memory */
    int64_t in_a_node;  /* GPUs */
    size_t host_memory; /* bytes of a node's; 0: not known */
    bool f16_only;      /* its products take no bf16 */
    char source[96];
    size_t context;          /* bytes of CUDA's own; 0: the usual 300 MiB */
    char context_source[56]; /* "": the usual one's */
    size_t gemm_workspace;   /* bytes of cuBLAS's, as PyTorch sets it; 0: 8519680 */
    /* Shares of the formulas' rates that published runs reached on its kind (docs/fit.md); 0: there
     * are none, and the range of all kinds holds. */
    double least_reached, most_reached;
} mt_gpu;

/* The i-th that is known; NULL past the last. */
MT_API const mt_gpu *mt_gpu_at(size_t i);
/* By its name here, or as it is sold: "h100", "RTX 4090", "A100-80GB". MT_ERR_ARGUMENT and an
 * error that lists them if there is none of that name. */
MT_API mt_status mt_gpu_find(const char *name, mt_gpu *out);
/* The same, looked up in a file first: {"h100": {"memory": "94GiB", "bandwidth": 3.9e12}, ...}. A
 * name that is known takes over the fields that its object has; another one needs them all. */
MT_API mt_status mt_gpu_find_in(const char *path, const char *name, mt_gpu *out);

/* ---- the search ---- */

/* Zero is the usual choice for all but config, gpu, gpus. */
typedef struct mt_fit_options {
    const mt_model_config *config; /* borrowed; gpt, bert or llama */
    const mt_gpu *gpu;             /* borrowed */
    int64_t gpus;
    int64_t batch;         /* sequences of a step, of all ranks; 0: as many as GPUs */
    int64_t seq;           /* 0: the model's context, at most 8192 */
    const char *optimizer; /* as mt_plan_training; NULL: "adamw" */
    bool without_master;   /* 16-bit parameters are stepped as they are, not in f32 copies */
    bool f32_gradients;    /* of 16-bit parameters */
    size_t kept_aside;     /* bytes of a GPU's memory that the allocator cannot have */
    size_t host_memory;    /* bytes, for all GPUs of a node; 0: their share of the node's */
    double utilisation;    /* share of the GPU's FLOP/s that products reach; 0: 1 */
    /* Only set-ups with these; 0 and NULL: any. */
    int64_t tensor, pipeline, interleave, context, expert;
    unsigned zero_stages;   /* a set: bit k is ZeRO stage k */
    const char *checkpoint; /* "none", "selective", "ops", "full", "sqrt", "every=K" */
    const char *offload;    /* "none", "cpu" */
    bool at_once;           /* no more microbatches than stages */
    int64_t threads;        /* that measure; 0: one for each processor */
    /* Called now and then, by one thread at a time: layouts done, of how many, and set-ups
     * measured. May be NULL. */
    void (*progress)(void *user, int64_t done, int64_t of, int64_t measured);
    void *user;
} mt_fit_options;

/* Seconds of a step, by the model. */
typedef struct mt_fit_time {
    double products; /* counted FLOPs, recomputed ones too, over flops * utilisation */
    double memory;   /* bytes that all other ops move, over bandwidth */
    double layers;   /* bytes between ranks that share layers, over link or network */
    double context;  /* bytes between ranks that have shards of the same sequences, the same */
    double experts;  /* bytes to ranks with other experts, over link and network at once */
    double stages;   /* bytes between stages, as between ranks that share layers */
    double bubble;   /* (p-1)/(m v) of the six above */
    double data;  /* bytes between ranks with the same parameters: what computing does not hide */
    double host;  /* bytes to the host and back: what forward and backward do not hide */
    double step;  /* the optimizer's bytes over bandwidth */
    double total; /* of all these */
} mt_fit_time;

/* One way to divide the work, measured: the first and the last stage; only the first if that does
 * not fit and others do. */
typedef struct mt_fit_setup {
    mt_parallel parallel;   /* its stage is the one that needs most; the last shard of sequences */
    const char *checkpoint; /* "none", ... */
    const char *offload;
    int64_t microbatch; /* sequences */
    bool fits;
    size_t peak, reserved; /* of a steady step, as a profile of that stage has them */
    size_t by_category[MT_CATEGORY_COUNT]; /* at the peak */
    size_t states; /* parameters, gradients and optimizer state, requested */
    size_t host;   /* bytes of host memory that an offload takes on a node, of all its ranks */
    bool fits_host;
    mt_fit_time time;
    double tokens_per_second; /* of all GPUs */
    double mfu;               /* of FLOPs that are not recomputed, all GPUs' share of their peak */
} mt_fit_setup;

/* What the search found. */
typedef struct mt_fit_result {
    mt_gpu gpu;
    int64_t gpus, batch, seq;
    size_t capacity;    /* of the GPU's memory, less what is kept aside */
    size_t host_memory; /* for all GPUs of a node; 0: not known */
    size_t n_fitting;   /* the first so many of ... */
    size_t n;
    mt_fit_setup *setups; /* ... all that were measured: those that fit come first, fastest first;
                           * then the others, least reserved first */
    int64_t n_profiles;   /* ranks measured */
    /* Not measured, because ... */
    int64_t n_larger; /* a smaller microbatch of the same set-up allocates too much */
    int64_t n_states; /* what stays from step to step is too much, whatever is recomputed */
    int64_t n_slower; /* the same with less recomputed or moved fits, ranks with other data could
                       * have the same tokens, or four different ones are faster */
    double seconds;   /* that the search took */
} mt_fit_result;

/* The result is to be freed with mt_fit_free in any case. That nothing fits is a result. */
MT_API mt_status mt_fit_search(const mt_fit_options *options, mt_fit_result *out);
MT_API void mt_fit_free(mt_fit_result *result);

MT_C_END
#endif

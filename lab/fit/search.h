/* search.h: what the files of the search share. */
#ifndef MTI_FIT_SEARCH_H
#define MTI_FIT_SEARCH_H

#include "measure/overhead.h"
#include "measure/two_steps.h"
#include "memtape/lab/fit.h"

/* Bytes that stay from step to step, as mti_measurement has them. */
typedef struct mti_states {
    size_t params, grads, optimizer;
} mti_states;

/* What is recomputed, and where saved tensors go. */
typedef struct mti_policy {
    const char *checkpoint;
    mti_offload_choice offload;
    double flops; /* of a step, of all ranks; 0: not measured */
} mti_policy;
#define MTI_MOST_POLICIES 10

/* What was measured without a capacity, for searches on other GPUs of workloads that stay where
 * they are in memory. */
typedef struct mti_fit_memo mti_fit_memo;
mti_fit_memo *mti_fit_memo_new(void);
void mti_fit_memo_free(mti_fit_memo *memo);

/* What all set-ups have in common. No thread changes it. */
typedef struct mti_fit_task {
    const mti_workload *workload; /* batch, parallel, checkpoint and offload are the set-up's */
    const mt_fit_options *options;
    mt_gpu gpu;
    int64_t gpus, batch, seq;     /* batch: of a step, of all ranks */
    size_t capacity, host_memory; /* of a GPU; of a node, 0: any */
    double utilisation;
    double model_flops; /* of a step, of all ranks, nothing recomputed */
    mti_states states;  /* of the whole model */
    int n_policies;     /* that the options allow, the least costly first */
    mti_policy policies[MTI_MOST_POLICIES];
    double bound; /* seconds of a step: what takes longer is not asked for; 0: everything is */
    bool any;     /* stop at the first layout in which something fits */
    bool nearest; /* nothing fits: measure what may come nearest, even if it is ruled out */
    size_t least; /* reserved bytes of the nearest measured until now; 0: none is */
    int64_t known_batch; /* nothing fits with so many sequences; 0: not known */
    mti_fit_memo *memo;  /* NULL: none */
} mti_fit_task;

/* ---- gpu_overhead.c ---- */

/* The rows of what is there before anything runs: the context, and a communicator for each group of
 * ranks. */
void mti_outside_begin(mti_outside *o, const mt_gpu *gpu, const mt_parallel *ranks);
/* What PyTorch gives cuBLAS for each handle and stream. */
size_t mti_outside_workspace(const mt_gpu *gpu);
/* What Transformer Engine takes for its products. */
size_t mti_outside_te_workspace(const mt_gpu *gpu);
/* What is not the allocator's of a GPU's memory, unless told otherwise: its rows, and their sum. */
void mti_gpu_outside(mti_outside *out, const mt_gpu *g, int64_t gpus);
size_t mti_gpu_kept_aside(const mt_gpu *g, int64_t gpus);

/* ---- longest.c ---- */

/* Sequences of a step that go through at once, or their length: the largest for which something
 * fits, and one larger for which nothing does; 0: there is none. */
typedef struct mti_fit_most {
    bool in_batches;
    int64_t largest, refused;
} mti_fit_most;
/* Sets the sequence length in *w, or the batch in *o, to the largest that fits; to the smallest
 * tried if none does. */
bool mti_fit_find_most(mti_fit_most *out, mti_workload *w, mt_fit_options *o);

/* What GPUs of one node have of its host memory: all, or their share; 0: not known. */
size_t mti_gpu_host_memory(const mt_gpu *g, int64_t gpus);
/* The shares of the formulas' rates that published runs reached on such a GPU, or on any. */
void mti_gpu_reached(const mt_gpu *g, double *least, double *most);
/* Where the name, as it was typed, is that of cards of two sizes: the one that it does not stand
 * for here; NULL: it is of one. */
const char *mti_gpu_other_size(const char *name);
bool mti_multiplies_bf16(const mti_workload *w);

/* mt_fit_search for any workload. `any`: stops at the first layout in which something fits; layouts
 * with the smallest states come first. known_batch, memo: as the task's. */
bool mti_fit_run(const mti_workload *w, const mt_fit_options *options, bool any,
                 int64_t known_batch, mti_fit_memo *memo, mt_fit_result *out);

/* ---- layouts.c: the ways to divide a model ---- */

typedef MTI_VEC(mt_parallel) mti_layouts;
/* Lists the divisions that the options allow: tensor, pipeline, interleave, zero, and the ranks
 * with the same parameters (data times context) with the least context. */
bool mti_layouts_make(mti_layouts *all, const mti_fit_task *task);
/* Sets *out to the layout with each sequence cut into c shards; false, without an error, if it
 * cannot be cut so. */
bool mti_layout_cut(const mti_fit_task *task, const mt_parallel *layout, int64_t c,
                    mt_parallel *out);
/* The largest context that is searched, from layout->context on; with a pipeline only that one. */
int64_t mti_layout_most_cut(const mt_parallel *layout);

/* Lists the policies that the options allow. */
void mti_policies_make(mti_fit_task *task);
/* Whether b costs no less than a: it recomputes all that a does, and a moves nothing (what is
 * recomputed is not kept, so b may move less). */
bool mti_policy_includes(const mti_policy *b, const mti_policy *a);

/* ---- setup.c: one set-up, measured ---- */

typedef struct mti_fit_measured {
    size_t requested; /* the most, of both steps */
    int profiles;
    double sending; /* seconds, of the first stage; hardly depends on the microbatch */
    /* Nothing else is known: the first stage alone takes longer than the bound; something needs
     * more than the nearest, of states that do not fit. */
    bool slow, far;
} mti_fit_measured;

/* Measures s, whose parallel, checkpoint, offload and microbatch are set, and fills in the rest. */
bool mti_fit_measure(const mti_fit_task *task, mt_fit_setup *s, mti_fit_measured *m);
/* The workload of the set-up's stage. */
mti_workload mti_fit_workload(const mti_fit_task *task, const mt_fit_setup *s);
/* Sets the FLOPs of a step of all ranks, by policy, and the states of the whole model. */
bool mti_fit_measure_model(mti_fit_task *task);
/* The fewest microbatches that have as much in flight as any more of them, without interleave. */
int64_t mti_fit_fewest_in_flight(const mt_parallel *parallel);
/* A lower bound of what stays on the neediest rank of this division from step to step. */
size_t mti_fit_least_states(const mti_fit_task *task, const mt_parallel *parallel);

/* ---- memo.c ---- */

/* Measures the workload of the task's set-up, which has no capacity, or remembers it. Of *m, what a
 * set-up and its time are made of. False on failure. */
bool mti_fit_memo_measure(const mti_fit_task *task, const mti_workload *w, mti_requirement *need,
                          mti_measurement *m);

/* ---- time.c: the model of a step's time ---- */

/* A lower bound of the time of every set-up with this division and these microbatches, with so
 * many FLOPs of all ranks, and seconds of sending within layers, sequences and between stages. */
double mti_fit_least_time(const mti_fit_task *task, const mt_parallel *parallel, double flops,
                          double sending);
/* How many elements of a layer's experts a rank has. */
double mti_fit_experts_of_layer(const mt_model_config *c, const mt_parallel *parallel);
/* How many layers have experts. */
double mti_fit_expert_layers(const mt_model_config *c);
/* m: of a rank of the set-up. */
mt_fit_time mti_fit_time_of(const mti_fit_task *task, const mt_fit_setup *s,
                            const mti_measurement *m);

/* ---- fastest.c: what is told apart in the answer ---- */

#define MTI_FIT_FASTEST 4 /* the answer shows no more */

/* Whether they differ only in the ZeRO stage, in microbatches and in parts of a stage. */
bool mti_fit_alike(const mt_fit_setup *a, const mt_fit_setup *b);

/* The fastest that fit, no two of them alike; at[0] is the slowest of them. */
typedef struct mti_fit_fastest {
    int n;
    mt_fit_setup at[MTI_FIT_FASTEST];
} mti_fit_fastest;
void mti_fit_note(mti_fit_fastest *best, const mt_fit_setup *s);

/* ---- published.c ---- */

/* How the model was trained, as published, measured with what the search has besides: the ops, the
 * optimizer, the capacity. */
typedef struct mti_fit_published {
    const char *source; /* NULL: none is known */
    int64_t gpus, seq;
    unsigned recompute; /* a set of mt_recompute */
    mt_fit_setup setup;
} mti_fit_published;
bool mti_fit_measure_published(const mti_workload *workload, const mt_fit_result *r,
                               mti_fit_published *out);

/* ---- explore.c: the set-ups of one layout ---- */

typedef struct mti_fit_found {
    MTI_VEC(mt_fit_setup) setups;
    int64_t n_profiles, n_larger, n_states, n_slower;
} mti_fit_found;
/* Measures the set-ups of this layout. */
bool mti_fit_explore(const mti_fit_task *task, const mt_parallel *layout, mti_fit_found *found);

/* ---- remedy.c: if nothing fits, changes with which something does ---- */

#define MTI_FIT_CHANGE sizeof((mti_change *)NULL)->words
typedef struct mti_fit_remedy {
    char change[MTI_FIT_CHANGE]; /* "--gpus 16" */
    mt_fit_setup setup;          /* one that fits then */
} mti_fit_remedy;
typedef struct mti_fit_remedies {
    int n;
    mti_fit_remedy at[16];
} mti_fit_remedies;
/* Empty if something fits. changes: to try, besides those that a search makes by itself. */
bool mti_fit_remedies_make(mti_fit_remedies *all, const mt_fit_result *r, const mti_workload *w,
                           const mt_fit_options *o, const mti_changes *changes);

#endif

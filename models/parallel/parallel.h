/* parallel.h: what the files of parallel ranks share. Letters as in model.h, and t: ranks of tensor
 * parallelism, p: of the pipeline. */
#ifndef MTI_PARALLEL_H
#define MTI_PARALLEL_H

#include "memtape/host_copy.h"
#include "memtape/models/group.h"
#include "memtape/models/lora.h"
#include "memtape/models/parallel.h"
#include "nn/model.h"

/* Groups: the ranks that share each layer; those that share the same sequences; those that have the
 * same shard and other data or positions; the stages. */
static inline mt_group mti_tensor_group(const mt_parallel *p)
{
    return (mt_group){p->tensor, p->tensor_rank, p->tensor_comm};
}
static inline mt_group mti_context_group(const mt_parallel *p)
{
    return (mt_group){p->context, p->context_rank, p->context_comm};
}
static inline mt_group mti_data_group(const mt_parallel *p)
{
    return (mt_group){p->data * p->context, p->data_rank * p->context + p->context_rank,
                      p->data_comm};
}
/* Groups within the last: ranks among which ZeRO cuts, and those with the same shards (HSDP). */
static inline mt_group mti_shard_group(const mt_parallel *p)
{
    mt_group g = mti_data_group(p);
    if (p->replicas > 1)
        g = (mt_group){g.ranks / p->replicas, g.rank % (g.ranks / p->replicas), p->shard_comm};
    return g;
}
static inline mt_group mti_replica_group(const mt_parallel *p)
{
    const mt_group g = mti_data_group(p);
    return (mt_group){p->replicas, g.rank / (g.ranks / p->replicas), p->replica_comm};
}
/* Ranks of one shard group, among which a block is cut after its forward; one: it is not cut. */
static inline mt_group mti_reshard_group(const mt_parallel *p)
{
    const int64_t n = p->reshard > 1 ? p->reshard : 1;
    return (mt_group){n, mti_shard_group(p).rank % n, p->reshard_comm};
}
/* Whether experts are whole where the ranks of t share the rest of a layer. */
static inline bool mti_folds_experts(const mt_parallel *p)
{
    return p->expert_tensor == 1 && p->tensor > 1;
}
/* Whether ranks divide each layer's experts. */
static inline bool mti_divides_experts(const mt_parallel *p)
{
    return p->expert > 1 || mti_folds_experts(p);
}
/* Ranks with other tokens for the experts: of one shard group, or of t of them. */
static inline mt_group mti_token_group(const mt_parallel *p)
{
    const mt_group g = mti_shard_group(p);
    if (!mti_folds_experts(p)) return g;
    return (mt_group){p->tensor * g.ranks, p->tensor_rank + p->tensor * g.rank, NULL};
}
/* Among these: those that divide each layer's experts, and those with the same. */
static inline mt_group mti_expert_group(const mt_parallel *p)
{
    return (mt_group){p->expert, mti_token_group(p).rank % p->expert, p->expert_comm};
}
static inline mt_group mti_expert_data_group(const mt_parallel *p)
{
    const mt_group g = mti_token_group(p);
    return (mt_group){g.ranks / p->expert, g.rank / p->expert, p->expert_data_comm};
}
static inline mt_group mti_stages(const mt_parallel *p)
{
    return (mt_group){p->pipeline, p->stage, p->pipeline_comm};
}
static inline bool mti_is_end(const mt_parallel *p)
{
    return p->pipeline > 1 && (p->stage == 0 || p->stage == p->pipeline - 1);
}
/* The first stage and the last; this rank is one of them. */
static inline mt_group mti_ends(const mt_parallel *p)
{
    return (mt_group){2, p->stage != 0, p->ends_comm};
}

/* A rank's shard of one part of the model: consecutive layers, with fewer heads and a narrower MLP.
 */
typedef struct mti_model_shard {
    mt_parallel parallel;  /* every "0: ..." filled in */
    mt_model_config whole; /* resolved; the vocabulary padded to a multiple of t */
    int64_t vocab;         /* without padding */
    mt_model_config local; /* this rank's shard of a layer: fewer heads, a narrower MLP */
    int64_t from, to;      /* layers */
    bool first, last;      /* with the embedding; with the head */
    /* While a rank makes the loss itself (mti_rank_forward_loss); borrowed. */
    mt_tensor *target, *tokens;
} mti_model_shard;

/* When ZeRO 3 gathers parameters, how long they stay, and when it sums their gradients: what fsdp
 * and the numbers beside it come to. */
typedef struct mti_shard_policy {
    enum { MTI_GATHER_MODULE, MTI_GATHER_BLOCK, MTI_GATHER_AHEAD } gather; /* mti_gather_units */
    bool keep_root, keep_last, group_ends, f32_shards, f32_reduce, reduce_last; /* MT_FSDP_... */
    bool stay, last_stays; /* blocks, from forward to backward; the last one */
    bool of_stage;         /* of a pipeline: several forwards are in flight */
    size_t most_summed;    /* reduce_inputs */
} mti_shard_policy;
extern const mti_choice mti_gather_units;
mti_shard_policy mti_shard_policy_of(const mt_parallel *parallel);
/* default, always, never; and mt_parallel's reshard as text, in buf or elsewhere. */
extern const mti_choice mti_reshards;
const char *mti_reshard_text(int64_t reshard, char *buf, size_t n_bytes);
/* Names of mt_reduce_time, and of mt_buckets. */
extern const mti_choice mti_reduce_times, mti_bucket_forms;

/* parallel with every "0: ..." filled in. */
mt_parallel mti_filled_in(const mt_parallel *parallel);
/* *s: this rank's shard of the part; checks parallel and config. */
bool mti_model_shard_make(mti_model_shard *s, const mt_model_config *config,
                          const mt_parallel *parallel, int64_t part);

/* mt_model_loss of this rank's logits [b,s,v/t], the same for all ranks. */
mt_tensor *mti_rank_loss(const mti_model_shard *s, mt_tensor *logits, mt_tensor *target);
/* Over the ranks with other tokens than those of `user`, an mt_parallel. */
bool mti_sum_loads(const void *user, mt_tensor *loads);
/* mt_model_forward_loss of a rank with the head; of another one, without a target, what its layers
 * add to the loss, or if that is nothing what it sends. */
mt_tensor *mti_rank_forward_loss(mt_module *rank, mt_tensor *input, mt_tensor *tokens,
                                 mt_tensor *target);
/* Whether a part has a copy of the embedding, which the first stage has, for predictions ahead. */
static inline bool mti_copies_embedding(const mti_model_shard *s)
{
    return s->last && !s->first && s->whole.mtp_layers > 0;
}
/* Whether a sequence, of which each rank of c has a shard, may have this length. */
bool mti_check_length(const char *who, const mti_model_shard *s, int64_t seq);
/* How much of such a sequence a rank has between a layer's products. */
int64_t mti_shard_of_sequence(const mti_model_shard *s, int64_t seq);
/* A sequence has c shards; a rank's queries see the keys of this many. */
int64_t mti_shards_seen(const mti_model_shard *s);

/* ---- parts of a rank's layers (layer_comms.c); no change where t is 1 ---- */

/* Puts around m's forward: x becomes the input of all t ranks, each of which computes a part. It is
 * replicated or, with sequence parallelism, gathered from [b,s/t,d]; then the tape keeps the shard.
 */
bool mti_enter_ranks(mt_module *m, const mt_parallel *parallel);
/* The same for one run(m, x). */
mt_tensor *mti_run_entered(mt_module *m, mt_forward_fn *run, const mt_parallel *parallel,
                           mt_tensor *x);
mti_enter_fn mti_enter;
/* Replaces a child, a linear of which this rank has some columns: sums its output over all ranks,
 * then adds the bias. -> [b,s,d], or [b,s/t,d] with sequence parallelism. With an adapter, also the
 * output of its A. (Beside some rows of a linear the adapter stays as it is: every rank has A, and
 * with its rows of B gives a part of A's gradient and of the input's.) */
bool mti_sum_over_ranks(mt_module *parent, const char *name, const mt_parallel *parallel);
/* Replaces a child, an embedding of which this rank has some rows: ids [b,s] -> [b,s,d] or
 * [b,s/t,d], zeros for rows of other ranks, summed over the ranks. */
bool mti_shard_embedding(mt_module *parent, const char *name, const mti_model_shard *shard);
/* From now on every dropout under m draws this rank's shard of what one process would: its
 * sequences of all data ranks', and its heads or its shard of the sequence. */
bool mti_shard_draws(mt_module *m, const mt_parallel *parallel);
/* The kind of a head that shares the embedding's weight. */
#define MTI_TIED "tied"

/* ---- ZeRO 3: parameters as shards (shards.c) ---- */

typedef struct mti_units mti_units;
typedef struct mti_unit mti_unit;

/* A parameter of which each rank of a group has a shard, elements that lie side by side in the
 * whole (mti_shard_of). A matrix's shard is a matrix of one row. */
typedef struct mti_sharded {
    mt_tensor *shard; /* this rank's */
    mt_layout whole;
    mt_group group;
} mti_sharded;
static inline int64_t mti_layout_count(const mt_layout *layout)
{
    int64_t n = 1;
    for (int d = 0; d < layout->rank; d++) n *= layout->shape[d];
    return n;
}

/* Replaces each parameter under m by this rank's shard, made on `device`, with zeros; the module
 * runs with the whole, as its unit gathers it. */
typedef struct mti_sharder {
    mt_device *device;
    const mt_parallel *parallel; /* borrowed */
    mti_shard_policy policy;     /* by blocks a block's divided experts are a unit of their own */
    mti_units *units;
    mti_unit *unit;         /* around m; NULL: each module is its own, or in `end` */
    mti_unit *divided_unit; /* of the divided experts around m; NULL: each module is its own */
    mti_unit *end;     /* of modules before the blocks, or after them; NULL: there is none yet */
    mt_tensor *shared; /* a parameter of two modules (may be NULL), borrowed ... */
    mt_tensor *shard;  /* ... and its shard; NULL at first */
} mti_sharder;
bool mti_shard_params(mt_module *m, mti_sharder *sharder);

/* ---- ZeRO 3: what is gathered together (units.c, unit_gather.c, unit_grads.c) ---- */

/* The units of one part; parallel says how. A unit, in FSDP's word, is the parameters that are
 * gathered together: a rank has a shard of each. Counted references. */
mti_units *mti_units_new(mt_device *device, const mt_parallel *parallel);
void mti_units_release(mti_units *units);
/* Before the backwards of a step: nothing is left of another's gradients. */
void mti_units_start_backward(mti_units *units);
/* As mti_zero_before_backward; NULL: nothing. */
void mti_units_set_last(mti_units *units, bool is_last);

typedef enum mti_unit_kind {
    MTI_UNIT_MODULE,  /* each parameter is gathered by itself, whenever it is read */
    MTI_UNIT_BLOCK,   /* all together, before the forward and the backward; m NULL: of several
                       * modules, of which the first begins its forward and the last ends it */
    MTI_UNIT_EXPERTS, /* as a block, in the last one that was added: another group has the shards */
    MTI_UNIT_ROOT     /* each before the forward; they stay until backward has their gradients */
} mti_unit_kind;
/* Adds unit m, whose parameters are those of mti_unit_add; blocks in the model's order. It lives as
 * long as m, every pass, and what retains it. NULL on failure. */
mti_unit *mti_units_add(mti_units *units, mti_unit_kind kind, mt_module *m);
mti_unit *mti_unit_retain(mti_unit *unit);
void mti_unit_release(mti_unit *unit);
/* All of a unit's have the same group. is_product: autocast multiplies by it. -> its number; -1 on
 * failure. */
int mti_unit_add(mti_unit *unit, const mti_sharded *param, bool is_product);
/* The parameter with this shard; NULL: there is none, or there are no units. */
const mti_sharded *mti_units_find(const mti_units *units, const mt_tensor *shard);

/* A module of a unit of several: its first, which begins the unit's forward, and the last. */
void mti_unit_set_closing(mti_unit *unit, const void *module);
bool mti_unit_is_closing(const mti_unit *unit, const void *module);
bool mti_unit_enter(mti_unit *unit);
/* y: what they made; NULL: they failed. */
bool mti_unit_leave(mti_unit *unit, const mt_tensor *y);
/* One forward of a unit: that which runs, or for a module a new one; the caller's to release. */
typedef struct mti_pass mti_pass;
mti_pass *mti_unit_pass(mti_unit *unit);
mti_pass *mti_pass_retain(mti_pass *pass);
void mti_pass_release(mti_pass *pass);
/* Parameter i, whole: recorded, in the unit's forward; in backward, until as many were dropped as
 * the tape keeps. NULL on failure. */
mt_tensor *mti_pass_forward(mti_pass *pass, int i);
mt_tensor *mti_pass_backward(mti_pass *pass, int i);
/* Call when the tape saves one of this pass's parameters, and when it lets one go. */
void mti_pass_keeps(mti_pass *pass);
void mti_pass_drops(mti_pass *pass);

/* ---- a parameter that the tape keeps as this rank's shard (layer_comms.c) ---- */

typedef struct mti_regather mti_regather;
/* Until mti_regather_end, saves of `whole`, parameter i of the pass, keep the shard instead;
 * backward gathers it again. NULL on failure. */
mti_regather *mti_regather_param(mt_tensor *whole, mt_tensor *shard, mti_pass *pass, int i);
bool mti_regather_end(mti_regather *r);

/* ---- parameters by name, and their first values (weights.c) ---- */

/* Whether each tensor rank has the whole parameter, and a part of its gradient. */
bool mti_is_partial(const mt_parallel *parallel, const char *path);
/* Whether each tensor rank has a shard of the parameter. */
bool mti_is_sharded(const mt_parallel *parallel, const char *path);
/* Tells whether the parameter belongs to experts that ranks divide. */
bool mti_is_divided(const mt_parallel *parallel, const char *path);
/* Gives the ranks among which ZeRO shards the parameter. */
mt_group mti_param_group(const mt_parallel *parallel, const char *path);
/* Whether it is the embedding's weight or, under another path, the head's. */
bool mti_is_vocabulary(const char *path);
/* Whether the first stage and the last, of which this is one, both have it: a tied embedding, or
 * that of predictions ahead. */
bool mti_is_at_both_ends(const mti_model_shard *shard, const char *path);
/* Whether it is an adapter's A or B. */
bool mti_is_adapter(const char *path);
/* A parameter's name in the model without adapters: an adapter's base is the linear itself. */
#define MTI_PLAIN_PATH 256
const char *mti_plain_path(char plain[MTI_PLAIN_PATH], const char *path);

/* Gives m, a rank's part, its shard of the weights that the whole model would draw from the
 * generator's state (seed, offset), mt_lora_add what it draws after them, and leaves the generator
 * as these would. units: of its shards; NULL: it has none. lora: its adapters; NULL: none. */
bool mti_rank_draw(mt_module *m, const mti_model_shard *shard, const mti_units *units,
                   const mt_lora_options *lora, uint64_t seed, uint64_t offset);
/* A weight in 4 bits becomes that of a linear with the weight `dense`, on any device. */
bool mti_set_codes(mt_tensor *codes, mt_tensor *dense, const mt_lora_options *lora);

/* The whole model on a device without data, with these adapters (NULL: none): the names and shapes
 * that a file has. Close in any case. */
typedef struct mti_whole {
    mt_device *device;
    mt_module *model;
    const mt_named_tensor *list;
    size_t n;
} mti_whole;
bool mti_whole_open(mti_whole *whole, const mti_model_shard *shard, const mt_lora_options *lora);
void mti_whole_close(mti_whole *whole);
/* The parameter that a rank calls `path`, in the list: the embedding's weight for a head that
 * shares it, whose bias in a bert has another name there. NULL: none. */
const mt_named_tensor *mti_whole_find(const mti_whole *whole, const char *path);

/* Visits elements [from, from + n) of `own`, all that the tensor rank has, run by run; a
 * run's elements lie side by side in the whole, too. fn gets n of them from the ith on; at: where
 * they begin in the whole, or -1: they are padding. */
typedef bool mti_each_run_fn(void *user, int64_t i, int64_t n, int64_t at);
bool mti_each_run(const mti_model_shard *shard, const char *path, const mt_layout *own,
                  const mt_tensor *whole, int64_t from, int64_t n, mti_each_run_fn *fn, void *user);

/* ---- the schedule (schedule.c) ---- */

typedef struct mti_turn {
    int64_t micro, part;
} mti_turn;

typedef struct mti_schedule {
    int64_t pipeline, n_parts;
    int64_t ahead; /* forwards before the first backward: parts in flight, when they are most */
    int64_t run;   /* microbatches: all, or fewer where they repeat themselves */
} mti_schedule;

/* The schedule of a stage; each field of *parallel is filled in. */
mti_schedule mti_schedule_of(const mt_parallel *parallel);
/* The forward or backward that comes k-th, of run times n_parts. */
mti_turn mti_schedule_at(const mti_schedule *s, int64_t k, bool backward);
/* Which forward's backward is the k-th. */
int64_t mti_schedule_return(const mti_schedule *s, int64_t k);
/* After how many forwards, and backwards, their parts are the same again. */
int64_t mti_schedule_period(const mti_schedule *s);

/* ---- gradients that are summed while backward goes on (reducer.c) ---- */

/* Sums the gradients of the parameters of `model` that train, but of divided experts, of which
 * other ranks have the same; tied: that of the embedding, which is
 * the head, too, at the end of backward if there are buckets, else not. scatter: a rank gets the
 * sum of its shard alone. The device has no links. Buckets are parallel's. */
#define MTI_BUCKET_BYTES ((size_t)25 << 20)
typedef struct mti_reducer mti_reducer;
mti_reducer *mti_reducer_new(mt_device *device, const mt_group *group, bool scatter,
                             mt_module *model, bool tied, const mt_parallel *parallel);
void mti_reducer_free(mti_reducer *reducer);
/* Before a step's backwards; fails if gradients are there that have been summed. */
bool mti_reducer_start(mti_reducer *reducer);
/* From now on a backward is the last one of the step for what it leads to, or is not. */
void mti_reducer_set_last(mti_reducer *reducer, bool is_last);
/* After the backwards, also after a failure, not ok: waits until what has begun is summed; fails if
 * such a gradient is no longer there, or if not ok. */
bool mti_reducer_finish(mti_reducer *reducer, bool ok);
/* Whether this parameter's gradient is summed since mti_reducer_start. */
bool mti_reducer_has(const mti_reducer *reducer, const mt_tensor *param);

/* ---- what stays from step to step (zero.c) ---- */

/* Shards of the parameters of `model` that train and, from stage 2 on, of their gradients. */
typedef struct mti_zero mti_zero;
mti_zero *mti_zero_new(const mti_model_shard *shard, mt_device *device, mt_module *model);
void mti_zero_free(mti_zero *zero);
/* The module whose parameters an optimizer steps: shards, or the model. */
mt_module *mti_zero_stepped(const mti_zero *zero);
/* Before the backwards of a step; before each: whether it is the step's last of its part; after
 * all, also after a failure. Between them gradients may be summed, in which nothing is read. */
bool mti_zero_start_backward(mti_zero *zero);
bool mti_zero_before_backward(mti_zero *zero, bool is_last);
bool mti_zero_end_backward(mti_zero *zero, bool ok);
/* Around the optimizer's step; the second drops the gradients. */
bool mti_zero_before_step(mti_zero *zero);
bool mti_zero_after_step(mti_zero *zero);
/* Between them: *out = the sum of the squares of all ranks' gradients. */
bool mti_zero_squares(const mti_zero *zero, double *out);
/* Whether tensor ranks have parts of some gradient each, which are added up before a step. */
bool mti_zero_has_partial_grads(const mti_zero *zero);
/* Counts the bytes of gradients that the step found on the device. */
size_t mti_zero_grad_bytes(const mti_zero *zero);
/* Tells an optimizer how a rank's shards are stepped; before it steps. */
void mti_zero_direct(const mti_zero *zero, mt_optimizer *optimizer);

/* ---- what dropout draws in a pipeline (draws.c) ---- */

/* How many counters of the generator each part of the model takes for one microbatch. */
typedef struct mti_part_draws {
    int64_t batch, seq, n;
    uint64_t *parts; /* [n] in the model's order; mti_free it; NULL at first */
} mti_part_draws;

/* Tells whether each stage must set the generator to where a single process would be. */
bool mti_draws_needed(const mt_device *device, const mti_model_shard *shard);
/* Counts the draws of each part for this batch size into *d; does nothing if *d has them. */
bool mti_draws_find(mti_part_draws *d, const mti_model_shard *shard, int64_t batch, int64_t seq);
/* Counters before part `nth` of the model; nth = n: of all. */
uint64_t mti_draws_before(const mti_part_draws *d, int64_t nth);

/* ---- all that one rank has (stage.c) ---- */

typedef struct mti_step mti_step;

typedef enum mti_moment {
    MTI_BEFORE_FORWARD, /* the k-th; so are these three: */
    MTI_AFTER_FORWARD,  /* after a failure, too, once the observer has seen what is before it */
    MTI_BEFORE_BACKWARD,
    MTI_BEFORE_DROP, /* the optimizer has stepped, and the gradients are there; no step, k = 0 */
} mti_moment;

/* Observes a stage's steps; false if it fails, and so does the step. */
typedef bool mti_observe_fn(void *user, mti_moment moment, mti_step *step, int64_t k);
#define MTI_OBSERVERS 4

typedef struct mt_stage {
    mti_schedule schedule;
    mt_device *device;       /* borrowed; it outlives the parts */
    mti_model_shard *shards; /* [schedule.n_parts] */
    mt_module **parts;       /* [schedule.n_parts] */
    mt_module *model;        /* with all parameters: the only part, or `joined` */
    mt_module *joined;
    mti_zero *zero;
    mti_units **units; /* [schedule.n_parts]; NULL: it has none */
    int64_t layers;
    uint64_t n_params;    /* before ZeRO cuts them */
    mt_comm *unconnected; /* the shards' pipeline_comm on a device without data, if none is given */
    mti_part_draws draws;
    struct {
        mti_observe_fn *fn;
        void *user; /* borrowed */
    } observers[MTI_OBSERVERS];
    int n_observers;
    mt_scaler *scaler;    /* borrowed; NULL: none */
    mt_tensor *outputs;   /* the last logits, with MT_LOSS_HELD; else NULL */
    bool is_plain;        /* a model of one process, which need not be cut into layers */
    mt_lora_options lora; /* its targets are this stage's own; rank 0: there are no adapters */
} mti_stage;
static inline const mt_lora_options *mti_stage_lora(const mti_stage *s)
{
    return s->lora.rank ? &s->lora : NULL;
}

/* seq: 0 if it is not known yet. lora: the adapters of mt_lora_add, whose targets
 * need not all fit; NULL: none.
 * Free in any case. */
bool mti_stage_make(mti_stage *s, mt_device *device, const mt_model_config *config,
                    const mt_parallel *parallel, int64_t seq, const mt_lora_options *lora);
/* A model of any kind as the only rank, which makes `microbatches` in a step, each by one
 * call. Takes the model over. Free in any case. */
bool mti_stage_make_plain(mti_stage *s, mt_device *device, const mt_model_config *config,
                          mt_module *model, int64_t microbatches);
void mti_stage_free(mti_stage *s);
/* Its steps have this observer, too. Around a forward the first is the outermost. */
void mti_stage_observe(mti_stage *s, mti_observe_fn *fn, void *user);

/* A part of the model whose forward has run and whose backward has not. */
typedef struct mti_in_flight {
    mt_tensor *input, *target; /* target NULL: the output is not the model's loss */
    mt_tensor *tokens;         /* of a part with a copy of the embedding; else NULL */
    mt_tensor *output;
    bool last;           /* the output is the model's; else it is what is sent on */
    bool learns;         /* what layers add to the loss is wanted, of a part before the last, too */
    bool is_loss;        /* the output, or a part of it */
    mt_tensor **outputs; /* where MT_LOSS_HELD holds the logits; NULL: nobody does */
} mti_in_flight;

/* What a part takes for a microbatch of such tokens: they, or what the stage before sends. */
mt_tensor *mti_stage_input(const mt_stage *s, int64_t part, mt_tensor *tokens);
/* Forward of one part, f except for its output: what goes to the next stage or, of the model's last
 * part, its output; with a target the loss. If it learns, and its layers add to the loss, that. */
mt_tensor *mti_stage_run(const mt_stage *s, int64_t part, const mti_in_flight *f);

/* mt_rank_new, with adapters. *units: of its shards, which the caller releases; NULL: it has none.
 * units may be NULL. */
mt_module *mti_rank_new(mt_device *device, const mt_model_config *config,
                        const mt_parallel *parallel, int64_t part, const mt_lora_options *lora,
                        mti_units **units);

/* ---- one training step (step.c) ---- */

/* Where a step's batches come from, and where its losses go. */
typedef struct mti_batches {
    /* Sets f's input and, if the output is to be a loss, target; the step releases them. */
    bool (*take)(void *user, mti_turn turn, mti_in_flight *f);
    bool (*note_loss)(void *user, mt_tensor *loss); /* before it is scaled; may be NULL */
    void *user;
} mti_batches;

/* The forwards and backwards of a step, by the schedule 1F1B. Private, except for in_flight: of the
 * k-th forward [k], until the first backward. */
struct mti_step {
    mt_stage *stage;
    mti_batches batches;
    int64_t n, next, n_places; /* forwards of the step; the next; places of ... */
    mti_in_flight *in_flight;  /* ... this ring */
};

/* End in any case. */
bool mti_step_begin(mti_step *step, mt_stage *stage, const mti_batches *batches);
/* The forwards before the first backward; then all other forwards and backwards. */
bool mti_step_ahead(mti_step *step);
bool mti_step_backward(mti_step *step);
/* Instead of both, for inference: the forwards of the first microbatch. */
bool mti_step_infer(mti_step *step);
/* Call before a backward. Skips every remaining turn that would only repeat a whole period. */
void mti_step_leave_out(mti_step *step, int64_t period);
void mti_step_end(mti_step *step);

/* Adds up the gradients of all ranks, steps with their mean (optimizer NULL: does not), and drops
 * them; as mt_stage_step. */
bool mti_step_optimizer(mt_stage *s, mt_optimizer *optimizer, double max_norm, double *norm);
/* A step's loss is the mean of this many. */
double mti_stage_losses(const mt_stage *s);
/* Backward begins with the loss times this. */
double mti_stage_loss_scale(const mt_stage *s);

#endif

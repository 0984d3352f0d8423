/* costs.c: what training costs, by formula and as measured on meta. */
#include <string.h>
#include "measure/costs.h"
#include "memtape/models/generate.h"
#include "nn/model.h"
#include "plan/plan.h"

/* ---- a step ---- */

static int64_t rounding(int64_t bytes) { return (int64_t)mti_rounded((size_t)bytes) - bytes; }

typedef struct states {
    const mti_workload *workload;
    int64_t rounding;       /* of every tensor up to multiples of 512 bytes */
    int64_t beside;         /* state of the optimizer that is not so much for each element */
    int64_t input_gradient; /* a gradient, but not of a parameter; its block, ... */
    int64_t input_rest;     /* ... and the rest in it */
} states;

/* Adds parameter, gradient and the optimizer's tensors, as docs/models.md has them. */
static void add_parameter(states *st, const mti_hashmap *embeddings, const mt_named_tensor *named)
{
    const mt_tensor *param = named->tensor;
    const mti_workload *w = st->workload;
    mt_dtype dtype = mt_dtype_of(param);
    int64_t n = mt_numel(param), e = (int64_t)mt_dtype_size(dtype), wide = e == 8 ? 8 : 4;
    int64_t sizes[MTI_MAX_STATE];
    int n_state = mti_optimizer_sizes(w->optimizer, embeddings, named, w->memory.master, sizes);
    st->rounding += rounding(n * e) + rounding(n * (w->memory.f32_gradients ? wide : e)) +
                    w->memory.master * rounding(n * wide);
    st->beside -= n * mti_optimizer_element_bytes(w->optimizer, dtype);
    for (int k = 0; k < n_state; k++) {
        st->rounding += rounding(sizes[k]);
        st->beside += sizes[k];
    }
}

static bool look(void *user, const mti_subject *s, double loss, double scale)
{
    states *st = user;
    const mt_named_tensor *params;
    size_t n;
    mti_hashmap embeddings = {0};
    (void)loss, (void)scale;
    bool ok = mt_module_params(s->stage.model, &params, &n) == MT_OK &&
              mti_optimizer_note_embeddings(s->stage.model, &embeddings);
    for (size_t i = 0; ok && i < n; i++)
        if (!mti_is_buffer(params[i].tensor)) add_parameter(st, &embeddings, &params[i]);
    mti_hashmap_free(&embeddings);
    if (!ok) return false;
    mt_tensor *g = mt_grad(s->input);
    mt_storage_info of = mt_storage_of(g);
    st->input_gradient = (int64_t)of.allocated;
    st->input_rest = (int64_t)of.allocated - (int64_t)mti_rounded(of.bytes);
    return true;
}

/* ---- formulas and measurements ---- */

static void add(mti_plan_result *p, int64_t measured)
{
    mti_comparison *c = &p->items[p->n_items++];
    c->measured = measured;
    c->unexplained = measured - c->formula.expected;
}

static mt_plan_formula *next(mti_plan_result *p) { return &p->items[p->n_items].formula; }

static bool compare_parameters(mti_plan_result *p, const mt_plan_run *run, const mti_measurement *m)
{
    mt_model_kind kind = p->workload->config.kind;
    if (mt_plan_parameters(run, next(p)) != MT_OK) return false;
    add(p, (int64_t)m->n_params);
    if (!mti_is_whole(kind) && kind != MT_MODEL_BLOCK) return true;
    if (mt_plan_parameters_in_brief(run, next(p)) != MT_OK) return false;
    add(p, (int64_t)m->n_params);
    return true;
}

/* What a category has after a phase is added, with the rests in it. */
static void add_states(const mti_measurement *m, const char *phase, mt_category category,
                       int64_t *bytes, int64_t *rests)
{
    const mti_phases *phases = &m->phases;
    for (int i = 0; i < phases->n; i++)
        if (!strcmp(phases->at[i].name, phase)) {
            *bytes += (int64_t)phases->at[i].by_category[category];
            *rests += (int64_t)phases->at[i].rests[category];
        }
}

static bool compare_states(mti_plan_result *p, const mt_plan_run *run, const mti_measurement *m,
                           const states *st)
{
    const mti_workload *w = p->workload;
    const mt_plan_training training = {.optimizer = mti_optimizer_name(w->optimizer),
                                       .master = w->memory.master,
                                       .f32_gradients = w->memory.f32_gradients};
    int64_t bytes = -st->input_gradient, rests = -st->input_rest;
    add_states(m, "backward", MT_PARAMETER, &bytes, &rests);
    add_states(m, "backward", MT_GRADIENT, &bytes, &rests);
    add_states(m, "step", MT_OPTIMIZER, &bytes, &rests);
    if (mt_plan_states(run, &training, next(p)) != MT_OK ||
        !mti_add_row(next(p), st->beside, "%s", mti_optimizer_row_of(w->optimizer)->beside) ||
        !mti_add_row(next(p), st->rounding, "every tensor up to a multiple of 512 bytes") ||
        !mti_add_row(next(p), rests, "rests of blocks that were not split off"))
        return false;
    add(p, bytes);
    return true;
}

static bool compare_flops(mti_plan_result *p, const mt_plan_run *run, const mti_measurement *m)
{
    p->flops = m->flops;
    if (mt_plan_flops(run, next(p)) != MT_OK) return false;
    add(p, (int64_t)(m->flops.forward + m->flops.backward + m->flops.recompute));
    return true;
}

static bool compare_forward(mti_plan_result *p, const mt_plan_run *run, const mti_measurement *m)
{
    if (mt_plan_forward_flops(run, next(p), p->components, &p->n_components) != MT_OK) return false;
    add(p, (int64_t)m->flops.forward);
    return true;
}

/* Under autocast there is no formula. */
static bool compare_activations(mti_plan_result *p, const mt_plan_run *run,
                                const mti_measurement *m)
{
    if (p->workload->memory.amp) return true;
    if (mt_plan_activations(run, next(p)) != MT_OK) return false;
    add(p, (int64_t)mt_ledger_bytes(m->ledger));
    return true;
}

/* ---- a filled KV cache ---- */

/* Feeds the next `n` tokens of each sequence. */
static bool feed(mt_module *model, mt_device *device, mt_kv_cache *cache, int64_t batch, int64_t n)
{
    if (n == 0) return true;
    mt_tensor *tokens = mt_zeros(device, MT_I64, MT_SHAPE(batch, n));
    mt_tensor *scores = tokens ? mt_next_logits(model, cache, tokens) : NULL;
    bool ok = scores != NULL;
    mt_release(scores);
    mt_release(tokens);
    return ok;
}

static bool fill_cache(const mti_workload *w, int64_t more, int64_t *bytes)
{
    mti_device_options unbounded = w->device;
    unbounded.capacity = 0;
    mt_device *device = mti_device_make(&unbounded);
    mt_module *model = device ? mt_model_new(device, &w->config) : NULL;
    mt_kv_cache *cache =
        model ? mt_kv_cache_new(model, MT_KV_PREALLOCATED, w->batch, w->seq + more) : NULL;
    bool ok = cache && feed(model, device, cache, w->batch, w->seq) &&
              feed(model, device, cache, w->batch, more);
    if (ok) *bytes = (int64_t)mt_kv_cache_bytes(cache, NULL);
    mt_kv_cache_free(cache);
    mt_module_free(model);
    mt_device_release(device);
    return ok;
}

static bool compare_cache(mti_plan_result *p, const mt_plan_run *run)
{
    int64_t bytes = 0, more = p->options->kv;
    if (more < 0) return true;
    if (mt_plan_kv_cache(run, more, next(p)) != MT_OK || !fill_cache(p->workload, more, &bytes))
        return false;
    add(p, bytes);
    return true;
}

/* A rank's states and its FLOPs are measured, but there is no formula beside them. */
static bool compare_rank(mti_plan_result *p, const mti_measurement *m)
{
    const mti_workload *w = p->workload;
    p->flops = m->flops;
    if (!mti_plan_rank_parameters(next(p), &w->config, &w->parallel)) return false;
    add(p, (int64_t)m->n_params);
    if (w->memory.amp) return true;
    if (!mti_plan_rank_activations(next(p), &w->config, &w->parallel, w->batch, w->seq, &w->memory))
        return false;
    add(p, (int64_t)mt_ledger_bytes(m->ledger));
    return true;
}

/* The model is there as a whole. */
static bool compare_model(mti_plan_result *p, const mt_plan_run *run, const mti_measurement *m,
                          const states *st)
{
    return compare_parameters(p, run, m) && compare_states(p, run, m, st) &&
           compare_activations(p, run, m) && compare_forward(p, run, m) &&
           compare_flops(p, run, m) && compare_cache(p, run);
}

static bool compare(mti_plan_result *p)
{
    mti_workload w = *p->workload;
    w.device.capacity = 0; /* measures the need, whatever the capacity */
    const mt_plan_run run = {.config = &w.config,
                             .batch = w.batch,
                             .seq = w.seq,
                             .checkpoint = w.memory.checkpoint,
                             .recompute = w.memory.recompute,
                             .parameters = (int64_t)p->options->parameters};
    states st = {.workload = &w};
    mti_measurement m;
    bool refused;
    bool ok = mti_measure_requirement(&p->need, &m, &w, &(mti_watch){.look = look, .user = &st},
                                      &refused) &&
              (w.ranked ? compare_rank(p, &m) : compare_model(p, &run, &m, &st));
    mti_measurement_free(&m);
    return ok;
}

/* ---- what fits ---- */

/* (capacity - model states) / activations of one sequence: no temporaries, no rounding, no
 * fragments. */
static int64_t room(const mti_workload *w, int64_t model, int64_t activations)
{
    int64_t left = (int64_t)w->device.capacity - model, each = activations / w->batch;
    return left > 0 && each > 0 ? left / each : 0;
}

static bool search_fits(mti_plan_result *p)
{
    const mti_workload *w = p->workload;
    const mti_comparison *model = mti_plan_find(p, "states");
    const mti_comparison *kept = mti_plan_find(p, "activations");
    if (model && kept) p->batch.by_formula = room(w, model->formula.value, kept->formula.value);
    if (model && kept) p->batch.by_sum = room(w, model->measured, kept->measured);
    return mti_largest_find(&p->batch, w, true) && mti_largest_find(&p->seq, w, false);
}

/* ---- all of it ---- */

const mti_comparison *mti_plan_find(const mti_plan_result *p, const char *name)
{
    for (int i = 0; i < p->n_items; i++)
        if (!strcmp(p->items[i].formula.name, name)) return &p->items[i];
    return NULL;
}

bool mti_plan_training(const mti_plan_result *p, double *formula, double *counted)
{
    const mti_plan_options *o = p->options;
    const mti_comparison *flops = mti_plan_find(p, "flops");
    if (!flops || o->tokens == 0) return false;
    double steps = o->tokens / ((double)p->workload->batch * (double)p->workload->seq);
    *formula = (double)flops->formula.value * steps;
    *counted = (double)flops->measured * steps;
    return true;
}

bool mti_plan_cache_share(const mti_plan_result *p, double *share)
{
    const mti_comparison *cache = mti_plan_find(p, "kv cache");
    const mti_comparison *count = mti_plan_find(p, "parameters");
    if (!cache) return false;
    double bytes = (double)count->measured * (double)mt_dtype_size(p->workload->config.dtype);
    *share = (double)cache->measured / bytes;
    return true;
}

bool mti_plan_time(const mti_plan_result *p, double *formula_s, double *measured_s)
{
    const mti_plan_options *o = p->options;
    double formula, counted;
    if (o->flops_rate == 0 || !mti_plan_training(p, &formula, &counted)) return false;
    *formula_s = mt_plan_seconds(formula, o->devices, o->flops_rate, o->utilisation);
    *measured_s = mt_plan_seconds(counted, o->devices, o->flops_rate, o->utilisation);
    return true;
}

bool mti_plan_make(mti_plan_result *p, const mti_workload *w, const mti_plan_options *o)
{
    *p = (mti_plan_result){.workload = w, .options = o, .device = mti_device_make(&w->device)};
    return p->device && compare(p) && (!w->device.capacity || search_fits(p)) &&
           (!w->budget || mti_budget_find(&p->budget, w));
}

void mti_plan_free(mti_plan_result *p)
{
    mti_budget_found_free(&p->budget);
    mt_device_release(p->device);
}

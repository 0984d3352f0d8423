/* plan_measure.c: training steps and a filled KV cache on the meta device. */
#include <string.h>
#include "cli/measure.h"
#include "cli/plan.h"
#include "cli/verbs.h"
#include "nn/model.h"

/* ---- a step ---- */

#define BLOCK 512
static int64_t rounding(int64_t bytes) { return (BLOCK - bytes % BLOCK) % BLOCK; }

typedef struct states {
    const mti_options *options;
    int64_t rounding;       /* of every tensor up to whole blocks */
    int64_t input_gradient; /* which is a gradient, but no parameter's */
} states;

/* Of parameter, gradient and the optimizer's tensors, as docs/models.md has them. */
static int64_t rounding_of(const mti_options *o, const mt_tensor *param)
{
    int64_t n = mt_numel(param), e = (int64_t)mt_dtype_size(mt_dtype_of(param));
    int64_t wide = e == 8 ? 8 : 4;
    int moments = o->optimizer == MTI_OPT_ADAMW ? 2 : o->optimizer == MTI_OPT_SGD ? 1 : 0;
    return 2 * rounding(n * e) + (moments + o->spending.master) * rounding(n * wide);
}

static bool look(void *user, const mti_subject *s, double loss, double scale)
{
    states *st = user;
    const mt_named_tensor *params;
    size_t n;
    (void)loss, (void)scale;
    if (mt_module_params(s->model, &params, &n) != MT_OK) return false;
    for (size_t i = 0; i < n; i++) st->rounding += rounding_of(st->options, params[i].tensor);
    mt_tensor *g = mt_grad(s->input);
    if (g) st->input_gradient = (int64_t)mt_storage_of(g).allocated;
    return true;
}

/* The most of both steps: what the first takes must be there, too. */
static void take_peak(mti_need *need, const mti_measurement *m)
{
    bool steady;
    const mti_phase *highest = mti_highest_phase(m, &steady);
    *need = (mti_need){.peak = highest->peak,
                       .reserved = m->steady.reserved,
                       .phase = steady ? "the second step" : highest->name};
    memcpy(need->at_peak, highest->at_peak, sizeof need->at_peak);
    for (int i = 0; i < m->phases.n; i++)
        if (m->phases.at[i].reserved_peak > need->reserved)
            need->reserved = m->phases.at[i].reserved_peak;
}

/* Two steps on a device of their own, with o's capacity. */
static bool two_steps(const mti_options *o, states *st, mti_measurement *m, mti_need *need,
                      bool *refused)
{
    mt_device *device = mti_open_device(o);
    mti_trial trial = mti_trial_of(o);
    trial.look = look, trial.user = st;
    *m = (mti_measurement){0};
    *refused = false;
    bool ok = device && mti_measure(m, device, &trial);
    if (ok) take_peak(need, m);
    if (device && !ok) {
        mt_mem_stats stats;
        mt_mem_get_stats(device, &stats);
        *refused = mt_last_status() == MT_ERR_MEMORY && stats.ooms > 0;
    }
    mt_device_release(device);
    return ok;
}

bool mti_plan_try(const mti_options *o, int64_t batch, int64_t seq, int64_t capacity,
                  mti_need *need, bool *fits)
{
    mti_options with = *o;
    with.batch = batch;
    with.seq = seq;
    with.capacity = capacity;
    if (mti_is_whole(o->config.kind) && seq > with.config.context) with.config.context = seq;
    states st = {.options = &with};
    mti_measurement m;
    bool refused;
    *fits = two_steps(&with, &st, &m, need, &refused);
    mti_measurement_free(&m);
    if (refused) mt_clear_error();
    return *fits || refused;
}

/* ---- formulas beside it ---- */

static void add(mti_plan_data *p, int64_t measured)
{
    mti_comparison *c = &p->items[p->n_items++];
    c->measured = measured;
    c->unexplained = measured - c->formula.expected;
}

static mt_plan_formula *next(mti_plan_data *p) { return &p->items[p->n_items].formula; }

static bool compare_parameters(mti_plan_data *p, const mt_plan_run *run, const mti_measurement *m)
{
    mt_model_kind kind = p->options->config.kind;
    if (mt_plan_parameters(run, next(p)) != MT_OK) return false;
    add(p, (int64_t)m->n_params);
    if (!mti_is_whole(kind) && kind != MT_MODEL_BLOCK) return true;
    if (mt_plan_parameters_in_brief(run, next(p)) != MT_OK) return false;
    add(p, (int64_t)m->n_params);
    return true;
}

static int64_t category_after(const mti_measurement *m, const char *phase, mt_category category)
{
    const mti_phases *phases = &m->phases;
    for (int i = 0; i < phases->n; i++)
        if (!strcmp(phases->at[i].name, phase)) return (int64_t)phases->at[i].by_category[category];
    return 0;
}

static bool compare_states(mti_plan_data *p, const mt_plan_run *run, const mti_measurement *m,
                           const states *st)
{
    static const char *const optimizers[] = {"none", "sgd", "adamw"};
    const mti_options *o = p->options;
    if (mt_plan_states(run, optimizers[o->optimizer], o->spending.master, next(p)) != MT_OK ||
        !mti_add_row(next(p), st->rounding, "every tensor up to whole blocks of 512 bytes"))
        return false;
    add(p, category_after(m, "backward", MT_PARAMETER) +
               category_after(m, "backward", MT_GRADIENT) - st->input_gradient +
               category_after(m, "step", MT_OPTIMIZER));
    return true;
}

static bool compare_flops(mti_plan_data *p, const mt_plan_run *run, const mti_measurement *m)
{
    p->flops = m->flops;
    if (mt_plan_flops(run, next(p)) != MT_OK) return false;
    add(p, (int64_t)(m->flops.forward + m->flops.backward + m->flops.recompute));
    return true;
}

static bool compare_activations(mti_plan_data *p, const mt_plan_run *run, const mti_measurement *m)
{
    if (mt_plan_activations(run, next(p)) != MT_OK) return false;
    add(p, (int64_t)mt_ledger_bytes(m->ledger));
    return true;
}

/* ---- keys and values, filled ---- */

/* The next `n` tokens of each sequence go in. */
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

static bool fill_cache(const mti_options *o, int64_t *bytes)
{
    mt_device *device = mti_open_device(o);
    mt_module *model = device ? mt_model_new(device, &o->config) : NULL;
    int64_t length = o->seq + o->plan.kv;
    mt_kv_cache *cache =
        model ? mt_kv_cache_new(model, MT_KV_PREALLOCATED, o->batch, length) : NULL;
    bool ok = cache && feed(model, device, cache, o->batch, o->seq) &&
              feed(model, device, cache, o->batch, o->plan.kv);
    if (ok) *bytes = (int64_t)mt_kv_cache_bytes(cache, NULL);
    mt_kv_cache_free(cache);
    mt_module_free(model);
    mt_device_release(device);
    return ok;
}

static bool compare_cache(mti_plan_data *p, const mt_plan_run *run, const mti_options *o)
{
    int64_t bytes = 0;
    if (!o->given[MTI_O_KV]) return true;
    if (mt_plan_kv_cache(run, o->plan.kv, next(p)) != MT_OK || !fill_cache(o, &bytes)) return false;
    add(p, bytes);
    return true;
}

bool mti_plan_measure(mti_plan_data *p)
{
    mti_options o = *p->options;
    o.capacity = 0; /* what is asked is what it takes */
    mt_plan_run run = mti_plan_run_of(&o);
    states st = {.options = &o};
    mti_measurement m;
    bool refused;
    bool ok = two_steps(&o, &st, &m, &p->need, &refused) && compare_parameters(p, &run, &m) &&
              compare_states(p, &run, &m, &st) && compare_activations(p, &run, &m) &&
              compare_flops(p, &run, &m) && compare_cache(p, &run, &o);
    mti_measurement_free(&m);
    return ok;
}

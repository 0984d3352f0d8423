/* two_steps.c: two training steps, phase by phase, under the ledger. */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "measure/two_steps.h"
#include "measure/period.h"
#include "memtape/ops.h"
#include "collectives/collectives.h"

#define WEIGHT_DECAY 0.1
#define MOST_SKIPPED 64 /* the scale, at most 2^40, halves each time */

/* ---- phases ---- */

static double begin_phase(const char *name, mt_device *device)
{
    mt_set_phase(name);
    mt_mem_reset_peak(device);
    return mti_now();
}

static void add_rest(void *user, const mti_block *block)
{
    size_t *rests = user;
    rests[block->category] += block->size - mti_rounded(block->requested);
}

static void end_phase(mti_phases *phases, const char *name, mt_device *device, double began)
{
    mt_mem_stats stats;
    mt_mem_get_stats(device, &stats);
    mti_phase *phase = &phases->at[phases->n++];
    *phase = (mti_phase){.name = name,
                         .requested = stats.requested.current,
                         .allocated = stats.allocated.current,
                         .reserved = stats.reserved.current,
                         .requested_peak = stats.requested.peak,
                         .peak = stats.allocated.peak,
                         .reserved_peak = stats.reserved.peak,
                         .seconds = mt_device_has_data(device) ? mti_now() - began : NAN};
    memcpy(phase->by_category, stats.by_category, sizeof phase->by_category);
    memcpy(phase->at_peak, stats.at_peak, sizeof phase->at_peak);
    mti_pool_visit(device->pool, add_rest, phase->rests);
    mt_set_phase(NULL);
}

/* ---- the equation of the growth over forward ---- */

/* What t takes, if it was made in forward and nothing saved it. */
static int64_t unsaved(const mti_measurement *m, const mti_hashmap *saved, const mt_tensor *t)
{
    if (!t) return 0;
    mt_storage_info of = mt_storage_of(t);
    bool other = of.serial > m->newest_before && mti_hashmap_find(saved, of.serial) == MTI_NO_PLACE;
    return other && of.allocated ? (int64_t)mti_rounded(of.bytes) : 0;
}

/* How one category grew from the first phase to the second, without rests. */
static int64_t grown(const mti_phase *phases, mt_category c)
{
    size_t before = phases[0].by_category[c] - phases[0].rests[c];
    return (int64_t)(phases[1].by_category[c] - phases[1].rests[c] - before);
}

/* saved: the serials of all that is in the ledger. */
static bool add_saved(mti_growth *g, const mti_measurement *m, mti_hashmap *saved)
{
    for (size_t i = 0; i < mt_ledger_count(m->ledger); i++) {
        mt_ledger_entry e;
        if (mt_ledger_get(m->ledger, i, &e) != MT_OK || !mti_hashmap_add(saved, e.storage, i))
            return false;
        g->saved += (int64_t)e.bytes;
        if (e.storage <= m->newest_before)
            g->before += (int64_t)e.bytes;
        else
            g->rounding += (int64_t)e.rounded - (int64_t)e.bytes;
    }
    return true;
}

/* After the forwards before the first backward. */
static bool account_for_growth(mti_measurement *m, const mti_step *step)
{
    const mt_comm *stages = step->stage->shards->parallel.pipeline_comm;
    mti_growth *g = &m->growth;
    const mti_phase *phases = m->phases.at; /* init and forward */
    mti_hashmap saved = {0};
    *g = (mti_growth){.measured = (int64_t)(phases[1].allocated - phases[0].allocated),
                      .workspace = grown(phases, MT_WORKSPACE),
                      .gathered = grown(phases, MT_PARAMETER) + grown(phases, MT_COMMUNICATION)};
    for (int c = 0; c < MT_CATEGORY_COUNT; c++)
        g->rests += (int64_t)(phases[1].rests[c] - phases[0].rests[c]);
    bool ok = add_saved(g, m, &saved);
    for (int64_t i = 0; ok && i < m->in_flight; i++) {
        const mti_in_flight *f = &step->in_flight[i];
        g->output += unsaved(m, &saved, f->output);
        g->input += unsaved(m, &saved, f->input) + unsaved(m, &saved, f->target) +
                    unsaved(m, &saved, f->tokens);
    }
    for (int way = 0; ok && way < MTI_WAYS; way++)
        g->output += unsaved(m, &saved, mti_on_the_way(stages, (mti_way)way));
    g->output += unsaved(m, &saved, step->stage->outputs);
    g->residual = g->measured;
#define PART(member, sign, ...) g->residual -= 0 sign g->member;
#include "measure/growth.def"
#undef PART
    mti_hashmap_free(&saved);
    return ok;
}

/* ---- around forwards and backwards ---- */

typedef struct run {
    const mti_workload *workload;
    mti_watch watch;
    mti_measurement *m;
    mti_subject subject;
    mti_memory_hooks memory_hooks;
    mt_optimizer *optimizer; /* NULL: none */
    mti_repeat repeat;
    bool inference; /* no target, and so no loss */
} run;

/* What the gradients and the optimizer's state take now. */
static void note_states(run *r)
{
    r->m->optimizer_bytes = mti_optimizer_state_bytes(r->optimizer);
    r->m->optimizer_host = mti_optimizer_host_bytes(r->optimizer);
    r->m->grad_bytes = mti_zero_grad_bytes(r->subject.stage.zero);
}

/* Every forward draws the same random numbers, and every backward. */
static bool observe(void *user, mti_moment moment, mti_step *step, int64_t k)
{
    run *r = user;
    (void)step, (void)k;
    if (moment == MTI_BEFORE_FORWARD) mt_seed(r->subject.device, r->workload->seed + 1);
    if (moment == MTI_BEFORE_BACKWARD) mt_seed(r->subject.device, r->workload->seed + 2);
    if (moment == MTI_BEFORE_DROP) note_states(r);
    return moment != MTI_BEFORE_FORWARD || mt_device_sync(r->subject.device) == MT_OK;
}

/* ---- a step, phase by phase ---- */

/* The forwards before the first backward, under a ledger if there is one. */
static bool forward_phase(run *r, mti_step *step, mti_phases *phases, mt_ledger *ledger)
{
    mti_stage *stage = &r->subject.stage;
    mt_device *device = r->subject.device;
    double began = begin_phase("forward", device);
    mti_memory_hooks_watch(&r->memory_hooks, ledger);
    bool ok = mti_step_begin(step, stage, &(mti_batches){mti_subject_take, NULL, &r->subject}) &&
              (r->inference ? mti_step_infer : mti_step_ahead)(step) &&
              mt_device_sync(device) == MT_OK;
    end_phase(phases, "forward", device, began);
    return ok;
}

static bool backward_phase(run *r, mti_step *step, mti_phases *phases)
{
    mt_device *device = r->subject.device;
    double began = begin_phase("backward", device);
    bool ok = mti_step_backward(step) && mt_device_sync(device) == MT_OK;
    end_phase(phases, "backward", device, began);
    return ok;
}

static bool step_phase(run *r, mti_phases *phases)
{
    mt_device *device = r->subject.device;
    double began = r->optimizer ? begin_phase("step", device) : 0;
    bool ok = mti_step_optimizer(&r->subject.stage, r->optimizer, 0, NULL) &&
              mt_device_sync(device) == MT_OK;
    if (r->optimizer) end_phase(phases, "step", device, began);
    return ok;
}

/* ---- the first step ---- */

static bool name_parameters(const run *r)
{
    const mt_named_tensor *params;
    size_t n;
    return !r->watch.timeline || (mt_module_params(r->subject.stage.model, &params, &n) == MT_OK &&
                                  mti_timeline_name(&r->m->timeline, params, n));
}

static bool make_optimizer(run *r)
{
    const mti_workload *w = r->workload;
    double lr = mti_optimizer_row_of(w->optimizer)->params.lr;
    if (w->optimizer == MTI_OPT_NONE || r->inference) return true;
    r->optimizer = mti_optimizer_make(w->optimizer, mt_stage_stepped(&r->subject.stage), lr,
                                      WEIGHT_DECAY, w->memory.master);
    return r->optimizer && (!w->memory.step_in_backward ||
                            mt_optimizer_step_in_backward(r->optimizer, true) == MT_OK);
}

static bool init_phase(run *r, mt_device *device)
{
    mti_measurement *m = r->m;
    mti_stage *stage = &r->subject.stage;
    double began = begin_phase("init", device);
    bool ok = mti_subject_make(&r->subject, device, r->workload, !r->inference);
    mti_stage_observe(stage, observe, r);
    if (!mt_device_has_data(device)) mti_repeat_observe(&r->repeat, stage);
    ok = ok && mti_memory_hooks_make(&r->memory_hooks, &r->workload->memory, stage) &&
         make_optimizer(r);
    end_phase(&m->phases, "init", device, began);
    m->newest_before = mti_pool_newest(device->pool);
    m->n_params = stage->n_params;
    m->in_flight = stage->schedule.ahead;
    m->layers = stage->layers;
    ok = ok && name_parameters(r) && mt_module_size(stage->model, NULL, &m->param_bytes) == MT_OK;
    if (ok && stage->shards->parallel.host_shards) m->param_host = (size_t)m->param_bytes;
    return ok;
}

/* The first one's, whose backward is the first; NaN without data or without a loss. */
static double loss_of(const run *r, const mti_step *step)
{
    bool known = r->subject.has_loss && mt_device_has_data(r->subject.device);
    int64_t first = mti_schedule_return(&step->stage->schedule, 0);
    return known ? mt_item(step->in_flight[first].output) / mti_stage_loss_scale(step->stage) : NAN;
}

/* Only so many microbatches ran. */
static uint64_t of_all(const run *r, uint64_t counted)
{
    const mti_stage *stage = &r->subject.stage;
    return counted / (uint64_t)stage->schedule.run * (uint64_t)stage->shards->parallel.microbatches;
}

static mt_flops flops_of_all(const run *r, mt_flops f)
{
    return (mt_flops){of_all(r, f.forward), of_all(r, f.backward), of_all(r, f.recompute)};
}

/* Also measures what is reported of the first step alone: saved tensors, growth, FLOPs, loss. */
static bool first_step(run *r)
{
    mti_measurement *m = r->m;
    mt_device *device = r->subject.device;
    const mt_scaler *scaler = r->memory_hooks.scaler;
    const double scale = scaler ? mt_scaler_get(scaler).scale : 1;
    double loss = NAN;
    mti_step step = {0};
    m->ledger = mt_ledger_new(device);
    if (!m->ledger) return false;
    mt_flops_reset(device);
    bool ok = forward_phase(r, &step, &m->phases, m->ledger) && account_for_growth(m, &step);
    if (ok) loss = loss_of(r, &step);
    ok = ok && backward_phase(r, &step, &m->phases) &&
         (!r->watch.look || r->watch.look(r->watch.user, &r->subject, loss, scale)) &&
         step_phase(r, &m->phases);
    m->flops = flops_of_all(r, mt_flops_get(device));
    mti_step_end(&step);
    return ok;
}

/* ---- the steps after it ---- */

/* The next batch has no gradient yet. */
static bool next_step(run *r, mti_phases *phases, mt_ledger *ledger)
{
    mt_tensor *input = r->subject.input;
    mti_step step = {0};
    if (input && mt_requires_grad(input) && mt_set_grad(input, NULL) != MT_OK) return false;
    bool ok = forward_phase(r, &step, phases, ledger) && backward_phase(r, &step, phases) &&
              step_phase(r, phases);
    mti_step_end(&step);
    return ok;
}

/* A loss scaler skips steps whose gradients overflow, and before its first step an optimizer has no
 * state. So steps are made until one is not skipped, unless the scale is fixed. */
static bool settle_scale(run *r)
{
    mt_scaler *scaler = r->memory_hooks.scaler;
    bool dynamic = scaler && r->workload->memory.loss_scale < 0, ok = true;
    for (int i = 0; ok && dynamic && i < MOST_SKIPPED && mt_scaler_get(scaler).steps == 0; i++) {
        mti_phases unseen = {0};
        ok = next_step(r, &unseen, NULL);
    }
    return ok;
}

/* What is counted until now. */
typedef struct counted {
    mt_flops flops;
    mt_traffic traffic;
    mt_sent sent;
    uint64_t offloaded;
} counted;

static counted count(const run *r)
{
    return (counted){.flops = mt_flops_get(r->subject.device),
                     .traffic = mt_traffic_get(r->subject.device),
                     .sent = mt_sent_get(r->subject.device),
                     .offloaded = r->memory_hooks.memory_stats.offloaded};
}

static void note_counted(mti_steady *s, const run *r, const counted *from, const counted *to)
{
    const mt_flops *f = &from->flops, *g = &to->flops;
    const mt_traffic *a = &from->traffic, *b = &to->traffic;
    const mt_sent *x = &from->sent, *y = &to->sent;
    s->flops = flops_of_all(r, (mt_flops){g->forward - f->forward, g->backward - f->backward,
                                          g->recompute - f->recompute});
    s->traffic = (mt_traffic){.products = of_all(r, b->products - a->products),
                              .others = of_all(r, b->others - a->others)};
    s->sent = (mt_sent){.layers = of_all(r, y->layers - x->layers),
                        .shards = of_all(r, y->shards - x->shards),
                        .context = of_all(r, y->context - x->context),
                        .stages = of_all(r, y->stages - x->stages),
                        .replicas = y->replicas - x->replicas,
                        .experts = of_all(r, y->experts - x->experts)};
    s->offloaded = of_all(r, to->offloaded - from->offloaded);
}

static bool steady_step(run *r)
{
    mti_steady *s = &r->m->steady;
    counted before = count(r);
    const mt_scaler *scaler = r->memory_hooks.scaler;
    int64_t skipped = scaler ? mt_scaler_get(scaler).skipped : 0;
    s->ledger = r->watch.timeline ? mt_ledger_new(r->subject.device) : NULL;
    if (r->watch.timeline && !s->ledger) return false;
    mti_timeline_mark_steady(&r->m->timeline);
    double began = mti_now();
    if (!next_step(r, &s->phases, s->ledger)) return false;
    s->seconds = mt_device_has_data(r->subject.device) ? mti_now() - began : NAN;
    counted after = count(r);
    note_counted(s, r, &before, &after);
    s->skipped = scaler && mt_scaler_get(scaler).skipped > skipped;
    for (int i = 0; i < s->phases.n; i++) {
        const mti_phase *phase = &s->phases.at[i];
        if (phase->reserved_peak > s->reserved) s->reserved = phase->reserved_peak;
        if (phase->requested_peak > s->requested) s->requested = phase->requested_peak;
        if (phase->peak <= s->peak) continue;
        s->peak = phase->peak;
        memcpy(s->by_category, phase->at_peak, sizeof s->by_category);
    }
    return true;
}

const mti_phase *mti_highest_phase(const mti_measurement *m, bool *steady)
{
    const mti_phases *steps[] = {&m->steady.phases, &m->phases};
    const mti_phase *highest = &steps[0]->at[0];
    bool second = true;
    for (int k = 0; k < 2; k++)
        for (int i = 0; i < steps[k]->n; i++)
            if (steps[k]->at[i].peak > highest->peak) highest = &steps[k]->at[i], second = k == 0;
    if (steady) *steady = second;
    return highest;
}

static void clean_up(run *r)
{
    mti_repeat_free(&r->repeat);
    mt_optimizer_free(r->optimizer);
    mti_memory_hooks_free(&r->memory_hooks);
    mti_subject_free(&r->subject);
}

bool mti_measure(mti_measurement *m, mt_device *device, const mti_workload *w,
                 const mti_watch *watch)
{
    *m = (mti_measurement){0};
    run r = {.workload = w, .watch = watch ? *watch : (mti_watch){0}, .m = m};
    uint64_t failures = mti_failures();
    bool ok = (!r.watch.timeline || mti_timeline_begin(&m->timeline, device)) &&
              init_phase(&r, device) && first_step(&r) && settle_scale(&r) && steady_step(&r) &&
              mti_memory_hooks_report(&r.memory_hooks);
    m->memory_stats = r.memory_hooks.memory_stats;
    ok = mti_timeline_end(&m->timeline) && ok;
    ok = ok && !mti_failed_since(failures); /* or a phase could not be named */
    clean_up(&r);
    return ok;
}

/* ---- inference ---- */

/* Dropout is off. */
static void set_inference(const mti_stage *stage)
{
    for (int64_t i = 0; i < stage->schedule.n_parts; i++)
        mt_module_set_training(stage->parts[i], false);
}

static bool infer(run *r, mt_device *device)
{
    mti_measurement *m = r->m;
    mti_step step = {0};
    m->ledger = mt_ledger_new(device);
    if (!m->ledger || !init_phase(r, device)) return false;
    set_inference(&r->subject.stage);
    mt_flops_reset(device);
    bool ok = forward_phase(r, &step, &m->phases, m->ledger);
    m->flops = mt_flops_get(device);
    mti_step_end(&step);
    return ok;
}

bool mti_measure_inference(mti_measurement *m, mt_device *device, const mti_workload *w)
{
    mti_workload plain = *w;
    plain.memory = (mti_memory_options){.amp = w->memory.amp,
                                        .amp_dtype = w->memory.amp_dtype,
                                        .lora_rank = w->memory.lora_rank,
                                        .lora_targets = w->memory.lora_targets,
                                        .qlora = w->memory.qlora,
                                        .codes = w->memory.codes,
                                        .codes_file = w->memory.codes_file,
                                        .qlora_double = w->memory.qlora_double};
    plain.budget = 0;
    *m = (mti_measurement){0};
    run r = {.workload = &plain, .m = m, .inference = true};
    uint64_t failures = mti_failures();
    bool mode = mt_set_grad_mode(false);
    bool ok = infer(&r, device);
    mt_set_grad_mode(mode);
    clean_up(&r);
    return ok && !mti_failed_since(failures); /* or a phase could not be named */
}

void mti_measurement_free(mti_measurement *m)
{
    mt_ledger_free(m->ledger);
    mt_ledger_free(m->steady.ledger);
    m->ledger = m->steady.ledger = NULL;
    mti_timeline_free(&m->timeline);
}

/* ---- what both steps need ---- */

/* The device must also have room for the first step. */
static void take_peak(mti_requirement *need, const mti_measurement *m)
{
    bool steady;
    const mti_phase *highest = mti_highest_phase(m, &steady);
    *need = (mti_requirement){.peak = highest->peak,
                              .reserved = m->steady.reserved,
                              .gradients = m->grad_bytes,
                              .phase = steady ? "the second step" : highest->name};
    memcpy(need->at_peak, highest->at_peak, sizeof need->at_peak);
    need->requested = m->steady.requested;
    for (int i = 0; i < m->phases.n; i++) {
        const mti_phase *phase = &m->phases.at[i];
        if (phase->reserved_peak > need->reserved) need->reserved = phase->reserved_peak;
        if (phase->requested_peak > need->requested) need->requested = phase->requested_peak;
    }
}

bool mti_was_refused(mt_device *device)
{
    mt_mem_stats stats;
    if (!device || mt_last_status() != MT_ERR_MEMORY) return false;
    mt_mem_get_stats(device, &stats);
    return stats.ooms > 0;
}

bool mti_measure_requirement(mti_requirement *need, mti_measurement *m, const mti_workload *w,
                             const mti_watch *watch, bool *refused)
{
    mt_device *device = mti_device_make(&w->device);
    *m = (mti_measurement){0};
    bool ok = device && mti_measure(m, device, w, watch);
    *refused = !ok && mti_was_refused(device);
    if (ok) take_peak(need, m);
    mt_device_release(device);
    return ok;
}

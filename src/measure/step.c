/* step.c: two training steps, phase by phase, under the ledger. */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "measure/step.h"
#include "measure/repeat.h"
#include "memtape/ops.h"
#include "nn/model.h"
#include "collectives/collectives.h"

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

/* Of one category, without rests, from the first phase to the second. */
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

/* `stages`: the comm by which outputs leave for another stage; may be NULL. */
static bool account_for_growth(mti_measurement *m, const mti_flown *flown, int64_t n_flown,
                               const mt_comm *stages)
{
    mti_growth *g = &m->growth;
    const mti_phase *phases = m->phases.at; /* init and forward */
    mti_hashmap saved = {0};
    *g = (mti_growth){.measured = (int64_t)(phases[1].allocated - phases[0].allocated),
                      .workspace = grown(phases, MT_WORKSPACE),
                      .gathered = grown(phases, MT_PARAMETER) + grown(phases, MT_COMMUNICATION)};
    for (int c = 0; c < MT_CATEGORY_COUNT; c++)
        g->rests += (int64_t)(phases[1].rests[c] - phases[0].rests[c]);
    bool ok = add_saved(g, m, &saved);
    for (int64_t i = 0; ok && i < n_flown; i++) {
        g->output += unsaved(m, &saved, flown[i].output);
        g->input += unsaved(m, &saved, flown[i].input) + unsaved(m, &saved, flown[i].target);
    }
    for (int way = 0; ok && way < MTI_WAYS; way++)
        g->output += unsaved(m, &saved, mti_on_the_way(stages, (mti_way)way));
    g->residual = g->measured - (g->saved - g->before) - g->rounding - g->rests - g->output -
                  g->input - g->workspace - g->gathered;
    mti_hashmap_free(&saved);
    return ok;
}

/* ---- the step ---- */

typedef struct run {
    const mti_workload *workload;
    mti_watch watch;
    mti_measurement *m;
    mti_subject subject;
    mti_memory_hooks memory_hooks;
    mt_optimizer *optimizer;
    mti_repeat repeat;
    mti_flown *flown; /* [n_flown], a ring: between forward and backward */
    int64_t n_flown;
    bool inference; /* no target, and so no loss */
} run;

static void end_flights(run *r)
{
    for (int64_t k = 0; r->flown && k < r->n_flown; k++) mti_flown_free(&r->flown[k]);
}

/* The k-th forward. Every forward draws the same random numbers. */
static bool forward(run *r, int64_t k)
{
    mti_flown *f = &r->flown[k % r->n_flown];
    mt_seed(r->subject.device, r->workload->seed + 1);
    if (!mti_repeat_turn(&r->repeat) || !mti_memory_hooks_begin(&r->memory_hooks, k == 0))
        return false;
    bool ok = mti_subject_fly(&r->subject, k, f);
    ok = mti_memory_hooks_end(&r->memory_hooks) && ok;
    mt_scaler *scaler = r->memory_hooks.scaler;
    if (ok && scaler && f->last && r->subject.has_loss)
        mt_set(&f->output, mt_scaler_scale(scaler, f->output));
    return ok && f->output && mt_set_category(f->output, MT_OUTPUT) == MT_OK;
}

/* Stands for the gradient from later layers; of what is sent to another stage, which has no bytes
 * of its own, without bytes, too. */
static mt_tensor *gradient_of(const mti_flown *f)
{
    mt_device *device = mt_device_of(f->output);
    mt_dtype dtype = mt_dtype_of(f->output);
    int rank = mt_rank(f->output);
    if (f->last) return mt_normal(device, dtype, rank, mt_shape(f->output), 0, 1);
    mt_tensor *one = mt_zeros(device, dtype, 0, NULL);
    mt_set(&one, one ? mt_expand(one, rank, mt_shape(f->output)) : NULL);
    return one;
}

/* The k-th backward. Frees the output when backward has begun, as a training loop does. */
static bool backward(run *r, int64_t k)
{
    mt_device *device = r->subject.device;
    mti_flown *f = &r->flown[mti_subject_return(&r->subject, k) % r->n_flown];
    mt_backward_options options = {0};
    if (!mti_repeat_turn(&r->repeat)) return false;
    bool loss = f->last && r->subject.has_loss;
    mt_release(f->input);
    mt_release(f->target);
    f->input = f->target = NULL; /* the tape has what it needs of them */
    mt_seed(device, r->workload->seed + 2);
    if (!loss) options.gradient = gradient_of(f);
    mti_subject_tell_backward(&r->subject, k);
    bool ok = (loss || options.gradient) && mt_backward_with(f->output, &options) == MT_OK &&
              mt_device_sync(device) == MT_OK;
    mt_release(options.gradient);
    mti_flown_free(f);
    return ok;
}

static mt_optimizer *make_optimizer(const run *r)
{
    mt_module *model = mti_subject_stepped(&r->subject);
    bool master = r->workload->memory.master;
    bool momentum = r->workload->optimizer == MTI_OPT_SGD_MOMENTUM;
    const mt_sgd_options sgd = {.lr = 1e-3, .momentum = momentum ? 0.9 : 0, .master = master};
    const mt_adamw_options adamw = {.lr = 1e-3,
                                    .weight_decay = 0.1,
                                    .master = master,
                                    .moments = mti_moments_of(r->workload->optimizer)};
    const mt_adafactor_options adafactor = {.lr = 1e-2, .master = master};
    switch (r->workload->optimizer) {
    case MTI_OPT_ADAFACTOR: return mt_adafactor_new(model, &adafactor);
    case MTI_OPT_SGD:
    case MTI_OPT_SGD_MOMENTUM: return mt_sgd_new(model, &sgd);
    default: return mt_adamw_new(model, &adamw);
    }
}

/* What the gradients and the optimizer's state take now. */
static bool note_states(run *r)
{
    r->m->optimizer_bytes = mti_optimizer_state_bytes(r->optimizer);
    return mti_subject_grad_bytes(&r->subject, &r->m->grad_bytes);
}

static bool step_optimizer(const run *r)
{
    mt_scaler *scaler = r->memory_hooks.scaler;
    double squares;
    if (scaler && r->subject.stage) /* all ranks skip a step, or none */
        return mti_zero_squares(r->subject.stage->zero, &squares) &&
               mti_scaler_step_given(scaler, r->optimizer, squares, 0, NULL);
    return (scaler ? mt_scaler_step(scaler, r->optimizer, NULL)
                   : mt_optimizer_step(r->optimizer)) == MT_OK;
}

static bool step(run *r)
{
    if (r->workload->optimizer != MTI_OPT_NONE && !r->optimizer) r->optimizer = make_optimizer(r);
    bool ok = r->workload->optimizer == MTI_OPT_NONE || r->optimizer;
    ok = ok && mti_subject_before_step(&r->subject);
    if (ok && r->optimizer) ok = step_optimizer(r);
    return ok && note_states(r) && mti_subject_after_step(&r->subject) &&
           mt_device_sync(r->subject.device) == MT_OK;
}

/* ---- a step, phase by phase ---- */

/* The forwards before the first backward, under a ledger if there is one. */
static bool forward_phase(run *r, mti_phases *phases, mt_ledger *ledger)
{
    mt_device *device = r->subject.device;
    double began = begin_phase("forward", device);
    mti_subject_set_turns(&r->subject, 0);
    mti_repeat_begin(&r->repeat, device, mti_subject_ahead(&r->subject),
                     mti_subject_unit(&r->subject));
    bool collects = ledger && mt_ledger_begin(ledger) == MT_OK, ok = collects || !ledger;
    for (int64_t k = 0; ok && k < mti_subject_ahead(&r->subject); k++)
        ok = (r->inference && !mti_subject_is_first(&r->subject, k)) || forward(r, k);
    if (collects) ok = mt_ledger_end(ledger) == MT_OK && ok;
    ok = ok && mt_device_sync(device) == MT_OK;
    end_phase(phases, "forward", device, began);
    return ok;
}

/* After `done` backwards and forwards in turns: leaves out, of *n in all, as many as would only
 * repeat what has been. */
static bool leave_out(run *r, int64_t done, int64_t next, int64_t *n)
{
    int64_t period;
    if (mt_device_has_data(r->subject.device)) return true;
    if (!mti_repeat_find(&r->repeat, done, &period)) return false;
    if (period) mti_subject_set_turns(&r->subject, *n -= (*n - next) / period * period);
    return true;
}

/* Forward and backward in turns, then the remaining backwards. */
static bool backward_phase(run *r, mti_phases *phases)
{
    int64_t n = mti_subject_turns(&r->subject), next = mti_subject_ahead(&r->subject);
    double began = begin_phase("backward", r->subject.device);
    bool ok = mti_subject_start_backward(&r->subject);
    for (int64_t back = 0; ok && back < n; back++) {
        ok = backward(r, back);
        if (ok && next < n) ok = forward(r, next++) && leave_out(r, back + 1, next, &n);
    }
    ok = mti_subject_end_backward(&r->subject) && ok;
    ok = ok && mt_comm_settle(mti_subject_comm(&r->subject)) == MT_OK;
    end_phase(phases, "backward", r->subject.device, began);
    return ok;
}

static bool step_phase(run *r, mti_phases *phases)
{
    if (r->workload->optimizer == MTI_OPT_NONE) return step(r);
    double began = begin_phase("step", r->subject.device);
    bool ok = step(r);
    end_phase(phases, "step", r->subject.device, began);
    return ok;
}

/* ---- the first step ---- */

static bool name_parameters(const run *r)
{
    const mt_named_tensor *params;
    size_t n;
    return !r->watch.timeline || (mt_module_params(r->subject.model, &params, &n) == MT_OK &&
                                  mti_timeline_name(&r->m->timeline, params, n));
}

static bool make_hooks(run *r)
{
    const mti_stage *stage = r->subject.stage;
    mti_memory_hooks *hooks = &r->memory_hooks;
    if (!mti_memory_hooks_make(hooks, &r->workload->memory, r->subject.device,
                               mti_subject_ahead(&r->subject)))
        return false;
    if (!stage) return mti_memory_hooks_attach(hooks, r->subject.model);
    bool ok = true;
    for (int64_t i = 0; ok && i < stage->schedule.n_parts; i++)
        ok = mti_memory_hooks_attach(hooks, stage->parts[i]);
    mt_module *stepped = mti_subject_stepped(&r->subject);
    if (ok && r->workload->memory.f32_gradients) /* of ZeRO's pieces, too */
        ok = mt_module_set_grad_dtype(stepped, MT_F32) == MT_OK;
    return ok;
}

static bool step_in_backward(run *r)
{
    if (!r->workload->memory.step_in_backward || r->inference) return true;
    r->optimizer = make_optimizer(r);
    return r->optimizer && mt_optimizer_step_in_backward(r->optimizer, true) == MT_OK;
}

static bool init_phase(run *r, mt_device *device)
{
    mti_measurement *m = r->m;
    double began = begin_phase("init", device);
    bool ok = mti_subject_make(&r->subject, device, r->workload, !r->inference) && make_hooks(r) &&
              step_in_backward(r);
    end_phase(&m->phases, "init", device, began);
    m->newest_before = mti_pool_newest(device->pool);
    m->n_params = r->subject.n_params;
    m->in_flight = mti_subject_ahead(&r->subject);
    if (r->subject.stage) m->layers = r->subject.stage->layers;
    /* A backward's forward is in its unit. */
    r->n_flown = m->in_flight + mti_subject_unit(&r->subject) + 1;
    r->flown = ok ? mti_calloc((size_t)r->n_flown, sizeof *r->flown) : NULL;
    return r->flown && name_parameters(r) &&
           mt_module_size(r->subject.model, NULL, &m->param_bytes) == MT_OK;
}

/* The first one's, whose backward is the first; NaN without data or without a loss. */
static double loss_of(const run *r, double scale)
{
    bool known = r->subject.has_loss && mt_device_has_data(r->subject.device);
    return known ? mt_item(r->flown[mti_subject_return(&r->subject, 0)].output) / scale : NAN;
}

/* Also measures what is reported of the first step alone: saved tensors, growth, FLOPs, loss. */
static bool first_step(run *r)
{
    mti_measurement *m = r->m;
    mt_device *device = r->subject.device;
    m->ledger = mt_ledger_new(device);
    if (!m->ledger) return false;
    mt_flops_reset(device);
    if (!forward_phase(r, &m->phases, m->ledger) ||
        !account_for_growth(m, r->flown, m->in_flight, mti_subject_comm(&r->subject)))
        return false;
    double scale = r->memory_hooks.scaler ? mt_scaler_get(r->memory_hooks.scaler).scale : 1;
    double loss = loss_of(r, scale);
    bool ok = backward_phase(r, &m->phases) &&
              (!r->watch.look || r->watch.look(r->watch.user, &r->subject, loss, scale)) &&
              step_phase(r, &m->phases);
    m->flops = mti_subject_flops(&r->subject, mt_flops_get(device));
    return ok;
}

/* ---- the steps after it ---- */

/* The next batch has no gradient yet. */
static bool next_step(run *r, mti_phases *phases, mt_ledger *ledger)
{
    mt_tensor *input = r->subject.input;
    if (input && mt_requires_grad(input) && mt_set_grad(input, NULL) != MT_OK) return false;
    return forward_phase(r, phases, ledger) && backward_phase(r, phases) && step_phase(r, phases);
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
    uint64_t offloaded;
} counted;

static counted count(const run *r)
{
    return (counted){.flops = mt_flops_get(r->subject.device),
                     .traffic = mt_traffic_get(r->subject.device),
                     .offloaded = r->memory_hooks.memory_stats.offloaded};
}

static void note_counted(mti_steady *s, const run *r, const counted *from, const counted *to)
{
    const mt_flops *f = &from->flops, *g = &to->flops;
    const mt_traffic *a = &from->traffic, *b = &to->traffic;
    const mti_subject *subject = &r->subject;
    s->flops =
        mti_subject_flops(subject, (mt_flops){g->forward - f->forward, g->backward - f->backward,
                                              g->recompute - f->recompute});
    s->traffic = (mt_traffic){.products = mti_subject_whole(subject, b->products - a->products),
                              .others = mti_subject_whole(subject, b->others - a->others),
                              .layers = mti_subject_whole(subject, b->layers - a->layers),
                              .pieces = mti_subject_whole(subject, b->pieces - a->pieces),
                              .context = mti_subject_whole(subject, b->context - a->context),
                              .stages = mti_subject_whole(subject, b->stages - a->stages),
                              .replicas = b->replicas - a->replicas};
    s->offloaded = mti_subject_whole(subject, to->offloaded - from->offloaded);
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
    end_flights(r);
    mti_free(r->flown);
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

static bool infer(run *r, mt_device *device)
{
    mti_measurement *m = r->m;
    m->ledger = mt_ledger_new(device);
    if (!m->ledger || !init_phase(r, device)) return false;
    mti_subject_infers(&r->subject);
    mt_flops_reset(device);
    bool ok = forward_phase(r, &m->phases, m->ledger);
    m->flops = mt_flops_get(device);
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

/* step.c: two training steps, phase by phase, under the ledger. */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "base/philox.h"
#include "measure/step.h"
#include "memtape/ops.h"
#include "nn/model.h"

#define MOST_SKIPPED 64 /* the scale, at most 2^40, halves each time */

/* ---- the subject ---- */

/* Token ids [b,s]; `stream` tells inputs from targets. */
static mt_tensor *random_ids(mt_device *device, const mti_workload *w, uint64_t stream)
{
    if (!mt_device_has_data(device)) return mt_zeros(device, MT_I64, MT_SHAPE(w->batch, w->seq));
    size_t n = (size_t)(w->batch * w->seq), n_bytes = n * sizeof(int64_t);
    int64_t *ids = mti_malloc(n_bytes);
    if (!ids) return NULL;
    for (size_t i = 0; i < n; i++) {
        mti_u32x4 r = mti_philox(w->seed, stream << 40 | i);
        uint64_t wide = (uint64_t)r.v[0] << 32 | r.v[1];
        ids[i] = (int64_t)(wide % (uint64_t)w->config.vocab);
    }
    mt_tensor *t = mt_from_data(device, MT_I64, MT_SHAPE(w->batch, w->seq), ids, n_bytes);
    mti_free(ids);
    return t;
}

bool mti_subject_make(mti_subject *s, mt_device *device, const mti_workload *w, bool target)
{
    const mt_model_config *config = &w->config;
    *s = (mti_subject){.device = device};
    mt_seed(device, w->seed);
    s->model = mti_is_whole(config->kind) ? mti_adapted_new(device, config, &w->memory)
                                          : mt_model_new(device, config);
    if (!s->model) return false;
    if (mti_is_whole(config->kind)) {
        s->input = random_ids(device, w, 1);
        s->target = target ? random_ids(device, w, 2) : NULL;
        return s->input && (s->target || !target);
    }
    s->input = mt_normal(device, config->dtype, MT_SHAPE(w->batch, w->seq, config->hidden), 0, 1);
    return s->input && mt_set_requires_grad(s->input, true) == MT_OK &&
           mti_adapt(s->model, &w->memory);
}

void mti_subject_free(mti_subject *s)
{
    mt_release(s->input);
    mt_release(s->target);
    mt_module_free(s->model);
    *s = (mti_subject){0};
}

mt_tensor *mti_subject_forward(const mti_subject *s)
{
    mt_tensor *y = mt_forward(s->model, s->input);
    if (!s->target || mt_scope_push("loss") != MT_OK) return y;
    mt_set(&y, mt_model_loss(mt_model_config_of(s->model), y, s->target));
    mt_scope_pop();
    return y;
}

/* ---- phases ---- */

static double begin_phase(const char *name, mt_device *device)
{
    mt_set_phase(name);
    mt_mem_reset_peak(device);
    return mti_now();
}

static void end_phase(mti_phases *phases, const char *name, mt_device *device, double began)
{
    mt_mem_stats stats;
    mt_mem_get_stats(device, &stats);
    mti_phase *phase = &phases->at[phases->n++];
    *phase = (mti_phase){.name = name,
                         .allocated = stats.allocated.current,
                         .reserved = stats.reserved.current,
                         .peak = stats.allocated.peak,
                         .reserved_peak = stats.reserved.peak,
                         .seconds = mt_device_has_data(device) ? mti_now() - began : NAN};
    memcpy(phase->by_category, stats.by_category, sizeof phase->by_category);
    memcpy(phase->at_peak, stats.at_peak, sizeof phase->at_peak);
    mt_set_phase(NULL);
}

static void note_newest(void *user, const mt_mem_event *event)
{
    uint64_t *newest = user;
    if (event->kind == MT_MEM_ALLOC && event->serial > *newest) *newest = event->serial;
}

/* ---- the equation of the growth over forward ---- */

static bool account_for_growth(mti_measurement *m, const mt_tensor *output,
                               const mt_mem_stats *before, const mt_mem_stats *after)
{
    mti_growth *g = &m->growth;
    mt_storage_info out = mt_storage_of(output);
    bool output_saved = false;
    *g = (mti_growth){.measured =
                          (int64_t)after->allocated.current - (int64_t)before->allocated.current,
                      .workspace = (int64_t)after->by_category[MT_WORKSPACE] -
                                   (int64_t)before->by_category[MT_WORKSPACE]};
    for (size_t i = 0; i < mt_ledger_count(m->ledger); i++) {
        mt_ledger_entry e;
        if (mt_ledger_get(m->ledger, i, &e) != MT_OK) return false;
        g->saved += (int64_t)e.bytes;
        if (e.storage == out.serial) output_saved = true;
        if (e.storage <= m->newest_before)
            g->before += (int64_t)e.bytes;
        else
            g->rounding += (int64_t)e.allocated - (int64_t)e.bytes;
    }
    if (!output_saved && out.serial > m->newest_before) g->output = (int64_t)out.allocated;
    g->residual = g->measured - (g->saved - g->before) - g->rounding - g->output - g->workspace;
    return true;
}

/* ---- the step ---- */

typedef struct run {
    const mti_workload *workload;
    mti_watch watch;
    mti_measurement *m;
    mti_subject subject;
    mti_memory_hooks memory_hooks;
    mt_optimizer *optimizer;
    bool inference; /* no target, and so no loss */
} run;

/* Every step draws the same random numbers. */
static mt_tensor *forward(run *r)
{
    mt_seed(r->subject.device, r->workload->seed + 1);
    if (!mti_memory_hooks_begin(&r->memory_hooks)) return NULL;
    mt_tensor *output = mti_subject_forward(&r->subject);
    if (!mti_memory_hooks_end(&r->memory_hooks)) mt_set(&output, NULL);
    mt_scaler *scaler = r->memory_hooks.scaler;
    if (output && scaler) mt_set(&output, mt_scaler_scale(scaler, output));
    return output;
}

/* Takes the output over and frees it when backward has begun, as a training loop does. */
static bool backward(run *r, mt_tensor *output)
{
    mt_device *device = r->subject.device;
    mt_backward_options options = {0};
    mt_seed(device, r->workload->seed + 2);
    if (!r->subject.target) /* stands for the gradient from later layers */
        options.gradient =
            mt_normal(device, mt_dtype_of(output), mt_rank(output), mt_shape(output), 0, 1);
    bool ok = (r->subject.target || options.gradient) &&
              mt_backward_with(output, &options) == MT_OK && mt_device_sync(device) == MT_OK;
    mt_release(options.gradient);
    mt_release(output);
    return ok;
}

static mt_optimizer *make_optimizer(const run *r)
{
    bool master = r->workload->memory.master;
    bool momentum = r->workload->optimizer == MTI_OPT_SGD_MOMENTUM;
    const mt_sgd_options sgd = {.lr = 1e-3, .momentum = momentum ? 0.9 : 0, .master = master};
    const mt_adamw_options adamw = {.lr = 1e-3,
                                    .weight_decay = 0.1,
                                    .master = master,
                                    .moments = mti_moments_of(r->workload->optimizer)};
    return r->workload->optimizer >= MTI_OPT_ADAMW ? mt_adamw_new(r->subject.model, &adamw)
                                                   : mt_sgd_new(r->subject.model, &sgd);
}

static bool step(run *r)
{
    mt_scaler *scaler = r->memory_hooks.scaler;
    if (r->workload->optimizer != MTI_OPT_NONE && !r->optimizer) r->optimizer = make_optimizer(r);
    bool ok = r->workload->optimizer == MTI_OPT_NONE || r->optimizer;
    if (ok && r->optimizer)
        ok = (scaler ? mt_scaler_step(scaler, r->optimizer, NULL)
                     : mt_optimizer_step(r->optimizer)) == MT_OK;
    return ok && mt_module_zero_grad(r->subject.model) == MT_OK &&
           mt_device_sync(r->subject.device) == MT_OK;
}

/* ---- a step, phase by phase ---- */

/* Returns the output, which the caller releases; under a ledger if there is one. */
static mt_tensor *forward_phase(run *r, mti_phases *phases, mt_ledger *ledger)
{
    mt_device *device = r->subject.device;
    mt_tensor *output = NULL;
    double began = begin_phase("forward", device);
    if (!ledger || mt_ledger_begin(ledger) == MT_OK) {
        output = forward(r);
        if (ledger && mt_ledger_end(ledger) != MT_OK) mt_set(&output, NULL);
    }
    if (output && (mt_set_category(output, MT_OUTPUT) != MT_OK || mt_device_sync(device) != MT_OK))
        mt_set(&output, NULL);
    end_phase(phases, "forward", device, began);
    return output;
}

/* Takes the output over. */
static bool backward_phase(run *r, mti_phases *phases, mt_tensor *output)
{
    double began = begin_phase("backward", r->subject.device);
    bool ok = backward(r, output);
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

static bool init_phase(run *r, mt_device *device)
{
    int observer = mt_mem_add_observer(device, note_newest, &r->m->newest_before);
    if (!observer) return false;
    double began = begin_phase("init", device);
    bool ok =
        mti_subject_make(&r->subject, device, r->workload, !r->inference) &&
        mti_memory_hooks_make(&r->memory_hooks, &r->workload->memory, device, r->subject.model);
    end_phase(&r->m->phases, "init", device, began);
    mt_mem_remove_observer(device, observer);
    return ok && name_parameters(r) &&
           mt_module_size(r->subject.model, &r->m->n_params, &r->m->param_bytes) == MT_OK;
}

/* Also measures what is reported of the first step alone: saved tensors, growth, FLOPs, loss. */
static bool first_step(run *r)
{
    mti_measurement *m = r->m;
    mt_device *device = r->subject.device;
    mt_mem_stats before, after;
    m->ledger = mt_ledger_new(device);
    if (!m->ledger) return false;
    mt_flops_reset(device);
    mt_mem_get_stats(device, &before);
    mt_tensor *output = forward_phase(r, &m->phases, m->ledger);
    mt_mem_get_stats(device, &after);
    if (!output || !account_for_growth(m, output, &before, &after)) {
        mt_release(output);
        return false;
    }
    double scale = r->memory_hooks.scaler ? mt_scaler_get(r->memory_hooks.scaler).scale : 1,
           loss = NAN;
    if (r->subject.target && mt_device_has_data(device)) loss = mt_item(output) / scale;
    bool ok = backward_phase(r, &m->phases, output) &&
              (!r->watch.look || r->watch.look(r->watch.user, &r->subject, loss, scale)) &&
              step_phase(r, &m->phases);
    m->flops = mt_flops_get(device);
    return ok;
}

/* ---- the steps after it ---- */

/* The next batch has no gradient yet. */
static bool next_step(run *r, mti_phases *phases, mt_ledger *ledger)
{
    mt_tensor *input = r->subject.input;
    if (mt_requires_grad(input) && mt_set_grad(input, NULL) != MT_OK) return false;
    mt_tensor *output = forward_phase(r, phases, ledger);
    return output && backward_phase(r, phases, output) && step_phase(r, phases);
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

static bool steady_step(run *r)
{
    mti_steady *s = &r->m->steady;
    s->ledger = r->watch.timeline ? mt_ledger_new(r->subject.device) : NULL;
    if (r->watch.timeline && !s->ledger) return false;
    mti_timeline_mark_steady(&r->m->timeline);
    mt_flops before = mt_flops_get(r->subject.device);
    double began = mti_now();
    if (!next_step(r, &s->phases, s->ledger)) return false;
    s->seconds = mt_device_has_data(r->subject.device) ? mti_now() - began : NAN;
    mt_flops after = mt_flops_get(r->subject.device);
    s->flops = (mt_flops){after.forward - before.forward, after.backward - before.backward,
                          after.recompute - before.recompute};
    for (int i = 0; i < s->phases.n; i++) {
        const mti_phase *phase = &s->phases.at[i];
        if (phase->reserved_peak > s->reserved) s->reserved = phase->reserved_peak;
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
    mt_optimizer_free(r.optimizer);
    mti_memory_hooks_free(&r.memory_hooks);
    mti_subject_free(&r.subject);
    return ok;
}

/* ---- inference ---- */

static bool infer(run *r, mt_device *device)
{
    mti_measurement *m = r->m;
    m->ledger = mt_ledger_new(device);
    if (!m->ledger || !init_phase(r, device)) return false;
    mt_module_set_training(r->subject.model, false);
    mt_flops_reset(device);
    mt_tensor *output = forward_phase(r, &m->phases, m->ledger);
    m->flops = mt_flops_get(device);
    bool ok = output != NULL;
    mt_release(output);
    return ok;
}

bool mti_measure_inference(mti_measurement *m, mt_device *device, const mti_workload *w)
{
    mti_workload plain = *w;
    plain.memory = (mti_memory_options){.amp = w->memory.amp,
                                        .amp_dtype = w->memory.amp_dtype,
                                        .lora_rank = w->memory.lora_rank,
                                        .qlora = w->memory.qlora};
    plain.budget = 0;
    *m = (mti_measurement){0};
    run r = {.workload = &plain, .m = m, .inference = true};
    uint64_t failures = mti_failures();
    bool mode = mt_set_grad_mode(false);
    bool ok = infer(&r, device);
    mt_set_grad_mode(mode);
    mti_memory_hooks_free(&r.memory_hooks);
    mti_subject_free(&r.subject);
    return ok && !mti_failed_since(failures); /* or a phase could not be named */
}

void mti_measurement_free(mti_measurement *m)
{
    mt_ledger_free(m->ledger);
    mt_ledger_free(m->steady.ledger);
    m->ledger = m->steady.ledger = NULL;
    mti_timeline_free(&m->timeline);
}

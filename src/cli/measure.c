/* measure.c: one training step, phase by phase, under the ledger. */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "base/philox.h"
#include "cli/measure.h"
#include "memtape/ops.h"
#include "nn/model.h"

#define IGNORE_NOTHING (-100) /* no target has this value */

/* ---- the subject ---- */

/* Token ids [b,s] below `vocab`; `stream` tells inputs from targets. */
static mt_tensor *random_ids(mt_device *device, int64_t batch, int64_t seq, int64_t vocab,
                             uint64_t seed, uint64_t stream)
{
    if (!mt_device_has_data(device)) return mt_zeros(device, MT_I64, MT_SHAPE(batch, seq));
    size_t n = (size_t)(batch * seq), n_bytes = n * sizeof(int64_t);
    int64_t *ids = mti_malloc(n_bytes);
    if (!ids) return NULL;
    for (size_t i = 0; i < n; i++) {
        mti_u32x4 r = mti_philox(seed, stream << 40 | i);
        uint64_t wide = (uint64_t)r.v[0] << 32 | r.v[1];
        ids[i] = (int64_t)(wide % (uint64_t)vocab);
    }
    mt_tensor *t = mt_from_data(device, MT_I64, MT_SHAPE(batch, seq), ids, n_bytes);
    mti_free(ids);
    return t;
}

bool mti_subject_make(mti_subject *s, mt_device *device, const mt_model_config *config,
                      int64_t batch, int64_t seq, uint64_t seed)
{
    *s = (mti_subject){.device = device};
    mt_seed(device, seed);
    s->model = mt_model_new(device, config);
    if (!s->model) return false;
    if (mti_is_whole(config->kind)) {
        s->input = random_ids(device, batch, seq, config->vocab, seed, 1);
        s->target = random_ids(device, batch, seq, config->vocab, seed, 2);
        return s->input && s->target;
    }
    s->input = mt_normal(device, config->dtype, MT_SHAPE(batch, seq, config->hidden), 0, 1);
    return s->input && mt_set_requires_grad(s->input, true) == MT_OK;
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
    mt_set(&y, mt_cross_entropy(y, s->target, IGNORE_NOTHING));
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

static void end_phase(mti_measurement *m, const char *name, mt_device *device, double began)
{
    mt_mem_stats stats;
    mt_mem_get_stats(device, &stats);
    mti_phase *phase = &m->phases[m->n_phases++];
    *phase = (mti_phase){.name = name,
                         .allocated = stats.allocated.current,
                         .peak = stats.allocated.peak,
                         .reserved = stats.reserved.current,
                         .seconds = mti_now() - began};
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
    const mti_trial *trial;
    mti_measurement *m;
    mti_subject subject;
    mti_spender spender;
    mt_optimizer *optimizer;
} run;

/* Every step sees the same random numbers, whatever was drawn before. */
static mt_tensor *forward(run *r)
{
    mt_seed(r->subject.device, r->trial->seed + 1);
    if (!mti_spender_begin(&r->spender)) return NULL;
    mt_tensor *output = mti_subject_forward(&r->subject);
    if (!mti_spender_end(&r->spender)) mt_set(&output, NULL);
    mt_scaler *scaler = r->spender.scaler;
    if (output && scaler) mt_set(&output, mt_scaler_scale(scaler, output));
    return output;
}

/* Takes the output over: it is gone when backward has begun, as in a training loop. */
static bool backward(run *r, mt_tensor *output)
{
    mt_device *device = r->subject.device;
    mt_backward_options options = {0};
    mt_seed(device, r->trial->seed + 2);
    if (!r->subject.target) /* what the layers above would send down */
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
    bool master = r->trial->spending && r->trial->spending->master;
    const mt_sgd_options sgd = {.lr = 1e-3, .momentum = 0.9, .master = master};
    const mt_adamw_options adamw = {.lr = 1e-3, .weight_decay = 0.1, .master = master};
    return r->trial->optimizer == MTI_OPT_SGD ? mt_sgd_new(r->subject.model, &sgd)
                                              : mt_adamw_new(r->subject.model, &adamw);
}

static bool step(run *r)
{
    mt_scaler *scaler = r->spender.scaler;
    if (r->trial->optimizer != MTI_OPT_NONE && !r->optimizer) r->optimizer = make_optimizer(r);
    bool ok = r->trial->optimizer == MTI_OPT_NONE || r->optimizer;
    if (ok && r->optimizer)
        ok = (scaler ? mt_scaler_step(scaler, r->optimizer, NULL)
                     : mt_optimizer_step(r->optimizer)) == MT_OK;
    return ok && mt_module_zero_grad(r->subject.model) == MT_OK &&
           mt_device_sync(r->subject.device) == MT_OK;
}

/* ---- the first step, phase by phase ---- */

static bool name_parameters(const run *r)
{
    const mt_named_tensor *params;
    size_t n;
    return !r->trial->timeline || (mt_module_params(r->subject.model, &params, &n) == MT_OK &&
                                   mti_timeline_name(&r->m->timeline, params, n));
}

static bool init_phase(run *r, mt_device *device)
{
    const mti_trial *t = r->trial;
    int observer = mt_mem_add_observer(device, note_newest, &r->m->newest_before);
    if (!observer) return false;
    double began = begin_phase("init", device);
    bool ok = mti_subject_make(&r->subject, device, t->config, t->batch, t->seq, t->seed) &&
              mti_spender_make(&r->spender, t->spending, device, r->subject.model);
    end_phase(r->m, "init", device, began);
    mt_mem_remove_observer(device, observer);
    return ok && name_parameters(r) &&
           mt_module_size(r->subject.model, &r->m->n_params, &r->m->param_bytes) == MT_OK;
}

static bool forward_phase(run *r, mt_tensor **output)
{
    mti_measurement *m = r->m;
    mt_device *device = r->subject.device;
    mt_mem_stats before, after;
    mt_mem_get_stats(device, &before);
    double began = begin_phase("forward", device);
    bool ok = mt_ledger_begin(m->ledger) == MT_OK;
    if (ok) {
        *output = forward(r);
        ok = mt_ledger_end(m->ledger) == MT_OK && *output;
    }
    ok = ok && mt_set_category(*output, MT_OUTPUT) == MT_OK && mt_device_sync(device) == MT_OK;
    end_phase(m, "forward", device, began);
    mt_mem_get_stats(device, &after);
    return ok && account_for_growth(m, *output, &before, &after);
}

static bool backward_phase(run *r, mt_tensor *output)
{
    double scale = r->spender.scaler ? mt_scaler_get(r->spender.scaler).scale : 1, loss = NAN;
    if (r->subject.target && mt_device_has_data(r->subject.device)) loss = mt_item(output) / scale;
    double began = begin_phase("backward", r->subject.device);
    bool ok = backward(r, output);
    end_phase(r->m, "backward", r->subject.device, began);
    return ok && (!r->trial->look || r->trial->look(r->trial->user, &r->subject, loss, scale));
}

static bool step_phase(run *r)
{
    if (r->trial->optimizer == MTI_OPT_NONE) return step(r);
    double began = begin_phase("step", r->subject.device);
    bool ok = step(r);
    end_phase(r->m, "step", r->subject.device, began);
    return ok;
}

/* ---- more steps, for their time ---- */

static int by_size(const void *a, const void *b)
{
    const double *x = a, *y = b;
    return (*x > *y) - (*x < *y);
}

static bool repeat(run *r)
{
    int64_t n = r->trial->repeats;
    double *seconds = mti_calloc((size_t)n + 1, sizeof *seconds);
    bool ok = seconds != NULL;
    for (int64_t i = 0; ok && i < n; i++) {
        double began = mti_now();
        mt_set_phase("forward");
        mt_tensor *output = forward(r);
        mt_set_phase("backward");
        ok = output && backward(r, output);
        mt_set_phase("step");
        ok = ok && step(r);
        mt_set_phase(NULL);
        seconds[i] = mti_now() - began;
        if (r->subject.input && mt_requires_grad(r->subject.input))
            ok = ok && mt_set_grad(r->subject.input, NULL) == MT_OK;
    }
    if (ok && n) {
        qsort(seconds, (size_t)n, sizeof *seconds, by_size);
        r->m->step_s = (seconds[(n - 1) / 2] + seconds[n / 2]) / 2;
    }
    mti_free(seconds);
    return ok;
}

bool mti_measure(mti_measurement *m, mt_device *device, const mti_trial *trial)
{
    *m = (mti_measurement){0};
    run r = {.trial = trial, .m = m};
    mt_tensor *output = NULL;
    bool ok = false;
    if (trial->timeline && !mti_timeline_begin(&m->timeline, device)) goto out;
    if (!init_phase(&r, device)) goto out;
    m->ledger = mt_ledger_new(device);
    if (!m->ledger) goto out;
    mt_flops_reset(device);
    if (!forward_phase(&r, &output)) goto out;
    ok = backward_phase(&r, output) && step_phase(&r) && mti_spender_tell(&r.spender);
    output = NULL; /* backward took it */
    m->spent = r.spender.spent;
    m->flops = mt_flops_get(device);
    ok = mti_timeline_end(&m->timeline) && ok && repeat(&r);
out:
    mti_timeline_end(&m->timeline);
    mt_release(output);
    mt_optimizer_free(r.optimizer);
    mti_spender_free(&r.spender);
    mti_subject_free(&r.subject);
    return ok;
}

mti_trial mti_trial_of(const mti_options *o)
{
    return (mti_trial){.config = &o->config,
                       .batch = o->batch,
                       .seq = o->seq,
                       .seed = (uint64_t)o->seed,
                       .optimizer = o->optimizer,
                       .spending = &o->spending};
}

void mti_measurement_free(mti_measurement *m)
{
    mt_ledger_free(m->ledger);
    m->ledger = NULL;
    mti_timeline_free(&m->timeline);
}

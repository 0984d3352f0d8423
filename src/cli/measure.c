/* measure.c: one training step, phase by phase, under the ledger. */
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
    for (int c = 0; c < MT_CATEGORY_COUNT; c++) phase->by_category[c] = stats.by_category[c];
    mt_set_phase(NULL);
}

static void note_newest(void *user, const mt_mem_event *event)
{
    uint64_t *newest = user;
    if (event->kind == MT_MEM_ALLOC && event->serial > *newest) *newest = event->serial;
}

/* ---- the equation of the growth over forward ---- */

static bool account_for_growth(mti_measurement *m, const mt_tensor *output, size_t before,
                               size_t after)
{
    mti_growth *g = &m->growth;
    mt_storage_info out = mt_storage_of(output);
    bool output_saved = false;
    *g = (mti_growth){.measured = (int64_t)after - (int64_t)before};
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
    g->residual = g->measured - (g->saved - g->before) - g->rounding - g->output;
    return true;
}

/* ---- the step ---- */

static bool forward_phase(mti_measurement *m, const mti_subject *s, mt_tensor **output)
{
    mt_mem_stats before, after;
    mt_mem_get_stats(s->device, &before);
    double began = begin_phase("forward", s->device);
    bool ok = mt_ledger_begin(m->ledger) == MT_OK;
    if (ok) {
        *output = mti_subject_forward(s);
        ok = mt_ledger_end(m->ledger) == MT_OK && *output;
    }
    ok = ok && mt_set_category(*output, MT_OUTPUT) == MT_OK && mt_device_sync(s->device) == MT_OK;
    end_phase(m, "forward", s->device, began);
    mt_mem_get_stats(s->device, &after);
    return ok && account_for_growth(m, *output, before.allocated.current, after.allocated.current);
}

/* Takes the output over: it is gone when backward has begun, as in a training loop. */
static bool backward_phase(mti_measurement *m, const mti_subject *s, mt_tensor *output)
{
    double began = begin_phase("backward", s->device);
    mt_backward_options options = {0};
    if (!s->target) /* what the layers above would send down */
        options.gradient =
            mt_normal(s->device, mt_dtype_of(output), mt_rank(output), mt_shape(output), 0, 1);
    bool ok = (s->target || options.gradient) && mt_backward_with(output, &options) == MT_OK &&
              mt_device_sync(s->device) == MT_OK;
    mt_release(options.gradient);
    mt_release(output);
    end_phase(m, "backward", s->device, began);
    return ok;
}

static bool step_phase(mti_measurement *m, const mti_subject *s, mti_optimizer_choice choice)
{
    if (choice == MTI_OPT_NONE) return true;
    double began = begin_phase("step", s->device);
    mt_optimizer *optimizer =
        choice == MTI_OPT_SGD
            ? mt_sgd_new(s->model, &(mt_sgd_options){.lr = 1e-3, .momentum = 0.9})
            : mt_adamw_new(s->model, &(mt_adamw_options){.lr = 1e-3, .weight_decay = 0.1});
    bool ok = optimizer && mt_optimizer_step(optimizer) == MT_OK &&
              mt_module_zero_grad(s->model) == MT_OK && mt_device_sync(s->device) == MT_OK;
    end_phase(m, "step", s->device, began);
    mt_optimizer_free(optimizer);
    return ok;
}

bool mti_measure(mti_measurement *m, mt_device *device, const mt_model_config *config,
                 int64_t batch, int64_t seq, uint64_t seed, mti_optimizer_choice optimizer)
{
    *m = (mti_measurement){0};
    mti_subject s = {0};
    mt_tensor *output = NULL;
    bool ok = false;
    int observer = mt_mem_add_observer(device, note_newest, &m->newest_before);
    if (!observer) return false;
    double began = begin_phase("init", device);
    bool made = mti_subject_make(&s, device, config, batch, seq, seed);
    end_phase(m, "init", device, began);
    mt_mem_remove_observer(device, observer);
    if (!made) goto out;
    if (mt_module_size(s.model, &m->n_params, &m->param_bytes) != MT_OK) goto out;
    m->ledger = mt_ledger_new(device);
    if (!m->ledger) goto out;
    mt_flops_reset(device);
    if (!forward_phase(m, &s, &output)) goto out;
    ok = backward_phase(m, &s, output) && step_phase(m, &s, optimizer);
    output = NULL; /* backward took it */
    m->flops = mt_flops_get(device);
out:
    mt_release(output);
    mti_subject_free(&s);
    return ok;
}

void mti_measurement_free(mti_measurement *m)
{
    mt_ledger_free(m->ledger);
    m->ledger = NULL;
}

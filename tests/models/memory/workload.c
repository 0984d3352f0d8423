/* workload.c: one training run; only the device and the plan differ between its runs. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "workload.h"

workload workload_gpt(int64_t layers)
{
    return (workload){.config = {.kind = MT_MODEL_GPT,
                                 .hidden = 24,
                                 .heads = 3,
                                 .layers = layers,
                                 .vocab = 31,
                                 .context = 40,
                                 .act = MT_ACT_GELU,
                                 .dropout = 0.1,
                                 .attention = MT_ATTENTION_FLASH,
                                 .dtype = MT_F32},
                      .batch = 2,
                      .seq = 40};
}

typedef struct parts {
    const workload *w;
    mt_device *device;
    mt_module *model;
    mt_optimizer *adamw;
    mt_tensor *tokens, *targets;
    outcome *out;
} parts;

static mt_tensor *ids(const workload *w, mt_device *device, uint64_t seed)
{
    int64_t n = w->batch * w->seq;
    if (!mt_device_has_data(device)) return mt_zeros(device, MT_I64, MT_SHAPE(w->batch, w->seq));
    int64_t *values = malloc((size_t)n * sizeof *values);
    if (!values) return NULL;
    for (int64_t i = 0; i < n; i++)
        values[i] = (int64_t)mtt_draw(&seed, 0, (double)w->config.vocab);
    mt_tensor *t = mt_from_data(device, MT_I64, MT_SHAPE(w->batch, w->seq), values,
                                (size_t)n * sizeof *values);
    free(values);
    return t;
}

static mt_status open_parts(parts *p, const mt_budget_plan *plan)
{
    char path[32];
    mt_seed(p->device, 3);
    p->model = mt_model_new(p->device, &p->w->config);
    mt_status status = p->model ? MT_OK : mt_last_status();
    if (status == MT_OK)
        status = p->w->preset ? mt_model_checkpoint(p->model, p->w->preset)
                              : mt_budget_apply(plan, p->model, NULL);
    for (int64_t i = 0; status == MT_OK && i < p->w->frozen; i++) {
        snprintf(path, sizeof path, "h.%lld", (long long)i);
        status = mt_module_freeze(mt_module_find(p->model, path), true);
    }
    p->tokens = ids(p->w, p->device, 5);
    p->targets = ids(p->w, p->device, 6);
    if (p->w->n_steps) p->adamw = mt_adamw_new(p->model, &(mt_adamw_options){.lr = 1e-2});
    return status == MT_OK && p->tokens && p->targets && (p->adamw || !p->w->n_steps)
               ? MT_OK
               : mt_last_status();
}

static void close_parts(parts *p)
{
    mt_release(p->tokens);
    mt_release(p->targets);
    mt_optimizer_free(p->adamw);
    mt_module_free(p->model);
}

static mt_status one_step(parts *p)
{
    mt_set_phase("forward");
    mt_tensor *loss = mt_forward(p->model, p->tokens);
    if (loss && mt_scope_push("loss") == MT_OK) {
        mt_set(&loss, mt_cross_entropy(loss, p->targets, MT_IGNORE));
        mt_scope_pop();
    }
    mt_set_phase("backward");
    mt_status status = mt_backward(loss);
    mt_set_phase("step");
    mt_release(loss);
    if (status != MT_OK || !p->adamw) return status;
    status = mt_optimizer_step(p->adamw);
    return status == MT_OK ? mt_module_zero_grad(p->model) : status;
}

static void copy_out(parts *p)
{
    const mt_named_tensor *list;
    size_t n, n_bytes = 0;
    mtt_ok(mt_module_params(p->model, &list, &n));
    for (size_t i = 0; i < n; i++) n_bytes += mt_storage_of(list[i].tensor).bytes;
    p->out->bytes = calloc(1, n_bytes);
    assert_non_null(p->out->bytes);
    for (size_t i = 0; i < n; i++) {
        mt_tensor *t = p->adamw ? list[i].tensor : mt_grad(list[i].tensor);
        if (!t) continue; /* frozen */
        size_t bytes = (size_t)mt_numel(t) * mt_dtype_size(mt_dtype_of(t));
        mtt_ok(mt_to_host(t, p->out->bytes + p->out->n_bytes, bytes));
        p->out->n_bytes += bytes;
    }
}

static mt_status run_parts(const workload *w, mt_device *device, const mt_budget_plan *plan,
                           outcome *out)
{
    parts p = {.w = w, .device = device, .out = out};
    mt_status status = MT_OK;
    if (w->scratch && !mt_device_has_data(device))
        status = mt_device_count_scratch_of(device, w->scratch);
    if (status == MT_OK) status = open_parts(&p, plan);
    for (int i = 0; status == MT_OK && i < (w->n_steps ? w->n_steps : 1); i++)
        status = one_step(&p);
    if (status == MT_OK && out && mt_device_has_data(device)) copy_out(&p);
    close_parts(&p);
    return status;
}

mt_status workload_run(void *user, mt_device *device, const mt_budget_plan *plan)
{
    return run_parts(user, device, plan, NULL);
}

outcome workload_outcome(workload *w, const char *kind, const mt_budget_plan *plan)
{
    outcome out = {0};
    mt_device *device = mt_device_open(kind);
    assert_non_null(device);
    mtt_ok(run_parts(w, device, plan, &out));
    mt_mem_stats stats;
    mt_mem_get_stats(device, &stats);
    out.peak = stats.allocated.peak;
    out.flops = mt_flops_get(device);
    assert_int_equal(stats.allocated.current, 0);
    mt_device_release(device);
    return out;
}

void outcome_free(outcome *o) { free(o->bytes); }

/* trainer.c: batches from text, optimizer steps, and the loss on held-out text. */
#include <math.h>
#include "cli/rank_trainer.h"
#include "cli/run_file.h"
#include "memtape/ops.h"
#include "nn/model.h"

#define EVAL_BATCH 16 /* windows at a time */

static bool make_model(mti_trainer *t)
{
    const mti_workload *w = &t->workload;
    const mti_train_settings *s = &t->settings;
    t->model = s->from ? mti_run_base_model(s->from, t->device, &w->config)
                       : mt_model_new(t->device, &w->config);
    return t->model && mti_adapt(t->model, &w->memory) &&
           mti_memory_hooks_make(&t->memory_hooks, &w->memory, t->device, 1) &&
           mti_memory_hooks_attach(&t->memory_hooks, t->model);
}

static mt_optimizer *optimizer_new(mt_module *model, const mti_workload *w,
                                   const mti_train_settings *s)
{
    bool master = w->memory.master;
    switch (w->optimizer) {
    case MTI_OPT_NONE:
        return mti_fail_null(MT_ERR_ARGUMENT, "train: without an optimizer nothing is learnt");
    case MTI_OPT_SGD:
    case MTI_OPT_SGD_MOMENTUM:
        return mt_sgd_new(model,
                          &(mt_sgd_options){.lr = s->lr,
                                            .momentum = w->optimizer == MTI_OPT_SGD ? 0 : 0.9,
                                            .weight_decay = s->weight_decay,
                                            .master = master});
    case MTI_OPT_ADAFACTOR:
        return mt_adafactor_new(model, &(mt_adafactor_options){.lr = s->lr,
                                                               .weight_decay = s->weight_decay,
                                                               .decay_matrices_only = true,
                                                               .master = master});
    default:
        return mt_adamw_new(model,
                            &(mt_adamw_options){.lr = s->lr,
                                                .beta2 = 0.99, /* short runs, small batches */
                                                .weight_decay = s->weight_decay,
                                                .decay_matrices_only = true,
                                                .master = master,
                                                .moments = mti_moments_of(w->optimizer)});
    }
}

static bool make_optimizer(mti_trainer *t)
{
    const mti_train_settings *s = &t->settings;
    t->optimizer = optimizer_new(t->stage ? mt_stage_stepped(t->stage) : t->model, &t->workload, s);
    for (int64_t i = 0; s->graph && i < (s->accumulate > 1 ? 2 : 1); i++)
        if (!(t->graph[i] = mt_step_graph_new(t->model))) return false;
    return t->optimizer != NULL;
}

bool mti_trainer_make(mti_trainer *t, mt_device *device, const mti_workload *w,
                      const mti_train_settings *s, const mti_corpus *corpus)
{
    *t = (mti_trainer){.workload = *w, .settings = *s, .corpus = corpus, .device = device};
    if (corpus->n_train < (size_t)w->seq + 1)
        return mti_fail_bool(MT_ERR_ARGUMENT,
                             "the text is too short: %zu bytes to learn from, and a sequence takes "
                             "%lld",
                             corpus->n_train, (long long)w->seq + 1);
    mt_seed(device, w->seed);
    return (w->ranked ? mti_rank_trainer_make(t) : make_model(t)) && make_optimizer(t);
}

void mti_trainer_free(mti_trainer *t)
{
    for (int i = 0; i < 2; i++) mt_step_graph_free(t->graph[i]);
    mt_optimizer_free(t->optimizer);
    mti_memory_hooks_free(&t->memory_hooks);
    mt_stage_free(t->stage);
    mt_ledger_free(t->ledger);
    mt_module_free(t->model);
    *t = (mti_trainer){0};
}

/* ---- batches ---- */

/* Mean cross-entropy of a batch [n,seq]; the caller releases it. */
static mt_tensor *loss_of(const mti_trainer *t, int64_t n, int64_t seq, const void *inputs,
                          const void *targets)
{
    size_t n_bytes = (size_t)(n * seq) * sizeof(int64_t);
    mt_tensor *input = mt_from_data(t->device, MT_I64, MT_SHAPE(n, seq), inputs, n_bytes);
    mt_tensor *target = mt_from_data(t->device, MT_I64, MT_SHAPE(n, seq), targets, n_bytes);
    mt_tensor *loss = input && target ? mt_model_forward_loss(t->model, input, target) : NULL;
    mt_release(input);
    mt_release(target);
    return loss;
}

/* ---- training ---- */

/* Forward inside the memory hooks. */
static mt_tensor *forward_loss(mti_trainer *t, const mt_step_input *in)
{
    const mti_workload *w = &t->workload;
    if (mt_set_phase("forward") != MT_OK || !mti_memory_hooks_begin(&t->memory_hooks, true))
        return NULL;
    mt_tensor *loss = loss_of(t, w->batch, w->seq, in[0].data, in[1].data);
    if (!mti_memory_hooks_end(&t->memory_hooks)) mt_set(&loss, NULL);
    return loss;
}

/* The loss times its scale, if it has one, and its share of the step. */
static mt_tensor *scaled_loss(const mti_trainer *t, mt_tensor *loss)
{
    mt_scaler *scaler = t->memory_hooks.scaler;
    mt_tensor *scaled = scaler ? mt_scaler_scale(scaler, loss) : mt_retain(loss);
    if (scaled && t->settings.accumulate > 1)
        mt_set(&scaled, mt_mul_scalar(scaled, 1.0 / (double)t->settings.accumulate));
    return scaled;
}

/* Forward and backward of a batch, as a step graph captures it; returns the loss. */
static mt_tensor *run_batch(void *user, const mt_step_input *in)
{
    mti_trainer *t = user;
    mt_tensor *loss = forward_loss(t, in), *scaled = loss ? scaled_loss(t, loss) : NULL;
    if (!scaled || mt_set_phase("backward") != MT_OK || mt_backward(scaled) != MT_OK)
        mt_set(&loss, NULL);
    mt_release(scaled);
    return loss;
}

/* Micro-batch `part` of the step; adds to *sum. */
static bool run_part(mti_trainer *t, int64_t part, size_t *starts, double *sum)
{
    const mti_workload *w = &t->workload;
    size_t n_ids = (size_t)(w->batch * w->seq);
    mti_batch_starts(t, part, starts);
    int64_t *ids = mti_batch_ids(t->corpus->train, w->batch, w->seq, starts);
    if (!ids) return false;
    const mt_step_input in[] = {{ids, n_ids * sizeof *ids}, {ids + n_ids, n_ids * sizeof *ids}};
    mt_scaler *scaler = t->memory_hooks.scaler;
    double scale = scaler ? mt_scaler_get(scaler).scale : 1;
    mt_step_graph *graph = t->graph[part > 0];
    mt_tensor *loss =
        graph ? mt_step_graph_run(graph, run_batch, t, scale, 2, in) : run_batch(t, in);
    if (loss && mt_device_has_data(t->device)) *sum += mt_item(loss);
    mt_release(loss);
    mti_free(ids);
    return loss;
}

static bool step_optimizer(mti_trainer *t)
{
    mt_scaler *scaler = t->memory_hooks.scaler;
    double clip = t->settings.clip;
    bool ok;
    if (t->stage) return mt_stage_step(t->stage, t->optimizer, clip, NULL) == MT_OK;
    if (scaler)
        ok = (clip <= 0 || mt_scaler_clip(scaler, t->optimizer, clip, NULL) == MT_OK) &&
             mt_scaler_step(scaler, t->optimizer, NULL) == MT_OK;
    else
        ok = (clip <= 0 || mt_clip_grad_norm(t->model, clip, NULL) == MT_OK) &&
             mt_optimizer_step(t->optimizer) == MT_OK;
    return ok && mt_module_zero_grad(t->model) == MT_OK;
}

/* Forward and backward of all of a step's batches. */
static bool run_parts(mti_trainer *t, double *loss)
{
    double sum = 0;
    size_t *starts = mti_calloc((size_t)t->workload.batch, sizeof *starts);
    bool ok = starts != NULL;
    for (int64_t part = 0; ok && part < t->settings.accumulate; part++)
        ok = run_part(t, part, starts, &sum);
    mti_free(starts);
    *loss = sum / (double)t->settings.accumulate;
    return ok;
}

bool mti_trainer_step(mti_trainer *t)
{
    double loss = 0, lr = mt_cosine_lr(t->step, t->settings.warmup, t->settings.steps,
                                       t->settings.lr, t->settings.min_lr);
    bool ok = t->stage ? mti_rank_trainer_backward(t, &loss) : run_parts(t, &loss);
    ok = ok && mt_set_phase("step") == MT_OK;
    if (ok && !isfinite(loss))
        ok = mti_fail_bool(MT_ERR_STATE,
                           "the loss became %g at step %lld; a lower --lr or a longer --warmup may "
                           "help",
                           loss, (long long)t->step + 1);
    ok = ok && mt_optimizer_set_lr(t->optimizer, lr) == MT_OK && step_optimizer(t);
    mt_set_phase(NULL);
    if (!ok) return false;
    t->step++;
    t->loss = mt_device_has_data(t->device) ? loss : NAN;
    return true;
}

/* ---- held-out text ---- */

/* Adds n windows' nats to *nats. */
static bool add_windows(const mti_trainer *t, int64_t n, int64_t seq, const size_t *starts,
                        double *nats)
{
    int64_t *ids = mti_batch_ids(t->corpus->held, n, seq, starts);
    mt_tensor *loss = ids ? loss_of(t, n, seq, ids, ids + n * seq) : NULL;
    mti_free(ids);
    if (!loss) return false;
    *nats += mt_item(loss) * (double)(n * seq);
    mt_release(loss);
    return true;
}

/* `left` bytes of held-out text to predict, window by window, the last one shorter. */
static bool add_all(const mti_trainer *t, size_t left, double *nats)
{
    size_t starts[EVAL_BATCH], at = 0, seq = (size_t)t->workload.seq;
    while (left >= seq) {
        int64_t n = 0;
        for (; n < EVAL_BATCH && left >= seq; n++, at += seq, left -= seq) starts[n] = at;
        if (!add_windows(t, n, (int64_t)seq, starts, nats)) return false;
    }
    return left == 0 || add_windows(t, 1, (int64_t)left, &at, nats);
}

/* Of a model that is here as a whole. */
static bool nats_of(const mti_trainer *t, size_t n_bytes, double *nats)
{
    bool grad = mt_set_grad_mode(false), training = mt_module_training(t->model);
    mt_module_set_training(t->model, false);
    bool ok = add_all(t, n_bytes, nats);
    mt_module_set_training(t->model, training);
    mt_set_grad_mode(grad);
    return ok;
}

bool mti_trainer_held_out(mti_trainer *t, size_t max_bytes, double *bits)
{
    size_t n = t->corpus->n_held;
    if (max_bytes && n > max_bytes) n = max_bytes;
    if (n < 2) return mti_fail_bool(MT_ERR_ARGUMENT, "%zu bytes are held out; 2 are needed", n);
    double nats = 0;
    bool ok = mt_set_phase("held-out") == MT_OK &&
              (t->stage ? mti_rank_trainer_held_out(t, n - 1, &nats) : nats_of(t, n - 1, &nats));
    mt_set_phase(NULL);
    *bits = nats / (double)(n - 1) / log(2);
    return ok;
}

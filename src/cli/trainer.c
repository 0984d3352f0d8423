/* trainer.c: batches from text, optimizer steps, and the loss on held-out text. */
#include <math.h>
#include "cli/rank_trainer.h"
#include "cli/run_file.h"
#include "memtape/ops.h"
#include "nn/model.h"

#define EVAL_BATCH 16 /* windows at a time */

/* ---- around a forward: the ledger outermost, as in a profile ---- */

static bool before_forward(void *user, bool first)
{
    mti_trainer *t = user;
    t->under_ledger = t->ledger && t->ledger_forwards < t->stage.schedule.ahead;
    if (t->under_ledger) t->ledger_forwards++;
    if (mt_set_phase("forward") != MT_OK) return false;
    if (t->under_ledger && mt_ledger_begin(t->ledger) != MT_OK) return false;
    if (mti_memory_hooks_begin(&t->memory_hooks, first)) return true;
    if (t->under_ledger) mt_ledger_end(t->ledger);
    return false;
}

static bool after_forward(void *user)
{
    mti_trainer *t = user;
    bool ok = mti_memory_hooks_end(&t->memory_hooks);
    if (t->under_ledger) ok = mt_ledger_end(t->ledger) == MT_OK && ok;
    return mt_set_phase("backward") == MT_OK && ok;
}

/* ---- making and freeing ---- */

static bool make_model(mti_trainer *t)
{
    const mti_workload *w = &t->workload;
    const mti_train_settings *s = &t->settings;
    mt_module *model = s->from ? mti_run_base_model(s->from, t->device, &w->config)
                               : mt_model_new(t->device, &w->config);
    bool ok = model && mti_adapt(model, &w->memory);
    ok = mti_stage_make_plain(&t->stage, t->device, &w->config, model, s->accumulate) && ok;
    t->model = t->stage.model;
    return ok;
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
    t->optimizer = optimizer_new(mt_stage_stepped(&t->stage), &t->workload, s);
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
    bool ok = (w->ranked ? mti_rank_trainer_make(t) : make_model(t)) &&
              mti_memory_hooks_make(&t->memory_hooks, &t->workload.memory, &t->stage) &&
              make_optimizer(t);
    t->stage.observer = (mti_step_observer){
        .before_forward = before_forward, .after_forward = after_forward, .user = t};
    return ok;
}

void mti_trainer_free(mti_trainer *t)
{
    for (int i = 0; i < 2; i++) mt_step_graph_free(t->graph[i]);
    mt_optimizer_free(t->optimizer);
    mti_memory_hooks_free(&t->memory_hooks);
    mti_stage_free(&t->stage);
    mt_ledger_free(t->ledger);
    *t = (mti_trainer){0};
}

/* ---- training ---- */

static mt_tensor *tensor_of(const mti_trainer *t, const void *ids, int64_t n, int64_t seq)
{
    return mt_from_data(t->device, MT_I64, MT_SHAPE(n, seq), ids,
                        (size_t)(n * seq) * sizeof(int64_t));
}

typedef struct micro_batch {
    mti_trainer *t;
    const mt_step_input *in; /* inputs and targets */
    mt_tensor *loss;
} micro_batch;

static bool take(void *user, mti_turn turn, mti_in_flight *f)
{
    const micro_batch *b = user;
    const mti_workload *w = &b->t->workload;
    (void)turn;
    f->input = tensor_of(b->t, b->in[0].data, w->batch, w->seq);
    f->target = tensor_of(b->t, b->in[1].data, w->batch, w->seq);
    return f->input && f->target;
}

static bool keep_loss(void *user, mt_tensor *loss)
{
    micro_batch *b = user;
    b->loss = mt_retain(loss);
    return true;
}

/* Forward and backward of a batch, as a step graph captures it; returns the loss. */
static mt_tensor *run_batch(void *user, const mt_step_input *in)
{
    mti_step step = {0};
    micro_batch b = {user, in, NULL};
    bool ok = mti_step_begin(&step, &b.t->stage, &(mti_batches){take, keep_loss, &b}) &&
              mti_step_ahead(&step) && mti_step_backward(&step);
    mti_step_end(&step);
    if (!ok) mt_set(&b.loss, NULL);
    return b.loss;
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
    bool ok = t->model ? run_parts(t, &loss) : mti_rank_trainer_backward(t, &loss);
    ok = ok && mt_set_phase("step") == MT_OK;
    if (ok && !isfinite(loss))
        ok = mti_fail_bool(MT_ERR_STATE,
                           "the loss became %g at step %lld; a lower --lr or a longer --warmup may "
                           "help",
                           loss, (long long)t->step + 1);
    ok = ok && mt_optimizer_set_lr(t->optimizer, lr) == MT_OK &&
         mti_step_optimizer(&t->stage, t->optimizer, t->settings.clip, NULL);
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
    MT_AUTO mt_tensor *input = ids ? tensor_of(t, ids, n, seq) : NULL;
    MT_AUTO mt_tensor *target = ids ? tensor_of(t, ids + n * seq, n, seq) : NULL;
    MT_AUTO mt_tensor *loss = input && target ? mti_stage_run(&t->stage, 0, input, target) : NULL;
    mti_free(ids);
    if (loss) *nats += mt_item(loss) * (double)(n * seq);
    return loss != NULL;
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
              (t->model ? nats_of(t, n - 1, &nats) : mti_rank_trainer_held_out(t, n - 1, &nats));
    mt_set_phase(NULL);
    *bits = nats / (double)(n - 1) / log(2);
    return ok;
}

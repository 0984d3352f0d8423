/* trainer.c: one process, or one of several ranks, that trains on text. */
#include <math.h>
#include "trainer/trainer.h"
#include "memtape/ops.h"
#include "nn/model.h"

/* ---- a step's phases ---- */

static bool set_phase(void *user, mti_moment moment, mti_step *step, int64_t k)
{
    (void)user, (void)step, (void)k;
    if (moment == MTI_BEFORE_FORWARD) return mt_set_phase("forward") == MT_OK;
    return moment != MTI_AFTER_FORWARD || mt_set_phase("backward") == MT_OK;
}

/* ---- making and freeing ---- */

static bool make_model(mti_trainer *t)
{
    const mti_workload *w = &t->workload;
    const mti_train_settings *s = &t->settings;
    mt_module *model = s->from ? s->reader->model(s->from, t->device, &w->config)
                               : mt_model_new(t->device, &w->config);
    bool ok = model && mti_adapt(model, &w->memory);
    ok = mti_stage_make_plain(&t->stage, t->device, &w->config, model, s->accumulate) && ok;
    t->model = t->stage.model;
    return ok;
}

static bool make_rank(mti_trainer *t)
{
    mti_workload *w = &t->workload;
    const int64_t data = mti_filled_in(&w->parallel).data;
    w->parallel.microbatches = t->settings.accumulate;
    if (w->batch % data)
        return mti_fail_bool(MT_ERR_ARGUMENT,
                             "--batch %lld is divided among --dp %lld; need a multiple",
                             (long long)w->batch, (long long)data);
    const mt_lora_options lora = mti_adapters_of(&w->memory);
    return mti_check_ahead(&w->config, w->seq / mti_filled_in(&w->parallel).context) &&
           mti_stage_make(&t->stage, t->device, &w->config, &w->parallel, 0,
                          lora.rank ? &lora : NULL) &&
           (!t->settings.from || t->settings.reader->part(t->settings.from, &t->stage));
}

static bool make_optimizer(mti_trainer *t)
{
    const mti_train_settings *s = &t->settings;
    const mti_workload *w = &t->workload;
    if (w->optimizer == MTI_OPT_NONE)
        return mti_fail_bool(MT_ERR_ARGUMENT, "train: without an optimizer nothing is learnt");
    t->optimizer = mti_optimizer_make(w->optimizer, mt_stage_stepped(&t->stage), s->lr,
                                      s->weight_decay, w->memory.master);
    return t->optimizer != NULL;
}

bool mti_trainer_make(mti_trainer *t, mt_device *device, const mti_workload *w,
                      const mti_train_settings *s, const mti_corpus *corpus)
{
    *t = (mti_trainer){.workload = *w, .settings = *s, .corpus = corpus, .device = device};
    size_t begin, end = 1;
    if (s->by_document) mti_corpus_document(corpus, 0, &begin, &end);
    if (!end)
        return mti_fail_bool(MT_ERR_ARGUMENT,
                             "no document of the text has two tokens, of which the "
                             "first predicts the second");
    if (!s->by_document && mti_corpus_length(corpus, false) < (size_t)w->seq + 1)
        return mti_fail_bool(MT_ERR_ARGUMENT,
                             "the text is too short: %zu %s to learn from, and a sequence takes "
                             "%lld",
                             mti_corpus_length(corpus, false),
                             corpus->in_tokens ? "tokens" : "bytes", (long long)w->seq + 1);
    mt_seed(device, w->seed);
    if (!(w->ranked ? make_rank(t) : make_model(t))) return false;
    mti_stage_observe(&t->stage, set_phase, NULL);
    return mti_memory_hooks_make(&t->memory_hooks, &t->workload.memory, &t->stage) &&
           make_optimizer(t);
}

void mti_trainer_free(mti_trainer *t)
{
    mt_optimizer_free(t->optimizer);
    mti_memory_hooks_free(&t->memory_hooks);
    mti_stage_free(&t->stage);
    mt_ledger_free(t->ledger);
    *t = (mti_trainer){0};
}

/* ---- training ---- */

typedef struct micro_batch {
    mti_trainer *t;
    const int64_t *ids; /* inputs and then targets */
    mt_tensor *loss;
} micro_batch;

static bool take(void *user, mti_turn turn, mti_in_flight *f)
{
    const micro_batch *b = user;
    const mti_workload *w = &b->t->workload;
    (void)turn;
    f->input = mti_ids_tensor(b->t, b->ids, w->batch, w->seq);
    f->target = mti_ids_tensor(b->t, b->ids + w->batch * w->seq, w->batch, w->seq);
    return f->input && f->target;
}

static bool keep_loss(void *user, mt_tensor *loss)
{
    micro_batch *b = user;
    b->loss = mt_retain(loss);
    return true;
}

/* Runs forward and backward of a batch; returns the loss. */
static mt_tensor *run_batch(mti_trainer *t, const int64_t *ids)
{
    mti_step step = {0};
    micro_batch b = {t, ids, NULL};
    bool ok = mti_step_begin(&step, &t->stage, &(mti_batches){take, keep_loss, &b}) &&
              mti_step_ahead(&step) && mti_step_backward(&step);
    mti_step_end(&step);
    if (!ok) mt_set(&b.loss, NULL);
    return b.loss;
}

static bool take_loss(mti_trainer *t, double loss, int64_t step)
{
    if (!isfinite(loss))
        return mti_fail_bool(MT_ERR_STATE,
                             "the loss became %g at step %lld; a lower --lr or a longer warmup "
                             "may help",
                             loss, (long long)step);
    t->loss = mt_device_has_data(t->device) ? loss : NAN;
    return true;
}

/* Micro-batch `part` of the step; adds to *sum. */
static bool run_part(mti_trainer *t, int64_t part, double *sum)
{
    int64_t rows, *ids = mti_batch_shard(t, part, &rows);
    mt_tensor *loss = ids ? run_batch(t, ids) : NULL;
    bool ok = loss != NULL;
    if (loss && mt_device_has_data(t->device)) *sum += mt_item(loss);
    mt_release(loss);
    mti_free(ids);
    return ok;
}

/* Forward and backward of all of a step's batches. */
static bool run_parts(mti_trainer *t, double *loss)
{
    bool ok = true;
    *loss = 0;
    for (int64_t part = 0; ok && part < t->settings.accumulate; part++)
        ok = run_part(t, part, loss);
    *loss /= (double)t->settings.accumulate;
    return ok;
}

/* The same of one of several ranks; *loss: the mean of all. */
static bool run_rank(mti_trainer *t, double *loss)
{
    int64_t n = t->settings.accumulate, length = mti_shard_length(&t->workload);
    mt_tensor **all = mti_calloc(2 * (size_t)n, sizeof *all);
    bool ok = all != NULL;
    for (int64_t i = 0; ok && i < n; i++) {
        int64_t rows, *ids = mti_batch_shard(t, i, &rows);
        all[i] = ids ? mti_ids_tensor(t, ids, rows, length) : NULL;
        all[n + i] = ids ? mti_ids_tensor(t, ids + rows * length, rows, length) : NULL;
        mti_free(ids);
        ok = all[i] && all[n + i];
    }
    ok = ok && mt_stage_backward(&t->stage, all, all + n, loss) == MT_OK;
    for (int64_t i = 0; all && i < 2 * n; i++) mt_release(all[i]);
    mti_free(all);
    return ok;
}

bool mti_trainer_step(mti_trainer *t)
{
    double loss = 0, lr = mt_cosine_lr(t->step, t->settings.warmup, t->settings.steps,
                                       t->settings.lr, t->settings.min_lr);
    bool ok = t->model ? run_parts(t, &loss) : run_rank(t, &loss);
    ok = ok && mt_set_phase("step") == MT_OK && take_loss(t, loss, t->step + 1) &&
         mt_optimizer_set_lr(t->optimizer, lr) == MT_OK &&
         mti_step_optimizer(&t->stage, t->optimizer, t->settings.clip, NULL);
    mt_set_phase(NULL);
    if (!ok) return false;
    t->step++;
    return true;
}

/* ---- what two steps take ---- */

bool mti_trainer_begin_watch(mti_trainer *t)
{
    mt_mem_reset_peak(t->device);
    mti_memory_hooks_watch(&t->memory_hooks, t->ledger = mt_ledger_new(t->device));
    return t->ledger != NULL;
}

mti_watched mti_trainer_end_watch(mti_trainer *t)
{
    mt_mem_stats stats;
    mt_mem_get_stats(t->device, &stats);
    const mti_watched watched = {mt_ledger_bytes(t->ledger), stats.allocated.peak,
                                 stats.reserved.peak};
    mti_memory_hooks_watch(&t->memory_hooks, NULL);
    mt_ledger_free(t->ledger);
    t->ledger = NULL;
    return watched;
}

/* evaluate.c: the loss of ranks on a batch that they do not learn from. */
#include "memtape/ops.h"
#include "optim/optimizers.h"
#include "collectives/collectives.h"
#include "parallel/parallel.h"

static bool check(const mt_stage *s, const mt_tensor *tokens, const mt_tensor *targets)
{
    const mti_model_shard *shard = s->shards;
    if (!mti_is_whole(shard->whole.kind))
        return mti_fail_bool(MT_ERR_UNSUPPORTED,
                             "stage_evaluate: a block has no loss; need gpt, bert or llama");
    return mti_given(tokens, "stage_evaluate", "the tokens") &&
           mti_given(targets, "stage_evaluate", "the targets") &&
           mti_check_tokens("stage_evaluate", tokens) &&
           mti_check_length("stage_evaluate", shard, mt_shape(tokens)[1] * shard->parallel.context);
}

static void set_training(const mt_stage *s, bool training)
{
    for (int64_t i = 0; i < s->schedule.n_parts; i++) mt_module_set_training(s->parts[i], training);
}

/* This stage's parts, one after the other: the batch passes through all stages once for each.
 * *loss: what this stage has of it. */
static bool run_parts(const mt_stage *s, mt_tensor *tokens, mt_tensor *targets, double *loss)
{
    const int64_t n = s->schedule.n_parts;
    bool ok = true;
    for (int64_t i = 0; ok && i < n; i++) {
        bool last = s->shards[i].last;
        MT_AUTO mt_tensor *x = mti_stage_input(s, i, tokens);
        const mti_in_flight f = {x, last ? targets : NULL, .last = last, .learns = true};
        MT_AUTO mt_tensor *y = x ? mti_stage_run(s, i, &f) : NULL;
        ok = y != NULL;
        if (ok && mt_rank(y) == 0 && mt_device_has_data(s->device)) *loss += mt_item(y);
    }
    return ok && mt_comm_settle(s->shards->parallel.pipeline_comm) == MT_OK;
}

mt_status mt_stage_evaluate(mt_stage *s, mt_tensor *tokens, mt_tensor *targets, double *loss)
{
    if (!mti_given(s, "stage_evaluate", "the stage") || !check(s, tokens, targets))
        return mt_last_status();
    const mt_group stages = mti_stages(&s->shards->parallel);
    bool grad = mt_set_grad_mode(false), training = mt_module_training(s->parts[0]);
    double mean = 0;
    set_training(s, false);
    bool ok = run_parts(s, tokens, targets, &mean);
    set_training(s, training);
    mt_set_grad_mode(grad);
    ok = ok && mti_sum_value(s->device, &stages, &mean);
    if (ok && loss) *loss = mean;
    return ok ? MT_OK : mt_last_status();
}

/* evaluate.c: the loss of ranks on a batch that they do not learn from. */
#include "memtape/ops.h"
#include "nn/nn.h"
#include "parallel/parallel.h"

static bool check(const mt_stage *s, const mt_tensor *tokens, const mt_tensor *targets)
{
    const mti_share *share = s->shares;
    if (share->parallel.pipeline > 1)
        return mti_fail_bool(MT_ERR_UNSUPPORTED, "stage_evaluate: %lld stages; need 1",
                             (long long)share->parallel.pipeline);
    if (!mti_is_whole(share->whole.kind))
        return mti_fail_bool(MT_ERR_UNSUPPORTED,
                             "stage_evaluate: a block has no loss; need gpt, bert or llama");
    return mti_given(tokens, "stage_evaluate", "the tokens") &&
           mti_given(targets, "stage_evaluate", "the targets") &&
           mti_check_tokens("stage_evaluate", tokens) &&
           mti_check_length("stage_evaluate", share, mt_shape(tokens)[1] * share->parallel.context);
}

mt_status mt_stage_evaluate(mt_stage *s, mt_tensor *tokens, mt_tensor *targets, double *loss)
{
    if (!mti_given(s, "stage_evaluate", "the stage") || !check(s, tokens, targets))
        return mt_last_status();
    mt_module *part = s->parts[0];
    bool grad = mt_set_grad_mode(false), training = mt_module_training(part);
    mt_module_set_training(part, false);
    mt_tensor *y = mt_forward(part, tokens);
    mt_set(&y, mti_rank_loss(s->shares, y, targets));
    mt_module_set_training(part, training);
    mt_set_grad_mode(grad);
    if (y && loss) *loss = mt_device_has_data(s->device) ? mt_item(y) : 0;
    bool ok = y != NULL;
    mt_release(y);
    return ok ? MT_OK : mt_last_status();
}

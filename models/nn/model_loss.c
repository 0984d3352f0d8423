/* model_loss.c: the cross-entropy of a whole model: of its logits, of what comes before its head,
 * or of parts of the sequence. */
#include "memtape/ops.h"
#include "nn/model.h"

mt_tensor *mt_model_loss(const mt_model_config *config, mt_tensor *logits, mt_tensor *target)
{
    if (!config) return mti_fail_null(MT_ERR_ARGUMENT, "model_loss: the config is NULL");
    if (!mti_given(logits, "model_loss", "the logits") ||
        !mti_given(target, "model_loss", "the target"))
        return NULL;
    return mti_loss_of_logits(config->ops.loss, logits, target);
}

typedef struct fused_call {
    mt_loss_form form;
    mt_tensor *target;
} fused_call;

static mt_tensor *run_fused(mt_module *head, mt_tensor *x)
{
    const fused_call *call = mt_module_user(head);
    return mti_fused_loss(call->form, x, mt_module_param(head, "weight"), call->target);
}

mt_tensor *mti_fused_head(mt_module *m, const char *head, mt_loss_form form, mt_tensor *x,
                          mt_tensor *target)
{
    return mti_forward_child_as(m, head, run_fused, &(fused_call){form, target}, x);
}

/* The nth of MTI_LOSS_CHUNKS parts of x's dimension 1: the first ones are longer by one where they
 * cannot all be equal, as torch.tensor_split's are. */
static mt_tensor *chunk(mt_tensor *x, int64_t n)
{
    int64_t s = mt_shape(x)[1], each = s / MTI_LOSS_CHUNKS, more = s % MTI_LOSS_CHUNKS;
    int64_t from = n * each + (n < more ? n : more);
    return mt_slice(x, 1, from, each + (n < more));
}

/* sum: taken over; NULL: 0. */
static mt_tensor *plus(mt_tensor *sum, mt_tensor *part)
{
    if (!sum) return part;
    mt_set(&sum, mt_add(sum, part));
    mt_release(part);
    return sum;
}

mt_tensor *mti_chunked_loss(mt_module *m, mt_tensor *h, mt_tensor *target, mt_forward_fn *head,
                            mti_sum_of_losses_fn *loss)
{
    mt_tensor *logits[MTI_LOSS_CHUNKS] = {NULL}, *sum = NULL;
    int64_t s = mt_shape(h)[1], n = s < MTI_LOSS_CHUNKS ? s : MTI_LOSS_CHUNKS;
    bool ok = true, named;
    for (int64_t i = 0; ok && i < n; i++) {
        MT_AUTO mt_tensor *x = chunk(h, i);
        ok = x && (logits[i] = head(m, x));
    }
    ok = (named = ok && mt_scope_push("loss") == MT_OK);
    for (int64_t i = 0; ok && i < n; i++) {
        MT_AUTO mt_tensor *t = chunk(target, i);
        mt_tensor *part = t ? loss(m, logits[i], t) : NULL;
        mt_release(logits[i]);
        logits[i] = NULL;
        ok = part && (sum = plus(sum, part));
    }
    if (!ok) mt_set(&sum, NULL);
    if (ok) sum = mti_mean_loss(sum, target);
    if (named) mt_scope_pop();
    for (int64_t i = 0; i < n; i++) mt_release(logits[i]);
    return sum;
}

/* model_loss.c: the cross-entropy of a whole model, in the forms of mt_loss_form. */
#include "memtape/ops.h"
#include "nn/model.h"
#include "ops/ops.h"

/* ---- of logits that are there ---- */

static mt_tensor *widened(mt_tensor *x)
{
    return mt_cast(x, mt_dtype_of(x) == MT_F64 ? MT_F64 : MT_F32);
}

/* Targets other than MT_IGNORE, in `dtype`. */
static mt_tensor *count(mt_tensor *target, mt_dtype dtype)
{
    mt_tensor *n = mt_compare_scalar(target, MT_NE, MT_IGNORE);
    mt_set(&n, n ? mt_cast(n, dtype) : NULL);
    mt_set(&n, mt_sum_all(n));
    return n;
}

/* sum / count(target); the sum is taken over. */
static mt_tensor *mean_of(mt_tensor *sum, mt_tensor *target)
{
    MT_AUTO mt_tensor *n = sum ? count(target, mt_dtype_of(sum)) : NULL;
    mt_set(&sum, n ? mt_div(sum, n) : NULL);
    return sum;
}

/* Each target as an index, [..,1]; 0 for those ignored. An i64 up to 2^53 is exact in f64. */
static mt_tensor *as_index(mt_tensor *target, mt_tensor *ignored)
{
    int64_t shape[MT_MAX_RANK];
    int rank = mt_rank(target);
    mt_tensor *index = mt_cast(target, MT_F64);
    mt_set(&index, mt_masked_fill(index, ignored, 0));
    mt_set(&index, index ? mt_cast(index, MT_I64) : NULL);
    for (int d = 0; d < rank; d++) shape[d] = mt_shape(target)[d];
    shape[rank] = 1;
    mt_set(&index, index ? mt_reshape(index, rank + 1, shape) : NULL);
    return index;
}

/* Room for the logits from the second token on, which ForCausalLMLoss of Transformers 4.46 copies
 * (loss_utils.py): here targets are shifted already. */
static mt_tensor *beside(mt_tensor *logits)
{
    return mti_tensor_new(mt_device_of(logits), &logits->view, MT_TEMPORARY, false);
}

/* log_softmax, then the mean of minus its values at the targets: so backward has log-probabilities
 * and two gradients as large at once. PyTorch's cross_entropy is these two ops. */
static mt_tensor *unfused(mt_loss_form form, mt_tensor *logits, mt_tensor *target)
{
    if (mt_rank(logits) != mt_rank(target) + 1)
        return mti_fail_null(MT_ERR_ARGUMENT, "model_loss: the logits have rank %d, the target %d",
                             mt_rank(logits), mt_rank(target));
    MT_AUTO mt_tensor *ignored = mt_compare_scalar(target, MT_EQ, MT_IGNORE);
    MT_AUTO mt_tensor *index = ignored ? as_index(target, ignored) : NULL;
    mt_tensor *y = index ? widened(logits) : NULL;
    mt_tensor *copy = y && form == MT_LOSS_SHIFTED ? beside(y) : NULL;
    if (y && form == MT_LOSS_SHIFTED && !copy) mt_set(&y, NULL);
    mt_set(&y, mti_log_softmax_apart(y));
    mt_release(copy);
    mt_set(&y, mt_gather(y, -1, index));
    mt_set(&y, y ? mt_reshape(y, mt_rank(target), mt_shape(target)) : NULL);
    mt_set(&y, mt_masked_fill(y, ignored, 0));
    mt_set(&y, mt_sum_all(y));
    mt_set(&y, mt_mul_scalar(y, -1));
    return mean_of(y, target);
}

mt_tensor *mt_model_loss(const mt_model_config *config, mt_tensor *logits, mt_tensor *target)
{
    if (!config) return mti_fail_null(MT_ERR_ARGUMENT, "model_loss: the config is NULL");
    if (!mti_given(logits, "model_loss", "the logits")) return NULL;
    if (mti_loss_is_apart(config->ops.loss))
        return mti_given(target, "model_loss", "the target")
                   ? unfused(config->ops.loss, logits, target)
                   : NULL;
    const mt_cross_entropy_options keeps_logits = {.keep_logits = true};
    bool lse = config->ops.loss == MT_LOSS_LSE || config->ops.loss == MT_LOSS_CHUNKED;
    if (lse) return mt_cross_entropy_with(logits, target, MT_IGNORE, &keeps_logits);
    mt_tensor *x = config->ops.loss == MT_LOSS_F32 ? widened(logits) : mt_retain(logits);
    mt_set(&x, mt_cross_entropy(x, target, MT_IGNORE));
    return x;
}

/* ---- of logits in chunks of the sequence ---- */

bool mti_loss_takes_head(mt_loss_form form)
{
    return mti_loss_is_fused(form) || form == MT_LOSS_CHUNKED || form == MT_LOSS_SHIFTED;
}

bool mti_loss_is_apart(mt_loss_form form)
{
    return form == MT_LOSS_UNFUSED || form == MT_LOSS_SHIFTED || form == MT_LOSS_HELD;
}

bool mti_loss_is_fused(mt_loss_form form)
{
    return form == MT_LOSS_FUSED || mti_loss_is_early(form);
}

bool mti_loss_is_early(mt_loss_form form) { return form == MT_LOSS_TORCH || form == MT_LOSS_LIGER; }

static int64_t divide_up(int64_t a, int64_t b) { return (a - 1) / b + 1; }

mt_tensor *mti_fused_loss(mt_loss_form form, mt_tensor *x, mt_tensor *w, mt_tensor *target)
{
    mt_linear_cross_entropy_options o = {.early = mti_loss_is_early(form),
                                         .f32_logits = form == MT_LOSS_TORCH};
    int64_t n = x ? mt_numel(target) : 0, width = x ? mt_shape(w)[1] : 1;
    if (o.early && n > 0) { /* as many bytes of logits as x has, about */
        int64_t rows = divide_up(n, divide_up(mt_shape(w)[0], width));
        for (o.chunk = 1; o.chunk < rows;) o.chunk *= 2;
        if (form == MT_LOSS_TORCH && o.chunk > 1) o.chunk /= 2;
    }
    return mt_linear_cross_entropy_with(x, w, target, MT_IGNORE, &o);
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
    if (ok) sum = mean_of(sum, target);
    if (named) mt_scope_pop();
    for (int64_t i = 0; i < n; i++) mt_release(logits[i]);
    return sum;
}

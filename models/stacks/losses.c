/* losses.c: the cross-entropy, as libraries have it: ours is the first row. */
#include "ops/ops.h"
#include "stacks/forms.h"
#include "stacks/torch_ops.h"

const mti_loss_row *mti_loss_row_of(mt_loss_form form)
{
    static const mti_loss_row rows[MT_LOSS_FORM_COUNT] = {
        [MT_LOSS_NATIVE] = {"loss on whole logits"},
        [MT_LOSS_F32] = {"loss in f32", .wide = true},
        [MT_LOSS_FUSED] = {"fused loss", .fused = true, .takes_head = true},
        [MT_LOSS_LSE] = {"loss that keeps logits", .keeps_logits = true},
        [MT_LOSS_CHUNKED] = {"chunked loss", .keeps_logits = true, .chunked = true,
                             .takes_head = true},
        [MT_LOSS_UNFUSED] = {"unfused loss", .wide = true, .apart = true},
        [MT_LOSS_TORCH] = {"PyTorch's linear cross-entropy", .fused = true, .early = true,
                           .wide = true, .takes_head = true},
        [MT_LOSS_LIGER] = {"Liger's linear cross-entropy", .fused = true, .early = true,
                           .takes_head = true},
        [MT_LOSS_SHIFTED] = {"unfused loss of a shifted copy", .wide = true, .apart = true,
                             .shifted = true, .takes_head = true},
        [MT_LOSS_HELD] = {"unfused loss, logits held", .wide = true, .apart = true, .held = true},
    };
    return &rows[(unsigned)form < MT_LOSS_FORM_COUNT ? form : MT_LOSS_NATIVE];
}

/* ---- of logits that are there ---- */

/* Targets other than MT_IGNORE, in `dtype`. */
static mt_tensor *count(mt_tensor *target, mt_dtype dtype)
{
    mt_tensor *n = mt_compare_scalar(target, MT_NE, MT_IGNORE);
    mt_set(&n, n ? mt_cast(n, dtype) : NULL);
    mt_set(&n, mt_sum_all(n));
    return n;
}

mt_tensor *mti_mean_loss(mt_tensor *sum, mt_tensor *target)
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
static mt_tensor *apart(bool shifted, mt_tensor *logits, mt_tensor *target)
{
    if (mt_rank(logits) != mt_rank(target) + 1)
        return mti_fail_null(MT_ERR_ARGUMENT, "model_loss: the logits have rank %d, the target %d",
                             mt_rank(logits), mt_rank(target));
    MT_AUTO mt_tensor *ignored = mt_compare_scalar(target, MT_EQ, MT_IGNORE);
    MT_AUTO mt_tensor *index = ignored ? as_index(target, ignored) : NULL;
    mt_tensor *y = index ? mti_widen(logits) : NULL;
    mt_tensor *copy = y && shifted ? beside(y) : NULL;
    if (y && shifted && !copy) mt_set(&y, NULL);
    mt_set(&y, mti_torch_log_softmax(y));
    mt_release(copy);
    mt_set(&y, mt_gather(y, -1, index));
    mt_set(&y, y ? mt_reshape(y, mt_rank(target), mt_shape(target)) : NULL);
    mt_set(&y, mt_masked_fill(y, ignored, 0));
    mt_set(&y, mt_sum_all(y));
    mt_set(&y, mt_mul_scalar(y, -1));
    return mti_mean_loss(y, target);
}

mt_tensor *mti_loss_of_logits(mt_loss_form form, mt_tensor *logits, mt_tensor *target)
{
    const mti_loss_row *row = mti_loss_row_of(form);
    const mt_cross_entropy_options keeping = {.keep_logits = true};
    if (row->apart) return apart(row->shifted, logits, target);
    if (row->keeps_logits) return mt_cross_entropy_with(logits, target, MT_IGNORE, &keeping);
    mt_tensor *x = row->wide ? mti_widen(logits) : mt_retain(logits);
    mt_set(&x, mt_cross_entropy(x, target, MT_IGNORE));
    return x;
}

/* ---- of what comes before the head ---- */

static int64_t divide_up(int64_t a, int64_t b) { return (a - 1) / b + 1; }

mt_tensor *mti_fused_loss(mt_loss_form form, mt_tensor *x, mt_tensor *w, mt_tensor *target)
{
    const mti_loss_row *row = mti_loss_row_of(form);
    mt_linear_cross_entropy_options o = {.early = row->early,
                                         .f32_logits = row->early && row->wide};
    int64_t n = x ? mt_numel(target) : 0, width = x ? mt_shape(w)[1] : 1;
    if (o.early && n > 0) { /* as many bytes of logits as x has, about */
        int64_t rows = divide_up(n, divide_up(mt_shape(w)[0], width));
        for (o.chunk = 1; o.chunk < rows;) o.chunk *= 2;
        if (o.f32_logits && o.chunk > 1) o.chunk /= 2;
    }
    return mt_linear_cross_entropy_with(x, w, target, MT_IGNORE, &o);
}

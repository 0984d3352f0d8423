/* windows.c: what masks of windows, and sinks, keep of attention. */
#include "plan/builder.h"

/* With sinks the weights have a column more, and the largest score of each row is known by index.
 */
void mti_keep_sink_weights(builder *b)
{
    const int64_t rows = b->s->tokens * b->c->heads / (b->s->rank ? b->s->rank->tensor : 1);
    int64_t all, part;
    double each = mti_kept_as(b, FLOATS, b->value[ABSS] + rows, &all);
    mti_kept_as(b, FLOATS, b->value[ABSS], &part);
    part = part < all ? part : all;
    if (part) mti_add_sum(b, part, each, ABSS, "attention weights: softmax keeps its output");
    mti_keep_beside(b, "sinks: their weights", all - part, true);
    mti_keep_beside(b, "sinks: index of each row's largest score", rows * (int64_t)sizeof(int64_t),
                    false);
}

/* What layers keep besides for the mask of their window: the mask, and keys and values copied for
 * each head, unless they were anyway, instead of one for each group. */
void mti_keep_window_masks(builder *b)
{
    const mt_model_config *c = b->c;
    const int64_t keys = b->s->seq * (b->s->rank ? b->s->rank->seen : 1), times = b->times;
    const bool masked = c->ops.window_mask == MT_WINDOW_MASK_KEPT && c->window <= keys &&
                        c->attention == MT_ATTENTION_FLASH;
    const int64_t width = c->head_dim * (b->s->rank ? b->s->rank->tensor : 1);
    const int64_t of_dense = mti_dims_dense_windows(b->s);
    const bool dense = !c->experts && b->s->config.experts;
    b->times = dense ? of_dense : mti_dims_windows(b->s) - of_dense;
    int64_t q, k, joint = 0;
    if (masked && b->times) {
        mti_keep_floats(b, "windows: a mask for each", b->s->tokens * keys, b->e);
        mti_kept_as(b, FLOATS, b->value[BSQ] * (b->s->rank ? b->s->rank->seen : 1), &q);
        mti_kept_as(b, FLOATS, b->value[BSK] * (b->s->rank ? b->s->rank->seen : 1), &k);
        if (c->joint_products) mti_kept_as(b, FLOATS, b->value[BSQ] + 2 * b->value[BSK], &joint);
        if (c->ops.kv_groups != MT_KV_REPEATED && b->s->seq > 1 && b->s->k > width &&
            b->s->k < b->s->q)
            mti_keep_beside(b, "windows: keys and values copied for each head",
                            2 * (q - k) - (joint ? joint - k : 0), true);
    }
    b->times = times;
}

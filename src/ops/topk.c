/* topk.c: the k largest elements of each row, in decreasing order, and their indices.
 *   x: [..,n], floating; values, index: [..,k]
 * dx = dvalues at the chosen elements, 0 elsewhere
 * saved: the index, and neither x nor the values. */
#include <string.h>
#include "ops/ops.h"

static bool topk_shape(mti_call *c)
{
    const mti_view *x = mti_in(c, 0);
    int64_t shape[MT_MAX_RANK], k = c->params->topk.k, n = x->rank ? x->shape[x->rank - 1] : 0;
    char text[MTI_SHAPE_TEXT];
    if (!mti_need_float(c, 0)) return false;
    if (!x->rank || k < 0 || k > n)
        return mti_fail_bool(MT_ERR_ARGUMENT,
                             "topk: x is %s, k is %lld; need rows of k elements at least",
                             mti_shape_text(text, x->rank, x->shape), (long long)k);
    memcpy(shape, x->shape, sizeof shape);
    shape[x->rank - 1] = k;
    return mti_out_set(c, 0, x->dtype, x->rank, shape) && mti_out_set(c, 1, MT_I64, x->rank, shape);
}

static bool topk_forward(mti_call *c)
{
    const mti_view *x = mti_in(c, 0), *values = mti_out(c, 0), *index = mti_out(c, 1);
    void *scratch;
    return mti_scratch(c, c->k->topk_scratch(c->ctx, x, values), &scratch) &&
           c->k->topk(c->ctx, x, values, index, scratch);
}

static bool topk_backward(mti_call *c)
{
    return mti_scatter_to_din(c, c->in_spec[0].rank - 1, MTI_OUT1);
}

const mti_op_code mti_code_topk = {topk_shape, topk_forward, topk_backward};

mt_status mt_topk(mt_tensor *x, int64_t k, mt_tensor **values, mt_tensor **index)
{
    if (!values || !index)
        return mti_fail(MT_ERR_ARGUMENT, "topk: %s is NULL", values ? "index" : "values");
    mt_tensor *out[2];
    bool ok = mti_apply(&mti_op_topk, &(mti_params){.topk = {k}}, 1, &x, 2, out);
    *values = out[0], *index = out[1];
    return ok ? MT_OK : mt_last_status();
}

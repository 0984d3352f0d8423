/* gpt_oss.c: what gpt-oss has and other models do not: sinks in attention, and a clamped gate;
 * compositions of ops, in the order of Transformers' modeling_gpt_oss.py. */
#include <math.h>
#include "nn/model.h"
#include "memtape/ops.h"
#include "ops/ops.h"

/* ---- attention with sinks: softmax([scale q k^T, sink]) without its last column, times v
 *
 * Each head has a learned logit that takes part in the softmax and has no value. Kept besides q, k
 * and v, by math attention: the weights [b,a,s,t + 1] and the index of each row's largest score,
 * i64 ---- */

/* A flash attention that is to have the sinks: the module's user data points to it while it runs;
 * without one forward puts scores and sinks side by side. */
typedef struct flash_call {
    mt_tensor *const *part, *mask;
    const mt_attention_options *options;
} flash_call;

/* x: q, or scores [b,k,r,s,t] -> [b,k,r,s,t + 1]. What is put around modules is around this op. */
static mt_tensor *sinks_forward(mt_module *self, mt_tensor *x)
{
    const flash_call *flash = *(const flash_call **)mt_module_user(self);
    const int64_t *n = mt_shape(x), b = n[0], k = n[1], r = n[2], s = n[3];
    MT_AUTO mt_tensor *sinks = mt_cast(mt_module_param(self, "weight"), mt_dtype_of(x));
    if (!sinks) return NULL;
    if (flash) {
        mt_attention_options options = *flash->options;
        options.sinks = sinks;
        return mti_flash_attention(x, flash->part[1], flash->part[2], flash->mask, &options);
    }
    mt_set(&sinks, mt_reshape(sinks, MT_SHAPE(1, k, r, 1, 1)));
    mt_set(&sinks, sinks ? mt_expand(sinks, MT_SHAPE(b, k, r, s, 1)) : NULL);
    return sinks ? mt_cat(2, (mt_tensor *[]){x, sinks}, 4) : NULL;
}

mt_tensor *mti_sink_flash(const mt_module *heads, mt_tensor *const part[3], mt_tensor *mask,
                          const mt_attention_options *options)
{
    const flash_call call = {part, mask, options};
    mt_module *sinks = mt_module_child(heads, "sinks");
    const flash_call **user = mt_module_user(sinks);
    *user = &call;
    mt_tensor *y = mt_forward(sinks, part[0]);
    *user = NULL;
    return y;
}

mt_module *mti_sinks_new(mt_device *device, const mt_model_config *c)
{
    const flash_call **user = mti_calloc(1, sizeof *user);
    mt_module *m = user ? mt_module_new("sinks", sinks_forward, user, mti_free) : NULL;
    mt_tensor *w = m ? mt_normal(device, c->dtype, MT_SHAPE(c->heads), 0, MTI_INIT_STD) : NULL;
    return mti_module_complete(m, m && mt_module_add_param(m, "weight", w));
}

/* Less each row's largest, before the softmax. */
static mt_tensor *shifted_softmax(mt_tensor *x)
{
    mt_tensor *most = x ? mt_max(x, 1, (const int[]){-1}, true) : NULL;
    mt_set(&x, most ? mt_sub(x, most) : NULL);
    mt_release(most);
    mt_set(&x, mt_softmax(x, 1, false));
    return x;
}

mt_tensor *mti_sink_attention(const mt_module *self, mt_tensor *const part[3], double p)
{
    const mti_heads *heads = mt_module_user(self);
    const int64_t *q = mt_shape(part[0]), *kv = mt_shape(part[1]), b = q[0], a = q[1], s = q[2];
    const int64_t k = kv[1], t = kv[2], h = q[3], window = heads->window ? heads->window : t;
    MT_AUTO mt_tensor *mask =
        mti_window_mask(mt_device_of(part[0]), mt_dtype_of(part[0]), 2, (int64_t[]){s, t}, window);
    MT_AUTO mt_tensor *groups = mask ? mt_reshape(part[0], MT_SHAPE(b, k, a / k, s, h)) : NULL;
    MT_AUTO mt_tensor *keys = groups ? mt_reshape(part[1], MT_SHAPE(b, k, 1, t, h)) : NULL;
    MT_AUTO mt_tensor *values = keys ? mt_reshape(part[2], MT_SHAPE(b, k, 1, t, h)) : NULL;
    mt_set(&keys, values ? mt_transpose(keys, -2, -1) : NULL);
    mt_tensor *w = keys ? mt_matmul(groups, keys) : NULL;
    mt_set(&w, mt_affine(w, heads->scale != 0 ? heads->scale : 1 / sqrt((double)h), 0));
    mt_set(&w, w ? mt_add(w, mask) : NULL);
    mt_set(&w, w ? mt_forward(mt_module_child(self, "sinks"), w) : NULL);
    w = shifted_softmax(w);
    mt_set(&w, w ? mt_slice(w, 4, 0, t) : NULL);
    mt_set(&w, mt_dropout(w, p));
    mt_set(&w, w ? mt_matmul(w, values) : NULL);
    mt_set(&w, w ? mt_reshape(w, MT_SHAPE(b, a, s, h)) : NULL);
    return w;
}

/* ---- the gate: (up + 1) gate sigmoid(1.702 gate), gate at most 7, up from -7 to 7; h [n,2 f] with
 * gate and up by turns -> [n,f]. Kept: h, the clamped gate, its sigmoid, their product and up + 1
 * ---- */

#define LIMIT 7
#define ALPHA 1.702

/* h's even or odd columns: a view */
static mt_tensor *every_second(mt_tensor *h, int64_t first)
{
    const int64_t n = mt_shape(h)[0], f = mt_shape(h)[1] / 2;
    mt_tensor *y = mt_reshape(h, MT_SHAPE(n, f, 2));
    mt_set(&y, y ? mt_slice(y, 2, first, 1) : NULL);
    mt_set(&y, y ? mt_reshape(y, MT_SHAPE(n, f)) : NULL);
    return y;
}

mt_tensor *mti_clamped_gate(mt_tensor *h)
{
    MT_AUTO mt_tensor *gate = every_second(h, 0), *up = gate ? every_second(h, 1) : NULL;
    mt_set(&gate, mt_clamp(gate, -INFINITY, LIMIT));
    mt_set(&up, mt_clamp(up, -LIMIT, LIMIT));
    mt_tensor *y = mt_affine(gate, ALPHA, 0);
    mt_set(&y, mt_sigmoid(y));
    mt_set(&y, mt_mul(gate, y));
    mt_set(&up, mt_affine(up, 1, 1));
    mt_set(&y, mt_mul(up, y));
    return y;
}

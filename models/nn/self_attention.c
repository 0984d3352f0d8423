/* self_attention.c: [b,s,d] -> [b,s,d].
 *
 * Without rope one product makes queries, keys and values side by side, and the tape keeps its
 * output once for all three. With rope the tape keeps the rotated queries and keys, and would keep
 * that output for its values alone; so each of the three has its own product, unless the
 * configuration asks for one, as Phi-3's does. Norms of queries and keys stand between, as modules:
 * the tape keeps their inputs, too. */
#include <math.h>
#include "nn/context_parallel.h"
#include "nn/model.h"
#include "memtape/ops.h"
#include "ops/ops.h"

/* ---- heads: a separate module, so that the ledger names its tensors and a checkpoint can be put
 * around it ---- */

mt_tensor *mti_split_heads(mt_tensor *x, int64_t n)
{
    if (!x) return NULL;
    const int64_t *shape = mt_shape(x);
    if (mt_rank(x) == 4) return mt_transpose(x, 1, 2); /* they are apart */
    mt_tensor *y = mt_reshape(x, MT_SHAPE(shape[0], shape[1], n, shape[2] / n));
    mt_set(&y, mt_transpose(y, 1, 2));
    return y;
}

/* [b,a,s,h] -> [b,s,a h]: a view of flash's output, a copy of math's */
static mt_tensor *merge_heads(mt_tensor *x)
{
    if (!x) return NULL;
    const int64_t *shape = mt_shape(x);
    int64_t b = shape[0], a = shape[1], s = shape[2], h = shape[3];
    mt_tensor *y = mt_transpose(x, 1, 2);
    mt_set(&y, mt_reshape(y, MT_SHAPE(b, s, a * h)));
    return y;
}

/* *x [b,n,s,h], whose first elements are turned */
static bool turn_beginning(const mti_heads *heads, mti_rope_tables *tables, mt_tensor **x)
{
    const int64_t extents[2] = {heads->rope_dim, heads->dim - heads->rope_dim};
    mt_tensor *part[2] = {NULL, NULL};
    const bool ok = mt_split(*x, 3, 2, extents, part) == MT_OK &&
                    mti_turn_heads(heads, tables, &part[0]) &&
                    mt_set(x, mt_cat(2, part, 3)) == MT_OK;
    mt_release(part[0]), mt_release(part[1]);
    return ok;
}

bool mti_turn_heads(const mti_heads *heads, mti_rope_tables *tables, mt_tensor **x)
{
    if (heads->rotation.angles.theta == 0) return true;
    if (heads->rope_dim && mt_shape(*x)[3] == heads->dim) return turn_beginning(heads, tables, x);
    int64_t start = heads->cached ? *heads->cached : heads->context.rank * mt_shape(*x)[2];
    return heads->rotate(&heads->rotation, start, tables, x);
}

/* part: q [b,a,s,h], k, v [b,k,t,h] */
static mt_tensor *attend_by_math(const mti_heads *heads, mt_tensor *const part[3], double p)
{
    const mt_tensor *q = part[0];
    const int64_t s = q->view.shape[2], t = mt_shape(part[1])[2];
    mt_tensor *mask = NULL;
    if (heads->window && heads->window < t &&
        !(mask = mti_window_mask(mt_device_of(q), mt_dtype_of(q), 2, (int64_t[]){s, t},
                                 heads->window)))
        return NULL;
    const mti_math_options options = {.scale = heads->scale,
                                      .cap = heads->cap,
                                      .dropout = p,
                                      .causal = heads->causal,
                                      .wide = heads->core.wide,
                                      .mask = mask};
    mt_tensor *y = mti_math_attention(part[0], part[1], part[2], &options);
    mt_release(mask);
    return y;
}

static mt_tensor *attend_by_flash(const mt_module *self, mt_tensor *const part[3], mt_tensor *mask,
                                  double p)
{
    const mti_heads *heads = mt_module_user(self);
    const mt_attention_options options = {heads->scale, p, heads->causal, heads->window, NULL};
    return heads->sinks ? mti_sink_flash(self, part, mask, &options)
                        : mti_flash_attention(part[0], part[1], part[2], mask, &options);
}

/* part: q [b,s,a h] or [b,s,a,h], k, v [b,s,k h] or [b,s,k,h], all taken over -> [b,s,a h] */
static mt_tensor *attend(const mt_module *self, mt_tensor *part[3])
{
    const mti_heads *heads = mt_module_user(self);
    mti_rope_tables own = {0}, *tables = heads->tables ? heads->tables : &own;
    for (int i = 0; i < 3; i++)
        mt_set(&part[i], mti_split_heads(part[i], i ? heads->n_kv : heads->n));
    if (!part[0] || !part[1] || !part[2] || !mti_turn_heads(heads, tables, &part[0]) ||
        !mti_turn_heads(heads, tables, &part[1]))
        goto out;
    mti_rope_tables_free(&own);
    if (heads->cached && !heads->append(heads->kv, &part[1], &part[2])) goto out;
    return mti_attend(self, part);
out:
    mti_rope_tables_free(&own);
    for (int i = 0; i < 3; i++) mt_release(part[i]);
    return NULL;
}

mt_tensor *mti_attend(const mt_module *self, mt_tensor *part[3])
{
    const mti_heads *heads = mt_module_user(self);
    mt_tensor *y = NULL, *mask = NULL;
    mti_gathered *gathered = NULL;
    if (heads->context.ranks > 1 &&
        !(gathered = mti_gather_begin(&heads->context, heads->causal, part)))
        goto out;
    const bool flash = heads->form == MT_ATTENTION_FLASH;
    double p = mt_module_training(self) ? heads->dropout : 0;
    mti_draw_part *drawn = &mti_modes_now()->part, outer = *drawn;
    *drawn = heads->part;
    if (mti_core_inputs(&heads->core, flash, heads->window, part, &mask))
        y = flash          ? attend_by_flash(self, part, mask, p)
            : heads->sinks ? mti_sink_attention(self, part, p)
                           : attend_by_math(heads, part, p);
    mt_release(mask);
    *drawn = outer;
    if (gathered && !mti_gather_end(gathered)) mt_set(&y, NULL);
out:
    for (int i = 0; i < 3; i++) mt_release(part[i]);
    mt_set(&y, merge_heads(y));
    return y;
}

/* attend() for borrowed inputs. */
static mt_tensor *attend_borrowed(mt_module *self, mt_tensor *const *in)
{
    return attend(self, (mt_tensor *[]){mt_retain(in[0]), mt_retain(in[1]), mt_retain(in[2])});
}

/* attend(), of each text by itself where they are of different lengths. */
static mt_tensor *attend_texts(mt_module *self, mt_tensor *part[3])
{
    mti_heads *heads = mt_module_user(self);
    if (!heads->texts) return attend(self, part);
    mt_tensor *y = mti_each_text(self, heads, attend_borrowed, 3, part);
    for (int i = 0; i < 3; i++) mt_release(part[i]);
    return y;
}

/* [b,s,a 3 h] -> part, [b,s,a,h] each */
static bool split_by_head(const mti_heads *heads, mt_tensor *qkv, mt_tensor *part[3])
{
    const int64_t *shape = mt_shape(qkv), h = heads->dim;
    MT_AUTO mt_tensor *x = mt_reshape(qkv, MT_SHAPE(shape[0], shape[1], heads->n, 3 * h));
    return x && mt_split(x, 3, 3, (const int64_t[]){h, h, h}, part) == MT_OK;
}

/* [b,s,(a + 2 k) h] -> [b,s,a h] */
static mt_tensor *heads_forward(mt_module *self, mt_tensor *qkv)
{
    const mti_heads *heads = mt_module_user(self);
    int64_t q = heads->n * heads->dim, kv = heads->n_kv * heads->dim;
    if (mt_rank(qkv) != 3 || mt_shape(qkv)[2] != q + 2 * kv) {
        char text[MTI_SHAPE_TEXT];
        return mti_fail_null(MT_ERR_ARGUMENT,
                             "attention: q, k, v are %s; need [b,s,%lld], %lld + 2 x %lld wide",
                             mti_shape_text(text, mt_rank(qkv), mt_shape(qkv)),
                             (long long)(q + 2 * kv), (long long)q, (long long)kv);
    }
    mt_tensor *part[3] = {NULL, NULL, NULL};
    const bool ok = heads->by_head
                        ? split_by_head(heads, qkv, part)
                        : mt_split(qkv, 2, 3, (const int64_t[]){q, kv, kv}, part) == MT_OK;
    return ok ? attend_texts(self, part) : NULL;
}

mti_heads *mti_heads_of(const mt_module *m)
{
    return mti_module_runs(m, heads_forward) ? mt_module_user(m) : NULL;
}

/* The pair that turns so often within YaRN's context. */
static double pair_of(const mt_model_config *c, double turns)
{
    const double d = (double)(c->rope_dim ? c->rope_dim : c->head_dim);
    return d * log((double)c->yarn_context / (turns * 6.283185307179586)) /
           (2 * log(c->rope_theta));
}

static mt_rope_options angles_of(const mt_model_config *c)
{
    mt_rope_options o = {.theta = c->rope_theta, .factor = c->yarn_factor, .scale = c->yarn_scale};
    const double d = (double)(c->rope_dim ? c->rope_dim : c->head_dim);
    if (!mti_is_turned(c, 0)) return (mt_rope_options){0};
    if (c->yarn_factor == 0) return o;
    if (c->yarn_ramp == MT_RAMP_FLAT) {
        o.low = -1; /* all pairs are behind both */
        return o;
    }
    if (c->yarn_ramp == MT_RAMP_TURNS) {
        const double turn = 6.283185307179586 / (double)c->yarn_context;
        o.by_angle = true, o.low = c->yarn_slow * turn, o.high = c->yarn_fast * turn;
        return o;
    }
    const double first = pair_of(c, c->yarn_fast), last = pair_of(c, c->yarn_slow);
    o.low = fmax(c->yarn_exact ? first : floor(first), 0);
    o.high = fmin(c->yarn_exact ? last : ceil(last), d - 1);
    if (o.high <= o.low) o.high = o.low + 0.001;
    return o;
}

static mti_rotation rotation_of(const mt_model_config *c)
{
    return (mti_rotation){.angles = angles_of(c),
                          .pairs = c->rope_order != MT_ROPE_HALVES,
                          .complex = c->rope_order == MT_ROPE_COMPLEX,
                          .narrow = c->sinks,
                          .turns_back = c->qk_norm == MT_QK_NORM_WIDTH, /* OLMo 2 */
                          .dtype = c->dtype};
}

mt_module *mti_heads_new(const mt_model_config *c)
{
    const mti_forms forms = mti_forms_of(&c->ops, c->forms);
    mti_heads *user = mti_malloc(sizeof *user);
    if (!user) return NULL;
    *user = (mti_heads){.n = c->heads,
                        .n_kv = c->kv_heads,
                        .dim = c->head_dim,
                        .form = c->attention,
                        .causal = c->causal,
                        .by_head = c->qkv_by_head,
                        .window = c->window,
                        .sinks = c->sinks,
                        .scale = c->attention_scale,
                        .cap = c->attention_cap,
                        .dropout = mti_inner_dropout(c),
                        .rotation = rotation_of(c),
                        .rotate = forms.rotate,
                        .core = forms.core,
                        .kv_rank = c->kv_rank,
                        .rope_dim = c->rope_dim,
                        .value_dim = c->value_dim};
    return mt_module_new("heads", heads_forward, user, mti_free);
}

/* ---- attention ---- */

static mt_tensor *project(mt_module *self, mt_tensor *h)
{
    mt_set(&h, mt_forward_child(self, "proj", h));
    mt_set(&h, mt_forward_child(self, "drop", h));
    return h;
}

static mt_tensor *fused_forward(mt_module *self, mt_tensor *x)
{
    mt_tensor *h = mt_forward_child(self, "qkv", x);
    mt_set(&h, mt_forward_child(self, "heads", h));
    return project(self, h);
}

/* *x = its norm, if there is one: over the whole width, or over each head's. */
static bool normalise(mt_module *self, const char *norm, mt_tensor **x)
{
    const int64_t *head = mt_module_user(self), *shape = mt_shape(*x);
    int64_t b = shape[0], s = shape[1], width = shape[2];
    if (!mt_module_child(self, norm)) return true;
    if (head) mt_set(x, mt_reshape(*x, MT_SHAPE(b, s, width / *head, *head)));
    mt_set(x, mt_forward_child(self, norm, *x));
    if (head && *x) mt_set(x, mt_reshape(*x, MT_SHAPE(b, s, width)));
    return *x != NULL;
}

static mt_tensor *separate_forward(mt_module *self, mt_tensor *x)
{
    const char *const names[3] = {"q", "k", "v"};
    mt_tensor *part[3] = {NULL, NULL, NULL};
    if (mt_rank(x) != 3)
        return mti_fail_null(MT_ERR_ARGUMENT, "attention: x has %d dimensions; need [b,s,d]",
                             mt_rank(x));
    bool ok = true;
    for (int i = 0; ok && i < 3; i++) ok = (part[i] = mt_forward_child(self, names[i], x)) != NULL;
    ok = ok && normalise(self, "q_norm", &part[0]) && normalise(self, "k_norm", &part[1]) &&
         mt_scope_push("heads") == MT_OK;
    if (!ok) {
        for (int i = 0; i < 3; i++) mt_release(part[i]);
        return NULL;
    }
    mt_module *heads = mt_module_child(self, "heads");
    const mti_heads *user = mt_module_user(heads);
    mt_tensor *h;
    if (mti_module_checkpoint(heads, NULL) && !user->texts) {
        h = mti_run_module(heads, attend_borrowed, 3, part);
        for (int i = 0; i < 3; i++) mt_release(part[i]);
    } else {
        h = attend_texts(heads, part); /* releases each part early */
    }
    mt_scope_pop();
    return project(self, h);
}

static bool add_qk_norms(mt_module *m, mt_device *device, const mt_model_config *c)
{
    bool by_head = c->qk_norm == MT_QK_NORM_HEAD;
    return !c->qk_norm ||
           (mti_add_norm_of(m, "q_norm", device, c, (by_head ? 1 : c->heads) * c->head_dim) &&
            mti_add_norm_of(m, "k_norm", device, c, (by_head ? 1 : c->kv_heads) * c->head_dim));
}

/* The module's user data is the width of a head, if its queries and keys have norms by head. */
static mt_module *attention_new(mt_forward_fn *forward, const mt_model_config *c)
{
    if (c->qk_norm != MT_QK_NORM_HEAD) return mt_module_new("attention", forward, NULL, NULL);
    int64_t *head = mti_malloc(sizeof *head);
    if (!head) return NULL;
    *head = c->head_dim;
    return mt_module_new("attention", forward, head, mti_free);
}

static bool add_heads(mt_module *m, mt_device *device, const mt_model_config *c)
{
    mt_module *heads = mt_module_add_child(m, "heads", mti_heads_new(c));
    return heads && (!c->sinks || mt_module_add_child(heads, "sinks", mti_sinks_new(device, c)));
}

mt_module *mti_attention_new(mt_device *device, const mt_model_config *c)
{
    bool separate = c->rope_theta > 0 && !c->joint_products;
    int64_t d = c->hidden, q = c->heads * c->head_dim, kv = c->kv_heads * c->head_dim;
    mt_model_config in = *c, out = *c; /* for the q, k and v products; for that after the heads */
    in.no_bias = c->no_bias && !c->qkv_bias;
    out.no_bias = c->no_bias && !c->proj_bias;
    mt_module *m = attention_new(separate ? separate_forward : fused_forward, c);
    bool ok = m != NULL;
    if (separate)
        ok = ok && mti_add_linear(m, "q", device, &in, d, q, MTI_INIT_STD) &&
             mti_add_linear(m, "k", device, &in, d, kv, MTI_INIT_STD) &&
             mti_add_linear(m, "v", device, &in, d, kv, MTI_INIT_STD) && add_qk_norms(m, device, c);
    else
        ok = ok && mti_add_linear(m, "qkv", device, &in, d, q + 2 * kv, MTI_INIT_STD);
    return mti_module_complete(
        m, ok && add_heads(m, device, c) &&
               mti_add_linear(m, "proj", device, &out, q, d, mti_residual_std(c)) &&
               mti_add_dropout(m, c));
}

void mti_share_rope_tables(mt_module *m, mti_rope_tables *tables)
{
    mti_heads *heads = mti_heads_of(m);
    mt_module *child;
    if (heads && heads->rotation.angles.theta > 0)
        heads->tables = tables; /* else threads may share m */
    for (size_t i = 0; (child = mt_module_child_at(m, i)); i++)
        mti_share_rope_tables(child, tables);
}

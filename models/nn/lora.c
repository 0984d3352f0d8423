/* lora.c: adding adapters to linears, running and merging them (Hu et al. 2021). */
#include <fnmatch.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include "memtape/ops.h"
#include "nn/lora.h"
#include "nn/model.h"

/* ---- the module "lora" ---- */

/* base(x) over W + (alpha / r) B A in W's dtype. */
static mt_tensor *forward_on_weight(mt_module *self, mt_tensor *x)
{
    const mti_lora *l = mt_module_user(self);
    mt_module *base = mt_module_child(self, MTI_LORA_BASE);
    mt_tensor *w = mt_module_param(base, "weight");
    MT_AUTO mt_tensor *a = mt_cast(mti_lora_a(self), mt_dtype_of(w));
    MT_AUTO mt_tensor *sum = mt_cast(mti_lora_b(self), mt_dtype_of(w));
    mt_set(&sum, mt_matmul(sum, a));
    mt_set(&sum, mt_mul_scalar(sum, l->alpha / (double)l->rank));
    mt_set(&sum, mt_add(w, sum));
    if (!sum) return NULL;
    mti_module_lend_param(base, "weight", sum);
    mt_tensor *y = mt_forward_child(self, MTI_LORA_BASE, x);
    mti_module_lend_param(base, "weight", w);
    return y;
}

/* y = base(x) + B ((alpha / r) A drop(x)); the scaling is done on [..,r], the narrow one. The sum
 * is made in the dtype of A and B. */
static mt_tensor *lora_forward(mt_module *self, mt_tensor *x)
{
    const mti_lora *l = mt_module_user(self);
    if (l->on_weight) return forward_on_weight(self, x);
    mt_tensor *y = mt_forward_child(self, MTI_LORA_BASE, x);
    mt_tensor *h = l->f32 ? mt_cast(x, MT_F32) : mt_retain(x);
    if (mt_module_training(self)) mt_set(&h, mt_dropout(h, l->dropout));
    mt_set(&h, mt_forward_child(self, MTI_LORA_A, h));
    mt_set(&h, mt_mul_scalar(h, l->alpha / (double)l->rank));
    mt_set(&h, mt_forward_child(self, MTI_LORA_B, h));
    if (l->f32) mt_set(&y, mt_cast(y, MT_F32));
    mt_set(&y, mt_add(y, h));
    mt_release(h);
    if (l->f32) mt_set(&y, mt_cast(y, mt_dtype_of(x)));
    return y;
}

static void lora_destroy(void *user)
{
    mti_lora *l = user;
    mt_module_free(l->spare);
    mti_free(l);
}

mt_tensor *mti_lora_a(const mt_module *lora)
{
    return mt_module_param(mt_module_child(lora, MTI_LORA_A), "weight");
}
mt_tensor *mti_lora_b(const mt_module *lora)
{
    return mt_module_param(mt_module_child(lora, MTI_LORA_B), "weight");
}

/* A linear over weight, which is taken over, or a grouped one. */
static mt_module *product_of(mt_tensor *weight)
{
    return weight && mt_rank(weight) == 3 ? mti_grouped_linear_of(weight) : mti_linear_of(weight);
}

/* Adds a linear of zeros, for each expert where `like` has several. */
static bool add_part(mt_module *m, const char *name, const mt_tensor *like, int64_t in, int64_t out)
{
    const mti_lora *l = mt_module_user(m);
    const bool groups = mt_rank(like) == 3;
    const int64_t shape[] = {mt_shape(like)[0], out, in};
    mt_tensor *w = mt_zeros(mt_device_of(like), l->f32 ? MT_F32 : mt_dtype_of(like), 2 + groups,
                            shape + !groups);
    return mt_module_add_child(m, name, product_of(w)) != NULL;
}

/* Draws A; B stays zero. */
static bool init(const mt_module *lora)
{
    mt_tensor *a = mti_lora_a(lora);
    double bound = 1 / sqrt((double)mt_shape(a)[mt_rank(a) - 1]);
    MT_AUTO mt_tensor *u =
        mt_uniform(mt_device_of(a), mt_dtype_of(a), mt_rank(a), mt_shape(a), -bound, bound);
    return u && mt_copy(a, u) == MT_OK;
}

/* With a placeholder as its base; A is not drawn yet. */
static mt_module *lora_new(const mt_module *linear, const mt_lora_options *o)
{
    mt_tensor *w = mt_module_param(linear, "weight");
    const int rank = mt_rank(w);
    int64_t out = mt_shape(w)[rank - 2], in = mt_shape(w)[rank - 1];
    mti_lora *l = mti_calloc(1, sizeof *l);
    if (!l) return NULL;
    *l = (mti_lora){.rank = o->rank,
                    .alpha = o->alpha != 0 ? o->alpha : (double)o->rank,
                    .dropout = o->dropout,
                    .on_weight = o->on_weights && rank == 3,
                    .f32 = o->f32_adapters && mt_dtype_size(mt_dtype_of(w)) == 2};
    mt_module *m = mt_module_new("lora", lora_forward, l, lora_destroy);
    bool complete =
        m &&
        mt_module_add_child(m, MTI_LORA_BASE, mt_module_new("none", mti_no_forward, NULL, NULL)) &&
        add_part(m, MTI_LORA_A, w, in, o->rank) && add_part(m, MTI_LORA_B, w, o->rank, out);
    if (complete) mt_module_set_training(m, mt_module_training(linear));
    return mti_module_complete(m, complete);
}

/* ---- finding places ---- */

bool mti_is_lora(const mt_module *m) { return mti_module_runs(m, lora_forward); }

bool mti_is_adaptable(const mt_module *m)
{
    const mt_tensor *w = mt_module_param(m, "weight");
    return w && ((!strcmp(mt_module_kind(m), "linear") && mt_rank(w) == 2) ||
                 !strcmp(mt_module_kind(m), "grouped_linear"));
}

static bool find(mti_places *places, mt_module *m, const char *prefix, mti_is_fn *is)
{
    mt_module *child;
    bool ok = true;
    for (size_t i = 0; ok && (child = mt_module_child_at(m, i)); i++) {
        char *path = mti_join(prefix, mt_module_name(child));
        ok = path != NULL;
        if (ok && is(child)) {
            ok = MTI_PUSH(&places->v, ((mti_place){m, child, path, NULL}));
            if (ok) path = NULL;
        } else if (ok && !mti_is_lora(child)) {
            ok = find(places, child, path, is);
        }
        mti_free(path);
    }
    return ok;
}

bool mti_places_find(mti_places *places, mt_module *m, mti_is_fn *is)
{
    memset(places, 0, sizeof *places);
    return find(places, m, "", is);
}

void mti_places_free(mti_places *places)
{
    for (size_t i = 0; i < places->v.n; i++) {
        mti_free(places->v.at[i].path);
        mt_module_free(places->v.at[i].wrapper);
    }
    mti_free(places->v.at);
    memset(places, 0, sizeof *places);
}

/* "*.fc" fits "fc", a child of the root, too. */
static bool fits(const char *pattern, const char *path)
{
    return !fnmatch(pattern, path, 0) ||
           (!strncmp(pattern, "*.", 2) && !fnmatch(pattern + 2, path, 0));
}

bool mti_lora_wants(const mt_lora_options *o, const char *path)
{
    bool wanted = o->n_targets == 0;
    for (size_t t = 0; !wanted && t < o->n_targets; t++)
        wanted = o->targets[t] && fits(o->targets[t], path);
    return wanted;
}

/* The head, which bitsandbytes and torchtune leave in the model's dtype. */
static bool is_head(const char *path)
{
    const char *slash = strrchr(path, '.'), *name = slash ? slash + 1 : path;
    return !strcmp(name, "lm_head") || !strcmp(name, "decoder");
}

/* Whether a linear without an adapter is kept in 4 bits, too. Experts are not: bitsandbytes packs
 * no 3-dimensional weights. */
static bool is_packed(const mti_place *p, const mt_lora_options *o)
{
    return o->base != MT_LORA_KEEP && mt_rank(mt_module_param(p->module, "weight")) == 2 &&
           !is_head(p->path);
}

typedef bool keep_fn(const mti_place *p, const mt_lora_options *o);

static bool is_wanted(const mti_place *p, const mt_lora_options *o)
{
    return mti_lora_wants(o, p->path);
}
static bool is_touched(const mti_place *p, const mt_lora_options *o)
{
    return is_wanted(p, o) || is_packed(p, o);
}

/* Removes the other places. */
static void keep(mti_places *places, const mt_lora_options *o, keep_fn *kept)
{
    size_t n = 0;
    for (size_t i = 0; i < places->v.n; i++)
        if (kept(&places->v.at[i], o))
            places->v.at[n++] = places->v.at[i];
        else
            mti_free(places->v.at[i].path);
    places->v.n = n;
}

/* Each target must fit one of `places`, and there must be one. */
static bool check_targets(const mti_places *places, const mt_lora_options *o)
{
    for (size_t t = 0; t < o->n_targets; t++) {
        bool fitted = false;
        if (!o->targets[t])
            return mti_fail_bool(MT_ERR_ARGUMENT, "lora_add: target %zu is NULL", t);
        for (size_t i = 0; i < places->v.n && !fitted; i++)
            fitted = fits(o->targets[t], places->v.at[i].path);
        if (!fitted)
            return mti_fail_bool(
                MT_ERR_ARGUMENT, "lora_add: \"%s\" fits none of the %zu linears (\"%s\", ...)",
                o->targets[t], places->v.n, places->v.n ? places->v.at[0].path : "");
    }
    return places->v.n ||
           mti_fail_bool(MT_ERR_ARGUMENT, "lora_add: the model has no linear to adapt");
}

/* ---- adding ---- */

static bool check_options(const mt_lora_options *o)
{
    if (!o || (o->n_targets && !o->targets))
        return mti_fail_bool(MT_ERR_ARGUMENT, "lora_add: the %s are NULL",
                             o ? "targets" : "options");
    if (o->rank < 1 || !isfinite(o->alpha) || !(o->dropout >= 0 && o->dropout < 1))
        return mti_fail_bool(
            MT_ERR_ARGUMENT,
            "lora_add: rank %lld, alpha %g, dropout %g; need a rank >= 1, a finite "
            "alpha, 0 <= dropout < 1",
            (long long)o->rank, o->alpha, o->dropout);
    if (o->on_weights && o->dropout > 0)
        return mti_fail_bool(MT_ERR_ARGUMENT,
                             "lora_add: dropout %g on weights: what is added to a weight has no "
                             "input to drop; need dropout 0",
                             o->dropout);
    return (unsigned)o->base < MT_LORA_BASE_COUNT ||
           mti_fail_bool(MT_ERR_ARGUMENT, "lora_add: base %d is unknown", (int)o->base);
}

mt_quant mti_lora_format(const mt_lora_options *o)
{
    if (o->base == MT_LORA_INT8) /* with as few scales as a row for each, LLM.int8's, nearly has */
        return (mt_quant){.format = MT_QUANT_INT8, .block = 256, .double_scales = true};
    return (mt_quant){.format = MT_QUANT_NF4, .double_scales = o->base == MT_LORA_NF4_DOUBLE};
}

/* Does all that may fail: makes the adapter and, if asked for, its NF4 base; or that alone. */
static bool make_wrapper(mti_place *p, const mt_lora_options *o)
{
    const mt_quant format = mti_lora_format(o);
    if (!is_wanted(p, o))
        return (p->wrapper = mti_linear_quantized_new(p->module, &format)) != NULL;
    const bool groups = mt_rank(mt_module_param(p->module, "weight")) == 3;
    if (groups && (o->base != MT_LORA_KEEP || o->on_weights) &&
        !mti_takes_whole_experts("lora_add", p->parent))
        return false;
    p->wrapper = lora_new(p->module, o);
    if (!p->wrapper) return false;
    mti_lora *l = mt_module_user(p->wrapper);
    if (o->base == MT_LORA_KEEP || l->on_weight || is_head(p->path)) return true;
    mt_module *nf4 = mti_linear_quantized_new(p->module, &format);
    l->spare = mt_module_swap_child(p->wrapper, MTI_LORA_BASE, nf4);
    return l->spare != NULL;
}

/* Puts the wrapper in the linear's place; the linear becomes its base or, with NF4, is freed. */
static void wrap(mti_place *p)
{
    mti_lora *l = mti_is_lora(p->wrapper) ? mt_module_user(p->wrapper) : NULL;
    mt_module *linear = mt_module_swap_child(p->parent, mt_module_name(p->module), p->wrapper);
    if (!l || l->spare)
        mt_module_free(linear);
    else
        l->spare = mt_module_swap_child(p->wrapper, MTI_LORA_BASE, linear);
    p->module = p->wrapper;
    p->wrapper = NULL;
}

static void train_adapters(const mti_places *loras)
{
    for (size_t i = 0; i < loras->v.n; i++) {
        mt_set_requires_grad(mti_lora_a(loras->v.at[i].module), true);
        mt_set_requires_grad(mti_lora_b(loras->v.at[i].module), true);
    }
}

/* Adds an adapter to each of the places that a target fits, and freezes the rest of m. */
static bool add_at(mt_module *m, const mt_lora_options *o, mti_places *added)
{
    mti_places before;
    bool ok = mti_places_find(&before, m, mti_is_lora);
    keep(added, o, is_touched);
    for (size_t i = 0; ok && i < added->v.n; i++) ok = make_wrapper(&added->v.at[i], o);
    for (size_t i = 0; ok && i < added->v.n; i++)
        ok = !mti_is_lora(added->v.at[i].wrapper) || init(added->v.at[i].wrapper);
    ok = ok && mt_module_freeze(m, true) == MT_OK;
    if (ok) train_adapters(&before);
    for (size_t i = 0; ok && i < added->v.n; i++) wrap(&added->v.at[i]);
    if (ok) keep(added, o, is_wanted);
    mti_places_free(&before);
    return ok;
}

bool mti_lora_add(mt_module *m, const mt_lora_options *o, mti_places *added)
{
    memset(added, 0, sizeof *added);
    if (!mti_given(m, "lora_add", "the module") || !check_options(o)) return false;
    return mti_places_find(added, m, mti_is_adaptable) && check_targets(added, o) &&
           add_at(m, o, added);
}

bool mti_lora_add_part(mt_module *m, const char *path, const mt_lora_options *o)
{
    mti_places added = {0};
    bool ok = find(&added, m, path, mti_is_adaptable) && add_at(m, o, &added);
    mti_places_free(&added);
    return ok;
}

bool mti_lora_check(const mt_model_config *config, const mt_lora_options *o)
{
    if (!check_options(o)) return false;
    if (!o->n_targets) return true;
    mt_device *meta = mt_device_open("meta");
    mt_module *m = meta ? mt_model_new(meta, config) : NULL;
    mti_places places = {0};
    bool ok = m && mti_places_find(&places, m, mti_is_adaptable) && check_targets(&places, o);
    mti_places_free(&places);
    mt_module_free(m);
    mt_device_release(meta);
    return ok;
}

mt_status mt_lora_add(mt_module *m, const mt_lora_options *o, size_t *n_added)
{
    mti_places added;
    bool ok = mti_lora_add(m, o, &added);
    if (ok && n_added) *n_added = added.v.n;
    mti_places_free(&added);
    return ok ? MT_OK : mt_last_status();
}

/* ---- adding while a model is made ---- */

/* Replaces each wanted linear below m, whose path from the root is `path`, one by one. */
static bool adapt(mt_module *m, const char *path, const mt_lora_options *o)
{
    mti_places places = {0};
    bool ok = find(&places, m, path, mti_is_adaptable);
    if (ok) keep(&places, o, is_touched);
    for (size_t i = 0; ok && i < places.v.n; i++) {
        ok = make_wrapper(&places.v.at[i], o);
        if (ok) wrap(&places.v.at[i]);
    }
    mti_places_free(&places);
    return ok;
}

static bool adapt_layer(void *user, mt_module *layer)
{
    return adapt(layer, mt_module_name(layer), user);
}

static bool is_lora_or_linear(const mt_module *m) { return mti_is_lora(m) || mti_is_adaptable(m); }

/* Once every wanted linear has its adapter. A is drawn last, so that the weights are those of
 * mt_model_new. */
static bool finish(mt_module *m, const mt_lora_options *o)
{
    mti_places places;
    bool ok = mti_places_find(&places, m, is_lora_or_linear) && check_targets(&places, o);
    if (ok) keep(&places, o, is_wanted);
    for (size_t i = 0; ok && i < places.v.n; i++) ok = init(places.v.at[i].module);
    ok = ok && mt_module_freeze(m, true) == MT_OK;
    if (ok) train_adapters(&places);
    mti_places_free(&places);
    return ok;
}

/* Gives m's adapters, or all but them, their place on the device. */
static bool place(mt_module *m, mt_device *device, bool adapters, bool within)
{
    const char *name = mt_module_name(m);
    mt_module *child;
    within = within || (name && !strncmp(name, "lora_", 5));
    bool ok = within != adapters || mti_module_materialize_own(m, device);
    for (size_t i = 0; ok && (child = mt_module_child_at(m, i)); i++)
        ok = place(child, device, adapters, within);
    return ok;
}

/* A model whose codes were made elsewhere. */
static mt_module *from_codes(mt_device *device, const mt_model_config *config, mt_lora_options o)
{
    if (mt_device_has_data(device))
        return mti_fail_null(
            MT_ERR_UNSUPPORTED,
            "lora_model_new: from_codes on %s: there are no codes to read; need meta",
            mt_device_kind(device));
    o.from_codes = false;
    mt_device *elsewhere = mt_device_open("meta");
    mt_module *m = elsewhere ? mt_lora_model_new(elsewhere, config, &o) : NULL;
    m = mti_module_complete(m,
                            m && place(m, device, false, false) && place(m, device, true, false));
    mt_device_release(elsewhere);
    return m;
}

mt_module *mt_lora_model_new(mt_device *device, const mt_model_config *config,
                             const mt_lora_options *o)
{
    if (!mti_given(device, "lora_model_new", "the device") || !check_options(o)) return NULL;
    if (o->from_codes) return from_codes(device, config, *o);
    const mti_each_layer each = {adapt_layer, (void *)o};
    mt_module *m = mti_model_make(device, config, &each);
    return mti_module_complete(m, m && adapt(m, "", o) && finish(m, o));
}

/* ---- removing ---- */

void mti_lora_unwrap(const mti_place *p)
{
    mti_lora *l = mt_module_user(p->module);
    mt_module *base = mt_module_swap_child(p->module, MTI_LORA_BASE, l->spare);
    l->spare = NULL;
    mt_module_free(mt_module_swap_child(p->parent, mt_module_name(p->module), base));
}

/* ---- merging ---- */

/* W + (alpha / r) B A in f32 or f64, from W in that dtype (taken over) */
static mt_tensor *merged(const mt_module *lora, mt_tensor *w)
{
    const mti_lora *l = mt_module_user(lora);
    if (!w) return NULL;
    MT_AUTO mt_tensor *a = mt_cast(mti_lora_a(lora), mt_dtype_of(w));
    mt_tensor *delta = mt_cast(mti_lora_b(lora), mt_dtype_of(w));
    mt_set(&delta, mt_mul_scalar(delta, l->alpha / (double)l->rank));
    mt_set(&delta, mt_matmul(delta, a));
    mt_set(&delta, mt_add(w, delta));
    mt_release(w);
    return delta;
}

/* A linear in the dtype that the NF4 one had, with the merged weight `sum`. */
static mt_module *dense_linear(const mt_module *nf4, mt_tensor *sum)
{
    mt_tensor *bias = mt_module_param(nf4, "bias");
    mt_module *m = product_of(mt_cast(sum, mti_linear_quantized_dtype(nf4)));
    bool ok = m && (!bias || mt_module_add_param(m, "bias", mt_retain(bias))) &&
              mt_module_freeze(m, true) == MT_OK;
    if (ok) mt_module_set_training(m, mt_module_training(nf4));
    return mti_module_complete(m, ok);
}

static bool merge(const mti_place *p)
{
    mt_module *base = mt_module_child(p->module, MTI_LORA_BASE);
    bool nf4 = mti_is_linear_quantized(base);
    mt_tensor *w = mt_module_param(base, "weight");
    mt_dtype wide =
        (nf4 ? mti_linear_quantized_dtype(base) : mt_dtype_of(w)) == MT_F64 ? MT_F64 : MT_F32;
    MT_AUTO mt_tensor *sum =
        merged(p->module, nf4 ? mti_linear_quantized_weight(base, wide) : mt_cast(w, wide));
    if (!sum) return false;
    if (nf4) {
        mt_module *dense = dense_linear(base, sum);
        if (!dense) return false;
        mt_module_free(mt_module_swap_child(p->parent, mt_module_name(p->module), dense));
        return true;
    }
    if (mt_copy(w, sum) != MT_OK) return false;
    mti_lora_unwrap(p);
    return true;
}

/* Gives linears that were packed beside adapters their dtype back. */
static bool unpack_others(mt_module *m)
{
    mti_places packed;
    bool ok = mti_places_find(&packed, m, mti_is_linear_quantized);
    for (size_t i = 0; ok && i < packed.v.n; i++) {
        const mti_place *p = &packed.v.at[i];
        MT_AUTO mt_tensor *w =
            mti_linear_quantized_weight(p->module, mti_linear_quantized_dtype(p->module));
        mt_module *dense = w ? dense_linear(p->module, w) : NULL;
        ok = dense != NULL;
        if (ok) mt_module_free(mt_module_swap_child(p->parent, mt_module_name(p->module), dense));
    }
    mti_places_free(&packed);
    return ok;
}

mt_status mt_lora_merge(mt_module *m)
{
    if (!mti_given(m, "lora_merge", "the module")) return mt_last_status();
    mti_places loras;
    bool grad = mt_set_grad_mode(false);
    bool ok = mti_places_find(&loras, m, mti_is_lora);
    if (ok && !loras.v.n) ok = mti_fail_bool(MT_ERR_STATE, "lora_merge: the model has no adapters");
    for (size_t i = 0; ok && i < loras.v.n; i++) ok = merge(&loras.v.at[i]);
    ok = ok && unpack_others(m);
    mti_places_free(&loras);
    mt_set_grad_mode(grad);
    return ok ? MT_OK : mt_last_status();
}

/* ---- targets as a list of names ---- */

#define LONGEST 60 /* of a name */

static bool add_target(mti_lora_targets *t, const char *name, size_t length)
{
    char pattern[LONGEST + 3];
    if (!length || length > LONGEST || t->n == MTI_LORA_TARGETS)
        return mti_fail_bool(MT_ERR_ARGUMENT,
                             "\"%.80s\" is not all, or 1 to %d names of linears joined by commas "
                             "or +, such as q,v,mlp.fc",
                             t->text, MTI_LORA_TARGETS);
    snprintf(pattern, sizeof pattern, "*.%.*s", (int)length, name);
    return (t->patterns[t->n++] = mti_intern(pattern)) != NULL;
}

bool mti_lora_targets_parse(mti_lora_targets *t, const char *text)
{
    *t = (mti_lora_targets){0};
    if (!strcmp(text, "all")) return true;
    t->text = mti_intern(text);
    for (const char *at = t->text; at; at++) {
        size_t length = strcspn(at, ",+");
        if (!add_target(t, at, length)) return false;
        at += length;
        if (!*at) return true;
    }
    return false;
}

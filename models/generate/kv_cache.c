/* kv_cache.c: the keys and values of every position so far, in the forms of kv_layer.h. */
#include "memtape/models/generate.h"
#include "memtape/ops.h"
#include "generate/kv_layer.h"
#include "nn/model.h"

struct mt_kv_cache {
    mt_model_config config;
    mt_kv_form form;
    int64_t batch, capacity, length;
    bool lost; /* a forward failed after layers with a window had dropped what the next one sees */
    mti_kv_layer *layers; /* [config.layers] */
    mt_device *device;    /* the model's; borrowed */
};

/* ---- names and sizes ---- */

static const mti_choice forms = {"kv_cache", MTI_NAMES("preallocated", "growing", "8bit", "paged")};

const char *mt_kv_form_name(mt_kv_form form) { return mti_choice_name(&forms, (int)form); }

static bool has_cache(const mt_model_config *c)
{
    return c->kind == MT_MODEL_GPT || c->kind == MT_MODEL_LLAMA ||
           mti_fail_bool(
               MT_ERR_ARGUMENT,
               "kv_cache: a %s does not generate from left to right; need a gpt or a llama",
               mt_model_kind_name(c->kind));
}

static bool check_form(mt_kv_form form)
{
    return (unsigned)form < MT_KV_FORM_COUNT ||
           mti_fail_bool(MT_ERR_ARGUMENT, "kv_cache: form %d is unknown", (int)form);
}

/* Blocks for so many positions. */
static int64_t blocks_of(int64_t positions)
{
    return positions / MT_KV_BLOCK + (positions % MT_KV_BLOCK != 0);
}

/* What a position of a layer holds: keys and values, or the latent of both and the turned part of
 * keys (nn/latent.c). */
typedef struct widths {
    int64_t heads, k, v;
} widths;

static widths widths_of(const mt_model_config *c)
{
    return c->kv_rank ? (widths){1, c->kv_rank, c->rope_dim}
                      : (widths){c->kv_heads, c->head_dim, c->head_dim};
}

/* Counts how many of `positions` a layer caches: at most its window. */
static int64_t held_by(const mt_model_config *c, int64_t layer, int64_t positions)
{
    const int64_t window = mti_layer_config(c, layer).window;
    return window && window < positions ? window : positions;
}

/* The same with its blocks' other positions. */
static int64_t places_of(const mt_model_config *c, mt_kv_form form, int64_t layer,
                         int64_t positions)
{
    const int64_t held = held_by(c, layer, positions);
    if (form != MT_KV_PAGED) return held;
    return (blocks_of(positions) - (positions - held) / MT_KV_BLOCK) * MT_KV_BLOCK;
}

size_t mt_kv_bytes(const mt_model_config *config, mt_kv_form form, int64_t batch, int64_t positions)
{
    mt_model_config c;
    if (mt_model_config_resolve(config, &c) != MT_OK || !has_cache(&c) || !check_form(form))
        return 0;
    const widths w = widths_of(&c);
    const size_t e = mt_dtype_size(c.dtype), both = (size_t)(w.k + w.v);
    const size_t vector = form == MT_KV_8BIT ? both + 2 * sizeof(float) : both * e;
    size_t n = 1, layers = 0;
    const int64_t factors[] = {batch, w.heads, (int64_t)vector};
    bool fits = positions >= 0 && positions <= INT64_MAX / c.layers - MT_KV_BLOCK;
    for (int64_t i = 0; fits && i < c.layers; i++)
        layers += (size_t)places_of(&c, form, i, positions);
    for (int i = 0; fits && i < 3; i++)
        fits = factors[i] >= 0 && mti_mul_size(n, (size_t)factors[i], &n);
    if (fits && mti_mul_size(n, layers, &n)) return n;
    mti_fail(MT_ERR_ARGUMENT, "kv_cache: the bytes of %lld x %lld positions overflow",
             (long long)batch, (long long)positions);
    return 0;
}

/* ---- making and freeing ---- */

static mt_tensor *make(const mt_kv_cache *cache, mt_device *device, mt_dtype dtype, int64_t batch,
                       int64_t slots, int64_t width)
{
    mt_tensor *t =
        mt_empty(device, dtype, MT_SHAPE(batch, widths_of(&cache->config).heads, slots, width));
    if (t && mt_set_category(t, MT_CACHE) != MT_OK) mt_set(&t, NULL);
    return t;
}

static bool make_side(mti_kv_side *s, const mt_kv_cache *cache, mt_device *device, int64_t slots,
                      int64_t width)
{
    const mt_model_config *c = &cache->config;
    if (cache->form == MT_KV_GROWING) return true; /* made with the first positions */
    if (cache->form == MT_KV_PAGED) {
        size_t n;
        bool fits = mti_mul_size((size_t)cache->batch, (size_t)blocks_of(cache->capacity), &n);
        s->blocks = fits ? mti_calloc(n, sizeof(mt_tensor *)) : NULL;
        return s->blocks ||
               (!fits &&
                mti_fail_bool(MT_ERR_ARGUMENT, "kv_cache: %lld tables of %lld blocks overflow",
                              (long long)cache->batch, (long long)blocks_of(cache->capacity)));
    }
    bool narrow = cache->form == MT_KV_8BIT;
    const int64_t batch = cache->batch;
    s->values = make(cache, device, narrow ? MT_U8 : c->dtype, batch, slots, width);
    if (s->values && narrow) s->scales = make(cache, device, MT_F32, batch, slots, 1);
    return s->values && (!narrow || s->scales);
}

mt_kv_cache *mt_kv_cache_new(mt_module *model, mt_kv_form form, int64_t batch, int64_t positions)
{
    if (!mti_given(model, "kv_cache", "the model")) return NULL;
    const mt_model_config *c = mt_model_config_of(model);
    if (!c)
        return mti_fail_null(MT_ERR_ARGUMENT, "kv_cache: need a gpt or a llama made by memtape");
    if (positions == 0) positions = c->context;
    if (!has_cache(c) || !check_form(form)) return NULL;
    if (batch < 1 || positions < 1 || positions > c->context)
        return mti_fail_null(MT_ERR_ARGUMENT,
                             "kv_cache: %lld sequences of %lld positions; need at least 1, and at "
                             "most the context of %lld",
                             (long long)batch, (long long)positions, (long long)c->context);
    mt_kv_cache *cache = mti_calloc(1, sizeof *cache);
    if (!cache) return NULL;
    *cache = (mt_kv_cache){.config = *c, .form = form, .batch = batch, .capacity = positions};
    cache->layers = mti_calloc((size_t)c->layers, sizeof *cache->layers);
    bool ok = cache->layers != NULL;
    mt_device *device = mt_device_of(mt_module_param(mt_module_child(model, "wte"), "weight"));
    cache->device = device;
    for (int64_t i = 0; ok && i < c->layers; i++) {
        mti_kv_layer *layer = &cache->layers[i];
        layer->form = form, layer->dtype = c->dtype, layer->length = &cache->length;
        layer->batch = batch, layer->most = blocks_of(positions);
        layer->slots = held_by(c, i, positions);
        const widths w = widths_of(c);
        ok = make_side(&layer->k, cache, device, layer->slots, w.k) &&
             make_side(&layer->v, cache, device, layer->slots, w.v);
    }
    if (ok) return cache;
    mt_kv_cache_free(cache);
    return NULL;
}

static void drop(mti_kv_side *s)
{
    mt_release(s->values);
    mt_release(s->scales);
    mti_free(s->blocks);
}

void mt_kv_cache_free(mt_kv_cache *cache)
{
    if (!cache) return;
    for (int64_t i = 0; cache->layers && i < cache->config.layers; i++) {
        mti_kv_trim(&cache->layers[i], 0);
        drop(&cache->layers[i].k);
        drop(&cache->layers[i].v);
    }
    mti_free(cache->layers);
    mti_free(cache);
}

/* ---- length and bytes ---- */

int64_t mt_kv_cache_length(const mt_kv_cache *cache) { return cache ? cache->length : 0; }

size_t mt_kv_cache_bytes(const mt_kv_cache *cache, size_t *scales)
{
    size_t values = 0, of_scales = 0;
    for (int64_t i = 0; cache && i < cache->config.layers; i++) {
        const mti_kv_side *sides[] = {&cache->layers[i].k, &cache->layers[i].v};
        for (int j = 0; j < 2; j++) {
            if (sides[j]->values) values += mt_storage_of(sides[j]->values).bytes;
            if (sides[j]->scales) of_scales += mt_storage_of(sides[j]->scales).bytes;
            int64_t places = cache->layers[i].batch * cache->layers[i].most;
            for (int64_t p = 0; sides[j]->blocks && p < places; p++)
                if (sides[j]->blocks[p]) values += mt_storage_of(sides[j]->blocks[p]).bytes;
        }
    }
    if (scales) *scales = of_scales;
    return values + of_scales;
}

size_t mt_kv_cache_used(const mt_kv_cache *cache)
{
    if (!cache || cache->length == 0) return 0;
    mt_kv_form form = cache->form == MT_KV_PAGED ? MT_KV_PREALLOCATED : cache->form;
    return mt_kv_bytes(&cache->config, form, cache->batch, cache->length);
}

/* Slots of the layer that has the fewest. */
static int64_t narrowest(const mt_kv_cache *cache)
{
    int64_t n = cache->capacity;
    for (int64_t i = 0; i < cache->config.layers; i++)
        if (cache->layers[i].slots < n) n = cache->layers[i].slots;
    return n;
}

static void trim(const mt_kv_cache *cache, int64_t length)
{
    for (int64_t i = 0; i < cache->config.layers; i++) mti_kv_trim(&cache->layers[i], length);
}

/* Cuts a growing tensor to what it holds of the first `length` positions. */
static bool shorten(mti_kv_side *s, int64_t length)
{
    mt_tensor **t = &s->values;
    if (!*t || s->end == length) return true;
    const int64_t from = s->end - mt_shape(*t)[2];
    s->end = length;
    mt_tensor *first = mt_slice(*t, 2, 0, length > from ? length - from : 0);
    mt_set(&first, mt_clone(first));
    if (!first || mt_set_category(first, MT_CACHE) != MT_OK) {
        mt_release(first);
        return false;
    }
    return mt_set(t, first) == MT_OK;
}

mt_status mt_kv_cache_rewind(mt_kv_cache *cache, int64_t length)
{
    if (!mti_given(cache, "kv_cache_rewind", "the cache")) return mt_last_status();
    if (length < 0 || length > cache->length)
        return mti_fail(MT_ERR_ARGUMENT, "kv_cache: rewind to %lld; it holds %lld positions",
                        (long long)length, (long long)mt_kv_cache_length(cache));
    const int64_t window = narrowest(cache);
    if (length && length < cache->length - 1 && window < cache->length)
        return mti_fail(MT_ERR_ARGUMENT,
                        "kv_cache: rewind to %lld; layers with a window of %lld have dropped what "
                        "is seen from there; need 0, %lld or %lld",
                        (long long)length, (long long)window, (long long)cache->length - 1,
                        (long long)cache->length);
    bool grad = mt_set_grad_mode(false), ok = true;
    for (int64_t i = 0; ok && cache->form == MT_KV_GROWING && i < cache->config.layers; i++)
        ok = shorten(&cache->layers[i].k, length) && shorten(&cache->layers[i].v, length);
    mt_set_grad_mode(grad);
    if (!ok) return mt_last_status();
    trim(cache, length);
    cache->length = length;
    if (!length) cache->lost = false;
    return MT_OK;
}

/* ---- filling ---- */

static bool fill_side(const mt_kv_cache *cache, const mti_kv_layer *layer, mti_kv_side *s,
                      int64_t width, int64_t length)
{
    const int64_t held = length < layer->slots ? length : layer->slots;
    s->end = length;
    if (layer->form == MT_KV_GROWING)
        return mt_set(&s->values,
                      make(cache, cache->device, layer->dtype, layer->batch, held, width)) == MT_OK;
    for (int64_t i = 0; s->blocks && i < layer->batch; i++)
        for (int64_t b = (length - held) / MT_KV_BLOCK; b < blocks_of(length); b++) {
            mt_tensor **block = &s->blocks[i * layer->most + b];
            if (!*block) *block = make(cache, cache->device, layer->dtype, 1, MT_KV_BLOCK, width);
            if (!*block) return false;
        }
    return true;
}

bool mti_kv_cache_fill(mt_kv_cache *cache, int64_t length)
{
    const widths w = widths_of(&cache->config);
    for (int64_t i = 0; i < cache->config.layers; i++) {
        mti_kv_layer *layer = &cache->layers[i];
        if (!fill_side(cache, layer, &layer->k, w.k, length) ||
            !fill_side(cache, layer, &layer->v, w.v, length))
            return false;
    }
    trim(cache, length);
    cache->length = length;
    return true;
}

/* ---- one forward ---- */

/* Connects the model's attentions and positions with the cache, or with texts and theirs; both
 * NULL: with none. */
static bool bind(mt_module *model, const mt_model_config *c, mt_kv_cache *cache,
                 const mti_texts *texts)
{
    int64_t *start = mti_positions_start(mt_module_child(model, "wpe"));
    if (start) *start = cache ? cache->length : 0;
    mti_positions_set_texts(mt_module_child(model, "wpe"), texts);
    for (int64_t i = 0; i < c->layers; i++) {
        mti_heads *heads = mti_heads_of(mt_module_find(mti_layer(model, i), "attn.heads"));
        if (heads) {
            heads->cached = cache ? &cache->length : NULL;
            heads->kv = cache ? &cache->layers[i] : NULL;
            heads->append = mti_kv_append;
            heads->texts = texts, heads->layer = i;
        } else if (cache || texts)
            return mti_fail_bool(MT_ERR_STATE,
                                 "kv_cache: h.%lld.attn.heads of the model was replaced",
                                 (long long)i);
    }
    return true;
}

static bool same_size(const mt_kv_cache *cache, const mt_model_config *c)
{
    const mt_model_config *of = &cache->config;
    return (of->kind == c->kind && of->layers == c->layers && of->kv_heads == c->kv_heads &&
            of->head_dim == c->head_dim && of->kv_rank == c->kv_rank &&
            of->rope_dim == c->rope_dim && of->window == c->window &&
            of->local_period == c->local_period && of->local_layers == c->local_layers) ||
           mti_fail_bool(MT_ERR_ARGUMENT, "kv_cache: made for another model than this %s",
                         mt_model_kind_name(c->kind));
}

static bool has_room(const mt_kv_cache *cache, long long b, long long t)
{
    if (b != cache->batch)
        return mti_fail_bool(MT_ERR_ARGUMENT, "kv_cache: %lld sequences; made for %lld", b,
                             (long long)cache->batch);
    if (cache->lost)
        return mti_fail_bool(MT_ERR_STATE,
                             "kv_cache: a forward failed after layers with a window had dropped "
                             "positions; rewind to 0");
    return t <= cache->capacity - cache->length ||
           mti_fail_bool(
               MT_ERR_ARGUMENT,
               "kv_cache: %lld positions are held and %lld follow; there is room for %lld",
               (long long)cache->length, t, (long long)cache->capacity);
}

static void after_failure(mt_kv_cache *cache, int64_t t)
{
    cache->lost = cache->length && t > 1 && cache->length + t > narrowest(cache);
    trim(cache, cache->length);
}

/* NULL, and an error, if the model does not generate or these are no tokens. */
static mti_model *check_inputs(const char *caller, mt_module *model, const mt_tensor *tokens)
{
    if (!mti_given(model, caller, "the model") || !mti_given(tokens, caller, "tokens")) return NULL;
    mti_model *m = mti_model_of(model);
    if (!m)
        return mti_fail_null(MT_ERR_ARGUMENT, "%s: need a gpt or a llama made by memtape", caller);
    if (!has_cache(&m->config) || !mti_check_tokens(caller, tokens)) return NULL;
    if (mt_numel(tokens) == 0)
        return mti_fail_null(MT_ERR_ARGUMENT, "%s: no tokens; need at least one", caller);
    return m;
}

/* The scores after all tokens, or, `last`, after the last of each row, with the cache or the texts
 * that are given. */
static mt_tensor *forward(mt_module *model, mti_model *m, mt_kv_cache *cache,
                          const mti_texts *texts, mt_tensor *tokens, bool last)
{
    const bool grad = mt_set_grad_mode(false), binds = cache || texts;
    m->last = last;
    mt_tensor *y =
        !binds || bind(model, &m->config, cache, texts) ? mt_forward(model, tokens) : NULL;
    if (binds) bind(model, &m->config, NULL, NULL);
    m->last = false;
    if (y && last) mt_set(&y, mt_reshape(y, MT_SHAPE(mt_shape(y)[0], mt_shape(y)[2])));
    mt_set_grad_mode(grad);
    return y;
}

static void after(mt_kv_cache *cache, bool ok, int64_t t)
{
    if (ok)
        cache->length += t;
    else
        after_failure(cache, t);
}

mt_tensor *mt_next_logits(mt_module *model, mt_kv_cache *cache, mt_tensor *tokens)
{
    mti_model *m = check_inputs("next_logits", model, tokens);
    if (!m || (cache && (!same_size(cache, &m->config) ||
                         !has_room(cache, mt_shape(tokens)[0], mt_shape(tokens)[1]))))
        return NULL;
    mt_tensor *y = forward(model, m, cache, NULL, tokens, true);
    if (cache) after(cache, y != NULL, mt_shape(tokens)[1]);
    return y;
}

/* ---- texts of different lengths ---- */

static void turn_to(const mti_texts *texts, int64_t i, mti_heads *heads)
{
    mt_kv_cache *cache = texts->caches[i];
    heads->cached = &cache->length;
    heads->kv = &cache->layers[heads->layer];
}

/* Whether text i has a length, and room in its own cache; *start: where it begins. */
static bool check_text(const char *caller, const mt_model_config *c, const mti_texts *texts,
                       int64_t i, int64_t t, int64_t *start)
{
    const int64_t n = texts->lengths[i];
    if (n < 1 || n > t)
        return mti_fail_bool(MT_ERR_ARGUMENT,
                             "%s: text %lld has %lld tokens; need 1 to %lld, the tokens of a row",
                             caller, (long long)i, (long long)n, (long long)t);
    if (!texts->caches) return true;
    mt_kv_cache *cache = texts->caches[i];
    if (!mti_given(cache, caller, "a cache")) return false;
    for (int64_t k = 0; k < i; k++)
        if (texts->caches[k] == cache)
            return mti_fail_bool(MT_ERR_ARGUMENT,
                                 "%s: texts %lld and %lld have one cache; need one for each",
                                 caller, (long long)k, (long long)i);
    *start = cache->length;
    return same_size(cache, c) && has_room(cache, 1, n);
}

static mt_tensor *forward_texts(const char *caller, mt_module *model, mt_kv_cache *const *caches,
                                const int64_t *lengths, mt_tensor *tokens, bool last)
{
    mti_model *m = check_inputs(caller, model, tokens);
    if (!m) return NULL;
    if (!lengths) return mti_fail_null(MT_ERR_ARGUMENT, "%s: the lengths are NULL", caller);
    const int64_t b = mt_shape(tokens)[0], t = mt_shape(tokens)[1];
    int64_t *starts = mti_calloc((size_t)b, sizeof *starts);
    const mti_texts texts = {lengths, starts, caches, caches ? turn_to : NULL};
    bool ok = starts != NULL;
    for (int64_t i = 0; ok && i < b; i++)
        ok = check_text(caller, &m->config, &texts, i, t, &starts[i]);
    mt_tensor *y = ok ? forward(model, m, NULL, &texts, tokens, last) : NULL;
    for (int64_t i = 0; ok && caches && i < b; i++) after(caches[i], y != NULL, lengths[i]);
    mti_free(starts);
    return y;
}

mt_tensor *mt_next_logits_each(mt_module *model, mt_kv_cache *const *caches, const int64_t *lengths,
                               mt_tensor *tokens)
{
    return forward_texts("next_logits_each", model, caches, lengths, tokens, true);
}

mt_tensor *mt_logits_each(mt_module *model, const int64_t *lengths, mt_tensor *tokens)
{
    return forward_texts("logits_each", model, NULL, lengths, tokens, false);
}

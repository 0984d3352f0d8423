/* serve.c: a model that generates many sequences at once, measured on meta. */
#include <string.h>
#include "base/base.h"
#include "memtape/parallel.h"
#include "memtape/serve.h"
#include "nn/model.h"

#define USUAL_AT_ONCE  8192
#define MOST_SEQUENCES ((int64_t)1 << 20)

/* ---- layers that need not run ----
 *
 * Where the allocator's blocks and segments lie before a layer decides, with the layer's kind, what
 * that layer takes and how it leaves them. So if they lie as they did before an earlier layer, and
 * the layers from there on are of the kinds that those were, all whole rounds that are left would
 * take the same again: nothing is told by running them. A cache that grows with its layer never
 * lies as before. */

typedef struct rounds {
    uint64_t now;     /* a hash of all blocks and segments */
    int64_t n, at;    /* layers; the one that is next */
    int64_t until;    /* layers before this one need not run */
    uint64_t *before; /* [n]: `now` before each layer of this forward */
    int64_t *kind;    /* [n]: the first layer of the same configuration */
} rounds;

static void on_event(void *user, const mt_mem_event *e)
{
    rounds *r = user;
    const uint64_t block = e->kind == MT_MEM_ALLOC || e->kind == MT_MEM_FREE;
    if (e->kind == MT_MEM_RECATEGORY || e->kind == MT_MEM_OOM) return;
    uint64_t hash = e->place * 0x9e3779b97f4a7c15u + (e->allocated << 1 | block);
    hash = (hash ^ hash >> 30) * 0xbf58476d1ce4e5b9u; /* splitmix64 */
    hash = (hash ^ hash >> 27) * 0x94d049bb133111ebu;
    r->now ^= hash ^ hash >> 31;
}

/* The length of a round that would begin again with the next layer; 0: of none. */
static int64_t round_of(const rounds *r)
{
    for (int64_t p = 1; p <= r->at && p <= r->n - r->at; p++) {
        bool same = r->before[r->at - p] == r->now;
        for (int64_t i = r->at; same && i < r->n; i++) same = r->kind[i] == r->kind[i - p];
        if (same) return p;
    }
    return 0;
}

static mt_tensor *run_layer(mt_module *m, void *user, mt_tensor *x)
{
    rounds *r = user;
    int64_t p = 0;
    if (r->at >= r->until) r->before[r->at] = r->now, p = round_of(r);
    if (p) r->until = r->at + (r->n - r->at) / p * p;
    return r->at++ < r->until ? mt_retain(x) : mti_module_run_inner(m, x);
}

static bool watch_layers(rounds *r, mt_module *m, const mt_model_config *c)
{
    r->n = c->layers;
    r->before = mti_calloc((size_t)r->n, sizeof *r->before);
    r->kind = mti_calloc((size_t)r->n, sizeof *r->kind);
    for (int64_t i = 0; r->before && r->kind && i < r->n; i++) {
        const mt_model_config own = mti_layer_config(c, i);
        mt_model_config other;
        do other = mti_layer_config(c, r->kind[i]);
        while (memcmp(&own, &other, sizeof own) && ++r->kind[i]);
        mti_module_set_around(mti_layer(m, i), (mti_around){run_layer, r, NULL});
    }
    return r->before && r->kind;
}

/* ---- one number of sequences ---- */

static mt_module *make_model(mt_device *device, const mt_serve_options *o)
{
    mt_module *m = o->weights ? mt_model_new_quantized(device, o->config, o->weights)
                              : mt_model_new(device, o->config);
    if (m) mt_module_set_training(m, false);
    return m;
}

static bool read_tokens(mt_module *m, mt_kv_cache *cache, mt_device *device, rounds *r,
                        int64_t sequences, int64_t n)
{
    r->at = r->until = 0;
    MT_AUTO mt_tensor *tokens = mt_zeros(device, MT_I64, MT_SHAPE(sequences, n));
    MT_AUTO mt_tensor *scores = tokens ? mt_next_logits(m, cache, tokens) : NULL;
    return scores != NULL;
}

/* Prompts of all positions but one, then a token. */
static bool generate(mt_module *m, mt_kv_cache *cache, mt_device *device, rounds *r,
                     const mt_serve_options *o, mt_serve_need *out)
{
    int64_t share = o->at_once / out->sequences, prompt = out->positions - 1;
    if (share < 1) share = 1;
    for (int64_t done = 0, n; done < prompt; done += n) {
        n = prompt - done < share ? prompt - done : share;
        if (!read_tokens(m, cache, device, r, out->sequences, n)) return false;
        out->forwards++;
    }
    return read_tokens(m, cache, device, r, out->sequences, 1);
}

static bool run(mt_device *device, const mt_serve_options *o, mt_serve_need *out)
{
    mt_mem_stats stats;
    rounds r = {0};
    int observer = mt_mem_add_observer(device, on_event, &r);
    mt_module *m = observer ? make_model(device, o) : NULL;
    if (m) {
        mt_mem_get_stats(device, &stats);
        out->weights = (size_t)stats.requested.current;
    }
    mt_kv_cache *cache = m ? mt_kv_cache_new(m, o->cache, out->sequences, out->positions) : NULL;
    bool ok = cache && watch_layers(&r, m, o->config) && generate(m, cache, device, &r, o, out);
    out->cache = mt_kv_cache_bytes(cache, NULL);
    mt_mem_get_stats(device, &stats);
    out->peak = (size_t)stats.allocated.peak;
    out->reserved = (size_t)stats.reserved.peak;
    memcpy(out->by_category, stats.at_peak, sizeof out->by_category);
    mt_kv_cache_free(cache);
    mt_module_free(m);
    mt_mem_remove_observer(device, observer);
    mti_free(r.before), mti_free(r.kind);
    return ok;
}

/* *fits: whether it did; false for any failure but that. */
static bool measure(const mt_serve_options *o, int64_t sequences, size_t capacity, bool *fits,
                    mt_serve_need *out)
{
    mt_mem_stats stats;
    *fits = false;
    *out = (mt_serve_need){.sequences = sequences, .positions = o->positions};
    mt_device *device = mt_device_open("meta");
    if (!device) return false;
    mt_mem_set_capacity(device, capacity);
    *fits = run(device, o, out);
    mt_mem_get_stats(device, &stats);
    bool refused = !*fits && mt_last_status() == MT_ERR_MEMORY && stats.ooms > 0;
    mt_device_release(device);
    return *fits || refused;
}

/* ---- what is asked for ---- */

static bool given(const void *p, const char *who, const char *what)
{
    return p || mti_fail_bool(MT_ERR_ARGUMENT, "%s: %s is NULL", who, what);
}

/* The part of one GPU of several that share each layer, as a model. */
static bool narrow(mt_model_config *c, int64_t n)
{
    if (n <= 1) return true;
    if (mt_parallel_check(&(mt_parallel){.tensor = n}, c) != MT_OK) return false;
    c->heads /= n, c->kv_heads /= n, c->ffn /= n;
    c->vocab = (c->vocab + n - 1) / n;
    return true;
}

static bool complete(const char *who, const mt_serve_options *options, mt_model_config *config,
                     mt_serve_options *o)
{
    if (!given(options, who, "the options") || !given(options->config, who, "the config") ||
        mt_model_config_resolve(options->config, config) != MT_OK)
        return false;
    *o = *options;
    o->config = config;
    if (config->kind != MT_MODEL_GPT && config->kind != MT_MODEL_LLAMA)
        return mti_fail_bool(MT_ERR_ARGUMENT,
                             "%s: a %s does not generate from left to right; need a gpt or a llama",
                             who, mt_model_kind_name(config->kind));
    if (!o->positions) o->positions = mti_usual_seq(config);
    if (!o->at_once) o->at_once = USUAL_AT_ONCE;
    if (o->positions < 1 || o->positions > config->context)
        return mti_fail_bool(MT_ERR_ARGUMENT,
                             "%s: %lld positions; need 1 to the model's context of %lld", who,
                             (long long)o->positions, (long long)config->context);
    if (o->at_once <= 0)
        return mti_fail_bool(MT_ERR_ARGUMENT, "%s: %lld tokens at once; need 1 or more", who,
                             (long long)o->at_once);
    return narrow(config, o->tensor);
}

static bool in_range(const char *who, int64_t sequences)
{
    return (sequences >= 1 && sequences <= MOST_SEQUENCES) ||
           mti_fail_bool(MT_ERR_ARGUMENT, "%s: %lld sequences; need 1 to %lld", who,
                         (long long)sequences, (long long)MOST_SEQUENCES);
}

mt_status mt_serve_measure(const mt_serve_options *options, int64_t sequences, size_t capacity,
                           mt_serve_need *out)
{
    mt_model_config config;
    mt_serve_options o;
    bool fits;
    if (!given(out, "serve_measure", "the result") ||
        !complete("serve_measure", options, &config, &o) || !in_range("serve_measure", sequences))
        return mt_last_status();
    return measure(&o, sequences, capacity, &fits, out) && fits ? MT_OK : mt_last_status();
}

/* ---- the most ---- */

/* What is known: `fits` do, `refused` do not. */
typedef struct bracket {
    const mt_serve_options *options;
    size_t capacity;
    int64_t fits, refused;
    mt_serve_need need; /* of `fits` */
} bracket;

static bool attempt(bracket *b, int64_t n)
{
    mt_serve_need need;
    bool fits;
    if (!measure(b->options, n, b->capacity, &fits, &need)) return false;
    if (fits)
        b->fits = n, b->need = need;
    else
        b->refused = n, mt_clear_error();
    return true;
}

/* Where the line through what two numbers take, the second of which fits, reaches the capacity. */
static int64_t reach(const bracket *b, const mt_serve_need *one, const mt_serve_need *two)
{
    double more = (double)(two->sequences - one->sequences);
    double each = two->peak > one->peak ? (double)(two->peak - one->peak) / more : 1;
    double n = (double)two->sequences + ((double)b->capacity - (double)two->peak) / each;
    return n > (double)MOST_SEQUENCES ? MOST_SEQUENCES : (int64_t)n;
}

/* From what 1 and 2 take along lines until a number is refused, then the middle. */
static bool close_in(bracket *b)
{
    mt_serve_need one = b->need, two;
    bool fits;
    if (!measure(b->options, 2, 0, &fits, &two) || !fits) return false;
    for (int64_t n = reach(b, &one, &two); b->refused - b->fits > 1;) {
        one = b->need;
        if (n <= b->fits) n = b->fits + 1;
        if (n >= b->refused) n = b->refused - 1;
        if (!attempt(b, n)) return false;
        n = b->refused > MOST_SEQUENCES ? reach(b, &one, &b->need)
                                        : b->fits + (b->refused - b->fits) / 2;
    }
    return true;
}

mt_status mt_serve_most(const mt_serve_options *options, size_t capacity, mt_serve_need *out)
{
    mt_model_config config;
    mt_serve_options o;
    if (!given(out, "serve_most", "the result") || !complete("serve_most", options, &config, &o))
        return mt_last_status();
    if (!capacity) return mti_fail(MT_ERR_ARGUMENT, "serve_most: the capacity is 0");
    bracket b = {.options = &o, .capacity = capacity, .refused = MOST_SEQUENCES + 1};
    if (!attempt(&b, 1)) return mt_last_status();
    if (!b.fits) { /* what one needs */
        bool fits, ok = measure(&o, 1, 0, &fits, out) && fits;
        out->sequences = 0;
        return ok ? MT_OK : mt_last_status();
    }
    if (!close_in(&b)) return mt_last_status();
    *out = b.need;
    return MT_OK;
}

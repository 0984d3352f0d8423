/* serve.c: a model that generates many sequences at once, measured on meta. */
#include <string.h>
#include "base/base.h"
#include "memtape/models/parallel.h"
#include "generate/kv_layer.h"
#include "nn/model.h"
#include "fit/serve.h"

#define USUAL_AT_ONCE 8192

/* ---- layers that need not run ----
 *
 * Where the allocator's blocks and segments lie before a layer decides, with the layer's kind, what
 * that layer takes and how it leaves them. So if they lie as they did before an earlier layer, and
 * the layers from there on are of the kinds that those were, all whole rounds that are left would
 * take the same again: nothing is told by running them. A cache that grows with its layer never
 * lies as before.
 *
 * So it is with forwards: where one asks for the bytes that the one before asked for, and leaves
 * everything as it was, the last one of as many tokens is run next. No tensor is smaller with more
 * positions before it, so if the last one asks for the same, too, all between would. If it does
 * not, all are run. */

typedef struct rounds {
    uint64_t now;     /* a hash of all blocks and segments */
    uint64_t asked;   /* a hash of what the forward asked for and gave back, in order */
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
    r->asked = (r->asked ^ (e->requested << 3 | e->kind)) * 0x9e3779b97f4a7c15u;
    r->asked ^= r->asked >> 29;
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

typedef struct reading {
    const mt_serve_options *options;
    mt_device *device;
    mt_module *model;
    mt_kv_cache *cache;
    rounds r;
    mti_serve_part part;
    bool repeats; /* forwards that repeat others are left out ... */
    bool differs; /* ... which was wrong: one that should have repeated did not */
    mt_serve_need *out;
} reading;

static bool read_tokens(reading *d, int64_t n)
{
    d->r.at = d->r.until = 0;
    d->r.asked = 0;
    MT_AUTO mt_tensor *tokens = mt_zeros(d->device, MT_I64, MT_SHAPE(d->out->sequences, n));
    MT_AUTO mt_tensor *scores = tokens ? mt_next_logits(d->model, d->cache, tokens) : NULL;
    return scores != NULL;
}

int64_t mti_serve_share(const mt_serve_options *o, int64_t sequences)
{
    return sequences < o->at_once ? o->at_once / sequences : 1;
}

/* The forward before did what the one before it had done, and so will the next ones: no window is
 * still being filled. */
static bool may_jump(const reading *d, int64_t start, bool repeated)
{
    return repeated && d->repeats && start >= d->options->config->window;
}

/* Prompts of all positions but one, then a token. */
static bool generate(reading *d)
{
    const int64_t share = mti_serve_share(d->options, d->out->sequences);
    const int64_t prompt = d->out->positions - 1, whole = prompt / share;
    bool repeated = false;
    int64_t i = d->part == MTI_SERVE_ALL ? 0 : d->part == MTI_SERVE_LAST ? whole - 1 : whole;
    if (i > 0 && !mti_kv_cache_fill(d->cache, i < whole ? i * share : prompt)) return false;
    for (i = i < 0 ? 0 : i; i < whole; i++) {
        const uint64_t before = d->r.now, asked = d->r.asked;
        const bool jumps = i < whole - 1 && may_jump(d, i * share, repeated);
        if (jumps && !mti_kv_cache_fill(d->cache, (i = whole - 1) * share)) return false;
        bool ok = read_tokens(d, share);
        repeated = ok && d->r.asked == asked && d->r.now == before;
        d->differs = jumps && !repeated;
        if (!ok || d->differs) return false;
    }
    d->out->forwards = whole + (prompt > whole * share);
    const int64_t rest = prompt - mt_kv_cache_length(d->cache);
    return (!rest || read_tokens(d, rest)) && read_tokens(d, 1);
}

static bool run(reading *d)
{
    mt_mem_stats stats;
    mt_serve_need *out = d->out;
    int observer = mt_mem_add_observer(d->device, on_event, &d->r);
    mt_module *m = d->model = observer ? make_model(d->device, d->options) : NULL;
    if (m) {
        mt_mem_get_stats(d->device, &stats);
        out->weights = (size_t)stats.requested.current;
    }
    d->cache = m ? mt_kv_cache_new(m, d->options->cache, out->sequences, out->positions) : NULL;
    bool ok = d->cache && watch_layers(&d->r, m, d->options->config) && generate(d);
    out->cache = mt_kv_cache_bytes(d->cache, NULL);
    mt_mem_get_stats(d->device, &stats);
    out->peak = (size_t)stats.allocated.peak;
    out->reserved = (size_t)stats.reserved.peak;
    memcpy(out->by_category, stats.at_peak, sizeof out->by_category);
    mt_kv_cache_free(d->cache);
    mt_module_free(m);
    mt_mem_remove_observer(d->device, observer);
    mti_free(d->r.before), mti_free(d->r.kind);
    return ok;
}

/* Each block of a paged cache is a tensor, some 2 KiB of host memory here: at most about 6 GiB. */
#define MOST_BLOCKS 3000000

bool mti_serve_few_blocks(const mt_serve_options *o, int64_t sequences, size_t capacity)
{
    const mt_model_config *c = o->config;
    const double of_one = (double)((o->positions - 1) / MT_KV_BLOCK + 1);
    const double width = (double)(c->kv_heads * (c->head_dim ? c->head_dim : c->hidden / c->heads));
    const double bytes = MT_KV_BLOCK * width * (double)mt_dtype_size(c->dtype);
    double blocks = 2.0 * (double)c->layers * of_one * (double)sequences;
    if (capacity && (double)capacity / bytes < blocks) blocks = (double)capacity / bytes;
    return o->cache != MT_KV_PAGED || blocks <= MOST_BLOCKS ||
           mti_fail_bool(
               MT_ERR_UNSUPPORTED,
               "%.1f million blocks of a paged cache would take %.0f GiB of host memory here; "
               "give --kv-cache preallocated, which takes as much except for the last block of "
               "each sequence",
               blocks / 1e6, blocks * 2048 / (1 << 30));
}

bool mti_serve_try(const mt_serve_options *o, mti_serve_part part, int64_t sequences,
                   size_t capacity, bool *fits, size_t *requested, mt_serve_need *out)
{
    mt_mem_stats stats;
    bool refused = false;
    *fits = false;
    for (int again = 0; again < 2; again++) {
        *out = (mt_serve_need){.sequences = sequences, .positions = o->positions};
        reading d = {.options = o, .part = part, .repeats = !again, .out = out};
        if (!(d.device = mt_device_open("meta"))) return false;
        mt_mem_set_capacity(d.device, capacity);
        *fits = run(&d);
        mt_mem_get_stats(d.device, &stats);
        refused = !*fits && mt_last_status() == MT_ERR_MEMORY && stats.ooms > 0;
        mt_device_release(d.device);
        if (!d.differs) break;
        mt_clear_error();
    }
    if (requested) *requested = stats.requested.peak;
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

bool mti_serve_complete(const char *who, const mt_serve_options *options, const mt_serve_need *out,
                        mt_model_config *config, mt_serve_options *o)
{
    if (!given(out, who, "the result") || !given(options, who, "the options") ||
        !given(options->config, who, "the config") ||
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
    return (sequences >= 1 && sequences <= MTI_SERVE_MOST) ||
           mti_fail_bool(MT_ERR_ARGUMENT, "%s: %lld sequences; need 1 to %lld", who,
                         (long long)sequences, (long long)MTI_SERVE_MOST);
}

mt_status mt_serve_measure(const mt_serve_options *options, int64_t sequences, size_t capacity,
                           mt_serve_need *out)
{
    mt_model_config config;
    mt_serve_options o;
    bool fits;
    if (!mti_serve_complete("serve_measure", options, out, &config, &o) ||
        !in_range("serve_measure", sequences) || !mti_serve_few_blocks(&o, sequences, capacity))
        return mt_last_status();
    return mti_serve_try(&o, MTI_SERVE_ALL, sequences, capacity, &fits, NULL, out) && fits
               ? MT_OK
               : mt_last_status();
}

/* ---- vLLM ---- */

/* vLLM V1, vllm/engine/arg_utils.py: 1,024 sequences on cards of 70 GiB and more, but not on A100s;
 * vllm/config/cache.py: gpu_memory_utilization is 0.9. Its profile run samples for all of them at
 * once. The temporaries are 9.7 f32 for each logit, as logs of four models say (docs/serve.md). */
mti_vllm_share mti_vllm_share_of(const mt_gpu *gpu, const mt_model_config *c, size_t weights)
{
    const bool large = gpu->memory >= (size_t)70 << 30 && strncmp(gpu->name, "a100", 4) != 0;
    mti_vllm_share share = {.sequences = large ? 1024 : 256};
    share.sampler = (size_t)(9.7 * 4 * (double)share.sequences * (double)c->vocab);
    const double left = 0.9 * (double)gpu->memory - (double)share.sampler - (double)weights;
    share.cache = left > 0 ? (size_t)left : 0;
    return share;
}

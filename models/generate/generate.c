/* generate.c: generation: scores of the next token, a choice among them, repeat. */
#include <math.h>
#include <string.h>
#include "base/philox.h"
#include "memtape/models/generate.h"
#include "memtape/ops.h"
#include "nn/model.h"

/* ---- choosing ---- */

static int64_t likeliest(const float *scores, int64_t v)
{
    int64_t best = 0;
    for (int64_t i = 1; i < v; i++)
        if (scores[i] > scores[best]) best = i;
    return best;
}

/* Restores the heap of n, the least on top, below `at`. */
static void sink(float *heap, int64_t at, int64_t n)
{
    for (int64_t least; (least = 2 * at + 1) < n; at = least) {
        if (least + 1 < n && heap[least + 1] < heap[least]) least++;
        if (heap[at] <= heap[least]) return;
        float held = heap[at];
        heap[at] = heap[least], heap[least] = held;
    }
}

/* The k-th largest score; heap[k] is scratch: the k largest so far. */
static float kth(const float *scores, int64_t v, int64_t k, float *heap)
{
    for (int64_t i = 0; i < k; i++) heap[i] = -INFINITY;
    for (int64_t i = 0; i < v; i++) {
        if (scores[i] <= heap[0]) continue;
        heap[0] = scores[i];
        sink(heap, 0, k);
    }
    return heap[0];
}

/* What choices are made of: those of at least `least`, weighing exp((score - top) / temperature).
 * Weights are computed twice instead of stored. */
typedef struct choices {
    const float *scores;
    int64_t v;
    double top, temperature;
    float least;
} choices;

static double weight_of(const choices *c, float score)
{
    return exp(((double)score - c->top) / c->temperature);
}

static double sum_of(const choices *c)
{
    double sum = 0;
    for (int64_t i = 0; i < c->v; i++)
        if (c->scores[i] >= c->least) sum += weight_of(c, c->scores[i]);
    return sum;
}

/* The least of the likeliest that weigh a share p of all together; heap[v] is scratch: the negated
 * scores, so that the largest is on top. */
static float nucleus(const choices *c, double p, float *heap)
{
    const double enough = p * sum_of(c);
    double weight = 0;
    float least = c->least;
    int64_t n = 0;
    for (int64_t i = 0; i < c->v; i++)
        if (c->scores[i] >= c->least) heap[n++] = -c->scores[i];
    for (int64_t i = n / 2; i-- > 0;) sink(heap, i, n);
    while (n && weight < enough) {
        least = -heap[0];
        weight += weight_of(c, least);
        heap[0] = heap[--n];
        sink(heap, 0, n);
    }
    return least;
}

/* unit: uniform in [0,1); heap[v]: scratch. */
static int64_t choose(const float *scores, int64_t v, const mt_generate_options *options,
                      double unit, float *heap)
{
    int64_t best = likeliest(scores, v);
    if (options->temperature <= 0) return best;
    choices c = {scores, v, scores[best], options->temperature, -INFINITY};
    if (options->top_k > 0 && options->top_k < v) c.least = kth(scores, v, options->top_k, heap);
    if (options->top_p > 0 && options->top_p < 1) c.least = nucleus(&c, options->top_p, heap);
    double remaining = unit * sum_of(&c);
    for (int64_t i = 0; i < v; i++) {
        if (scores[i] < c.least) continue;
        double weight = weight_of(&c, scores[i]);
        remaining -= weight;
        if (remaining < 0 && weight > 0) return i;
    }
    return best; /* by rounding none was reached */
}

/* Makes tokens that were there less likely; seen[v]: scratch. */
static void discourage(float *scores, int64_t v, const int64_t *text, int64_t n, double penalty,
                       bool *seen)
{
    memset(seen, 0, (size_t)v * sizeof *seen);
    for (int64_t i = 0; i < n; i++) {
        float *score = &scores[text[i]];
        if (!seen[text[i]]) *score = (float)(*score < 0 ? *score * penalty : *score / penalty);
        seen[text[i]] = true;
    }
}

/* ---- a run ---- */

typedef struct run {
    mt_module *model;
    mt_device *device;
    const mt_generate_options *options;
    int64_t batch, length, n, vocab;
    const int64_t *lengths; /* [b], of prompts of different lengths; NULL: all are `length` */
    mt_kv_cache **caches;   /* one of all prompts, or one for each of such; NULL: none */
    int64_t n_caches;
    int64_t *text; /* [b, length + n]; the first `done` of each row are known */
    int64_t done;
    int64_t cached; /* of these */
    int64_t *part;  /* input of a forward, [b, length + n] at most */
    int64_t *given; /* [b]: of each of its rows, the tokens of its text */
    float *scores;  /* [b,v] */
    float *scratch; /* [v] */
    bool *seen;     /* [v] */
    int64_t *chosen;
} run;

static bool allocate(run *r, const int64_t *prompt)
{
    size_t b = (size_t)r->batch, t = (size_t)(r->length + r->n), v = (size_t)r->vocab;
    r->text = mti_calloc(b * t, sizeof *r->text);
    r->part = mti_calloc(b * t, sizeof *r->part);
    r->chosen = mti_calloc(b, sizeof *r->chosen);
    r->given = mti_calloc(b, sizeof *r->given);
    r->scores = mti_calloc(b * v, sizeof *r->scores);
    r->scratch = mti_calloc(v, sizeof *r->scratch);
    r->seen = mti_calloc(v, sizeof *r->seen);
    if (!r->text || !r->part || !r->chosen || !r->given || !r->scores || !r->scratch || !r->seen)
        return false;
    for (size_t i = 0; i < b; i++)
        memcpy(r->text + i * t, prompt + i * (size_t)r->length,
               (size_t)r->length * sizeof *r->text);
    r->done = r->length;
    return true;
}

/* A cache for all prompts, or, if their lengths differ, for each. */
static bool make_caches(run *r)
{
    const mt_kv_form form = r->options->cache;
    const int64_t n = r->lengths ? r->batch : 1;
    r->caches = mti_calloc((size_t)n, sizeof(mt_kv_cache *));
    for (bool ok = r->caches != NULL; ok && r->n_caches < n; r->n_caches += ok) {
        const int64_t length = r->lengths ? r->lengths[r->n_caches] : r->length;
        mt_kv_cache *cache =
            mt_kv_cache_new(r->model, form, r->lengths ? 1 : r->batch, length + r->n);
        ok = (r->caches[r->n_caches] = cache) != NULL;
    }
    return r->n_caches == n;
}

static void release(run *r)
{
    for (int64_t i = 0; i < r->n_caches; i++) mt_kv_cache_free(r->caches[i]);
    mti_free((void *)r->caches);
    mti_free(r->text);
    mti_free(r->part);
    mti_free(r->chosen);
    mti_free(r->given);
    mti_free(r->scores);
    mti_free(r->scratch);
    mti_free(r->seen);
}

/* Where text j begins in its row. */
static int64_t begin_of(const run *r, int64_t j)
{
    return r->lengths ? r->length - r->lengths[j] : 0;
}

/* The tokens that are not in a cache. */
static mt_tensor *new_tokens(run *r)
{
    int64_t from = r->cached, t = r->done - from, row = r->length + r->n;
    for (int64_t i = 0; i < r->batch; i++) {
        const int64_t begin = begin_of(r, i);
        memcpy(r->part + i * t, r->text + i * row + from, (size_t)t * sizeof *r->part);
        r->given[i] = r->done - (begin > from ? begin : from);
    }
    return mt_from_data(r->device, MT_I64, MT_SHAPE(r->batch, t), r->part,
                        (size_t)(r->batch * t) * sizeof *r->part);
}

static bool next_scores(run *r)
{
    MT_AUTO mt_tensor *tokens = new_tokens(r);
    MT_AUTO mt_tensor *y = !tokens ? NULL
                           : r->lengths
                               ? mt_next_logits_each(r->model, r->caches, r->given, tokens)
                               : mt_next_logits(r->model, r->caches ? *r->caches : NULL, tokens);
    mt_set(&y, mt_cast(y, MT_F32));
    size_t n = (size_t)(r->batch * r->vocab);
    if (!y || mt_to_host(y, r->scores, n * sizeof *r->scores) != MT_OK) return false;
    if (r->caches) r->cached = r->done;
    for (size_t i = 0; i < n; i++)
        if (!isfinite(r->scores[i]))
            return mti_fail_bool(MT_ERR_STATE, "the model's scores are not finite numbers");
    return true;
}

static bool step(run *r, int64_t i)
{
    if (!next_scores(r)) return false;
    const double penalty = r->options->repetition_penalty;
    for (int64_t j = 0; j < r->batch; j++) {
        int64_t *text = r->text + j * (r->length + r->n);
        float *scores = r->scores + j * r->vocab;
        if (penalty > 0 && penalty != 1)
            discourage(scores, r->vocab, text + begin_of(r, j), r->done - begin_of(r, j), penalty,
                       r->seen);
        uint64_t draw = (uint64_t)j << 40 | (r->options->first_draw + (uint64_t)i);
        double unit = (double)mti_u32_to_unit(mti_philox(r->options->seed, draw).v[0]);
        r->chosen[j] = choose(scores, r->vocab, r->options, unit, r->scratch);
        text[r->done] = r->chosen[j];
    }
    r->done++;
    return true;
}

static bool steps(run *r, mt_tokens_fn *fn, void *user, mt_generate_stats *stats)
{
    double began = mti_now(), first = began;
    bool ok = true, more = true;
    for (int64_t i = 0; ok && more && i < r->n; i++) {
        ok = step(r, i);
        if (i == 0) first = mti_now();
        more = ok && (!fn || fn(user, r->chosen));
    }
    *stats = (mt_generate_stats){
        .tokens = r->done - r->length, .first_s = first - began, .rest_s = mti_now() - first};
    for (int64_t i = 0; i < r->n_caches; i++)
        stats->cache_bytes += mt_kv_cache_bytes(r->caches[i], NULL);
    return ok;
}

/* *apart: whether prompts are of different lengths. */
static bool check_lengths(int64_t batch, int64_t length, const int64_t *lengths, bool *apart)
{
    *apart = false;
    for (int64_t i = 0; lengths && i < batch; i++) {
        if (lengths[i] < 1 || lengths[i] > length)
            return mti_fail_bool(MT_ERR_ARGUMENT,
                                 "generate: prompt %lld has %lld tokens; need 1 to %lld, the "
                                 "tokens of a row",
                                 (long long)i, (long long)lengths[i], (long long)length);
        *apart = *apart || lengths[i] < length;
    }
    return true;
}

static bool check(const mt_model_config *c, int64_t batch, int64_t length, const int64_t *prompt,
                  int64_t n, const mt_generate_options *options)
{
    if (!c)
        return mti_fail_bool(MT_ERR_ARGUMENT, "generate: need a gpt or a llama made by memtape");
    if (!prompt || batch < 1 || length < 1 || n < 0)
        return mti_fail_bool(MT_ERR_ARGUMENT,
                             "generate: %lld prompts of %lld tokens, %lld to follow; need at least "
                             "one token in one prompt",
                             (long long)batch, (long long)length, (long long)n);
    if (length > c->context || n > c->context - length)
        return mti_fail_bool(MT_ERR_ARGUMENT,
                             "generate: %lld tokens after %lld are more than the context, %lld",
                             (long long)n, (long long)length, (long long)c->context);
    if (!(options->temperature >= 0) || isinf(options->temperature) || options->top_k < 0)
        return mti_fail_bool(MT_ERR_ARGUMENT,
                             "generate: temperature %g, top_k %lld; neither may be negative",
                             options->temperature, (long long)options->top_k);
    if (!(options->top_p >= 0 && options->top_p <= 1) || !(options->repetition_penalty >= 0) ||
        isinf(options->repetition_penalty))
        return mti_fail_bool(MT_ERR_ARGUMENT,
                             "generate: top_p %g, repetition_penalty %g; need a share from 0 to 1, "
                             "and a factor that is not negative",
                             options->top_p, options->repetition_penalty);
    for (int64_t i = 0; i < batch * length; i++)
        if (prompt[i] < 0 || prompt[i] >= c->vocab)
            return mti_fail_bool(MT_ERR_ARGUMENT,
                                 "generate: token %lld of the prompts is %lld; the model's "
                                 "vocabulary is %lld",
                                 (long long)i, (long long)prompt[i], (long long)c->vocab);
    return true;
}

mt_status mt_generate(mt_module *model, int64_t batch, int64_t length, const int64_t *prompt,
                      int64_t n, const mt_generate_options *options, mt_tokens_fn *fn, void *user,
                      mt_generate_stats *stats)
{
    static const mt_generate_options plain = {0};
    mt_generate_stats ignored;
    bool apart;
    if (!mti_given(model, "generate", "the model")) return mt_last_status();
    const mt_model_config *c = mt_model_config_of(model);
    if (!options) options = &plain;
    if (!check(c, batch, length, prompt, n, options) ||
        !check_lengths(batch, length, options->lengths, &apart))
        return mt_last_status();
    run r = {.model = model,
             .device = mt_device_of(mt_module_param(mt_module_child(model, "wte"), "weight")),
             .options = options,
             .batch = batch,
             .length = length,
             .lengths = apart ? options->lengths : NULL,
             .n = n,
             .vocab = c->vocab};
    bool training = mt_module_training(model);
    mt_module_set_training(model, false);
    bool ok = allocate(&r, prompt) && (options->no_cache || make_caches(&r));
    ok = ok && steps(&r, fn, user, stats ? stats : &ignored);
    release(&r);
    mt_module_set_training(model, training);
    return ok ? MT_OK : mt_last_status();
}

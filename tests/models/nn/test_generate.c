/* Generation: the KV cache's bytes; the same tokens with and without it. */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "base/base.h"
#include "memtape/models/generate.h"
#include "memtape/ops.h"
#include "mtt.h"
#include "mtt_fixture.h"

/* The simulated GPU computes the same results, but thousands of times slower. */
static bool slow(void) { return strcmp(mt_device_kind(device), "cpu") != 0; }

#define SMALL .hidden = 24, .heads = 4, .layers = 2, .vocab = 61, .context = 40

#define LATENT .kind = MT_MODEL_LLAMA, .kv_rank = 12, .head_dim = 8, .rope_dim = 4, .value_dim = 6

/* gpt and llama; one key and value head per head, per two heads, for all; both forms of attention
 */
static const mt_model_config models[] = {
    {SMALL, .act = MT_ACT_GELU},
    {SMALL, .kv_heads = 2, .attention = MT_ATTENTION_MATH},
    {SMALL, .kv_heads = 1, .norm = MT_NORM_POST, .untied = true, .head_dim = 10},
    {SMALL, .kind = MT_MODEL_LLAMA},
    {SMALL, .kind = MT_MODEL_LLAMA, .kv_heads = 2},
    {SMALL, .kind = MT_MODEL_LLAMA, .kv_heads = 2, .head_dim = 8, .qk_norm = MT_QK_NORM_HEAD},
    {SMALL, .kind = MT_MODEL_LLAMA, .norm = MT_NORM_AFTER, .qk_norm = MT_QK_NORM_WIDTH},
    {SMALL, .kind = MT_MODEL_LLAMA, .kv_heads = 2, .joint_products = true},
    {SMALL, .kind = MT_MODEL_LLAMA, .kv_heads = 2, .attention = MT_ATTENTION_MATH,
     .attention_cap = 5, .logit_cap = 3, .scaled_embedding = true, .local_theta = 50,
     .local_period = 2},
    {SMALL, .kind = MT_MODEL_LLAMA, .kv_heads = 1, .attention = MT_ATTENTION_MATH},
    {SMALL, .kind = MT_MODEL_LLAMA, .kv_heads = 2, .attention = MT_ATTENTION_MATH,
     .ops = {MT_OP_UNFUSED, MT_OP_UNFUSED, MT_OP_FUSED, MT_OP_UNFUSED, MT_PRECISION_F32,
             MT_KV_REPEATED, MT_LOSS_NATIVE}},
    {SMALL, .kind = MT_MODEL_LLAMA, .kv_heads = 2, .window = 5, .local_period = 2},
    {SMALL, .kind = MT_MODEL_LLAMA, .kv_heads = 2, .window = 3, .attention = MT_ATTENTION_MATH},
    {SMALL, .kind = MT_MODEL_LLAMA, .kv_heads = 2, .window = 7, .local_period = 2, .sinks = true,
     .attention = MT_ATTENTION_MATH},
    {SMALL, .kind = MT_MODEL_LLAMA, .kv_heads = 2, .head_dim = 8, .rope_dim = 4,
     .unturned_period = 2},
    {SMALL, .norm = MT_NORM_PARALLEL, .act = MT_ACT_GELU, .untied = true, .rope_theta = 500,
     .joint_products = true, .qkv_by_head = true, .head_dim = 8, .rope_dim = 2},
    {SMALL, LATENT, .rope_order = MT_ROPE_PAIRS},
    {SMALL, LATENT, .q_rank = 10, .rope_order = MT_ROPE_COMPLEX, .attention = MT_ATTENTION_MATH,
     .ops = {.rope = MT_OP_UNFUSED, .kv_groups = MT_KV_REPEATED}},
};
#define N_MODELS (sizeof models / sizeof models[0])

/* The forms that keep every bit of keys and values. */
static const mt_kv_form exact_forms[] = {MT_KV_PREALLOCATED, MT_KV_GROWING, MT_KV_PAGED};
enum { N_EXACT = sizeof exact_forms / sizeof *exact_forms };

static mt_module *model_of(const mt_model_config *c, uint64_t seed)
{
    mt_seed(device, seed);
    mt_module *m = mt_model_new(device, c);
    if (!m) fail_msg("%s", mt_last_error());
    return m;
}

/* Makes the weights larger: those of a new model are so small that all scores are nearly equal. */
static void enlarge(mt_module *m)
{
    const mt_named_tensor *list;
    size_t n;
    mtt_ok(mt_module_params(m, &list, &n));
    bool grad = mt_set_grad_mode(false);
    for (size_t i = 0; i < n; i++) {
        if (mt_rank(list[i].tensor) != 2) continue;
        MT_AUTO mt_tensor *larger = mtt_made(mt_mul_scalar(list[i].tensor, 6));
        mtt_ok(mt_copy(list[i].tensor, larger));
    }
    mt_set_grad_mode(grad);
}

static void draw_prompt(int64_t *ids, size_t n, int64_t vocab, uint64_t seed)
{
    for (size_t i = 0; i < n; i++) ids[i] = (int64_t)mtt_draw(&seed, 0, (double)vocab);
}

typedef struct text {
    int64_t n, at[64], batch, stop_after;
} text;

static bool collect(void *user, const int64_t *tokens)
{
    text *t = user;
    for (int64_t i = 0; i < t->batch; i++) t->at[t->n++] = tokens[i];
    return t->n != t->stop_after;
}

static text generate(mt_module *m, int64_t batch, int64_t length, const int64_t *prompt, int64_t n,
                     mt_generate_options how)
{
    text t = {.batch = batch};
    mt_generate_stats stats;
    mtt_ok(mt_generate(m, batch, length, prompt, n, &how, collect, &t, &stats));
    assert_int_equal(t.n, n * batch);
    assert_int_equal(stats.tokens, n);
    return t;
}

static void the_cache_changes_no_token_greedy_or_drawn(void **state)
{
    (void)state;
    const int64_t n = mtt_short_simulation() ? 9 : 24;
    for (size_t i = 0; i < N_MODELS; i += slow() ? 3 : 1) {
        mt_module *m = model_of(&models[i], 10 + i);
        enlarge(m);
        /* in the short form each model has a fifth of the prompts, and each prompt some models */
        const uint64_t stride = mtt_long() ? 1 : 5, first = slow() ? 0 : i % stride;
        for (uint64_t prompt = first; prompt < (slow() ? 1 : 20); prompt += stride)
            for (int drawn = 0; drawn < 2; drawn++) {
                int64_t ids[8], length = 1 + (int64_t)prompt % 8;
                draw_prompt(ids, 8, 61, prompt);
                mt_generate_options how = {.no_cache = true, .seed = prompt};
                if (drawn) how.temperature = 0.9, how.top_k = prompt % 2 ? 0 : 20;
                text plain = generate(m, 1, length, ids, n, how);
                how.no_cache = false;
                for (size_t form = 0; form < N_EXACT; form++) {
                    how.cache = exact_forms[form];
                    text cached = generate(m, 1, length, ids, n, how);
                    assert_memory_equal(cached.at, plain.at, (size_t)n * sizeof *plain.at);
                }
            }
        mt_module_free(m);
    }
}

/* The scores of the token after the prompt. */
static double *scores_after(mt_module *m, const int64_t *ids, int64_t length)
{
    MT_AUTO mt_tensor *x =
        mtt_made(mt_from_data(device, MT_I64, MT_SHAPE(1, length), ids, (size_t)length * 8));
    MT_AUTO mt_tensor *y = mtt_made(mt_next_logits(m, NULL, x));
    return mtt_doubles(y);
}

/* Draws from many seeds: exactly those of the likeliest come that have a share p together. */
static void top_p_leaves_the_fewest_tokens_of_that_share(void **state)
{
    (void)state;
    if (slow()) skip();
    mt_module *m = model_of(&models[3], 5);
    enlarge(m);
    const int64_t ids[] = {3, 50, 7};
    double *scores = scores_after(m, ids, 3), best = -INFINITY, sum = 0;
    for (int i = 0; i < 61; i++) best = fmax(best, scores[i]);
    const double temperature = 2;
    for (int i = 0; i < 61; i++) sum += exp((scores[i] - best) / temperature);
    for (double p = 0.3; p < 1; p += 0.3) {
        int n_wanted = 0, n_drawn = 0;
        bool drawn[61] = {false};
        for (uint64_t seed = 0; seed < 3000; seed++) {
            const mt_generate_options how = {.temperature = temperature, .top_p = p, .seed = seed};
            drawn[generate(m, 1, 3, ids, 1, how).at[0]] = true;
        }
        for (int i = 0; i < 61; i++) {
            double before = 0; /* of those that are likelier */
            for (int k = 0; k < 61; k++)
                if (scores[k] > scores[i]) before += exp((scores[k] - best) / temperature) / sum;
            const bool wanted = before < p;
            if (drawn[i]) assert_true(wanted);
            n_wanted += wanted, n_drawn += drawn[i];
        }
        assert_true(n_drawn == n_wanted && n_wanted >= 1 && n_wanted < 61);
    }
    free(scores);
    mt_module_free(m);
}

static void a_penalty_divides_scores_of_tokens_that_were_there(void **state)
{
    (void)state;
    if (slow()) skip();
    mt_module *m = model_of(&models[0], 6);
    enlarge(m);
    const int64_t ids[] = {3, 50, 7, 50};
    for (double penalty = 1.1; penalty < 9; penalty *= 2) {
        double *scores = scores_after(m, ids, 4);
        for (int i = 0; i < 3; i++) {
            double *s = &scores[ids[i]];
            *s = *s < 0 ? *s * penalty : *s / penalty;
        }
        int64_t best = 0;
        for (int64_t i = 1; i < 61; i++)
            if (scores[i] > scores[best]) best = i;
        free(scores);
        const mt_generate_options how = {.repetition_penalty = penalty};
        assert_int_equal(generate(m, 1, 4, ids, 1, how).at[0], best);
    }
    mt_module_free(m);
}

static void a_batch_gives_each_prompt_the_text_that_it_gets_alone(void **state)
{
    (void)state;
    for (size_t i = 0; i < N_MODELS; i += slow() ? 4 : 1) {
        mt_module *m = model_of(&models[i], 30 + i);
        enlarge(m);
        int64_t ids[3 * 5];
        draw_prompt(ids, 15, 61, 9);
        for (int cached = 0; cached < 3; cached++) {
            mt_generate_options how = {.no_cache = !cached};
            if (cached == 2) how.cache = MT_KV_PAGED;
            text all = generate(m, 3, 5, ids, 12, how);
            for (int64_t row = 0; row < 3; row++) {
                text one = generate(m, 1, 5, ids + 5 * row, 12, how);
                for (int64_t j = 0; j < 12; j++) assert_int_equal(all.at[3 * j + row], one.at[j]);
            }
        }
        mt_module_free(m);
    }
}

static mt_tensor *tokens_of(int64_t batch, int64_t n, const int64_t *ids)
{
    return mtt_made(
        mt_from_data(device, MT_I64, MT_SHAPE(batch, n), ids, (size_t)(batch * n) * sizeof *ids));
}

/* Largest difference of two [b,v], relative to the largest score. */
static double difference(mt_tensor *a, mt_tensor *b)
{
    double *x = mtt_doubles(a), *y = mtt_doubles(b), most = 0, scale = 0;
    for (int64_t i = 0; i < mt_numel(a); i++) {
        most = fmax(most, fabs(x[i] - y[i]));
        scale = fmax(scale, fabs(y[i]));
    }
    free(x);
    free(y);
    return most / scale;
}

/* Feeds 12 tokens in parts of these sizes; returns how far the scores are from those without a
 * cache. */
static double error_of(const mt_model_config *c, mt_kv_form form, const int64_t *parts)
{
    mt_module *m = model_of(c, 5);
    enlarge(m);
    int64_t ids[12];
    draw_prompt(ids, 12, 61, 3);
    MT_AUTO mt_tensor *all = tokens_of(1, 12, ids);
    MT_AUTO mt_tensor *plain = mtt_made(mt_next_logits(m, NULL, all));
    mt_kv_cache *cache = mt_kv_cache_new(m, form, 1, 12);
    assert_non_null(cache);
    MT_AUTO mt_tensor *y = NULL;
    for (int64_t at = 0; at < 12; at += *parts++) {
        MT_AUTO mt_tensor *part = tokens_of(1, *parts, ids + at);
        mtt_ok(mt_set(&y, mt_next_logits(m, cache, part)));
    }
    assert_int_equal(mt_kv_cache_length(cache), 12);
    double error = difference(y, plain);
    mt_kv_cache_free(cache);
    mt_module_free(m);
    return error;
}

static void feeding_tokens_in_any_parts_gives_the_scores_of_all_at_once(void **state)
{
    (void)state;
    static const int64_t parts[][13] = {
        {12}, {11, 1}, {1, 11}, {5, 4, 3}, {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1}};
    for (size_t i = 0; i < N_MODELS; i += slow() ? 4 : 1)
        for (size_t p = slow() ? 3 : 0; p < sizeof parts / sizeof parts[0]; p++) {
            mt_model_config wide = models[i];
            wide.dtype = MT_F64;
            for (size_t form = 0; form < N_EXACT; form++) {
                mt_kv_form f = exact_forms[form];
                assert_true(error_of(&wide, f, parts[p]) <= (p ? 1e-13 : 0));
                assert_true(error_of(&models[i], f, parts[p]) <= (p ? 1e-5 : 0));
            }
            double error = error_of(&models[i], MT_KV_8BIT, parts[p]);
            assert_true(error > 0 && error < 0.03);
        }
}

/* ---- bytes ---- */

static void the_cache_has_the_bytes_of_the_formula(void **state)
{
    (void)state;
    const struct {
        int64_t b, s, n;
        mt_dtype dtype;
    } cases[] = {{1, 5, 7, MT_F32}, {3, 4, 6, MT_BF16}, {2, 1, 1, MT_F16}, {1, 30, 10, MT_F64}};
    for (size_t i = 0; i < N_MODELS; i += slow() ? 5 : 1)
        for (size_t j = slow() ? 2 : 0; j < sizeof cases / sizeof cases[0]; j++)
            for (int form = 0; form < MT_KV_FORM_COUNT; form++) {
                mt_model_config c = models[i], r;
                c.dtype = cases[j].dtype;
                mtt_ok(mt_model_config_resolve(&c, &r));
                int64_t b = cases[j].b, s = cases[j].s, n = cases[j].n;
                size_t e = mt_dtype_size(c.dtype), scales;
                int64_t blocks = 0, t = 0; /* of all layers */
                for (int64_t l = 0; l < r.layers; l++) {
                    bool local = r.window && (!r.local_period || (l + 1) % r.local_period);
                    int64_t first = local && s + n > r.window ? s + n - r.window : 0;
                    int64_t of = (s + n - 1) / MT_KV_BLOCK - first / MT_KV_BLOCK + 1;
                    blocks += of, t += form == MT_KV_PAGED ? of * MT_KV_BLOCK : s + n - first;
                }
                size_t vectors = (size_t)(2 * b * t * r.kv_heads);
                size_t values = vectors * (size_t)r.head_dim;
                if (r.kv_rank) { /* one latent, and one turned part of keys */
                    vectors = (size_t)(2 * b * t);
                    values = vectors / 2 * (size_t)(r.kv_rank + r.rope_dim);
                }
                mt_module *m = model_of(&c, 1);
                mt_kv_cache *cache = mt_kv_cache_new(m, (mt_kv_form)form, b, s + n);
                int64_t ids[40] = {0};
                MT_AUTO mt_tensor *y = NULL;
                MT_AUTO mt_tensor *prompt = tokens_of(b, s, ids);
                MT_AUTO mt_tensor *one = tokens_of(b, 1, ids);
                mtt_ok(mt_set(&y, mt_next_logits(m, cache, prompt)));
                for (int64_t k = 0; k < n; k++) mtt_ok(mt_set(&y, mt_next_logits(m, cache, one)));
                size_t bytes = mt_kv_cache_bytes(cache, &scales);
                if (form == MT_KV_8BIT) {
                    assert_int_equal(bytes, values + vectors * 4);
                    assert_int_equal(scales, vectors * 4);
                } else {
                    assert_int_equal(bytes, values * e);
                    assert_int_equal(scales, 0);
                }
                assert_int_equal(bytes, mt_kv_bytes(&c, (mt_kv_form)form, b, s + n));
                mt_mem_stats stats;
                mt_mem_get_stats(device, &stats);
                assert_true(stats.by_category[MT_CACHE] >= bytes);
                size_t storages = (size_t)r.layers * (form == MT_KV_8BIT ? 4 : 2);
                if (form == MT_KV_PAGED) storages = (size_t)(2 * b * blocks);
                assert_true(stats.by_category[MT_CACHE] < bytes + storages * 512);
                mt_kv_cache_free(cache);
                mt_mem_get_stats(device, &stats);
                assert_int_equal(stats.by_category[MT_CACHE], 0);
                mt_module_free(m);
            }
}

/* One token that fails costs a window nothing that is seen; of several, it may. */
static void a_failed_step_leaves_windows_as_they_were_or_says_so(void **state)
{
    (void)state;
    const mt_model_config c = {SMALL, .kind = MT_MODEL_LLAMA, .window = 5, .local_period = 2};
    int64_t ids[12];
    draw_prompt(ids, 12, 61, 7);
    for (int form = 0; form < (slow() ? 1 : MT_KV_FORM_COUNT); form++)
        for (int64_t t = 1; t < 3; t++) {
            mt_module *m = model_of(&c, 2);
            mt_kv_cache *cache = mt_kv_cache_new(m, (mt_kv_form)form, 1, 0);
            MT_AUTO mt_tensor *first = tokens_of(1, 9, ids), *next = tokens_of(1, t, ids + 9);
            MT_AUTO mt_tensor *y = mtt_made(mt_next_logits(m, cache, first));
            mtt_ok(mt_set(&y, mt_next_logits(m, cache, next)));
            mtt_ok(mt_kv_cache_rewind(cache, 0));
            mt_release(mtt_made(mt_next_logits(m, cache, first)));
            MT_AUTO mt_tensor *z = NULL;
            for (uint64_t nth = 1; !z; nth = mtt_next_refusal(nth)) {
                mti_fail_nth_alloc(nth);
                z = mt_next_logits(m, cache, next);
                mti_fail_nth_alloc(0);
                if (z || t == 1) continue;
                assert_null(mt_next_logits(m, cache, next));
                mtt_failed(MT_ERR_STATE, "rewind to 0");
                mtt_ok(mt_kv_cache_rewind(cache, 0));
                mt_release(mtt_made(mt_next_logits(m, cache, first)));
            }
            assert_true(mtt_same_bits(y, z));
            mt_kv_cache_free(cache);
            mt_module_free(m);
        }
}

/* ---- behaviour ---- */

static void nothing_is_recorded_and_modes_are_restored(void **state)
{
    (void)state;
    mt_model_config c = models[0];
    c.dropout = 0.5;
    mt_module *m = model_of(&c, 2);
    int64_t ids[] = {1, 2, 3};
    mt_ledger *ledger = mt_ledger_new(device);
    mtt_ok(mt_ledger_begin(ledger));
    text a = generate(m, 1, 3, ids, 6, (mt_generate_options){.temperature = 1});
    mtt_ok(mt_ledger_end(ledger));
    assert_int_equal(mt_ledger_count(ledger), 0);
    mt_ledger_free(ledger);
    assert_true(mt_grad_mode() && mt_module_training(m));
    text b = generate(m, 1, 3, ids, 6, (mt_generate_options){.temperature = 1});
    assert_memory_equal(a.at, b.at, 6 * sizeof *a.at); /* dropout was off */
    /* the cache is detached from the model: a plain forward starts at position 0 and records */
    MT_AUTO mt_tensor *x = tokens_of(1, 3, ids);
    MT_AUTO mt_tensor *y = mtt_made(mt_forward(m, x));
    assert_true(mt_requires_grad(y));
    assert_int_equal(mt_shape(y)[1], 3);
    mt_module_free(m);
}

static void a_callback_may_stop_and_the_next_call_continues_the_draws(void **state)
{
    (void)state;
    mt_module *m = model_of(&models[3], 2);
    enlarge(m);
    int64_t ids[16] = {1, 2, 3};
    mt_generate_options how = {.temperature = 1, .seed = 5};
    text whole = generate(m, 1, 3, ids, 9, how), t = {.batch = 1, .stop_after = 4};
    mt_generate_stats stats;
    mtt_ok(mt_generate(m, 1, 3, ids, 9, &how, collect, &t, &stats));
    assert_int_equal(t.n, 4);
    assert_int_equal(stats.tokens, 4);
    memcpy(ids + 3, t.at, 4 * sizeof *ids);
    how.first_draw = 4;
    text rest = generate(m, 1, 7, ids, 5, how);
    assert_memory_equal(rest.at, whole.at + 4, 5 * sizeof *ids);
    mt_module_free(m);
}

static void a_rewound_cache_continues_from_that_position(void **state)
{
    (void)state;
    for (int form = 0; form < MT_KV_FORM_COUNT; form++) {
        mt_module *m = model_of(&models[4], 2);
        mt_kv_cache *cache = mt_kv_cache_new(m, (mt_kv_form)form, 1, 0);
        int64_t ids[] = {1, 2, 3, 4, 5, 6};
        MT_AUTO mt_tensor *first = tokens_of(1, 3, ids);
        MT_AUTO mt_tensor *next = tokens_of(1, 1, ids + 3);
        MT_AUTO mt_tensor *other = tokens_of(1, 2, ids + 4);
        MT_AUTO mt_tensor *y = mtt_made(mt_next_logits(m, cache, first));
        mtt_ok(mt_set(&y, mt_next_logits(m, cache, next)));
        MT_AUTO mt_tensor *z = mtt_made(mt_next_logits(m, cache, other));
        mtt_ok(mt_kv_cache_rewind(cache, 3));
        assert_int_equal(mt_kv_cache_length(cache), 3);
        if (form == MT_KV_GROWING)
            assert_int_equal(mt_kv_cache_bytes(cache, NULL),
                             mt_kv_bytes(&models[4], MT_KV_GROWING, 1, 3));
        mtt_ok(mt_set(&z, mt_next_logits(m, cache, next)));
        assert_true(mtt_same_bits(y, z));
        assert_int_equal(mt_kv_cache_rewind(cache, 5), MT_ERR_ARGUMENT);
        mtt_failed(MT_ERR_ARGUMENT, "rewind to 5", "holds 4");
        mt_kv_cache_free(cache);
        mt_module_free(m);
    }
}

/* What windows have dropped cannot come back: nothing before the last position but the beginning.
 */
static void a_cache_that_dropped_positions_rewinds_to_what_it_has(void **state)
{
    (void)state;
    int64_t ids[12];
    draw_prompt(ids, 12, 61, 7);
    for (int form = 0; form < MT_KV_FORM_COUNT; form++) {
        mt_model_config c = {SMALL, .kind = MT_MODEL_LLAMA, .window = 5, .local_period = 2};
        mt_module *m = model_of(&c, 2);
        mt_kv_cache *cache = mt_kv_cache_new(m, (mt_kv_form)form, 1, 0);
        MT_AUTO mt_tensor *first = tokens_of(1, 9, ids), *next = tokens_of(1, 1, ids + 9);
        MT_AUTO mt_tensor *y = mtt_made(mt_next_logits(m, cache, first));
        MT_AUTO mt_tensor *z = mtt_made(mt_next_logits(m, cache, next));
        mtt_ok(mt_kv_cache_rewind(cache, 9));
        MT_AUTO mt_tensor *again = mtt_made(mt_next_logits(m, cache, next));
        assert_true(mtt_same_bits(z, again));
        assert_int_equal(mt_kv_cache_rewind(cache, 8), MT_ERR_ARGUMENT);
        mtt_failed(MT_ERR_ARGUMENT, "rewind to 8", "window of 5", "0, 9 or 10");
        mtt_ok(mt_kv_cache_rewind(cache, 0));
        mtt_ok(mt_set(&again, mt_next_logits(m, cache, first)));
        assert_true(mtt_same_bits(y, again));
        mt_kv_cache_free(cache);
        mt_module_free(m);
    }
}

static void arguments_that_do_not_fit_are_refused_first(void **state)
{
    (void)state;
    mt_module *m = model_of(&models[0], 2), *llama = model_of(&models[3], 2);
    int64_t ids[40] = {0};
    text none = {.batch = 1};
    assert_int_equal(mt_generate(m, 1, 30, ids, 11, NULL, collect, &none, NULL), MT_ERR_ARGUMENT);
    mtt_failed(MT_ERR_ARGUMENT, "11 tokens after 30", "the context, 40");
    assert_int_equal(mt_generate(m, 1, 0, ids, 1, NULL, collect, &none, NULL), MT_ERR_ARGUMENT);
    mtt_failed(MT_ERR_ARGUMENT, "1 prompts of 0 tokens");
    mt_generate(m, 1, 1, ids, 1, &(mt_generate_options){.temperature = NAN}, collect, &none, NULL);
    mtt_failed(MT_ERR_ARGUMENT, "temperature nan");
    mt_generate(m, 1, 1, ids, 1, &(mt_generate_options){.top_k = -1}, collect, &none, NULL);
    mtt_failed(MT_ERR_ARGUMENT, "top_k -1");
    mt_generate(m, 1, 1, ids, 1, &(mt_generate_options){.top_p = 1.5}, collect, &none, NULL);
    mtt_failed(MT_ERR_ARGUMENT, "top_p 1.5");
    mt_generate(m, 1, 1, ids, 1, &(mt_generate_options){.repetition_penalty = -1}, collect, &none,
                NULL);
    mtt_failed(MT_ERR_ARGUMENT, "repetition_penalty -1");
    mt_generate(m, 1, 2, (const int64_t[]){1, 61}, 1, NULL, collect, &none, NULL);
    mtt_failed(MT_ERR_ARGUMENT, "token 1 of the prompts is 61", "vocabulary is 61");
    assert_int_equal(none.n, 0);
    assert_null(mt_kv_cache_new(m, MT_KV_GROWING, 1, 41));
    mtt_failed(MT_ERR_ARGUMENT, "41 positions", "context of 40");
    assert_null(mt_kv_cache_new(m, MT_KV_FORM_COUNT, 1, 4));
    mtt_failed(MT_ERR_ARGUMENT, "form 4");
    assert_null(mt_kv_cache_new(mt_module_child(m, "wte"), MT_KV_GROWING, 1, 4));
    mtt_failed(MT_ERR_ARGUMENT, "gpt or a llama");

    mt_kv_cache *cache = mt_kv_cache_new(m, MT_KV_PREALLOCATED, 1, 8);
    MT_AUTO mt_tensor *nine = tokens_of(1, 9, ids);
    MT_AUTO mt_tensor *two = tokens_of(2, 1, ids);
    MT_AUTO mt_tensor *empty = tokens_of(1, 0, ids);
    assert_null(mt_next_logits(m, cache, nine));
    mtt_failed(MT_ERR_ARGUMENT, "0 positions are held and 9 follow", "room for 8");
    assert_null(mt_next_logits(m, cache, two));
    mtt_failed(MT_ERR_ARGUMENT, "2 sequences", "made for 1");
    assert_null(mt_next_logits(m, cache, empty));
    mtt_failed(MT_ERR_ARGUMENT, "no tokens");
    MT_AUTO mt_tensor *one = tokens_of(1, 1, ids);
    assert_null(mt_next_logits(llama, cache, one));
    mtt_failed(MT_ERR_ARGUMENT, "another model");
    assert_int_equal(mt_kv_cache_length(cache), 0);
    mt_kv_cache_free(cache);

    mt_module *bert = model_of(&(mt_model_config){.kind = MT_MODEL_BERT, SMALL}, 1);
    assert_null(mt_kv_cache_new(bert, MT_KV_PREALLOCATED, 1, 8));
    mtt_failed(MT_ERR_ARGUMENT, "bert", "gpt or a llama");
    assert_null(mt_next_logits(bert, NULL, one));
    mtt_failed(MT_ERR_ARGUMENT, "bert");
    static const char *const forms[] = {"preallocated", "growing", "8bit", "paged"};
    for (int i = 0; i < 4; i++) assert_string_equal(mt_kv_form_name((mt_kv_form)i), forms[i]);
    mt_module_free(bert);
    mt_module_free(llama);
    mt_module_free(m);
}

static void scores_that_are_nan_stop_generation(void **state)
{
    (void)state;
    mt_module *m = model_of(&models[0], 2);
    mtt_ok(mt_fill(mt_module_param(mt_module_child(m, "ln_f"), "weight"), NAN));
    int64_t ids[] = {0};
    assert_int_equal(mt_generate(m, 1, 1, ids, 4, NULL, NULL, NULL, NULL), MT_ERR_STATE);
    mtt_failed(MT_ERR_STATE, "not finite");
    mt_module_free(m);
}

/* The n-th request fails, for every n (for some in the short form): it is reported, everything is
 * freed, and the model is unchanged. */
static void failing_memory_is_reported_and_leaves_nothing(void **state)
{
    (void)state;
    if (slow()) skip();
    for (int form = -1; form < MT_KV_FORM_COUNT; form++) {
        mt_module *m = model_of(&models[4], 2);
        int64_t ids[] = {1, 2, 3};
        const mt_generate_options how = {.no_cache = form < 0,
                                         .cache = form < 0 ? MT_KV_PREALLOCATED : (mt_kv_form)form};
        text good = generate(m, 1, 3, ids, 4, how);
        mt_mem_stats before, after;
        mt_mem_empty_cache(device);
        mt_mem_get_stats(device, &before);
        bool reached = true;
        for (uint64_t n = 1; reached; n = mtt_next_refusal(n)) {
            text t = {.batch = 1};
            mti_fail_nth_alloc(n);
            mt_status status = mt_generate(m, 1, 3, ids, 4, &how, collect, &t, NULL);
            reached = mti_alloc_count() >= n;
            mti_fail_nth_alloc(0);
            if (status == MT_OK) { /* the pool asked again for a refused segment */
                assert_memory_equal(t.at, good.at, 4 * sizeof *t.at);
                assert_int_equal(mt_last_status(), MT_OK);
            } else {
                assert_int_equal(status, MT_ERR_MEMORY);
                mtt_failed(MT_ERR_MEMORY, "");
            }
            mt_mem_empty_cache(device);
            mt_mem_get_stats(device, &after);
            assert_int_equal(after.allocated.current, before.allocated.current);
        }
        text again = generate(m, 1, 3, ids, 4, how);
        assert_memory_equal(again.at, good.at, 4 * sizeof *good.at);
        mt_module_free(m);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        mtt_test(the_cache_changes_no_token_greedy_or_drawn),
        mtt_test(top_p_leaves_the_fewest_tokens_of_that_share),
        mtt_test(a_penalty_divides_scores_of_tokens_that_were_there),
        mtt_test(a_batch_gives_each_prompt_the_text_that_it_gets_alone),
        mtt_test(feeding_tokens_in_any_parts_gives_the_scores_of_all_at_once),
        mtt_test(the_cache_has_the_bytes_of_the_formula),
        mtt_test(a_failed_step_leaves_windows_as_they_were_or_says_so),
        mtt_test(nothing_is_recorded_and_modes_are_restored),
        mtt_test(a_callback_may_stop_and_the_next_call_continues_the_draws),
        mtt_test(a_rewound_cache_continues_from_that_position),
        mtt_test(a_cache_that_dropped_positions_rewinds_to_what_it_has),
        mtt_test(arguments_that_do_not_fit_are_refused_first),
        mtt_test(scores_that_are_nan_stop_generation),
        mtt_test(failing_memory_is_reported_and_leaves_nothing),
    };
    return cmocka_run_group_tests(tests, mtt_open_device, mtt_close_device);
}

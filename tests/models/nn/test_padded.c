/* Texts of different lengths side by side, padded on the left: each has the scores and the tokens
 * that it has alone, whatever its padding is. */
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

#define SMALL  .hidden = 24, .heads = 4, .layers = 2, .vocab = 61, .context = 40
#define LATENT .kind = MT_MODEL_LLAMA, .kv_rank = 12, .head_dim = 8, .rope_dim = 4, .value_dim = 6

/* Learned and rotary positions, windows that are shorter than the padding, tables of angles, sinks,
 * latents, experts. */
static const mt_model_config models[] = {
    {SMALL, .act = MT_ACT_GELU},
    {SMALL, .kind = MT_MODEL_LLAMA, .kv_heads = 2},
    {SMALL, .kind = MT_MODEL_LLAMA, .kv_heads = 2, .window = 5, .local_period = 2},
    {SMALL, .kind = MT_MODEL_LLAMA, .kv_heads = 2, .window = 7, .local_period = 2, .sinks = true,
     .attention = MT_ATTENTION_MATH},
    {SMALL, .kind = MT_MODEL_LLAMA, .kv_heads = 2, .attention = MT_ATTENTION_MATH,
     .ops = {MT_OP_UNFUSED, MT_OP_UNFUSED, MT_OP_FUSED, MT_OP_UNFUSED, MT_PRECISION_F32,
             MT_KV_REPEATED, MT_LOSS_NATIVE}},
    {SMALL, LATENT, .q_rank = 10, .rope_order = MT_ROPE_COMPLEX, .attention = MT_ATTENTION_MATH,
     .ops = {.rope = MT_OP_UNFUSED, .kv_groups = MT_KV_REPEATED}},
    {SMALL, .kind = MT_MODEL_LLAMA, .kv_heads = 2, .experts = 4, .experts_per_token = 2},
};
#define N_MODELS (sizeof models / sizeof models[0])

enum { TEXTS = 3, WIDTH = 11, NEW = 8, VOCAB = 61 };
static const int64_t lengths[TEXTS] = {4, WIDTH, 1};

/* f64, in which no rounding hides a wrong position or a token of padding that is seen. */
static mt_module *model_of(size_t i)
{
    mt_model_config c = models[i];
    const mt_named_tensor *list;
    size_t n;
    c.dtype = MT_F64;
    mt_seed(device, 30 + i);
    mt_module *m = mt_model_new(device, &c);
    if (!m) fail_msg("%s", mt_last_error());
    mtt_ok(mt_module_params(m, &list, &n));
    bool grad = mt_set_grad_mode(false);
    for (size_t k = 0; k < n; k++) { /* those of a new model make scores that are nearly equal */
        MT_AUTO mt_tensor *larger =
            mtt_made(mt_mul_scalar(list[k].tensor, mt_rank(list[k].tensor) >= 2 ? 6 : 1));
        mtt_ok(mt_copy(list[k].tensor, larger));
    }
    mt_set_grad_mode(grad);
    mt_module_set_training(m, false);
    return m;
}

/* ids [TEXTS,WIDTH]: the texts are always the same, what stands before them is `padding`'s. */
static void make_rows(int64_t *ids, uint64_t padding)
{
    uint64_t seed = 9;
    for (int i = 0; i < TEXTS * WIDTH; i++) ids[i] = (int64_t)mtt_draw(&seed, 0, VOCAB);
    for (int i = 0; i < TEXTS; i++)
        for (int64_t k = 0; k < WIDTH - lengths[i]; k++)
            ids[i * WIDTH + k] = (int64_t)mtt_draw(&padding, 0, VOCAB);
}

static mt_tensor *tokens_of(int64_t batch, int64_t n, const int64_t *ids)
{
    return mtt_made(
        mt_from_data(device, MT_I64, MT_SHAPE(batch, n), ids, (size_t)(batch * n) * sizeof *ids));
}

/* The largest difference of n numbers, as a share of the largest. */
static double far_from(const double *x, const double *y, int64_t n)
{
    double most = 0, scale = 0;
    for (int64_t i = 0; i < n; i++)
        most = fmax(most, fabs(x[i] - y[i])), scale = fmax(scale, fabs(y[i]));
    return most / scale;
}

static void scores_of_each_text_are_those_that_it_has_alone(void **state)
{
    (void)state;
    for (size_t i = 0; i < N_MODELS; i += slow() ? 3 : 1) {
        mt_module *m = model_of(i);
        int64_t ids[TEXTS * WIDTH];
        for (uint64_t padding = 1; padding < 3; padding++) {
            make_rows(ids, padding);
            MT_AUTO mt_tensor *x = tokens_of(TEXTS, WIDTH, ids);
            MT_AUTO mt_tensor *y = mtt_made(mt_logits_each(m, lengths, x));
            MT_AUTO mt_tensor *last = mtt_made(mt_next_logits_each(m, NULL, lengths, x));
            assert_false(mt_requires_grad(y));
            double *all = mtt_doubles(y), *after = mtt_doubles(last);
            for (int64_t k = 0; k < TEXTS; k++) {
                const int64_t n = lengths[k], at = (k + 1) * WIDTH - n;
                MT_AUTO mt_tensor *one = tokens_of(1, n, ids + at);
                MT_AUTO mt_tensor *alone = mtt_made(mt_forward(m, one));
                double *wanted = mtt_doubles(alone);
                assert_true(far_from(all + at * VOCAB, wanted, n * VOCAB) < 1e-13);
                assert_true(far_from(after + k * VOCAB, wanted + (n - 1) * VOCAB, VOCAB) < 1e-13);
                free(wanted);
            }
            free(all), free(after);
        }
        /* the model is as it was: a plain forward of as many tokens as the longest has */
        MT_AUTO mt_tensor *x = tokens_of(TEXTS, WIDTH, ids);
        MT_AUTO mt_tensor *plain = mtt_made(mt_forward(m, x));
        assert_true(mt_requires_grad(plain));
        mt_module_free(m);
    }
}

typedef struct text {
    int64_t n, at[TEXTS * NEW], batch;
} text;

static bool collect(void *user, const int64_t *tokens)
{
    text *t = user;
    for (int64_t i = 0; i < t->batch; i++) t->at[t->n++] = tokens[i];
    return true;
}

static text generate(mt_module *m, int64_t batch, int64_t length, const int64_t *prompt,
                     mt_generate_options how, mt_generate_stats *stats)
{
    text t = {.batch = batch};
    mtt_ok(mt_generate(m, batch, length, prompt, NEW, &how, collect, &t, stats));
    assert_int_equal(t.n, NEW * batch);
    return t;
}

static void tokens_after_each_prompt_are_those_that_follow_it_alone(void **state)
{
    (void)state;
    for (size_t i = 0; i < N_MODELS; i += slow() ? 4 : 1) {
        mt_module *m = model_of(i);
        int64_t ids[TEXTS * WIDTH];
        make_rows(ids, i);
        for (int form = -1; form < MT_KV_FORM_COUNT; form++) {
            mt_generate_options how = {.no_cache = form < 0, .lengths = lengths};
            if (form >= 0) how.cache = (mt_kv_form)form;
            if (form == MT_KV_GROWING)
                how.repetition_penalty = 1.5; /* of the text, not of its padding */
            mt_generate_stats stats, of_one;
            text all = generate(m, TEXTS, WIDTH, ids, how, &stats);
            size_t bytes = 0;
            how.lengths = NULL;
            for (int64_t k = 0; k < TEXTS; k++) {
                text one =
                    generate(m, 1, lengths[k], ids + (k + 1) * WIDTH - lengths[k], how, &of_one);
                for (int64_t j = 0; j < NEW; j++)
                    assert_int_equal(all.at[TEXTS * j + k], one.at[j]);
                bytes += of_one.cache_bytes;
            }
            assert_int_equal(stats.cache_bytes, bytes); /* padding takes none */
        }
        mt_module_free(m);
    }
}

/* Texts come and go between steps: a cache belongs to a text, not to a place in a batch. */
static void a_text_may_join_and_another_leave_between_steps(void **state)
{
    (void)state;
    mt_module *m = model_of(1);
    int64_t ids[] = {5, 6, 7, 8, 9, 10};
    mt_kv_cache *first = mt_kv_cache_new(m, MT_KV_PAGED, 1, 20),
                *second = mt_kv_cache_new(m, MT_KV_GROWING, 1, 20);
    MT_AUTO mt_tensor *begin = tokens_of(1, 3, ids);
    MT_AUTO mt_tensor *y = mtt_made(mt_next_logits(m, first, begin));
    const int64_t next[] = {0, 8, 9, 10}; /* one token after the first three; two of another text */
    MT_AUTO mt_tensor *both = tokens_of(2, 2, next);
    mtt_ok(mt_set(&y, mt_next_logits_each(m, (mt_kv_cache *[]){first, second},
                                          (const int64_t[]){1, 2}, both)));
    assert_int_equal(mt_kv_cache_length(first), 4);
    assert_int_equal(mt_kv_cache_length(second), 2);
    MT_AUTO mt_tensor *four = tokens_of(1, 4, ids), *two = tokens_of(1, 2, next + 2);
    MT_AUTO mt_tensor *of_four = mtt_made(mt_next_logits(m, NULL, four)),
                      *of_two = mtt_made(mt_next_logits(m, NULL, two));
    double *have = mtt_doubles(y), *a = mtt_doubles(of_four), *b = mtt_doubles(of_two);
    assert_true(far_from(have, a, VOCAB) < 1e-13 && far_from(have + VOCAB, b, VOCAB) < 1e-13);
    free(have), free(a), free(b);
    mt_kv_cache_free(first), mt_kv_cache_free(second);
    mt_module_free(m);
}

static void what_does_not_fit_is_refused_first(void **state)
{
    (void)state;
    mt_module *m = model_of(0);
    int64_t ids[TEXTS * WIDTH];
    make_rows(ids, 1);
    MT_AUTO mt_tensor *x = tokens_of(TEXTS, WIDTH, ids);
    const int64_t none[] = {1, 0, 1}, many[] = {1, 2, WIDTH + 1};
    assert_null(mt_logits_each(m, NULL, x));
    mtt_failed(MT_ERR_ARGUMENT, "logits_each", "lengths are NULL");
    assert_null(mt_logits_each(m, none, x));
    mtt_failed(MT_ERR_ARGUMENT, "text 1 has 0 tokens", "1 to 11");
    assert_null(mt_next_logits_each(m, NULL, many, x));
    mtt_failed(MT_ERR_ARGUMENT, "text 2 has 12 tokens");
    mt_kv_cache *cache = mt_kv_cache_new(m, MT_KV_PREALLOCATED, 1, 6),
                *wide = mt_kv_cache_new(m, MT_KV_PREALLOCATED, 2, 20);
    assert_null(mt_next_logits_each(m, (mt_kv_cache *[]){cache, cache, cache},
                                    (const int64_t[]){1, 1, 1}, x));
    mtt_failed(MT_ERR_ARGUMENT, "texts 0 and 1 have one cache");
    assert_null(mt_next_logits_each(m, (mt_kv_cache *[]){wide, cache, NULL},
                                    (const int64_t[]){1, 1, 1}, x));
    mtt_failed(MT_ERR_ARGUMENT, "1 sequences", "made for 2");
    MT_AUTO mt_tensor *one = tokens_of(1, WIDTH, ids);
    assert_null(mt_next_logits_each(m, &cache, (const int64_t[]){7}, one));
    mtt_failed(MT_ERR_ARGUMENT, "7 follow", "room for 6");
    assert_null(mt_next_logits_each(m, (mt_kv_cache *[]){NULL}, (const int64_t[]){1}, one));
    mtt_failed(MT_ERR_ARGUMENT, "a cache is NULL");
    assert_int_equal(mt_kv_cache_length(cache), 0);
    mt_generate_options how = {.lengths = none};
    assert_int_equal(mt_generate(m, TEXTS, WIDTH, ids, 1, &how, NULL, NULL, NULL), MT_ERR_ARGUMENT);
    mtt_failed(MT_ERR_ARGUMENT, "prompt 1 has 0 tokens", "1 to 11");
    mt_kv_cache_free(cache), mt_kv_cache_free(wide);
    mt_module_free(m);
}

static void failing_memory_is_reported_and_leaves_nothing(void **state)
{
    (void)state;
    if (slow()) skip();
    mt_module *m = model_of(0);
    int64_t ids[TEXTS * WIDTH];
    make_rows(ids, 1);
    for (int form = -1; form < MT_KV_FORM_COUNT; form++) {
        mt_generate_options how = {.no_cache = form < 0, .lengths = lengths};
        if (form >= 0) how.cache = (mt_kv_form)form;
        text good = generate(m, TEXTS, WIDTH, ids, how, NULL);
        mt_mem_stats before, after;
        mt_mem_empty_cache(device);
        mt_mem_get_stats(device, &before);
        bool reached = true;
        for (uint64_t n = 1; reached; n = mtt_next_refusal(n)) {
            text t = {.batch = TEXTS};
            mti_fail_nth_alloc(n);
            mt_status status = mt_generate(m, TEXTS, WIDTH, ids, NEW, &how, collect, &t, NULL);
            reached = mti_alloc_count() >= n;
            mti_fail_nth_alloc(0);
            if (status == MT_OK)
                assert_memory_equal(t.at, good.at, sizeof good.at);
            else
                mtt_failed(MT_ERR_MEMORY, "");
            mt_mem_empty_cache(device);
            mt_mem_get_stats(device, &after);
            assert_int_equal(after.allocated.current, before.allocated.current);
        }
    }
    mt_module_free(m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        mtt_test(scores_of_each_text_are_those_that_it_has_alone),
        mtt_test(tokens_after_each_prompt_are_those_that_follow_it_alone),
        mtt_test(a_text_may_join_and_another_leave_between_steps),
        mtt_test(what_does_not_fit_is_refused_first),
        mtt_test(failing_memory_is_reported_and_leaves_nothing),
    };
    return cmocka_run_group_tests(tests, mtt_open_device, mtt_close_device);
}

/* A rank begins with its part of the weights that one process would begin with, bit for bit. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "as_ranks.h"

#define SEED 11

/* What the table of all tests does not have. */
static const mt_model_config others[] = {
    {.kind = MT_MODEL_LLAMA,
     .hidden = 32,
     .heads = 4,
     .layers = 1,
     .vocab = 64,
     .context = 16,
     .ffn = 36,
     .joint_products = true,
     .tied = true,
     .norm_kind = MT_NORM_RMS_ONE},
    {.kind = MT_MODEL_BLOCK, .hidden = 24, .heads = 4, .dtype = MT_F64},
};
enum { MODELS = MTT_MODELS + sizeof others / sizeof *others };

/* Odd vocabularies are padded; odd widths begin between two counters of the generator. */
static mt_model_config model(int i)
{
    if (i >= MTT_MODELS) return others[i - MTT_MODELS];
    mt_model_config c = mtt_models[i];
    if (i != MTT_LLAMA) c.hidden = 24;
    if (i == MTT_GPT_UNTIED)
        c.norm = MT_NORM_POST, c.dtype = MT_BF16;
    else
        c.ffn = 36;
    return c;
}

static bool ends(const char *text, const char *end)
{
    size_t n = strlen(text), m = strlen(end);
    return n >= m && !strcmp(text + n - m, end);
}

typedef struct weights_job {
    const mt_model_config *config;
    mt_parallel parallel;
    const mt_lora_options *lora; /* NULL: none */
    mt_module *whole;
    uint64_t seed, offset; /* of the whole's generator afterwards */
} weights_job;

static mt_tensor *find(mt_module *m, const char *name)
{
    const mt_named_tensor *list;
    size_t n;
    MTT_NEED(mt_module_params(m, &list, &n) == MT_OK);
    for (size_t i = 0; i < n; i++)
        if (!strcmp(list[i].name, name)) return list[i].tensor;
    return NULL;
}

/* Row i of rank r's part of a matrix that consists of `n` products of these widths side by side. */
static int64_t row_in(const int64_t *widths, int n, int64_t t, int64_t r, int64_t i)
{
    int64_t before = 0;
    for (int k = 0; k < n; k++) {
        int64_t own = widths[k] / t;
        if (i < own) return before + r * own + i;
        i -= own;
        before += widths[k];
    }
    return -1;
}

/* Where element [i,j] of this rank's parameter is in the whole one; -1: padding. */
static int64_t place(const mt_model_config *c, const mt_parallel *h, const char *name, int64_t rows,
                     int64_t i, int64_t cols, int64_t j, const mt_tensor *whole)
{
    int64_t t = h->tensor ? h->tensor : 1, r = h->tensor_rank,
            width = mt_rank(whole) > 1 ? mt_shape(whole)[1] : 1;
    const int64_t q = c->heads * c->head_dim, k = c->kv_heads * c->head_dim;
    bool bias = ends(name, "bias"), a = strstr(name, "lora_A"), b = strstr(name, "lora_B");
    if (t == 1 || a)
        j += a && (strstr(name, "proj") || strstr(name, "down")) ? r * cols : 0;
    else if (strstr(name, ".qkv.") && c->qkv_by_head)
        i += r * rows;
    else if (strstr(name, ".qkv.") || (c->kind == MT_MODEL_BLOCK && strstr(name, "qkv")))
        i = row_in((const int64_t[]){q, k, k}, 3, t, r, i);
    else if (strstr(name, "gate_up"))
        i = row_in((const int64_t[]){c->ffn, c->ffn}, 2, t, r, i);
    else if (strstr(name, ".q.") || strstr(name, ".k.") || strstr(name, ".v.") ||
             strstr(name, "fc") || strstr(name, ".gate.") || strstr(name, ".up.") ||
             strstr(name, "wte") || strstr(name, "lm_head") || strstr(name, "decoder"))
        i += r * rows;
    else if (!bias && !b && (strstr(name, "proj") || strstr(name, "down")))
        j += r * cols;
    return i < mt_shape(whole)[0] ? i * width + j : -1;
}

static void compare(const weights_job *job, const mt_parallel *h, const char *name, mt_tensor *own,
                    mt_tensor *whole, const int64_t *shape)
{
    int64_t rows = shape[0], cols = shape[1], from = 0;
    double *a = mtt_doubles(own), *b = mtt_doubles(whole);
    if (mt_numel(own) < rows * cols) from = mt_numel(own) * h->data_rank;
    for (int64_t e = 0; e < mt_numel(own); e++) {
        int64_t at = e + from, there = -1;
        if (at < rows * cols)
            there = place(job->config, h, name, rows, at / cols, cols, at % cols, whole);
        bool is_the_whole_models = a[e] == (there < 0 ? 0 : b[there]);
        if (!is_the_whole_models)
            fprintf(stderr, "%s[%lld] is %g; need %g\n", name, (long long)at, a[e],
                    there < 0 ? 0 : b[there]);
        MTT_NEED(is_the_whole_models);
    }
    free(a);
    free(b);
}

/* The whole model's parameter that a rank's has a part of: a tied head's copy on the last stage is
 * of the embedding's weight. */
static mt_tensor *find_whole(const weights_job *job, const char *name)
{
    if (!strcmp(name, "decoder.bias")) return find(job->whole, "head.bias");
    mt_tensor *t = find(job->whole, name);
    bool head = !strcmp(name, "decoder.weight") || !strcmp(name, "lm_head.weight");
    return t || !head ? t : find(job->whole, "wte.weight");
}

static void check_part(const weights_job *job, const mt_parallel *h, mt_module *m,
                       mt_module *shaped)
{
    const mt_named_tensor *list;
    size_t n = 0;
    MTT_NEED(m && shaped && mt_module_params(m, &list, &n) == MT_OK && n > 4);
    for (size_t i = 0; i < n; i++) {
        const char *name = list[i].name;
        mt_tensor *local = find(shaped, name), *whole = find_whole(job, name);
        MTT_NEED(local && whole);
        int64_t cols = mt_rank(local) > 1 ? mt_shape(local)[1] : 1;
        compare(job, h, name, list[i].tensor, whole, (const int64_t[]){mt_shape(local)[0], cols});
    }
}

static mt_stage *stage_of(mt_device *device, const weights_job *job, const mt_parallel *h)
{
    mt_seed(device, SEED);
    return job->lora ? mt_stage_new_lora(device, job->config, h, job->lora)
                     : mt_stage_new(device, job->config, h);
}

static void check_weights(mt_comm *world, void *user)
{
    const weights_job *job = user;
    mt_parallel h = job->parallel;
    MTT_NEED(mt_parallel_place(&h, world) == MT_OK);
    mt_device *device = mt_device_open("cpu"), *meta = mt_device_open("meta");
    mt_parallel plain = h;
    plain.zero = 0;
    mt_stage *stage = stage_of(device, job, &h), *shaped = stage_of(meta, job, &plain);
    MTT_NEED(stage && shaped);
    for (int64_t i = 0; i < (h.interleave ? h.interleave : 1); i++)
        check_part(job, &h, mt_stage_part(stage, i), mt_stage_part(shaped, i));
    uint64_t seed, offset;
    mt_rng_get(device, &seed, &offset);
    MTT_NEED(seed == job->seed && offset == job->offset);
    mt_stage_free(stage);
    mt_stage_free(shaped);
    mt_device_release(device);
    mt_device_release(meta);
    mt_parallel_close(&h);
}

/* Of models with these adapters; NULL: none. */
static void check_models(const mt_lora_options *lora)
{
    static const mt_parallel splits[] = {{.tensor = 2},
                                         {.tensor = 4},
                                         {.data = 2},
                                         {.tensor = 2, .sequence = true, .data = 2},
                                         {.data = 3, .zero = 3},
                                         {.tensor = 2, .data = 2, .zero = 3},
                                         {.pipeline = 4},
                                         {.pipeline = 2, .interleave = 2},
                                         {.tensor = 2, .pipeline = 2, .data = 2, .zero = 3}};
    for (int i = 0; i < MODELS; i++) {
        mt_device *device = mt_device_open("cpu");
        mt_model_config c = model(i);
        if (c.layers) c.layers = 4;
        mtt_ok(mt_model_config_resolve(&c, &c));
        mt_seed(device, SEED);
        weights_job job = {.config = &c, .lora = lora, .whole = mt_model_new(device, &c)};
        assert_non_null(job.whole);
        if (lora) mtt_ok(mt_lora_add(job.whole, lora, NULL));
        const mt_named_tensor *list;
        size_t n;
        mtt_ok(mt_module_params(job.whole, &list, &n)); /* made once; the ranks read it */
        mt_rng_get(device, &job.seed, &job.offset);
        for (size_t k = 0; k < sizeof splits / sizeof *splits; k++) {
            if (lora && !mtt_is_taken((size_t)i, k)) continue;
            job.parallel = splits[k];
            if (lora && lora->base != MT_LORA_KEEP && (splits[k].tensor > 1 || splits[k].zero == 3))
                continue; /* refused */
            if (c.layers > 1 || splits[k].pipeline < 2)
                mtt_as_ranks(mtt_count_ranks(&splits[k]), check_weights, &job);
        }
        mt_module_free(job.whole);
        mt_device_release(device);
    }
}

static void every_rank_begins_with_its_part_of_the_whole_models_weights(void **state)
{
    (void)state;
    check_models(NULL);
}

/* Beside every linear, with a rank that leaves an A between two counters of the generator, and
 * beside attention's. */
static void every_rank_begins_with_its_part_of_the_adapters(void **state)
{
    (void)state;
    static const char *const attention[] = {"*attn.*"};
    static const mt_lora_options adapters[] = {
        {.rank = 3},
        {.rank = 2, .n_targets = 1, .targets = attention},
        {.rank = 2, .base = MT_LORA_NF4},
        {.rank = 2, .n_targets = 1, .targets = attention, .base = MT_LORA_NF4_DOUBLE},
    };
    for (size_t i = 0; i < sizeof adapters / sizeof *adapters; i++) check_models(&adapters[i]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_rank_begins_with_its_part_of_the_whole_models_weights),
        cmocka_unit_test(every_rank_begins_with_its_part_of_the_adapters),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

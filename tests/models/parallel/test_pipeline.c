/* The stages of a pipeline train as one process with the same microbatches does: with its bits
 * where no sum is formed in another order, with its masks, and with one embedding. */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "as_ranks.h"
#include "parallel/parallel.h"

enum { LAYERS = 4 };

static mt_model_config model(int i, double dropout)
{
    mt_model_config c = mtt_models[i];
    c.layers = LAYERS;
    c.dropout = dropout;
    if (dropout > 0 && i != MTT_GPT) c.attention = MT_ATTENTION_MATH;
    return c;
}

/* ---- the weight that the first and the last stage share ---- */

/* Of a part's parameters, under either name. */
static mt_tensor *vocabulary_of(const mt_stage *stage)
{
    static const char *const names[] = {"wte.weight", "lm_head.weight", "decoder.weight"};
    const mt_named_tensor *list;
    size_t n;
    mt_module *part;
    for (int64_t i = 0; (part = mt_stage_part(stage, i)); i++) {
        MTT_NEED(mt_module_params(part, &list, &n) == MT_OK);
        for (size_t k = 0; k < n; k++)
            for (int name = 0; name < 3; name++)
                if (!strcmp(list[k].name, names[name])) return list[k].tensor;
    }
    return NULL;
}

static void ends_have_one_embedding(const mt_parallel *h, mt_stage *stage)
{
    if (!h->ends_comm) return;
    mt_tensor *own = vocabulary_of(stage);
    const mt_group ends = mt_comm_group(h->ends_comm);
    MT_AUTO mt_tensor *detached = mt_detach(own);
    MT_AUTO mt_tensor *both = mt_all_gather(detached, 0, &ends);
    MTT_NEED(own && both && ends.ranks == 2);
    double *values = mtt_doubles(both);
    MTT_NEED(!memcmp(values, values + mt_numel(own), (size_t)mt_numel(own) * sizeof *values));
    free(values);
}

/* ---- curves ---- */

/* A division beside one process with as many microbatches; bound 0: the same bits. */
static void follows_one_process(int i, const mt_model_config *c, const mt_parallel *split,
                                const char *checkpoint, double max_norm, double bound)
{
    mtt_training alone = {.config = c, .parallel = *split, .max_norm = max_norm}, t = alone;
    mtt_train_alone(&alone);
    t.checkpoint = checkpoint;
    if (mtt_is_tied(i) || c->mtp_layers) t.look = ends_have_one_embedding;
    mtt_train(&t);
    mtt_show(mtt_model_names[i], split, mtt_difference(&alone, &t), "one process");
    if (bound == 0)
        assert_memory_equal(alone.losses, t.losses, sizeof t.losses);
    else
        assert_true(mtt_difference(&alone, &t) < bound);
}

/* A tied weight's gradient is a sum over the microbatches of the head's part and the embedding's,
 * which one process adds up in turns. */
static void a_pipeline_has_the_bits_of_one_process(void **state)
{
    (void)state;
    static const mt_parallel splits[] = {{.pipeline = 2, .microbatches = 1},
                                         {.pipeline = 2, .microbatches = 4},
                                         {.pipeline = 4, .microbatches = 8},
                                         {.pipeline = 2, .interleave = 2, .microbatches = 4}};
    for (int i = 0; i < MTT_MODELS; i++)
        for (size_t k = 0; k < sizeof splits / sizeof *splits; k++)
            for (int dropped = 0; dropped < 2; dropped++) {
                if (!mtt_is_taken((size_t)(i / 2 + dropped), k)) continue;
                const mt_model_config c = model(i, dropped ? 0.2 : 0);
                bool in_turns = mtt_is_tied(i) && splits[k].microbatches > 1;
                follows_one_process(i, &c, &splits[k], NULL, 0, in_turns ? MTT_ROUNDING : 0);
            }
}

/* 5 layers in stages of 2, 2 and 1, of 1, 1 and 3 or of 4 and 1, or in parts of 2, 1, 1 and 1. */
static void stages_of_different_lengths_have_the_bits_of_one_process(void **state)
{
    (void)state;
    static const mt_parallel splits[] = {{.pipeline = 3, .microbatches = 1},
                                         {.pipeline = 2, .interleave = 2, .microbatches = 2},
                                         {.pipeline = 3, .last_layers = 3, .microbatches = 1},
                                         {.pipeline = 2, .first_layers = 4, .microbatches = 1},
                                         {.pipeline = 3, .microbatches = 4}};
    for (int i = 0; i < MTT_MODELS; i++)
        for (size_t k = 0; k < sizeof splits / sizeof *splits; k++) {
            if (!mtt_is_taken((size_t)i, k)) continue;
            mt_model_config c = model(i, 0.2);
            c.layers = 5;
            bool in_turns = mtt_is_tied(i) && splits[k].microbatches > 1;
            follows_one_process(i, &c, &splits[k], k ? "every=2" : NULL, 0,
                                in_turns ? MTT_ROUNDING : 0);
        }
}

/* In f64, in which nothing but a wrong sum is more than this away; the largest seen was 5.4e-16. */
#define BOUND 1e-12

static void a_pipeline_of_divided_layers_and_batches_follows_one_process(void **state)
{
    (void)state;
    static const mt_parallel splits[] = {
        {.tensor = 2, .pipeline = 2, .microbatches = 2},
        {.tensor = 2, .sequence = true, .pipeline = 2, .interleave = 2, .microbatches = 2},
        {.pipeline = 2, .data = 2, .microbatches = 4},
        {.pipeline = 2, .data = 2, .zero = 1, .microbatches = 2},
        {.pipeline = 2, .interleave = 2, .data = 2, .zero = 2, .microbatches = 4},
        {.pipeline = 4, .data = 2, .zero = 3, .microbatches = 4},
        {.tensor = 2, .sequence = true, .pipeline = 2, .data = 2, .zero = 3, .microbatches = 2}};
    static const char *const checkpoints[] = {"none", "full", "selective"};
    for (int i = 0; i < MTT_MODELS; i++)
        for (size_t k = 0; k < sizeof splits / sizeof *splits; k++) {
            if (!mtt_is_taken((size_t)i, k)) continue;
            mt_model_config c = model(i, 0.2);
            c.dtype = MT_F64;
            follows_one_process(i, &c, &splits[k], checkpoints[(i + k) % 3], 1, BOUND);
        }
}

/* The last stage has a copy of the embedding; stages of 3 and 2 layers, or parts of 2, 1, 1, 1, or
 * of 2, 2, 1 and none but what predicts ahead. */
static void predictions_ahead_follow_one_process(void **state)
{
    (void)state;
    static const mt_parallel splits[] = {
        {.pipeline = 2, .microbatches = 3},
        {.pipeline = 2, .interleave = 2, .microbatches = 2},
        {.pipeline = 3, .data = 2, .zero = 1, .microbatches = 2},
        {.tensor = 2, .pipeline = 2, .data = 2, .zero = 2, .microbatches = 2},
        {.pipeline = 2, .interleave = 2, .first_layers = 2, .last_layers = 1, .microbatches = 2},
        {.pipeline = 2, .data = 2, .zero = 3, .fsdp = MT_FSDP_BLOCK, .microbatches = 2}};
    static const char *const checkpoints[] = {"none", "full", "every=2"};
    for (int i = 0; i < MTT_MODELS; i++)
        for (size_t k = 0; k < sizeof splits / sizeof *splits; k++) {
            mt_model_config c = model(i, 0.2);
            if (c.kind == MT_MODEL_BERT || !mtt_is_taken((size_t)i, k)) continue;
            c.dtype = MT_F64, c.layers = 5, c.mtp_layers = 1 + (int64_t)k % 2;
            c.tied = c.kind == MT_MODEL_LLAMA && k % 2;
            follows_one_process(i, &c, &splits[k], checkpoints[(i + k) % 3], 1, BOUND);
        }
}

/* ---- what is not learnt from ---- */

typedef struct evaluating {
    const mt_model_config *config;
    mt_parallel parallel;
    double loss; /* of one process */
} evaluating;

static mt_tensor *batch(mt_device *device, const mt_model_config *c, int64_t from, int64_t length,
                        int64_t step)
{
    int64_t ids[2 * MTT_SEQ];
    for (int64_t i = 0; i < 2 * length; i++)
        ids[i] = (i / length * 5 + (from + i % length) * step + 1) % c->vocab;
    return mt_from_data(device, MT_I64, MT_SHAPE(2, length), ids,
                        (size_t)(2 * length) * sizeof *ids);
}

static void evaluate_rank(mt_comm *world, void *user)
{
    const evaluating *e = user;
    mt_parallel h = e->parallel;
    MTT_NEED(mt_parallel_place(&h, world) == MT_OK);
    int64_t context = h.context ? h.context : 1, length = MTT_SEQ / context;
    mt_device *device = mt_device_open("cpu");
    mt_seed(device, 3);
    mt_stage *stage = mt_stage_new(device, e->config, &h);
    mt_tensor *x = batch(device, e->config, h.context_rank * length, length, 3);
    mt_tensor *y = batch(device, e->config, h.context_rank * length, length, 7);
    const mt_group pieces = mt_comm_group(h.context_comm);
    uint64_t seed, before, after;
    mt_rng_get(device, &seed, &before);
    for (int k = 0; k < 2; k++) {
        double loss = 0;
        MTT_NEED(stage && mt_stage_evaluate(stage, x, y, &loss) == MT_OK);
        MT_AUTO mt_tensor *own = mt_full(device, MT_F64, 0, NULL, loss / (double)context);
        MT_AUTO mt_tensor *sum = mt_all_reduce(own, &pieces);
        MTT_NEED(sum && fabs(mt_item(sum) - e->loss) < 1e-12);
        MTT_NEED(mt_module_training(mt_stage_part(stage, 0)));
    }
    mt_rng_get(device, &seed, &after);
    MTT_NEED(before == after);
    mt_release(x), mt_release(y);
    mt_stage_free(stage);
    mt_device_release(device);
    mt_parallel_close(&h);
}

static double evaluate_alone(const mt_model_config *c)
{
    mt_device *device = mt_device_open("cpu");
    mt_seed(device, 3);
    mt_module *whole = mt_model_new(device, c);
    mt_module_set_training(whole, false);
    mt_tensor *x = batch(device, c, 0, MTT_SEQ, 3), *target = batch(device, c, 0, MTT_SEQ, 7);
    mt_tensor *y = mt_forward(whole, x);
    mt_set(&y, mt_model_loss(c, y, target));
    double loss = mt_item(mtt_made(y));
    mt_release(x), mt_release(target), mt_release(y);
    mt_module_free(whole);
    mt_device_release(device);
    return loss;
}

static void every_stage_has_the_loss_of_a_batch_that_is_not_learnt_from(void **state)
{
    (void)state;
    static const mt_parallel splits[] = {
        {.pipeline = 2, .microbatches = 1},
        {.pipeline = 2, .interleave = 2, .microbatches = 2},
        {.pipeline = 4, .tensor = 2, .sequence = true},
        {.pipeline = 2, .context = 2},
        {.pipeline = 2, .interleave = 2, .context = 2, .data = 2, .zero = 3, .microbatches = 4}};
    for (int i = 0; i < MTT_MODELS; i++)
        for (size_t k = 0; k < sizeof splits / sizeof *splits; k++) {
            mt_model_config c = model(i, splits[k].context ? 0 : 0.2);
            c.dtype = MT_F64;
            evaluating e = {&c, splits[k], evaluate_alone(&c)};
            assert_true(e.loss > 1);
            mtt_as_ranks(mtt_count_ranks(&e.parallel), evaluate_rank, &e);
        }
}

/* ---- what dropout draws ---- */

static void the_parts_of_a_model_draw_as_much_as_the_whole(void **state)
{
    (void)state;
    for (int i = 0; i < MTT_MODELS; i++) {
        mt_model_config c = model(i, 0.2);
        if (i < MTT_BERT) c.mtp_layers = i;
        const mt_parallel h = {.pipeline = 2, .interleave = 2};
        mt_device *meta = mt_device_open("meta");
        mt_module *whole = mt_model_new(meta, &c);
        mt_tensor *tokens = mt_zeros(meta, MT_I64, MT_SHAPE(3, 10));
        uint64_t seed, drawn;
        mt_seed(meta, 1);
        mt_tensor *y = mtt_made(mt_model_forward_loss(whole, tokens, tokens));
        mt_rng_get(meta, &seed, &drawn);
        mti_model_shard shard;
        mti_part_draws draws = {0};
        assert_true(mti_model_shard_make(&shard, &c, &h, 0) &&
                    mti_draws_find(&draws, &shard, 3, 10));
        assert_int_equal(mti_draws_before(&draws, 4), drawn);
        assert_true(drawn > 0);
        mti_free(draws.parts);
        mt_release(y), mt_release(tokens);
        mt_module_free(whole);
        mt_device_release(meta);
    }
}

static void a_refused_request_while_draws_are_counted_is_reported(void **state)
{
    (void)state;
    const mt_model_config c = model(MTT_GPT, 0.2);
    const mt_parallel h = {.tensor = 2, .pipeline = 4};
    mti_model_shard shard;
    bool done = false;
    assert_true(mti_model_shard_make(&shard, &c, &h, 0));
    for (uint64_t n = 1; !done; n = mtt_next_refusal(n)) {
        mti_part_draws draws = {0};
        mti_fail_nth_alloc(n);
        bool ok = mti_draws_find(&draws, &shard, 2, 16);
        done = ok && mti_alloc_count() < n;
        mti_fail_nth_alloc(0);
        assert_int_equal(mt_last_status(), ok ? MT_OK : MT_ERR_MEMORY);
        mt_clear_error();
        assert_true(mti_draws_find(&draws, &shard, 2, 16)); /* a failure leaves no wrong counts */
        assert_int_equal(draws.n, 4);
        mti_free(draws.parts);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_parts_of_a_model_draw_as_much_as_the_whole),
        cmocka_unit_test(a_refused_request_while_draws_are_counted_is_reported),
        cmocka_unit_test(every_stage_has_the_loss_of_a_batch_that_is_not_learnt_from),
        cmocka_unit_test(a_pipeline_has_the_bits_of_one_process),
        cmocka_unit_test(stages_of_different_lengths_have_the_bits_of_one_process),
        cmocka_unit_test(a_pipeline_of_divided_layers_and_batches_follows_one_process),
        cmocka_unit_test(predictions_ahead_follow_one_process),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

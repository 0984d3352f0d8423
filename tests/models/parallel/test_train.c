/* Ranks that train together follow the curve of one process: the same bits where nothing but the
 * place of the states differs, and within rounding where sums are cut. */
#include <string.h>
#include "as_ranks.h"
#include "base/base.h"

enum { BATCH = MTT_BATCH, SEQ = MTT_SEQ };
#define MAX_NORM 1.0

/* Flash and math attention, whose weights are dropped differently. */
enum { DROPPED = 3 };
static const int dropped[DROPPED] = {MTT_GPT, MTT_LLAMA, MTT_BERT};

static mt_model_config with_dropout(int model)
{
    mt_model_config c = mtt_models[model];
    c.dropout = 0.2;
    c.attention = model == MTT_GPT ? MT_ATTENTION_FLASH : MT_ATTENTION_MATH;
    return c;
}

/* Of a division, beside one process with as many microbatches. */
static void loss_follows_one_process(int model, mt_loss_form loss, const mt_parallel *split)
{
    mt_model_config c = mtt_models[model];
    c.ops.loss = loss;
    mtt_training alone = {.config = &c, .parallel = *split, .max_norm = MAX_NORM};
    mtt_training t = alone;
    mtt_train_alone(&alone);
    assert_true(alone.losses[mtt_steps() - 1] <
                (mtt_long() ? 0.8 : 1) * alone.losses[0]); /* it learns */
    mtt_train(&t);
    mtt_show(mtt_model_names[model], split, mtt_difference(&alone, &t), "one process");
    assert_true(mtt_difference(&alone, &t) < MTT_ROUNDING);
}

static void follows_one_process(int model, const mt_parallel *split)
{
    loss_follows_one_process(model, MT_LOSS_NATIVE, split);
}

static void each_form_of_the_loss_follows_one_process(void **state)
{
    (void)state;
    static const mt_parallel splits[] = {
        {.tensor = 2},
        {.data = 2, .zero = 3},
        {.tensor = 2, .sequence = true, .data = 2, .zero = 2},
        {.pipeline = 2, .tensor = 2, .microbatches = 2},
        {.tensor = 2, .sequence = true, .context = 2, .data = 2, .zero = 3},
        {.data = 2, .buckets = MT_BUCKETS_COPIED},
        {.context = 2, .data = 2, .zero = 3, .fsdp = MT_FSDP_AHEAD},
        {.pipeline = 2, .data = 2, .zero = 2, .microbatches = 2}};
    for (int i = 0; i < MTT_MODELS; i++)
        for (mt_loss_form loss = MT_LOSS_F32; loss < MT_LOSS_FORM_COUNT; loss++)
            for (size_t k = 0; k < sizeof splits / sizeof *splits; k++)
                if (mtt_is_taken((size_t)i + k, (size_t)loss) &&
                    mtt_takes_loss(i, loss, &splits[k]))
                    loss_follows_one_process(i, loss, &splits[k]);
}

static void data_parallel_ranks_follow_one_process(void **state)
{
    (void)state;
    static const mt_parallel splits[] = {
        {.data = 1}, {.data = 2}, {.data = 4}, {.data = 2, .microbatches = 2}};
    for (int i = 0; i < MTT_MODELS; i++)
        for (size_t k = 0; k < sizeof splits / sizeof *splits; k++)
            if (mtt_is_taken((size_t)i, k)) follows_one_process(i, &splits[k]);
}

/* A tied weight is gathered twice by ZeRO 3, and its two gradients are added after the ranks' are:
 * the only sum that is in another order, unless the root is kept, gathered once. */
static void zero_has_the_bits_of_plain_data_parallelism(void **state)
{
    (void)state;
    static const mt_parallel splits[] = {
        {.zero = 0},
        {.zero = 1},
        {.zero = 2},
        {.zero = 3},
        {.zero = 3, .fsdp = MT_FSDP_KEEP_ROOT},
        {.zero = 3, .fsdp = MT_FSDP_BLOCK},
        {.zero = 3, .fsdp = MT_FSDP_AHEAD | MT_FSDP_KEEP_ROOT},
        {.zero = 3, .fsdp = MT_FSDP_AHEAD | MT_FSDP_KEEP_LAST | MT_FSDP_KEEP_ROOT}};
    for (int i = 0; i < MTT_MODELS; i++)
        for (int64_t data = 2; data <= 4; data += 2) {
            mtt_training plain = {
                .config = &mtt_models[i], .parallel.data = data, .max_norm = MAX_NORM};
            mtt_train(&plain);
            for (size_t k = 0; k < sizeof splits / sizeof *splits; k++) {
                if (!mtt_is_taken((size_t)(i + data / 2), k)) continue;
                mtt_training t = plain;
                t.parallel = splits[k];
                t.parallel.data = data;
                mtt_train(&t);
                double difference = mtt_difference(&plain, &t);
                mtt_show(mtt_model_names[i], &t.parallel, difference, "data parallelism");
                if (mtt_is_tied(i) && t.parallel.zero == 3 &&
                    !(t.parallel.fsdp & MT_FSDP_KEEP_ROOT))
                    assert_true(difference < MTT_ROUNDING);
                else
                    assert_memory_equal(plain.losses, t.losses, sizeof t.losses);
            }
        }
}

/* Whatever is kept, recomputed or in flight: when parameters are gathered changes no bit. */
static void gathering_ahead_has_the_bits_of_gathering_by_module(void **state)
{
    (void)state;
    static const struct {
        mt_parallel split;
        const char *checkpoint;
    } cases[] = {
        {{.data = 2, .zero = 3}, "full"},
        {{.data = 2, .zero = 3, .microbatches = 2}, "every=2"},
        {{.data = 3, .zero = 3}, "selective"},
        {{.data = 2, .zero = 3, .pipeline = 2, .microbatches = 4}, NULL},
        {{.data = 2, .zero = 3, .pipeline = 2, .interleave = 2, .microbatches = 4}, "full"},
        {{.tensor = 2, .sequence = true, .data = 2, .zero = 3}, "ops"},
        {{.context = 2, .data = 2, .zero = 3}, NULL}};
    for (int i = 0; i < MTT_MODELS; i++)
        for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
            if (!mtt_is_taken((size_t)i, k)) continue;
            mt_model_config c = mtt_models[i];
            c.layers = 4;
            mtt_training by_module = {.config = &c,
                                      .parallel = cases[k].split,
                                      .checkpoint = cases[k].checkpoint,
                                      .max_norm = MAX_NORM};
            mtt_train(&by_module);
            for (int ahead = 0; ahead < 2; ahead++) {
                mtt_training t = by_module;
                t.parallel.fsdp = ahead ? MT_FSDP_AHEAD : MT_FSDP_BLOCK;
                if (ahead && t.parallel.pipeline < 2) t.parallel.fsdp |= MT_FSDP_KEEP_LAST;
                mtt_train(&t);
                assert_memory_equal(by_module.losses, t.losses, sizeof t.losses);
            }
        }
}

/* How gradients are summed, with whatever else is divided, recomputed or scaled. */
typedef struct summing {
    mt_parallel split;
    const char *checkpoint;
    double scale;
} summing;

/* Summed the other way, the losses have the same bits. */
static void changes_no_bit(const summing *cases, size_t n, mt_reduce_time other)
{
    for (int i = 0; i < MTT_MODELS; i++)
        for (size_t k = 0; k < n; k++) {
            if (!mtt_is_taken((size_t)i, k)) continue;
            mt_model_config c = mtt_models[i];
            c.layers = 4;
            mtt_training t = {.config = &c,
                              .parallel = cases[k].split,
                              .checkpoint = cases[k].checkpoint,
                              .scale = cases[k].scale,
                              .max_norm = MAX_NORM};
            mtt_training after = t;
            after.parallel.buckets = MT_BUCKETS_NONE;
            after.parallel.reduce_bucket = after.parallel.sub_group = 0;
            after.parallel.reduce = other;
            mtt_train(&t);
            mtt_train(&after);
            assert_memory_equal(t.losses, after.losses, sizeof after.losses);
        }
}

static void summing_in_backward_has_the_bits_of_summing_after(void **state)
{
    (void)state;
    static const summing cases[] = {
        {{.data = 2}, "full", 0},
        {{.data = 3, .microbatches = 3}, NULL, 64},
        {{.data = 4, .zero = 1}, "selective", 0},
        {{.data = 2, .zero = 1, .microbatches = 2}, "every=2", 0},
        {{.context = 2, .data = 2, .zero = 1}, NULL, 0},
        {{.tensor = 2, .sequence = true, .data = 2}, "ops", 0},
        {{.data = 2, .pipeline = 2, .microbatches = 4}, NULL, 0},
        {{.data = 2, .zero = 1, .pipeline = 2, .interleave = 2, .microbatches = 4}, "full", 64}};
    changes_no_bit(cases, sizeof cases / sizeof *cases, MT_REDUCE_AFTER);
}

/* Elements are summed in the order of the ranks, whatever lies beside them. */
static void buckets_have_the_bits_of_single_gradients(void **state)
{
    (void)state;
    static const summing cases[] = {
        {{.data = 2, .buckets = MT_BUCKETS_COPIED, .bucket_bytes = 1}, "full", 0},
        {{.data = 3, .microbatches = 2, .buckets = MT_BUCKETS_VIEWS, .bucket_bytes = 5000}, 0, 64},
        {{.context = 2, .data = 2, .buckets = MT_BUCKETS_VIEWS}, NULL, 0},
        {{.tensor = 2, .data = 2, .buckets = MT_BUCKETS_COPIED, .bucket_bytes = 9000}, "ops", 0},
        {{.data = 2,
          .pipeline = 2,
          .microbatches = 4,
          .buckets = MT_BUCKETS_VIEWS,
          .bucket_bytes = 20000},
         NULL,
         0},
        {{.data = 2, .zero = 2, .reduce_bucket = 1 << 20}, "full", 0},
        {{.data = 3, .zero = 2, .microbatches = 2, .reduce_bucket = 3000}, NULL, 64},
        {{.data = 2, .zero = 1, .reduce_bucket = 3000, .sub_group = 1 << 20}, "full", 0},
        {{.data = 3, .zero = 1, .microbatches = 2, .sub_group = 500}, NULL, 64},
        {{.data = 2, .zero = 2, .reduce_bucket = 3000, .sub_group = 2000}, NULL, 64},
        {{.data = 3, .zero = 3, .microbatches = 2, .reduce_bucket = 3000, .sub_group = 500}, 0, 0},
        {{.data = 2, .zero = 3, .fsdp = MT_FSDP_BLOCK, .sub_group = 1 << 20}, "full", 64},
        {{.tensor = 2,
          .data = 2,
          .pipeline = 2,
          .microbatches = 2,
          .zero = 2,
          .reduce_bucket = 500},
         NULL,
         0}};
    changes_no_bit(cases, sizeof cases / sizeof *cases, MT_REDUCE_IN_BACKWARD);
}

static mt_status drop_gradient(void *user, mt_tensor *leaf)
{
    (void)user;
    return mt_set_grad(leaf, NULL);
}

/* A step in backward would do so, with what is not the sum yet. */
static void check_dropped(mt_stage *stage, mt_tensor *const *tokens)
{
    const mt_named_tensor *list;
    size_t n;
    MTT_NEED(mt_module_params(mt_stage_part(stage, 0), &list, &n) == MT_OK && n > 0);
    MTT_NEED(mt_add_leaf_hook(list[n - 1].tensor, drop_gradient, NULL));
    MTT_NEED(mt_stage_backward(stage, tokens, tokens, NULL) == MT_ERR_STATE);
    mtt_failed(MT_ERR_STATE, "was dropped while the ranks summed it", list[n - 1].name);
}

/* What each call sent to ranks with other data, of gpt's 4 layers. */
static void sum_in_backward(mt_comm *world, void *user)
{
    const bool *tied = user;
    mt_parallel h = {.data = 2, .microbatches = 2};
    mt_model_config c = mtt_models[*tied ? MTT_GPT : MTT_GPT_UNTIED];
    MTT_NEED(mt_parallel_place(&h, world) == MT_OK);
    mt_device *device = mtt_device();
    MTT_NEED(device && mt_device_set_threads(device, 1) == MT_OK);
    mt_stage *stage = mt_stage_new(device, &c, &h);
    mt_optimizer *optimizer = stage ? mt_adamw_new(mt_stage_stepped(stage), &mtt_adamw) : NULL;
    MT_AUTO mt_tensor *x = mt_zeros(device, MT_I64, MT_SHAPE(1, SEQ));
    mt_tensor *both[] = {x, x};
    size_t n_bytes = 0;
    MTT_NEED(optimizer && x && mt_module_size(mt_stage_part(stage, 0), NULL, &n_bytes) == MT_OK);
    const uint64_t all = n_bytes, shared = *tied ? (uint64_t)(c.vocab * c.hidden) * 4 : 0;
    for (int step = 0; step < 2; step++) {
        uint64_t before = mt_comm_sent(h.data_comm);
        MTT_NEED(mt_stage_backward(stage, both, both, NULL) == MT_OK);
        const uint64_t loss = sizeof(double);
        MTT_NEED(mt_comm_sent(h.data_comm) - before == all - shared + loss);
        /* these are the sums already: another call would add to them */
        MTT_NEED(mt_stage_backward(stage, both, both, NULL) == MT_ERR_STATE);
        MTT_NEED(strstr(mt_last_error(), "is the sum over all ranks already"));
        mt_clear_error();
        before = mt_comm_sent(h.data_comm);
        MTT_NEED(mt_stage_step(stage, optimizer, 0, NULL) == MT_OK);
        MTT_NEED(mt_comm_sent(h.data_comm) - before == shared);
    }
    check_dropped(stage, both);
    mt_optimizer_free(optimizer);
    mt_stage_free(stage);
    mt_device_release(device);
    mt_parallel_close(&h);
}

/* But for a tied weight, whose gradient is complete only at its end. */
static void backward_sums_all_that_it_completes(void **state)
{
    (void)state;
    for (int tied = 0; tied < 2; tied++) mtt_as_ranks(2, sum_in_backward, &(bool){tied});
}

static void tensor_parallel_ranks_follow_one_process(void **state)
{
    (void)state;
    static const mt_parallel splits[] = {
        {.tensor = 2},
        {.tensor = 4},
        {.tensor = 2, .sequence = true},
        {.tensor = 4, .sequence = true, .microbatches = 2},
        {.tensor = 2, .data = 2},
        {.tensor = 2, .sequence = true, .data = 2, .zero = 1},
        {.tensor = 2, .sequence = true, .data = 2, .zero = 2},
        {.tensor = 2, .sequence = true, .data = 2, .zero = 3},
    };
    for (int i = 0; i < MTT_MODELS; i++)
        for (size_t k = 0; k < sizeof splits / sizeof *splits; k++)
            if (mtt_is_taken((size_t)i, k)) follows_one_process(i, &splits[k]);
}

/* Causal and not, with learned and with rotary positions, all heads and groups of them, by flash
 * and by math. */
static void ranks_with_pieces_of_sequences_follow_one_process(void **state)
{
    (void)state;
    static const mt_parallel splits[] = {
        {.context = 2},
        {.context = 4},
        {.context = 8, .microbatches = 2},
        {.tensor = 2, .context = 2},
        {.context = 2, .data = 2, .zero = 1},
        {.context = 2, .data = 2, .zero = 2, .microbatches = 2},
        {.context = 4, .zero = 3},
        {.tensor = 2, .sequence = true, .context = 2, .data = 2, .zero = 3},
        {.context = 2, .pipeline = 2, .microbatches = 2},
    };
    static const char *const checkpoints[] = {"none", "full", "selective", "ops"};
    for (int i = 0; i < MTT_MODELS; i++)
        for (size_t k = 0; k < sizeof splits / sizeof *splits; k++) {
            if (!mtt_is_taken((size_t)i, k)) continue;
            mt_model_config c = mtt_models[i];
            if (k / 2 % 2) c.attention = MT_ATTENTION_MATH;
            mtt_training alone = {.config = &c, .parallel = splits[k], .max_norm = MAX_NORM};
            mtt_training t = alone;
            t.checkpoint = checkpoints[((size_t)i + k / 2) % 4];
            mtt_train_alone(&alone);
            mtt_train(&t);
            mtt_show(mtt_model_names[i], &splits[k], mtt_difference(&alone, &t), "one process");
            assert_true(mtt_difference(&alone, &t) < MTT_ROUNDING);
        }
}

static void masks_are_those_of_one_process(void **state)
{
    (void)state;
    static const mt_parallel splits[] = {{.data = 2},
                                         {.tensor = 2},
                                         {.tensor = 4, .sequence = true},
                                         {.tensor = 2, .sequence = true, .data = 2, .zero = 2},
                                         {.tensor = 2, .data = 2, .zero = 3}};
    static const char *const checkpoints[] = {"none", "full", "selective"};
    for (size_t i = 0; i < DROPPED; i++) {
        const char *name = mtt_model_names[dropped[i]];
        const mt_model_config c = with_dropout(dropped[i]);
        mtt_training alone = {.config = &c, .max_norm = MAX_NORM}, without = alone;
        without.config = &mtt_models[dropped[i]];
        mtt_train_alone(&alone);
        mtt_train_alone(&without);
        assert_true(mtt_difference(&alone, &without) > 1e-3); /* masks matter */
        for (size_t k = 0; k < sizeof splits / sizeof *splits; k++) {
            mtt_training t = {.config = &c,
                              .parallel = splits[k],
                              .checkpoint = checkpoints[(i + k) % 3],
                              .max_norm = MAX_NORM};
            mtt_train(&t);
            mtt_show(name, &splits[k], mtt_difference(&alone, &t), "one process");
            assert_true(mtt_difference(&alone, &t) < MTT_ROUNDING);
        }
    }
}

/* A step of a rank without data, with a loss scale or none, and an evaluation; false if something
 * fails. */
static bool step_on_meta(mt_device *meta, const mt_parallel *h)
{
    const mt_model_config c = with_dropout(MTT_GPT);
    mt_tensor *x = mt_zeros(meta, MT_I64, MT_SHAPE(BATCH, SEQ / (h->context ? h->context : 1)));
    mt_tensor *both[] = {x, x};
    mt_stage *stage = mt_stage_new(meta, &c, h);
    mt_optimizer *optimizer = stage ? mt_adamw_new(mt_stage_stepped(stage), &mtt_adamw) : NULL;
    mt_scaler *scaler = h->zero % 2 ? mt_scaler_new(NULL) : NULL;
    bool ok = x && optimizer && (scaler || h->zero % 2 == 0) &&
              mt_stage_set_scaler(stage, scaler) == MT_OK &&
              mt_stage_backward(stage, both, both, NULL) == MT_OK &&
              mt_stage_step(stage, optimizer, MAX_NORM, NULL) == MT_OK &&
              mt_stage_evaluate(stage, x, x, NULL) == MT_OK;
    mt_scaler_free(scaler);
    mt_optimizer_free(optimizer);
    mt_stage_free(stage);
    mt_release(x);
    return ok;
}

static void every_refused_request_for_memory_is_reported(void **state)
{
    (void)state;
    mt_parallel splits[] = {{.zero = 0},
                            {.zero = 1},
                            {.zero = 2},
                            {.zero = 3},
                            {.pipeline = 2, .stage = 1, .data = 2, .zero = 1},
                            {.data = 2, .buckets = MT_BUCKETS_VIEWS},
                            {.data = 2, .zero = 2, .reduce_bucket = 3000, .sub_group = 2000},
                            {.data = 2, .zero = 1, .reduce_bucket = 3000, .sub_group = 2000},
                            {.data = 2, .zero = 3, .reduce_bucket = 3000, .sub_group = 2000}};
    for (int zero = 0; zero <= 3; zero++)
        splits[zero] = (mt_parallel){
            .tensor = 2, .sequence = true, .context = 2, .data = 3, .zero = zero, .data_rank = 2};
    for (size_t k = 0; k < sizeof splits / sizeof *splits; k++) {
        bool done = false;
        for (uint64_t n = 1; !done; n = mtt_next_refusal(n)) {
            mt_device *meta = mt_device_open("meta");
            mti_fail_nth_alloc(n);
            bool ok = step_on_meta(meta, &splits[k]);
            done = ok && mti_alloc_count() < n;
            mti_fail_nth_alloc(0);
            assert_int_equal(mtt_allocated(meta), 0);
            assert_int_equal(mt_last_status(), ok ? MT_OK : MT_ERR_MEMORY);
            mt_clear_error();
            mt_device_release(meta);
        }
    }
}

/* ZeRO's pieces are flat; a whole share of a matrix is not. */
static void adafactor_refuses_pieces_of_matrices(void **state)
{
    (void)state;
    const mt_adafactor_options options = {.lr = 1e-2};
    mt_device *meta = mt_device_open("meta");
    for (int zero = 0; zero < 4; zero++)
        for (int parts = 1; parts <= 2; parts++) {
            mt_parallel h = {.tensor = 2, .data = 2, .zero = zero};
            if (parts > 1) h.pipeline = 2, h.microbatches = 2;
            mt_stage *stage = mt_stage_new(meta, &mtt_models[MTT_GPT], &h);
            assert_non_null(stage);
            mt_optimizer *o = mt_adafactor_new(mt_stage_stepped(stage), &options);
            if (zero) {
                assert_null(o);
                mtt_failed(MT_ERR_UNSUPPORTED, "adafactor", "flat shards", "need zero 0");
            } else {
                assert_non_null(o);
            }
            mt_optimizer_free(o);
            mt_stage_free(stage);
        }
    mt_device_release(meta);
}

static void bad_calls_are_refused(void **state)
{
    (void)state;
    mt_device *cpu = mt_device_open("cpu");
    assert_null(mt_stage_new(cpu, &mtt_models[MTT_GPT], &(mt_parallel){.data = 2}));
    mtt_failed(MT_ERR_UNSUPPORTED, "on cpu without a comm", "mt_parallel_place");
    assert_null(mt_stage_new(cpu, &mtt_models[MTT_GPT], &(mt_parallel){.pipeline = 2}));
    mtt_failed(MT_ERR_UNSUPPORTED, "1 x 1 x 2 ranks on cpu without a comm", "meta");
    assert_null(mt_stage_new(cpu, &mtt_models[MTT_GPT], &(mt_parallel){.context = 2}));
    mtt_failed(MT_ERR_UNSUPPORTED, "on cpu without a comm", "mt_parallel_place");
    mt_stage *stage = mt_stage_new(cpu, &mtt_models[MTT_GPT], NULL);
    mt_tensor *x = mt_zeros(cpu, MT_I64, MT_SHAPE(1, SEQ + 1));
    assert_int_equal(mt_stage_backward(stage, &x, &x, NULL), MT_ERR_ARGUMENT);
    mtt_failed(MT_ERR_ARGUMENT, "17 tokens", "context, 16");
    assert_int_equal(mt_stage_backward(stage, NULL, &x, NULL), MT_ERR_ARGUMENT);
    mtt_failed(MT_ERR_ARGUMENT, "the tokens are NULL");
    mt_optimizer *optimizer = mt_adamw_new(mt_stage_stepped(stage), &mtt_adamw);
    assert_int_equal(mt_stage_step(stage, optimizer, -1, NULL), MT_ERR_ARGUMENT);
    mtt_failed(MT_ERR_ARGUMENT, "max_norm is -1");
    assert_null(mt_stage_part(stage, 1));
    mt_optimizer_free(optimizer);
    mt_stage_free(stage);
    mt_stage *block = mt_stage_new(
        cpu, &(mt_model_config){.kind = MT_MODEL_BLOCK, .hidden = 32, .heads = 4}, NULL);
    assert_int_equal(mt_stage_backward(block, &x, &x, NULL), MT_ERR_UNSUPPORTED);
    mtt_failed(MT_ERR_UNSUPPORTED, "a block has no loss");
    mt_stage_free(block);
    mt_release(x);
    mt_device_release(cpu);
}

/* The other rank has failed before it made its stage. */
static void make_a_stage_alone(mt_comm *world, void *user)
{
    mt_parallel h = *(const mt_parallel *)user;
    MTT_NEED(mt_parallel_place(&h, world) == MT_OK);
    if (mt_comm_group(world).rank == 0) {
        mt_device *device = mt_device_open("cpu");
        mt_stage *stage = mt_stage_new(device, &mtt_models[MTT_GPT], &h);
        MTT_NEED(stage);
        mt_stage_free(stage);
        mt_device_release(device);
    }
    mt_parallel_close(&h);
}

static void making_a_stage_waits_for_no_rank(void **state)
{
    (void)state;
    mt_parallel h = {.data = 2, .zero = 3, .fsdp = MT_FSDP_AHEAD};
    mtt_as_ranks(2, make_a_stage_alone, &h);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(data_parallel_ranks_follow_one_process),
        cmocka_unit_test(each_form_of_the_loss_follows_one_process),
        cmocka_unit_test(summing_in_backward_has_the_bits_of_summing_after),
        cmocka_unit_test(buckets_have_the_bits_of_single_gradients),
        cmocka_unit_test(backward_sums_all_that_it_completes),
        cmocka_unit_test(tensor_parallel_ranks_follow_one_process),
        cmocka_unit_test(ranks_with_pieces_of_sequences_follow_one_process),
        cmocka_unit_test(masks_are_those_of_one_process),
        cmocka_unit_test(every_refused_request_for_memory_is_reported),
        cmocka_unit_test(adafactor_refuses_pieces_of_matrices),
        cmocka_unit_test(bad_calls_are_refused),
        cmocka_unit_test(zero_has_the_bits_of_plain_data_parallelism),
        cmocka_unit_test(gathering_ahead_has_the_bits_of_gathering_by_module),
        cmocka_unit_test(making_a_stage_waits_for_no_rank),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

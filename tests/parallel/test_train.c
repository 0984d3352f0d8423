/* Ranks that train together follow the curve of one process: the same bits where nothing but the
 * place of the states differs, and within rounding where sums are cut. */
#include <math.h>
#include <stdio.h>
#include <string.h>
#include "as_ranks.h"
#include "base/base.h"
#include "base/philox.h"

enum { STEPS = 20, BATCH = 4, SEQ = 16, SEED = 5 };

static const mt_model_config models[] = {
    {.hidden = 32, .heads = 4, .layers = 2, .vocab = 61, .context = 16},
    {.hidden = 32, .heads = 4, .layers = 2, .vocab = 64, .context = 16, .untied = true},
    {.kind = MT_MODEL_LLAMA,
     .hidden = 32,
     .heads = 8,
     .kv_heads = 4,
     .layers = 2,
     .vocab = 61,
     .context = 16,
     .ffn = 48},
    {.kind = MT_MODEL_BERT, .hidden = 32, .heads = 4, .layers = 2, .vocab = 61, .context = 16},
};
/* Flash and math attention, whose weights are dropped differently. */
static const mt_model_config dropped[] = {
    {.hidden = 32, .heads = 4, .layers = 2, .vocab = 61, .context = 16, .dropout = 0.2},
    {.kind = MT_MODEL_LLAMA,
     .hidden = 32,
     .heads = 8,
     .kv_heads = 4,
     .layers = 2,
     .vocab = 61,
     .context = 16,
     .ffn = 48,
     .dropout = 0.2,
     .attention = MT_ATTENTION_MATH},
    {.kind = MT_MODEL_BERT,
     .hidden = 32,
     .heads = 4,
     .layers = 2,
     .vocab = 61,
     .context = 16,
     .dropout = 0.2,
     .attention = MT_ATTENTION_MATH},
};
static const char *const names[] = {"gpt", "gpt, untied", "llama", "bert"};

static const mt_adamw_options adamw = {
    .lr = 3e-3, .weight_decay = 0.1, .decay_matrices_only = true};
#define MAX_NORM 1.0

/* ---- batches ---- */

/* Rows [from, from + n) of a step's microbatch; targets are a function of the tokens, so that there
 * is something to learn. */
static mt_tensor *ids(mt_device *device, const mt_model_config *c, int step, int64_t micro,
                      int64_t from, int64_t n, bool target)
{
    int64_t values[BATCH * SEQ];
    for (int64_t i = 0; i < n * SEQ; i++) {
        uint64_t at = (uint64_t)((step * 64 + micro) * BATCH * SEQ + from * SEQ + i);
        int64_t token = (int64_t)(mti_philox(77, at).v[0] % 13);
        values[i] = target ? (token * 5 + 1) % c->vocab : token;
    }
    return mt_from_data(device, MT_I64, MT_SHAPE(n, SEQ), values,
                        (size_t)(n * SEQ) * sizeof *values);
}

/* Of [n,SEQ], taken over, the positions that a rank has. */
static mt_tensor *piece(mt_tensor *x, const mt_parallel *h)
{
    int64_t length = SEQ / (h->context ? h->context : 1);
    mt_set(&x, mt_slice(x, 1, h->context_rank * length, length));
    mt_set(&x, mt_contiguous(x));
    return x;
}

/* ---- one process ---- */

/* The whole model, without ranks. */
static void train_alone(const mt_model_config *c, int64_t microbatches, double losses[STEPS])
{
    mt_device *device = mt_device_open("cpu");
    mtt_ok(mt_device_set_threads(device, 1));
    mt_seed(device, SEED);
    mt_module *model = mt_model_new(device, c);
    mt_optimizer *optimizer = mt_adamw_new(model, &adamw);
    assert_non_null(optimizer);
    for (int step = 0; step < STEPS; step++) {
        mt_rng_set(device, SEED, (uint64_t)step << 32);
        losses[step] = 0;
        for (int64_t m = 0; m < microbatches; m++) {
            mt_tensor *x = ids(device, c, step, m, 0, BATCH, false);
            mt_tensor *target = ids(device, c, step, m, 0, BATCH, true);
            mt_tensor *y = mt_forward(model, x);
            mt_set(&y, mt_model_loss(c, y, target));
            losses[step] += mt_item(y) / (double)microbatches;
            mt_set(&y, mt_mul_scalar(y, 1 / (double)microbatches));
            mtt_ok(mt_backward(mtt_made(y)));
            mt_release(y), mt_release(x), mt_release(target);
        }
        mtt_ok(mt_clip_grad_norm(model, MAX_NORM, NULL));
        mtt_ok(mt_optimizer_step(optimizer));
        mtt_ok(mt_module_zero_grad(model));
    }
    mt_optimizer_free(optimizer);
    mt_module_free(model);
    mt_device_release(device);
}

/* ---- ranks ---- */

typedef struct training {
    const mt_model_config *config;
    mt_parallel parallel;
    const char *checkpoint;
    double losses[STEPS]; /* rank 0's; the others must have the same */
} training;

static int64_t at_least_1(int64_t n) { return n ? n : 1; }

static void one_step(const training *t, const mt_parallel *h, mt_stage *stage, mt_device *device,
                     mt_optimizer *optimizer, int step, double *loss)
{
    mt_tensor *x[BATCH], *target[BATCH];
    int64_t n = BATCH / at_least_1(h->data), micro = at_least_1(h->microbatches);
    mt_rng_set(device, SEED, (uint64_t)step << 32);
    for (int64_t m = 0; m < micro; m++) {
        x[m] = piece(ids(device, t->config, step, m, h->data_rank * n, n, false), h);
        target[m] = piece(ids(device, t->config, step, m, h->data_rank * n, n, true), h);
    }
    MTT_NEED(mt_stage_backward(stage, x, target, loss) == MT_OK);
    MTT_NEED(mt_stage_step(stage, optimizer, MAX_NORM, NULL) == MT_OK);
    for (int64_t m = 0; m < micro; m++) mt_release(x[m]), mt_release(target[m]);
}

static void train_rank(mt_comm *world, void *user)
{
    training *t = user;
    mt_parallel h = t->parallel;
    mt_group all = mt_comm_group(world);
    MTT_NEED(mt_parallel_place(&h, world) == MT_OK);
    mt_device *device = mt_device_open("cpu");
    MTT_NEED(device && mt_device_set_threads(device, 1) == MT_OK);
    mt_seed(device, SEED);
    mt_stage *stage = mt_stage_new(device, t->config, &h);
    MTT_NEED(stage);
    if (t->checkpoint)
        for (int64_t i = 0; mt_stage_part(stage, i); i++)
            MTT_NEED(mt_model_checkpoint(mt_stage_part(stage, i), t->checkpoint) == MT_OK);
    mt_optimizer *optimizer = mt_adamw_new(mt_stage_stepped(stage), &adamw);
    MTT_NEED(optimizer);
    for (int step = 0; step < STEPS; step++) {
        double loss;
        one_step(t, &h, stage, device, optimizer, step, &loss);
        if (all.rank == 0) t->losses[step] = loss;
        MT_AUTO mt_tensor *own = mt_full(device, MT_F64, 0, NULL, loss);
        MT_AUTO mt_tensor *sum = mt_all_reduce(own, &all);
        MTT_NEED(sum && fabs(mt_item(sum) / (double)all.ranks - loss) < 1e-12);
    }
    mt_optimizer_free(optimizer);
    mt_stage_free(stage);
    mt_device_release(device);
    mt_parallel_close(&h);
}

static void train(training *t)
{
    const mt_parallel *h = &t->parallel;
    mtt_as_ranks(at_least_1(h->tensor) * at_least_1(h->context) * at_least_1(h->data) *
                     at_least_1(h->pipeline),
                 train_rank, t);
}

/* The largest difference between two curves, over the first loss. */
static double difference(const double a[STEPS], const double b[STEPS])
{
    double most = 0;
    for (int i = 0; i < STEPS; i++)
        if (!(fabs(a[i] - b[i]) <= most)) most = fabs(a[i] - b[i]);
    return most / a[0];
}

static void show(const char *model, const mt_parallel *h, double difference)
{
    print_message(
        "%-12s t %lld%s c %lld d %lld zero %d, %lld microbatches: %.1e from one process\n", model,
        (long long)at_least_1(h->tensor), h->sequence ? " sp" : "",
        (long long)at_least_1(h->context), (long long)at_least_1(h->data), h->zero,
        (long long)at_least_1(h->microbatches), difference);
}

/* ---- tests ---- */

/* f32 sums in another order; the largest seen was 4.3e-7. */
#define ROUNDING 5e-6

static void data_parallel_ranks_follow_one_process(void **state)
{
    (void)state;
    static const mt_parallel splits[] = {
        {.data = 1}, {.data = 2}, {.data = 4}, {.data = 2, .microbatches = 2}};
    for (size_t i = 0; i < sizeof models / sizeof *models; i++)
        for (size_t k = 0; k < sizeof splits / sizeof *splits; k++) {
            training t = {.config = &models[i], .parallel = splits[k]};
            double alone[STEPS];
            train_alone(&models[i], at_least_1(splits[k].microbatches), alone);
            assert_true(alone[STEPS - 1] < 0.8 * alone[0]); /* it learns */
            train(&t);
            show(names[i], &splits[k], difference(alone, t.losses));
            assert_true(difference(alone, t.losses) < ROUNDING);
        }
}

/* A tied weight is gathered twice by ZeRO 3, and its two gradients are added after the ranks' are:
 * the only sum that is in another order. */
static void zero_has_the_bits_of_plain_data_parallelism(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof models / sizeof *models; i++)
        for (int64_t data = 2; data <= 4; data += 2) {
            training plain = {.config = &models[i], .parallel = {.data = data}};
            train(&plain);
            for (int zero = 0; zero <= 3; zero++) {
                training t = {.config = &models[i], .parallel = {.data = data, .zero = zero}};
                train(&t);
                bool tied = i == 0 || i == 3;
                show(names[i], &t.parallel, difference(plain.losses, t.losses));
                if (tied && zero == 3)
                    assert_true(difference(plain.losses, t.losses) < ROUNDING);
                else
                    assert_memory_equal(plain.losses, t.losses, sizeof t.losses);
            }
        }
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
    for (size_t i = 0; i < sizeof models / sizeof *models; i++)
        for (size_t k = 0; k < sizeof splits / sizeof *splits; k++) {
            training t = {.config = &models[i], .parallel = splits[k]};
            double alone[STEPS];
            train_alone(&models[i], at_least_1(splits[k].microbatches), alone);
            train(&t);
            show(names[i], &splits[k], difference(alone, t.losses));
            assert_true(difference(alone, t.losses) < ROUNDING);
        }
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
    };
    static const char *const checkpoints[] = {"none", "full", "selective", "ops"};
    for (size_t i = 0; i < sizeof models / sizeof *models; i++)
        for (size_t k = 0; k < sizeof splits / sizeof *splits; k++) {
            mt_model_config c = models[i];
            if (k % 2) c.attention = MT_ATTENTION_MATH;
            training t = {
                .config = &c, .parallel = splits[k], .checkpoint = checkpoints[(i + k / 2) % 4]};
            double alone[STEPS];
            train_alone(&c, at_least_1(splits[k].microbatches), alone);
            train(&t);
            show(names[i], &splits[k], difference(alone, t.losses));
            assert_true(difference(alone, t.losses) < ROUNDING);
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
    static const char *const labels[] = {"gpt", "llama", "bert"};
    for (size_t i = 0; i < sizeof dropped / sizeof *dropped; i++) {
        double alone[STEPS], without[STEPS];
        mt_model_config plain = dropped[i];
        plain.dropout = 0;
        train_alone(&dropped[i], 1, alone);
        train_alone(&plain, 1, without);
        assert_true(difference(alone, without) > 1e-3); /* masks matter */
        for (size_t k = 0; k < sizeof splits / sizeof *splits; k++) {
            training t = {.config = &dropped[i],
                          .parallel = splits[k],
                          .checkpoint = checkpoints[(i + k) % 3]};
            train(&t);
            show(labels[i], &splits[k], difference(alone, t.losses));
            assert_true(difference(alone, t.losses) < ROUNDING);
        }
    }
}

/* A step of a rank without data; false if something fails. */
static bool step_on_meta(mt_device *meta, const mt_parallel *h)
{
    mt_tensor *x = mt_zeros(meta, MT_I64, MT_SHAPE(BATCH, SEQ / at_least_1(h->context)));
    mt_stage *stage = mt_stage_new(meta, &dropped[0], h);
    mt_optimizer *optimizer = stage ? mt_adamw_new(mt_stage_stepped(stage), &adamw) : NULL;
    bool ok = x && optimizer && mt_stage_backward(stage, &x, &x, NULL) == MT_OK &&
              mt_stage_step(stage, optimizer, MAX_NORM, NULL) == MT_OK;
    mt_optimizer_free(optimizer);
    mt_stage_free(stage);
    mt_release(x);
    return ok;
}

static void every_refused_request_for_memory_is_reported(void **state)
{
    (void)state;
    for (int zero = 0; zero <= 3; zero++) {
        mt_parallel h = {
            .tensor = 2, .sequence = true, .context = 2, .data = 3, .zero = zero, .data_rank = 2};
        bool done = false;
        for (uint64_t n = 1; !done; n = mtt_next_refusal(n)) {
            mt_device *meta = mt_device_open("meta");
            mti_fail_nth_alloc(n);
            bool ok = step_on_meta(meta, &h);
            done = ok && mti_alloc_count() < n;
            mti_fail_nth_alloc(0);
            assert_int_equal(mtt_allocated(meta), 0);
            assert_int_equal(mt_last_status(), ok ? MT_OK : MT_ERR_MEMORY);
            mt_clear_error();
            mt_device_release(meta);
        }
    }
}

static void bad_calls_are_refused(void **state)
{
    (void)state;
    mt_device *cpu = mt_device_open("cpu");
    assert_null(mt_stage_new(cpu, &models[0], &(mt_parallel){.data = 2}));
    mtt_failed(MT_ERR_UNSUPPORTED, "on cpu without a comm", "mt_parallel_place");
    assert_null(mt_stage_new(cpu, &models[0], &(mt_parallel){.pipeline = 2}));
    mtt_failed(MT_ERR_UNSUPPORTED, "2 stages on cpu", "meta");
    assert_null(mt_stage_new(cpu, &models[0], &(mt_parallel){.context = 2}));
    mtt_failed(MT_ERR_UNSUPPORTED, "on cpu without a comm", "mt_parallel_place");
    mt_stage *stage = mt_stage_new(cpu, &models[0], NULL);
    mt_tensor *x = mt_zeros(cpu, MT_I64, MT_SHAPE(1, SEQ + 1));
    assert_int_equal(mt_stage_backward(stage, &x, &x, NULL), MT_ERR_ARGUMENT);
    mtt_failed(MT_ERR_ARGUMENT, "17 tokens", "context, 16");
    assert_int_equal(mt_stage_backward(stage, NULL, &x, NULL), MT_ERR_ARGUMENT);
    mtt_failed(MT_ERR_ARGUMENT, "the tokens are NULL");
    mt_optimizer *optimizer = mt_adamw_new(mt_stage_stepped(stage), &adamw);
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(data_parallel_ranks_follow_one_process),
        cmocka_unit_test(tensor_parallel_ranks_follow_one_process),
        cmocka_unit_test(ranks_with_pieces_of_sequences_follow_one_process),
        cmocka_unit_test(masks_are_those_of_one_process),
        cmocka_unit_test(every_refused_request_for_memory_is_reported),
        cmocka_unit_test(bad_calls_are_refused),
        cmocka_unit_test(zero_has_the_bits_of_plain_data_parallelism),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

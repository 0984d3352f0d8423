/* A rank with a piece of every sequence keeps what one process would keep of so short ones, sees
 * the keys of all shards, or of those up to its own, and sends just its keys and values. */
#include "base/base.h"
#include "measure/two_steps.h"
#include "memtape/ops.h"
#include "plan/plan.h"
#include "mtt.h"

enum { B = 2, S = 32, LAYERS = 2 };

static const mt_model_config models[] = {
    {.hidden = 32, .heads = 4, .layers = LAYERS, .vocab = 48, .context = S, .dropout = 0.1},
    {.hidden = 32,
     .heads = 4,
     .layers = LAYERS,
     .vocab = 48,
     .context = S,
     .norm = MT_NORM_POST,
     .untied = true},
    {.kind = MT_MODEL_LLAMA,
     .hidden = 32,
     .heads = 8,
     .kv_heads = 4,
     .ffn = 48,
     .layers = LAYERS,
     .vocab = 48,
     .context = S,
     .qk_norm = MT_QK_NORM_HEAD,
     .unturned_period = 2,
     .dtype = MT_BF16},
    {.kind = MT_MODEL_LLAMA,
     .hidden = 32,
     .heads = 8,
     .kv_heads = 2,
     .ffn = 48,
     .layers = LAYERS,
     .vocab = 48,
     .context = S,
     .joint_products = true,
     .rope_dim = 2,
     .dtype = MT_BF16},
    {.hidden = 32,
     .heads = 4,
     .layers = LAYERS,
     .vocab = 48,
     .context = S,
     .norm = MT_NORM_PARALLEL,
     .untied = true,
     .rope_theta = 500,
     .rope_dim = 2,
     .joint_products = true,
     .qkv_by_head = true},
    {.kind = MT_MODEL_BERT,
     .hidden = 32,
     .heads = 4,
     .layers = LAYERS,
     .vocab = 48,
     .context = S,
     .dropout = 0.1},
};
enum { N_MODELS = sizeof models / sizeof *models };

static mt_rank_report measure(const mt_model_config *c, mt_parallel h, int64_t seq,
                              const char *checkpoint)
{
    mt_rank_report r;
    mt_device *meta = mt_device_open("meta");
    mtt_ok(mt_set_balance_check(meta, true));
    mtt_ok(mt_rank_measure(meta, c, &h, B, seq, checkpoint, &r));
    mt_device_release(meta);
    return r;
}

/* Flash attention keeps queries, keys and values of the rank's positions alone, whichever they are.
 */
static void a_piece_keeps_what_a_sequence_of_its_length_keeps(void **state)
{
    (void)state;
    static const char *const checkpoints[] = {"none", "full", "selective", "ops"};
    for (int i = 0; i < N_MODELS; i++)
        for (int k = 0; k < 4; k++)
            for (int64_t c = 2; c <= 8; c *= 2) {
                size_t alone = measure(&models[i], (mt_parallel){0}, S / c, checkpoints[k]).saved;
                for (int64_t r = 0; r < c; r++) {
                    mt_parallel h = {.context = c, .context_rank = r};
                    assert_int_equal(measure(&models[i], h, S, checkpoints[k]).saved, alone);
                }
            }
}

static void every_byte_is_explained(void **state)
{
    (void)state;
    static const char *const checkpoints[] = {"none", "full", "selective", "ops"};
    static const mt_parallel splits[] = {
        {.context = 2},
        {.context = 4, .data = 2, .zero = 3},
        {.tensor = 2, .context = 4, .microbatches = 3},
        {.tensor = 2, .sequence = true, .context = 2, .pipeline = 2, .zero = 1},
        {.context = 4, .pipeline = 2, .stage = 1, .data = 3, .zero = 2},
    };
    int n = 0;
    for (int i = 0; i < N_MODELS; i++)
        for (size_t k = 0; k < sizeof splits / sizeof *splits; k++)
            for (int j = 0; j < 8; j++)
                for (int64_t r = 0; r < splits[k].context; r++, n++) {
                    mt_model_config c = models[i];
                    mt_parallel h = splits[k];
                    c.attention = j < 4 ? MT_ATTENTION_FLASH : MT_ATTENTION_MATH;
                    h.context_rank = r;
                    mt_rank_report x = measure(&c, h, S, checkpoints[j % 4]);
                    mti_formula f;
                    const mti_memory_options memory = {.checkpoint =
                                                           j % 4 ? checkpoints[j % 4] : NULL};
                    assert_true(mti_formula_make(&f, &c, B, S, &memory, &h, x.saved));
                    assert_true(f.known && f.unexplained == 0);
                    assert_int_equal(x.formula, f.bytes);
                    assert_int_equal(x.unexplained, 0);
                }
    print_message("%d ranks, each to the byte\n", n);
}

/* a b s/c columns: of the keys that the rank's queries see. */
static void weights_have_a_column_for_each_key_that_is_seen(void **state)
{
    (void)state;
    const int64_t c = 4, e = sizeof(float);
    for (int causal = 0; causal < 2; causal++) {
        mt_model_config m = models[causal ? 1 : N_MODELS - 1];
        m.attention = MT_ATTENTION_MATH;
        m.dropout = 0;
        for (int64_t r = 0; r + 1 < c; r++) {
            mt_parallel h = {.context = c, .context_rank = r}, next = h;
            next.context_rank++;
            int64_t more =
                (int64_t)measure(&m, next, S, NULL).saved - (int64_t)measure(&m, h, S, NULL).saved;
            int64_t columns = causal ? S / c : 0;
            assert_int_equal(more, LAYERS * m.heads * B * (S / c) * columns * e);
        }
    }
}

static mti_measurement step_of(const mt_model_config *c, mt_parallel h, const char *checkpoint)
{
    mti_measurement m;
    mti_workload w = {.batch = B,
                      .seq = S,
                      .config = *c,
                      .optimizer = MTI_OPT_ADAMW,
                      .memory = {.checkpoint = checkpoint},
                      .ranked = true,
                      .parallel = h,
                      .device.kind = "meta"};
    mt_device *meta = mti_device_make(&w.device);
    if (!mti_measure(&m, meta, &w, NULL)) fail_msg("%s", mt_last_error());
    mt_device_release(meta);
    return m;
}

/* (c-1)/c of all keys and values: gathered in forward and in backward, where their gradients are
 * summed and scattered; gathered once more where attention is made again. */
static void keys_and_values_are_all_that_is_sent_for_positions(void **state)
{
    (void)state;
    for (int i = 0; i < N_MODELS; i++)
        for (int again = 0; again < 2; again++)
            for (int64_t c = 1; c <= 4; c *= 2) {
                mt_model_config m;
                mtt_ok(mt_model_config_resolve(&models[i], &m));
                mti_measurement x = step_of(&m, (mt_parallel){.context = c}, again ? "full" : NULL);
                int64_t keys = B * S * m.kv_heads * m.head_dim * (int64_t)mt_dtype_size(m.dtype);
                assert_int_equal(x.steady.sent.context,
                                 LAYERS * 2 * (3 + again) * (keys / c * (c - 1)));
                mti_measurement_free(&x);
            }
}

/* With a causal mask rank r of c does r + 1 of c parts of what the last does. */
static void the_last_of_causal_ranks_computes_most(void **state)
{
    (void)state;
    const int64_t c = 4;
    mt_model_config m;
    mtt_ok(mt_model_config_resolve(&models[1], &m));
    const int64_t product = 2 * B * (S / c) * S * m.heads * m.head_dim * LAYERS;
    mti_measurement last = step_of(&m, (mt_parallel){.context = c, .context_rank = c - 1}, NULL);
    for (int64_t r = 0; r < c; r++) {
        mti_measurement x = step_of(&m, (mt_parallel){.context = c, .context_rank = r}, NULL);
        int64_t less = (int64_t)(last.steady.flops.forward - x.steady.flops.forward);
        assert_int_equal(less, 2 * product * (c - 1 - r) / c);
        assert_true(x.steady.peak <= last.steady.peak);
        assert_true(x.steady.reserved <= last.steady.reserved);
        mti_measurement_free(&x);
    }
    mti_measurement_free(&last);
}

/* Whether the others have other data or other positions, there are as many pieces. */
static void zero_cuts_states_among_all_with_the_same_parameters(void **state)
{
    (void)state;
    for (int i = 0; i < N_MODELS; i++)
        for (int zero = 0; zero <= 3; zero++) {
            mt_rank_report x = measure(&models[i], (mt_parallel){.data = 4, .zero = zero}, S, NULL);
            mt_parallel h = {.context = 2, .data = 2, .zero = zero};
            mt_rank_report y = measure(&models[i], h, S, NULL);
            assert_int_equal(x.param_bytes, y.param_bytes);
            assert_int_equal(x.grad_bytes, y.grad_bytes);
            assert_int_equal(x.optimizer_bytes, y.optimizer_bytes);
        }
}

static void what_cannot_be_cut_is_refused(void **state)
{
    (void)state;
    mt_rank_report r;
    mt_device *meta = mt_device_open("meta"), *cpu = mt_device_open("cpu");
    mt_parallel h = {.tensor = 2, .sequence = true, .context = 3};
    mt_rank_measure(meta, &models[1], &h, B, 32, NULL, &r);
    mtt_failed(MT_ERR_ARGUMENT, "32 tokens", "among 6 ranks");
    h = (mt_parallel){.context = 2, .context_rank = 2};
    mt_rank_measure(meta, &models[1], &h, B, S, NULL, &r);
    mtt_failed(MT_ERR_ARGUMENT, "context_rank is 2", "0 to 1");
    h = (mt_parallel){.context = -2};
    mt_rank_measure(meta, &models[1], &h, B, S, NULL, &r);
    mtt_failed(MT_ERR_ARGUMENT, "context is -2");
    mt_comm *ends[2];
    mtt_ok(mt_comm_of_threads(2, ends));
    h = (mt_parallel){.context = 2, .context_comm = ends[0], .data_comm = ends[0]};
    assert_null(mt_stage_new(cpu, &models[0], &h));
    mtt_failed(MT_ERR_UNSUPPORTED, "dropout 0.1", "masks");
    h.context_rank = 1;
    assert_null(mt_stage_new(cpu, &models[1], &h));
    mtt_failed(MT_ERR_ARGUMENT, "context_comm is rank 0 of 2");
    for (int i = 0; i < 2; i++) mt_comm_free(ends[i]);
    mt_device_release(meta);
    mt_device_release(cpu);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_piece_keeps_what_a_sequence_of_its_length_keeps),
        cmocka_unit_test(every_byte_is_explained),
        cmocka_unit_test(weights_have_a_column_for_each_key_that_is_seen),
        cmocka_unit_test(keys_and_values_are_all_that_is_sent_for_positions),
        cmocka_unit_test(the_last_of_causal_ranks_computes_most),
        cmocka_unit_test(zero_cuts_states_among_all_with_the_same_parameters),
        cmocka_unit_test(what_cannot_be_cut_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

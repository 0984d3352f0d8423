/* What one rank of several refuses, and that it ends without leaks where memory is refused to it.
 */
#include "base/base.h"
#include "measured_rank.h"

static void indivisible_shares_are_refused_by_name(void **state)
{
    (void)state;
    static const struct {
        mt_parallel split;
        int model;
        const char *words[2];
    } bad[] = {
        {{.tensor = 3}, 0, {"tensor is 3", "heads, 4"}},
        {{.tensor = 8}, 2, {"tensor is 8", "kv_heads, 4"}},
        {{.tensor = -1}, 0, {"tensor is -1", "need 1"}},
        {{.pipeline = 5}, 0, {"pipeline times interleave is 5", "layers, 4"}},
        {{.pipeline = 2, .interleave = 4}, 0, {"pipeline times interleave is 8", "layers, 4"}},
        {{.interleave = 2}, 0, {"interleave is 2", "2 stages or more"}},
        {{.pipeline = 2, .interleave = 2, .microbatches = 3}, 0, {"pipeline is 2", "microbatches"}},
        {{.pipeline = 2, .stage = 2}, 0, {"stage is 2", "0 to 1"}},
        {{.zero = 4}, 0, {"zero is 4", "0 to 3"}},
        {{.data = 1ll << 40}, 0, {"data is", "1048576"}},
        {{.microbatches = -2}, 0, {"microbatches is -2", "need 1"}},
        {{.data = 4, .zero = 3, .replicas = 3}, 0, {"replicas is 3", "data times context, 4"}},
        {{.data = 4, .zero = 2, .replicas = 2}, 0, {"2 replicas", "need stage 3"}},
        {{.data = 4, .zero = 3, .fsdp = MT_FSDP_BLOCK, .reshard = 3}, 0, {"reshard is 3", "4"}},
        {{.data = 4, .zero = 3, .reshard = MT_RESHARD_NEVER}, 0, {"reshard -2", "blocks"}},
        {{.data = 4, .zero = 3, .fsdp = MT_FSDP_REDUCE_LAST}, 0, {"fsdp is 128", "blocks"}},
        {{.data = 2, .zero = 3, .fsdp = MT_FSDP_TORCHTITAN_GROUPED & ~48u},
         0,
         {"a gpt", "separate weight"}},
        {{.data = 2, .zero = 2, .host_shards = true}, 0, {"host_shards", "needs zero 3"}},
        {{.data = 2, .zero = 2, .fsdp = MT_FSDP_BLOCK}, 0, {"zero 2", "fsdp needs zero 3"}},
        {{.data = 2, .zero = 3, .reduce_inputs = 2}, 0, {"reduce_inputs 2", "needs blocks"}},
        {{.data = 2, .zero = 3, .fsdp = MT_FSDP_KEEP_LAST}, 0, {"fsdp is 4", "KEEP_LAST needs"}},
        {{.data = 2, .pipeline = 2, .zero = 3, .fsdp = MT_FSDP_KEEP_ROOT},
         0,
         {"pipeline 2", "KEEP_ROOT needs"}},
        {{.data = 2, .zero = 3, .fsdp = MT_FSDP_F32_SHARDS}, 0, {"in f32", "in bf16 or f16"}},
        {{.data = 2, .pipeline = 2, .zero = 3, .fsdp = MT_FSDP_BLOCK, .reshard = 2},
         0,
         {"reshard 2", "pipeline 1"}},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        if (mt_parallel_check(&bad[i].split, &mtt_small_models[bad[i].model]) == MT_OK)
            fail_msg("taken: case %zu", i);
        mtt_failed(MT_ERR_ARGUMENT, bad[i].words[0], bad[i].words[1]);
    }
    mt_model_config mlp = {.kind = MT_MODEL_MLP, .hidden = 32};
    assert_int_not_equal(mt_parallel_check(NULL, &mlp), MT_OK);
    mtt_failed(MT_ERR_ARGUMENT, "the model is a mlp", "block, gpt, bert and llama");
    mt_device *meta = mt_device_open("meta");
    mt_rank_report r;
    assert_int_not_equal(mt_rank_measure(meta, &mtt_small_models[0], NULL, 1, 16, "every=2", &r),
                         MT_OK);
    mtt_failed(MT_ERR_ARGUMENT, "every=2", "selective");
    assert_int_not_equal(mt_rank_measure(meta, &mtt_small_models[0],
                                         &(mt_parallel){.tensor = 4, .sequence = true}, 1, 15,
                                         "none", &r),
                         MT_OK);
    mtt_failed(MT_ERR_ARGUMENT, "15 tokens", "4 ranks");
    assert_int_not_equal(mt_rank_measure(meta, &mtt_small_models[0], NULL, 1, 17, "none", &r),
                         MT_OK);
    mtt_failed(MT_ERR_ARGUMENT, "17 tokens", "context, 16");
    mt_module *rank = mt_rank_new(meta, &mtt_small_models[0], &(mt_parallel){.pipeline = 2}, 0);
    assert_null(mt_rank_wire(rank, meta, 0, 16));
    mtt_failed(MT_ERR_ARGUMENT, "rank_wire", "0 sequences");
    mt_tensor *x = mt_zeros(meta, MT_F32, MT_SHAPE(16));
    assert_null(mt_forward(rank, x));
    mtt_failed(MT_ERR_ARGUMENT, "rank: the tokens are f32 [16]", "i64 [b,s]");
    mt_release(x);
    mt_module_free(rank);
    mt_device_release(meta);
}

static void ranks_among_several_need_a_device_without_data(void **state)
{
    (void)state;
    mt_device *cpu = mt_device_open("cpu");
    assert_null(mt_rank_new(cpu, &mtt_small_models[0], &(mt_parallel){.tensor = 2}, 0));
    mtt_failed(MT_ERR_UNSUPPORTED, "rank", "on cpu without a comm", "meta");
    mt_rank_report r;
    assert_int_not_equal(mt_rank_measure(cpu, &mtt_small_models[0], NULL, 1, 16, NULL, &r), MT_OK);
    mtt_failed(MT_ERR_UNSUPPORTED, "rank_measure", "cpu");
    mt_device_release(cpu);
}

static void every_refused_request_for_memory_is_reported(void **state)
{
    (void)state;
    static const mt_parallel splits[] = {
        {.tensor = 2, .sequence = true, .pipeline = 2, .interleave = 2, .microbatches = 2},
        {.tensor = 2, .data = 3, .zero = 2},
        {.tensor = 2, .sequence = true, .data = 3, .zero = 3},
        {.data = 3, .zero = 3, .fsdp = MT_FSDP_AHEAD | MT_FSDP_KEEP_LAST},
        {.data = 4,
         .zero = 3,
         .fsdp = MT_FSDP_AHEAD | MT_FSDP_GROUP_ENDS | MT_FSDP_F32_SHARDS,
         .replicas = 2,
         .reshard = 2,
         .reduce_inputs = 2},
        {.data = 1, .zero = 3, .fsdp = MT_FSDP_PYTORCH | MT_FSDP_REDUCE_LAST, .microbatches = 2}};
    mt_model_config c = mtt_small_models[0];
    c.layers = 4, c.dtype = MT_BF16;
    for (size_t i = 0; i < sizeof splits / sizeof *splits; i++) {
        c.untied = splits[i].fsdp & MT_FSDP_GROUP_ENDS;
        bool done = false;
        for (uint64_t n = 1; !done; n += n < 400 ? 1 : 37) {
            mt_device *meta = mt_device_open("meta");
            mt_rank_report r;
            mt_mem_stats stats;
            mti_fail_nth_alloc(n);
            /* if the second request for a segment succeeds, nothing has failed */
            bool ok = mt_rank_measure(meta, &c, &splits[i], 1, 16, "selective", &r) == MT_OK;
            done = ok && mti_alloc_count() < n;
            mti_fail_nth_alloc(0);
            mt_mem_get_stats(meta, &stats);
            assert_int_equal(stats.allocated.current, 0);
            assert_int_equal(mt_last_status(), ok ? MT_OK : MT_ERR_MEMORY);
            mt_clear_error();
            mt_device_release(meta);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(indivisible_shares_are_refused_by_name),
        cmocka_unit_test(ranks_among_several_need_a_device_without_data),
        cmocka_unit_test(every_refused_request_for_memory_is_reported),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

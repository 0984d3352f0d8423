/* What memory one rank of several needs: to be made, and for its steps; every byte of it has a
 * name. */
#include "measured_rank.h"

/* Neither the parameters that ZeRO divides nor a tied head's weight are ever in memory as a whole.
 */
static void making_a_rank_allocates_only_what_it_has(void **state)
{
    (void)state;
    for (int i = 0; i < MTT_SMALL_MODELS; i++)
        for (int zero = 0; zero <= 3; zero++) {
            mt_device *meta = mt_device_open("meta");
            mt_parallel split = {.tensor = 2, .data = 8, .zero = zero};
            mt_module *m = mt_rank_new(meta, &mtt_small_models[i], &split, 0);
            mt_mem_stats stats;
            mt_mem_get_stats(meta, &stats);
            assert_int_equal(stats.allocated.current, mtt_blocks_of(m));
            assert_int_equal(stats.allocated.peak, stats.allocated.current);
            mt_module_free(m);
            mt_device_release(meta);
        }
}

/* 175 billion parameters on 64 ranks take 2/64 bytes each, and the pieces fill their segments. */
static void gpt3_on_64_ranks_is_made_in_5_5_gb(void **state)
{
    (void)state;
    mt_model_config c;
    mt_mem_stats stats;
    mt_device *meta = mt_device_open("meta");
    mtt_ok(mt_model_preset("gpt3-175b", &c));
    c.dtype = MT_BF16;
    mt_module *m = mt_rank_new(meta, &c, &(mt_parallel){.data = 64, .zero = 3}, 0);
    if (!m) fail_msg("%s", mt_last_error());
    mt_mem_get_stats(meta, &stats);
    assert_int_equal(stats.requested.peak, 174604259328 / 64 * 2);
    assert_int_equal(stats.allocated.peak, 5456494080 + 512 * 1024); /* rounded, and one rest */
    assert_int_equal(stats.reserved.peak, 5674893312);
    mt_module_free(m);
    mt_device_release(meta);
}

/* The categories at the peak add up to the peak, with all parameters and AdamW's state. */
static void check_steady(const mt_model_config *c, const mt_parallel *split,
                         const mt_rank_report *r)
{
    size_t sum = 0, parameters = 0;
    mt_device *meta = mt_device_open("meta");
    for (int64_t part = 0; part < (split->interleave ? split->interleave : 1); part++) {
        mt_module *m = mt_rank_new(meta, c, split, part);
        if (!m) fail_msg("%s", mt_last_error());
        parameters += mtt_blocks_of(m);
        mt_module_free(m);
    }
    mt_device_release(meta);
    for (int k = 0; k < MT_CATEGORY_COUNT; k++) sum += r->steady_by_category[k];
    assert_int_equal(sum, r->steady_peak);
    assert_int_equal(r->steady_by_category[MT_PARAMETER], parameters);
    assert_true(r->steady_by_category[MT_OPTIMIZER] >= r->optimizer_bytes);
    assert_true(r->steady_peak >= r->param_bytes + r->grad_bytes + r->optimizer_bytes);
    assert_true(r->steady_peak >= r->param_bytes + r->optimizer_bytes + r->saved);
    assert_true(r->steady_peak > r->peak && r->steady_reserved >= r->steady_peak);
}

static mt_status measure_within(size_t capacity, const mt_model_config *c, const mt_parallel *split)
{
    mt_rank_report r;
    mt_mem_stats stats;
    mt_device *meta = mt_device_open("meta");
    mt_mem_set_capacity(meta, capacity);
    mt_status status = mt_rank_measure(meta, c, split, 4, 16, NULL, &r);
    mt_clear_error();
    mt_mem_get_stats(meta, &stats);
    assert_int_equal(stats.allocated.current, 0);
    mt_device_release(meta);
    return status;
}

/* Different shares; the optimizer's state decides in all but ZeRO's. */
static void a_rank_runs_in_what_it_needs_but_not_in_less(void **state)
{
    (void)state;
    static const mt_parallel splits[] = {
        {0},
        {.tensor = 2, .sequence = true},
        {.pipeline = 4, .microbatches = 8},
        {.pipeline = 2, .interleave = 2, .microbatches = 4, .stage = 1},
        {.data = 4, .zero = 1},
        {.data = 4, .zero = 2, .microbatches = 3},
        {.data = 4, .zero = 3},
        {.tensor = 2, .pipeline = 2, .data = 3, .zero = 3}};
    for (int i = 0; i < MTT_SMALL_MODELS; i++)
        for (size_t k = 0; k < sizeof splits / sizeof *splits; k++) {
            mt_model_config c = mtt_small_models[i];
            c.dtype = MT_BF16, c.hidden = 256, c.ffn = 1024, c.vocab = 4096;
            mt_rank_report r = mtt_measure_rank(&c, splits[k], 4, 16, NULL);
            check_steady(&c, &splits[k], &r);
            assert_int_equal(measure_within(r.steady_reserved, &c, &splits[k]), MT_OK);
            assert_int_equal(measure_within(r.steady_peak - 1, &c, &splits[k]), MT_ERR_MEMORY);
            /* enough only for the first step's forward and backward */
            if (r.reserved < r.steady_peak)
                assert_int_equal(measure_within(r.reserved, &c, &splits[k]), MT_ERR_MEMORY);
        }
}

/* ---- random ranks ---- */

static int64_t pick(uint64_t *seed, int64_t n) { return (int64_t)mtt_draw(seed, 0, (double)n); }

static void every_byte_of_a_random_rank_is_explained(void **state)
{
    (void)state;
    static const char *const checkpoints[] = {"none", "full", "selective", "ops"};
    static const mt_dtype dtypes[] = {MT_F32, MT_BF16, MT_F16};
    enum { N = 300 };
    uint64_t seed = 20221;
    for (int i = 0; i < N; i++) {
        mt_model_config c = mtt_small_models[pick(&seed, MTT_SMALL_MODELS)];
        c.dtype = dtypes[pick(&seed, 3)];
        c.dropout = pick(&seed, 2) ? 0.1 : 0;
        c.attention = pick(&seed, 2) ? MT_ATTENTION_MATH : MT_ATTENTION_FLASH;
        if (c.kind != MT_MODEL_LLAMA) c.act = (mt_act)pick(&seed, MT_ACT_COUNT);
        mt_parallel split = {.tensor = 1 << pick(&seed, 3),
                             .sequence = pick(&seed, 2),
                             .pipeline = 1 << pick(&seed, 2),
                             .data = 1 + pick(&seed, 3),
                             .zero = (int)pick(&seed, 4)};
        split.interleave = split.pipeline > 1 ? 1 + pick(&seed, 2) : 1;
        split.stage = pick(&seed, split.pipeline);
        split.microbatches = split.pipeline * (1 + pick(&seed, 3));
        mt_rank_report r =
            mtt_measure_rank(&c, split, 1 + pick(&seed, 2), 16, checkpoints[pick(&seed, 4)]);
        if (r.unexplained) fail_msg("case %d: %lld bytes", i, (long long)r.unexplained);
        assert_int_equal(r.saved > 0, true);
        check_steady(&c, &split, &r);
    }
    print_message("%d random ranks from seed 20221\n", N);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(making_a_rank_allocates_only_what_it_has),
        cmocka_unit_test(gpt3_on_64_ranks_is_made_in_5_5_gb),
        cmocka_unit_test(a_rank_runs_in_what_it_needs_but_not_in_less),
        cmocka_unit_test(every_byte_of_a_random_rank_is_explained),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

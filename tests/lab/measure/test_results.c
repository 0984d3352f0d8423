/* results.c: measurements as structs: their equations hold, and a refusal is a result, too. */
#include <math.h>
#include <string.h>
#include "measure/costs.h"
#include "measure/profile.h"
#include "measure/headroom.h"
#include "measure/sweep.h"
#include "measure/tape.h"
#include "mtt.h"
#include "report/results.h"

static const char advice[] = "take a larger one";

static mti_workload workload(mt_model_kind kind, const char *device)
{
    bool whole = kind == MT_MODEL_GPT;
    return (mti_workload){.name = "the model",
                          .config = {.kind = kind,
                                     .hidden = 64,
                                     .heads = 4,
                                     .layers = whole ? 2 : 0,
                                     .vocab = whole ? 256 : 0,
                                     .context = whole ? 32 : 0,
                                     .act = MT_ACT_GELU,
                                     .causal = whole,
                                     .dtype = MT_F32},
                          .batch = 2,
                          .seq = 32,
                          .seed = 1,
                          .optimizer = MTI_OPT_ADAMW,
                          .device = {.kind = device}};
}

static size_t sum_of(const size_t by_category[MT_CATEGORY_COUNT])
{
    size_t sum = 0;
    for (int c = 0; c < MT_CATEGORY_COUNT; c++) sum += by_category[c];
    return sum;
}

static int64_t integer_at(const json_t *object, const char *outer, const char *inner)
{
    return json_integer_value(json_object_get(json_object_get(object, outer), inner));
}

static void a_profile_agrees_with_its_json(void **state)
{
    (void)state;
    for (int kind = 0; kind < 2; kind++) {
        mti_workload w = workload(kind ? MT_MODEL_GPT : MT_MODEL_MLP, "meta");
        mti_profile_result p;
        assert_true(mti_profile_make(&p, &w, advice, false));
        const mti_growth *g = &p.measured.growth;
        const mti_steady *steady = &p.measured.steady;
        size_t saved = mt_ledger_bytes(p.measured.ledger);
        assert_int_equal(g->residual, 0);
        assert_int_equal(g->saved, saved);
        assert_int_equal(g->measured,
                         g->saved - g->before + g->rounding + g->output + g->workspace);
        assert_true(p.formula.known);
        assert_int_equal(p.formula.unexplained, 0);
        assert_int_equal(sum_of(steady->by_category), steady->peak);
        assert_int_equal(
            p.measured.timeline.events.at[mti_timeline_peak(&p.measured.timeline)].current,
            steady->peak);
        assert_true(isnan(steady->seconds)); /* meta has no times */
        json_t *json = mti_json_of(mti_describe_profile, &(mti_profile_object){.profile = &p});
        assert_int_equal(integer_at(json, "saved", "bytes"), saved);
        assert_int_equal(integer_at(json, "growth", "measured"), g->measured);
        assert_int_equal(integer_at(json, "steady", "peak"), steady->peak);
        assert_int_equal(integer_at(json, "peak", "allocated"), steady->peak);
        assert_int_equal(integer_at(json, "params", "count"), p.measured.n_params);
        json_decref(json);
        mti_profile_free(&p);
    }
}

static void a_refused_profile_keeps_what_was_measured_before(void **state)
{
    (void)state;
    mti_profile_result p;
    mti_workload w = workload(MT_MODEL_GPT, "meta");
    w.device.capacity = 2 << 20;
    size_t event;
    assert_false(mti_profile_make(&p, &w, advice, false));
    mtt_failed(MT_ERR_MEMORY, "capacity");
    assert_true(mti_timeline_refusal(&p.measured.timeline, &event));
    size_t held[MT_CATEGORY_COUNT];
    mti_timeline_categories(&p.measured.timeline, event, held);
    assert_int_equal(sum_of(held), p.measured.timeline.events.at[event].current);
    mti_profile_free(&p);
}

static void the_largest_batch_fits_and_one_more_does_not(void **state)
{
    (void)state;
    mti_workload w = workload(MT_MODEL_GPT, "meta");
    w.device.capacity = 8 << 20;
    for (int in_batches = 0; in_batches < 2; in_batches++) {
        mti_largest fit = {0};
        assert_true(mti_largest_find(&fit, &w, in_batches));
        assert_true(fit.largest > 0);
        assert_int_equal(fit.refused, fit.largest + 1);
        assert_true(fit.need.reserved <= w.device.capacity);
        assert_int_equal(sum_of(fit.need.at_peak), fit.need.peak);
        for (int more = 0; more < 2; more++) {
            mti_workload with = w;
            mti_measurement m;
            mti_requirement need;
            bool refused;
            *(in_batches ? &with.batch : &with.seq) = fit.largest + more;
            if (with.seq > with.config.context) with.config.context = with.seq;
            bool fits = mti_measure_requirement(&need, &m, &with, NULL, &refused);
            mti_measurement_free(&m);
            assert_int_equal(fits, !more);
            assert_int_equal(refused, more);
            if (more) mtt_failed(MT_ERR_MEMORY, "capacity");
        }
    }
}

static size_t n_told;
static void count(void *user, int64_t turn, int64_t n_turns, size_t entry)
{
    assert_ptr_equal(user, &n_told);
    assert_true(turn < n_turns && entry < 4);
    n_told++;
}

static void a_sweep_compares_gradients_and_continues_after_a_refusal(void **state)
{
    (void)state;
    mti_sweep_entry entries[4];
    mti_sweep_result results[4] = {0};
    for (int i = 0; i < 4; i++)
        entries[i] = (mti_sweep_entry){"entry", workload(MT_MODEL_GPT, "cpu"), i < 2 ? 2 : 1};
    entries[1].workload.memory.checkpoint = "full";
    entries[2].workload.device.capacity = 1 << 20;
    entries[3].workload.config.act = MT_ACT_RELU;
    assert_true(mti_sweep_run(entries, 4, results, &(mti_sweep_listener){count, &n_told}, advice));
    assert_int_equal(n_told, 2 + 2 + 1 + 1);
    for (int i = 0; i < 4; i++) {
        assert_ptr_equal(results[i].entry, &entries[i]);
        assert_int_equal(results[i].refused, i == 2);
        assert_int_equal(isnan(results[i].step_s), i == 2);
    }
    assert_true(results[1].off.same_bits); /* recomputed values have the same bits */
    assert_true(results[1].saved < results[0].saved);
    assert_true(results[1].loss == results[0].loss);
    assert_false(results[3].off.same_bits);
    assert_true(results[3].off.compared > 0 && results[3].off.relative > 0);
    assert_int_equal(results[3].off.alone, 0);
}

static void a_step_counts_what_every_microbatch_moves(void **state)
{
    (void)state;
    mti_measurement one, four;
    mti_requirement need;
    bool refused;
    mti_workload w = workload(MT_MODEL_GPT, "meta");
    w.memory.offload = MTI_OFFLOAD_CPU;
    assert_true(mti_measure_requirement(&need, &one, &w, NULL, &refused));
    assert_true(one.steady.offloaded > 0 && one.steady.traffic.others > 0);
    assert_int_equal(one.steady.offloaded, one.memory_stats.offload.bytes_out);
    w.ranked = true, w.parallel.microbatches = 4;
    assert_true(mti_measure_requirement(&need, &four, &w, NULL, &refused));
    assert_int_equal(four.steady.offloaded, 4 * one.steady.offloaded);
    assert_int_equal(four.steady.traffic.products, 4 * one.steady.traffic.products);
    assert_int_equal(four.steady.flops.forward, 4 * one.steady.flops.forward);
    mti_measurement_free(&one);
    mti_measurement_free(&four);
}

static void a_refused_rank_says_what_it_needs(void **state)
{
    (void)state;
    mti_workload w = workload(MT_MODEL_GPT, "meta");
    w.device.capacity = 1 << 20;
    w.ranked = true;
    w.parallel = (mt_parallel){.tensor = 2};
    mti_profile_result p;
    assert_false(mti_profile_make(&p, &w, advice, false));
    mtt_failed(MT_ERR_MEMORY, "capacity");
    assert_true(mti_profile_find_requirement(&p));
    assert_true(p.needed.peak > w.device.capacity);
    size_t reserved = p.needed.reserved;
    mti_profile_free(&p);
    w.device.capacity = reserved;
    assert_true(mti_profile_make(&p, &w, advice, false));
    mti_profile_free(&p);
}

static void the_tape_and_the_ledger_count_each_storage_once(void **state)
{
    (void)state;
    mti_tape t;
    mti_profile_result p;
    mti_workload w = workload(MT_MODEL_BLOCK, "meta");
    assert_true(mti_profile_make(&p, &w, advice, false));
    mt_device *device = mti_device_make(&w.device);
    assert_true(mti_tape_record(&t, device, &w));
    size_t bytes = 0;
    for (size_t i = 0; i < t.saves.n; i++) {
        const mti_tape_save *s = &t.saves.at[i];
        assert_int_equal(s->payer->storage, s->storage);
        if (s->payer == s && !s->parameter) bytes += s->bytes;
    }
    assert_int_equal(bytes, mt_ledger_bytes(p.measured.ledger));
    mti_tape_free(&t);
    mti_profile_free(&p);
    mt_device_release(device);
}

static void a_model_too_large_for_the_device_is_refused_before_it_is_made(void **state)
{
    (void)state;
    mti_workload w = workload(MT_MODEL_GPT, "cpu");
    w.config.hidden = 1 << 14;
    w.config.layers = 1 << 12;
    mt_device *device = mti_device_make(&w.device);
    assert_false(mti_check_room_for(device, &w, advice));
    mtt_failed(MT_ERR_MEMORY, "the model takes ", "cpu has room for ", advice);
    assert_int_equal(mtt_allocated(device), 0);
    mt_device_release(device);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_profile_agrees_with_its_json),
        cmocka_unit_test(a_refused_profile_keeps_what_was_measured_before),
        cmocka_unit_test(the_largest_batch_fits_and_one_more_does_not),
        cmocka_unit_test(a_sweep_compares_gradients_and_continues_after_a_refusal),
        cmocka_unit_test(a_step_counts_what_every_microbatch_moves),
        cmocka_unit_test(a_refused_rank_says_what_it_needs),
        cmocka_unit_test(the_tape_and_the_ledger_count_each_storage_once),
        cmocka_unit_test(a_model_too_large_for_the_device_is_refused_before_it_is_made),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

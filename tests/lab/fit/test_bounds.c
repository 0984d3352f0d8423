/* What holds at a bound, and one beyond it: set-ups that need just what a GPU has, the rows of one
 * GPU and of two, the measure of a published set-up, events that move no memory. */
#include <string.h>
#include "base/base.h"
#include "compare/areas.h"
#include "fit/search.h"
#include "measure/overhead.h"
#include "mtt.h"

static mti_workload small_workload(void)
{
    const mt_model_config model = {.kind = MT_MODEL_LLAMA,
                                   .hidden = 64,
                                   .heads = 4,
                                   .layers = 2,
                                   .vocab = 128,
                                   .context = 64,
                                   .dtype = MT_BF16};
    mti_workload w = {.name = "small",
                      .seq = 64,
                      .optimizer = MTI_OPT_ADAMW,
                      .memory.master = true,
                      .device.kind = "meta"};
    mtt_ok(mt_model_config_resolve(&model, &w.config));
    return w;
}

/* How often a set-up of one GPU of that capacity is measured. */
static mti_fit_measured measured_within(size_t capacity)
{
    mt_gpu gpu;
    const mti_workload w = small_workload();
    mti_fit_measured seen = {0};
    mtt_ok(mt_gpu_find("h100", &gpu));
    const mti_fit_task task = {.workload = &w,
                               .gpu = gpu,
                               .gpus = 1,
                               .batch = 1,
                               .seq = 64,
                               .capacity = capacity,
                               .utilisation = 1};
    mt_fit_setup setup = {.parallel = mti_filled_in(&(mt_parallel){.data = 1}),
                          .microbatch = 1,
                          .checkpoint = "none",
                          .offload = "none"};
    if (!mti_fit_measure(&task, &setup, &seen)) fail_msg("%s", mt_last_error());
    return seen;
}

/* Its segments may fit where less is cached, unless more is asked for than there is. */
static void a_set_up_is_tried_within_the_capacity_it_asks_for_and_not_within_less(void **state)
{
    (void)state;
    const mti_fit_measured room = measured_within((size_t)1 << 40);
    assert_int_equal(room.profiles, 1);
    assert_int_equal(measured_within(room.requested).profiles, 2);
    assert_int_equal(measured_within(room.requested - 1).profiles, 1);
}

static int rows_named(const mti_outside *o, const char *name)
{
    int n = 0;
    for (int i = 0; i < o->n; i++) n += !strcmp(o->rows[i].name, name);
    return n;
}

static void one_gpu_has_no_communicator_and_two_have_one(void **state)
{
    (void)state;
    mt_gpu gpu;
    mti_outside one, two;
    mtt_ok(mt_gpu_find("h100", &gpu));
    mti_gpu_outside(&one, &gpu, 1);
    mti_gpu_outside(&two, &gpu, 2);
    assert_int_equal(rows_named(&one, "NCCL, one group"), 0);
    assert_int_equal(rows_named(&two, "NCCL, one group"), 1);
    assert_int_equal(two.n, one.n + 1);
    for (int i = 0; i < one.n; i++) assert_int_equal(rows_named(&two, one.rows[i].name), 1);
}

/* As a search that knows no share of the rate would: the time is at the GPU's own rate. */
static void a_published_set_up_takes_the_time_of_the_full_rate(void **state)
{
    (void)state;
    mti_workload w = {.name = "megatron-22b",
                      .preset = "megatron-22b",
                      .optimizer = MTI_OPT_ADAMW,
                      .memory.master = true,
                      .device.kind = "meta"};
    mt_fit_result r = {.capacity = (size_t)80 << 30};
    mti_fit_published published;
    mti_fit_measured seen = {0};
    mtt_ok(mt_model_preset("megatron-22b", &w.config));
    w.config.dtype = MT_BF16, w.seq = w.config.context;
    mtt_ok(mt_gpu_find("a100-80", &r.gpu));
    if (!mti_fit_measure_published(&w, &r, &published)) fail_msg("%s", mt_last_error());
    assert_non_null(published.source);
    mt_fit_setup again = published.setup;
    mti_fit_task task = {.workload = &w,
                         .gpu = r.gpu,
                         .gpus = published.gpus,
                         .batch =
                             again.parallel.data * again.parallel.microbatches * again.microbatch,
                         .seq = published.seq,
                         .capacity = r.capacity,
                         .utilisation = 1};
    w.memory.recompute = published.recompute;
    if (!mti_fit_measure(&task, &again, &seen)) fail_msg("%s", mt_last_error());
    assert_true(again.time.total > 0 && again.time.total == published.setup.time.total);
    task.utilisation = 0.5;
    if (!mti_fit_measure(&task, &again, &seen)) fail_msg("%s", mt_last_error());
    assert_true(again.time.total > published.setup.time.total);
}

static void events_that_move_no_memory_are_followed_and_change_nothing(void **state)
{
    (void)state;
    static const mt_mem_event_kind others[] = {MT_MEM_OOM, MT_MEM_RECATEGORY};
    mti_areas blocks = {0}, segments = {0};
    mt_mem_event e = {.kind = MT_MEM_ALLOC, .place = 512, .requested = 5, .allocated = 512};
    assert_true(mti_areas_follow(&blocks, &segments, &e, 0));
    for (int i = 0; i < 2; i++) {
        e.kind = others[i], e.place = 512 * (uint64_t)i;
        assert_true(mti_areas_follow(&blocks, &segments, &e, 0));
    }
    assert_int_equal(mti_areas_sort(&blocks), 1);
    assert_int_equal(mti_areas_sort(&segments), 0);
    assert_int_equal(blocks.slots.at[0].place, 512);
    mti_areas_free(&blocks);
    mti_areas_free(&segments);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_set_up_is_tried_within_the_capacity_it_asks_for_and_not_within_less),
        cmocka_unit_test(one_gpu_has_no_communicator_and_two_have_one),
        cmocka_unit_test(a_published_set_up_takes_the_time_of_the_full_rate),
        cmocka_unit_test(events_that_move_no_memory_are_followed_and_change_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

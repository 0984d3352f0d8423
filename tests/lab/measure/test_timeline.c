/* The timeline: who held which memory at each time, computed from events alone. */
#include <string.h>
#include "mtt.h"
#include "report/pictures.h"

/* A tensor of `kib` KiB, made in `module`. */
static mt_tensor *made_in(mt_device *device, const char *module, int64_t kib)
{
    if (*module) mtt_ok(mt_scope_push(module));
    mt_tensor *t = mtt_made(mt_zeros(device, MT_F32, MT_SHAPE(256 * kib)));
    if (*module) mt_scope_pop();
    return t;
}

static void equal_storages_of_numbered_modules_are_one_holder(void **state)
{
    (void)state;
    mt_device *device = mt_device_open("meta");
    mti_timeline t;
    assert_true(mti_timeline_begin(&t, device));
    mt_tensor *made[] = {
        made_in(device, "h.9.fc", 4),   made_in(device, "h.10.fc", 4),
        made_in(device, "h.11.fc", 4),  made_in(device, "h.11.fc", 8), /* another size */
        made_in(device, "h.3.proj", 4), made_in(device, "", 32),
    };
    mt_tensor *gone = made_in(device, "h.4.fc", 4);
    mt_release(gone);
    mtt_ok(mt_set_category(made[4], MT_CACHE));
    assert_true(mti_timeline_end(&t));
    mti_holders h;
    assert_true(mti_timeline_holders(&t, t.events.n - 1, NULL, &h));
    assert_int_equal(h.n, 4);
    assert_string_equal(h.at[0].module, "");
    assert_int_equal(h.at[0].bytes, 32 * 1024);
    assert_string_equal(h.at[1].module, "h.9-11.fc");
    assert_int_equal(h.at[1].n, 3);
    assert_int_equal(h.at[1].bytes, 3 * 4096);
    assert_string_equal(h.at[2].module, "h.11.fc");
    assert_string_equal(h.at[3].module, "h.3.proj");
    assert_int_equal(h.at[3].category, MT_CACHE);
    mti_holders_free(&h);
    mti_timeline_free(&t);
    for (size_t i = 0; i < sizeof made / sizeof *made; i++) mt_release(made[i]);
    mt_device_release(device);
}

static void a_holder_says_how_the_tape_keeps_it(void **state)
{
    (void)state;
    mt_device *device = mt_device_open("meta");
    mti_timeline t;
    assert_true(mti_timeline_begin(&t, device));
    mt_ledger *ledger = mt_ledger_new(device);
    mt_tensor *x = made_in(device, "", 4);
    mtt_ok(mt_set_requires_grad(x, true));
    mtt_ok(mt_ledger_begin(ledger));
    mt_tensor *y = mtt_made(mt_relu(x));
    mtt_ok(mt_ledger_end(ledger));
    assert_true(mti_timeline_end(&t));
    mti_holders h;
    assert_true(mti_timeline_holders(&t, t.events.n - 1, ledger, &h));
    assert_int_equal(h.n, 2);
    for (size_t i = 0; i < h.n; i++) {
        bool output = !strcmp(h.at[i].op, "relu");
        assert_int_equal(h.at[i].kept, output);
        assert_int_equal(h.at[i].category, output ? MT_ACTIVATION : MT_INPUT);
        if (output) assert_int_equal(h.at[i].saver.role, MT_SAVE_OUTPUT);
    }
    mti_holders_free(&h);
    mti_timeline_free(&t);
    mt_ledger_free(ledger);
    mt_release(y), mt_release(x);
    mt_device_release(device);
}

/* However few stretches the picture has, one shows the peak, with its categories. */
static void every_division_into_stretches_shows_the_peak(void **state)
{
    (void)state;
    mt_device *device = mt_device_open("meta");
    mt_tensor *before = made_in(device, "", 1); /* made before the recording, and counted */
    mti_timeline t;
    assert_true(mti_timeline_begin(&t, device));
    mt_tensor *held[20] = {NULL};
    for (int i = 0; i < 200; i++) {
        int slot = i * 7 % 20;
        mt_release(held[slot]);
        held[slot] = made_in(device, "", 1 + i * 37 % 50);
    }
    for (int i = 0; i < 20; i++) mt_release(held[i]);
    assert_true(mti_timeline_end(&t));
    size_t peak = mti_timeline_peak(&t), at_peak[MT_CATEGORY_COUNT];
    mti_timeline_categories(&t, peak, at_peak);
    mt_mem_stats stats;
    mt_mem_get_stats(device, &stats);
    assert_int_equal(t.events.at[peak].current, stats.allocated.peak);
    assert_memory_equal(at_peak, stats.at_peak, sizeof at_peak);
    mti_stretch stretches[500];
    for (size_t n = 1; n <= 500; n += 7) {
        size_t got = mti_timeline_stretches(&t, n, stretches), shown = 0;
        assert_int_equal(got, n < t.events.n ? n : t.events.n);
        for (size_t i = 0; i < got; i++) {
            size_t now[MT_CATEGORY_COUNT];
            assert_true(!i || stretches[i].event > stretches[i - 1].event);
            mti_timeline_categories(&t, stretches[i].event, now);
            assert_memory_equal(stretches[i].by_category, now, sizeof now);
            shown += stretches[i].event == peak;
        }
        assert_int_equal(shown, 1);
    }
    mti_timeline_free(&t);
    mt_release(before);
    mt_device_release(device);
}

/* The first step is drawn, but the peak is that of the second. */
static void the_peak_is_that_of_the_steady_state(void **state)
{
    (void)state;
    mt_device *device = mt_device_open("meta");
    mti_timeline t;
    assert_true(mti_timeline_begin(&t, device));
    mt_release(made_in(device, "", 5000));
    assert_int_equal(mti_timeline_peak(&t), 0);
    mti_timeline_mark_steady(&t);
    assert_int_equal(mti_timeline_peak(&t), 0); /* the second step has no events yet */
    mt_release(made_in(device, "", 1000));
    mt_release(made_in(device, "", 3000));
    mt_release(made_in(device, "", 3000));
    assert_true(mti_timeline_end(&t));
    assert_int_equal(t.steady, 2);
    assert_int_equal(mti_timeline_peak(&t), 4); /* the first of several equal ones */
    assert_int_equal(mti_timeline_highest(&t), t.events.at[0].current);
    assert_true(t.events.at[4].current < t.events.at[0].current);
    mti_timeline_free(&t);
    mt_device_release(device);
}

static void the_event_of_a_refusal_is_found_if_there_is_one(void **state)
{
    (void)state;
    mt_device *device = mt_device_open("meta");
    mti_timeline t;
    size_t event;
    assert_true(mti_timeline_begin(&t, device));
    assert_false(mti_timeline_refusal(&t, &event));
    mt_mem_set_capacity(device, 2 << 20);
    mt_tensor *x = made_in(device, "", 1024);
    assert_null(mt_zeros(device, MT_F32, MT_SHAPE(1 << 20)));
    mtt_failed(MT_ERR_MEMORY, "capacity");
    mt_release(x);
    assert_true(mti_timeline_end(&t));
    assert_true(mti_timeline_refusal(&t, &event));
    assert_int_equal(event, 1);
    assert_int_equal(t.events.at[event].requested, 4 << 20);
    assert_int_equal(t.events.at[event].current, 1 << 20);
    mti_timeline_free(&t);
    mt_device_release(device);
}

/* An incomplete timeline never looks complete. */
static void a_timeline_that_ran_out_of_memory_says_so(void **state)
{
    (void)state;
    mt_device *device = mt_device_open("meta");
    mti_timeline t;
    assert_true(mti_timeline_begin(&t, device));
    mt_tensor *x = made_in(device, "", 1);
    for (uint64_t n = 1; n < 20 && !t.lost; n++) {
        /* Fill the list, so that the next event requests memory. */
        while (t.events.n < t.events.cap)
            mtt_ok(mt_set_category(x, mt_storage_of(x).category == MT_INPUT ? MT_CACHE : MT_INPUT));
        mti_fail_nth_alloc(n);
        mt_release(mt_zeros(device, MT_F32, MT_SHAPE(1)));
        mti_fail_nth_alloc(0);
        mt_clear_error();
    }
    assert_true(t.lost);
    assert_false(mti_timeline_end(&t));
    mtt_failed(MT_ERR_MEMORY, "timeline");
    mt_release(x);
    mti_timeline_free(&t);
    mt_device_release(device);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(equal_storages_of_numbered_modules_are_one_holder),
        cmocka_unit_test(a_holder_says_how_the_tape_keeps_it),
        cmocka_unit_test(every_division_into_stretches_shows_the_peak),
        cmocka_unit_test(the_peak_is_that_of_the_steady_state),
        cmocka_unit_test(the_event_of_a_refusal_is_found_if_there_is_one),
        cmocka_unit_test(a_timeline_that_ran_out_of_memory_says_so),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* Host copies of storages, and the views that are made when they are copied back. */
#include <stdlib.h>
#include <string.h>
#include "mtt_fixture.h"

static mt_tensor *random_vector(int64_t n)
{
    return mtt_made(mtt_random(device, MT_F32, MT_SHAPE(n), 7, -1, 1));
}

static mt_host_copy *begin_copy(mt_tensor *t)
{
    mt_host_copy *c = mt_host_copy_out(t);
    if (!c) fail_msg("%s", mt_last_error());
    return c;
}

static void a_storage_and_its_views_come_back_unchanged(void **state)
{
    (void)state;
    MT_AUTO mt_tensor *x = mtt_made(mtt_random(device, MT_F32, MT_SHAPE(3, 4, 5), 1, -1, 1));
    MT_AUTO mt_tensor *turned = mtt_made(mt_transpose(x, 0, 2));
    MT_AUTO mt_tensor *part = mtt_made(mt_slice(turned, 1, 1, 2));
    mt_host_copy *c = begin_copy(part);
    mtt_ok(mt_host_copy_wait(c));
    MT_AUTO mt_tensor *raw = mtt_made(mt_host_copy_back(c));
    mtt_ok(mt_host_copy_wait(c));
    mt_layout layouts[] = {mt_layout_of(x), mt_layout_of(turned), mt_layout_of(part)};
    mt_tensor *were[] = {x, turned, part};
    for (int i = 0; i < 3; i++) {
        MT_AUTO mt_tensor *again = mtt_made(mt_view_as(raw, &layouts[i]));
        assert_true(mtt_same_bits(were[i], again));
        assert_true(mt_same_storage(raw, again));
        assert_memory_equal(mt_strides(were[i]), mt_strides(again),
                            (size_t)mt_rank(again) * sizeof(int64_t));
    }
    assert_int_equal(mt_storage_of(raw).bytes, mt_storage_of(x).bytes);
    assert_int_equal(mt_storage_of(raw).category, MT_PACKED);
    mt_host_copy_free(c);
}

static void the_devices_memory_is_free_after_the_wait_for_the_copy(void **state)
{
    (void)state;
    mt_tensor *x = random_vector(1000);
    assert_int_equal(mtt_allocated(device), 4096);
    mt_host_copy *c = begin_copy(x);
    mt_release(x);
    assert_int_equal(mtt_allocated(device), 4096); /* the copy still reads it */
    mtt_ok(mt_host_copy_wait(c));
    assert_int_equal(mtt_allocated(device), 0);
    mt_tensor *raw = mtt_made(mt_host_copy_back(c));
    assert_int_equal(mtt_allocated(device), 4096);
    mt_release(raw);
    assert_int_equal(mtt_allocated(device), 4096); /* the copy still writes it */
    mtt_ok(mt_host_copy_wait(c));
    assert_int_equal(mtt_allocated(device), 0);
    mt_host_copy_free(c);
}

static void a_copy_may_come_back_more_than_once(void **state)
{
    (void)state;
    MT_AUTO mt_tensor *x = random_vector(77);
    mt_layout layout = mt_layout_of(x);
    mt_host_copy *c = begin_copy(x);
    for (int i = 0; i < 2; i++) {
        MT_AUTO mt_tensor *raw = mtt_made(mt_host_copy_back(c));
        mtt_ok(mt_host_copy_wait(c));
        MT_AUTO mt_tensor *again = mtt_made(mt_view_as(raw, &layout));
        assert_true(mtt_same_bits(x, again));
    }
    mt_host_copy_free(c);
}

static void a_copy_may_be_freed_before_it_has_finished(void **state)
{
    (void)state;
    mt_tensor *x = random_vector(100000);
    mt_host_copy *c = begin_copy(x);
    mt_release(x);
    mt_host_copy_free(c);
    assert_int_equal(mtt_allocated(device), 0);
    x = random_vector(100000);
    c = begin_copy(x);
    mt_release(mtt_made(mt_host_copy_back(c)));
    mt_release(x);
    mt_host_copy_free(c);
    mt_host_copy_free(NULL);
}

/* More than a device tracks at a time. */
static void a_hundred_copies_may_be_in_progress(void **state)
{
    (void)state;
    enum { N = 100 };
    mt_host_copy *c[N];
    for (int i = 0; i < N; i++) {
        MT_AUTO mt_tensor *x = mtt_made(mt_full(device, MT_F32, MT_SHAPE(50), i));
        c[i] = begin_copy(x);
    }
    for (int i = 0; i < N; i++) mtt_ok(mt_host_copy_wait(c[i]));
    assert_int_equal(mtt_allocated(device), 0);
    for (int i = 0; i < N; i++) {
        const float *values = mt_host_copy_bytes(c[i]);
        assert_true(values[0] == (float)i && values[49] == (float)i);
        mt_host_copy_free(c[i]);
    }
}

static void the_host_can_read_and_write_the_bytes(void **state)
{
    (void)state;
    MT_AUTO mt_tensor *x =
        mtt_made(mt_from_data(device, MT_I32, MT_SHAPE(3), (int[]){1, 2, 3}, 12));
    mt_host_copy *out = begin_copy(x);
    assert_memory_equal(mt_host_copy_bytes(out), ((int[]){1, 2, 3}), 12);
    mt_host_copy *in = mt_host_copy_new(device, 12);
    assert_null(mt_host_copy_back(in));
    mtt_failed(MT_ERR_STATE, "host_copy_back", "nothing was written");
    memcpy(mt_host_copy_bytes(in), (int[]){4, 5, 6}, 12);
    MT_AUTO mt_tensor *raw = mtt_made(mt_host_copy_back(in));
    mtt_ok(mt_host_copy_wait(in));
    int values[3];
    mtt_ok(mt_to_host(raw, values, 12));
    assert_memory_equal(values, ((int[]){4, 5, 6}), 12);
    mt_host_copy_free(out);
    mt_host_copy_free(in);
}

static void empty_storages_have_empty_copies(void **state)
{
    (void)state;
    MT_AUTO mt_tensor *x = mtt_made(mt_zeros(device, MT_F32, MT_SHAPE(0, 3)));
    mt_layout layout = mt_layout_of(x);
    mt_host_copy *c = begin_copy(x);
    MT_AUTO mt_tensor *raw = mtt_made(mt_host_copy_back(c));
    mtt_ok(mt_host_copy_wait(c));
    MT_AUTO mt_tensor *again = mtt_made(mt_view_as(raw, &layout));
    assert_int_equal(mt_numel(again), 0);
    mt_host_copy_free(c);
}

static void a_view_must_lie_inside_the_storage(void **state)
{
    (void)state;
    MT_AUTO mt_tensor *x = random_vector(10);
    mt_layout l = {.dtype = MT_F32, .rank = 1, .shape = {10}, .strides = {1}};
    mt_release(mtt_made(mt_view_as(x, &l)));
    l.offset = 4;
    assert_null(mt_view_as(x, &l));
    mtt_failed(MT_ERR_ARGUMENT, "view_as", "[10]", "at byte 4", "40 bytes");
    l.shape[0] = 9;
    mt_release(mtt_made(mt_view_as(x, &l)));
    l.offset = 2, l.shape[0] = 1;
    assert_null(mt_view_as(x, &l));
    mtt_failed(MT_ERR_ARGUMENT, "multiples of 4");
    l = (mt_layout){.dtype = MT_F32, .rank = 1, .shape = {2}, .strides = {-1}, .offset = 4};
    assert_null(mt_view_as(x, &l));
    mtt_failed(MT_ERR_ARGUMENT, "view_as");
    l.strides[0] = INT64_MAX;
    assert_null(mt_view_as(x, &l));
    mtt_failed(MT_ERR_ARGUMENT, "view_as");
    l.shape[0] = -1;
    assert_null(mt_view_as(x, &l));
    mtt_failed(MT_ERR_ARGUMENT, "view_as");
    assert_null(mt_view_as(x, NULL));
    mtt_failed(MT_ERR_ARGUMENT, "layout is NULL");
}

static void null_in_gives_null_out(void **state)
{
    (void)state;
    mt_layout l = mt_layout_of(NULL);
    assert_null(mt_view_as(NULL, &l));
    mtt_failed(MT_ERR_ARGUMENT, "view_as");
    assert_null(mt_host_copy_out(NULL));
    mtt_failed(MT_ERR_ARGUMENT, "host_copy_out");
    assert_null(mt_host_copy_new(NULL, 4));
    mtt_failed(MT_ERR_ARGUMENT, "host_copy_new");
    assert_null(mt_host_copy_back(NULL));
    mtt_failed(MT_ERR_ARGUMENT, "host_copy_back");
    assert_int_equal(mt_host_copy_wait(NULL), MT_ERR_ARGUMENT);
    mtt_failed(MT_ERR_ARGUMENT, "host_copy_wait");
    assert_null(mt_host_copy_bytes(NULL));
    mt_copy_times times;
    assert_int_equal(mt_copy_times_get(NULL, &times), MT_ERR_ARGUMENT);
    mtt_failed(MT_ERR_ARGUMENT, "copy_times");
}

static void the_seconds_of_copies_are_counted(void **state)
{
    (void)state;
    mt_copy_times before, after;
    mtt_ok(mt_copy_times_get(device, &before));
    MT_AUTO mt_tensor *x = random_vector(4 << 20);
    mt_host_copy *c = begin_copy(x);
    mtt_ok(mt_host_copy_wait(c));
    mtt_ok(mt_copy_times_get(device, &after));
    /* Time is not simulated. */
    if (strcmp(mt_device_kind(device), "cudasim")) assert_true(after.copy_s > before.copy_s);
    assert_true(after.wait_s >= before.wait_s);
    mt_host_copy_free(c);
}

/* The simulator makes a copy as late as a device may, so a missing wait has a visible effect;
 * unless CUDASIM_LATE delays kernels instead. */
static void a_missing_wait_reads_the_old_bytes(void **state)
{
    (void)state;
    if (strcmp(mt_device_kind(device), "cudasim") || getenv("CUDASIM_LATE")) skip();
    MT_AUTO mt_tensor *x = random_vector(8);
    mt_layout layout = mt_layout_of(x);
    mt_host_copy *c = begin_copy(x);
    mtt_ok(mt_host_copy_wait(c));
    mt_mem_empty_cache(device); /* the simulator fills the next, new storage with NaN */
    MT_AUTO mt_tensor *other = mtt_made(mt_empty(device, MT_F32, MT_SHAPE(1 << 19)));
    MT_AUTO mt_tensor *raw = mtt_made(mt_host_copy_back(c));
    MT_AUTO mt_tensor *early = mtt_made(mt_view_as(raw, &layout));
    assert_false(mtt_same_bits(x, early));
    mtt_ok(mt_host_copy_wait(c));
    assert_true(mtt_same_bits(x, early));
    mt_host_copy_free(c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        mtt_test(a_storage_and_its_views_come_back_unchanged),
        mtt_test(the_devices_memory_is_free_after_the_wait_for_the_copy),
        mtt_test(a_copy_may_come_back_more_than_once),
        mtt_test(a_copy_may_be_freed_before_it_has_finished),
        mtt_test(a_hundred_copies_may_be_in_progress),
        mtt_test(the_host_can_read_and_write_the_bytes),
        mtt_test(empty_storages_have_empty_copies),
        mtt_test(a_view_must_lie_inside_the_storage),
        mtt_test(null_in_gives_null_out),
        mtt_test(the_seconds_of_copies_are_counted),
        mtt_test(a_missing_wait_reads_the_old_bytes),
    };
    return cmocka_run_group_tests(tests, mtt_open_device, mtt_close_device);
}

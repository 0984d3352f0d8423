/* Expandable segments of a device with memory: values stay where they are while granules come and
 * go, and all of them go back. */
#include "mtt_engine.h"

#define MIB ((size_t)1 << 20)

static mt_device *open_expandable(const mt_expandable *options)
{
    mt_device *device = mtt_device();
    assert_non_null(device);
    assert_int_equal(mt_mem_set_expandable(device, options), MT_OK);
    return device;
}

static mt_tensor *filled(mt_device *device, size_t n_bytes, double value)
{
    mt_tensor *t = mt_full(device, MT_F32, MT_SHAPE((int64_t)(n_bytes / sizeof(float))), value);
    assert_non_null(t);
    return t;
}

static void assert_filled(const mt_tensor *t, double value)
{
    int64_t n = mt_numel(t), at[] = {0, n / 3, n - 1};
    for (int i = 0; i < 3; i++) assert_true(mt_item_at(t, 1, &at[i]) == value);
}

static size_t reserved(const mt_device *device)
{
    mt_mem_stats s;
    mt_mem_get_stats(device, &s);
    return s.reserved.current;
}

static void granules_are_as_in_pytorch_and_all_go_back(void **state)
{
    (void)state;
    mt_device *device = open_expandable(&(mt_expandable){0});
    mt_tensor *a = filled(device, 30 * MIB, 1), *b = filled(device, 30 * MIB, 2);
    assert_int_equal(reserved(device), 60 * MIB);
    mt_tensor *c = filled(device, 4096, 3);
    assert_int_equal(reserved(device), 62 * MIB);
    mt_release(a);
    mt_mem_empty_cache(device);
    assert_int_equal(reserved(device), 42 * MIB); /* 30 MiB have one whole granule of 20 */
    assert_filled(b, 2);
    assert_filled(c, 3);
    a = filled(device, 25 * MIB, 4);
    assert_int_equal(reserved(device), 62 * MIB);
    assert_filled(a, 4);
    assert_filled(b, 2);
    mt_release(a), mt_release(b), mt_release(c);
    mt_mem_empty_cache(device);
    assert_int_equal(reserved(device), 0);
    mt_tensor *d = filled(device, 1 * MIB + 4, 5);
    assert_filled(d, 5);
    assert_int_equal(reserved(device), 20 * MIB);
    mt_release(d);
    mt_device_release(device);
}

static void reclaimed_granules_serve_elsewhere_and_the_others_keep_their_values(void **state)
{
    (void)state;
    mt_device *device = open_expandable(&(mt_expandable){.granule = 2 * MIB, .reclaim = true});
    mt_tensor *t[8];
    for (int i = 0; i < 8; i++) t[i] = filled(device, 4 * MIB, i);
    assert_int_equal(reserved(device), 32 * MIB);
    mt_release(t[0]), mt_release(t[2]), mt_release(t[4]);
    mt_tensor *large = filled(device, 10 * MIB, 9);
    assert_int_equal(reserved(device), 32 * MIB);
    assert_filled(large, 9);
    for (int i = 1; i < 8; i++)
        if (i != 2 && i != 4) {
            assert_filled(t[i], i);
            mt_release(t[i]);
        }
    mt_release(large);
    mt_mem_empty_cache(device);
    assert_int_equal(reserved(device), 0);
    mt_device_release(device);
}

static void a_setting_of_a_device_that_holds_memory_is_refused(void **state)
{
    (void)state;
    mt_device *device = mtt_device();
    mt_tensor *a = filled(device, 4096, 1);
    assert_int_equal(mt_mem_set_expandable(device, &(mt_expandable){0}), MT_ERR_STATE);
    assert_int_equal(mt_mem_set_expandable(device, NULL), MT_OK);
    mt_clear_error();
    mt_release(a);
    mt_mem_empty_cache(device);
    assert_int_equal(mt_mem_set_expandable(device, &(mt_expandable){.granule = 1000}),
                     MT_ERR_ARGUMENT);
    mt_clear_error();
    assert_int_equal(mt_mem_set_expandable(device, &(mt_expandable){0}), MT_OK);
    mt_device_release(device);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(granules_are_as_in_pytorch_and_all_go_back),
        cmocka_unit_test(reclaimed_granules_serve_elsewhere_and_the_others_keep_their_values),
        cmocka_unit_test(a_setting_of_a_device_that_holds_memory_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* GPT-2 as published: 124,439,808 parameters. */
#include "mtt.h"

static void gpt2_has_124439808_parameters(void **state)
{
    (void)state;
    mt_device *device = mt_device_open("cpu");
    mt_model_config c;
    mtt_ok(mt_model_preset("gpt2", &c));
    c.dtype = MT_BF16;
    mt_module *gpt = mt_model_new(device, &c);
    assert_non_null(gpt);
    const mt_named_tensor *list;
    size_t n;
    uint64_t n_elements, n_bytes;
    mtt_ok(mt_module_params(gpt, &list, &n));
    mtt_ok(mt_module_size(gpt, &n_elements, &n_bytes));
    assert_int_equal(n, 148);
    assert_int_equal(n_elements, 124439808);
    assert_int_equal(n_bytes, 2 * 124439808);
    assert_int_equal(mt_numel(list[0].tensor), 50257 * 768);
    mt_mem_stats stats;
    mt_mem_get_stats(device, &stats);
    assert_int_equal(stats.requested.current, n_bytes);
    assert_int_equal(stats.by_category[MT_PARAMETER], stats.allocated.current);
    mt_module_free(gpt);
    mt_device_release(device);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(gpt2_has_124439808_parameters)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

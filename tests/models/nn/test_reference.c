/* The reference figures at their full size, with data: 8192 tokens of 1024 bf16 values. */
#include "mtt.h"

static void keeps(mt_model_config config, size_t bytes)
{
    config.hidden = 1024;
    config.dtype = MT_BF16;
    mt_device *device = mtt_device();
    assert_non_null(device);
    mtt_ok(mt_set_balance_check(device, true));
    mt_module *m = mt_model_new(device, &config);
    assert_non_null(m);
    mt_ledger *ledger = mt_ledger_new(device);
    assert_non_null(ledger);
    {
        MT_AUTO mt_tensor *x = mtt_made(mt_normal(device, MT_BF16, MT_SHAPE(2, 4096, 1024), 0, 1));
        mtt_ok(mt_set_requires_grad(x, true));
        mt_mem_region region;
        mt_mem_region_begin(&region, device);
        mtt_ok(mt_ledger_begin(ledger));
        MT_AUTO mt_tensor *y = mtt_made(mt_forward(m, x));
        mtt_ok(mt_ledger_end(ledger));
        mt_mem_region_end(&region);
        assert_int_equal(mt_ledger_bytes(ledger), bytes);
        assert_int_equal(region.delta.current, mt_ledger_allocated(ledger) -
                                                   mt_storage_of(x).allocated +
                                                   mt_storage_of(y).allocated);
    }
    mt_ledger_free(ledger);
    mt_module_free(m);
    mt_device_release(device);
}

static void the_reference_mlp_keeps_83886080_bytes_with_relu(void **state)
{
    (void)state;
    keeps((mt_model_config){.kind = MT_MODEL_MLP, .act = MT_ACT_RELU}, 83886080);
}

static void the_reference_mlp_keeps_150994944_bytes_with_gelu(void **state)
{
    (void)state;
    keeps((mt_model_config){.kind = MT_MODEL_MLP, .act = MT_ACT_GELU}, 150994944);
}

static void the_reference_block_keeps_268632080_bytes_or_201523216(void **state)
{
    (void)state;
    mt_model_config block = {
        .kind = MT_MODEL_BLOCK, .heads = 2, .causal = true, .act = MT_ACT_GELU};
    keeps(block, 268632080);
    if (!mtt_long()) return; /* the two MLPs above already show what the activation changes */
    block.act = MT_ACT_RELU;
    keeps(block, 201523216);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_reference_mlp_keeps_83886080_bytes_with_relu),
        cmocka_unit_test(the_reference_mlp_keeps_150994944_bytes_with_gelu),
        cmocka_unit_test(the_reference_block_keeps_268632080_bytes_or_201523216),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

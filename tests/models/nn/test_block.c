/* A transformer block with separate softmax and dropout keeps 34bsh + 5as²b bytes of 2-byte
 * floats, and 16bs of layer norm statistics. Every byte is accounted for, and backward frees all.
 */
#include "mtt.h"

typedef struct size {
    int64_t b, s, h, a;
} size;

static const size sizes[] = {{1, 1, 2, 1},   {1, 2, 4, 2},   {2, 3, 6, 3},  {3, 5, 10, 2},
                             {1, 7, 21, 7},  {2, 9, 15, 5},  {5, 4, 8, 8},  {1, 13, 26, 2},
                             {2, 17, 34, 1}, {1, 31, 33, 3}, {4, 8, 16, 4}, {1, 64, 32, 4}};

static void check_block(mt_device *device, size z, mt_norm_place norm, mt_dtype dtype, bool causal)
{
    const mt_model_config config = {.kind = MT_MODEL_BLOCK,
                                    .hidden = z.h,
                                    .heads = z.a,
                                    .act = MT_ACT_GELU,
                                    .norm = norm,
                                    .dropout = 0.1,
                                    .attention = MT_ATTENTION_MATH,
                                    .causal = causal,
                                    .dtype = dtype};
    mt_module *block = mt_model_new(device, &config);
    assert_non_null(block);
    MT_AUTO mt_tensor *x = mtt_made(mt_normal(device, dtype, MT_SHAPE(z.b, z.s, z.h), 0, 1));
    mtt_ok(mt_set_requires_grad(x, true));
    mt_ledger *ledger = mt_ledger_new(device);
    assert_non_null(ledger);

    size_t before = mtt_allocated(device);
    mtt_ok(mt_ledger_begin(ledger));
    MT_AUTO mt_tensor *y = mtt_made(mt_forward(block, x));
    mtt_ok(mt_ledger_end(ledger));
    int64_t formula = 34 * z.b * z.s * z.h + 5 * z.a * z.s * z.s * z.b;
    int64_t statistics = 2 * z.b * z.s * (4 + 4);
    assert_int_equal(mt_ledger_bytes(ledger), formula + statistics);
    assert_int_equal(mtt_allocated(device) - before, mt_ledger_allocated(ledger) -
                                                         mt_storage_of(x).allocated +
                                                         mt_storage_of(y).allocated);

    MT_AUTO mt_tensor *loss = mtt_made(mt_sum_all(y));
    mtt_ok(mt_backward(loss));
    /* All that the tape kept is freed, except x, which the test holds. */
    assert_int_equal(mt_ledger_live_bytes(ledger), mt_storage_of(x).bytes);
    mtt_ok(mt_check_balance(device));
    mt_ledger_free(ledger);
    mt_module_free(block);
}

static void check_sizes(mt_norm_place norm)
{
    int n = 0;
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        for (int variant = 0; variant < 4; variant++) {
            mt_device *device = mtt_device();
            assert_non_null(device);
            mtt_ok(mt_set_balance_check(device, true));
            check_block(device, sizes[i], norm, variant & 1 ? MT_F16 : MT_BF16, variant & 2);
            assert_int_equal(mtt_allocated(device), 0);
            mt_device_release(device);
            n++;
        }
    }
    print_message("%d blocks, residual 0 bytes in each\n", n);
}

static void a_pre_norm_block_keeps_34bsh_plus_5as2b_and_its_statistics(void **state)
{
    (void)state;
    check_sizes(MT_NORM_PRE);
}

static void a_post_norm_block_keeps_34bsh_plus_5as2b_and_its_statistics(void **state)
{
    (void)state;
    check_sizes(MT_NORM_POST);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_pre_norm_block_keeps_34bsh_plus_5as2b_and_its_statistics),
        cmocka_unit_test(a_post_norm_block_keeps_34bsh_plus_5as2b_and_its_statistics),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

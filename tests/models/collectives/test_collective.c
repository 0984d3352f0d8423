/* Messages among ranks: their shapes, their gradients, and refusals. */
#include "base/base.h"
#include "memtape/ops.h"
#include "mtt.h"
#include "collectives/collectives.h"

static mt_tensor *gather(mt_tensor *x, const mt_group *g) { return mt_all_gather(x, 1, g); }
static mt_tensor *scatter(mt_tensor *x, const mt_group *g) { return mt_reduce_scatter(x, 1, g); }

static const struct {
    const char *name;
    mt_tensor *(*call)(mt_tensor *x, const mt_group *group);
    int64_t width; /* width of the result, from 8 columns and 4 ranks */
    bool allocates;
} messages[] = {{"all_gather", gather, 32, true},
                {"reduce_scatter", scatter, 2, true},
                {"all_reduce", mt_all_reduce, 8, true},
                {"replicate", mt_replicate, 8, false},
                {"send", mt_send, 8, true},
                {"recv", mt_recv, 8, true}};

static void messages_have_shapes_and_gradients_and_keep_nothing(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof messages / sizeof *messages; i++) {
        mt_device *meta = mt_device_open("meta");
        mtt_ok(mt_set_balance_check(meta, true));
        mt_tensor *x = mt_zeros(meta, MT_F32, MT_SHAPE(3, 8));
        mtt_ok(mt_set_requires_grad(x, true));
        mt_ledger *ledger = mt_ledger_new(meta);
        mtt_ok(mt_ledger_begin(ledger));
        mt_tensor *y = mtt_made(messages[i].call(x, MT_RANKS(4)));
        mtt_ok(mt_ledger_end(ledger));
        assert_int_equal(mt_shape(y)[1], messages[i].width);
        assert_int_equal(mt_storage_of(y).serial != mt_storage_of(x).serial, messages[i].allocates);
        assert_int_equal(mt_ledger_bytes(ledger), 0);
        mt_tensor *dy = mt_zeros(meta, MT_F32, mt_rank(y), mt_shape(y));
        mtt_ok(mt_backward_with(y, &(mt_backward_options){.gradient = dy}));
        assert_int_equal(mt_shape(mt_grad(x))[1], 8);
        mt_release(dy);
        mt_release(y);
        mt_ledger_free(ledger);
        mt_release(x);
        mt_device_release(meta);
    }
}

static void shards_are_cast_before_they_are_gathered(void **state)
{
    (void)state;
    const float values[] = {1, 1.0009765625f, -3.14159f, 65537, 1e-3f, 2, 7, 8}; /* not all bf16 */
    mt_device *cpu = mt_device_open("cpu");
    for (int wide = 0; wide < 2; wide++) {
        mt_tensor *x = mtt_made(mt_from_data(cpu, MT_F32, MT_SHAPE(8), values, sizeof values));
        mtt_ok(mt_set_requires_grad(x, true));
        mt_tensor *y = mtt_made(mti_gather_shard(x, MT_BF16, wide, NULL, MT_RANKS(1)));
        mt_tensor *cast = mtt_made(mt_cast(x, MT_BF16));
        assert_true(mtt_same_bits(y, cast));
        mt_tensor *dy = mtt_made(mt_normal(cpu, MT_BF16, MT_SHAPE(8), 0, 1));
        mtt_ok(mt_backward_with(y, &(mt_backward_options){.gradient = dy}));
        mt_tensor *dx = mtt_made(mt_cast(dy, MT_F32));
        assert_true(mtt_same_bits(mt_grad(x), dx));
        for (int i = 0; i < 5; i++) mt_release(((mt_tensor *[]){x, y, cast, dy, dx})[i]);
    }
    mt_device_release(cpu);
}

/* Bytes at most, beside x, y and dy, and the gradient of x. */
static size_t temporary(bool backward, bool wide)
{
    mt_mem_stats before, after;
    mt_device *meta = mt_device_open("meta");
    mt_tensor *x = mt_zeros(meta, MT_F32, MT_SHAPE(1 << 20));
    mtt_ok(mt_set_requires_grad(x, true));
    mt_mem_get_stats(meta, &before);
    mt_mem_reset_peak(meta);
    mt_tensor *y = mtt_made(mti_gather_shard(x, MT_BF16, wide, NULL, MT_RANKS(4)));
    mt_mem_get_stats(meta, &after);
    size_t most = after.allocated.peak - before.allocated.current - (size_t)8 * (1 << 20);
    mt_tensor *dy = mt_zeros(meta, MT_BF16, MT_SHAPE(4 << 20));
    mt_mem_get_stats(meta, &before);
    mt_mem_reset_peak(meta);
    mtt_ok(mt_backward_with(y, &(mt_backward_options){.gradient = dy}));
    mt_mem_get_stats(meta, &after);
    if (backward) most = after.allocated.peak - before.allocated.current - (size_t)4 * (1 << 20);
    mt_release(x);
    mt_release(y);
    mt_release(dy);
    mt_device_release(meta);
    return most;
}

static void a_shard_is_cast_and_its_gradient_before_or_after_the_sum(void **state)
{
    (void)state;
    assert_int_equal(temporary(false, false), 2 << 20); /* the shard in bf16 */
    assert_int_equal(temporary(false, true), 2 << 20);
    assert_int_equal(temporary(true, false), 2 << 20); /* its gradient's sum in bf16 */
    assert_int_equal(temporary(true, true), 16 << 20); /* the whole gradient in f32 */
}

static void a_sent_tensor_may_be_released(void **state)
{
    (void)state;
    mt_device *meta = mt_device_open("meta");
    mt_tensor *x = mt_zeros(meta, MT_F32, MT_SHAPE(64, 1024));
    mt_tensor *y = mtt_made(mt_send(x, MT_RANKS(2)));
    assert_int_equal(mt_storage_of(y).bytes, 4);
    mt_release(x);
    mt_release(y);
    mt_device_release(meta);
}

static void messages_among_several_ranks_need_a_device_without_data(void **state)
{
    (void)state;
    mt_device *cpu = mt_device_open("cpu");
    mt_tensor *x = mt_zeros(cpu, MT_F32, MT_SHAPE(3, 8));
    for (size_t i = 0; i < sizeof messages / sizeof *messages; i++) {
        assert_null(messages[i].call(x, MT_RANKS(2)));
        mtt_failed(MT_ERR_UNSUPPORTED, messages[i].name, "2 ranks on cpu without a comm", "meta");
        assert_null(messages[i].call(x, MT_RANKS(0)));
        mtt_failed(MT_ERR_ARGUMENT, messages[i].name, "0 ranks");
        assert_null(messages[i].call(NULL, MT_RANKS(1)));
        mtt_failed(MT_ERR_ARGUMENT, messages[i].name, "NULL");
        mt_tensor *y = mtt_made(messages[i].call(x, MT_RANKS(1)));
        assert_true(mtt_same_bits(x, y));
        mt_release(y);
    }
    mt_release(x);
    mt_device_release(cpu);
    mt_device *meta = mt_device_open("meta");
    x = mt_zeros(meta, MT_F32, MT_SHAPE(3, 8));
    assert_null(mt_reduce_scatter(x, 0, MT_RANKS(2)));
    mtt_failed(MT_ERR_ARGUMENT, "reduce_scatter", "[3,8]", "multiple of 2");
    assert_null(mt_all_gather(x, 2, MT_RANKS(2)));
    mtt_failed(MT_ERR_ARGUMENT, "all_gather", "dimension 2");
    assert_null(mt_all_gather(x, 0, MT_RANKS(INT64_MAX)));
    mtt_failed(MT_ERR_ARGUMENT, "all_gather", "overflows");
    mt_release(x);
    mt_device_release(meta);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(messages_have_shapes_and_gradients_and_keep_nothing),
        cmocka_unit_test(shards_are_cast_before_they_are_gathered),
        cmocka_unit_test(a_shard_is_cast_and_its_gradient_before_or_after_the_sum),
        cmocka_unit_test(a_sent_tensor_may_be_released),
        cmocka_unit_test(messages_among_several_ranks_need_a_device_without_data),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

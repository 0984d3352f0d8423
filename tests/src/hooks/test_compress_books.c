/* Compressed saved tensors and the rest of the engine: shared storages, the ledger, refusals
 * and allocations that fail. */
#include <stdlib.h>
#include "base/base.h"
#include "compressed.h"

/* ---- sharing ---- */

static void views_of_one_storage_are_packed_and_unpacked_once(void **state)
{
    (void)state;
    MT_AUTO mt_tensor *x = leaf(MT_F32, MT_SHAPE(16, 96), 4);
    mt_tensor *part[3];
    mt_compress *c = compressor(RULE(BF16));
    mt_tensor *exact = NULL;
    for (int packed = 0; packed < 2; packed++) {
        MT_AUTO mt_tensor *h = mtt_made(mt_mul_scalar(x, 2));
        mtt_ok(mt_split(h, 1, 3, (int64_t[]){32, 32, 32}, part));
        mt_set(&h, NULL);
        mt_clear_error();
        if (packed) mtt_ok(mt_compress_begin(c));
        MT_AUTO mt_tensor *a = mtt_made(mt_mul(part[0], part[1]));
        MT_AUTO mt_tensor *b = mtt_made(mt_mul(a, part[2]));
        for (int i = 0; i < 3; i++) mt_release(part[i]);
        if (packed) {
            mt_compress_stats s;
            mtt_ok(mt_compress_end(c));
            mtt_ok(mt_compress_get_stats(c, &s));
            /* h's storage once for three views, and a, which this test holds */
            assert_int_equal(s.saves, 4);
            assert_int_equal(s.saves_shared, 2);
            assert_int_equal(s.by_rule[MT_COMPRESS_BF16].n, 2);
            assert_int_equal(s.by_rule[MT_COMPRESS_BF16].bytes_after, 2 * (16 * 96 + 16 * 32));
            assert_int_equal(s.in_vain.n, 1);
            assert_int_equal(s.in_vain.bytes_before, 4 * 16 * 32);
            assert_int_equal(mtt_allocated_as(device, MT_PACKED), 3072 + 1024);
        }
        MT_AUTO mt_tensor *loss = mtt_made(mt_sum_all(b));
        mtt_ok(mt_backward_with(loss, &(mt_backward_options){.retain_graph = true}));
        MT_AUTO mt_tensor *first = mtt_made(mt_clone(mt_grad(x)));
        mtt_ok(mt_set_grad(x, NULL));
        mtt_ok(mt_backward(loss));
        assert_true(mtt_same_bits(first, mt_grad(x)));
        if (packed)
            assert_true(mt_relative_error(first, exact) < 0x1p-7);
        else
            exact = mt_retain(first);
        mtt_ok(mt_set_grad(x, NULL));
    }
    mt_release(exact);
    mt_compress_free(c);
}

static void a_storage_changed_in_place_is_packed_again(void **state)
{
    (void)state;
    MT_AUTO mt_tensor *x = leaf(MT_F32, MT_SHAPE(64), 4);
    MT_AUTO mt_tensor *w = mtt_made(mt_full(device, MT_F32, MT_SHAPE(64), 2));
    mt_compress *c = compressor(RULE(BF16));
    mtt_ok(mt_compress_begin(c));
    MT_AUTO mt_tensor *a = mtt_made(mt_mul(x, w));
    mtt_ok(mt_fill(w, 3));
    MT_AUTO mt_tensor *b = mtt_made(mt_mul(a, w));
    mtt_ok(mt_compress_end(c));
    MT_AUTO mt_tensor *loss = mtt_made(mt_sum_all(b));
    mtt_ok(mt_backward(loss));
    double *dx = mtt_doubles(mt_grad(x));
    for (int i = 0; i < 64; i++) assert_true(dx[i] == 6);
    free(dx);
    mtt_ok(mt_set_grad(x, NULL));
    mt_compress_free(c);
}

static void a_compressor_may_be_used_again_and_freed_before_its_graph(void **state)
{
    (void)state;
    net n = open_net(MT_F32);
    mt_compress *c = compressor(RULE(INT8));
    outcome a = run(&n, mlp, mt_gelu, c), b = run(&n, mlp, mt_gelu, c);
    assert_int_equal(a.saved, b.saved);
    assert_int_equal(a.stats.by_rule[MT_COMPRESS_INT8].n, b.stats.by_rule[MT_COMPRESS_INT8].n);
    assert_true(worst_error(&a, &b) == 0);
    mtt_ok(mt_compress_begin(c));
    MT_AUTO mt_tensor *loss = mtt_made(mlp(&n, mt_gelu));
    mtt_ok(mt_compress_end(c));
    mt_compress_free(c);
    mtt_ok(mt_backward(loss));
    free_outcome(&a);
    free_outcome(&b);
    mt_set(&loss, NULL);
    mt_clear_error();
    close_net(&n);
}

/* ---- the ledger ---- */

static void an_inner_ledger_sees_what_was_saved_and_an_outer_one_what_was_packed(void **state)
{
    (void)state;
    net n = open_net(MT_F32);
    outcome exact = run(&n, mlp, mt_gelu, NULL);
    mt_compress *c = compressor(RULE(INT8) | RULE(MASK_SEED));
    mt_ledger *outside = mt_ledger_new(device), *inside = mt_ledger_new(device);
    mtt_ok(mt_ledger_begin(outside));
    mtt_ok(mt_compress_begin(c));
    mtt_ok(mt_ledger_begin(inside));
    MT_AUTO mt_tensor *loss = mtt_made(mlp(&n, mt_gelu));
    mtt_ok(mt_ledger_end(inside));
    mtt_ok(mt_compress_end(c));
    mtt_ok(mt_ledger_end(outside));
    assert_int_equal(mt_ledger_bytes(inside), exact.saved);
    assert_int_equal(mt_ledger_bytes(outside), int8_bytes(input) + 2 * int8_bytes(hidden));
    size_t packed = 0;
    for (size_t i = 0; i < mt_ledger_count(outside); i++) {
        mt_ledger_entry e;
        mtt_ok(mt_ledger_get(outside, i, &e));
        packed += e.allocated;
    }
    assert_int_equal(mtt_allocated_as(device, MT_PACKED), packed);
    mtt_ok(mt_backward(loss));
    assert_int_equal(mtt_allocated_as(device, MT_PACKED), 0);
    mt_ledger_free(inside);
    mt_ledger_free(outside);
    mt_compress_free(c);
    free_outcome(&exact);
    mt_set(&loss, NULL);
    mt_clear_error();
    close_net(&n);
}

static void meta_packs_what_this_device_packs(void **state)
{
    (void)state;
    mt_device *real = device;
    size_t saved[2];
    for (int i = 0; i < 2; i++) {
        if (i) device = mt_device_open("meta");
        assert_non_null(device);
        MT_AUTO mt_tensor *x = mtt_made(mt_empty(device, MT_F32, MT_SHAPE(33, 65)));
        mtt_ok(mt_set_requires_grad(x, true));
        mt_compress *c = compressor(RULE(INT8) | RULE(MASK_BITS) | RULE(SIGNS));
        mt_ledger *ledger = mt_ledger_new(device);
        mtt_ok(mt_ledger_begin(ledger));
        mtt_ok(mt_compress_begin(c));
        MT_AUTO mt_tensor *a = mtt_made(mt_gelu(x));
        MT_AUTO mt_tensor *b = mtt_made(mt_relu(a));
        MT_AUTO mt_tensor *y = mtt_made(mt_dropout(b, 0.5));
        mtt_ok(mt_compress_end(c));
        mtt_ok(mt_ledger_end(ledger));
        saved[i] = mt_ledger_bytes(ledger);
        MT_AUTO mt_tensor *loss = mtt_made(mt_sum_all(y));
        mtt_ok(mt_backward(loss));
        mt_ledger_free(ledger);
        mt_compress_free(c);
    }
    mt_device_release(device);
    device = real;
    assert_int_equal(saved[0], saved[1]);
    assert_int_equal(saved[0], int8_bytes(33 * 65) + 2 * ((33 * 65 + 7) / 8));
}

/* ---- errors ---- */

static void bad_options_and_a_wrong_order_are_refused(void **state)
{
    (void)state;
    assert_null(mt_compress_new(NULL, NULL));
    mtt_failed(MT_ERR_ARGUMENT, "compress_new", "NULL");
    assert_null(mt_compress_new(device, &(mt_compress_options){.rules = 1u << 9}));
    mtt_failed(MT_ERR_ARGUMENT, "compress_new", "0x200");
    assert_null(mt_compress_new(device, &(mt_compress_options){.block = 100}));
    mtt_failed(MT_ERR_ARGUMENT, "compress_new", "100");
    mt_compress *a = compressor(RULE(BF16)), *b = compressor(RULE(BF16));
    assert_int_equal(mt_compress_end(a), MT_ERR_STATE);
    mtt_failed(MT_ERR_STATE, "innermost");
    mtt_ok(mt_compress_begin(a));
    assert_int_equal(mt_compress_begin(a), MT_ERR_STATE);
    mtt_failed(MT_ERR_STATE, "already");
    mtt_ok(mt_compress_begin(b));
    assert_int_equal(mt_compress_end(a), MT_ERR_STATE);
    mtt_failed(MT_ERR_STATE, "innermost");
    mtt_ok(mt_compress_end(b));
    mtt_ok(mt_compress_end(a));
    assert_int_equal(mt_compress_begin(NULL), MT_ERR_ARGUMENT);
    mt_clear_error();
    mt_compress_free(a);
    mt_compress_free(b);
    mt_compress_free(NULL);
}

static void any_allocation_may_fail(void **state)
{
    (void)state;
    net n = open_net(MT_F32);
    mt_tensor *in[3] = {n.x, n.w1, n.w2};
    size_t before = mtt_allocated(device);
    int refused = 0;
    for (uint64_t k = 1;; k++) {
        mti_fail_nth_alloc(k);
        mt_compress *c = mt_compress_new(
            device, &(mt_compress_options){.rules = RULE(INT8) | RULE(SIGNS) | RULE(MASK_BITS),
                                           .min_bytes = 1});
        bool ok = c && mt_compress_begin(c) == MT_OK, begun = ok;
        mt_tensor *loss = ok ? mlp(&n, mt_relu) : NULL;
        ok = loss && mt_backward(loss) == MT_OK;
        bool reached = mti_alloc_count() >= k;
        mti_fail_nth_alloc(0);
        if (!ok) assert_int_equal(mt_last_status(), MT_ERR_MEMORY);
        refused += !ok;
        mt_clear_error();
        if (begun) mtt_ok(mt_compress_end(c));
        mt_release(loss);
        mt_compress_free(c);
        for (int i = 0; i < 3; i++) mtt_ok(mt_set_grad(in[i], NULL));
        assert_int_equal(mtt_allocated(device), before);
        mtt_ok(mt_check_balance(device));
        mt_mem_empty_cache(device);
        if (!reached) break;
    }
    assert_true(refused > 50);
    close_net(&n);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        mtt_test(views_of_one_storage_are_packed_and_unpacked_once),
        mtt_test(a_storage_changed_in_place_is_packed_again),
        mtt_test(a_compressor_may_be_used_again_and_freed_before_its_graph),
        mtt_test(an_inner_ledger_sees_what_was_saved_and_an_outer_one_what_was_packed),
        mtt_test(meta_packs_what_this_device_packs),
        mtt_test(bad_options_and_a_wrong_order_are_refused),
        mtt_test(any_allocation_may_fail),
    };
    return cmocka_run_group_tests(tests, mtt_open_device, mtt_close_device);
}

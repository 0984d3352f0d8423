/* The bytes of a KV cache: what each form wastes, what a step takes, and what a failed one leaves.
 */
#include <string.h>
#include "base/base.h"
#include "memtape/models/generate.h"
#include "memtape/ops.h"
#include "mtt.h"
#include "mtt_fixture.h"

static const mt_model_config small = {
    .hidden = 24, .heads = 4, .layers = 2, .vocab = 61, .context = 40, .act = MT_ACT_GELU};

/* A prompt of one sequence. */
static mt_tensor *zeros_on(mt_device *d, int64_t n)
{
    return mtt_made(mt_zeros(d, MT_I64, MT_SHAPE(1, n)));
}

/* Three sequences of unequal lengths, each in a cache with room for the longest. */
static void each_form_wastes_what_its_formula_says(void **state)
{
    (void)state;
    const int64_t lengths[] = {5, 17, 40};
    const size_t position = 2 * 4 * 6 * 2 * sizeof(float); /* 2 k h L e */
    mt_device *meta = mt_device_open("meta");
    mt_device *const devices[] = {device, meta};
    for (int d = 0; d < 2; d++) {
        mt_module *m = mt_model_new(devices[d], &small);
        for (int form = 0; form < MT_KV_FORM_COUNT; form++) {
            if (form == MT_KV_8BIT) continue;
            size_t used = 0, reserved = 0, allocated = mtt_allocated_as(devices[d], MT_CACHE);
            mt_kv_cache *caches[3];
            for (int i = 0; i < 3; i++) {
                caches[i] = mt_kv_cache_new(m, (mt_kv_form)form, 1, 40);
                assert_non_null(caches[i]);
                assert_int_equal(mt_kv_cache_used(caches[i]), 0);
                MT_AUTO mt_tensor *prompt = zeros_on(devices[d], lengths[i]);
                MT_AUTO mt_tensor *y = mtt_made(mt_next_logits(m, caches[i], prompt));
                used += mt_kv_cache_used(caches[i]);
                reserved += mt_kv_cache_bytes(caches[i], NULL);
            }
            const size_t want[] = {3 * 40, 62, 0, 16 + 32 + 48}; /* positions */
            assert_int_equal(used, 62 * position);
            assert_int_equal(reserved, want[form] * position);
            assert_true(mtt_allocated_as(devices[d], MT_CACHE) - allocated >= reserved);
            if (form == MT_KV_PAGED) { /* at a block's end, and one position past it */
                mtt_ok(mt_kv_cache_rewind(caches[2], 33));
                assert_int_equal(mt_kv_cache_bytes(caches[2], NULL), 48 * position);
                mtt_ok(mt_kv_cache_rewind(caches[2], 32));
                assert_int_equal(mt_kv_cache_bytes(caches[2], NULL), 32 * position);
            }
            for (int i = 0; i < 3; i++) mt_kv_cache_free(caches[i]);
        }
        mt_module_free(m);
    }
    mt_device_release(meta);
}

/* A step that fails after some layers took new blocks gives them back. */
static void a_failed_step_leaves_no_block(void **state)
{
    (void)state;
    mt_module *m = mt_model_new(device, &small);
    mt_kv_cache *cache = mt_kv_cache_new(m, MT_KV_PAGED, 1, 40);
    MT_AUTO mt_tensor *prompt = zeros_on(device, 16);
    MT_AUTO mt_tensor *one = zeros_on(device, 1);
    MT_AUTO mt_tensor *y = mtt_made(mt_next_logits(m, cache, prompt));
    size_t before = mt_kv_cache_bytes(cache, NULL);
    bool failed = true;
    int failures = 0;
    for (uint64_t nth = 1; failed; nth = mtt_next_refusal(nth)) {
        mti_fail_nth_alloc(nth);
        MT_AUTO mt_tensor *next = mt_next_logits(m, cache, one);
        mti_fail_nth_alloc(0);
        if (!(failed = !next)) break;
        failures++;
        mtt_failed(MT_ERR_MEMORY, "");
        assert_int_equal(mt_kv_cache_length(cache), 16);
        assert_int_equal(mt_kv_cache_bytes(cache, NULL), before);
    }
    assert_true(failures > 10);
    assert_int_equal(mt_kv_cache_bytes(cache, NULL), 2 * before);
    mt_kv_cache_free(cache);
    mt_module_free(m);
}

/* The sizes make every tensor of the cache a whole number of 512-byte blocks, and larger than
 * everything else that a step makes. */
static int64_t peak_over_a_step(mt_kv_form form, int64_t *cache_bytes)
{
    const mt_model_config c = {
        .hidden = 64, .heads = 1, .layers = 3, .vocab = 8, .context = 512, .ffn = 64};
    mt_module *m = mt_model_new(device, &c);
    mt_kv_cache *cache = mt_kv_cache_new(m, form, 1, 512);
    MT_AUTO mt_tensor *prompt = zeros_on(device, 510);
    MT_AUTO mt_tensor *one = zeros_on(device, 1);
    MT_AUTO mt_tensor *y = mtt_made(mt_next_logits(m, cache, prompt));
    *cache_bytes = (int64_t)mt_kv_cache_bytes(cache, NULL);
    mt_mem_region r;
    mt_mem_region_begin(&r, device);
    mtt_ok(mt_set(&y, mt_next_logits(m, cache, one)));
    mt_mem_region_end(&r);
    mt_kv_cache_free(cache);
    mt_module_free(m);
    return r.delta.peak;
}

static void a_growing_cache_holds_one_tensor_twice_and_8bit_unpacks_two(void **state)
{
    (void)state;
    if (strcmp(mt_device_kind(device), "cpu") != 0)
        skip(); /* the simulated device has another workspace */
    mt_set_balance_check(device, false);
    int64_t bytes, plain = peak_over_a_step(MT_KV_PREALLOCATED, &bytes);
    const int64_t tensor = 511 * 64 * 4; /* keys or values of one layer */
    assert_int_equal(bytes, 3 * 2 * 512 * 64 * 4);
    assert_true(plain < tensor); /* attention's workspace does not depend on the length */

    int64_t growing = peak_over_a_step(MT_KV_GROWING, &bytes);
    assert_true(growing >= tensor && growing < tensor + tensor / 4);
    int64_t narrow = peak_over_a_step(MT_KV_8BIT, &bytes);
    assert_int_equal(bytes, 3 * 2 * 512 * (64 + 4));
    /* keys, values and one intermediate result */
    assert_true(narrow >= 3 * tensor && narrow < 3 * tensor + tensor / 4);
    mt_set_balance_check(device, true);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        mtt_test(each_form_wastes_what_its_formula_says),
        mtt_test(a_failed_step_leaves_no_block),
        mtt_test(a_growing_cache_holds_one_tensor_twice_and_8bit_unpacks_two),
    };
    return cmocka_run_group_tests(tests, mtt_open_device, mtt_close_device);
}

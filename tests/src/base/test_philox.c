/* Philox4x32-10 against the known answers of its authors. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include "base/philox.h"

static void a_zero_key_and_counter_give_the_published_answer(void **state)
{
    (void)state;
    mti_u32x4 r = mti_philox(0, 0);
    assert_int_equal(r.v[0], 0x6627e8d5);
    assert_int_equal(r.v[1], 0xe169c58d);
    assert_int_equal(r.v[2], 0xbc57ac4c);
    assert_int_equal(r.v[3], 0x9b00dbd8);
}

/* Ten rounds as in the paper: words in an array, keys increased between rounds. */
static void plain_philox(const uint32_t counter[4], const uint32_t key[2], uint32_t out[4])
{
    uint32_t c[4], k[2] = {key[0], key[1]};
    for (int i = 0; i < 4; i++) c[i] = counter[i];
    for (int round = 0; round < 10; round++) {
        uint64_t left = (uint64_t)0xD2511F53 * c[0], right = (uint64_t)0xCD9E8D57 * c[2];
        uint32_t next[4] = {(uint32_t)(right >> 32) ^ c[1] ^ k[0], (uint32_t)right,
                            (uint32_t)(left >> 32) ^ c[3] ^ k[1], (uint32_t)left};
        for (int i = 0; i < 4; i++) c[i] = next[i];
        k[0] += 0x9E3779B9, k[1] += 0xBB67AE85;
    }
    for (int i = 0; i < 4; i++) out[i] = c[i];
}

static void seed_and_counter_fill_the_low_words_first(void **state)
{
    (void)state;
    /* The plain form gives the authors' second known answer, for all bits set. */
    uint32_t ones[4] = {~0u, ~0u, ~0u, ~0u}, out[4];
    plain_philox(ones, ones, out);
    assert_int_equal(out[0], 0x408f276d);
    assert_int_equal(out[1], 0x41c83b0e);
    assert_int_equal(out[2], 0xa20bc7c6);
    assert_int_equal(out[3], 0x6d5451fd);
    uint64_t seed = 0x0123456789abcdef, counter = 0xfedcba9876543210;
    for (int i = 0; i < 100; i++) {
        plain_philox((uint32_t[]){(uint32_t)counter, (uint32_t)(counter >> 32), 0, 0},
                     (uint32_t[]){(uint32_t)seed, (uint32_t)(seed >> 32)}, out);
        mti_u32x4 r = mti_philox(seed, counter);
        assert_memory_equal(r.v, out, sizeof out);
        seed = seed * 6364136223846793005u + 1;
        counter = counter * 6364136223846793005u + 3;
    }
}

static void the_unit_interval_holds_zero_and_not_one(void **state)
{
    (void)state;
    assert_true(mti_u32_to_unit(0) == 0.0f);
    assert_true(mti_u32_to_unit(UINT32_MAX) < 1.0f);
    assert_true(mti_u32_to_unit(1u << 31) == 0.5f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_zero_key_and_counter_give_the_published_answer),
        cmocka_unit_test(seed_and_counter_fill_the_low_words_first),
        cmocka_unit_test(the_unit_interval_holds_zero_and_not_one),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* The hash map against plain lists. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>
#include "base/base.h"

#define FIND(m, key, place) assert_int_equal(mti_hashmap_find(m, key), place)

static void only_added_entries_are_found(void **state)
{
    (void)state;
    mti_hashmap m = {0};
    FIND(&m, 0, MTI_NO_PLACE);
    assert_false(mti_hashmap_remove(&m, 0, 0));
    for (size_t i = 0; i < 5000; i++) {
        FIND(&m, 3 * i, MTI_NO_PLACE);
        assert_true(mti_hashmap_add(&m, 3 * i, 5000 - i));
    }
    assert_int_equal(m.n, 5000);
    for (size_t i = 0; i < 15000; i++) FIND(&m, i, i % 3 ? MTI_NO_PLACE : 5000 - i / 3);
    mti_hashmap_free(&m);
    FIND(&m, 0, MTI_NO_PLACE);
}

/* Three keys that differ only in bits that the first lookup ignores, and extreme keys. */
static void keys_may_be_any_numbers_and_places_zero_or_large(void **state)
{
    (void)state;
    static const uint64_t keys[] = {0, 1, (uint64_t)1 << 63, UINT64_MAX, UINT64_MAX - 1};
    mti_hashmap m = {0};
    for (size_t i = 0; i < 5; i++)
        assert_true(mti_hashmap_add(&m, keys[i], i ? SIZE_MAX - 1 - i : 0));
    for (size_t i = 0; i < 5; i++) FIND(&m, keys[i], i ? SIZE_MAX - 1 - i : 0);
    mti_hashmap_free(&m);
}

static unsigned places_of(const mti_hashmap *m, uint64_t key)
{
    unsigned seen = 0;
    for (size_t probe = 0, i; (i = mti_hashmap_next(m, key, &probe)) != MTI_NO_PLACE;) {
        assert_false(seen >> i & 1);
        seen |= 1u << i;
    }
    return seen;
}

static void a_key_has_as_many_places_as_were_added(void **state)
{
    (void)state;
    mti_hashmap m = {0};
    for (size_t i = 0; i < 20; i++) assert_true(mti_hashmap_add(&m, i % 3, i));
    for (unsigned k = 0; k < 3; k++)
        assert_int_equal(places_of(&m, k), 0xFFFFFu & 0x49249249u << k);
    assert_true(mti_hashmap_remove(&m, 1, 4));
    assert_false(mti_hashmap_remove(&m, 1, 4));
    assert_false(mti_hashmap_remove(&m, 1, 3)); /* place 3 belongs to key 0 */
    assert_int_equal(places_of(&m, 1), 0xFFFFFu & 0x49249249u << 1 & ~(1u << 4));
    mti_hashmap_free(&m);
}

enum { KEYS = 64, PLACES = 32 };

static uint32_t draw(uint32_t *seed) { return *seed = *seed * 1664525u + 1013904223u, *seed >> 8; }

/* Removed entries free their room: the table stays as large as its entries need. */
static void after_many_changes_the_map_is_right_and_small(void **state)
{
    (void)state;
    static bool there[KEYS][PLACES];
    uint32_t seed = 1;
    size_t n = 0;
    mti_hashmap m = {0};
    memset(there, 0, sizeof there);
    for (int step = 0; step < 200000; step++) {
        size_t key = draw(&seed) % KEYS, place = draw(&seed) % PLACES;
        bool *is = &there[key][place];
        if (*is) {
            assert_true(mti_hashmap_remove(&m, key << 32, place));
        } else {
            assert_true(mti_hashmap_add(&m, key << 32, place));
        }
        *is = !*is;
        n += *is ? 1 : -1;
        assert_int_equal(m.n, n);
        unsigned expected = 0;
        for (size_t i = 0; i < PLACES; i++) expected |= (unsigned)there[key][i] << i;
        if (step % 64 == 0) assert_int_equal(places_of(&m, key << 32), expected);
    }
    assert_true(m.n_entries <= 2 * KEYS * PLACES);
    mti_hashmap_free(&m);
}

static void each_place_is_visited_once_while_others_are_removed(void **state)
{
    (void)state;
    static int met[300];
    mti_hashmap m = {0};
    for (size_t i = 0; i < 300; i++) assert_true(mti_hashmap_add(&m, i, i));
    for (size_t at = 0, i; (i = mti_hashmap_each(&m, &at)) != MTI_NO_PLACE;) {
        met[i]++;
        assert_true(mti_hashmap_remove(&m, i, i));
        if (i + 150 < 300) mti_hashmap_remove(&m, i + 150, i + 150); /* visited before, or never */
    }
    assert_int_equal(m.n, 0);
    for (int i = 0; i < 150; i++) assert_int_equal(met[i], 1);
    for (int i = 150; i < 300; i++) assert_true(met[i] <= 1);
    mti_hashmap_free(&m);
}

static void a_map_without_memory_stays_as_it_was(void **state)
{
    (void)state;
    mti_hashmap m = {0};
    int refused = 0;
    for (size_t i = 0; i < 100; i++) {
        mti_fail_nth_alloc(1);
        bool added = mti_hashmap_add(&m, i, i);
        mti_fail_nth_alloc(0);
        refused += !added;
        assert_int_equal(mt_last_status(), added ? MT_OK : MT_ERR_MEMORY);
        mt_clear_error();
        FIND(&m, i, added ? i : MTI_NO_PLACE);
        assert_true(added || mti_hashmap_add(&m, i, i));
        for (size_t k = 0; k <= i; k++) FIND(&m, k, k);
    }
    assert_int_equal(refused, 5); /* 16 entries, then 32, 64, 128, 256 */
    mti_hashmap_free(&m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(only_added_entries_are_found),
        cmocka_unit_test(keys_may_be_any_numbers_and_places_zero_or_large),
        cmocka_unit_test(a_key_has_as_many_places_as_were_added),
        cmocka_unit_test(after_many_changes_the_map_is_right_and_small),
        cmocka_unit_test(each_place_is_visited_once_while_others_are_removed),
        cmocka_unit_test(a_map_without_memory_stays_as_it_was),
    };
    return cmocka_run_group_tests_name("hashmap", tests, NULL, NULL);
}

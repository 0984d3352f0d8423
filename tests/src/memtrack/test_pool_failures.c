/* The allocator when the host's or the device's memory runs out. */
#include <stdlib.h>
#include "fake.h"
#include "memtrack/shadow.h"

static mti_ctx fake;

static int clear(void **state)
{
    (void)state;
    mti_fail_nth_alloc(0);
    mt_clear_error();
    return 0;
}

static void out_of_memory_reports_the_figures_and_changes_nothing(void **state)
{
    (void)state;
    mtt_fake_init(&fake, 32 * MIB);
    mti_pool *pool = mti_pool_new(&mtt_fake_backend, &fake);
    mti_block *a = mti_pool_alloc(pool, 1536, MT_INPUT);
    mti_where_now()->op = "matmul";
    assert_null(mti_pool_alloc(pool, 64 * MIB, MT_ACTIVATION));
    mti_where_now()->op = "";
    assert_int_equal(mt_last_status(), MT_ERR_MEMORY);
    assert_string_equal(mt_last_error(),
                        "matmul: fake out of memory: 64 MiB (67108864 bytes) asked "
                        "for; 1.5 KiB allocated, 2 MiB reserved");
    mt_mem_stats s;
    mti_pool_get_stats(pool, &s);
    assert_int_equal(s.ooms, 1);
    assert_int_equal(s.alloc_retries, 1);
    assert_int_equal(s.allocated.current, 1536);
    assert_true(mti_pool_check(pool));
    mti_block *b = mti_pool_alloc(pool, 30 * MIB, MT_ACTIVATION);
    assert_non_null(b);
    mti_pool_free(pool, b, 30 * MIB);
    mti_pool_free(pool, a, 1536);
    mti_pool_free_all(pool);
}

static void cached_segments_are_freed_before_a_request_is_refused(void **state)
{
    (void)state;
    mtt_fake_init(&fake, 40 * MIB);
    mti_pool *pool = mti_pool_new(&mtt_fake_backend, &fake);
    mti_block *keep = mti_pool_alloc(pool, 100, MT_INPUT);
    mti_block *a = mti_pool_alloc(pool, 20 * MIB, MT_ACTIVATION);
    mti_pool_free(pool, a, 20 * MIB);
    mti_block *b = mti_pool_alloc(pool, 30 * MIB, MT_ACTIVATION);
    assert_non_null(b);
    mt_mem_stats s;
    mti_pool_get_stats(pool, &s);
    assert_int_equal(s.reserved.current, 32 * MIB);
    assert_int_equal(s.alloc_retries, 1);
    assert_int_equal(s.ooms, 0);
    assert_int_equal(mt_last_status(), MT_OK);
    assert_true(mti_pool_check(pool));
    mti_pool_free(pool, b, 30 * MIB);
    mti_pool_free(pool, keep, 100);
    mti_pool_free_all(pool);
}

static void huge_sizes_are_out_of_memory_and_do_not_overflow(void **state)
{
    (void)state;
    mtt_fake_init(&fake, SIZE_MAX);
    mti_pool *pool = mti_pool_new(&mtt_fake_backend, &fake);
    static const size_t absurd[] = {SIZE_MAX, SIZE_MAX - 511, SIZE_MAX - 2 * MIB + 1};
    for (int i = 0; i < 3; i++) {
        assert_null(mti_pool_alloc(pool, absurd[i], MT_ACTIVATION));
        assert_int_equal(mt_last_status(), MT_ERR_MEMORY);
        mt_clear_error();
    }
    assert_int_equal(fake.n_asked, 0);
    mti_pool_free_all(pool);
}

static void ignore_event(void *user, const mt_mem_event *event) { (void)user, (void)event; }

/* Makes every kind of request, more blocks than one slab holds and more segments than the list
 * first has room for. Returns false at the first failure, with everything freed. */
static bool scenario(mti_pool *pool)
{
    enum { N = 200 };
    mti_block *b[N] = {0};
    bool ok = true;
    int id = mti_pool_add_observer(pool, ignore_event, NULL);
    for (int i = 0; ok && i < N; i++) {
        b[i] = mti_pool_alloc(pool, i % 10 ? 700 : i % 20 ? 3 * MIB : 12 * MIB, MT_ACTIVATION);
        ok = b[i];
    }
    for (int i = 0; i < N; i++) mti_pool_free(pool, b[i], b[i] ? b[i]->requested : 0);
    if (id) mti_pool_remove_observer(pool, id);
    return ok && id;
}

static void each_refusal_in_turn_is_an_error_and_the_next_try_works(void **state)
{
    (void)state;
    uint64_t n_requests = 1, n_reported = 0, n_survived = 0;
    for (uint64_t i = 1; i <= n_requests; i++) {
        mtt_fake_init(&fake, (size_t)1 << 40);
        mti_fail_nth_alloc(i);
        mti_pool *pool = mti_pool_new(&mtt_fake_backend, &fake);
        bool ok = pool && scenario(pool);
        if (i == 1) n_requests = 1000; /* an upper limit, until the scenario makes fewer requests */
        if (mti_alloc_count() < i) {   /* fewer than i requests: none failed */
            assert_true(ok);
            n_requests = i;
        } else if (ok) { /* the device refused, and granted the second try */
            n_survived++;
        } else {
            n_reported++;
            assert_int_equal(mt_last_status(), MT_ERR_MEMORY);
        }
        mt_clear_error();
        mti_fail_nth_alloc(0);
        if (pool) {
            mt_mem_stats s;
            mti_pool_get_stats(pool, &s);
            assert_int_equal(s.allocated.current, 0);
            assert_true(mti_pool_check(pool));
            assert_true(scenario(pool));
            mti_pool_free_all(pool);
        }
        assert_int_equal(fake.n, 0);
    }
    assert_int_equal(mt_last_status(), MT_OK);
    assert_in_range(n_reported, 200, 900); /* 200 blocks and the pool's own requests */
    assert_in_range(n_survived, 10, 100);
}

static void a_request_that_the_cache_serves_can_fail_too(void **state)
{
    (void)state;
    mtt_fake_init(&fake, (size_t)1 << 40);
    mti_pool *pool = mti_pool_new(&mtt_fake_backend, &fake);
    mti_pool_free(pool, mti_pool_alloc(pool, 1000, MT_INPUT), 1000);
    mti_fail_nth_alloc(1);
    assert_null(mti_pool_alloc(pool, 1000, MT_INPUT));
    assert_int_equal(mti_alloc_count(), 1);
    assert_int_equal(mt_last_status(), MT_ERR_MEMORY);
    mti_block *b = mti_pool_alloc(pool, 1000, MT_INPUT);
    assert_non_null(b);
    mti_pool_free(pool, b, 1000);
    mti_pool_free_all(pool);
    mti_pool_free_all(NULL);
}

/* ---- under AddressSanitizer ---- */

#ifdef MTI_HAS_SHADOW
static void *host_alloc(mti_ctx *ctx, size_t n_bytes)
{
    (void)ctx;
    return aligned_alloc(512, n_bytes);
}

static void host_free(mti_ctx *ctx, void *p, size_t n_bytes)
{
    (void)ctx;
    memset(p, 0, n_bytes); /* all of it must be writable again */
    free(p);
}

static void the_sanitizer_reports_access_to_free_blocks(void **state)
{
    (void)state;
    static const mti_backend host = {
        .kind = "host", .traits = MTI_HOST_MEMORY, .alloc = host_alloc, .free = host_free};
    mti_pool *pool = mti_pool_new(&host, NULL);
    mti_block *a = mti_pool_alloc(pool, 1001, MT_INPUT), *b = mti_pool_alloc(pool, 512, MT_INPUT);
    char *at = a->ptr;
    assert_null(__asan_region_is_poisoned(at, 1001));
    assert_ptr_equal(__asan_region_is_poisoned(at, 1002), at + 1001);
    mti_pool_free(pool, a, 1001);
    assert_ptr_equal(__asan_region_is_poisoned(at, 1001), at);
    assert_null(__asan_region_is_poisoned(b->ptr, 512));
    a = mti_pool_alloc(pool, 7, MT_INPUT);
    assert_ptr_equal(a->ptr, at);
    assert_ptr_equal(__asan_region_is_poisoned(at, 8), at + 7);
    mti_pool_free(pool, a, 7);
    mti_pool_free(pool, b, 512);
    mti_pool_empty_cache(pool);
    a = mti_pool_alloc(pool, 3 * MIB, MT_INPUT);
    mti_pool_free_all(pool); /* a is still live: its segment is freed with it */
}
#else
static void the_sanitizer_reports_access_to_free_blocks(void **state)
{
    (void)state;
    skip();
}
#endif

/* In a stream of its own, whether segments expand or not. */
static void each_refusal_in_a_new_stream_is_an_error_and_changes_nothing(void **state)
{
    (void)state;
    for (int expands = 0; expands < 2; expands++) {
        bool refused = true;
        for (int n = 1; refused; n++) {
            mtt_fake_init(&fake, (size_t)1 << 40);
            mti_pool *pool = mti_pool_new(&mtt_fake_backend, &fake);
            mti_block *other = NULL, *b = NULL;
            mt_stream_scope scope;
            if (expands) assert_true(mti_pool_set_expandable(pool, &(mt_expandable){0}));
            other = mti_pool_alloc(pool, 3 * MIB, MT_INPUT);
            mti_fail_nth_alloc((size_t)n);
            bool began = mti_pool_stream_begin(pool, &scope, "side");
            if (began) b = mti_pool_alloc(pool, 2 * MIB, MT_ACTIVATION);
            refused = !b;
            mti_fail_nth_alloc(0);
            assert_int_equal(mt_last_status(), refused ? MT_ERR_MEMORY : MT_OK);
            if (!b) b = mti_pool_alloc(pool, 2 * MIB, MT_ACTIVATION);
            if (began) mti_stream_end(&scope);
            assert_non_null(b);
            mt_stream_stats streams[MT_MAX_STREAMS];
            assert_int_equal(mti_pool_get_streams(pool, streams), began ? 2 : 1);
            assert_int_equal(streams[began].allocated, began ? 2 * MIB : 5 * MIB);
            assert_true(mti_pool_check(pool));
            mti_pool_free(pool, b, 2 * MIB);
            mti_pool_free(pool, other, 3 * MIB);
            mti_pool_free_all(pool);
            assert_int_equal(fake.n + fake.n_ranges + fake.n_granules, 0);
            mt_clear_error();
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(out_of_memory_reports_the_figures_and_changes_nothing, clear),
        cmocka_unit_test_teardown(cached_segments_are_freed_before_a_request_is_refused, clear),
        cmocka_unit_test_teardown(huge_sizes_are_out_of_memory_and_do_not_overflow, clear),
        cmocka_unit_test_teardown(each_refusal_in_turn_is_an_error_and_the_next_try_works, clear),
        cmocka_unit_test_teardown(a_request_that_the_cache_serves_can_fail_too, clear),
        cmocka_unit_test_teardown(each_refusal_in_a_new_stream_is_an_error_and_changes_nothing,
                                  clear),
        cmocka_unit_test(the_sanitizer_reports_access_to_free_blocks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

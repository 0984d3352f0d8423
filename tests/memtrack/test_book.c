/* The book of saved tensors lists each storage once, and names every saver. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>
#include "memtrack/memtrack.h"

static int clear(void **state)
{
    (void)state;
    mti_fail_nth_alloc(0);
    mt_clear_error();
    return 0;
}

static mti_save save_of(uint64_t serial, size_t bytes, const char *op)
{
    return (mti_save){.serial = serial,
                      .bytes = bytes,
                      .rounded = (bytes + 511) / 512 * 512,
                      .saver = {.rank = 2,
                                .shape = {3, (int64_t)bytes},
                                .dtype = MT_BF16,
                                .module = "mlp",
                                .op = op,
                                .argument = "x",
                                .role = MT_SAVE_INPUT,
                                .node = serial + 100}};
}

static bool put(mti_book *book, uint64_t serial, size_t bytes, const char *op)
{
    mti_save s = save_of(serial, bytes, op);
    return mti_book_save(book, &s);
}

static void an_empty_book_holds_nothing(void **state)
{
    (void)state;
    mti_book *book = mti_book_new();
    assert_int_equal(mti_book_count(book), 0);
    assert_int_equal(mti_book_bytes(book), 0);
    mti_book_freed(book, 7, NULL);
    mti_book_free(book);
    mti_book_free(NULL);
}

static void a_storage_counts_once_and_later_savers_share_it(void **state)
{
    (void)state;
    mti_book *book = mti_book_new();
    assert_true(put(book, 1, 1000, "gelu"));
    assert_true(put(book, 2, 600, "linear"));
    for (int i = 0; i < 9; i++) assert_true(put(book, 1, 1000, i % 2 ? "mul" : "add"));
    assert_int_equal(mti_book_count(book), 2);
    assert_int_equal(mti_book_bytes(book), 1600);
    assert_int_equal(mti_book_live_bytes(book), 1600);
    assert_int_equal(mti_book_rounded_bytes(book), 1024 + 1024);
    const mti_record *r = mti_book_get(book, 0);
    assert_string_equal(r->first.saver.op, "gelu");
    assert_int_equal(r->first.saver.node, 101);
    assert_int_equal(r->first.saver.shape[1], 1000);
    assert_int_equal(r->n_also, 9);
    for (int i = 0; i < 9; i++) assert_string_equal(r->also[i].op, i % 2 ? "mul" : "add");
    r = mti_book_get(book, 1);
    assert_string_equal(r->first.saver.op, "linear");
    assert_int_equal(r->n_also, 0);
    mti_book_free(book);
}

static void a_reset_forgets_records_and_keeps_what_is_ignored_and_the_memory(void **state)
{
    (void)state;
    mti_book *book = mti_book_new();
    assert_true(mti_book_ignore(book, 5));
    for (uint64_t i = 1; i <= 300; i++) assert_true(put(book, i, 100, "gelu"));
    for (int i = 0; i < 3; i++) assert_true(put(book, 7, 100, "mul"));
    assert_true(mti_book_ignore(book, 9)); /* it was saved: its entry stays, until the reset */
    assert_int_equal(mti_book_count(book), 299);
    mti_book_reset(book);
    assert_int_equal(mti_book_count(book), 0);
    assert_int_equal(mti_book_bytes(book), 0);
    assert_int_equal(mti_book_live_bytes(book), 0);
    assert_int_equal(mti_book_rounded_bytes(book), 0);
    mti_fail_nth_alloc(1); /* the same again: no memory is asked for */
    for (uint64_t i = 1; i <= 300; i++) assert_true(put(book, i, 100, "relu"));
    for (int i = 0; i < 3; i++) assert_true(put(book, 7, 100, "add"));
    assert_int_equal(mti_alloc_count(), 0);
    assert_int_equal(mti_book_count(book), 298);
    /* 5 and 9 have no record: 7 is the sixth. */
    assert_int_equal(mti_book_get(book, 5)->first.serial, 7);
    assert_int_equal(mti_book_get(book, 5)->n_also, 3);
    assert_string_equal(mti_book_get(book, 5)->also[2].op, "add");
    assert_string_equal(mti_book_get(book, 5)->first.saver.op, "relu");
    assert_int_equal(mti_book_get(book, 4)->n_also, 0);
    mti_fail_nth_alloc(0);
    mti_book_free(book);
}

static void ignored_storages_are_not_recorded(void **state)
{
    (void)state;
    mti_book *book = mti_book_new();
    assert_true(mti_book_ignore(book, 5));
    assert_true(mti_book_ignore(book, 5));
    assert_true(put(book, 5, 4096, "linear"));
    assert_int_equal(mti_book_count(book), 0);
    mti_book_freed(book, 5, NULL);
    assert_true(put(book, 6, 100, "relu"));
    assert_true(mti_book_ignore(book, 6)); /* too late: recorded storages stay */
    assert_true(put(book, 6, 100, "add"));
    assert_int_equal(mti_book_bytes(book), 100);
    assert_int_equal(mti_book_get(book, 0)->n_also, 1);
    mti_book_free(book);
}

static void a_record_says_when_its_bytes_were_freed(void **state)
{
    (void)state;
    mti_book *book = mti_book_new();
    assert_true(put(book, 1, 1000, "gelu") && put(book, 2, 500, "relu") && put(book, 3, 7, "exp"));
    mti_book_freed(book, 1, &(mti_where){"gelu", "gpt.h.0.mlp.act", "backward"});
    mti_book_freed(book, 1,
                   &(mti_where){"later", "elsewhere", "backward"}); /* only the first counts */
    mti_book_freed(book, 2, NULL);
    mti_book_freed(book, 99, NULL);
    const mti_record *r = mti_book_get(book, 0);
    assert_true(r->freed);
    assert_string_equal(r->freed_after_op, "gelu");
    assert_string_equal(r->freed_after_module, "gpt.h.0.mlp.act");
    r = mti_book_get(book, 1);
    assert_true(r->freed);
    assert_string_equal(r->freed_after_op, "");
    assert_string_equal(r->freed_after_module, "");
    assert_false(mti_book_get(book, 2)->freed);
    assert_int_equal(mti_book_bytes(book), 1507);
    assert_int_equal(mti_book_live_bytes(book), 7);
    mti_book_free(book);
}

static void many_records_keep_their_order_and_are_found(void **state)
{
    (void)state;
    enum { N = 20000 };
    mti_book *book = mti_book_new();
    size_t bytes = 0;
    for (uint64_t i = 0; i < N; i++) {
        /* serials far apart, close together, and equal in their low halves */
        uint64_t serial = (i * 2654435761u % 65536) << (i % 2 ? 32 : 0) | (i + 1) << 8;
        assert_true(put(book, serial, i + 1, "op"));
        bytes += i + 1;
    }
    const mti_record *first = mti_book_get(book, 0);
    assert_int_equal(mti_book_count(book), N);
    assert_int_equal(mti_book_bytes(book), bytes);
    for (size_t i = 0; i < N; i++) {
        const mti_record *r = mti_book_get(book, i);
        assert_int_equal(r->first.bytes, i + 1);
        mti_book_freed(book, r->first.serial, NULL);
        assert_true(r->freed);
    }
    assert_ptr_equal(mti_book_get(book, 0), first);
    assert_int_equal(mti_book_live_bytes(book), 0);
    mti_book_free(book);
}

static void take_back(mti_book *book, uint64_t serial)
{
    mti_book_take_back(book, serial, serial + 100, "x");
}

static void a_save_that_is_taken_back_leaves_the_others_in_their_order(void **state)
{
    (void)state;
    enum { N = 500 }; /* more than a chunk of records, twice: the memory is used again */
    mti_book *book = mti_book_new();
    for (int turn = 0; turn < 2; turn++) {
        for (uint64_t i = 1; i <= N; i++) assert_true(put(book, i, i, "a") && put(book, i, i, "b"));
        mti_book_freed(book, 30, NULL);
        mti_book_take_back(book, 9, 9, "x"); /* another node, ... */
        mti_book_take_back(book, 9, 109, "y");
        take_back(book, N + 1);
        for (uint64_t i = 10; i <= N; i += 10) take_back(book, i); /* the first saver: "a" */
        assert_int_equal(mti_book_count(book), N);
        assert_string_equal(mti_book_get(book, 19)->first.saver.op, "b");
        assert_int_equal(mti_book_get(book, 19)->n_also, 0);
        size_t bytes = N * (N + 1) / 2, rest = bytes;
        for (uint64_t i = 10; i <= N; i += 10) take_back(book, i), rest -= i;
        assert_int_equal(mti_book_count(book), N - N / 10);
        assert_int_equal(mti_book_bytes(book), rest);
        assert_int_equal(mti_book_live_bytes(book), rest);
        assert_int_equal(mti_book_rounded_bytes(book), (N - N / 10) * 512);
        for (size_t i = 0; i < N - N / 10; i++) {
            const mti_record *r = mti_book_get(book, i);
            assert_int_equal(r->first.serial, i + i / 9 + 1);
            assert_int_equal(r->n_also, 1);
            assert_string_equal(r->also[0].op, "b");
        }
        assert_true(put(book, 10, 10, "again"));
        assert_int_equal(mti_book_get(book, N - N / 10)->first.serial, 10);
        mti_book_reset(book);
    }
    mti_book_free(book);
}

/* A write that fails changes nothing, so that it can be repeated. */
static void each_refusal_in_turn_leaves_the_book_as_it_was(void **state)
{
    (void)state;
    uint64_t n_failed = 0;
    for (uint64_t fail_at = 1;; fail_at++) {
        mti_fail_nth_alloc(fail_at);
        mti_book *book = mti_book_new();
        bool failed = !book;
        if (!book) book = mti_book_new();
        for (uint64_t i = 1; i <= 400; i++) {
            size_t count = mti_book_count(book), bytes = mti_book_bytes(book);
            bool ok = i % 10 ? put(book, i, 100, "a") && put(book, i, 100, "b")
                             : mti_book_ignore(book, i);
            if (ok) continue;
            assert_false(failed); /* only the refused request failed */
            failed = true;
            assert_int_equal(mt_last_status(), MT_ERR_MEMORY);
            if (mti_book_count(book) > count) { /* the second of the two writes failed */
                assert_int_equal(mti_book_get(book, count)->n_also, 0);
                assert_true(put(book, i, 100, "b"));
            } else {
                assert_int_equal(mti_book_bytes(book), bytes);
                i--; /* repeat both writes */
            }
        }
        bool over = mti_alloc_count() < fail_at;
        assert_int_equal(failed, !over);
        n_failed += failed;
        mt_clear_error();
        assert_int_equal(mti_book_count(book), 360);
        assert_int_equal(mti_book_bytes(book), 36000);
        for (size_t i = 0; i < 360; i++) {
            assert_int_equal(mti_book_get(book, i)->n_also, 1);
            assert_int_equal(mti_book_get(book, i)->first.serial, i + i / 9 + 1);
        }
        mti_book_free(book);
        if (over) break;
    }
    assert_true(n_failed > 360);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(an_empty_book_holds_nothing, clear),
        cmocka_unit_test_teardown(a_storage_counts_once_and_later_savers_share_it, clear),
        cmocka_unit_test_teardown(a_reset_forgets_records_and_keeps_what_is_ignored_and_the_memory,
                                  clear),
        cmocka_unit_test_teardown(ignored_storages_are_not_recorded, clear),
        cmocka_unit_test_teardown(a_record_says_when_its_bytes_were_freed, clear),
        cmocka_unit_test_teardown(many_records_keep_their_order_and_are_found, clear),
        cmocka_unit_test_teardown(a_save_that_is_taken_back_leaves_the_others_in_their_order,
                                  clear),
        cmocka_unit_test_teardown(each_refusal_in_turn_leaves_the_book_as_it_was, clear),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

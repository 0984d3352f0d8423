/* The book of saved tensors lists each storage once, names every saver, and knows which are freed.
 */
#include "pooled.h"

static bool save_at(mti_book *book, mti_block *b, const char *op, uint64_t node)
{
    return mti_book_save(book, b, b->requested,
                         &(mt_saver){.rank = 2,
                                     .shape = {3, (int64_t)b->requested},
                                     .dtype = MT_BF16,
                                     .module = "mlp",
                                     .op = op,
                                     .argument = "x",
                                     .role = MT_SAVE_INPUT,
                                     .node = node});
}

static bool put(mti_book *book, mti_block *b, const char *op)
{
    return save_at(book, b, op, b->serial + 100);
}

static mti_book *book_of_pool(void)
{
    mti_book *book = mti_book_new(mtt_pool);
    assert_non_null(book);
    return book;
}

enum { MANY = 500 }; /* more than a chunk of records */

/* Blocks of 1, 2, ... bytes, or of n_bytes each where that is not 0. */
static void get_all(mti_block *b[MANY], size_t n_bytes)
{
    for (size_t i = 0; i < MANY; i++) assert_non_null(b[i] = mtt_get(n_bytes ? n_bytes : i + 1));
}

static void put_all(mti_block *b[MANY])
{
    for (size_t i = 0; i < MANY; i++)
        if (b[i]) mtt_put(b[i]);
}

static void free_in(const char *op, const char *module, int in_backward, mti_block *b)
{
    mti_where *where = mti_where_now(), outer = *where;
    *where = (mti_where){op, module, "backward", in_backward};
    mtt_put(b);
    *where = outer;
}

static void an_empty_book_holds_nothing(void **state)
{
    (void)state;
    mti_book *book = book_of_pool();
    assert_int_equal(mti_book_count(book), 0);
    assert_int_equal(mti_book_bytes(book), 0);
    mtt_put(mtt_get(7));
    mti_book_free(book);
    mti_book_free(NULL);
}

static void a_storage_counts_once_and_later_savers_share_it(void **state)
{
    (void)state;
    mti_book *book = book_of_pool();
    mti_block *a = mtt_get(1000), *b = mtt_get(600);
    assert_true(put(book, a, "gelu"));
    assert_true(put(book, b, "linear"));
    for (int i = 0; i < 9; i++) assert_true(put(book, a, i % 2 ? "mul" : "add"));
    assert_int_equal(mti_book_count(book), 2);
    assert_int_equal(mti_book_bytes(book), 1600);
    assert_int_equal(mti_book_live_bytes(book), 1600);
    assert_int_equal(mti_book_allocated(book), 1024 + 1024);
    const mti_record *r = mti_book_get(book, 0);
    assert_int_equal(r->serial, a->serial);
    assert_string_equal(r->saver.op, "gelu");
    assert_int_equal(r->saver.node, a->serial + 100);
    assert_int_equal(r->saver.shape[1], 1000);
    assert_int_equal(r->n_also, 9);
    for (int i = 0; i < 9; i++) assert_string_equal(r->also[i].op, i % 2 ? "mul" : "add");
    r = mti_book_get(book, 1);
    assert_string_equal(r->saver.op, "linear");
    assert_int_equal(r->n_also, 0);
    mti_book_free(book);
    mtt_put(a), mtt_put(b);
}

/* What a book says is its own, however many list the block, and in whatever order they end. */
static void books_that_list_the_same_storage_do_not_know_of_each_other(void **state)
{
    (void)state;
    enum { N = 3 };
    for (int last = 0; last < N; last++) {
        mti_book *book[N];
        mti_block *a = mtt_get(1000), *b = mtt_get(500);
        for (int i = 0; i < N; i++) {
            book[i] = book_of_pool();
            assert_true(put(book[i], a, "gelu"));
            for (int j = 0; j < i; j++) assert_true(put(book[i], a, "add"));
            assert_true(put(book[i], b, "relu"));
        }
        for (int i = 0; i < N; i++) assert_int_equal(mti_book_get(book[i], 0)->n_also, i);
        int reset = (last + 1) % N, freed = (last + 2) % N;
        mti_book_reset(book[reset]);
        mti_book_free(book[freed]);
        assert_true(put(book[reset], b, "again"));
        mtt_put(a);
        assert_true(mti_book_get(book[last], 0)->freed);
        assert_int_equal(mti_book_live_bytes(book[last]), 500);
        assert_int_equal(mti_book_bytes(book[last]), 1500);
        assert_int_equal(mti_book_count(book[reset]), 1);
        assert_int_equal(mti_book_live_bytes(book[reset]), 500);
        mtt_put(b);
        assert_int_equal(mti_book_live_bytes(book[last]), 0);
        assert_int_equal(mti_book_live_bytes(book[reset]), 0);
        mti_book_free(book[last]), mti_book_free(book[reset]);
    }
}

/* A block in the place of one that was freed is another storage. */
static void a_block_used_again_is_another_storage(void **state)
{
    (void)state;
    mti_book *book = book_of_pool();
    for (int i = 0; i < 3; i++) {
        mti_block *b = mtt_get(1000);
        assert_true(put(book, b, "gelu"));
        mtt_put(b);
    }
    assert_int_equal(mti_book_count(book), 3);
    assert_int_equal(mti_book_bytes(book), 3000);
    assert_int_equal(mti_book_live_bytes(book), 0);
    for (size_t i = 0; i < 3; i++) assert_int_equal(mti_book_get(book, i)->n_also, 0);
    mti_book_free(book);
}

static void a_reset_forgets_records_and_keeps_what_is_ignored_and_the_memory(void **state)
{
    (void)state;
    mti_book *book = book_of_pool();
    mti_block *b[MANY];
    get_all(b, 100);
    assert_true(mti_book_ignore(book, b[5]->serial));
    for (int i = 0; i < MANY; i++) assert_true(put(book, b[i], "gelu"));
    for (int i = 0; i < 3; i++) assert_true(put(book, b[7], "mul"));
    assert_true(mti_book_ignore(book, b[9]->serial)); /* it was saved: until the reset it stays */
    assert_int_equal(mti_book_count(book), MANY - 1);
    mti_book_reset(book);
    assert_int_equal(mti_book_count(book), 0);
    assert_int_equal(mti_book_bytes(book), 0);
    assert_int_equal(mti_book_live_bytes(book), 0);
    assert_int_equal(mti_book_allocated(book), 0);
    mti_fail_nth_alloc(1); /* the same again: no memory is asked for */
    for (int i = 0; i < MANY; i++) assert_true(put(book, b[i], "relu"));
    for (int i = 0; i < 3; i++) assert_true(put(book, b[7], "add"));
    assert_int_equal(mti_alloc_count(), 0);
    mti_fail_nth_alloc(0);
    assert_int_equal(mti_book_count(book), MANY - 2);
    /* 5 and 9 have no record: 7 is the seventh. */
    assert_int_equal(mti_book_get(book, 6)->serial, b[7]->serial);
    assert_int_equal(mti_book_get(book, 6)->n_also, 3);
    assert_string_equal(mti_book_get(book, 6)->also[2].op, "add");
    assert_string_equal(mti_book_get(book, 6)->saver.op, "relu");
    assert_int_equal(mti_book_get(book, 5)->n_also, 0);
    mti_book_free(book);
    put_all(b);
}

static void ignored_storages_are_not_recorded(void **state)
{
    (void)state;
    mti_book *book = book_of_pool();
    mti_block *a = mtt_get(4096), *b = mtt_get(100);
    assert_true(mti_book_ignore(book, a->serial));
    assert_true(mti_book_ignore(book, a->serial));
    assert_true(put(book, a, "linear"));
    assert_int_equal(mti_book_count(book), 0);
    mtt_put(a);
    assert_true(put(book, b, "relu"));
    assert_true(mti_book_ignore(book, b->serial)); /* too late: recorded storages stay */
    assert_true(put(book, b, "add"));
    assert_int_equal(mti_book_bytes(book), 100);
    assert_int_equal(mti_book_get(book, 0)->n_also, 1);
    mti_book_free(book);
    mtt_put(b);
}

static void a_record_says_when_its_bytes_were_freed(void **state)
{
    (void)state;
    mti_book *book = book_of_pool();
    mti_block *b[] = {mtt_get(1000), mtt_get(500), mtt_get(7), mtt_get(0)};
    for (int i = 0; i < 4; i++) assert_true(put(book, b[i], "gelu"));
    free_in("gelu", "gpt.h.0.mlp.act", 1, b[0]);
    free_in("linear", "gpt.h.0.mlp.fc", 0, b[1]);
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
    free_in("later", "elsewhere", 2, b[2]);
    free_in("later", "elsewhere", 2, b[3]); /* there are no bytes of it to free */
    assert_string_equal(mti_book_get(book, 2)->freed_after_op, "later");
    assert_false(mti_book_get(book, 3)->freed);
    assert_int_equal(mti_book_live_bytes(book), 0);
    mti_book_free(book);
}

static void many_records_keep_their_order_and_their_places(void **state)
{
    (void)state;
    mti_book *book = book_of_pool();
    mti_block *b[MANY];
    get_all(b, 0);
    for (int i = 0; i < MANY; i++) assert_true(put(book, b[i], "op"));
    const mti_record *first = mti_book_get(book, 0);
    assert_int_equal(mti_book_count(book), MANY);
    assert_int_equal(mti_book_bytes(book), MANY * (MANY + 1) / 2);
    for (size_t i = 0; i < MANY; i++) {
        const mti_record *r = mti_book_get(book, i);
        assert_int_equal(r->bytes, i + 1);
        assert_int_equal(r->serial, b[i]->serial);
        mtt_put(b[i]);
        assert_true(r->freed);
    }
    assert_ptr_equal(mti_book_get(book, 0), first);
    assert_int_equal(mti_book_live_bytes(book), 0);
    mti_book_free(book);
}

/* Odd turns do not know which block a node gave up. */
static void a_save_that_is_taken_back_leaves_the_others_in_their_order(void **state)
{
    (void)state;
    mti_book *book = book_of_pool();
    for (int turn = 0; turn < 4; turn++) {
        mti_block *b[MANY];
        get_all(b, 0);
        for (uint64_t i = 0; i < MANY; i++)
            assert_true(save_at(book, b[i], "a", i) && save_at(book, b[i], "b", MANY + i) &&
                        save_at(book, b[i], "b", MANY + i));
        mtt_put(b[29]), b[29] = NULL;
        mti_book_take_back(book, b[8], MANY, "x"); /* another node, ... */
        mti_book_take_back(book, b[8], 8, "y");
        mti_book_take_back(book, NULL, 2 * MANY, "x");
        for (uint64_t i = 9; i < MANY; i += 10) /* the first saver: "a" */
            mti_book_take_back(book, turn % 2 ? NULL : b[i], i, "x");
        assert_int_equal(mti_book_count(book), MANY);
        assert_string_equal(mti_book_get(book, 19)->saver.op, "b");
        assert_int_equal(mti_book_get(book, 19)->n_also, 1);
        assert_int_equal(mti_book_live_bytes(book), MANY * (MANY + 1) / 2 - 30);
        size_t rest = MANY * (MANY + 1) / 2;
        for (uint64_t i = 9; i < MANY; i += 10) { /* and its other, which was told twice */
            mti_book_take_back(book, turn % 2 ? NULL : b[i], MANY + i, "x");
            rest -= i + 1;
        }
        assert_int_equal(mti_book_count(book), MANY - MANY / 10);
        assert_int_equal(mti_book_bytes(book), rest);
        assert_int_equal(mti_book_live_bytes(book), rest);
        assert_int_equal(mti_book_allocated(book), (MANY - MANY / 10) * 512);
        for (size_t i = 0; i < MANY - MANY / 10; i++) {
            const mti_record *r = mti_book_get(book, i);
            assert_int_equal(r->serial, b[i + i / 9]->serial);
            assert_int_equal(r->n_also, 2);
            assert_string_equal(r->also[0].op, "b");
        }
        assert_true(put(book, b[9], "again"));
        assert_int_equal(mti_book_get(book, MANY - MANY / 10)->serial, b[9]->serial);
        if (turn > 1) put_all(b); /* of a book that was reset, and of one that was not */
        mti_book_reset(book);
        if (turn <= 1) put_all(b);
    }
    mti_book_free(book);
}

/* A write that fails changes nothing, so that it can be repeated. */
static void each_refusal_in_turn_leaves_the_book_as_it_was(void **state)
{
    (void)state;
    uint64_t n_failed = 0;
    mti_block *b[MANY];
    get_all(b, 100);
    for (uint64_t fail_at = 1;; fail_at++) {
        mti_fail_nth_alloc(fail_at);
        mti_book *book = mti_book_new(mtt_pool);
        bool failed = !book;
        if (!book) book = mti_book_new(mtt_pool);
        for (int i = 0; i < MANY; i++) {
            size_t count = mti_book_count(book), bytes = mti_book_bytes(book);
            bool ok = i % 10 ? put(book, b[i], "a") && put(book, b[i], "b")
                             : mti_book_ignore(book, b[i]->serial);
            if (ok) continue;
            assert_false(failed); /* only the refused request failed */
            failed = true;
            assert_int_equal(mt_last_status(), MT_ERR_MEMORY);
            if (mti_book_count(book) > count) { /* the second of the two writes failed */
                assert_int_equal(mti_book_get(book, count)->n_also, 0);
                assert_true(put(book, b[i], "b"));
            } else {
                assert_int_equal(mti_book_bytes(book), bytes);
                i--; /* repeat both writes */
            }
        }
        bool over = mti_alloc_count() < fail_at;
        assert_int_equal(failed, !over);
        n_failed += failed;
        mt_clear_error();
        mti_fail_nth_alloc(0);
        assert_int_equal(mti_book_count(book), MANY - MANY / 10);
        assert_int_equal(mti_book_bytes(book), 100 * (MANY - MANY / 10));
        for (size_t i = 0; i < MANY - MANY / 10; i++) {
            assert_int_equal(mti_book_get(book, i)->n_also, 1);
            assert_int_equal(mti_book_get(book, i)->serial, b[i + i / 9 + 1]->serial);
        }
        mti_book_free(book);
        if (over) break;
    }
    assert_true(n_failed > MANY - MANY / 10);
    put_all(b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        WITH_POOL(an_empty_book_holds_nothing),
        WITH_POOL(a_storage_counts_once_and_later_savers_share_it),
        WITH_POOL(books_that_list_the_same_storage_do_not_know_of_each_other),
        WITH_POOL(a_block_used_again_is_another_storage),
        WITH_POOL(a_reset_forgets_records_and_keeps_what_is_ignored_and_the_memory),
        WITH_POOL(ignored_storages_are_not_recorded),
        WITH_POOL(a_record_says_when_its_bytes_were_freed),
        WITH_POOL(many_records_keep_their_order_and_their_places),
        WITH_POOL(a_save_that_is_taken_back_leaves_the_others_in_their_order),
        WITH_POOL(each_refusal_in_turn_leaves_the_book_as_it_was),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* NCCL with a single rank: the library is found, a group opened by its config, and each function
 * that ranks call is called once, so that one GPU shows whether the library and what we declare of
 * it fit together. */
#include "twins.h"
#include "backends/link.h"
#include "memtape/status.h"

enum { N = 1000 };

/* Skips the test where NCCL is not installed. */
static const mti_link_kind *library(const mtt_pair *p, void *id)
{
    const mti_link_kind *links = p->dev->links;
    assert_non_null(links);
    if (!links->find(p->dev_ctx, NULL) && strstr(mt_last_error(), "no libnccl")) {
        print_message("%s\n", mt_last_error());
        mt_clear_error();
        skip();
    }
    mtt_ok(links->find(p->dev_ctx, id), "a name for a group");
    return links;
}

static mtt_twin line(const mtt_pair *p, mt_dtype dtype, double lo)
{
    const int64_t n = N;
    return mtt_twin_make(p, dtype, 1, &n, MTT_PLACED_DENSE, 0, lo, lo + 1);
}

/* y, on the device, has become x. */
static void need_copy(const mtt_pair *p, const mtt_twin *x, mtt_twin *y, const char *what)
{
    memcpy(y->host.data, x->host.data, x->n_block);
    mtt_twin_check(p, y, 0, what);
    memset(y->host.data, 0, y->n_block);
    mtt_twin_push(p, y);
}

static void a_group_of_one_has_the_sum_of_one(void **state)
{
    const mtt_pair *p = *state;
    char id[MTI_LINK_ID];
    const mti_link_kind *k = library(p, id);
    mti_link *link = k->open(p->dev_ctx, id, 1, 0, false);
    mtt_ok(link, "a group of one");
    for (int t = 0; t < 4; t++) {
        mt_dtype dtype = mtt_floats[t];
        mtt_twin x = line(p, dtype, 1), y = line(p, dtype, 3);
        mtt_ok(k->sum(link, dtype, x.dev.data, N), "sum");
        mtt_ok(k->sum_on(link, dtype, x.dev.data, N, 0), "sum_on");
        mtt_ok(k->spread(link, dtype, x.dev.data, N, 0), "spread");
        mtt_twin_check(p, &x, 0, "a sum of one");
        mtt_ok(k->gather(link, dtype, x.dev.data, y.dev.data, N), "gather");
        need_copy(p, &x, &y, "gather");
        mtt_ok(k->begin(link), "begin");
        mtt_ok(k->trade(link, x.dev.data, x.n_block, y.dev.data, y.n_block, 0), "trade");
        mtt_ok(k->trade(link, NULL, 0, NULL, 0, 0), "trade of nothing");
        mtt_ok(k->end(link), "end");
        need_copy(p, &x, &y, "trade");
        mtt_ok(k->begin(link), "begin");
        mtt_ok(k->scatter_sum(link, dtype, x.dev.data, y.dev.data, N / 2), "scatter_sum");
        mtt_ok(k->scatter_sum(link, dtype, (char *)x.dev.data + x.n_block / 2,
                              (char *)y.dev.data + y.n_block / 2, N / 2),
               "scatter_sum");
        mtt_ok(k->end(link), "end");
        need_copy(p, &x, &y, "a group of two calls");
        mtt_twin_drop(p, &x), mtt_twin_drop(p, &y);
    }
    k->close(link, false);
}

/* Beside compute, as stages of a pipeline do; a rank reaches itself within a group only. */
static void it_sends_to_itself(void **state)
{
    const mtt_pair *p = *state;
    char id[MTI_LINK_ID];
    const mti_link_kind *k = library(p, id);
    mti_link *link = k->open(p->dev_ctx, id, 1, 0, true);
    mtt_ok(link, "a group of one");
    mtt_ok(k->settle(link), "settle");
    mtt_twin x = line(p, MT_F32, 1), y = line(p, MT_F32, 3);
    mtt_ok(k->begin(link), "begin");
    mtt_ok(k->send(link, x.dev.data, x.n_block, 0), "send");
    mtt_ok(k->receive(link, y.dev.data, y.n_block, 0), "receive");
    mtt_ok(k->end(link), "end");
    k->close(link, false); /* waits for what was sent */
    need_copy(p, &x, &y, "what was sent");
    mtt_twin_drop(p, &x), mtt_twin_drop(p, &y);
}

static void a_failure_in_a_group_closes_it(void **state)
{
    const mtt_pair *p = *state;
    char id[MTI_LINK_ID];
    const mti_link_kind *k = library(p, id);
    mti_link *link = k->open(p->dev_ctx, id, 1, 0, true);
    mtt_ok(link, "a group of one");
    mtt_ok(k->settle(link), "settle");
    mtt_twin x = line(p, MT_F32, 1);
    mtt_ok(k->begin(link), "begin");
    mtt_ok(k->send(link, x.dev.data, x.n_block, 0), "send");
    assert_false(k->send(link, x.dev.data, x.n_block, 7));
    assert_non_null(strstr(mt_last_error(), "ncclSend"));
    assert_false(k->end(link));
    assert_false(k->begin(link));
    mt_clear_error();
    k->close(link, true);
    mtt_ok(k->find(p->dev_ctx, id), "a new group's name");
    link = k->open(p->dev_ctx, id, 1, 0, false);
    mtt_ok(link && k->sum(link, MT_F32, x.dev.data, N), "a group after it");
    k->close(link, false);
    mtt_twin_drop(p, &x);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_group_of_one_has_the_sum_of_one),
        cmocka_unit_test(it_sends_to_itself),
        cmocka_unit_test(a_failure_in_a_group_closes_it),
    };
    return cmocka_run_group_tests(tests, mtt_open, mtt_close_pair);
}

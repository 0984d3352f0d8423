/* Rows go to the ranks of their experts and back; routes that do not fit are refused. */
#include <stdlib.h>
#include <string.h>
#include "as_ranks.h"
#include "memtape/models/collectives.h"

/* Rank r of 2 has 3 rows of expert 0, none of 1, r of 2, and 1 of 3; a row's values say whose it is
 * and which. */
static void send_rows(mt_comm *world, void *user)
{
    (void)user;
    const mt_group g = mt_comm_group(world);
    const int32_t counts[] = {3, 0, (int32_t)g.rank, 1};
    const int64_t n = 4 + g.rank;
    float x[5 * 2];
    mt_device *device = mtt_device();
    for (int i = 0; i < 2 * n; i++) x[i] = (float)(100 * g.rank + i / 2);
    mt_tensor *sent = mt_from_data(device, MT_I32, MT_SHAPE(4), counts, sizeof counts);
    mt_tensor *rows = mt_from_data(device, MT_F32, MT_SHAPE(n, 2), x, (size_t)n * 2 * sizeof *x);
    mt_routes routes;
    MTT_NEED(mt_set_requires_grad(rows, true) == MT_OK);
    MTT_NEED(mt_routes_make(sent, n, &g, &routes) == MT_OK);
    MTT_NEED(routes.n_sent == n && routes.n_received == (g.rank ? 3 : 6));
    mt_tensor *there = mt_all_to_all(rows, &routes, false, &g);
    MTT_NEED(there);
    static const float first[] = {0, 1, 2, 100, 101, 102}, second[] = {103, 3, 104};
    double *y = mtt_doubles(there);
    for (int i = 0; i < routes.n_received; i++)
        MTT_NEED(y[2 * i] == (double)(g.rank ? second : first)[i] && y[2 * i + 1] == y[2 * i]);
    free(y);
    mt_tensor *back = mt_all_to_all(there, &routes, true, &g);
    MTT_NEED(mtt_same_bits(back, rows));
    MTT_NEED(mt_backward_with(back, &(mt_backward_options){.gradient = rows}) == MT_OK);
    MTT_NEED(mtt_same_bits(mt_grad(rows), rows));
    /* the counts, half of which go to the other, and its rows, there and back, and again */
    const uint64_t own = g.rank ? 3 : 1, others = g.rank ? 1 : 3;
    MTT_NEED(mt_comm_sent(world) == 8 + 16 * (own + others));
    MTT_NEED(mt_sent_get(device).experts == mt_comm_sent(world));
    routes.n_sent++;
    MTT_NEED(!mt_all_to_all(there, &routes, true, &g));
    MTT_NEED(strstr(mt_last_error(), "all_to_all") != NULL);
    mt_clear_error();
    mt_routes_release(&routes);
    mt_release(there), mt_release(back), mt_release(sent), mt_release(rows);
    mt_device_release(device);
}

static void rows_go_to_their_experts_and_back(void **state)
{
    (void)state;
    mtt_as_ranks(2, send_rows, NULL);
}

static void routes_are_checked(void **state)
{
    (void)state;
    mt_device *meta = mt_device_open("meta"), *cpu = mt_device_open("cpu");
    mt_tensor *counts = mt_zeros(meta, MT_I32, MT_SHAPE(6)),
              *x = mt_zeros(meta, MT_F32, MT_SHAPE(8, 3));
    mt_tensor *here = mt_zeros(cpu, MT_I32, MT_SHAPE(6));
    mt_routes routes;
    assert_int_not_equal(mt_routes_make(counts, 8, MT_RANKS(4), &routes), MT_OK);
    mtt_failed(MT_ERR_ARGUMENT, "routes: counts is i32 of 6", "4 ranks");
    assert_int_not_equal(mt_routes_make(x, 8, MT_RANKS(2), &routes), MT_OK);
    mtt_failed(MT_ERR_ARGUMENT, "counts is f32", "i32 [experts]");
    assert_int_not_equal(mt_routes_make(here, 8, MT_RANKS(2), &routes), MT_OK);
    mtt_failed(MT_ERR_UNSUPPORTED, "all_to_all: 2 ranks", "comm");
    assert_int_not_equal(mt_routes_make(counts, 8, MT_RANKS(2), NULL), MT_OK);
    mtt_failed(MT_ERR_ARGUMENT, "the result is NULL", "");
    mtt_ok(mt_routes_make(counts, 8, MT_RANKS(2), &routes));
    assert_null(mt_all_to_all(x, &routes, false, MT_RANKS(3)));
    mtt_failed(MT_ERR_ARGUMENT, "received [2,3]", "[3,experts/3]");
    assert_null(mt_all_to_all(x, NULL, false, MT_RANKS(2)));
    mtt_failed(MT_ERR_ARGUMENT, "the routes are NULL", "");
    mt_routes_release(&routes);
    mt_release(counts), mt_release(x), mt_release(here);
    mt_device_release(meta), mt_device_release(cpu);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_go_to_their_experts_and_back),
        cmocka_unit_test(routes_are_checked),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

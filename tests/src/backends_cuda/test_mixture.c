/* What a mixture of experts asks of the host in a steady step: one wait for the sizes of its
 * groups, and no new algorithm for other sizes. */
#include "mtt_engine.h"
#include <stdlib.h>
#include <string.h>
#include "double.h"

enum { EXPERTS = 4, WIDTH = 16, INNER = 24, ROWS = 96 };

static mt_device *device;

static int open_device(void **state)
{
    (void)state;
    device = mtt_device();
    return device ? 0 : -1;
}

static int close_device(void **state)
{
    (void)state;
    mt_device_release(device);
    return 0;
}

static void check(mt_status status)
{
    if (status != MT_OK) fail_msg("%s", mt_last_error());
}

static mt_tensor *made(mt_tensor *t)
{
    if (!t) fail_msg("%s", mt_last_error());
    return t;
}

static long heuristics(void)
{
    mtt_double_fn count = mtt_double("cudasim_heuristics");
    return count ? ((long (*)(void))count)() : -1;
}

/* A layer's weights, as leaves. */
typedef struct layer {
    mt_tensor *up, *down; /* [EXPERTS,INNER,WIDTH], [EXPERTS,WIDTH,INNER] */
} layer;

static layer make_layer(void)
{
    layer l = {made(mtt_random(device, MT_F32, 3, (int64_t[]){EXPERTS, INNER, WIDTH}, 1, -1, 1)),
               made(mtt_random(device, MT_F32, 3, (int64_t[]){EXPERTS, WIDTH, INNER}, 2, -1, 1))};
    check(mt_set_requires_grad(l.up, true)), check(mt_set_requires_grad(l.down, true));
    return l;
}

/* Forward and backward of rows [ROWS,WIDTH], of which each expert gets so many, as in a mixture. */
static void step(const layer *l, const int64_t *sizes)
{
    int64_t index[ROWS], at = 0;
    for (int64_t e = 0; e < EXPERTS; e++)
        for (int64_t i = 0; i < sizes[e]; i++) index[at++] = e;
    assert_int_equal(at, ROWS);
    MT_AUTO mt_tensor *to =
        made(mt_from_data(device, MT_I64, 2, (int64_t[]){ROWS, 1}, index, sizeof index));
    MT_AUTO mt_tensor *x = made(mtt_random(device, MT_F32, 2, (int64_t[]){ROWS, WIDTH}, 3, -1, 1));
    check(mt_set_requires_grad(x, true));
    mt_groups groups;
    mt_tensor *h = made(mt_dispatch(x, to, EXPERTS, &groups));
    mt_set(&h, made(mt_grouped_linear(h, l->up, groups.counts)));
    mt_set(&h, made(mt_relu(h)));
    mt_set(&h, made(mt_grouped_linear(h, l->down, groups.counts)));
    mt_set(&h, made(mt_sum_all(h)));
    check(mt_backward(h));
    mt_release(h);
    mt_groups_release(&groups);
    check(mt_device_sync(device));
}

static const int64_t steps[][EXPERTS] = {{32, 32, 16, 16}, {20, 30, 32, 14}, {25, 31, 27, 13},
                                         {17, 32, 31, 16}, {32, 26, 22, 16}, {29, 29, 29, 9}};

/* What a step takes of these counts when the first has made plans. */
static void a_steady_step_asks_for_no_algorithm_and_waits_once_for_the_sizes(void **state)
{
    (void)state;
    if (heuristics() < 0) skip();
    layer l = make_layer();
    step(&l, steps[0]);
    for (size_t i = 1; i < sizeof steps / sizeof *steps; i++) {
        long chosen = heuristics();
        uint64_t waits = mtt_double_waits();
        step(&l, steps[i]);
        assert_int_equal(heuristics(), chosen);
        assert_int_equal(mtt_double_waits(), waits + 2); /* the second is the end of the step */
    }
    mt_release(l.up), mt_release(l.down);
}

/* The sum of what the groups' matrices give for these counts. */
static double sum_of(mt_tensor *x, mt_tensor *w, mt_tensor *counts)
{
    MT_AUTO mt_tensor *y = made(mt_grouped_linear(x, w, counts));
    MT_AUTO mt_tensor *sum = made(mt_sum_all(y));
    return mt_item(sum);
}

static mt_tensor *counts_of(const int32_t *n)
{
    return made(mt_from_data(device, MT_I32, 1, (int64_t[]){2}, n, 2 * sizeof *n));
}

static void sizes_that_change_in_place_are_read_again(void **state)
{
    (void)state;
    const float ones[4] = {1, 1, 1, 1}, weights[2] = {1, 10};
    const int32_t first[2] = {3, 1}, then[2] = {1, 3};
    MT_AUTO mt_tensor *x =
        made(mt_from_data(device, MT_F32, 2, (int64_t[]){4, 1}, ones, sizeof ones));
    MT_AUTO mt_tensor *w =
        made(mt_from_data(device, MT_F32, 3, (int64_t[]){2, 1, 1}, weights, sizeof weights));
    MT_AUTO mt_tensor *counts = counts_of(first), *other = counts_of(then);
    assert_true(sum_of(x, w, counts) == 13);
    assert_true(sum_of(x, w, counts) == 13);
    check(mt_copy_from_host(counts, then, sizeof then));
    assert_true(sum_of(x, w, counts) == 31);
    check(mt_copy_from_host(counts, first, sizeof first));
    assert_true(sum_of(x, w, counts) == 13);
    check(mt_copy(counts, other));
    assert_true(sum_of(x, w, counts) == 31);
    check(mt_fill(counts, 2));
    assert_true(sum_of(x, w, counts) == 22);
}

/* Views of a part, or with steps, are no whole storage. */
static void sizes_may_be_a_view(void **state)
{
    (void)state;
    const float ones[4] = {1, 1, 1, 1}, weights[2] = {1, 10};
    const int32_t list[5] = {9, 3, 7, 1, 3};
    MT_AUTO mt_tensor *x =
        made(mt_from_data(device, MT_F32, 2, (int64_t[]){4, 1}, ones, sizeof ones));
    MT_AUTO mt_tensor *w =
        made(mt_from_data(device, MT_F32, 3, (int64_t[]){2, 1, 1}, weights, sizeof weights));
    MT_AUTO mt_tensor *all =
        made(mt_from_data(device, MT_I32, 1, (int64_t[]){5}, list, sizeof list));
    MT_AUTO mt_tensor *last = made(mt_slice(all, 0, 3, 2));
    MT_AUTO mt_tensor *table = made(mt_slice(all, 0, 1, 4));
    mt_set(&table, made(mt_reshape(table, MT_SHAPE(2, 2))));
    mt_set(&table, made(mt_slice(table, 1, 0, 1)));
    mt_set(&table, made(mt_reshape(table, MT_SHAPE(2))));
    assert_true(sum_of(x, w, last) == 31);
    assert_true(sum_of(x, w, table) == 13);
    assert_true(sum_of(x, w, last) == 31);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_steady_step_asks_for_no_algorithm_and_waits_once_for_the_sizes),
        cmocka_unit_test(sizes_that_change_in_place_are_read_again),
        cmocka_unit_test(sizes_may_be_a_view),
    };
    return cmocka_run_group_tests(tests, open_device, close_device);
}

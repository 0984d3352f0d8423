/* Reductions over one dimension. */
#include "mtt_fixture.h"

static void negative_dimensions_count_from_the_end(void **state)
{
    (void)state;
    mt_tensor *(*const reduce[])(mt_tensor *, int, const int *, bool) = {mt_sum, mt_mean, mt_max};
    static const char *const names[] = {"sum", "mean", "max"};
    MT_AUTO mt_tensor *x = mtt_made(mtt_random(device, MT_F32, MT_SHAPE(2, 3, 5), 7, -2, 2));
    mtt_ok(mt_set_requires_grad(x, true));
    for (int op = 0; op < 3; op++) {
        for (int dim = -3; dim < 3; dim++) {
            int same = (dim + 3) % 3;
            MT_AUTO mt_tensor *a = mtt_made(reduce[op](x, 1, &dim, false));
            MT_AUTO mt_tensor *b = mtt_made(reduce[op](x, 1, &same, false));
            assert_true(mtt_same_bits(a, b));
            assert_int_equal(mt_rank(a), 2);
            assert_string_equal(mt_grad_fn_name(a), names[op]);
        }
        assert_null(reduce[op](x, 1, (int[]){3}, false));
        mtt_failed(MT_ERR_ARGUMENT, names[op], "dimension 3", "rank 3");
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        mtt_test(negative_dimensions_count_from_the_end),
    };
    return cmocka_run_group_tests(tests, mtt_open_device, mtt_close_device);
}

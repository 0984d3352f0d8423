/* Sizes beyond what a library's int holds, on meta: an answer or an error, for every op. */
#include <string.h>
#include "large.h"

static void every_op_answers_for_extents_beyond_32_bits(void **state)
{
    (void)state;
    assert_true(large_answers(&mti_op_cases) > 1000);
}

/* No library's limit is memtape's: a product is divided. */
static void products_of_any_size_have_an_answer(void **state)
{
    (void)state;
    static const char *const products[] = {"matmul", "linear", "linear_cross_entropy"};
    for (int p = 0; p < 3; p++)
        for (int size = MTI_SIZE_M; size <= MTI_SIZE_V; size++)
            for (int l = 0; l < LARGE_SIZES; l++)
                for (int t = 0; t < LARGE_DTYPES; t++) {
                    mti_case_sizes sizes = {40, 50, 60, 70, 1, 1, 1, 1};
                    mti_case c;
                    sizes[size] = large[l];
                    assert_true(
                        mti_case_find(&mti_op_cases, products[p], MTI_CASE_BENCH, sizes, &c));
                    if (strcmp(c.op, "linear_cross_entropy") == 0 && size != MTI_SIZE_N) continue;
                    if (!large_run(&c, large_dtypes[t]))
                        fail_msg("%s: %s", products[p], mt_last_error());
                }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        mtt_test(products_of_any_size_have_an_answer),
        mtt_test(every_op_answers_for_extents_beyond_32_bits),
    };
    return cmocka_run_group_tests(tests, large_open_meta, mtt_close_device);
}

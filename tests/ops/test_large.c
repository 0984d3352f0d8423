/* Sizes beyond what a library's int holds, on meta: an answer or an error, for every op. */
#include <string.h>
#include "mtt_fixture.h"
#include "collectives/collective_cases.h"

static const int64_t large[] = {((int64_t)1 << 31) - 1, (int64_t)1 << 31, (int64_t)1 << 32,
                                ((int64_t)1 << 32) + 1, (int64_t)1 << 40};
static const mt_dtype floats[] = {MT_F32, MT_BF16, MT_F16, MT_F64};

static void answered(const mti_case *c, int64_t size, bool ok)
{
    if (ok != (mt_last_status() == MT_OK) || ok == (*mt_last_error() != 0))
        fail_msg("%s with an extent of %lld: \"%s\"", c->op, (long long)size, mt_last_error());
    mt_clear_error();
}

static bool differentiate(mt_tensor *y)
{
    MT_AUTO mt_tensor *dy = mt_zeros(device, mt_dtype_of(y), mt_rank(y), mt_shape(y));
    return dy && mt_backward_with(y, &(mt_backward_options){.gradient = dy}) == MT_OK;
}

/* Forward and backward; whether nothing failed. */
static bool run(const mti_case *c, mt_dtype dtype)
{
    mt_tensor *in[MTI_CASE_INPUTS] = {NULL}, *y = NULL;
    bool ok = true;
    for (int i = 0; ok && i < c->n_in; i++) {
        bool is_index = c->in[i].below > 0;
        in[i] = mt_zeros(device, is_index ? MT_I64 : dtype, c->in[i].rank, c->in[i].shape);
        ok = in[i] && (is_index || mt_set_requires_grad(in[i], true) == MT_OK);
    }
    ok = ok && (y = mti_case_call(c, in)) && (!mt_requires_grad(y) || differentiate(y));
    mt_release(y);
    for (int i = 0; i < c->n_in; i++) mt_release(in[i]);
    return ok;
}

/* A loss by chunks of rows and classes takes as long as it has chunks. */
static bool takes_long(const mti_case *c, int64_t size)
{
    return size > (int64_t)1 << 33 && strncmp(c->op, "linear_cross_entropy", 20) == 0;
}

static void every_op_answers_for_extents_beyond_32_bits(void **state)
{
    (void)state;
    int n_right = 0;
    for (int size = 0; size < MTI_SIZE_COUNT; size++)
        for (size_t l = 0; l < sizeof large / sizeof *large; l++)
            for (int t = 0; t < 4; t++) {
                mti_case_sizes sizes = {16, 16, 16, 16, 2, 2, 16, 16};
                mti_case c;
                sizes[size] = large[l];
                for (int nth = 0; mti_case_get(&mti_all_cases, MTI_CASE_BENCH, nth, sizes, &c);
                     nth++) {
                    if (takes_long(&c, large[l])) continue;
                    bool ok = run(&c, floats[t]);
                    answered(&c, large[l], ok);
                    n_right += ok;
                }
            }
    assert_true(n_right > 1000);
}

/* No library's limit is memtape's: a product is divided. */
static void products_of_any_size_have_an_answer(void **state)
{
    (void)state;
    static const char *const products[] = {"matmul", "linear", "linear_cross_entropy"};
    for (int p = 0; p < 3; p++)
        for (int size = MTI_SIZE_M; size <= MTI_SIZE_V; size++)
            for (size_t l = 0; l < sizeof large / sizeof *large; l++)
                for (int t = 0; t < 4; t++) {
                    mti_case_sizes sizes = {40, 50, 60, 70, 1, 1, 1, 1};
                    mti_case c;
                    sizes[size] = large[l];
                    assert_true(
                        mti_case_find(&mti_all_cases, products[p], MTI_CASE_BENCH, sizes, &c));
                    if (strcmp(c.op, "linear_cross_entropy") == 0 && size != MTI_SIZE_N) continue;
                    if (!run(&c, floats[t])) fail_msg("%s: %s", products[p], mt_last_error());
                }
}

static int open_meta(void **state)
{
    (void)state;
    device = mt_device_open("meta");
    return !device || mt_device_count_scratch_of(device, "cpu") != MT_OK;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        mtt_test(products_of_any_size_have_an_answer),
        mtt_test(every_op_answers_for_extents_beyond_32_bits),
    };
    return cmocka_run_group_tests(tests, open_meta, mtt_close_device);
}

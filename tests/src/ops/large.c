/* large.c: cases with extents beyond what a library's int holds. */
#include <string.h>
#include "large.h"

const int64_t large[LARGE_SIZES] = {((int64_t)1 << 31) - 1, (int64_t)1 << 31, (int64_t)1 << 32,
                                    ((int64_t)1 << 32) + 1, (int64_t)1 << 40};
const mt_dtype large_dtypes[LARGE_DTYPES] = {MT_F32, MT_BF16, MT_F16, MT_F64};

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

bool large_run(const mti_case *c, mt_dtype dtype)
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

int large_answers(const mti_case_table *table)
{
    int n_right = 0;
    for (int size = 0; size < MTI_SIZE_COUNT; size++)
        for (int l = 0; l < LARGE_SIZES; l++)
            for (int t = 0; t < LARGE_DTYPES; t++) {
                mti_case_sizes sizes = {16, 16, 16, 16, 2, 2, 16, 16};
                mti_case c;
                sizes[size] = large[l];
                for (int nth = 0; mti_case_get(table, MTI_CASE_BENCH, nth, sizes, &c); nth++) {
                    if (takes_long(&c, large[l])) continue;
                    bool ok = large_run(&c, large_dtypes[t]);
                    answered(&c, large[l], ok);
                    n_right += ok;
                }
            }
    return n_right;
}

int large_open_meta(void **state)
{
    (void)state;
    device = mt_device_open("meta");
    return !device || mt_device_count_scratch_of(device, "cpu") != MT_OK;
}

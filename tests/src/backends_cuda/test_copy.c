/* Copies and casts on the device, against the CPU: the same bits in every layout. */
#include "double.h"
#include "twins.h"

static void check_copy(const mtt_pair *p, mt_dtype from, mt_dtype to, const mtt_shape *shape,
                       mtt_placing x_placing, mtt_placing y_placing, int64_t skip)
{
    bool positive = !mt_dtype_bits(from).sign || (to != MT_BOOL && !mt_dtype_bits(to).sign);
    double lo = positive ? 0 : -100; /* negative numbers are in another test */
    double hi = from == MT_BOOL ? 2 : to == MT_U8 ? 50 : 120;
    mtt_twin x = mtt_twin_make(p, from, shape->rank, shape->at, x_placing, skip, lo, hi);
    mtt_twin y = mtt_twin_make(p, to, shape->rank, shape->at, y_placing, 0, 0, 2);
    mtt_ok(p->cpu->copy(p->cpu_ctx, &x.host, &y.host), "copy");
    mtt_ok(p->dev->copy(p->dev_ctx, &x.dev, &y.dev), "copy");
    mtt_twin_check(p, &y, 0, "copy");
    mtt_twin_drop(p, &x), mtt_twin_drop(p, &y);
}

static void copies_between_all_layouts_keep_every_bit(void **state)
{
    mtt_pair *p = *state;
    const mt_dtype dtypes[] = {MT_F32, MT_F64, MT_BF16, MT_BOOL};
    for (int t = 0; t < 4; t++)
        for (int s = 0; s < mtt_n_shapes; s++)
            for (mtt_placing x = 0; x <= MTT_PLACED_BROADCAST; x++)
                for (mtt_placing y = 0; y < MTT_PLACING_COUNT; y++)
                    if (x != MTT_PLACING_COUNT)
                        check_copy(p, dtypes[t], dtypes[t], &mtt_shapes[s], x, y, s % 3);
}

static void casts_between_all_types_match_the_cpu(void **state)
{
    mtt_pair *p = *state;
    const mtt_shape dense = {1, {1029}}, rows = {2, {6, 48}}, odd = {3, {3, 5, 7}};
    for (mt_dtype from = 0; from < MT_DTYPE_COUNT; from++)
        for (mt_dtype to = 0; to < MT_DTYPE_COUNT; to++) {
            check_copy(p, from, to, &dense, MTT_PLACED_DENSE, MTT_PLACED_DENSE, 0);
            check_copy(p, from, to, &rows, MTT_PLACED_BROADCAST, MTT_PLACED_DENSE, 0);
            check_copy(p, from, to, &odd, MTT_PLACED_REVERSED, MTT_PLACED_PADDED, 1);
        }
}

/* Every vector width and every kind of tile: whole, cut on one side, cut on both; with batches. */
static void transposes_of_all_sizes_keep_every_bit(void **state)
{
    mtt_pair *p = *state;
    const mt_dtype dtypes[] = {MT_U8, MT_F16, MT_I32, MT_F64};
    const int64_t sides[] = {4, 31, 32, 64, 65, 132};
    for (int t = 0; t < 4; t++)
        for (int a = 0; a < 6; a++)
            for (int b = 0; b < 6; b++) {
                const mtt_shape plain = {2, {sides[a], sides[b]}};
                const mtt_shape batch = {3, {sides[a], 3, sides[b]}};
                check_copy(p, dtypes[t], dtypes[t], &plain, MTT_PLACED_REVERSED, MTT_PLACED_DENSE,
                           0);
                check_copy(p, dtypes[t], dtypes[t], &plain, MTT_PLACED_DENSE, MTT_PLACED_REVERSED,
                           1);
                check_copy(p, dtypes[t], dtypes[t], &batch, MTT_PLACED_REVERSED, MTT_PLACED_PADDED,
                           0);
            }
}

/* A block takes its next tile when it has read the last one. */
static void more_tiles_than_blocks_keep_every_bit(void **state)
{
    const mt_dtype dtypes[] = {MT_U8, MT_F16, MT_I32, MT_F64};
    const mtt_shape many = {3, {65, 40, 70}};
    for (int t = 0; t < 4; t++)
        check_copy(*state, dtypes[t], dtypes[t], &many, MTT_PLACED_REVERSED, MTT_PLACED_DENSE, 0);
}

/* Heads moved out of the rows and back: [b,s,a,d] read as [b,a,s,d]. */
static void heads_are_moved_in_vectors(void **state)
{
    mtt_pair *p = *state;
    const int64_t shape[4] = {2, 5, 3, 16};
    for (int t = 0; t < 4; t++) {
        mtt_twin x = mtt_twin_make(p, mtt_floats[t], 4, shape, MTT_PLACED_DENSE, 0, -1, 1);
        const int64_t moved[4] = {2, 3, 5, 16};
        mtt_twin y = mtt_twin_make(p, mtt_floats[t], 4, moved, MTT_PLACED_DENSE, 0, 0, 1);
        mti_view *views[2] = {&x.host, &x.dev};
        for (int k = 0; k < 2; k++) {
            int64_t stride = views[k]->stride[1];
            views[k]->stride[1] = views[k]->stride[2], views[k]->stride[2] = stride;
            views[k]->shape[1] = 3, views[k]->shape[2] = 5;
        }
        mtt_ok(p->cpu->copy(p->cpu_ctx, &x.host, &y.host), "copy");
        mtt_ok(p->dev->copy(p->dev_ctx, &x.dev, &y.dev), "copy");
        mtt_twin_check(p, &y, 0, "heads");
        mtt_twin_drop(p, &x), mtt_twin_drop(p, &y);
    }
}

static void extreme_numbers_are_cast_as_on_the_cpu(void **state)
{
    mtt_pair *p = *state;
    const double extremes[] = {
        (double)NAN, 1e300,  -1e300,   (double)INFINITY, -0.0,       65519.9,      65520, 3.5,
        -3.5,        0x1p62, 0x1p-149, 0x1p-25,          1.00390625, 2147483648.0, 300};
    const int64_t n = sizeof extremes / sizeof *extremes;
    for (int from = 0; from < 4; from++)
        for (mt_dtype to = 0; to < MT_DTYPE_COUNT; to++) {
            mtt_twin x = mtt_twin_make(p, mtt_floats[from], 1, &n, MTT_PLACED_DENSE, 0, 0, 1);
            mtt_twin y = mtt_twin_make(p, to, 1, &n, MTT_PLACED_DENSE, 0, 0, 1);
            for (int64_t i = 0; i < n; i++) mtt_set(&x.host, i, extremes[i]);
            mtt_twin_push(p, &x);
            mtt_ok(p->cpu->copy(p->cpu_ctx, &x.host, &y.host), "copy");
            mtt_ok(p->dev->copy(p->dev_ctx, &x.dev, &y.dev), "copy");
            /* a NaN may have any payload */
            mtt_twin_check(p, &y, mt_dtype_is_float(to) ? 1e-300 : 0, mt_dtype_name(to));
            mtt_twin_drop(p, &x), mtt_twin_drop(p, &y);
        }
}

/* x and y, of which y is to become x. */
static void make_lines(const mtt_pair *p, mtt_twin *x, mtt_twin *y)
{
    int64_t n = 100;
    *x = mtt_twin_make(p, MT_F32, 1, &n, MTT_PLACED_DENSE, 0, 0, 1);
    *y = mtt_twin_make(p, MT_F32, 1, &n, MTT_PLACED_DENSE, 0, 2, 3);
    mtt_ok(p->dev->copy(p->dev_ctx, &x->dev, &y->dev), "copy");
}

/* The fault, which a download reads, too, comes with it. */
static void a_download_is_one_wait(void **state)
{
    mtt_pair *p = *state;
    mtt_twin x, y;
    make_lines(p, &x, &y);
    uint64_t before = mtt_double_waits(), expected = mtt_double("cudasim_waits") ? before + 1 : 0;
    mtt_ok(p->dev->download(p->dev_ctx, y.host.data, y.dev.data, y.n_block), "download");
    assert_int_equal(mtt_double_waits(), expected);
    assert_memory_equal(x.host.data, y.host.data, y.n_block);
    mtt_twin_drop(p, &x), mtt_twin_drop(p, &y);
}

/* The source may be written when the call returns, page-locked or not; small and large, and more
 * than wait in any queue. */
static void an_upload_has_read_its_source(void **state)
{
    enum { MOST = 300000, UPLOADS = 20 };
    static const size_t sizes[] = {1, 8, 12, 100, 4096, 65536, 65537, MOST};
    mtt_pair *p = *state;
    char *back = malloc(MOST), *sources[2] = {malloc(MOST), p->dev->host_alloc(p->dev_ctx, MOST)};
    char *to = p->dev->alloc(p->dev_ctx, (size_t)UPLOADS * MOST);
    mtt_ok(back && sources[0] && sources[1] && to, "alloc");
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        for (int s = 0; s < 2; s++) {
            for (int n = 0; n < UPLOADS; n++) {
                memset(sources[s], n + 1, sizes[i]);
                mtt_ok(p->dev->upload(p->dev_ctx, to + n * MOST, sources[s], sizes[i]), "upload");
                memset(sources[s], 99, sizes[i]);
            }
            for (int n = 0; n < UPLOADS; n++) {
                mtt_ok(p->dev->download(p->dev_ctx, back, to + n * MOST, sizes[i]), "download");
                memset(sources[0], n + 1, sizes[i]);
                assert_memory_equal(back, sources[0], sizes[i]);
            }
        }
    p->dev->free(p->dev_ctx, to, (size_t)UPLOADS * MOST);
    p->dev->host_free(p->dev_ctx, sources[1], MOST);
    free(back), free(sources[0]);
}

/* A runtime of CUDA 13 needs a driver of 13, whatever code the module has for the GPU. */
static void a_driver_of_an_older_cuda_is_named_beside_the_one_that_is_needed(void **state)
{
    mtt_pair *p = *state;
    if (!mtt_double("cudasim_waits")) skip();
    setenv("CUDASIM_DRIVER", "12040", true);
    assert_null(p->dev->open());
    unsetenv("CUDASIM_DRIVER");
    assert_string_equal(mt_last_error(), "device \"cuda\": the NVIDIA driver is too old: it is for "
                                         "CUDA 12.4; need one for CUDA 13");
    mt_clear_error();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(copies_between_all_layouts_keep_every_bit),
        cmocka_unit_test(casts_between_all_types_match_the_cpu),
        cmocka_unit_test(transposes_of_all_sizes_keep_every_bit),
        cmocka_unit_test(more_tiles_than_blocks_keep_every_bit),
        cmocka_unit_test(heads_are_moved_in_vectors),
        cmocka_unit_test(extreme_numbers_are_cast_as_on_the_cpu),
        cmocka_unit_test(a_download_is_one_wait),
        cmocka_unit_test(an_upload_has_read_its_source),
        cmocka_unit_test(a_driver_of_an_older_cuda_is_named_beside_the_one_that_is_needed),
    };
    return cmocka_run_group_tests(tests, mtt_open, mtt_close_pair);
}

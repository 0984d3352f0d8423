/* Which algorithms a device asks cuBLASLt for, how often, and what the bits of a product depend on:
 * its numbers, sizes and layout, and nothing else. */
#include "double.h"
#include "twins.h"
#include "memtape/status.h"

static const mtt_pair *pair;

/* How often the simulator was asked for an algorithm; -1 on a GPU, which does not tell. */
static long heuristics(void)
{
    mtt_double_fn count = mtt_double("cudasim_heuristics");
    return count ? ((long (*)(void))count)() : -1;
}

/* The simulator's sums are added in an order that follows from all that its algorithm follows from.
 */
static void order_by_plan(bool on)
{
    mtt_double_fn order = mtt_double("cudasim_order_by_plan");
    if (order) ((void (*)(bool))order)(on);
}

static mti_view transposed(const mti_view *v)
{
    mti_view t = *v;
    t.shape[0] = v->shape[1], t.shape[1] = v->shape[0];
    t.stride[0] = v->stride[1], t.stride[1] = v->stride[0];
    return t;
}

/* ---- the three products of a linear layer, into rows that the test compares ---- */

typedef struct linear {
    mti_view x, w, dy; /* [rows,in], [out,in], [rows,out] */
    mti_view y, dx, dw;
} linear;

static mti_view dense(mt_dtype dtype, int64_t rows, int64_t cols)
{
    return (mti_view){.dtype = dtype, .rank = 2, .shape = {rows, cols}, .stride = {cols, 1}};
}

static size_t bytes_of(const mti_view *v)
{
    return (size_t)mti_view_count(v) * mt_dtype_size(v->dtype);
}

static void gemm_on(const mti_backend *be, mti_ctx *ctx, const mti_view *a, const mti_view *b,
                    const mti_view *c)
{
    size_t n_bytes = be->gemm_scratch(ctx, a, b, c);
    void *scratch = n_bytes ? be->alloc(ctx, n_bytes) : NULL;
    assert_true(scratch || !n_bytes);
    mtt_ok(be->gemm(ctx, 1, a, b, 0, c, NULL, scratch, n_bytes), "gemm");
    if (scratch) be->free(ctx, scratch, n_bytes);
}

static void gemm(mti_ctx *ctx, const mti_view *a, const mti_view *b, const mti_view *c)
{
    gemm_on(pair->dev, ctx, a, b, c);
}

/* Views whose data begin `skip` bytes after an address that is well aligned. */
static linear make(mti_ctx *ctx, mt_dtype dtype, int64_t rows, int64_t in, int64_t out, size_t skip)
{
    linear l = {dense(dtype, rows, in),  dense(dtype, out, in),  dense(dtype, rows, out),
                dense(dtype, rows, out), dense(dtype, rows, in), dense(dtype, out, in)};
    mti_view *all[] = {&l.x, &l.w, &l.dy, &l.y, &l.dx, &l.dw};
    for (int i = 0; i < 6; i++) {
        char *block = pair->dev->alloc(ctx, bytes_of(all[i]) + skip);
        assert_non_null(block);
        mti_view host = mtt_view(dtype, 2, all[i]->shape, MTT_PLACED_DENSE);
        mtt_fill(&host, (uint64_t)i, -1, 1);
        all[i]->data = block + skip;
        mtt_ok(pair->dev->upload(ctx, all[i]->data, host.data, bytes_of(all[i])), "upload");
        mtt_drop(&host);
    }
    return l;
}

static void drop(mti_ctx *ctx, linear *l, size_t skip)
{
    mti_view *all[] = {&l->x, &l->w, &l->dy, &l->y, &l->dx, &l->dw};
    for (int i = 0; i < 6; i++)
        pair->dev->free(ctx, (char *)all[i]->data - skip, bytes_of(all[i]) + skip);
}

static void run(mti_ctx *ctx, const linear *l)
{
    mti_view wt = transposed(&l->w), dyt = transposed(&l->dy);
    gemm(ctx, &l->x, &wt, &l->y);
    gemm(ctx, &l->dy, &l->w, &l->dx);
    gemm(ctx, &dyt, &l->x, &l->dw);
}

/* The bytes of the results: free them. */
static unsigned char *results(mti_ctx *ctx, mt_dtype dtype, int64_t rows, int64_t in, int64_t out,
                              size_t skip, size_t *n_bytes)
{
    linear l = make(ctx, dtype, rows, in, out, skip);
    run(ctx, &l);
    const mti_view *all[] = {&l.y, &l.dx, &l.dw};
    *n_bytes = bytes_of(&l.y) + bytes_of(&l.dx) + bytes_of(&l.dw);
    unsigned char *to = malloc(*n_bytes), *at = to;
    assert_non_null(to);
    for (int i = 0; i < 3; at += bytes_of(all[i]), i++)
        mtt_ok(pair->dev->download(ctx, at, all[i]->data, bytes_of(all[i])), "download");
    drop(ctx, &l, skip);
    return to;
}

/* ---- bits ---- */

static void bits_do_not_depend_on_where_tensors_lie(void **state)
{
    pair = *state;
    order_by_plan(true);
    for (int t = 0; t < 4; t++) {
        size_t n_bytes;
        unsigned char *first = results(pair->dev_ctx, mtt_floats[t], 40, 64, 72, 0, &n_bytes);
        for (size_t skip = 16; skip <= 256; skip *= 2) {
            unsigned char *other =
                results(pair->dev_ctx, mtt_floats[t], 40, 64, 72, skip, &n_bytes);
            if (memcmp(first, other, n_bytes))
                fail_msg("%s: other bits %zu bytes further", mt_dtype_name(mtt_floats[t]), skip);
            free(other);
        }
        free(first);
    }
    order_by_plan(false);
}

/* A plan for other rows is there already, or not. */
static void bits_do_not_depend_on_products_before(void **state)
{
    pair = *state;
    order_by_plan(true);
    for (int t = 0; t < 4; t++)
        for (int64_t rows = 33; rows <= 161; rows += 64) {
            unsigned char *bits[2];
            size_t n_bytes, n_other;
            for (int before = 0; before < 2; before++) {
                mti_ctx *ctx = pair->dev->open();
                mtt_ok(ctx, "open");
                for (int64_t other = rows + 31; before && other > rows - 4; other -= 5)
                    free(results(ctx, mtt_floats[t], other, 16, 24, 0, &n_other));
                bits[before] = results(ctx, mtt_floats[t], rows, 16, 24, 0, &n_bytes);
                pair->dev->close(ctx);
            }
            assert_memory_equal(bits[0], bits[1], n_bytes);
            free(bits[0]), free(bits[1]);
        }
    order_by_plan(false);
}

/* ---- how many plans ---- */

/* Asks for the products of a layer, and returns how many algorithms had to be chosen. */
static long chosen_for(mti_ctx *ctx, mt_dtype dtype, int64_t rows, int64_t in, int64_t out)
{
    linear l = make(ctx, dtype, rows, in, out, 0);
    long before = heuristics();
    run(ctx, &l);
    drop(ctx, &l, 0);
    return heuristics() - before;
}

/* As many as there are powers of two up to 128, and multiples of it. */
static void numbers_of_rows_share_plans(void **state)
{
    pair = *state;
    if (heuristics() < 0) skip();
    long all = 0;
    mti_ctx *ctx = pair->dev->open();
    mtt_ok(ctx, "open");
    for (int64_t rows = 1; rows <= 384; rows++) all += chosen_for(ctx, MT_F32, rows, 16, 24);
    assert_int_equal(all, 3 * (8 + 2));
    for (int64_t rows = 384; rows > 0; rows -= 7)
        assert_int_equal(chosen_for(ctx, MT_F32, rows, 16, 24), 0);
    pair->dev->close(ctx);
}

/* The simulator's algorithm for an even number of terms does not take an odd one of 16 bits. */
static void rows_that_an_algorithm_does_not_take_have_their_own(void **state)
{
    pair = *state;
    if (heuristics() < 0) skip();
    mti_ctx *ctx = pair->dev->open();
    mtt_ok(ctx, "open");
    assert_int_equal(chosen_for(ctx, MT_BF16, 64, 16, 24), 3);
    for (int64_t rows = 33; rows < 64; rows++)
        assert_int_equal(chosen_for(ctx, MT_BF16, rows, 16, 24), rows % 2); /* dw */
    for (int64_t rows = 63; rows > 32; rows--)
        assert_int_equal(chosen_for(ctx, MT_BF16, rows, 16, 24), 0);
    pair->dev->close(ctx);
}

/* A product that every step makes keeps its plan, whatever else comes and goes. */
static void the_plan_that_is_dropped_is_the_oldest(void **state)
{
    pair = *state;
    if (heuristics() < 0) skip();
    mti_ctx *ctx = pair->dev->open();
    mtt_ok(ctx, "open");
    assert_int_equal(chosen_for(ctx, MT_F32, 8, 40, 24), 3);
    for (int64_t width = 1; width <= 400; width++) {
        long n = chosen_for(ctx, MT_F32, 4, 32, 32 + width);
        assert_int_equal(n, 3);
        if (width % 100 == 0) assert_int_equal(chosen_for(ctx, MT_F32, 8, 40, 24), 0);
    }
    assert_int_equal(chosen_for(ctx, MT_F32, 4, 32, 33), 3); /* dropped long ago */
    pair->dev->close(ctx);
}

/* ---- values ---- */

/* Every number of rows up to some, in an order that lets plans serve others' rows. */
static void products_with_a_plan_of_more_rows_are_right(void **state)
{
    pair = *state;
    for (int t = 0; t < 4; t++)
        for (int64_t rows = 131; rows > 0; rows -= rows > 20 ? 9 : 1) {
            const mt_dtype dtype = mtt_floats[t];
            mtt_twin x =
                mtt_twin_make(pair, dtype, 2, (int64_t[]){rows, 24}, MTT_PLACED_DENSE, 0, -1, 1);
            mtt_twin dy =
                mtt_twin_make(pair, dtype, 2, (int64_t[]){rows, 40}, MTT_PLACED_DENSE, 0, -1, 1);
            mtt_twin w =
                mtt_twin_make(pair, dtype, 2, (int64_t[]){40, 24}, MTT_PLACED_DENSE, 0, -1, 1);
            mtt_twin dw =
                mtt_twin_make(pair, dtype, 2, (int64_t[]){40, 24}, MTT_PLACED_DENSE, 0, 5, 6);
            mtt_twin y =
                mtt_twin_make(pair, dtype, 2, (int64_t[]){rows, 40}, MTT_PLACED_DENSE, 0, 5, 6);
            mti_view wt = transposed(&w.host), dyt = transposed(&dy.host);
            gemm_on(pair->cpu, pair->cpu_ctx, &x.host, &wt, &y.host);
            gemm_on(pair->cpu, pair->cpu_ctx, &dyt, &x.host, &dw.host);
            wt = transposed(&w.dev), dyt = transposed(&dy.dev);
            gemm(pair->dev_ctx, &x.dev, &wt, &y.dev);
            gemm(pair->dev_ctx, &dyt, &x.dev, &dw.dev);
            double tolerance = (dtype == MT_F32 || dtype == MT_F64 ? 64 : 2) * mtt_epsilon(dtype);
            mtt_twin_check(pair, &y, tolerance, "y"), mtt_twin_check(pair, &dw, tolerance, "dw");
            mtt_twin *all[] = {&x, &dy, &w, &dw, &y};
            for (int i = 0; i < 5; i++) mtt_twin_drop(pair, all[i]);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bits_do_not_depend_on_where_tensors_lie),
        cmocka_unit_test(bits_do_not_depend_on_products_before),
        cmocka_unit_test(numbers_of_rows_share_plans),
        cmocka_unit_test(rows_that_an_algorithm_does_not_take_have_their_own),
        cmocka_unit_test(the_plan_that_is_dropped_is_the_oldest),
        cmocka_unit_test(products_with_a_plan_of_more_rows_are_right),
    };
    return cmocka_run_group_tests(tests, mtt_open, mtt_close_pair);
}

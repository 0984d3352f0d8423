/* Every kernel gives the same bits with one, two and three threads. Raw memory. */
#include "views.h"

/* Large enough that every kernel has work for three threads. */
enum { ROWS = 1500, COLUMNS = 300, CLASSES = 50 };

/* One result of every kernel, from the same inputs. */
enum { N_RESULTS = 34 };

typedef struct inputs {
    mti_view x, w, dy, index, mask;
} inputs;

static mti_view like(mt_dtype dtype) { return mtt_dense(dtype, ROWS, COLUMNS); }

static void element_wise(const mti_backend *be, mti_ctx *ctx, const inputs *in, mti_view *out)
{
    mt_dtype dtype = in->x.dtype;
    for (int k = 0; k < 9; k++) out[k] = like(dtype);
    mtt_did(be->fill(ctx, &out[0], 3));
    mtt_did(be->unary(ctx, MTI_UNARY_gelu, 0, 0, &in->x, &out[1]));
    mtt_did(be->unary_backward(ctx, MTI_UNARY_gelu, 0, 0, &in->x, &in->dy, &out[2]));
    mtt_did(be->binary(ctx, MTI_MUL, &in->x, &in->dy, &out[3]));
    mtt_did(be->uniform(ctx, -1, 1, 5, 0, &out[4]));
    mtt_did(be->normal(ctx, 0, 1, 5, 0, &out[5]));
    mtt_did(be->dropout(ctx, 0.3, 5, 0, &in->x, &out[6], &in->mask));
    mtt_did(be->dropout_backward(ctx, 0.3, &in->mask, &in->x, &out[7]));
    mti_view turned = {.data = out[8].data,
                       .dtype = dtype,
                       .rank = 2,
                       .shape = {COLUMNS, ROWS},
                       .stride = {ROWS, 1}};
    mti_view x_turned = turned;
    x_turned.data = in->x.data, x_turned.stride[0] = 1, x_turned.stride[1] = COLUMNS;
    mtt_did(be->copy(ctx, &x_turned, &turned));
}

static void row_wise(const mti_backend *be, mti_ctx *ctx, const inputs *in, mti_view *out)
{
    mt_dtype dtype = in->x.dtype, wide = dtype == MT_F64 ? MT_F64 : MT_F32;
    for (int k = 0; k < 7; k++) out[k] = like(dtype);
    mtt_did(be->softmax(ctx, 0.5, true, &in->x, &out[0]));
    mtt_did(be->softmax_backward(ctx, 0.5, &out[0], &in->dy, &out[1]));
    mtt_did(be->log_softmax(ctx, &in->x, &out[2]));
    mtt_did(be->log_softmax_backward(ctx, &out[2], &in->dy, &out[3]));
    mti_view mean = mtt_dense(wide, ROWS), rstd = mtt_dense(wide, ROWS);
    mtt_did(be->layer_norm(ctx, 1e-5, &in->x, &in->w, &in->w, &out[4], &mean, &rstd));
    out[7] = mtt_dense(dtype, COLUMNS), out[8] = mtt_dense(dtype, COLUMNS);
    void *scratch = mtt_memory(be->layer_norm_backward_scratch(ctx, &in->x));
    mtt_did(be->layer_norm_backward(ctx, &in->dy, &in->x, &in->w, &mean, &rstd, &out[5], &out[7],
                                    &out[8], scratch));
    mtt_memory_free(scratch);
    mtt_drop(&mean), mtt_drop(&rstd);
}

static void sums_and_tokens(const mti_backend *be, mti_ctx *ctx, const inputs *in, mti_view *out)
{
    mt_dtype dtype = in->x.dtype;
    out[0] = mtt_dense(dtype, 1, COLUMNS), out[1] = mtt_dense(dtype, ROWS, 1),
    out[2] = mtt_dense(dtype, 1, 1);
    for (int k = 0; k < 3; k++) {
        void *scratch = mtt_memory(be->sum_scratch(ctx, &in->x, &out[k]) + 1);
        mtt_did(be->sum(ctx, 1, &in->x, &out[k], scratch));
        mtt_memory_free(scratch);
    }
    out[3] = mtt_dense(dtype, CLASSES, COLUMNS);
    void *scratch = mtt_memory(be->embedding_backward_scratch(ctx, &in->index, &out[3]));
    mtt_did(be->embedding_backward(ctx, false, &in->index, &in->dy, &out[3], scratch));
    mtt_memory_free(scratch);
    mti_view logp = like(dtype);
    out[4] = mtt_dense(dtype, 1), out[5] = like(dtype);
    mtt_did(be->cross_entropy(ctx, -1, &in->x, &in->index, &logp, &out[4]));
    mtt_did(be->cross_entropy_backward(ctx, -1, &logp, &in->index, &out[4], &out[5]));
    mtt_drop(&logp);
}

/* x's memory as [2,2,ROWS / 2,COLUMNS / 2]. */
static mti_view as_heads(const mti_view *x)
{
    mti_view v = *x;
    const int64_t shape[] = {2, 2, ROWS / 2, COLUMNS / 2};
    v.rank = 4;
    for (int64_t d = 3, step = 1; d >= 0; step *= shape[d--])
        v.shape[d] = shape[d], v.stride[d] = step;
    return v;
}

static void gates_and_choices(const mti_backend *be, mti_ctx *ctx, const inputs *in, mti_view *out)
{
    mt_dtype dtype = in->x.dtype, wide = dtype == MT_F64 ? MT_F64 : MT_F32;
    for (int k = 0; k < 7; k++) out[k] = like(dtype);
    out[7] = mtt_dense(dtype, COLUMNS), out[8] = mtt_dense(dtype, ROWS),
    out[9] = mtt_dense(dtype, COLUMNS);
    mti_view rstd = mtt_dense(wide, ROWS);
    void *scratch = mtt_memory(be->rms_norm_backward_scratch(ctx, &in->x));
    mtt_did(be->rms_norm(ctx, 1e-5, &in->x, &in->w, &out[0], &rstd));
    assert_true(
        be->rms_norm_backward(ctx, &in->dy, &in->x, &in->w, &rstd, &out[1], &out[7], scratch));
    mtt_memory_free(scratch);
    mtt_drop(&rstd);
    mti_view x = as_heads(&in->x), y = as_heads(&out[2]);
    mtt_did(be->rope(ctx, &(mti_rope){10000, .scale = 1}, 9, false, &x, &y));
    mtt_did(be->swiglu(ctx, &in->x, &in->dy, &out[3]));
    mtt_did(be->swiglu_backward(ctx, &in->x, &in->x, &in->dy, &out[4], &out[5]));
    mtt_did(be->where(ctx, &in->mask, &in->x, &in->dy, &out[6]));
    mti_view turned = {.data = in->x.data,
                       .dtype = dtype,
                       .rank = 2,
                       .shape = {COLUMNS, ROWS},
                       .stride = {1, COLUMNS}};
    mtt_did(be->max(ctx, &in->x, &out[8], NULL));
    mtt_did(be->max(ctx, &turned, &out[9], NULL));
}

static void compute(const mti_backend *be, mti_ctx *ctx, const inputs *in, mti_view *out,
                    double *squares)
{
    element_wise(be, ctx, in, out);
    row_wise(be, ctx, in, out + 9);
    sums_and_tokens(be, ctx, in, out + 18);
    gates_and_choices(be, ctx, in, out + 24);
    mti_opt_item item = {.n = ROWS * COLUMNS,
                         .dtype = in->x.dtype,
                         .p = out[0].data,
                         .g = in->dy.data,
                         .m = out[0].data};
    mtt_did(be->sum_squares(ctx, 1, &item, squares));
    mti_opt_params o = {.lr = 0.1, .step = 2, .momentum = 0};
    item.m = NULL;
    mtt_did(be->sgd(ctx, &o, 1, &item));
}

static void thread_counts_change_no_bit(void **state)
{
    (void)state;
    mti_ctx *ctx;
    const mti_backend *be = mtt_backend(&ctx);
    for (int t = 0; t < 4; t++) {
        inputs in = {.x = like(mtt_floats[t]),
                     .dy = like(mtt_floats[t]),
                     .w = mtt_dense(mtt_floats[t], COLUMNS),
                     .index = mtt_dense(MT_I64, ROWS),
                     .mask = mtt_dense(MT_BOOL, ROWS, COLUMNS)};
        mtt_fill(&in.x, 1, -3, 3), mtt_fill(&in.dy, 2, -1, 1), mtt_fill(&in.w, 3, 0.5, 2);
        mtt_fill(&in.index, 4, 0, CLASSES);
        mti_view out[3][N_RESULTS] = {0};
        double squares[3];
        for (int threads = 1; threads <= 3; threads++) {
            mtt_did(be->set_threads(ctx, threads));
            assert_int_equal(be->threads(ctx), threads);
            compute(be, ctx, &in, out[threads - 1], &squares[threads - 1]);
        }
        for (int k = 0; k < N_RESULTS; k++)
            for (int other = 1; other < 3; other++) mtt_same(&out[0][k], &out[other][k], "threads");
        assert_true(squares[0] == squares[1] && squares[0] == squares[2]);
        for (int k = 0; k < 3 * N_RESULTS; k++) mtt_drop(&out[0][0] + k);
        mti_view *all[] = {&in.x, &in.dy, &in.w, &in.index, &in.mask};
        for (int k = 0; k < 5; k++) mtt_drop(all[k]);
    }
    be->close(ctx);
}

/* Rows [first, first + n) of a contiguous view. */
static mti_view some_rows(const mti_view *v, int64_t first, int64_t n)
{
    mti_view part = *v;
    part.shape[0] = n;
    part.data = (char *)v->data + first * v->stride[0] * (int64_t)mt_dtype_size(v->dtype);
    return part;
}

enum { LARGE_ROWS = 8200, LARGE_COLUMNS = 1024, LARGE_RESULTS = 12 }; /* over 32 MiB of f32 */
#define LARGE_BYTES ((size_t)LARGE_ROWS * LARGE_COLUMNS * sizeof(float))

/* Every kernel whose large outputs go past the caches, on rows from `first` on. */
static void large(const mti_backend *be, mti_ctx *ctx, int64_t first, const mti_view *in,
                  const mti_view *w, const mti_view *sums, mti_view *out)
{
    const mti_view *x = &in[0], *dy = &in[1], *index = &in[2], *mean = &in[3], *rstd = &in[4];
    void *scratch = mtt_memory(be->layer_norm_backward_scratch(ctx, x));
    mtt_did(be->copy(ctx, x, &out[0]));
    mtt_did(be->binary(ctx, MTI_ADD, x, dy, &out[1]));
    mtt_did(be->unary(ctx, MTI_UNARY_gelu, 0, 0, x, &out[2]));
    mtt_did(be->unary_backward(ctx, MTI_UNARY_gelu, 0, 0, x, dy, &out[3]));
    mtt_did(be->swiglu(ctx, x, dy, &out[4]));
    mtt_did(be->swiglu_backward(ctx, x, x, dy, &out[5], &out[6]));
    mtt_did(be->layer_norm(ctx, 1e-5, x, w, w, &out[7], mean, rstd));
    mtt_did(be->layer_norm_backward(ctx, dy, x, w, mean, rstd, &out[8], NULL, NULL, scratch));
    mtt_did(be->log_softmax(ctx, x, &out[9]));
    mtt_did(be->entropy_rows_backward(ctx, -1, 0, x, index, NULL, sums, &out[10]));
    mti_view turned[2] = {*x, out[11]};
    for (int k = 0; k < 2; k++) {
        turned[k].rank = 4;
        for (int d = 0; d < 4; d++) turned[k].shape[d] = d < 2 ? 1 : x->shape[d - 2];
        for (int d = 0; d < 4; d++) turned[k].stride[d] = d == 3 ? 1 : LARGE_COLUMNS;
    }
    assert_true(
        be->rope(ctx, &(mti_rope){10000, .scale = 1}, first, false, &turned[0], &turned[1]));
    mtt_memory_free(scratch);
}

static void large_outputs_have_the_bits_of_small_ones(void **state)
{
    (void)state;
    mti_ctx *ctx;
    const mti_backend *be = mtt_backend(&ctx);
    mti_view in[5] = {mtt_dense(MT_F32, LARGE_ROWS, LARGE_COLUMNS),
                      mtt_dense(MT_F32, LARGE_ROWS, LARGE_COLUMNS), mtt_dense(MT_I64, LARGE_ROWS),
                      mtt_dense(MT_F32, LARGE_ROWS), mtt_dense(MT_F32, LARGE_ROWS)};
    mti_view w = mtt_dense(MT_F32, LARGE_COLUMNS), scale = mtt_dense(MT_F32, 1);
    mti_view out[LARGE_RESULTS];
    mtt_fill(&in[0], 1, -3, 3), mtt_fill(&in[1], 2, -1, 1), mtt_fill(&w, 3, 0.5, 2);
    mtt_fill(&in[2], 4, 0, LARGE_COLUMNS), mtt_fill(&scale, 5, 0.5, 2);
    for (int k = 0; k < LARGE_RESULTS; k++) /* raw memory is aligned */
        out[k] = in[0], assert_non_null(out[k].data = be->alloc(ctx, LARGE_BYTES));
    mtt_did(be->set_threads(ctx, 2));
    large(be, ctx, 0, in, &w, &scale, out);
    for (int64_t first = 0; first < LARGE_ROWS; first += LARGE_ROWS - 37) {
        mti_view part[5], small[LARGE_RESULTS];
        for (int k = 0; k < 5; k++) part[k] = some_rows(&in[k], first, 37);
        for (int k = 0; k < LARGE_RESULTS; k++) small[k] = mtt_dense(MT_F32, 37, LARGE_COLUMNS);
        large(be, ctx, first, part, &w, &scale, small);
        for (int k = 0; k < LARGE_RESULTS; k++) {
            mti_view same = some_rows(&out[k], first, 37);
            mtt_same(&small[k], &same, "large");
            mtt_drop(&small[k]);
        }
    }
    for (int k = 0; k < LARGE_RESULTS; k++) be->free(ctx, out[k].data, LARGE_BYTES);
    for (int k = 0; k < 5; k++) mtt_drop(&in[k]);
    mtt_drop(&w), mtt_drop(&scale);
    be->close(ctx);
}

static void fewer_than_one_thread_is_refused(void **state)
{
    (void)state;
    mti_ctx *ctx;
    const mti_backend *be = mtt_backend(&ctx);
    int before = be->threads(ctx);
    assert_false(be->set_threads(ctx, 0));
    assert_int_equal(mt_last_status(), MT_ERR_ARGUMENT);
    mt_clear_error();
    assert_int_equal(be->threads(ctx), before);
    be->close(ctx);
}

static void raw_memory_is_aligned_and_may_be_refused(void **state)
{
    (void)state;
    mti_ctx *ctx;
    const mti_backend *be = mtt_backend(&ctx);
    const size_t sizes[] = {1, 512, 513, 1 << 20, 2 << 20, (20 << 20) + 512};
    for (int k = 0; k < 6; k++) {
        char *p = be->alloc(ctx, sizes[k]);
        assert_non_null(p);
        assert_int_equal((uintptr_t)p % (sizes[k] < 2 << 20 ? 512 : 2 << 20), 0);
        p[0] = p[sizes[k] - 1] = 7;
        char back = 0;
        mtt_did(be->download(ctx, &back, p + sizes[k] - 1, 1));
        assert_int_equal(back, 7);
        be->free(ctx, p, sizes[k]);
    }
    mti_fail_nth_alloc(1);
    assert_null(be->alloc(ctx, 512));
    assert_null(be->alloc(ctx, SIZE_MAX - 5));
    mti_fail_nth_alloc(0);
    assert_int_equal(mt_last_status(), MT_OK); /* the caller, the allocator, sets the error */
    mti_fail_nth_alloc(1);
    assert_null(be->open());
    mti_fail_nth_alloc(0);
    assert_int_equal(mt_last_status(), MT_ERR_MEMORY);
    mt_clear_error();
    be->close(ctx);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(thread_counts_change_no_bit),
        cmocka_unit_test(large_outputs_have_the_bits_of_small_ones),
        cmocka_unit_test(fewer_than_one_thread_is_refused),
        cmocka_unit_test(raw_memory_is_aligned_and_may_be_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

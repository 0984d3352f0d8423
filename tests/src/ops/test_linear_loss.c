/* linear_cross_entropy, which computes logits and loss in parts, against the plain form; and what
 * the form that keeps logits takes. */
#include <float.h>
#include <math.h>
#include <stdlib.h>
#include "base/base.h"
#include "mtt_fixture.h"

/* x [n,d], w [v,d], targets [n] of which every `skip`-th is ignored. */
typedef struct problem {
    int64_t n, d, v;
    mt_tensor *x, *w, *target;
} problem;

static problem make(mt_dtype dtype, int64_t n, int64_t d, int64_t v, int64_t skip)
{
    problem p = {n, d, v, NULL, NULL, NULL};
    int64_t *t = malloc((size_t)(n + 1) * sizeof *t);
    uint64_t seed = 9;
    assert_non_null(t);
    for (int64_t i = 0; i < n; i++)
        t[i] = skip && i % skip == 0 ? MT_IGNORE : (int64_t)mtt_draw(&seed, 0, (double)v);
    p.x = mtt_made(mtt_random(device, dtype, MT_SHAPE(n, d), 1, -1, 1));
    p.w = mtt_made(mtt_random(device, dtype, MT_SHAPE(v, d), 2, -1, 1));
    p.target = mtt_made(mt_from_data(device, MT_I64, MT_SHAPE(n), t, (size_t)n * sizeof *t));
    free(t);
    mtt_ok(mt_set_requires_grad(p.x, true));
    mtt_ok(mt_set_requires_grad(p.w, true));
    return p;
}

static void drop(problem *p) { mt_release(p->x), mt_release(p->w), mt_release(p->target); }

static mt_tensor *plain(const problem *p)
{
    MT_AUTO mt_tensor *logits = mt_linear(p->x, p->w, NULL);
    return mt_cross_entropy(logits, p->target, MT_IGNORE);
}

static mt_tensor *fused(const problem *p, int64_t chunk)
{
    return mt_linear_cross_entropy(p->x, p->w, p->target, MT_IGNORE, chunk);
}

static mt_tensor *early(const problem *p, int64_t chunk, bool f32_logits)
{
    const mt_linear_cross_entropy_options o = {
        .chunk = chunk, .early = true, .f32_logits = f32_logits};
    return mt_linear_cross_entropy_with(p->x, p->w, p->target, MT_IGNORE, &o);
}

static void assert_near(mt_tensor *got, mt_tensor *want, double tolerance, const char *what)
{
    double *a = mtt_doubles(got), *b = mtt_doubles(want), top = 0, off = 0;
    assert_true(a && b && mt_numel(got) == mt_numel(want));
    for (int64_t i = 0; i < mt_numel(got); i++) {
        top = fmax(top, fabs(b[i]));
        off = fmax(off, fabs(a[i] - b[i]));
    }
    free(a);
    free(b);
    if (!(off <= tolerance * top)) fail_msg("%s: off by %g of %g", what, off, top);
}

/* What the forms may differ by, of the largest value, when libraries add in any order. A sum of k
 * terms is off by at most k roundings of the sum of their magnitudes, and those are at most 1 here:
 * a logit sums d products, so it is off by d*d roundings, and so is what is raised to it; a
 * softmax sums v of them, a gradient v or n. Twice that for magnitudes of both signs (a
 * probability, less 1), and twice for two forms. 16-bit forms round the gradient of logits before
 * they sum it. */
static double tolerance_of(mt_dtype dtype, const problem *p)
{
    if (dtype != MT_F64 && dtype != MT_F32) return 3e-2;
    double rounding = (dtype == MT_F64 ? DBL_EPSILON : FLT_EPSILON) / 2;
    return 4 * (double)(p->d * p->d + p->v + p->n) * rounding;
}

static void compare(mt_dtype dtype, problem p, int64_t chunk)
{
    double tolerance = tolerance_of(dtype, &p);
    MT_AUTO mt_tensor *loss = mtt_made(plain(&p));
    mtt_ok(mt_backward(loss));
    MT_AUTO mt_tensor *dx = mt_retain(mt_grad(p.x));
    MT_AUTO mt_tensor *dw = mt_retain(mt_grad(p.w));
    mtt_ok(mt_set_grad(p.x, NULL));
    mtt_ok(mt_set_grad(p.w, NULL));
    for (int way = 0; way < 3; way++) {
        MT_AUTO mt_tensor *other = mtt_made(way ? early(&p, chunk, way > 1) : fused(&p, chunk));
        assert_int_equal(mt_dtype_of(other), dtype == MT_F64 ? MT_F64 : MT_F32);
        mtt_ok(mt_backward(other));
        assert_near(other, loss, tolerance, "loss");
        assert_near(mt_grad(p.x), dx, tolerance, "dx");
        assert_near(mt_grad(p.w), dw, tolerance, "dw");
        mtt_ok(mt_set_grad(p.x, NULL));
        mtt_ok(mt_set_grad(p.w, NULL));
    }
    drop(&p);
}

static void loss_and_gradients_are_those_of_the_plain_form_for_any_chunk(void **state)
{
    (void)state;
    static const mt_dtype floats[] = {MT_F64, MT_F32, MT_BF16, MT_F16};
    for (int t = 0; t < 4; t++)
        for (int64_t chunk = 0; chunk < 12; chunk += chunk < 3 ? 1 : 4) {
            compare(floats[t], make(floats[t], 10, 6, 37, 0), chunk);
            compare(floats[t], make(floats[t], 10, 6, 37, 3), chunk);
        }
    compare(MT_F32, make(MT_F32, 300, 64, 1000, 7), 64);
    compare(MT_F32, make(MT_F32, 3, 5, 5003, 0), 2);
}

static void rows_may_lie_in_any_layout(void **state)
{
    (void)state;
    problem p = make(MT_F32, 12, 6, 9, 0);
    MT_AUTO mt_tensor *wide = mtt_made(mt_transpose(p.x, 0, 1));
    MT_AUTO mt_tensor *turned = mtt_made(mt_contiguous(wide));
    MT_AUTO mt_tensor *x = mtt_made(mt_transpose(turned, 0, 1));
    MT_AUTO mt_tensor *a = mtt_made(mt_linear_cross_entropy(x, p.w, p.target, MT_IGNORE, 5));
    MT_AUTO mt_tensor *b = mtt_made(fused(&p, 5));
    assert_true(mtt_same_bits(a, b));
    drop(&p);
}

static void a_loss_of_no_rows_is_not_a_number_and_has_no_gradient(void **state)
{
    (void)state;
    problem p = make(MT_F32, 4, 3, 5, 1); /* all rows are ignored */
    MT_AUTO mt_tensor *loss = mtt_made(fused(&p, 2));
    assert_true(isnan(mt_item(loss)));
    problem none = make(MT_F32, 0, 3, 5, 0);
    MT_AUTO mt_tensor *empty = mtt_made(fused(&none, 0));
    assert_true(isnan(mt_item(empty)));
    mtt_ok(mt_backward(empty));
    double *dw = mtt_doubles(mt_grad(none.w));
    for (int i = 0; i < 15; i++) assert_true(dw[i] == 0);
    free(dw);
    drop(&p);
    drop(&none);
}

static void a_retained_graph_gives_the_same_bits_again(void **state)
{
    (void)state;
    problem p = make(MT_F32, 20, 8, 33, 4);
    MT_AUTO mt_tensor *loss = mtt_made(fused(&p, 6));
    mt_backward_options keep = {.retain_graph = true};
    mtt_ok(mt_backward_with(loss, &keep));
    MT_AUTO mt_tensor *dw = mtt_made(mt_clone(mt_grad(p.w)));
    mtt_ok(mt_set_grad(p.w, NULL));
    mtt_ok(mt_backward_with(loss, &keep));
    assert_true(mtt_same_bits(dw, mt_grad(p.w)));
    drop(&p);
}

static size_t round_up(size_t bytes) { return (bytes + 511) / 512 * 512; }

static void it_keeps_its_inputs_and_one_float_per_row(void **state)
{
    (void)state;
    problem p = make(MT_BF16, 64, 16, 300, 0);
    mt_ledger *ledger = mt_ledger_new(device);
    mtt_ok(mt_ledger_begin(ledger));
    MT_AUTO mt_tensor *loss = mtt_made(fused(&p, 0));
    mtt_ok(mt_ledger_end(ledger));
    assert_int_equal(mt_ledger_bytes(ledger), 2 * 64 * 16 + 2 * 300 * 16 + 8 * 64 + 4 * 64);
    mt_ledger_free(ledger);
    drop(&p);
}

/* Bytes at the time of the peak, without the workspace of products. */
static size_t at_peak(void)
{
    mt_mem_stats stats;
    size_t sum = 0;
    mt_mem_get_stats(device, &stats);
    for (int i = 0; i < MT_CATEGORY_COUNT; i++)
        if (i != MT_WORKSPACE) sum += stats.at_peak[i];
    return sum;
}

/* Forward holds a chunk of logits, a loss and a log-sum-exp per row and the result; backward as
 * many logits, of all rows and 500 classes, dx, dw and two scalars. */
static void the_peak_holds_one_chunk_of_logits(void **state)
{
    (void)state;
    problem p = make(MT_F32, 512, 16, 4000, 0);
    size_t chunk = round_up(4 * 64 * 4000), row = round_up(4 * 512);
    mt_mem_stats stats;
    mt_mem_get_stats(device, &stats);
    size_t before = stats.allocated.current;
    mt_mem_reset_peak(device);
    MT_AUTO mt_tensor *loss = mtt_made(fused(&p, 64));
    assert_int_equal(at_peak() - before, chunk + 2 * row + 512);
    mt_mem_get_stats(device, &stats);
    before = stats.allocated.current;
    mt_mem_reset_peak(device);
    mtt_ok(mt_backward(loss));
    size_t gradients = round_up(4 * 512 * 16) + round_up(4 * 4000 * 16);
    assert_int_equal(at_peak() - before, chunk + gradients + 2 * 512);
    drop(&p);
}

/* 10000 rows and 50257 classes in bf16. A part of the logits has at most `most` bytes: forward
 * takes so many rows, of 50264 elements that begin at multiples of 16 bytes; backward so many
 * classes, with dx in f32 beside it until its parts are added up. */
static void check_parts(const char *scratch_of, int64_t rows, int64_t classes)
{
    mt_device *meta = mt_device_open("meta");
    assert_non_null(meta);
    mtt_ok(mt_device_count_scratch_of(meta, scratch_of));
    mtt_ok(
        mt_mem_set_expandable(meta, &(mt_expandable){0})); /* every rest of a block is split off */
    MT_AUTO mt_tensor *x = mtt_made(mt_empty(meta, MT_BF16, MT_SHAPE(10000, 8)));
    MT_AUTO mt_tensor *w = mtt_made(mt_empty(meta, MT_BF16, MT_SHAPE(50257, 8)));
    MT_AUTO mt_tensor *t = mtt_made(mt_empty(meta, MT_I64, MT_SHAPE(10000)));
    mtt_ok(mt_set_requires_grad(w, true));
    mtt_ok(mt_set_requires_grad(x, true));
    mt_mem_stats before, after;
    mt_mem_get_stats(meta, &before);
    mt_mem_reset_peak(meta);
    MT_AUTO mt_tensor *loss = mtt_made(mt_linear_cross_entropy(x, w, t, MT_IGNORE, 0));
    mt_mem_get_stats(meta, &after);
    size_t part = round_up(2 * (size_t)rows * 50264), row = round_up(4 * 10000);
    size_t workspace = after.at_peak[MT_WORKSPACE];
    assert_int_equal(after.allocated.peak - before.allocated.current - workspace,
                     part + 2 * row + 512);
    mt_mem_get_stats(meta, &before);
    mt_mem_reset_peak(meta);
    mtt_ok(mt_backward(loss));
    mt_mem_get_stats(meta, &after);
    part = round_up(2 * 10000 * (size_t)classes);
    size_t gradients = round_up(2 * 10000 * 8) + round_up(2 * 50257 * 8);
    workspace = after.at_peak[MT_WORKSPACE];
    assert_int_equal(after.allocated.peak - before.allocated.current - workspace,
                     part + gradients + round_up(4 * 10000 * 8) + 2 * 512);
    mt_set(&loss, NULL);
    mt_clear_error();
    mt_device_release(meta);
}

static void default_parts_have_equal_size_and_suit_the_device(void **state)
{
    (void)state;
    check_parts("none", 2500, 12568); /* 256 MiB, as on a GPU: 4 parts each; 12565 classes */
    check_parts("cpu", 323, 1680);    /* 32 MiB: 31 parts of rows, 30 of 1676 classes */
}

/* Gradients that forward has made become the inputs' own, but not while the graph is retained. */
static void early_gradients_are_taken_over_with_the_last_backward(void **state)
{
    (void)state;
    problem p = make(MT_F32, 12, 64, 37, 3);
    MT_AUTO mt_tensor *loss = mtt_made(early(&p, 4, true));
    const mt_backward_options retain = {.retain_graph = true};
    mtt_ok(mt_backward_with(loss, &retain));
    MT_AUTO mt_tensor *once = mtt_made(mt_clone(mt_grad(p.w)));
    mtt_ok(mt_set_grad(p.x, NULL));
    mtt_ok(mt_set_grad(p.w, NULL));
    mt_mem_stats before, after;
    mt_mem_reset_peak(device);
    mt_mem_get_stats(device, &before);
    mtt_ok(mt_backward(loss));
    mt_mem_get_stats(device, &after);
    assert_true(mtt_same_bits(mt_grad(p.w), once));
    assert_int_equal(after.allocated.current, before.allocated.current);
    assert_true(after.allocated.peak <= before.allocated.current + 1024); /* two scalars */
    assert_true(after.by_category[MT_GRADIENT] - before.by_category[MT_GRADIENT] ==
                round_up(12 * 64 * 4) + round_up(37 * 64 * 4));
    assert_int_not_equal(mt_backward(loss), MT_OK);
    mtt_failed(MT_ERR_STATE, "linear_cross_entropy_early", "retain_graph");
    drop(&p);
}

/* Beside the logits, which are there: a log-sum-exp and, until the mean is taken, a loss per row.
 */
static void a_loss_that_keeps_logits_writes_a_number_per_row(void **state)
{
    (void)state;
    problem p = make(MT_F32, 512, 16, 4000, 5);
    MT_AUTO mt_tensor *logits = mtt_made(mt_linear(p.x, p.w, NULL));
    mt_mem_stats stats;
    mt_mem_get_stats(device, &stats);
    size_t before = stats.allocated.current;
    mt_mem_reset_peak(device);
    MT_AUTO mt_tensor *loss = mtt_made(mt_cross_entropy_with(
        logits, p.target, MT_IGNORE, &(mt_cross_entropy_options){.keep_logits = true}));
    assert_int_equal(at_peak() - before, 2 * round_up(4 * 512) + 512);
    mt_mem_get_stats(device, &stats);
    assert_int_equal(stats.allocated.current - before, round_up(4 * 512) + 512);
    drop(&p);
}

static void arguments_that_do_not_fit_are_refused_by_name(void **state)
{
    (void)state;
    problem p = make(MT_F32, 4, 3, 5, 0);
    MT_AUTO mt_tensor *half = mtt_made(mt_cast(p.w, MT_BF16));
    MT_AUTO mt_tensor *narrow = mtt_made(mt_slice(p.w, 1, 0, 2));
    MT_AUTO mt_tensor *few = mtt_made(mt_slice(p.target, 0, 0, 3));
    assert_null(mt_linear_cross_entropy(p.x, half, p.target, MT_IGNORE, 0));
    mtt_failed(MT_ERR_ARGUMENT, "linear_cross_entropy", "bf16");
    assert_null(mt_linear_cross_entropy(p.x, narrow, p.target, MT_IGNORE, 0));
    mtt_failed(MT_ERR_ARGUMENT, "linear_cross_entropy", "[5,2]", "[v,d]");
    assert_null(mt_linear_cross_entropy(p.x, p.w, few, MT_IGNORE, 0));
    mtt_failed(MT_ERR_ARGUMENT, "linear_cross_entropy", "[3]");
    assert_null(mt_linear_cross_entropy(p.x, p.w, p.x, MT_IGNORE, 0));
    mtt_failed(MT_ERR_ARGUMENT, "linear_cross_entropy", "i64");
    assert_null(mt_linear_cross_entropy(p.x, p.w, p.target, MT_IGNORE, -1));
    mtt_failed(MT_ERR_ARGUMENT, "linear_cross_entropy", "-1");
    const mt_linear_cross_entropy_options wide = {.f32_logits = true};
    assert_null(mt_linear_cross_entropy_with(p.x, p.w, p.target, MT_IGNORE, &wide));
    mtt_failed(MT_ERR_ARGUMENT, "f32_logits needs early");
    assert_null(mt_linear_cross_entropy(NULL, p.w, p.target, MT_IGNORE, 0));
    mtt_failed(MT_ERR_ARGUMENT, "linear_cross_entropy", "NULL");
    drop(&p);
}

static void a_target_outside_the_classes_is_named_in_any_row(void **state)
{
    (void)state;
    problem p = make(MT_F32, 4, 3, 5, 0);
    const int64_t bad[] = {1, 2, 3, 5};
    mtt_ok(mt_copy_from_host(p.target, bad, sizeof bad));
    mt_tensor *loss = fused(&p, 2);
    /* an asynchronous device reports the error when it is synchronised */
    if (loss) assert_int_not_equal(mt_device_sync(device), MT_OK);
    mt_release(loss);
    mtt_failed(MT_ERR_ARGUMENT, "target[3] is 5", "0 to 4");
    drop(&p);
}

static void any_allocation_may_fail(void **state)
{
    (void)state;
    problem p = make(MT_F32, 12, 5, 9, 3);
    mt_mem_stats stats;
    int refused = 0;
    mt_mem_get_stats(device, &stats);
    size_t before = stats.allocated.current;
    for (uint64_t n = 1;; n++) {
        mti_fail_nth_alloc(n);
        mt_tensor *loss = fused(&p, 4);
        bool ok = loss && mt_backward(loss) == MT_OK, reached = mti_alloc_count() >= n;
        mti_fail_nth_alloc(0);
        refused += !ok;
        if (!ok) assert_int_equal(mt_last_status(), MT_ERR_MEMORY);
        mt_clear_error();
        mt_release(loss);
        mtt_ok(mt_set_grad(p.x, NULL));
        mtt_ok(mt_set_grad(p.w, NULL));
        mt_mem_get_stats(device, &stats);
        assert_int_equal(stats.allocated.current, before);
        mt_mem_empty_cache(device);
        if (!reached) break;
    }
    assert_true(refused > 20);
    drop(&p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        mtt_test(loss_and_gradients_are_those_of_the_plain_form_for_any_chunk),
        mtt_test(early_gradients_are_taken_over_with_the_last_backward),
        mtt_test(rows_may_lie_in_any_layout),
        mtt_test(a_loss_of_no_rows_is_not_a_number_and_has_no_gradient),
        mtt_test(a_retained_graph_gives_the_same_bits_again),
        mtt_test(it_keeps_its_inputs_and_one_float_per_row),
        mtt_test(the_peak_holds_one_chunk_of_logits),
        mtt_test(default_parts_have_equal_size_and_suit_the_device),
        mtt_test(a_loss_that_keeps_logits_writes_a_number_per_row),
        mtt_test(arguments_that_do_not_fit_are_refused_by_name),
        mtt_test(a_target_outside_the_classes_is_named_in_any_row),
        mtt_test(any_allocation_may_fail),
    };
    return cmocka_run_group_tests(tests, mtt_open_device, mtt_close_device);
}

/* Arenas: nested expressions do not leak; what an arena costs in memory. */
#include "base/base.h"
#include "mtt_fixture.h"

enum { N = 256, BYTES = N * sizeof(float) }; /* two blocks of 512 */

static mt_tensor *input(void) { return mtt_made(mt_full(device, MT_F32, MT_SHAPE(N), 1)); }

static void a_nested_expression_leaves_nothing_once_its_arena_is_cleared(void **state)
{
    (void)state;
    mt_arena *a = mt_arena_new();
    MT_AUTO mt_tensor *x = input();
    mtt_ok(mt_set_requires_grad(x, true));
    size_t before = mtt_allocated(device);
    for (int i = 0; i < 100; i++) { /* more than a small list holds */
        mt_tensor *y = mt_in(a, mt_sum_all(mt_in(a, mt_gelu(mt_in(a, mt_mul_scalar(x, 2))))));
        mtt_ok(mt_backward(mtt_made(y)));
        mtt_ok(mt_set_grad(x, NULL));
        if (i % 50 == 49) mt_arena_clear(a);
        if (i % 50 == 49) assert_int_equal(mtt_allocated(device), before);
    }
    mt_in(a, mt_gelu(x));
    mt_arena_free(a);
    assert_int_equal(mtt_allocated(device), before);
    mt_arena_free(NULL);
    mt_arena_clear(NULL);
}

static size_t peak(mt_tensor *(*chain)(mt_arena *, mt_tensor *), bool arena)
{
    mt_mem_region region;
    MT_AUTO mt_tensor *x = input();
    mtt_ok(mt_set_requires_grad(x, true));
    mt_arena *a = arena ? mt_arena_new() : NULL;
    mt_mem_region_begin(&region, device);
    mt_tensor *y = mtt_made(chain(a, x));
    mt_mem_region_end(&region);
    if (!arena) mt_release(y);
    mt_arena_free(a);
    return (size_t)region.delta.peak;
}

/* The tape does not keep the inputs of a sum. */
static mt_tensor *five_sums(mt_arena *a, mt_tensor *x)
{
    mt_tensor *h = mt_add(x, x);
    for (int i = 1; i < 5; i++)
        if (a)
            h = mt_add(mt_in(a, h), x);
        else
            mt_set(&h, mt_add(h, x));
    return a ? mt_in(a, h) : h;
}

/* The tape keeps the inputs of gelu. */
static mt_tensor *five_gelus(mt_arena *a, mt_tensor *x)
{
    mt_tensor *h = mt_gelu(x);
    for (int i = 1; i < 5; i++)
        if (a)
            h = mt_gelu(mt_in(a, h));
        else
            mt_set(&h, mt_gelu(h));
    return a ? mt_in(a, h) : h;
}

static void an_arena_raises_the_peak_only_where_the_tape_keeps_nothing(void **state)
{
    (void)state;
    assert_int_equal(peak(five_sums, false), 2 * BYTES);
    assert_int_equal(peak(five_sums, true), 5 * BYTES);
    assert_int_equal(peak(five_gelus, false), 5 * BYTES);
    assert_int_equal(peak(five_gelus, true), 5 * BYTES);
}

static void the_innermost_failure_is_reported(void **state)
{
    (void)state;
    mt_arena *a = mt_arena_new();
    MT_AUTO mt_tensor *x = input(), *z = mtt_made(mt_zeros(device, MT_F32, MT_SHAPE(3)));
    assert_null(mt_in(a, mt_sum_all(mt_in(a, mt_gelu(mt_in(a, mt_add(x, z)))))));
    mtt_failed(MT_ERR_ARGUMENT, "add", "[256]", "[3]");
    assert_null(mt_in(a, NULL));
    mtt_failed(MT_ERR_ARGUMENT, "in: the tensor is NULL");
    assert_null(mt_in(NULL, mt_gelu(x)));
    mtt_failed(MT_ERR_ARGUMENT, "in: the arena is NULL");
    mt_arena_free(a);
}

static void a_tensor_is_released_if_the_arena_has_no_memory_to_list_it(void **state)
{
    (void)state;
    mt_arena *a = mt_arena_new();
    MT_AUTO mt_tensor *x = input();
    mt_tensor *h = mtt_made(mt_gelu(x));
    mti_fail_nth_alloc(1);
    assert_null(mt_in(a, h));
    mti_fail_nth_alloc(0);
    mtt_failed(MT_ERR_MEMORY, "");
    assert_int_equal(mtt_allocated(device), BYTES);
    assert_ptr_equal(mt_in(a, mt_retain(x)), x); /* the arena still works */
    mti_fail_nth_alloc(1);
    assert_null(mt_arena_new());
    mti_fail_nth_alloc(0);
    mtt_failed(MT_ERR_MEMORY, "");
    mt_arena_free(a);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        mtt_test(a_nested_expression_leaves_nothing_once_its_arena_is_cleared),
        mtt_test(an_arena_raises_the_peak_only_where_the_tape_keeps_nothing),
        mtt_test(the_innermost_failure_is_reported),
        mtt_test(a_tensor_is_released_if_the_arena_has_no_memory_to_list_it),
    };
    return cmocka_run_group_tests(tests, mtt_open_device, mtt_close_device);
}

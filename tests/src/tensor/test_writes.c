/* Writing into a tensor: the result where source and destination share memory; refusals. */
#include <string.h>
#include "mtt_fixture.h"

enum { SIDE = 4, N = SIDE * SIDE };

/* 1, 2, 3, ... as [SIDE,SIDE] */
static mt_tensor *numbers(void)
{
    double values[N];
    for (int i = 0; i < N; i++) values[i] = i + 1;
    return mtt_made(mtt_from_doubles(device, MT_F32, MT_SHAPE(SIDE, SIDE), values));
}

static uint64_t version(const mt_tensor *t) { return mt_storage_of(t).version; }

static void tensor_copied_onto_its_transpose_is_transposed(void **state)
{
    (void)state;
    MT_AUTO mt_tensor *x = numbers(), *before = numbers();
    MT_AUTO mt_tensor *turned = mtt_made(mt_transpose(x, 0, 1));
    MT_AUTO mt_tensor *wanted = mtt_made(mt_transpose(before, 0, 1));
    mtt_ok(mt_copy(x, turned));
    assert_true(mtt_same_bits(x, wanted));
}

/* Copies every 2x3 and 3x2 view of one storage onto every other one; the result is that of a copy
 * through separate memory. */
static void views_of_one_storage_are_copied_as_if_they_were_separate(void **state)
{
    (void)state;
    mt_layout views[64];
    int n = 0;
    for (int turned = 0; turned < 2; turned++)
        for (int at = 0; at < N; at++) {
            mt_layout l = {MT_F32, 2, {2, 3}, {SIDE, 1}, (size_t)at * sizeof(float)};
            if (turned) l.strides[0] = 1, l.strides[1] = SIDE;
            int64_t last = at + l.strides[0] + 2 * l.strides[1];
            if (last < N) views[n++] = l;
        }
    assert_true(n > 10);
    for (int i = 0; i < n; i++)
        for (int j = 0; j < n; j++) {
            MT_AUTO mt_tensor *x = numbers(), *y = numbers(), *source = numbers();
            MT_AUTO mt_tensor *to = mtt_made(mt_view_as(x, &views[i]));
            MT_AUTO mt_tensor *from = mtt_made(mt_view_as(x, &views[j]));
            MT_AUTO mt_tensor *to_apart = mtt_made(mt_view_as(y, &views[i]));
            MT_AUTO mt_tensor *from_apart = mtt_made(mt_view_as(source, &views[j]));
            mtt_ok(mt_copy(to, from));
            mtt_ok(mt_copy(to_apart, from_apart));
            assert_true(mtt_same_bits(x, y));
        }
}

static void a_copy_that_finds_no_memory_changes_nothing(void **state)
{
    (void)state;
    enum { LARGE = 1700 }; /* more than is free next to the tensor */
    static float values[LARGE * LARGE];
    MT_AUTO mt_tensor *x = mtt_made(mt_full(device, MT_F32, MT_SHAPE(LARGE, LARGE), 3));
    MT_AUTO mt_tensor *turned = mtt_made(mt_transpose(x, 0, 1));
    uint64_t before = version(x);
    mt_mem_empty_cache(device);
    mt_mem_set_capacity(device, 1);
    assert_int_equal(mt_copy(x, turned), MT_ERR_MEMORY);
    mt_clear_error();
    assert_int_equal(mt_copy_from_host(turned, values, sizeof values), MT_ERR_MEMORY);
    mt_clear_error();
    mt_mem_set_capacity(device, 0);
    assert_int_equal(version(x), before);
    mtt_ok(mt_to_host(x, values, sizeof values));
    for (int i = 0; i < LARGE * LARGE; i++) assert_true(values[i] == 3);
}

/* ---- several elements that share one place in memory ---- */

static void an_expanded_tensor_can_only_be_filled(void **state)
{
    (void)state;
    const float ones[N] = {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1};
    MT_AUTO mt_tensor *column = mtt_made(mt_zeros(device, MT_F32, MT_SHAPE(SIDE, 1)));
    MT_AUTO mt_tensor *x = mtt_made(mt_expand(column, MT_SHAPE(SIDE, SIDE))), *values = numbers();
    mt_copy(x, values);
    mtt_failed(MT_ERR_ARGUMENT, "copy: the tensor is [4,4] with strides [1,0]", "mt_contiguous");
    mt_copy_from_host(x, ones, sizeof ones);
    mtt_failed(MT_ERR_ARGUMENT, "copy_from_host: the tensor is [4,4]", "share one place");
    mt_relu_inplace(x);
    mtt_failed(MT_ERR_ARGUMENT, "relu_inplace: the tensor is [4,4]", "share one place");
    mt_leaky_relu_inplace(x, 0.5);
    mtt_failed(MT_ERR_ARGUMENT, "leaky_relu_inplace: the tensor is [4,4]", "share one place");
    assert_int_equal(version(x), 0);
    mtt_ok(mt_fill(x, -2));
    for (int i = 0; i < SIDE; i++) {
        MT_AUTO mt_tensor *element = mtt_made(mt_slice(column, 0, i, 1));
        assert_true(mt_item(element) == -2);
    }
    /* It may be a source, and nothing is shared where the dimension has one element. */
    MT_AUTO mt_tensor *y = numbers(), *same = mtt_made(mt_expand(column, MT_SHAPE(SIDE, 1)));
    mtt_ok(mt_copy(y, x));
    assert_true(mtt_same_bits(y, x));
    mtt_ok(mt_leaky_relu_inplace(same, 0.5));
    mtt_ok(mt_copy_from_host(same, ones, SIDE * sizeof *ones));
}

/* Whether two elements of the view share a place; tries them one by one. */
static bool shares(const mt_layout *l)
{
    int uses[64] = {0};
    for (int i = 0; i < l->shape[0]; i++)
        for (int j = 0; j < l->shape[1]; j++)
            for (int k = 0; k < l->shape[2]; k++)
                if (uses[i * l->strides[0] + j * l->strides[1] + k * l->strides[2]]++) return true;
    return false;
}

/* All shapes up to 3 by 3 by 2, all strides up to 4: each layout that shares memory is refused;
 * of the others, only those whose dimensions interleave. */
static void every_layout_in_which_elements_share_memory_is_refused(void **state)
{
    (void)state;
    enum { CHOICES = 4 * 4 * 3 * 5 * 5 * 5 };
    MT_AUTO mt_tensor *storage = mtt_made(mt_zeros(device, MT_F32, MT_SHAPE(64)));
    int n_shared = 0, n_interlocked = 0;
    for (int c = 0; c < CHOICES; c++) {
        mt_layout l = {.dtype = MT_F32, .rank = 3};
        const int choices[6] = {4, 4, 3, 5, 5, 5};
        for (int d = 0, rest = c; d < 6; rest /= choices[d++])
            *(d < 3 ? &l.shape[d] : &l.strides[d - 3]) = rest % choices[d];
        MT_AUTO mt_tensor *to = mtt_made(mt_view_as(storage, &l));
        MT_AUTO mt_tensor *from = mtt_made(mt_zeros(device, MT_F32, l.rank, l.shape));
        bool refused = mt_copy(to, from) != MT_OK, shared = shares(&l);
        if (refused) mtt_failed(MT_ERR_ARGUMENT, "share one place");
        assert_true(refused || !shared);
        n_shared += shared;
        n_interlocked += refused && !shared;
    }
    assert_true(n_shared > 1000 && n_interlocked > 0 && n_interlocked < n_shared / 10);
}

/* ---- gradients ---- */

static void a_gradient_has_memory_of_its_own_and_no_history(void **state)
{
    (void)state;
    MT_AUTO mt_tensor *x = numbers();
    mtt_ok(mt_set_category(x, MT_PARAMETER));
    mtt_ok(mt_set_requires_grad(x, true));
    MT_AUTO mt_tensor *detached = mtt_made(mt_detach(x));
    MT_AUTO mt_tensor *turned = mtt_made(mt_transpose(detached, 0, 1));
    MT_AUTO mt_tensor *one = mtt_made(mt_full(device, MT_F32, 0, NULL, 1));
    MT_AUTO mt_tensor *expanded = mtt_made(mt_expand(one, MT_SHAPE(SIDE, SIDE)));
    MT_AUTO mt_tensor *recorded = mtt_made(mt_gelu(x));
    mt_set_grad(x, x);
    mtt_failed(MT_ERR_ARGUMENT, "set_grad", "shares its storage", "mt_clone");
    mt_set_grad(x, detached);
    mtt_failed(MT_ERR_ARGUMENT, "set_grad", "shares its storage");
    mt_set_grad(x, turned);
    mtt_failed(MT_ERR_ARGUMENT, "set_grad", "shares its storage");
    mt_set_grad(x, expanded);
    mtt_failed(MT_ERR_ARGUMENT, "set_grad: the tensor is [4,4] with strides [0,0]");
    mt_set_grad(x, recorded);
    mtt_failed(MT_ERR_ARGUMENT, "set_grad", "requires grad itself", "mt_detach");
    assert_null(mt_grad(x));
    assert_int_equal(mt_storage_of(x).category, MT_PARAMETER);
    MT_AUTO mt_tensor *own = mtt_made(mt_contiguous(expanded)), *before = numbers();
    mtt_ok(mt_set_grad(x, own));
    MT_AUTO mt_tensor *sum = mtt_made(mt_sum_all(x));
    mtt_ok(mt_backward(sum));
    MT_AUTO mt_tensor *twice = mtt_made(mt_full(device, MT_F32, MT_SHAPE(SIDE, SIDE), 2));
    assert_true(mtt_same_bits(mt_grad(x), twice));
    assert_true(mtt_same_bits(x, before));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        mtt_test(tensor_copied_onto_its_transpose_is_transposed),
        mtt_test(views_of_one_storage_are_copied_as_if_they_were_separate),
        mtt_test(a_copy_that_finds_no_memory_changes_nothing),
        mtt_test(an_expanded_tensor_can_only_be_filled),
        mtt_test(every_layout_in_which_elements_share_memory_is_refused),
        mtt_test(a_gradient_has_memory_of_its_own_and_no_history),
    };
    return cmocka_run_group_tests(tests, mtt_open_device, mtt_close_device);
}

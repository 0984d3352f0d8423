/* Several roots in one backward, and gradients of given inputs, which do not change the leaves. */
#include <stdlib.h>
#include <string.h>
#include "mtt_fixture.h"

#define LIST(...)                                                                                  \
    (mt_tensor *const[]) { __VA_ARGS__ }

static mt_tensor *leaf(void) { return mtt_leaf(2, (float[]){1, 2}); }

static mt_tensor *ones(void) { return mtt_made(mt_full(device, MT_F32, MT_SHAPE(2), 1)); }

static void expect(mt_tensor *t, double first, double last)
{
    double *values = mtt_doubles(mtt_made(t));
    assert_non_null(values);
    assert_true(values[0] == first && values[mt_numel(t) - 1] == last);
    free(values);
}

/* mt_gradients, where a root of several elements gets a gradient of ones. */
static mt_status gradients(int n_roots, mt_tensor *const *roots, int n_inputs,
                           mt_tensor *const *inputs, mt_tensor **out)
{
    MT_AUTO mt_tensor *one = ones();
    mt_tensor *first[8] = {0};
    for (int i = 0; i < n_roots; i++) first[i] = mt_numel(roots[i]) == 1 ? NULL : one;
    return mt_gradients(
        &(mt_gradients_options){n_roots, roots, first, n_inputs, inputs, .retain_graph = true},
        out);
}

static void release(int n, mt_tensor **list)
{
    for (int i = 0; i < n; i++) mt_release(list[i]);
}

/* ---- several roots ---- */

static mt_tensor *count(void *calls, mt_tensor *grad)
{
    ++*(int *)calls;
    return mt_retain(grad);
}

static void roots_that_share_nodes_run_them_once_with_the_sum(void **state)
{
    (void)state;
    int calls = 0, leaf_calls = 0;
    MT_AUTO mt_tensor *x = leaf();
    MT_AUTO mt_tensor *h = mtt_made(mt_mul(x, x));
    MT_AUTO mt_tensor *a = mtt_made(mt_sum_all(h)), *b = mtt_made(mt_mul_scalar(h, 3));
    assert_true(mt_add_grad_hook(h, count, &calls) && mt_add_grad_hook(x, count, &leaf_calls));
    MT_AUTO mt_tensor *one = ones();
    mtt_ok(mt_backward_from(2, LIST(a, b), LIST(NULL, one), false));
    assert_int_equal(calls, 1);
    assert_int_equal(leaf_calls, 1);
    expect(mt_grad(x), 8, 16); /* (1 + 3) 2x */
    assert_int_equal(mt_backward(a), MT_ERR_STATE);
    mtt_failed(MT_ERR_STATE, "no saved tensors any more");
}

static void a_root_may_be_listed_twice_depend_on_another_or_be_a_leaf(void **state)
{
    (void)state;
    int calls = 0;
    MT_AUTO mt_tensor *x = leaf();
    MT_AUTO mt_tensor *h = mtt_made(mt_mul(x, x));
    MT_AUTO mt_tensor *y = mtt_made(mt_sum_all(h));
    MT_AUTO mt_tensor *one = ones();
    mtt_ok(mt_backward_from(2, LIST(y, y), NULL, true));
    expect(mt_grad(x), 4, 8);
    mtt_ok(mt_set_grad(x, NULL));
    mtt_ok(mt_backward_from(2, LIST(h, y), LIST(one, NULL), true));
    expect(mt_grad(x), 4, 8);
    mtt_ok(mt_set_grad(x, NULL));
    mtt_ok(mt_backward_from(3, LIST(x, y, x), LIST(one, NULL, one), true));
    expect(mt_grad(x), 4, 6); /* 2x + 1 + 1 */
    /* Its hooks run once, with the sum. */
    assert_true(mt_add_grad_hook(x, count, &calls));
    mtt_ok(mt_backward_from(3, LIST(x, y, x), LIST(one, NULL, one), false));
    assert_int_equal(calls, 1);
    expect(mt_grad(x), 8, 12);
    expect(one, 1, 1);
}

static void invalid_lists_are_refused_before_anything_runs(void **state)
{
    (void)state;
    MT_AUTO mt_tensor *x = leaf();
    MT_AUTO mt_tensor *h = mtt_made(mt_mul(x, x));
    MT_AUTO mt_tensor *y = mtt_made(mt_sum_all(h));
    MT_AUTO mt_tensor *plain = ones(), *wide = mtt_made(mt_zeros(device, MT_F64, MT_SHAPE(2)));
    mt_tensor *out[2] = {x, x};
    mt_backward_from(0, LIST(y), NULL, false);
    mtt_failed(MT_ERR_ARGUMENT, "backward_from: 0 roots; need 1 or more");
    mt_backward_from(1, NULL, NULL, false);
    mtt_failed(MT_ERR_ARGUMENT, "backward_from: roots is NULL");
    mt_backward_from(2, LIST(y, NULL), NULL, false);
    mtt_failed(MT_ERR_ARGUMENT, "backward_from: roots[1] is NULL");
    mt_backward_from(2, LIST(y, h), NULL, false);
    mtt_failed(MT_ERR_ARGUMENT, "roots[1] is [2]; need one element, or a gradient");
    mt_backward_from(2, LIST(y, plain), NULL, false);
    mtt_failed(MT_ERR_STATE, "roots[1] does not require grad");
    mt_backward_from(2, LIST(y, h), LIST(NULL, wide), false);
    mtt_failed(MT_ERR_ARGUMENT, "gradients[1] is f64 [2]", "need f32 [2]");
    gradients(1, LIST(y), 2, LIST(x, plain), out);
    mtt_failed(MT_ERR_STATE, "gradients: inputs[1] does not require grad");
    assert_true(!out[0] && !out[1]);
    gradients(1, LIST(y), 2, LIST(NULL, x), out);
    mtt_failed(MT_ERR_ARGUMENT, "gradients: inputs[0] is NULL");
    gradients(1, LIST(y), 0, LIST(x), out);
    mtt_failed(MT_ERR_ARGUMENT, "gradients: 0 inputs; need 1 or more");
    assert_null(mt_grad(x));
    mtt_ok(mt_backward(y)); /* the graph is unchanged */
    expect(mt_grad(x), 2, 4);
}

static void a_list_of_gradients_is_freed_in_one_call(void **state)
{
    (void)state;
    MT_AUTO mt_tensor *x = leaf(), *z = leaf(), *none = leaf();
    size_t before = mtt_allocated(device);
    MT_AUTO mt_tensor *y = mtt_made(mt_mul(x, z)), *one = ones();
    mtt_ok(mt_backward_from(1, LIST(y), LIST(one), false));
    mt_zero_grads(3, LIST(x, NULL, z));
    mtt_failed(MT_ERR_ARGUMENT, "zero_grads: leaves[1] is NULL");
    mt_zero_grads(1, NULL);
    mtt_failed(MT_ERR_ARGUMENT, "zero_grads: leaves is NULL");
    mt_zero_grads(-1, LIST(x));
    mtt_failed(MT_ERR_ARGUMENT, "zero_grads: -1 leaves");
    assert_true(mt_grad(x) && mt_grad(z));
    mtt_ok(mt_zero_grads(3, LIST(x, none, z)));
    mtt_ok(mt_zero_grads(0, NULL));
    assert_true(!mt_grad(x) && !mt_grad(z) && !mt_grad(none));
    assert_int_equal(mtt_allocated(device), before + 2 * 512); /* y and `one` */
}

/* ---- gradients of inputs ---- */

/* y = sum(3 (2 x)), with a hook on each tensor that logs its letter and multiplies by 10. */
typedef struct chain {
    mt_tensor *x, *h, *k, *y;
    char log[16];
} chain;

#define LOGGED(letter)                                                                             \
    static mt_tensor *log_##letter(void *c, mt_tensor *grad)                                       \
    {                                                                                              \
        strcat(((chain *)c)->log, #letter);                                                        \
        return mt_mul_scalar(grad, 10);                                                            \
    }
LOGGED(x)
LOGGED(h)
LOGGED(k)
LOGGED(y)

static mt_status log_leaf(void *c, mt_tensor *x)
{
    (void)x;
    strcat(((chain *)c)->log, "!");
    return MT_OK;
}

static void build(chain *c)
{
    *c = (chain){.x = leaf()};
    c->h = mtt_made(mt_mul_scalar(c->x, 2));
    c->k = mtt_made(mt_mul_scalar(c->h, 3));
    c->y = mtt_made(mt_sum_all(c->k));
    assert_true(mt_add_grad_hook(c->x, log_x, c) && mt_add_grad_hook(c->h, log_h, c));
    assert_true(mt_add_grad_hook(c->k, log_k, c) && mt_add_grad_hook(c->y, log_y, c));
    assert_true(mt_add_leaf_hook(c->x, log_leaf, c));
}

static void release_chain(chain *c) { release(4, (mt_tensor *[]){c->x, c->h, c->k, c->y}); }

/* Values and order are those of torch.autograd.grad on the same chain, except for h and k if
 * backward continues beyond them: torch returns their gradients from before their own hooks. */
static void hooks_run_on_the_way_to_an_input_and_before_its_gradient_is_returned(void **state)
{
    (void)state;
    chain c;
    mt_tensor *out[4];
    build(&c);
    mtt_ok(gradients(1, LIST(c.y), 1, LIST(c.h), out));
    assert_string_equal(c.log, "ykh");
    expect(out[0], 3000, 3000);
    release(1, out);
    c.log[0] = 0;
    mtt_ok(gradients(1, LIST(c.y), 4, LIST(c.x, c.y, c.h, c.k), out));
    assert_string_equal(c.log, "ykhx"); /* leaf hooks do not run */
    expect(out[0], 60000, 60000);
    expect(out[1], 10, 10);
    expect(out[2], 3000, 3000);
    expect(out[3], 100, 100);
    release(4, out);
    c.log[0] = 0;
    mtt_ok(gradients(2, LIST(c.y, c.y), 1, LIST(c.x), out));
    assert_string_equal(c.log, "ykhx");
    expect(out[0], 120000, 120000);
    release(1, out);
    assert_null(mt_grad(c.x));
    c.log[0] = 0;
    mtt_ok(mt_backward(c.y));
    assert_string_equal(c.log, "ykhx!");
    release_chain(&c);
}

static void no_leaf_changes_and_an_input_that_no_root_depends_on_gives_null(void **state)
{
    (void)state;
    MT_AUTO mt_tensor *x = leaf(), *z = leaf(), *before = ones();
    MT_AUTO mt_tensor *p = mtt_made(mt_mul(x, z)), *q = mtt_made(mt_mul(z, z));
    MT_AUTO mt_tensor *y = mtt_made(mt_sum_all(p));
    mtt_ok(mt_set_grad(x, before));
    mt_tensor *out[4];
    mtt_ok(gradients(1, LIST(y), 4, LIST(q, x, z, p), out));
    assert_null(out[0]);
    expect(out[1], 1, 2);
    expect(out[2], 1, 2);
    expect(out[3], 1, 1);
    release(4, out);
    assert_ptr_equal(mt_grad(x), before);
    expect(before, 1, 1);
    assert_null(mt_grad(z));
    mtt_ok(gradients(1, LIST(y), 1, LIST(q), out));
    assert_null(out[0]);
}

static void a_root_may_be_an_input_or_depend_on_another_root(void **state)
{
    (void)state;
    MT_AUTO mt_tensor *x = leaf();
    MT_AUTO mt_tensor *h = mtt_made(mt_mul(x, x));
    MT_AUTO mt_tensor *y = mtt_made(mt_sum_all(h));
    mt_tensor *out[3];
    mtt_ok(gradients(3, LIST(y, h, x), 3, LIST(h, x, y), out));
    expect(out[0], 2, 2);
    expect(out[1], 5, 9); /* 2 2x + 1 */
    expect(out[2], 1, 1);
    release(3, out);
    mtt_ok(gradients(1, LIST(x), 1, LIST(x), out));
    expect(out[0], 1, 1);
    release(1, out);
}

/* Also if the gradient arrives as a view with stride 0, as the caller's tensor, or as one for two
 * inputs. */
static void each_result_is_row_major_with_a_storage_of_its_own(void **state)
{
    (void)state;
    MT_AUTO mt_tensor *x = leaf();
    MT_AUTO mt_tensor *h = mtt_made(mt_add_scalar(x, 0));
    MT_AUTO mt_tensor *y = mtt_made(mt_sum_all(h)), *one = ones();
    size_t before = mtt_allocated_as(device, MT_GRADIENT);
    mt_tensor *out[3];
    mt_gradients_options o = {2, LIST(y, h), LIST(NULL, one), 3, LIST(x, h, x), .retain_graph = 1};
    mtt_ok(mt_gradients(&o, out));
    for (int i = 0; i < 3; i++) {
        expect(out[i], 2, 2);
        assert_true(mt_is_contiguous(out[i]));
        assert_true(mt_storage_of(out[i]).bytes == 2 * sizeof(float));
        assert_int_equal(mt_storage_of(out[i]).category, MT_GRADIENT);
        assert_false(mt_requires_grad(out[i]));
        for (int j = 0; j < i; j++) assert_false(mt_same_storage(out[i], out[j]));
        assert_false(mt_same_storage(out[i], one));
    }
    assert_int_equal(mtt_allocated_as(device, MT_GRADIENT), before + 3 * 512);
    mtt_ok(mt_set_grad(x, out[0]));
    release(3, out);
}

static void count_kept(void *total, const mt_node_info *node) { *(int *)total += node->n_saved; }

static int kept_under(mt_tensor *root)
{
    int total = 0;
    mtt_ok(mt_visit_tape(root, count_kept, &total));
    return total;
}

/* torch.autograd.grad does the same. */
static void only_nodes_on_a_way_to_an_input_run_and_free_what_they_keep(void **state)
{
    (void)state;
    MT_AUTO mt_tensor *a = leaf(), *b = leaf();
    MT_AUTO mt_tensor *p = mtt_made(mt_mul(a, a)), *q = mtt_made(mt_mul(b, b));
    MT_AUTO mt_tensor *product = mtt_made(mt_mul(p, q)), *y = mtt_made(mt_sum_all(product));
    assert_int_equal(kept_under(y), 6);
    mt_tensor *out[1];
    mt_gradients_options by_p = {1, &y, NULL, 1, &p}, by_a = {1, &y, NULL, 1, &a};
    mtt_ok(mt_gradients(&by_p, out)); /* p's own node does not run */
    expect(out[0], 1, 4);
    release(1, out);
    assert_int_equal(kept_under(p), 2);
    assert_int_equal(kept_under(q), 2);
    assert_int_equal(kept_under(y), 4);
    assert_int_equal(mt_gradients(&by_a, out), MT_ERR_STATE);
    mtt_failed(MT_ERR_STATE, "mul has no saved tensors any more");
    assert_null(out[0]);
    MT_AUTO mt_tensor *of_p = mtt_made(mt_sum_all(p)), *of_q = mtt_made(mt_sum_all(q));
    mtt_ok(mt_backward_from(2, LIST(of_p, of_q), NULL, false));
    expect(mt_grad(a), 2, 4);
    expect(mt_grad(b), 2, 4);
}

/* The parts of a split have one node. As in torch, hooks of both parts run; the result is the
 * gradient of the given part. */
static void an_input_may_be_one_of_several_outputs_of_a_node(void **state)
{
    (void)state;
    int u_calls = 0, v_calls = 0;
    mt_tensor *part[2], *out[3];
    MT_AUTO mt_tensor *x = leaf();
    MT_AUTO mt_tensor *h = mtt_made(mt_mul_scalar(x, 1));
    mtt_ok(mt_split(h, 0, 2, (int64_t[]){1, 1}, part));
    MT_AUTO mt_tensor *u = part[0], *v = part[1], *uv = mtt_made(mt_mul(u, v));
    assert_true(mt_add_grad_hook(u, count, &u_calls) && mt_add_grad_hook(v, count, &v_calls));
    mtt_ok(gradients(1, LIST(uv), 1, LIST(u), out));
    expect(out[0], 2, 2);
    release(1, out);
    assert_true(u_calls == 1 && v_calls == 1);
    mtt_ok(gradients(1, LIST(u), 3, LIST(u, v, x), out));
    expect(out[0], 1, 1);
    assert_null(out[1]);
    expect(out[2], 1, 0);
    release(3, out);
}

/* ---- failures ---- */

static mt_tensor *refuse(void *user, mt_tensor *grad)
{
    (void)grad;
    return *(bool *)user ? NULL : mt_retain(grad);
}

static void a_failure_on_the_way_changes_no_gradient_and_leaks_nothing(void **state)
{
    (void)state;
    bool refused = true;
    MT_AUTO mt_tensor *x = leaf(), *before = ones();
    MT_AUTO mt_tensor *h = mtt_made(mt_mul(x, x));
    MT_AUTO mt_tensor *k = mtt_made(mt_mul(h, h)), *l = mtt_made(mt_mul_scalar(x, 2));
    MT_AUTO mt_tensor *y = mtt_made(mt_sum_all(k));
    mtt_ok(mt_set_grad(x, before));
    assert_true(mt_add_grad_hook(h, refuse, &refused));
    size_t bytes = mtt_allocated(device);
    mt_tensor *out[3];
    /* When h's hook fails, l's part has arrived at x and k's gradient is known. */
    assert_int_not_equal(gradients(2, LIST(y, l), 3, LIST(k, x, h), out), MT_OK);
    mtt_failed(MT_ERR_STATE, "a gradient hook failed");
    assert_true(!out[0] && !out[1] && !out[2]);
    assert_ptr_equal(mt_grad(x), before);
    expect(before, 1, 1);
    assert_int_equal(mtt_allocated(device), bytes);
    refused = false;
    mtt_ok(gradients(2, LIST(y, l), 3, LIST(k, x, h), out));
    expect(out[0], 1, 1);
    expect(out[1], 4 + 2, 32 + 2);
    expect(out[2], 2, 8);
    release(3, out);
}

/* ---- a backward within a backward ---- */

/* A hook that runs mt_gradients or mt_backward through nodes for which the outer backward already
 * holds parts of gradients. */
typedef struct inner_backward {
    mt_tensor *root, *input, *found;
    bool retain;
    mt_status status;
    mt_tensor *around; /* counts the nodes under it */
    int n_nodes;
} inner_backward;

static void count_node(void *n, const mt_node_info *node)
{
    (void)node;
    ++*(int *)n;
}

static mt_tensor *run_inner(void *user, mt_tensor *grad)
{
    inner_backward *a = user;
    mt_gradients_options o = {1, &a->root, NULL, 1, &a->input, .retain_graph = true};
    if (a->around) mtt_ok(mt_visit_tape(a->around, count_node, &a->n_nodes));
    a->status = a->input ? mt_gradients(&o, &a->found)
                         : mt_backward_with(a->root, &(mt_backward_options){NULL, a->retain});
    return mt_retain(grad);
}

/* y = sum(k) + sum(h): when k's hook runs, h's node already holds a part of its gradient. */
static void a_backward_in_a_hook_and_the_outer_one_do_not_mix(void **state)
{
    (void)state;
    for (int inner = 0; inner < 3; inner++)
        for (int outer = 0; outer < 2; outer++) {
            MT_AUTO mt_tensor *x = leaf();
            MT_AUTO mt_tensor *h = mtt_made(mt_mul(x, x)), *of_h = mtt_made(mt_sum_all(h));
            MT_AUTO mt_tensor *k = mtt_made(mt_mul_scalar(h, 3)), *of_k = mtt_made(mt_sum_all(k));
            MT_AUTO mt_tensor *y = mtt_made(mt_add(of_h, of_k));
            inner_backward a = {.root = of_h,
                                .input = inner == 0   ? x
                                         : inner == 1 ? h
                                                      : NULL,
                                .retain = 1};
            a.around = y;
            int calls = 0;
            assert_true(mt_add_grad_hook(k, run_inner, &a) && mt_add_grad_hook(x, count, &calls));
            mt_tensor *out[1] = {0};
            mtt_ok(outer ? gradients(1, LIST(y), 1, LIST(x), out) : mt_backward(y));
            mtt_ok(a.status);
            assert_int_equal(a.n_nodes, 5);
            bool added = inner == 2; /* the inner backward adds 2x to x's gradient */
            if (inner == 0) expect(a.found, 2, 4);
            if (inner == 1) expect(a.found, 1, 1);
            if (outer) expect(out[0], 8, 16);
            if (!outer) expect(mt_grad(x), added ? 10 : 8, added ? 20 : 16);
            if (outer && added) expect(mt_grad(x), 2, 4);
            if (outer && !added) assert_null(mt_grad(x));
            assert_int_equal(calls, inner == 1 ? 1 : 2); /* once for each backward that reaches x */
            mt_release(a.found);
            mt_release(out[0]);
        }
}

static void a_backward_in_a_hook_frees_what_it_does_not_retain(void **state)
{
    (void)state;
    MT_AUTO mt_tensor *x = leaf();
    MT_AUTO mt_tensor *h = mtt_made(mt_mul(x, x)), *of_h = mtt_made(mt_sum_all(h));
    MT_AUTO mt_tensor *k = mtt_made(mt_mul_scalar(h, 3)), *of_k = mtt_made(mt_sum_all(k));
    MT_AUTO mt_tensor *y = mtt_made(mt_add(of_h, of_k));
    inner_backward a = {.root = of_h};
    assert_true(mt_add_grad_hook(k, run_inner, &a));
    assert_int_equal(mt_backward(y), MT_ERR_STATE);
    mtt_failed(MT_ERR_STATE, "mul has no saved tensors any more");
    mtt_ok(a.status);
    expect(mt_grad(x), 2, 4);
}

/* ---- on meta ---- */

static void on_meta_gradients_have_the_same_shapes_and_bytes(void **state)
{
    (void)state;
    mt_device *meta = mt_device_open("meta");
    mt_tensor *x = mtt_made(mt_zeros(meta, MT_BF16, MT_SHAPE(3, 5)));
    mtt_ok(mt_set_requires_grad(x, true));
    mt_tensor *h = mtt_made(mt_gelu(x)), *y = mtt_made(mt_sum_all(h)), *out[2];
    mtt_ok(gradients(1, LIST(y), 2, LIST(h, x), out));
    for (int i = 0; i < 2; i++) {
        assert_true(mt_dtype_of(out[i]) == MT_BF16 && mt_rank(out[i]) == 2);
        assert_true(mt_storage_of(out[i]).bytes == 3 * 5 * 2);
    }
    assert_null(mt_grad(x));
    release(5, (mt_tensor *[]){out[0], out[1], x, h, y});
    assert_int_equal(mtt_allocated(meta), 0);
    mt_device_release(meta);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        mtt_test(roots_that_share_nodes_run_them_once_with_the_sum),
        mtt_test(a_root_may_be_listed_twice_depend_on_another_or_be_a_leaf),
        mtt_test(invalid_lists_are_refused_before_anything_runs),
        mtt_test(a_list_of_gradients_is_freed_in_one_call),
        mtt_test(hooks_run_on_the_way_to_an_input_and_before_its_gradient_is_returned),
        mtt_test(no_leaf_changes_and_an_input_that_no_root_depends_on_gives_null),
        mtt_test(a_root_may_be_an_input_or_depend_on_another_root),
        mtt_test(each_result_is_row_major_with_a_storage_of_its_own),
        mtt_test(only_nodes_on_a_way_to_an_input_run_and_free_what_they_keep),
        mtt_test(an_input_may_be_one_of_several_outputs_of_a_node),
        mtt_test(a_failure_on_the_way_changes_no_gradient_and_leaks_nothing),
        mtt_test(a_backward_in_a_hook_and_the_outer_one_do_not_mix),
        mtt_test(a_backward_in_a_hook_frees_what_it_does_not_retain),
        mtt_test(on_meta_gradients_have_the_same_shapes_and_bytes),
    };
    return cmocka_run_group_tests(tests, mtt_open_device, mtt_close_device);
}

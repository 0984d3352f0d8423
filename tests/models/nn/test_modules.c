/* The tree of modules, built through the public functions. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/base.h"
#include "mtt.h"
#include "mtt_fixture.h"

static mt_tensor *ones(int64_t n) { return mt_full(device, MT_F32, MT_SHAPE(n), 1); }

/* root.a, root.h.3.b.c, root.h.3.b.d, root.z.e */
static mt_module *sample(void)
{
    mt_module *root = mt_module_new("root", mtt_pass, NULL, NULL);
    mt_module *third =
        mt_module_add_child(root, "h.3", mt_module_new("block", mtt_pass, NULL, NULL));
    mt_module *b = mt_module_add_child(third, "b", mt_module_new("part", mtt_pass, NULL, NULL));
    mt_module *z = mt_module_add_child(root, "z", mt_module_new("part", mtt_pass, NULL, NULL));
    mtt_made(mt_module_add_param(b, "c", ones(3)));
    mtt_made(mt_module_add_param(b, "d", ones(4)));
    mtt_made(mt_module_add_param(z, "e", ones(5)));
    mtt_made(mt_module_add_param(root, "a", ones(2)));
    return root;
}

static void assert_params(mt_module *m, const char *const *names)
{
    const mt_named_tensor *list;
    size_t n, i = 0;
    mtt_ok(mt_module_params(m, &list, &n));
    for (; names[i]; i++) {
        assert_true(i < n);
        assert_string_equal(list[i].name, names[i]);
    }
    assert_int_equal(n, i);
}

static void parameters_are_listed_with_their_paths_and_parents_first(void **state)
{
    (void)state;
    mt_module *root = sample();
    assert_params(root, (const char *const[]){"a", "h.3.b.c", "h.3.b.d", "z.e", NULL});
    assert_params(mt_module_find(root, "h.3"), (const char *const[]){"b.c", "b.d", NULL});
    uint64_t n_elements, n_bytes;
    mtt_ok(mt_module_size(root, &n_elements, &n_bytes));
    assert_int_equal(n_elements, 2 + 3 + 4 + 5);
    assert_int_equal(n_bytes, 4 * (2 + 3 + 4 + 5));
    mt_module_free(root);
}

static void parameters_added_later_appear_in_the_list(void **state)
{
    (void)state;
    mt_module *root = sample();
    assert_params(root, (const char *const[]){"a", "h.3.b.c", "h.3.b.d", "z.e", NULL});
    mtt_made(mt_module_add_param(mt_module_find(root, "h.3.b"), "late", ones(1)));
    assert_params(root,
                  (const char *const[]){"a", "h.3.b.c", "h.3.b.d", "h.3.b.late", "z.e", NULL});
    mt_module_free(root);
}

static void a_tensor_held_twice_is_listed_once(void **state)
{
    (void)state;
    mt_module *root = sample();
    mt_tensor *a = mt_module_param(root, "a");
    mtt_made(mt_module_add_param(mt_module_find(root, "z"), "tied", mt_retain(a)));
    assert_params(root, (const char *const[]){"a", "h.3.b.c", "h.3.b.d", "z.e", NULL});
    mt_module_free(root);
}

static void a_parameter_requires_grad_and_is_counted_as_parameter(void **state)
{
    (void)state;
    mt_module *root = mt_module_new("root", mtt_pass, NULL, NULL);
    mt_tensor *w = mtt_made(mt_module_add_param(root, "w", ones(7)));
    assert_true(mt_requires_grad(w));
    assert_int_equal(mt_storage_of(w).category, MT_PARAMETER);
    mt_tensor *index =
        mtt_made(mt_module_add_param(root, "index", mt_zeros(device, MT_I64, MT_SHAPE(2))));
    assert_false(mt_requires_grad(index));
    mt_module_free(root);
}

static void bad_and_duplicate_names_are_refused_and_the_argument_is_freed(void **state)
{
    (void)state;
    mt_module *root = sample();
    mt_mem_stats before, after;
    mt_mem_get_stats(device, &before);
    static const char *const names[] = {"a", "z", "", ".x", "x.", NULL};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        assert_null(mt_module_add_param(root, names[i], ones(9)));
        mtt_failed(MT_ERR_ARGUMENT, "root", names[i] ? names[i] : "the name is NULL");
        mt_module *child = mt_module_new("part", mtt_pass, NULL, NULL);
        mtt_made(mt_module_add_param(child, "w", ones(9)));
        assert_null(mt_module_add_child(root, names[i], child));
        mtt_failed(MT_ERR_ARGUMENT, "root", names[i] ? names[i] : "the name is NULL");
    }
    mt_mem_get_stats(device, &after);
    assert_int_equal(after.allocated.current, before.allocated.current);
    mt_module_free(root);
}

static void a_module_has_one_parent(void **state)
{
    (void)state;
    mt_module *root = sample();
    mt_module *z = mt_module_child(root, "z");
    assert_null(mt_module_add_child(mt_module_find(root, "h.3"), "again", z));
    mtt_failed(MT_ERR_ARGUMENT, "belongs to a module");
    assert_null(mt_module_add_child(z, "loop", root));
    mtt_failed(MT_ERR_ARGUMENT, "belongs to a module");
    assert_ptr_equal(mt_module_child(root, "z"), z);
    mt_module_free(root);
}

static void a_replacement_takes_the_childs_place_and_name(void **state)
{
    (void)state;
    mt_module *root = sample();
    mt_module *other = mt_module_new("other", mtt_pass, NULL, NULL);
    mtt_made(mt_module_add_param(other, "f", ones(1)));
    mt_module *old = mt_module_swap_child(root, "h.3", other);
    assert_string_equal(mt_module_name(old), "block");
    assert_string_equal(mt_module_name(other), "h.3");
    assert_params(root, (const char *const[]){"a", "h.3.f", "z.e", NULL});
    /* the old child may become a child of the new one, as adapters do */
    assert_non_null(mt_module_add_child(other, "base", old));
    assert_params(root,
                  (const char *const[]){"a", "h.3.f", "h.3.base.b.c", "h.3.base.b.d", "z.e", NULL});
    assert_null(mt_module_swap_child(root, "nobody", mt_module_new("part", mtt_pass, NULL, NULL)));
    mtt_failed(MT_ERR_ARGUMENT, "nobody");
    mt_module_free(root);
}

static void modules_are_found_by_path_even_if_names_have_dots(void **state)
{
    (void)state;
    mt_module *root = sample();
    assert_ptr_equal(mt_module_find(root, ""), root);
    assert_string_equal(mt_module_kind(mt_module_find(root, "h.3")), "block");
    assert_ptr_equal(mt_module_find(root, "h.3.b"),
                     mt_module_child(mt_module_child(root, "h.3"), "b"));
    assert_null(mt_module_find(root, "h"));
    assert_null(mt_module_find(root, "h.33"));
    assert_null(mt_module_find(root, "h.3.b.c")); /* a parameter, not a module */
    assert_ptr_equal(mt_module_child_at(root, 1), mt_module_child(root, "z"));
    assert_null(mt_module_child_at(root, 2));
    mt_module_free(root);
}

/* Records the scope that it runs in, then runs its children. */
static mt_tensor *record_scope(mt_module *self, mt_tensor *x)
{
    char *seen = mt_module_user(self);
    strcpy(seen, mt_scope_path());
    mt_tensor *h = mt_retain(x);
    for (size_t i = 0; mt_module_child_at(self, i); i++)
        mt_set(&h, mt_forward(mt_module_child_at(self, i), h));
    return h;
}

static void forward_runs_in_the_scope_of_the_modules_names(void **state)
{
    (void)state;
    char outer[64], inner[64];
    mt_module *root = mt_module_new("net", record_scope, outer, NULL);
    mt_module_add_child(root, "h.0", mt_module_new("part", record_scope, inner, NULL));
    MT_AUTO mt_tensor *x = ones(1);
    MT_AUTO mt_tensor *y = mtt_made(mt_forward(root, x));
    assert_ptr_equal(y, x);
    assert_string_equal(outer, "net");
    assert_string_equal(inner, "net.h.0");
    assert_string_equal(mt_scope_path(), "");
    mt_module_free(root);
}

static void forward_again_in_other_scopes_or_under_other_names_has_other_paths(void **state)
{
    (void)state;
    /* each differs from the one before in its name, in what is around it or in where a dot is */
    static const char *const around[] = {"", "", "a", "b", "ab", "a", "a.b", "", "b"};
    char seen[64], expected[64];
    mt_module *parts[2];
    mt_module *root = mt_module_new("net", mtt_pass, NULL, NULL);
    for (int i = 0; i < 2; i++) parts[i] = mt_module_new("part", record_scope, seen, NULL);
    mt_module_add_child(root, "c", parts[0]);
    MT_AUTO mt_tensor *x = ones(1);
    for (size_t i = 0; i < 2 * sizeof around / sizeof *around; i++) {
        const char *outer = around[i / 2];
        if (i % 2) parts[1] = mt_module_swap_child(root, "c", parts[1]);
        mt_module *now = mt_module_child(root, "c");
        assert_int_equal(mt_scope_push(outer), MT_OK);
        MT_AUTO mt_tensor *y = mtt_made(mt_forward(now, x));
        snprintf(expected, sizeof expected, "%s%sc", outer, *outer ? "." : "");
        assert_string_equal(seen, expected);
        MT_AUTO mt_tensor *z = mtt_made(mt_forward(parts[1], x)); /* outside: by its kind */
        snprintf(expected, sizeof expected, "%s%spart", outer, *outer ? "." : "");
        assert_string_equal(seen, expected);
        mt_scope_pop();
    }
    mt_module_free(parts[1]);
    mt_module_free(root);
}

static mt_tensor *run_missing(mt_module *self, mt_tensor *x)
{
    return mt_forward_child(self, "missing", x);
}

static void a_failing_forward_leaves_the_scope_and_null_passes_through(void **state)
{
    (void)state;
    mt_module *root = mt_module_new("net", run_missing, NULL, NULL);
    MT_AUTO mt_tensor *x = ones(1);
    assert_null(mt_forward(root, x));
    assert_string_equal(mt_scope_path(), "");
    mtt_failed(MT_ERR_ARGUMENT, "net", "\"missing\"");
    assert_null(mt_forward(root, NULL));
    mtt_failed(MT_ERR_ARGUMENT, "forward: x is NULL");
    assert_null(mt_forward(NULL, x));
    mtt_failed(MT_ERR_ARGUMENT, "NULL");
    mt_module_free(root);
}

static void count_end(void *user) { ++*(int *)user; }

static void user_data_is_freed_with_the_module_or_if_making_it_fails(void **state)
{
    (void)state;
    int ended = 0;
    mt_module_free(mt_module_new("m", mtt_pass, &ended, count_end));
    assert_int_equal(ended, 1);
    assert_null(mt_module_new("", mtt_pass, &ended, count_end));
    assert_int_equal(ended, 2);
    mt_clear_error();
    mti_fail_nth_alloc(1);
    assert_null(mt_module_new("m", mtt_pass, &ended, count_end));
    mti_fail_nth_alloc(0);
    assert_int_equal(ended, 3);
    mtt_failed(MT_ERR_MEMORY, "");
    mt_module_free(NULL);
}

static void freezing_stops_gradients_and_frees_existing_ones(void **state)
{
    (void)state;
    mt_module *fc = mt_linear_new(device, MT_F32, 3, 2, true, 0);
    mt_tensor *w = mt_module_param(fc, "weight");
    MT_AUTO mt_tensor *x = mt_full(device, MT_F32, MT_SHAPE(4, 3), 1);
    MT_AUTO mt_tensor *loss = mt_forward(fc, x);
    mtt_ok(mt_set(&loss, mt_sum_all(loss)));
    mtt_ok(mt_backward(loss));
    assert_non_null(mt_grad(w));
    mtt_ok(mt_module_freeze(fc, true));
    assert_null(mt_grad(w));
    assert_false(mt_requires_grad(w));
    mtt_ok(mt_set(&loss, mt_forward(fc, x)));
    assert_false(mt_requires_grad(loss));
    mtt_ok(mt_module_freeze(fc, false));
    mtt_ok(mt_set(&loss, mt_forward(fc, x)));
    mtt_ok(mt_set(&loss, mt_sum_all(loss)));
    mtt_ok(mt_backward(loss));
    assert_non_null(mt_grad(w));
    mtt_ok(mt_module_zero_grad(fc));
    assert_null(mt_grad(w));
    mt_module_free(fc);
}

static void dropout_acts_in_training_only(void **state)
{
    (void)state;
    mt_module *root = mt_module_new("net", mtt_pass, NULL, NULL);
    mt_module *drop = mt_module_add_child(root, "drop", mt_dropout_new(0.5));
    MT_AUTO mt_tensor *x = ones(64);
    MT_AUTO mt_tensor *y = mt_forward(drop, x);
    assert_false(mtt_same_bits(x, y));
    mt_module_set_training(root, false);
    assert_false(mt_module_training(drop));
    mtt_ok(mt_set(&y, mt_forward(drop, x)));
    assert_true(mtt_same_bits(x, y));
    mt_module_free(root);
}

/* With a linear search for each name this would take an hour, and the test would time out. */
static void a_module_with_very_many_children_is_made_and_searched_in_linear_time(void **state)
{
    (void)state;
    const int n = 300000;
    char name[32];
    mt_module *root = mt_module_new("root", mtt_pass, NULL, NULL);
    for (int i = 0; i < n; i++) {
        snprintf(name, sizeof name, "h.%d", i);
        mt_module *child = mt_module_new("part", mtt_pass, NULL, NULL);
        assert_ptr_equal(mt_module_add_child(root, name, child), child);
    }
    for (int i = n - 1; i >= 0; i--) {
        snprintf(name, sizeof name, "h.%d", i);
        assert_ptr_equal(mt_module_child(root, name), mt_module_child_at(root, (size_t)i));
        assert_ptr_equal(mt_module_find(root, name), mt_module_child_at(root, (size_t)i));
    }
    assert_null(mt_module_child(root, "h.300000"));
    assert_null(mt_module_add_child(root, "h.77", mt_module_new("part", mtt_pass, NULL, NULL)));
    mtt_failed(MT_ERR_ARGUMENT, "\"h.77\" is taken");
    mt_module_free(root);
}

static void layers_refuse_invalid_arguments(void **state)
{
    (void)state;
    assert_null(mt_linear_new(device, MT_F32, 0, 2, true, 0));
    mtt_failed(MT_ERR_ARGUMENT, "linear", "0 -> 2");
    assert_null(mt_linear_new(device, MT_I64, 2, 2, true, 0));
    mtt_failed(MT_ERR_ARGUMENT, "i64");
    assert_null(mt_layer_norm_new(device, MT_F32, 4, true, -1));
    mtt_failed(MT_ERR_ARGUMENT, "layer_norm", "eps -1");
    assert_null(mt_embedding_new(device, MT_F32, -1, 2, 0));
    mtt_failed(MT_ERR_ARGUMENT, "embedding", "-1 rows");
    assert_null(mt_activation_new(MT_ACT_GELU, true));
    mtt_failed(MT_ERR_ARGUMENT, "gelu", "in place");
    assert_null(mt_activation_new(MT_ACT_COUNT, false));
    mtt_failed(MT_ERR_ARGUMENT, "activation");
    assert_null(mt_dropout_new(1));
    mtt_failed(MT_ERR_ARGUMENT, "p is 1");
}

static void need_all(mt_tensor *t, const double *want, double tolerance)
{
    MT_AUTO mt_tensor *made = mtt_made(t);
    double *got = mtt_doubles(made);
    for (int64_t i = 0; i < mt_numel(made); i++)
        if (!(fabs(got[i] - want[i]) <= tolerance * (1 + fabs(want[i]))))
            fail_msg("element %lld is %.9g, want %.9g", (long long)i, got[i], want[i]);
    free(got);
}

/* y = x w^T + b, and the gradients of the sum of its elements. */
static void check_linear(mt_dtype dtype, int64_t rows, int64_t in, int64_t out)
{
    double y[64] = {0}, dx[64] = {0}, dw[64] = {0}, db[8], tolerance = 0x1p-6;
    if (dtype == MT_F32 || dtype == MT_F64) tolerance = 0x1p-20;
    mt_module *m = mt_linear_new(device, dtype, in, out, true, 0);
    assert_non_null(m);
    mt_tensor *bias = mt_module_param(m, "bias"), *weight = mt_module_param(m, "weight");
    MT_AUTO mt_tensor *one = mtt_made(mt_full(device, dtype, MT_SHAPE(out), 1));
    char ones[64];
    size_t n_bytes = (size_t)out * mt_dtype_size(dtype);
    mtt_ok(mt_to_host(one, ones, n_bytes));
    mtt_ok(mt_copy_from_host(bias, ones, n_bytes));
    MT_AUTO mt_tensor *x = mtt_made(mtt_random(device, dtype, MT_SHAPE(rows, in), 3, -1, 1));
    mtt_ok(mt_set_requires_grad(x, true));
    double *xs = mtt_doubles(x), *ws = mtt_doubles(weight);
    for (int64_t r = 0; r < rows; r++)
        for (int64_t o = 0; o < out; o++) {
            y[r * out + o] = 1;
            for (int64_t i = 0; i < in; i++) {
                y[r * out + o] += xs[r * in + i] * ws[o * in + i];
                dx[r * in + i] += ws[o * in + i], dw[o * in + i] += xs[r * in + i];
            }
        }
    for (int64_t o = 0; o < out; o++) db[o] = (double)rows;
    MT_AUTO mt_tensor *got = mtt_made(mt_forward(m, x));
    MT_AUTO mt_tensor *sum = mtt_made(mt_sum(got, 0, NULL, false));
    mtt_ok(mt_backward(sum));
    need_all(mt_retain(got), y, tolerance);
    need_all(mt_retain(mt_grad(x)), dx, tolerance);
    need_all(mt_retain(mt_grad(weight)), dw, tolerance);
    need_all(mt_retain(mt_grad(bias)), db, tolerance);
    free(xs), free(ws);
    mt_module_free(m);
}

/* Products of a row, a column or a number: a GPU's library refuses some of them with a bias. */
static void a_linear_layer_may_be_one_wide_and_have_one_row(void **state)
{
    (void)state;
    static const mt_dtype dtypes[] = {MT_F32, MT_F64, MT_BF16, MT_F16};
    for (int t = 0; t < 4; t++)
        for (int64_t rows = 1; rows <= 8; rows += 7)
            for (int64_t in = 1; in <= 8; in += 7)
                for (int64_t out = 1; out <= 8; out += 7) check_linear(dtypes[t], rows, in, out);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        mtt_test(parameters_are_listed_with_their_paths_and_parents_first),
        mtt_test(parameters_added_later_appear_in_the_list),
        mtt_test(a_tensor_held_twice_is_listed_once),
        mtt_test(a_parameter_requires_grad_and_is_counted_as_parameter),
        mtt_test(bad_and_duplicate_names_are_refused_and_the_argument_is_freed),
        mtt_test(a_module_has_one_parent),
        mtt_test(a_replacement_takes_the_childs_place_and_name),
        mtt_test(modules_are_found_by_path_even_if_names_have_dots),
        mtt_test(forward_runs_in_the_scope_of_the_modules_names),
        mtt_test(forward_again_in_other_scopes_or_under_other_names_has_other_paths),
        mtt_test(a_failing_forward_leaves_the_scope_and_null_passes_through),
        mtt_test(user_data_is_freed_with_the_module_or_if_making_it_fails),
        mtt_test(freezing_stops_gradients_and_frees_existing_ones),
        mtt_test(dropout_acts_in_training_only),
        mtt_test(a_module_with_very_many_children_is_made_and_searched_in_linear_time),
        mtt_test(a_linear_layer_may_be_one_wide_and_have_one_row),
        mtt_test(layers_refuse_invalid_arguments),
    };
    return cmocka_run_group_tests(tests, mtt_open_device, mtt_close_device);
}

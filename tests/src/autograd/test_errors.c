/* Errors that the caller does not clear, and what hooks may return. */
#include <string.h>
#include "base/base.h"
#include "memtape/checkpoint.h"
#include "mtt_fixture.h"

static mt_tensor *leaf(void) { return mtt_leaf(4, (float[]){1, 2, 3, 4}); }

/* ---- failures that follow each other ---- */

static mt_tensor *x, *ints;

static mt_status bad_reshape(void) { return mt_reshape(x, MT_SHAPE(5)) ? MT_OK : mt_last_status(); }
static mt_status bad_matmul(void) { return mt_matmul(x, ints) ? MT_OK : mt_last_status(); }
static mt_status bad_zeros(void)
{
    return mt_zeros(device, MT_F32, 9, NULL) ? MT_OK : mt_last_status();
}
static mt_status bad_device(void) { return mt_device_open("abacus") ? MT_OK : mt_last_status(); }
static mt_status bad_copy(void) { return mt_copy(x, ints); }
static mt_status bad_backward(void) { return mt_backward(ints); }
static mt_status bad_pop(void) { return mt_pop_saved_hooks(); }
static mt_status bad_op_pop(void) { return mt_pop_op_hooks(); }
static mt_status bad_hook(void) { return mt_remove_hook(x, 7); }
static mt_status bad_grad(void) { return mt_set_requires_grad(ints, true); }
static mt_status bad_item(void) { return mt_item(x) == 0 ? MT_OK : mt_last_status(); }
static mt_status bad_scope(void) { return mt_scope_push(NULL); }
static mt_status bad_inplace(void) { return mt_relu_inplace(x); }
static mt_status no_memory(void)
{
    mti_fail_nth_alloc(1);
    mt_tensor *t = mt_zeros(device, MT_F32, 0, NULL);
    mti_fail_nth_alloc(0);
    return t ? MT_OK : mt_last_status();
}

static mt_status failing_function(void *user, int n_in, mt_tensor *const *in, int n_out,
                                  mt_tensor **out)
{
    (void)user, (void)n_in, (void)in, (void)n_out, (void)out;
    return MT_ERR_IO;
}
static mt_status bad_checkpoint(void)
{
    mt_tensor *out;
    return mt_checkpoint(failing_function, NULL, NULL, 1, &x, 1, &out, NULL);
}

static const struct {
    mt_status (*call)(void);
    mt_status status;
    const char *word;
} failures[] = {
    {bad_reshape, MT_ERR_ARGUMENT, "reshape"},    {bad_matmul, MT_ERR_ARGUMENT, "matmul"},
    {bad_zeros, MT_ERR_ARGUMENT, "full: rank 9"}, {bad_device, MT_ERR_UNSUPPORTED, "abacus"},
    {bad_copy, MT_ERR_ARGUMENT, "copy"},          {bad_backward, MT_ERR_STATE, "backward"},
    {bad_pop, MT_ERR_STATE, "pop_saved_hooks"},   {bad_op_pop, MT_ERR_STATE, "pop_op_hooks"},
    {bad_hook, MT_ERR_ARGUMENT, "remove_hook"},   {bad_grad, MT_ERR_ARGUMENT, "set_requires_grad"},
    {bad_item, MT_ERR_ARGUMENT, "item"},          {bad_scope, MT_ERR_ARGUMENT, "scope_push"},
    {bad_inplace, MT_ERR_STATE, "relu"},          {no_memory, MT_ERR_MEMORY, "refused"},
    {bad_checkpoint, MT_ERR_IO, "checkpoint"},
};
enum { FAILURES = sizeof failures / sizeof *failures };

static void every_failure_reports_its_own_cause_after_any_other(void **state)
{
    (void)state;
    x = leaf();
    ints = mtt_made(mt_zeros(device, MT_I64, MT_SHAPE(3)));
    for (int i = 0; i < FAILURES; i++)
        for (int j = 0; j < FAILURES; j++) {
            assert_int_equal(failures[i].call(), failures[i].status);
            assert_int_equal(failures[j].call(), failures[j].status);
            assert_int_equal(mt_last_status(), failures[j].status);
            assert_non_null(strstr(mt_last_error(), failures[j].word));
        }
    mt_clear_error();
    mt_release(x);
    mt_release(ints);
}

static void successful_calls_keep_the_error_and_null_passes_it_on(void **state)
{
    (void)state;
    x = leaf();
    assert_int_equal(bad_reshape(), MT_ERR_ARGUMENT);
    MT_AUTO mt_tensor *fine = mtt_made(mt_relu(x)), *y = mt_reshape(x, MT_SHAPE(5));
    mt_set(&y, mt_gelu(y));
    mt_set(&y, mt_add(y, fine));
    assert_int_equal(mt_backward(y), MT_ERR_ARGUMENT);
    mtt_failed(MT_ERR_ARGUMENT, "reshape: [4] has 4 elements");
    mt_release(x);
}

/* ---- failures within hooks ---- */

enum { SAY_NOTHING, OP_FAILS, CLEARS };

static mt_status fail_in_this_way(int failure, mt_tensor *t)
{
    if (failure != SAY_NOTHING) mt_release(mt_reshape(t, MT_SHAPE(77)));
    if (failure == CLEARS) mt_clear_error();
    return MT_ERR_IO;
}

static int failure, where;
enum { PACK, UNPACK, GRAD, LEAF, BEFORE, AFTER, FUNCTION, PLACES };

static mt_status on_pack(void *user, const mt_save_info *i, mt_tensor *t, mt_tensor **k, void **s)
{
    (void)user, (void)i, (void)k, (void)s;
    return where == PACK ? fail_in_this_way(failure, t) : MT_OK;
}
static mt_status on_unpack(void *user, const mt_save_info *i, mt_tensor **t, void *s)
{
    (void)user, (void)i, (void)s;
    return where == UNPACK ? fail_in_this_way(failure, *t) : MT_OK;
}
static mt_tensor *on_grad(void *user, mt_tensor *grad)
{
    (void)user;
    return where == GRAD ? (fail_in_this_way(failure, grad), NULL) : mt_retain(grad);
}
static mt_status on_leaf(void *user, mt_tensor *t)
{
    (void)user;
    return where == LEAF ? fail_in_this_way(failure, t) : MT_OK;
}
static mt_status before(void *user, const mt_op_call *c, mt_op_result *r, bool *supplied)
{
    (void)user, (void)r, (void)supplied;
    return where == BEFORE ? fail_in_this_way(failure, c->inputs[0]) : MT_OK;
}
static mt_status after(void *user, const mt_op_call *c, const mt_op_result *r)
{
    (void)user, (void)r;
    return where == AFTER ? fail_in_this_way(failure, c->inputs[0]) : MT_OK;
}
static mt_status function(void *user, int n_in, mt_tensor *const *in, int n_out, mt_tensor **out)
{
    (void)user, (void)n_in, (void)n_out;
    if (where == FUNCTION) return fail_in_this_way(failure, in[0]);
    out[0] = mt_exp(in[0]);
    return out[0] ? MT_OK : mt_last_status();
}

static mt_status run_hooked(void)
{
    MT_AUTO mt_tensor *t = leaf(), *ones = mtt_made(mt_full(device, MT_F32, MT_SHAPE(4), 1));
    assert_true(mt_add_grad_hook(t, on_grad, NULL) && mt_add_leaf_hook(t, on_leaf, NULL));
    mtt_ok(mt_push_saved_hooks(&(mt_saved_hooks){.pack = on_pack, .unpack = on_unpack}, NULL));
    mtt_ok(mt_push_op_hooks(&(mt_op_hooks){.before = before, .after = after}, NULL));
    mt_tensor *y = NULL;
    mt_status status = mt_checkpoint(function, NULL, NULL, 1, &t, 1, &y, NULL);
    if (status == MT_OK) status = mt_backward_with(y, &(mt_backward_options){.gradient = ones});
    mt_release(y);
    mtt_ok(mt_pop_op_hooks());
    mtt_ok(mt_pop_saved_hooks());
    return status;
}

static void a_failure_within_a_hook_is_the_reported_one(void **state)
{
    (void)state;
    where = PLACES;
    mtt_ok(run_hooked());
    for (where = 0; where < PLACES; where++)
        for (failure = SAY_NOTHING; failure <= CLEARS; failure++)
            for (int stale = 0; stale < 2; stale++) {
                if (stale) mti_fail(MT_ERR_FORMAT, "long ago");
                mt_status status = run_hooked();
                assert_int_not_equal(status, MT_OK);
                assert_int_not_equal(status, MT_ERR_FORMAT);
                if (failure == OP_FAILS)
                    mtt_failed(MT_ERR_ARGUMENT, "reshape: [4] has 4 elements, which [77]");
                else
                    mtt_failed(where == GRAD ? MT_ERR_STATE : MT_ERR_IO, "failed");
            }
}

/* ---- what hooks return ---- */

enum { OTHER_DEVICE, TWIN_DEVICE, OTHER_DTYPE, OTHER_SHAPE, KINDS };
static int kind;
static mt_device *meta, *twin;

static mt_tensor *wrong(void)
{
    switch (kind) {
    case OTHER_DEVICE: return mt_zeros(meta, MT_F32, MT_SHAPE(4));
    case TWIN_DEVICE: return mt_zeros(twin, MT_F32, MT_SHAPE(4));
    case OTHER_DTYPE: return mt_zeros(device, MT_F64, MT_SHAPE(4));
    default: return mt_zeros(device, MT_F32, MT_SHAPE(2, 2));
    }
}

static mt_tensor *wrong_grad(void *user, mt_tensor *grad)
{
    (void)user, (void)grad;
    return wrong();
}
static mt_status wrong_unpack(void *user, const mt_save_info *i, mt_tensor **t, void *s)
{
    (void)user, (void)i, (void)s;
    return (*t = wrong()) ? MT_OK : mt_last_status();
}
static mt_status wrong_pack(void *user, const mt_save_info *i, mt_tensor *t, mt_tensor **kept,
                            void **s)
{
    (void)user, (void)i, (void)t, (void)s;
    return (*kept = wrong()) ? MT_OK : mt_last_status();
}
static mt_status right_unpack(void *user, const mt_save_info *i, mt_tensor **t, void *s)
{
    (void)user, (void)i, (void)s;
    return (*t = mt_full(device, MT_F32, MT_SHAPE(4), 3)) ? MT_OK : mt_last_status();
}
static mt_status wrong_before(void *user, const mt_op_call *c, mt_op_result *r, bool *supplied)
{
    (void)user, (void)c;
    r->outputs[0] = wrong();
    *supplied = true;
    return r->outputs[0] ? MT_OK : mt_last_status();
}
static mt_status wrong_function(void *user, int n, mt_tensor *const *in, int m, mt_tensor **out)
{
    (void)user, (void)n, (void)in, (void)m;
    return (out[0] = wrong()) ? MT_OK : mt_last_status();
}

/* exp with these hooks, forward and backward; the gradient in *grad. */
static mt_status exp_under(const mt_saved_hooks *saved, const mt_op_hooks *op, mt_grad_hook_fn *fn,
                           bool on_node, float grad[4])
{
    MT_AUTO mt_tensor *t = leaf(), *ones = mtt_made(mt_full(device, MT_F32, MT_SHAPE(4), 1));
    if (fn && !on_node) assert_true(mt_add_grad_hook(t, fn, NULL));
    mtt_ok(mt_push_saved_hooks(saved, NULL));
    mtt_ok(mt_push_op_hooks(op, NULL));
    MT_AUTO mt_tensor *y = mt_exp(t);
    mt_status status = y ? MT_OK : mt_last_status();
    mtt_ok(mt_pop_op_hooks());
    mtt_ok(mt_pop_saved_hooks());
    if (y && fn && on_node) assert_true(mt_add_grad_hook(y, fn, NULL));
    if (y) status = mt_backward_with(y, &(mt_backward_options){.gradient = ones});
    if (status != MT_OK) assert_null(mt_grad(t));
    if (status == MT_OK) mtt_ok(mt_to_host(mt_grad(t), grad, 16));
    return status;
}

static void a_hooks_result_must_have_the_shape_dtype_and_device_of_the_original(void **state)
{
    (void)state;
    static const char *const words[KINDS] = {"on meta", "on another cpu", "f64", "[2,2]"};
    const mt_saved_hooks none = {0}, unpacks = {.unpack = wrong_unpack},
                         packs = {.pack = wrong_pack},
                         offloads = {.pack = wrong_pack, .unpack = right_unpack};
    const mt_op_hooks no_op = {0}, supplies = {.before = wrong_before};
    meta = mt_device_open("meta");
    twin = mt_device_open(mt_device_kind(device));
    assert_true(meta && twin);
    for (kind = 0; kind < KINDS; kind++) {
        float grad[4];
        const char *word = kind == TWIN_DEVICE ? "on another " : words[kind];
        for (int on_node = 0; on_node < 2; on_node++) {
            assert_int_equal(exp_under(&none, &no_op, wrong_grad, on_node, grad), MT_ERR_STATE);
            mtt_failed(MT_ERR_STATE, "gradient hook", word, "need f32 [4] on ");
        }
        assert_int_equal(exp_under(&unpacks, &no_op, NULL, false, grad), MT_ERR_STATE);
        mtt_failed(MT_ERR_STATE, "exp: the result of the unpack hook", word, "need f32 [4] on ");
        assert_int_equal(exp_under(&packs, &no_op, NULL, false, grad), MT_ERR_STATE);
        mtt_failed(MT_ERR_STATE, "exp: the result of the unpack hook", word, "need f32 [4] on ");
        assert_int_equal(exp_under(&none, &supplies, NULL, false, grad), MT_ERR_STATE);
        mtt_failed(MT_ERR_STATE, "exp: what the hook before it", word, "need f32 [4] on ");
        /* Between pack and unpack, a hook may keep the tensor on another device. */
        mtt_ok(exp_under(&offloads, &no_op, NULL, false, grad));
        for (int i = 0; i < 4; i++) assert_true(grad[i] == 3);
        if (kind > TWIN_DEVICE) continue;
        MT_AUTO mt_tensor *t = leaf(), *ones = mtt_made(wrong());
        mt_tensor *out;
        assert_int_equal(mt_checkpoint(wrong_function, NULL, NULL, 1, &t, 1, &out, NULL),
                         MT_ERR_ARGUMENT);
        mtt_failed(MT_ERR_ARGUMENT, "checkpoint", "another device");
        assert_int_equal(mt_set_grad(t, ones), MT_ERR_ARGUMENT);
        mtt_failed(MT_ERR_ARGUMENT, "set_grad", word);
    }
    mt_device_release(meta);
    mt_device_release(twin);
}

/* ---- a checkpointed function that changes the stacks of hooks ---- */

enum { POPS, POPS_OPS, LEAVES, DISORDERS };
static int disorder;

static mt_status change_the_stacks(void *user, int n, mt_tensor *const *in, int m, mt_tensor **out)
{
    (void)user, (void)n, (void)m;
    if (disorder == POPS) mt_pop_saved_hooks();
    if (disorder == POPS_OPS) mt_pop_op_hooks(), mt_clear_error();
    if (disorder == LEAVES) {
        mt_push_saved_hooks(&(mt_saved_hooks){0}, NULL);
        mt_push_op_hooks(&(mt_op_hooks){0}, NULL);
    }
    out[0] = mt_exp(in[0]);
    return out[0] ? MT_OK : mt_last_status();
}

static mt_policy keep_none(void *user, const mt_op_call *call)
{
    (void)user, (void)call;
    return MT_PREFER_RECOMPUTE;
}

static void a_checkpoint_survives_a_function_that_changes_the_stacks_of_hooks(void **state)
{
    (void)state;
    const mt_checkpoint_options options = {.policy = keep_none};
    for (disorder = 0; disorder < DISORDERS; disorder++) {
        MT_AUTO mt_tensor *t = leaf();
        mt_tensor *out = NULL;
        mt_status status = mt_checkpoint(change_the_stacks, NULL, NULL, 1, &t, 1, &out, &options);
        if (disorder == POPS) {
            assert_int_equal(status, MT_ERR_STATE);
            mtt_failed(MT_ERR_STATE, "checkpoint", "popped hooks");
            assert_null(out);
        } else {
            mtt_ok(status);
        }
        mt_release(out);
        while (mt_pop_op_hooks() == MT_OK) continue; /* LEAVES: it lies below a popped one */
        mt_clear_error();
    }
}

/* ---- shapes ---- */

static void a_view_without_elements_is_contiguous(void **state)
{
    (void)state;
    MT_AUTO mt_tensor *t = mtt_made(mt_zeros(device, MT_F32, MT_SHAPE(3, 4, 5)));
    for (int dim = 0; dim < 3; dim++) {
        MT_AUTO mt_tensor *none = mtt_made(mt_slice(t, dim, 1, 0));
        static const int orders[6][3] = {{0, 1, 2}, {0, 2, 1}, {1, 0, 2},
                                         {1, 2, 0}, {2, 0, 1}, {2, 1, 0}};
        for (int i = 0; i < 6; i++) {
            MT_AUTO mt_tensor *p = mtt_made(mt_permute(none, orders[i]));
            assert_true(mt_is_contiguous(p));
            MT_AUTO mt_tensor *same = mtt_made(mt_contiguous(p));
            assert_true(mt_same_storage(same, p)); /* as in PyTorch, there is no copy */
            MT_AUTO mt_tensor *flat = mtt_made(mt_reshape(p, MT_SHAPE(0, 7)));
            assert_int_equal(mt_numel(flat), 0);
        }
    }
    MT_AUTO mt_tensor *turned = mtt_made(mt_transpose(t, 0, 2));
    assert_false(mt_is_contiguous(turned));
}

static void expect_refused(mt_tensor *t, int rank, const int64_t *shape, const char *words)
{
    assert_null(mt_reshape(t, rank, shape));
    mtt_failed(MT_ERR_ARGUMENT, words);
}

static void reshape_says_what_it_was_given(void **state)
{
    (void)state;
    MT_AUTO mt_tensor *t = mtt_made(mt_zeros(device, MT_F32, MT_SHAPE(2, 6)));
    MT_AUTO mt_tensor *none = mtt_made(mt_zeros(device, MT_F32, MT_SHAPE(0, 3)));
    const int64_t nine[9] = {1, 1, 1, 1, 1, 1, 1, 2, 6};
    expect_refused(t, 9, nine, "reshape: rank 9; need 0 to 8");
    expect_refused(t, -1, nine, "reshape: rank -1; need 0 to 8");
    expect_refused(t, 2, NULL, "reshape: shape is NULL");
    expect_refused(t, MT_SHAPE(-1, -1), "reshape: shape [-1,-1]; extents must be 0 or more, one");
    expect_refused(t, MT_SHAPE(-1, 2, -1), "one may be -1");
    expect_refused(t, MT_SHAPE(-2, 6), "reshape: shape [-2,6]; extents must be 0 or more");
    expect_refused(t, MT_SHAPE(5, -1), "reshape: [2,6] has 12 elements, which [5,-1] cannot hold");
    expect_refused(t, MT_SHAPE(0, -1), "which [0,-1] cannot hold");
    expect_refused(none, MT_SHAPE(0, -1), "which [0,-1] cannot hold");
    expect_refused(t, MT_SHAPE(INT64_MAX, 4), "cannot hold");
    MT_AUTO mt_tensor *fine = mtt_made(mt_reshape(t, MT_SHAPE(3, -1)));
    assert_int_equal(mt_shape(fine)[1], 4);
    assert_null(mt_device_open(NULL));
    mtt_failed(MT_ERR_ARGUMENT, "device_open: the kind is NULL");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        mtt_test(every_failure_reports_its_own_cause_after_any_other),
        mtt_test(successful_calls_keep_the_error_and_null_passes_it_on),
        mtt_test(a_failure_within_a_hook_is_the_reported_one),
        mtt_test(a_hooks_result_must_have_the_shape_dtype_and_device_of_the_original),
        mtt_test(a_checkpoint_survives_a_function_that_changes_the_stacks_of_hooks),
        mtt_test(a_view_without_elements_is_contiguous),
        mtt_test(reshape_says_what_it_was_given),
    };
    return cmocka_run_group_tests(tests, mtt_open_device, mtt_close_device);
}

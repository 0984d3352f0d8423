/* mt_run_apart, tensors that the caller saves, and hooks on ops. */
#include <string.h>
#include "mtt_fixture.h"

static mt_tensor *leaf(uint64_t seed)
{
    mt_tensor *x = mtt_made(mtt_random(device, MT_F32, MT_SHAPE(3, 4), seed, -1, 1));
    mtt_ok(mt_set_requires_grad(x, true));
    return x;
}

/* ---- mt_run_apart ---- */

typedef struct record {
    mt_tensor *x;
    int packs;
    bool grad_mode, recorded, recomputing;
    const char *scope;
    mt_status returns;
} record;

static mt_status count_pack(void *user, const mt_save_info *info, mt_tensor *t, mt_tensor **kept,
                            void **state)
{
    (void)info, (void)t, (void)kept, (void)state;
    ((record *)user)->packs++;
    return MT_OK;
}

static const mt_saved_hooks counting = {.pack = count_pack};

/* Records the state that it runs in, then changes all of it. */
static mt_status record_and_disorder(void *user)
{
    record *s = user;
    MT_AUTO mt_tensor *y = mt_gelu(s->x);
    s->grad_mode = mt_grad_mode();
    s->recorded = mt_requires_grad(y);
    s->recomputing = mt_recomputing();
    s->scope = mt_scope_path();
    mt_set_grad_mode(false);
    mt_scope_push("left");
    mt_push_saved_hooks(&counting, s);
    mt_push_op_hooks(&(mt_op_hooks){0}, NULL);
    return s->returns;
}

static void run_apart_hides_hooks_and_restores_the_modes(void **state)
{
    (void)state;
    for (int i = 0; i < 2; i++) {
        MT_AUTO mt_tensor *x = leaf(1);
        record s = {.x = x, .returns = i ? MT_ERR_IO : MT_OK};
        const mt_apart options = {.module = "far.away", .recompute = i};
        mtt_ok(mt_push_saved_hooks(&counting, &s));
        mtt_ok(mt_scope_push("here"));
        mt_set_grad_mode(false);
        assert_int_equal(mt_run_apart(&options, record_and_disorder, &s), s.returns);
        assert_false(mt_set_grad_mode(true));
        assert_string_equal(mt_scope_path(), "here");
        mt_scope_pop();
        assert_string_equal(mt_scope_path(), "");
        mtt_ok(mt_pop_saved_hooks());
        assert_int_equal(mt_pop_saved_hooks(), MT_ERR_STATE);
        mt_clear_error();
        assert_int_equal(mt_pop_op_hooks(), MT_ERR_STATE);
        mtt_failed(MT_ERR_STATE, "the stack is empty");
        assert_true(s.grad_mode && s.recorded);
        assert_int_equal(s.recomputing, i);
        assert_false(mt_recomputing());
        assert_string_equal(s.scope, "far.away");
        assert_int_equal(s.packs, 0);
    }
}

static mt_status pack_apart(void *user, const mt_save_info *info, mt_tensor *t, mt_tensor **kept,
                            void **state)
{
    (void)info, (void)t, (void)kept, (void)state;
    return mt_run_apart(NULL, record_and_disorder, user);
}

static void a_hook_may_use_run_apart(void **state)
{
    (void)state;
    MT_AUTO mt_tensor *x = leaf(1), *other = leaf(2);
    record s = {.x = other};
    const mt_saved_hooks hooks = {.pack = pack_apart};
    mtt_ok(mt_push_saved_hooks(&hooks, &s));
    MT_AUTO mt_tensor *y = mtt_made(mt_exp(x));
    mtt_ok(mt_pop_saved_hooks());
    assert_true(s.recorded);
    assert_int_equal(mt_run_apart(NULL, NULL, NULL), MT_ERR_ARGUMENT);
    mtt_failed(MT_ERR_ARGUMENT, "run_apart", "NULL");
}

/* ---- tensors that the caller saves ---- */

static void a_tensor_that_the_caller_saves_is_in_the_ledger(void **state)
{
    (void)state;
    MT_AUTO mt_tensor *x = leaf(1), *y = mtt_made(mt_gelu(x));
    char name[] = "mine";
    const mt_save_info info = {.op = name, .argument = "y", .role = MT_SAVE_OUTPUT};
    mt_ledger *ledger = mt_ledger_new(device);
    mtt_ok(mt_ledger_begin(ledger));
    mtt_ok(mt_scope_push("scope"));
    mt_saved *saved = mt_saved_new(y, &info);
    assert_non_null(saved);
    mt_scope_pop();
    mtt_ok(mt_ledger_end(ledger));
    name[0] = 'M';
    mt_ledger_entry e;
    mtt_ok(mt_ledger_get(ledger, 0, &e));
    assert_string_equal(e.saver.op, "mine");
    assert_string_equal(e.saver.module, "scope");
    assert_true(e.saver.node > mt_grad_fn_sequence(y));
    assert_int_equal(mt_ledger_bytes(ledger), mt_storage_of(y).bytes);
    MT_AUTO mt_tensor *back = mtt_made(mt_saved_get(saved));
    assert_true(mtt_same_bits(back, y));
    assert_false(mt_requires_grad(back));
    mt_saved_free(saved);
    mt_saved_free(NULL);
    mt_ledger_free(ledger);
}

static void a_saved_tensor_that_changed_since_is_refused(void **state)
{
    (void)state;
    MT_AUTO mt_tensor *x = leaf(1);
    mt_saved *saved = mt_saved_new(x, &(mt_save_info){.op = "mine", .argument = "x"});
    mtt_ok(mt_fill(x, 1));
    assert_null(mt_saved_get(saved));
    mtt_failed(MT_ERR_STATE, "mine backward: x", "changed in place");
    mt_saved_free(saved);
    assert_null(mt_saved_new(NULL, &(mt_save_info){.op = "mine", .argument = "x"}));
    mtt_failed(MT_ERR_ARGUMENT, "saved_new");
    assert_null(mt_saved_new(x, &(mt_save_info){.op = "mine"}));
    mtt_failed(MT_ERR_ARGUMENT, "saved_new", "argument");
    assert_null(mt_saved_get(NULL));
    mtt_failed(MT_ERR_ARGUMENT, "saved_get");
}

static void an_op_in_place_does_not_change_a_saved_tensor(void **state)
{
    (void)state;
    MT_AUTO mt_tensor *x = leaf(1), *y = mtt_made(mt_affine(x, 1, 1));
    mt_saved *saved = mt_saved_new(y, &(mt_save_info){.op = "mine", .argument = "y"});
    assert_int_equal(mt_relu_inplace(y), MT_ERR_STATE);
    mtt_failed(MT_ERR_STATE, "relu_inplace", "mine");
    mt_saved_free(saved);
    mtt_ok(mt_relu_inplace(y));
}

static void hooks_see_nothing_of_what_runs_below_them(void **state)
{
    (void)state;
    MT_AUTO mt_tensor *x = leaf(1);
    record outer = {0}, inner = {0}, stranger = {0};
    mtt_ok(mt_push_saved_hooks(&counting, &outer));
    mtt_ok(mt_push_saved_hooks(&counting, &inner));
    assert_null(mt_step_below_saved_hooks(&stranger));
    mtt_failed(MT_ERR_STATE, "step_below_saved_hooks");
    void *place = mt_step_below_saved_hooks(&inner);
    assert_non_null(place);
    mt_saved *saved = mt_saved_new(x, &(mt_save_info){.op = "mine", .argument = "x"});
    mt_step_back_to_saved_hooks(place);
    assert_int_equal(outer.packs, 1);
    assert_int_equal(inner.packs, 0);
    mt_saved_free(saved);
    mtt_ok(mt_pop_saved_hooks());
    mtt_ok(mt_pop_saved_hooks());
}

/* ---- hooks on ops ---- */

enum { MAX_CALLS = 16 };

/* Keeps every result the first time and supplies it the second time. */
typedef struct recorder {
    char log[256];
    mt_tensor *kept[MAX_CALLS][3];
    int n, at, destroys;
    bool replay, wrong_shape, nothing;
    mt_status before_fails, after_fails;
    size_t bytes;
    uint64_t flops;
} recorder;

static mt_status supply(void *user, const mt_op_call *call, mt_op_result *result, bool *supplied)
{
    recorder *t = user;
    if (t->before_fails) return t->before_fails;
    if (!t->replay) return MT_OK;
    mt_tensor **kept = t->kept[t->at++];
    *supplied = true;
    if (t->nothing) return MT_OK;
    result->outputs[0] =
        t->wrong_shape ? mt_zeros(call->device, MT_F32, 0, NULL) : mt_retain(kept[0]);
    for (int i = 0; i < call->n_auxiliaries; i++) result->auxiliaries[i] = mt_retain(kept[1 + i]);
    return result->outputs[0] ? MT_OK : mt_last_status();
}

static mt_status keep(void *user, const mt_op_call *call, const mt_op_result *result)
{
    recorder *t = user;
    if (t->after_fails) return t->after_fails;
    strcat(strcat(t->log, call->op), " ");
    t->flops += result->flops;
    if (t->replay) return MT_OK;
    t->bytes += call->output_bytes;
    assert_int_equal(call->n_outputs, 1);
    mt_tensor **kept = t->kept[t->n++];
    kept[0] = mt_detach(result->outputs[0]);
    for (int i = 0; i < call->n_auxiliaries; i++)
        kept[1 + i] = result->auxiliaries[i] ? mt_detach(result->auxiliaries[i]) : NULL;
    return MT_OK;
}

static void count_destroy(void *user) { ((recorder *)user)->destroys++; }

static const mt_op_hooks hooks = {supply, keep, count_destroy};

static void free_recorder(recorder *t)
{
    for (int i = 0; i < t->n; i++)
        for (int k = 0; k < 3; k++) mt_release(t->kept[i][k]);
}

/* sum(dropout(gelu(x^T w))); the transpose is a view */
static mt_tensor *forward(mt_tensor *x, mt_tensor *w)
{
    mt_tensor *h = mt_transpose(x, 0, 1);
    mt_set(&h, mt_matmul(h, w));
    mt_set(&h, mt_gelu(h));
    mt_set(&h, mt_dropout(h, 0.5));
    mt_set(&h, mt_sum_all(h));
    return h;
}

static void supplied_results_replace_kernels(void **state)
{
    (void)state;
    recorder t = {{0}};
    MT_AUTO mt_tensor *x = leaf(1), *w = leaf(2), *x2 = leaf(1), *w2 = leaf(2);
    mt_seed(device, 5);
    mtt_ok(mt_set_balance_check(device, false)); /* `t` keeps auxiliaries that no ledger has */
    mtt_ok(mt_push_op_hooks(&hooks, &t));
    assert_ptr_equal(mt_find_op_hooks(&hooks), &t);
    MT_AUTO mt_tensor *a = mtt_made(forward(x, w));
    assert_string_equal(t.log, "matmul gelu dropout sum ");
    assert_int_equal(t.bytes, (16 + 16 + 16 + 1) * 4 + 16);
    assert_int_equal(t.flops, 2 * 4 * 3 * 4);
    mt_flops_reset(device);
    t.replay = true, t.log[0] = '\0';
    MT_AUTO mt_tensor *b = mtt_made(forward(x2, w2)); /* with the generator at another offset */
    mtt_ok(mt_pop_op_hooks());
    assert_int_equal(t.destroys, 1);
    assert_null(mt_find_op_hooks(&hooks));
    assert_string_equal(t.log, "matmul gelu dropout sum ");
    assert_int_equal(mt_flops_get(device).forward, 0);
    assert_true(mtt_same_bits(a, b));
    assert_string_equal(mt_grad_fn_name(b), "sum");
    mtt_ok(mt_backward(a));
    mtt_ok(mt_backward(b));
    assert_true(mtt_same_bits(mt_grad(x), mt_grad(x2)));
    assert_true(mtt_same_bits(mt_grad(w), mt_grad(w2)));
    free_recorder(&t);
    mtt_ok(mt_set_balance_check(device, true));
}

static void a_result_that_does_not_fit_is_refused(void **state)
{
    (void)state;
    MT_AUTO mt_tensor *x = leaf(1);
    recorder t = {.replay = true, .wrong_shape = true};
    mtt_ok(mt_push_op_hooks(&hooks, &t));
    assert_null(mt_gelu(x));
    mtt_failed(MT_ERR_STATE, "gelu", "supplied as y is f32 [] on cpu", "need f32 [3,4] on cpu");
    t.wrong_shape = false, t.nothing = true;
    assert_null(mt_gelu(x));
    mtt_failed(MT_ERR_STATE, "gelu", "supplied no y");
    MT_AUTO mt_tensor *y = NULL;
    mtt_ok(mt_pop_op_hooks());
    y = mtt_made(mt_affine(x, 1, 1));
    mtt_ok(mt_push_op_hooks(&hooks, &t));
    assert_int_equal(mt_relu_inplace(y), MT_ERR_STATE);
    mtt_failed(MT_ERR_STATE, "relu_inplace", "x itself must change");
    mtt_ok(mt_pop_op_hooks());
}

static void a_hook_that_fails_fails_the_op(void **state)
{
    (void)state;
    MT_AUTO mt_tensor *x = leaf(1);
    recorder t = {.before_fails = MT_ERR_IO};
    mtt_ok(mt_push_op_hooks(&hooks, &t));
    assert_null(mt_gelu(x));
    mtt_failed(MT_ERR_IO, "gelu", "the hook before it failed");
    t = (recorder){.after_fails = MT_ERR_IO};
    assert_null(mt_gelu(x));
    mtt_failed(MT_ERR_IO, "gelu", "the hook after it failed");
    mtt_ok(mt_pop_op_hooks());
    mtt_ok(mt_check_balance(device));
    assert_int_equal(mt_push_op_hooks(NULL, NULL), MT_ERR_ARGUMENT);
    mtt_failed(MT_ERR_ARGUMENT, "push_op_hooks");
}

static void the_last_hook_is_asked_first_and_the_first_to_supply_ends_the_search(void **state)
{
    (void)state;
    MT_AUTO mt_tensor *x = leaf(1);
    recorder inner = {{0}}, outer = {{0}};
    mtt_ok(mt_push_op_hooks(&hooks, &outer));
    mtt_ok(mt_push_op_hooks(&hooks, &inner));
    assert_ptr_equal(mt_find_op_hooks(&hooks), &inner);
    mt_release(mtt_made(mt_gelu(x)));
    inner.replay = outer.replay = true;
    mt_release(mtt_made(mt_gelu(x)));
    assert_int_equal(inner.at, 1);
    assert_int_equal(outer.at, 0);
    assert_string_equal(outer.log, "gelu gelu ");
    mtt_ok(mt_pop_op_hooks());
    mtt_ok(mt_pop_op_hooks());
    free_recorder(&inner);
    free_recorder(&outer);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        mtt_test(run_apart_hides_hooks_and_restores_the_modes),
        mtt_test(a_hook_may_use_run_apart),
        mtt_test(a_tensor_that_the_caller_saves_is_in_the_ledger),
        mtt_test(a_saved_tensor_that_changed_since_is_refused),
        mtt_test(an_op_in_place_does_not_change_a_saved_tensor),
        mtt_test(hooks_see_nothing_of_what_runs_below_them),
        mtt_test(supplied_results_replace_kernels),
        mtt_test(a_result_that_does_not_fit_is_refused),
        mtt_test(a_hook_that_fails_fails_the_op),
        mtt_test(the_last_hook_is_asked_first_and_the_first_to_supply_ends_the_search),
    };
    return cmocka_run_group_tests(tests, mtt_open_device, mtt_close_device);
}

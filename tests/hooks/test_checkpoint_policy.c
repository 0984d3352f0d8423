/* Policies: which results a checkpoint keeps, what that costs and saves, and what policies may not
 * do. */
#include <stdlib.h>
#include <string.h>
#include "base/base.h"
#include "mtt.h"
#include "mtt_fixture.h"

/* Answers `yes` for ops of this name ("*": every op), `no` for others. */
typedef struct policy {
    const char *op;
    mt_policy yes, no;
    int asked, change_at; /* this question gets the opposite answer */
    uint64_t flops;       /* of the calls with the answer `yes` */
} policy;

static mt_policy answer(void *user, const mt_op_call *call)
{
    policy *p = user;
    bool is = !strcmp(p->op, "*") || !strcmp(p->op, call->op);
    if (++p->asked == p->change_at) is = !is;
    if (is) p->flops += call->flops;
    return is ? p->yes : p->no;
}

/* ---- a block with dropout under a policy ---- */

enum { B = 2, S = 6, H = 12, A = 3 };

typedef struct outcome {
    mt_tensor *grad[32];
    int n;
    size_t saved;
    mt_flops flops;
} outcome;

static void free_outcome(outcome *o)
{
    for (int i = 0; i < o->n; i++) mt_release(o->grad[i]);
}

static outcome run_block(mt_attention_form form, const mt_checkpoint_options *options)
{
    outcome o = {.n = 0};
    const mt_model_config config = {.kind = MT_MODEL_BLOCK,
                                    .hidden = H,
                                    .heads = A,
                                    .act = MT_ACT_GELU,
                                    .dropout = 0.2,
                                    .attention = form,
                                    .dtype = MT_F32};
    mt_seed(device, 4);
    mt_module *block = mt_model_new(device, &config);
    assert_non_null(block);
    if (options) mtt_ok(mt_model_checkpoint_with(block, "full", options));
    mt_tensor *x = mtt_made(mt_normal(device, MT_F32, MT_SHAPE(B, S, H), 0, 1));
    mtt_ok(mt_set_requires_grad(x, true));
    mt_flops_reset(device);
    mt_ledger *ledger = mt_ledger_new(device);
    mtt_ok(mt_ledger_begin(ledger));
    mt_tensor *y = mtt_made(mt_forward(block, x));
    mtt_ok(mt_ledger_end(ledger));
    o.saved = mt_ledger_bytes(ledger);
    MT_AUTO mt_tensor *loss = mtt_made(mt_sum_all(y));
    mt_release(y);
    mtt_ok(mt_backward(loss));
    o.flops = mt_flops_get(device);
    /* Only x is left of all that was kept. */
    assert_int_equal(mt_ledger_live_bytes(ledger), mt_storage_of(x).bytes);
    mt_ledger_free(ledger);
    const mt_named_tensor *list;
    size_t n;
    mtt_ok(mt_module_params(block, &list, &n));
    for (size_t i = 0; i < n; i++) o.grad[o.n++] = mt_retain(mt_grad(list[i].tensor));
    o.grad[o.n++] = mt_retain(mt_grad(x));
    mt_release(x);
    mt_module_free(block);
    return o;
}

static void assert_same(const outcome *a, const outcome *b)
{
    assert_int_equal(a->n, b->n);
    for (int i = 0; i < a->n; i++) assert_true(mtt_same_bits(a->grad[i], b->grad[i]));
}

static void no_policy_changes_a_bit_of_the_gradients(void **state)
{
    (void)state;
    static const char *const ops[] = {
        "linear", "matmul",     "softmax",    "dropout",         "gelu",
        "add",    "layer_norm", "contiguous", "flash_attention", "*"};
    for (int form = 0; form < MT_ATTENTION_FORM_COUNT; form++) {
        outcome plain = run_block((mt_attention_form)form, NULL);
        for (size_t i = 0; i < sizeof ops / sizeof *ops; i++) {
            for (int early = 0; early < 2; early++) {
                policy p = {.op = ops[i], .yes = MT_MUST_SAVE};
                const mt_checkpoint_options options = {
                    .policy = answer, .policy_user = &p, .check = true, .no_early_stop = early};
                outcome o = run_block((mt_attention_form)form, &options);
                assert_same(&plain, &o);
                free_outcome(&o);
            }
        }
        free_outcome(&plain);
    }
}

static void kept_products_are_not_recomputed(void **state)
{
    (void)state;
    policy p = {.op = "linear", .yes = MT_PREFER_SAVE};
    mt_checkpoint_report *report = mt_checkpoint_report_new();
    const mt_checkpoint_options options = {.policy = answer, .policy_user = &p, .report = report};
    outcome o = run_block(MT_ATTENTION_FLASH, &options);
    /* x and the results of four products: 3h, h, 4h and h f32 values for each of b s tokens */
    size_t token = (size_t)B * S * H * 4;
    assert_int_equal(o.saved, token * (1 + 3 + 1 + 4 + 1));
    /* only attention is recomputed; the policy saw each product's FLOPs in forward */
    assert_int_equal(o.flops.recompute, 2 * 2 * B * S * S * H);
    assert_true(p.flops > 0);
    mt_checkpoint_segment s;
    mtt_ok(mt_checkpoint_report_get(report, 0, &s));
    assert_int_equal(s.policy_bytes, token * 9);
    assert_int_equal(s.input_bytes, token);
    mt_checkpoint_report_free(report);
    free_outcome(&o);
}

static void if_everything_is_kept_nothing_is_recomputed(void **state)
{
    (void)state;
    policy p = {.op = "*", .yes = MT_MUST_SAVE};
    const mt_checkpoint_options options = {.policy = answer, .policy_user = &p};
    outcome o = run_block(MT_ATTENTION_MATH, &options);
    assert_int_equal(o.flops.recompute, 0);
    free_outcome(&o);
}

/* ---- MT_OFFLOAD ---- */

typedef struct store {
    int packs, drops;
} store;

typedef struct host_tensor {
    mt_device *device;
    mt_dtype dtype;
    int rank;
    int64_t shape[MT_MAX_RANK];
    size_t n_bytes;
    unsigned char data[];
} host_tensor;

static mt_status copy_to_host(void *user, const mt_save_info *info, mt_tensor *t, mt_tensor **kept,
                              void **state)
{
    (void)info;
    size_t n_bytes = (size_t)mt_numel(t) * mt_dtype_size(mt_dtype_of(t));
    host_tensor *p = malloc(sizeof *p + n_bytes);
    *p = (host_tensor){mt_device_of(t), mt_dtype_of(t), mt_rank(t), {0}, n_bytes};
    memcpy(p->shape, mt_shape(t), sizeof p->shape);
    ((store *)user)->packs++;
    *state = p;
    *kept = NULL;
    return mt_to_host(t, p->data, n_bytes);
}

static mt_status copy_back(void *user, const mt_save_info *info, mt_tensor **t, void *state)
{
    (void)user, (void)info;
    const host_tensor *p = state;
    *t = mt_from_data(p->device, p->dtype, p->rank, p->shape, p->data, p->n_bytes);
    return *t ? MT_OK : mt_last_status();
}

static void discard(void *user, const mt_save_info *info, void *state)
{
    (void)info;
    ((store *)user)->drops++;
    free(state);
}

static void offloaded_results_pass_the_hooks_of_the_options(void **state)
{
    (void)state;
    const mt_saved_hooks away = {.pack = copy_to_host, .unpack = copy_back, .drop = discard};
    store st = {0};
    policy p = {.op = "linear", .yes = MT_OFFLOAD};
    const mt_checkpoint_options options = {
        .policy = answer, .policy_user = &p, .check = true, .away = &away, .away_user = &st};
    outcome plain = run_block(MT_ATTENTION_MATH, NULL), o = run_block(MT_ATTENTION_MATH, &options);
    assert_same(&plain, &o);
    assert_int_equal(st.packs, 4);
    assert_int_equal(st.drops, 4);
    assert_int_equal(o.saved, B * S * H * 4); /* the device holds the input alone */
    free_outcome(&plain);
    free_outcome(&o);
}

/* ---- policies that contradict themselves or each other ---- */

static mt_status two_ops(void *user, int n_in, mt_tensor *const *in, int n_out, mt_tensor **out)
{
    (void)user, (void)n_in, (void)n_out;
    MT_AUTO mt_tensor *h = mt_gelu(in[0]);
    out[0] = mt_exp(h);
    return out[0] ? MT_OK : mt_last_status();
}

static mt_status in_place(void *user, int n_in, mt_tensor *const *in, int n_out, mt_tensor **out)
{
    (void)user, (void)n_in, (void)n_out;
    out[0] = mt_affine(in[0], 2, 0);
    return out[0] ? mt_relu_inplace(out[0]) : mt_last_status();
}

static mt_tensor *input(void)
{
    mt_tensor *x = mtt_made(mtt_random(device, MT_F32, MT_SHAPE(4, 5), 1, -1, 1));
    mtt_ok(mt_set_requires_grad(x, true));
    return x;
}

static void an_answer_that_changes_is_an_error(void **state)
{
    (void)state;
    policy p = {.op = "exp", .yes = MT_MUST_SAVE, .change_at = 3};
    MT_AUTO mt_tensor *x = input(), *y = NULL;
    const mt_checkpoint_options options = {.label = "pair", .policy = answer, .policy_user = &p};
    mtt_ok(mt_scope_push("here"));
    mtt_ok(mt_checkpoint(two_ops, NULL, NULL, 1, &x, 1, &y, &options));
    mt_scope_pop();
    MT_AUTO mt_tensor *loss = mtt_made(mt_sum_all(y));
    assert_int_equal(mt_backward(loss), MT_ERR_STATE);
    mtt_failed(MT_ERR_STATE, "checkpoint pair", "gelu in here", "otherwise in backward",
               "prefer recompute, then must save");
}

static void an_unknown_answer_is_refused(void **state)
{
    (void)state;
    policy p = {.op = "gelu", .yes = (mt_policy)17};
    MT_AUTO mt_tensor *x = input(), *y = NULL;
    const mt_checkpoint_options options = {.policy = answer, .policy_user = &p};
    assert_int_equal(mt_checkpoint(two_ops, NULL, NULL, 1, &x, 1, &y, &options), MT_ERR_ARGUMENT);
    mtt_failed(MT_ERR_ARGUMENT, "answered 17 for gelu");
    assert_null(y);
}

static void an_op_in_place_cannot_be_kept(void **state)
{
    (void)state;
    policy p = {.op = "relu_inplace", .yes = MT_MUST_SAVE};
    MT_AUTO mt_tensor *x = input(), *y = NULL;
    const mt_checkpoint_options options = {.policy = answer, .policy_user = &p, .check = true};
    assert_int_equal(mt_checkpoint(in_place, NULL, NULL, 1, &x, 1, &y, &options), MT_ERR_STATE);
    mtt_failed(MT_ERR_STATE, "relu_inplace", "in place cannot be kept");
    p.yes = MT_PREFER_SAVE; /* a preference may be ignored */
    mtt_ok(mt_checkpoint(in_place, NULL, NULL, 1, &x, 1, &y, &options));
    MT_AUTO mt_tensor *loss = mtt_made(mt_sum_all(y));
    mt_set(&y, mt_retain(loss));
    mtt_ok(mt_backward(loss));
}

/* ---- nested policies ---- */

typedef struct outer_data {
    const mt_checkpoint_options *inner;
} outer_data;

static mt_status with_inner(void *user, int n_in, mt_tensor *const *in, int n_out, mt_tensor **out)
{
    const outer_data *a = user;
    mt_status status = mt_checkpoint(two_ops, NULL, NULL, n_in, in, n_out, out, a->inner);
    return status == MT_OK ? mt_set(&out[0], mt_tanh(out[0])) : status;
}

/* Bytes kept for gelu's result under these two policies; -1 if they contradict each other. */
static int64_t kept_by(mt_policy outer, mt_policy inner, bool no_inner)
{
    policy po = {.op = "gelu", .yes = outer}, pi = {.op = "gelu", .yes = inner};
    const mt_checkpoint_options oi = {
        .policy = no_inner ? NULL : answer, .policy_user = &pi, .check = true};
    const mt_checkpoint_options oo = {.policy = answer, .policy_user = &po, .check = true};
    outer_data a = {&oi};
    MT_AUTO mt_tensor *x = input(), *y = NULL, *z = NULL;
    mt_ledger *ledger = mt_ledger_new(device);
    mtt_ok(mt_ledger_begin(ledger));
    mt_status status = mt_checkpoint(with_inner, &a, NULL, 1, &x, 1, &y, &oo);
    mtt_ok(mt_ledger_end(ledger));
    int64_t bytes = (int64_t)mt_ledger_bytes(ledger) - (int64_t)mt_storage_of(x).bytes;
    mt_ledger_free(ledger);
    if (status != MT_OK) {
        mtt_failed(MT_ERR_STATE, "gelu", "two musts disagree", mt_policy_name(outer),
                   mt_policy_name(inner));
        return -1;
    }
    MT_AUTO mt_tensor *loss = mtt_made(mt_sum_all(y));
    mtt_ok(mt_backward(loss));
    /* compare with a plain run */
    MT_AUTO mt_tensor *other = input();
    mtt_ok(two_ops(NULL, 1, &other, 1, &z));
    mt_set(&z, mt_tanh(z));
    mt_set(&z, mt_sum_all(z));
    mtt_ok(mt_backward(mtt_made(z)));
    assert_true(mtt_same_bits(mt_grad(x), mt_grad(other)));
    return bytes;
}

static void must_beats_prefer_and_the_innermost_prefer_wins(void **state)
{
    (void)state;
    const mt_policy pr = MT_PREFER_RECOMPUTE, ps = MT_PREFER_SAVE, mr = MT_MUST_RECOMPUTE,
                    ms = MT_MUST_SAVE;
    const int64_t bytes = 4 * 5 * 4;
    const struct {
        mt_policy outer, inner;
        int64_t kept;
    } cases[] = {{pr, pr, 0},         {pr, ps, bytes}, {ps, pr, 0},     {ps, ps, bytes},
                 {mr, ps, 0},         {ps, mr, 0},     {ms, pr, bytes}, {pr, ms, bytes},
                 {mr, mr, 0},         {ms, ms, bytes}, {ms, mr, -1},    {mr, ms, -1},
                 {MT_OFFLOAD, ms, -1}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        assert_int_equal(kept_by(cases[i].outer, cases[i].inner, false), cases[i].kept);
    /* An inner checkpoint without a policy follows the outer one. */
    assert_int_equal(kept_by(ms, pr, true), bytes);
    assert_int_equal(kept_by(mr, pr, true), 0);
}

/* ---- every allocation ---- */

static bool nested_with_failure(uint64_t n)
{
    policy po = {.op = "gelu", .yes = MT_MUST_SAVE}, pi = {.op = "exp", .yes = MT_MUST_SAVE};
    const mt_checkpoint_options oi = {.policy = answer, .policy_user = &pi, .check = true};
    const mt_checkpoint_options oo = {.policy = answer, .policy_user = &po, .check = true};
    outer_data a = {&oi};
    MT_AUTO mt_tensor *x = input(), *y = NULL, *loss = NULL;
    size_t before = mtt_allocated(device);
    mti_fail_nth_alloc(n);
    mt_status status = mt_checkpoint(with_inner, &a, NULL, 1, &x, 1, &y, &oo);
    if (status == MT_OK) status = (loss = mt_sum_all(y)) ? MT_OK : mt_last_status();
    if (status == MT_OK) status = mt_backward(loss);
    bool reached = mti_alloc_count() >= n;
    mti_fail_nth_alloc(0);
    if (status != MT_OK) {
        assert_int_equal(mt_last_status(), MT_ERR_MEMORY);
        mt_clear_error();
        mt_release(y), mt_release(loss), y = loss = NULL;
        mtt_ok(mt_set_grad(x, NULL));
        assert_int_equal(mtt_allocated(device), before);
    }
    return reached;
}

static void any_allocation_may_fail(void **state)
{
    (void)state;
    uint64_t n = 1;
    while (nested_with_failure(n)) n++;
    print_message("%llu allocations failed in turn\n", (unsigned long long)n - 1);
    assert_true(n > 100);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        mtt_test(no_policy_changes_a_bit_of_the_gradients),
        mtt_test(kept_products_are_not_recomputed),
        mtt_test(if_everything_is_kept_nothing_is_recomputed),
        mtt_test(offloaded_results_pass_the_hooks_of_the_options),
        mtt_test(an_answer_that_changes_is_an_error),
        mtt_test(an_unknown_answer_is_refused),
        mtt_test(an_op_in_place_cannot_be_kept),
        mtt_test(must_beats_prefer_and_the_innermost_prefer_wins),
        mtt_test(any_allocation_may_fail),
    };
    return cmocka_run_group_tests(tests, mtt_open_device, mtt_close_device);
}

/* Policies for a block with dropout: which results a checkpoint keeps, and what that costs and
 * saves. */
#include <stdlib.h>
#include <string.h>
#include "../../src/hooks/policy.h"
#include "mtt.h"

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

int main(void)
{
    const struct CMUnitTest tests[] = {
        mtt_test(no_policy_changes_a_bit_of_the_gradients),
        mtt_test(kept_products_are_not_recomputed),
        mtt_test(if_everything_is_kept_nothing_is_recomputed),
        mtt_test(offloaded_results_pass_the_hooks_of_the_options),
    };
    return cmocka_run_group_tests(tests, mtt_open_device, mtt_close_device);
}

/* Checkpoints together with other features: an offload, autocast, outer checkpoints, a device
 * without data. */
#include <stdlib.h>
#include <string.h>
#include "memtape/offload.h"
#include "mtt.h"

enum { B = 2, S = 32, H = 32, LAYERS = 3 };

typedef struct tower {
    mt_device *device;
    mt_module *block[LAYERS];
    mt_tensor *x;
} tower;

static tower tower_open(const char *kind)
{
    tower t = {.device = kind ? mt_device_open(kind) : mtt_device()};
    assert_non_null(t.device);
    mt_seed(t.device, 9);
    const mt_model_config config = {.kind = MT_MODEL_BLOCK,
                                    .hidden = H,
                                    .heads = 4,
                                    .act = MT_ACT_GELU,
                                    .dropout = 0.2,
                                    .attention = MT_ATTENTION_MATH,
                                    .dtype = MT_F32};
    for (int i = 0; i < LAYERS; i++) {
        t.block[i] = mt_model_new(t.device, &config);
        assert_non_null(t.block[i]);
    }
    t.x = mtt_made(mt_normal(t.device, MT_F32, MT_SHAPE(B, S, H), 0, 1));
    mtt_ok(mt_set_requires_grad(t.x, true));
    mtt_ok(mt_set_balance_check(t.device, true));
    return t;
}

static void tower_close(tower *t)
{
    mt_release(t->x);
    for (int i = 0; i < LAYERS; i++) mt_module_free(t->block[i]);
    mt_mem_stats stats;
    mt_mem_get_stats(t->device, &stats);
    assert_int_equal(stats.allocated.current, 0);
    assert_int_equal(mt_last_status(), MT_OK);
    mt_device_release(t->device);
}

static mt_tensor *forward(tower *t)
{
    mt_tensor *h = mt_retain(t->x);
    for (int i = 0; i < LAYERS; i++) mt_set(&h, mt_forward(t->block[i], h));
    mt_set(&h, mt_sum_all(h));
    return mtt_made(h);
}

static void set_checkpoint(tower *t, const char *preset, const mt_checkpoint_options *options)
{
    for (int i = 0; i < LAYERS; i++) mtt_ok(mt_model_checkpoint_with(t->block[i], preset, options));
}

static void assert_same_grads(tower *a, tower *b)
{
    assert_true(mtt_same_bits(mt_grad(a->x), mt_grad(b->x)));
    for (int i = 0; i < LAYERS; i++) {
        const mt_named_tensor *p, *q;
        size_t n;
        mtt_ok(mt_module_params(a->block[i], &p, &n));
        mtt_ok(mt_module_params(b->block[i], &q, &n));
        for (size_t k = 0; k < n; k++)
            assert_true(mtt_same_bits(mt_grad(p[k].tensor), mt_grad(q[k].tensor)));
    }
}

static tower plain_run(void)
{
    tower t = tower_open(NULL);
    MT_AUTO mt_tensor *loss = forward(&t);
    mtt_ok(mt_backward(loss));
    return t;
}

static const mt_checkpoint_options checked = {.check = true};

static void an_offload_moves_the_inputs_of_checkpoints(void **state)
{
    (void)state;
    tower a = plain_run(), b = tower_open(NULL);
    set_checkpoint(&b, "full", &checked);
    mt_offload *offload = mt_offload_new(b.device, NULL);
    assert_non_null(offload);
    mtt_ok(mt_offload_begin(offload));
    mt_tensor *loss = forward(&b);
    mtt_ok(mt_offload_end(offload));
    mt_offload_stats stats;
    mtt_ok(mt_offload_get_stats(offload, &stats));
    /* x is the caller's and stays; the inputs of the other layers are moved. */
    assert_int_equal(stats.bytes_out, (LAYERS - 1) * B * S * H * 4);
    mtt_ok(mt_backward(loss));
    mt_release(loss);
    mtt_ok(mt_offload_get_stats(offload, &stats));
    assert_int_equal(stats.bytes_in, stats.bytes_out);
    mt_offload_free(offload);
    assert_same_grads(&a, &b);
    tower_close(&a);
    tower_close(&b);
}

static mt_policy offload_products(void *user, const mt_op_call *call)
{
    (void)user;
    return call->flops && strcmp(call->op, "linear") == 0 ? MT_OFFLOAD : MT_PREFER_RECOMPUTE;
}

static void a_policy_sends_what_it_keeps_to_an_offload(void **state)
{
    (void)state;
    tower a = plain_run(), b = tower_open(NULL);
    mt_offload *offload = mt_offload_new(b.device, &(mt_offload_options){.min_bytes = 1});
    assert_non_null(offload);
    const mt_checkpoint_options options = {.policy = offload_products,
                                           .check = true,
                                           .away = mt_offload_hooks(),
                                           .away_user = offload};
    set_checkpoint(&b, "full", &options);
    mt_tensor *loss = forward(&b);
    mt_offload_stats stats;
    mtt_ok(mt_offload_get_stats(offload, &stats));
    assert_int_equal(stats.bytes_out, LAYERS * 9 * B * S * H * 4);
    mt_flops_reset(b.device);
    mtt_ok(mt_backward(loss));
    mt_release(loss);
    /* Only the two products of each attention are recomputed. */
    assert_int_equal(mt_flops_get(b.device).recompute, LAYERS * 2 * 2 * B * S * S * H);
    assert_same_grads(&a, &b);
    mt_offload_free(offload);
    tower_close(&a);
    tower_close(&b);
}

static void nested_checkpoints_keep_what_the_outer_ones_keep(void **state)
{
    (void)state;
    tower a = plain_run(), b = tower_open(NULL);
    set_checkpoint(&b, "full", &checked);
    for (int i = 0; i < LAYERS; i++)
        mtt_ok(mt_module_set_checkpoint(mt_module_find(b.block[i], "attn.heads"), &checked));
    mt_ledger *ledger = mt_ledger_new(b.device);
    mtt_ok(mt_ledger_begin(ledger));
    mt_tensor *loss = forward(&b);
    mtt_ok(mt_ledger_end(ledger));
    assert_int_equal(mt_ledger_bytes(ledger), LAYERS * B * S * H * 4);
    mtt_ok(mt_backward(loss));
    mt_release(loss);
    mt_ledger_free(ledger);
    assert_same_grads(&a, &b);
    tower_close(&a);
    tower_close(&b);
}

static void a_checkpoint_runs_again_under_the_autocast_of_its_forward(void **state)
{
    (void)state;
    tower t[3];
    for (int i = 0; i < 3; i++) {
        t[i] = tower_open(NULL);
        if (i) set_checkpoint(&t[i], i == 1 ? "full" : "selective", &checked);
        mtt_ok(mt_autocast_begin(MT_BF16));
        MT_AUTO mt_tensor *loss = forward(&t[i]);
        mtt_ok(mt_autocast_end());
        mtt_ok(mt_backward(loss));
        assert_false(mt_autocast_active(NULL));
        if (i) assert_same_grads(&t[0], &t[i]);
    }
    for (int i = 0; i < 3; i++) tower_close(&t[i]);
}

/* Two products of one input, as an adapter beside its linear: autocast casts it twice unless it is
 * a leaf. user: [2], their weights */
static mt_status two_products(void *user, int n_in, mt_tensor *const *in, int n_out,
                              mt_tensor **out)
{
    mt_tensor **w = user;
    (void)n_in, (void)n_out;
    MT_AUTO mt_tensor *a = mt_linear(in[0], w[0], NULL), *b = mt_linear(in[0], w[1], NULL);
    out[0] = mt_mul(a, b);
    return out[0] ? MT_OK : mt_last_status();
}

static mt_policy keep_products(void *user, const mt_op_call *call)
{
    (void)user;
    return strcmp(call->op, "linear") ? MT_PREFER_RECOMPUTE : MT_MUST_SAVE;
}

static void a_policy_meets_the_casts_of_its_forward_again(void **state)
{
    (void)state;
    mt_device *device = mt_device_open("cpu");
    for (int made = 0; made < 2; made++) {
        mt_tensor *w[2], *grad[2][2];
        for (int i = 0; i < 2; i++)
            w[i] = mtt_made(mtt_random(device, MT_F32, MT_SHAPE(4, 4), 7 + (uint64_t)i, -1, 1));
        for (int kept = 0; kept < 2; kept++) {
            const mt_checkpoint_options options = {.policy = kept ? keep_products : NULL};
            MT_AUTO mt_tensor *leaf = mtt_random(device, MT_F32, MT_SHAPE(3, 4), 5, -1, 1);
            MT_AUTO mt_tensor *y = NULL;
            for (int i = 0; i < 2; i++) mtt_ok(mt_set_requires_grad(w[i], true));
            mtt_ok(mt_set_requires_grad(leaf, true));
            mtt_ok(mt_autocast_begin(MT_BF16));
            MT_AUTO mt_tensor *x = made ? mt_gelu(leaf) : mt_retain(leaf);
            mtt_ok(mt_checkpoint(two_products, w, NULL, 1, &x, 1, &y, &options));
            mtt_ok(mt_autocast_end());
            mt_set(&y, mtt_made(mt_sum_all(y)));
            mtt_ok(mt_backward(y));
            for (int i = 0; i < 2; i++) {
                grad[kept][i] = mt_retain(mt_grad(w[i]));
                mtt_ok(mt_set_grad(w[i], NULL));
            }
        }
        for (int i = 0; i < 2; i++) {
            assert_true(mtt_same_bits(grad[0][i], grad[1][i]));
            for (int kept = 0; kept < 2; kept++) mt_release(grad[kept][i]);
            mt_release(w[i]);
        }
    }
    assert_int_equal(mtt_allocated(device), 0);
    mt_device_release(device);
}

static void on_meta_bytes_and_shapes_are_the_same(void **state)
{
    (void)state;
    size_t bytes[2];
    mt_flops flops[2];
    for (int i = 0; i < 2; i++) {
        tower t = tower_open(i ? "meta" : NULL);
        set_checkpoint(&t, "full", &checked);
        mt_ledger *ledger = mt_ledger_new(t.device);
        mt_flops_reset(t.device);
        mtt_ok(mt_ledger_begin(ledger));
        MT_AUTO mt_tensor *loss = forward(&t);
        mtt_ok(mt_ledger_end(ledger));
        mtt_ok(mt_backward(loss));
        bytes[i] = mt_ledger_bytes(ledger);
        flops[i] = mt_flops_get(t.device);
        mt_ledger_free(ledger);
        mt_release(loss), loss = NULL;
        tower_close(&t);
    }
    assert_int_equal(bytes[0], bytes[1]);
    assert_memory_equal(&flops[0], &flops[1], sizeof flops[0]);
    assert_int_equal(flops[0].recompute, flops[0].forward);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_offload_moves_the_inputs_of_checkpoints),
        cmocka_unit_test(a_policy_sends_what_it_keeps_to_an_offload),
        cmocka_unit_test(nested_checkpoints_keep_what_the_outer_ones_keep),
        cmocka_unit_test(a_checkpoint_runs_again_under_the_autocast_of_its_forward),
        cmocka_unit_test(a_policy_meets_the_casts_of_its_forward_again),
        cmocka_unit_test(on_meta_bytes_and_shapes_are_the_same),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

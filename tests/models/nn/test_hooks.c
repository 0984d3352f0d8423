/* Whole models under the engine's ways to spend fewer bytes: offload, checkpoints, compression. */
#include <stdlib.h>
#include <string.h>
#include "memtape/compress.h"
#include "memtape/offload.h"
#include "mtt_fixture.h"
#include "trainer.h"

/* ---- offload ---- */

static mt_offload_stats report_of(mt_offload *o)
{
    mt_offload_stats stats;
    mtt_ok(mt_offload_get_stats(o, &stats));
    return stats;
}

static unsigned char *train(const mt_offload_options *options, bool whole_step, size_t *n_bytes)
{
    trainer t;
    double loss[3];
    assert_true(trainer_open(&t, NULL, 11));
    mt_offload *o = options ? mt_offload_new(t.device, options) : NULL;
    for (int i = 0; i < 3; i++) {
        if (!whole_step) {
            mtt_ok(mt_module_zero_grad(t.gpt));
            if (o) mtt_ok(mt_offload_begin(o));
            MT_AUTO mt_tensor *h = mt_forward(t.gpt, t.tokens);
            mt_set(&h, mtt_made(mt_cross_entropy(h, t.targets, MT_IGNORE)));
            if (o) mtt_ok(mt_offload_end(o));
            mtt_ok(mt_backward(h));
            mtt_ok(mt_clip_grad_norm(t.gpt, 1, NULL));
            mtt_ok(mt_optimizer_step(t.adamw));
        } else {
            if (o) mtt_ok(mt_offload_begin(o));
            mtt_ok(trainer_step(&t, &loss[i]));
            if (o) mtt_ok(mt_offload_end(o));
        }
        if (o) assert_true(report_of(o).n_out > 20);
        if (o && !whole_step) assert_int_equal(report_of(o).bytes_in, report_of(o).bytes_out);
        if (o) assert_int_equal(report_of(o).host_bytes, 0);
    }
    unsigned char *weights = trainer_weights(&t, n_bytes);
    mt_offload_free(o);
    trainer_close(&t);
    assert_int_equal(mtt_allocated(t.device), 0);
    mt_device_release(t.device);
    return weights;
}

static void training_with_dropout_has_the_same_bits(void **state)
{
    (void)state;
    size_t n_bytes, n;
    unsigned char *plain = train(NULL, false, &n_bytes);
    for (int i = 0; i < 8; i++) {
        mt_offload_options options = {.min_bytes = 1,
                                      .in_flight = i & 1 ? 1 : 100,
                                      .prefetch = i & 2 ? -1 : 5,
                                      .inputs = i == 4};
        unsigned char *other = train(&options, i & 4, &n);
        assert_int_equal(n, n_bytes);
        assert_memory_equal(plain, other, n_bytes);
        free(other);
    }
    free(plain);
}

/* ---- compression ---- */

/* One step of a GPT with dropout, also on attention's weights; returns the loss. */
static mt_tensor *gpt_step(mt_module *gpt, mt_tensor *tokens, mt_compress *c, size_t *saved)
{
    mt_ledger *ledger = mt_ledger_new(device);
    mt_seed(device, 5);
    mtt_ok(mt_module_zero_grad(gpt));
    mtt_ok(mt_ledger_begin(ledger));
    if (c) mtt_ok(mt_compress_begin(c));
    MT_AUTO mt_tensor *logits = mtt_made(mt_forward(gpt, tokens));
    MT_AUTO mt_tensor *loss = mtt_made(mt_cross_entropy(logits, tokens, MT_IGNORE));
    if (c) mtt_ok(mt_compress_end(c));
    mtt_ok(mt_ledger_end(ledger));
    mtt_ok(mt_backward(loss));
    *saved = mt_ledger_bytes(ledger);
    mt_ledger_free(ledger);
    return mtt_made(mt_clone(loss));
}

static void a_gpt_with_dropout_trains_the_same_with_seeds(void **state)
{
    (void)state;
    enum { B = 2, S = 16, D = 32, A = 2, LAYERS = 2 };
    mt_model_config config = {.kind = MT_MODEL_GPT,
                              .hidden = D,
                              .heads = A,
                              .layers = LAYERS,
                              .vocab = 20,
                              .context = S,
                              .act = MT_ACT_RELU,
                              .dropout = 0.2,
                              .attention = MT_ATTENTION_MATH};
    mt_module *gpt = mt_model_new(device, &config);
    assert_non_null(gpt);
    int64_t ids[B * S];
    for (int i = 0; i < B * S; i++) ids[i] = i * 7 % 20;
    MT_AUTO mt_tensor *tokens =
        mtt_made(mt_from_data(device, MT_I64, MT_SHAPE(B, S), ids, sizeof ids));
    size_t exact_bytes, packed_bytes, n;
    const mt_named_tensor *list;
    mtt_ok(mt_module_params(gpt, &list, &n));
    mt_tensor **exact = calloc(n, sizeof *exact);
    assert_non_null(exact);
    MT_AUTO mt_tensor *a = gpt_step(gpt, tokens, NULL, &exact_bytes);
    for (size_t i = 0; i < n; i++) exact[i] = mtt_made(mt_clone(mt_grad(list[i].tensor)));
    mt_compress *c = mt_compress_new(
        device, &(mt_compress_options){.rules = 1u << MT_COMPRESS_MASK_SEED, .min_bytes = 1});
    MT_AUTO mt_tensor *b = gpt_step(gpt, tokens, c, &packed_bytes);
    assert_true(mtt_same_bits(a, b));
    for (size_t i = 0; i < n; i++) {
        assert_true(mtt_same_bits(mt_grad(list[i].tensor), exact[i]));
        mt_release(exact[i]);
    }
    free(exact);
    /* masks: of the attention weights and two projections in each layer, and of the embeddings */
    assert_int_equal(packed_bytes,
                     exact_bytes - LAYERS * (A * S * S * B + 2 * B * S * D) - B * S * D);
    mt_compress_free(c);
    mt_module_free(gpt);
}

/* ---- gradients of given inputs ---- */

/* The loss after one forward of the trainer's model. */
static mt_tensor *loss_of(trainer *t, mt_offload *offload)
{
    mt_seed(t->device, 3);
    if (offload) mtt_ok(mt_offload_begin(offload));
    mt_tensor *h = mt_forward(t->gpt, t->tokens);
    mt_set(&h, mt_cross_entropy(h, t->targets, MT_IGNORE));
    if (offload) mtt_ok(mt_offload_end(offload));
    return mtt_made(h);
}

static void check_parameters(trainer *t, mt_tensor *loss)
{
    const mt_named_tensor *list;
    size_t n;
    mtt_ok(mt_module_params(t->gpt, &list, &n));
    mt_tensor *inputs[64], *all[64], *alone;
    assert_true(n <= 64);
    for (size_t i = 0; i < n; i++) inputs[i] = list[i].tensor;
    mt_gradients_options o = {1, &loss, NULL, (int)n, inputs, .retain_graph = true};
    mtt_ok(mt_gradients(&o, all));
    mt_gradients_options one = {1, &loss, NULL, 1, &inputs[n / 2], .retain_graph = true};
    mtt_ok(mt_gradients(&one, &alone));
    for (size_t i = 0; i < n; i++) assert_null(mt_grad(inputs[i]));
    mtt_ok(mt_backward(loss));
    assert_true(mtt_same_bits(alone, mt_grad(inputs[n / 2])));
    for (size_t i = 0; i < n; i++) {
        assert_true(mtt_same_bits(all[i], mt_grad(inputs[i])));
        mt_release(all[i]);
    }
    mt_release(alone);
}

static void checkpoints_and_offloads_work_with_gradients_of_given_inputs(void **state)
{
    (void)state;
    static const char *const presets[] = {"none", "full", "selective"};
    for (int i = 0; i < 6; i++) {
        trainer t;
        assert_true(trainer_open(&t, NULL, 5));
        mtt_ok(mt_set_balance_check(t.device, true));
        mtt_ok(mt_model_checkpoint(t.gpt, presets[i % 3]));
        mt_offload *offload =
            i < 3 ? NULL : mt_offload_new(t.device, &(mt_offload_options){.min_bytes = 1});
        mt_tensor *loss = loss_of(&t, offload);
        check_parameters(&t, loss);
        mt_release(loss);
        /* A graph of which only a part ran, and was freed. */
        mtt_ok(mt_module_zero_grad(t.gpt));
        loss = loss_of(&t, offload);
        mt_tensor *input = mt_module_param(mt_module_child(t.gpt, "ln_f"), "weight"), *out;
        mt_gradients_options o = {1, &loss, NULL, 1, &input};
        mtt_ok(mt_gradients(&o, &out));
        assert_null(mt_grad(input));
        mt_release(out);
        mt_release(loss);
        mt_offload_free(offload);
        trainer_close(&t);
        assert_int_equal(mtt_allocated(t.device), 0);
        mt_device_release(t.device);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        mtt_test(training_with_dropout_has_the_same_bits),
        mtt_test(a_gpt_with_dropout_trains_the_same_with_seeds),
        mtt_test(checkpoints_and_offloads_work_with_gradients_of_given_inputs),
    };
    return cmocka_run_group_tests(tests, mtt_open_device, mtt_close_device);
}

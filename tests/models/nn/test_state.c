/* State that training changes: a checkpoint has all of it, and evaluation changes none. Beside
 * parameters and the optimizer's state that is what a module keeps from step to step. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "base/base.h"
#include "memtape/ops.h"
#include "planted.h"

enum { B = 4, S = 32, V = 64, D = 64 };

typedef struct run {
    mt_device *device;
    mt_module *model;
    mt_optimizer *optimizer;
} run;

/* A variant of model that may keep something; `with_batch_norm`: before it, in the same tree. */
typedef struct variant {
    const char *name;
    mt_model_config config;
    bool adapted, with_batch_norm;
} variant;

#define EACH_LINEAR(kind_, form)                                                                   \
    {                                                                                              \
#form " in " #kind_, { .kind = MT_MODEL_##kind_, .ops.linear = form, .dropout = 0.1 }      \
    }
static const variant variants[] = {
    EACH_LINEAR(GPT, MT_LINEAR_NATIVE),
    EACH_LINEAR(GPT, MT_LINEAR_TORCHAO_FLOAT8),
    EACH_LINEAR(GPT, MT_LINEAR_TORCHAO_MXFP8),
    EACH_LINEAR(GPT, MT_LINEAR_TORCHAO_NVFP4),
    EACH_LINEAR(GPT, MT_LINEAR_TE_DELAYED),
    EACH_LINEAR(GPT, MT_LINEAR_TE_CURRENT),
    EACH_LINEAR(GPT, MT_LINEAR_TE_MXFP8),
    EACH_LINEAR(GPT, MT_LINEAR_TE_NVFP4),
    EACH_LINEAR(BERT, MT_LINEAR_TE_DELAYED),
    EACH_LINEAR(LLAMA, MT_LINEAR_TE_DELAYED),
    {"te-delayed, joint",
     {.kind = MT_MODEL_LLAMA, .ops.linear = MT_LINEAR_TE_DELAYED, .joint_products = true}},
    {"te-delayed, adapters",
     {.kind = MT_MODEL_LLAMA, .ops.linear = MT_LINEAR_TE_DELAYED},
     .adapted = true},
    {"te-delayed, mixture",
     {.kind = MT_MODEL_LLAMA,
      .ops.linear = MT_LINEAR_TE_DELAYED,
      .experts = 4,
      .experts_per_token = 2,
      .shared_experts = 1,
      .router = MT_ROUTER_SIGMOID,
      .balance_rate = 0.1}},
    {"ahead", {.kind = MT_MODEL_GPT, .ops.linear = MT_LINEAR_TE_DELAYED, .mtp_layers = 1}},
    {"batch norm", {.kind = MT_MODEL_GPT}, .with_batch_norm = true},
};
#define N(array) (sizeof(array) / sizeof *(array))

/* ---- runs ---- */

/* Embeds tokens, normalises each column, and runs the rest on one-hot tokens of the largest. */
static mt_tensor *normed_forward(mt_module *m, mt_tensor *tokens)
{
    MT_AUTO mt_tensor *y = mt_forward_child(m, "model", tokens);
    MT_AUTO mt_tensor *rows = y ? mt_reshape(y, MT_SHAPE(-1, V)) : NULL;
    MT_AUTO mt_tensor *normed = rows ? mt_forward_child(m, "norm", rows) : NULL;
    return normed ? mt_reshape(normed, MT_SHAPE(mt_numel(normed) / (S * V), S, V)) : NULL;
}

static run start(const variant *v, uint64_t seed)
{
    run r = {.device = mtt_device()};
    mt_model_config c = v->config;
    c.hidden = D, c.heads = 2, c.layers = 2, c.vocab = V, c.context = S, c.ffn = 2 * D;
    mt_seed(r.device, seed);
    r.model = mt_model_new(r.device, &c);
    assert_non_null(r.model);
    if (v->adapted) mtt_ok(mt_lora_add(r.model, &(mt_lora_options){.rank = 2}, NULL));
    if (v->with_batch_norm) {
        mt_module *both = mt_module_new("normed", normed_forward, NULL, NULL);
        assert_non_null(mt_module_add_child(both, "model", r.model));
        assert_non_null(
            mt_module_add_child(both, "norm", mt_batch_norm_new(r.device, MT_F32, V, 0, 0)));
        r.model = both;
    }
    r.optimizer = mt_adamw_new(r.model, &(mt_adamw_options){.lr = 1e-2});
    assert_non_null(r.optimizer);
    return r;
}

static void stop(run *r)
{
    mt_optimizer_free(r->optimizer);
    mt_module_free(r->model);
    mt_device_release(r->device);
}

/* The loss on a batch that follows from the draw. */
static mt_tensor *loss_of(run *r, uint64_t draw)
{
    int64_t ids[2][B * S];
    for (int i = 0; i < B * S; i++)
        for (int k = 0; k < 2; k++) ids[k][i] = (int64_t)mtt_draw(&draw, 0, V);
    MT_AUTO mt_tensor *x = mt_from_data(r->device, MT_I64, MT_SHAPE(B, S), ids[0], sizeof ids[0]);
    MT_AUTO mt_tensor *y = mt_from_data(r->device, MT_I64, MT_SHAPE(B, S), ids[1], sizeof ids[1]);
    if (mt_model_config_of(r->model)) return mtt_made(mt_model_forward_loss(r->model, x, y));
    MT_AUTO mt_tensor *h = mtt_made(mt_forward(r->model, x));
    return mtt_made(mt_cross_entropy(h, y, MT_IGNORE));
}

static void train(run *r, uint64_t from, uint64_t to)
{
    for (uint64_t step = from; step < to; step++) {
        MT_AUTO mt_tensor *loss = loss_of(r, step);
        mtt_ok(mt_backward(loss));
        mtt_ok(mt_optimizer_step(r->optimizer));
        mtt_ok(mt_module_zero_grad(r->model));
    }
}

/* A loss without gradients, and one with, in evaluation; returns the first. */
static double evaluate(run *r)
{
    mt_module_set_training(r->model, false);
    const bool grad = mt_set_grad_mode(false);
    MT_AUTO mt_tensor *loss = loss_of(r, 1000);
    MT_AUTO mt_tensor *again = loss_of(r, 1000);
    assert_true(mtt_same_bits(loss, again));
    mt_set_grad_mode(grad);
    MT_AUTO mt_tensor *with = loss_of(r, 1001);
    mtt_ok(mt_backward(with));
    mtt_ok(mt_module_zero_grad(r->model));
    mt_module_set_training(r->model, true);
    return mt_item(loss);
}

/* ---- files ---- */

typedef struct bytes {
    unsigned char *at;
    size_t n;
} bytes;

/* What a checkpoint of the run holds. */
static bytes file_of(run *r)
{
    const char *path = planted_path("state.safetensors");
    bytes b;
    mtt_ok(mt_checkpoint_save(path, r->model, r->optimizer, 1, 0, NULL));
    b.at = planted_read(path, &b.n);
    unlink(path);
    return b;
}

static void assert_same(const char *what, const variant *v, bytes a, bytes b)
{
    if (a.n != b.n || memcmp(a.at, b.at, a.n) != 0) fail_msg("%s: %s", v->name, what);
    free(a.at), free(b.at);
}

static void load(run *r, bytes from)
{
    const char *path = planted_path("load.safetensors");
    planted_bytes(path, from.at, from.n);
    mt_safetensors *f = mt_safetensors_open(path);
    assert_non_null(f);
    mtt_ok(mt_checkpoint_load(f, r->model, r->optimizer, NULL));
    mt_safetensors_free(f);
    unlink(path);
}

/* ---- tests ---- */

static void a_run_goes_on_from_its_file_whatever_its_modules_keep(void **state)
{
    (void)state;
    for (size_t i = 0; i < N(variants); i++) {
        run whole = start(&variants[i], 1), second = start(&variants[i], 999);
        train(&whole, 0, 3);
        bytes half = file_of(&whole);
        load(&second, half);
        assert_same("loaded and saved, the file is another", &variants[i], file_of(&second), half);
        train(&whole, 3, 6), train(&second, 3, 6);
        assert_same("a resumed run ends with other bits", &variants[i], file_of(&second),
                    file_of(&whole));
        assert_true(evaluate(&second) == evaluate(&whole));
        stop(&second), stop(&whole);
    }
}

static void evaluation_changes_nothing_that_training_reads(void **state)
{
    (void)state;
    for (size_t i = 0; i < N(variants); i++) {
        run with = start(&variants[i], 1), without = start(&variants[i], 1);
        for (uint64_t step = 0; step < 4; step++) {
            bytes before = file_of(&with);
            evaluate(&with);
            assert_same("evaluation changed the file", &variants[i], file_of(&with), before);
            train(&with, step, step + 1), train(&without, step, step + 1);
        }
        assert_same("a run with evaluations ends with other bits", &variants[i], file_of(&with),
                    file_of(&without));
        stop(&with), stop(&without);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_run_goes_on_from_its_file_whatever_its_modules_keep),
        cmocka_unit_test(evaluation_changes_nothing_that_training_reads),
    };
    return cmocka_run_group_tests(tests, NULL, planted_end);
}

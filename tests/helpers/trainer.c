#include <math.h>
#include <stdlib.h>
#include "trainer.h"

static mt_tensor *draw_tokens(mt_device *device, int64_t vocab, uint64_t seed)
{
    int64_t index[2 * 7];
    for (int i = 0; i < 2 * 7; i++) index[i] = (int64_t)mtt_draw(&seed, 0, (double)vocab);
    return mt_from_data(device, MT_I64, MT_SHAPE(2, 7), index, sizeof index);
}

bool trainer_open(trainer *t, const mt_model_config *config, uint64_t seed)
{
    static const mt_model_config tiny = {.kind = MT_MODEL_GPT,
                                         .hidden = 12,
                                         .heads = 3,
                                         .layers = 2,
                                         .vocab = 11,
                                         .context = 7,
                                         .act = MT_ACT_GELU,
                                         .dropout = 0.1,
                                         .attention = MT_ATTENTION_FLASH,
                                         .dtype = MT_F32};
    if (!config) config = &tiny;
    *t = (trainer){.device = mtt_device()};
    if (!t->device) return false;
    mt_seed(t->device, seed);
    t->gpt = mt_model_new(t->device, config);
    t->adamw = mt_adamw_new(t->gpt, &(mt_adamw_options){.lr = 1e-2, .weight_decay = 0.1});
    t->tokens = draw_tokens(t->device, config->vocab, seed);
    t->targets = draw_tokens(t->device, config->vocab, seed + 1);
    return t->gpt && t->adamw && t->tokens && t->targets;
}

void trainer_close(trainer *t)
{
    mt_optimizer_free(t->adamw);
    mt_module_free(t->gpt);
    mt_release(t->tokens);
    mt_release(t->targets);
    t->adamw = NULL;
    t->gpt = NULL;
    t->tokens = t->targets = NULL;
}

mt_status trainer_step(trainer *t, double *loss)
{
    mt_status status = mt_module_zero_grad(t->gpt);
    if (status != MT_OK) return status;
    MT_AUTO mt_tensor *h = mt_forward(t->gpt, t->tokens);
    mt_set(&h, mt_cross_entropy(h, t->targets, MT_IGNORE));
    if (!h) return mt_last_status();
    double value = mt_item(h);
    if (isnan(value)) return mt_last_status();
    status = mt_backward(h);
    if (status == MT_OK) status = mt_clip_grad_norm(t->gpt, 1, NULL);
    if (status == MT_OK) status = mt_optimizer_step(t->adamw);
    if (status == MT_OK) *loss = value;
    return status;
}

unsigned char *trainer_weights(trainer *t, size_t *n_bytes)
{
    const mt_named_tensor *list;
    size_t n, at = 0;
    *n_bytes = 0;
    mtt_ok(mt_module_params(t->gpt, &list, &n));
    for (size_t i = 0; i < n; i++) *n_bytes += mt_storage_of(list[i].tensor).bytes;
    unsigned char *all = malloc(*n_bytes);
    assert_non_null(all);
    for (size_t i = 0; i < n; i++) {
        size_t bytes = mt_storage_of(list[i].tensor).bytes;
        mtt_ok(mt_to_host(list[i].tensor, all + at, bytes));
        at += bytes;
    }
    return all;
}

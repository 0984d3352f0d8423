/* What does a cache waste when sequences are of unequal length?
 *
 * Three sequences of 5, 17 and 40 tokens, each with a cache of its own. Preallocated, each has room
 * for the longest that may come; growing, each has just what it holds, and copies it at every step;
 * paged, each has blocks of 16 positions, the last of which is partly empty. */
#include "expect.h"

enum { HIDDEN = 64, HEADS = 4, LAYERS = 2, LONGEST = 40, SEQUENCES = 3 };

static const int64_t lengths[SEQUENCES] = {5, 17, 40};

/* Keys and values of one position: 2 k h L e, with all heads together as wide as the model. */
static const int64_t position = 2 * HIDDEN * LAYERS * (int64_t)sizeof(float);

/* Positions that a cache of this form has room for when it holds n. */
static int64_t room(mt_kv_form form, int64_t n)
{
    if (form == MT_KV_PREALLOCATED) return LONGEST;
    return form == MT_KV_GROWING ? n : (n + MT_KV_BLOCK - 1) / MT_KV_BLOCK * MT_KV_BLOCK;
}

static void measure(mt_module *llama, mt_device *device, mt_kv_form form)
{
    int64_t bytes = 0, used = 0, by_hand = 0, by_hand_used = 0;
    for (int i = 0; i < SEQUENCES; i++) {
        mt_kv_cache *cache = mt_kv_cache_new(llama, form, 1, LONGEST);
        mt_tensor *tokens = mt_zeros(device, MT_I64, MT_SHAPE(1, lengths[i]));
        mt_release(mt_next_logits(llama, cache, tokens));
        mt_release(tokens);
        bytes += (int64_t)mt_kv_cache_bytes(cache, NULL);
        used += (int64_t)mt_kv_cache_used(cache);
        mt_kv_cache_free(cache);
        by_hand += room(form, lengths[i]) * position;
        by_hand_used += lengths[i] * position;
    }
    char line[64];
    snprintf(line, sizeof line, "%s: bytes of the three caches", mt_kv_form_name(form));
    expect(line, bytes, by_hand);
    snprintf(line, sizeof line, "%s: wasted", mt_kv_form_name(form));
    expect(line, bytes - used, by_hand - by_hand_used);
}

int main(void)
{
    const mt_model_config config = {.kind = MT_MODEL_LLAMA,
                                    .hidden = HIDDEN,
                                    .heads = HEADS,
                                    .layers = LAYERS,
                                    .vocab = 256,
                                    .context = LONGEST};
    mt_device *device = mt_device_open("cpu");
    mt_module *llama = mt_model_new(device, &config);
    measure(llama, device, MT_KV_PREALLOCATED);
    measure(llama, device, MT_KV_GROWING);
    measure(llama, device, MT_KV_PAGED);
    mt_module_free(llama);
    mt_device_release(device);
    return finish();
}

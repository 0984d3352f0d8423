/* What does a key-value cache cost?
 *
 * A new token attends to the keys and values of all tokens before it. A cache of them takes
 * 2 b t k h L e bytes for b sequences of t tokens, k heads of width h in each of L layers, e bytes
 * per element; without a cache, each token costs the arithmetic of the whole text. Fewer key and
 * value heads (grouped-query, multi-query) and fewer bits make the cache smaller. */
#include <stdio.h>
#include <memtape/all.h>

enum { PROMPT = 32, NEW = 96, HIDDEN = 64, HEADS = 4, WIDTH = HIDDEN / HEADS, LAYERS = 2 };

/* One row: prompt and new tokens through a model of `kv_heads`; false if the books disagree. */
static bool row(mt_device *device, int64_t kv_heads, bool cached, mt_kv_form form)
{
    const mt_model_config config = {.kind = MT_MODEL_LLAMA,
                                    .hidden = HIDDEN,
                                    .heads = HEADS,
                                    .kv_heads = kv_heads,
                                    .layers = LAYERS,
                                    .vocab = 256,
                                    .context = PROMPT + NEW};
    mt_module *llama = mt_model_new(device, &config);
    int64_t prompt[PROMPT] = {0};
    const mt_generate_options how = {.temperature = 1, .no_cache = !cached, .cache = form};
    mt_generate_stats stats = {0};
    mt_mem_region region;
    mt_mem_region_begin(&region, device);
    mt_generate(llama, 1, PROMPT, prompt, NEW, &how, NULL, NULL, &stats);
    mt_mem_region_end(&region);
    mt_module_free(llama);

    /* A growing cache has no keys of the last token, since no token follows it. */
    const size_t positions = PROMPT + NEW - (form == MT_KV_GROWING);
    const size_t vector = form == MT_KV_8BIT ? WIDTH + sizeof(float) : WIDTH * sizeof(float);
    const size_t formula = cached ? 2 * positions * (size_t)kv_heads * vector * LAYERS : 0;
    bool right = mt_last_status() == MT_OK && stats.cache_bytes == formula &&
                 region.delta.peak >= (int64_t)formula;
    printf("%8lld  %-13s %10zu  %-22s %10lld %10.0f  %s\n", (long long)kv_heads,
           cached ? mt_kv_form_name(form) : "none", stats.cache_bytes,
           !cached                 ? "0"
           : form == MT_KV_8BIT    ? "2 t k (h + 4) L"
           : form == MT_KV_GROWING ? "2 (t - 1) k h L 4"
                                   : "2 t k h L 4",
           (long long)region.delta.peak, (double)stats.tokens / (stats.first_s + stats.rest_s),
           right ? "as counted" : "NOT as counted");
    return right;
}

int main(void)
{
    mt_device *device = mt_device_open("cpu");
    if (!device) {
        fprintf(stderr, "%s\n", mt_last_error());
        return 1;
    }
    mt_device_set_threads(device, 1); /* the model is too small for more threads */
    printf("%d tokens after %d: t = %d; a llama of %d layers and %d heads of width %d, f32\n\n",
           NEW, PROMPT, PROMPT + NEW, LAYERS, HEADS, WIDTH);
    printf("kv heads  cache              bytes  formula                      peak   tokens/s\n");
    bool right = true;
    for (int64_t k = HEADS; right && k >= 1; k /= 2) {
        right = row(device, k, false, MT_KV_PREALLOCATED);
        for (int form = 0; right && form < MT_KV_FORM_COUNT; form++)
            right = row(device, k, true, (mt_kv_form)form);
    }
    mt_device_release(device);
    if (mt_last_status() != MT_OK) fprintf(stderr, "%s\n", mt_last_error());
    return right ? 0 : 1;
}

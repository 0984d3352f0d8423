/* How many conversations of 8192 tokens does one H100 hold with Llama 3.1 8B? Each number is found
 * by generating on the meta device; the weights and the KV cache in 16, 8 and 4 bits. */
#include <stdio.h>
#include <memtape/all.h>

static bool most(const mt_model_config *config, const mt_quant *weights, mt_kv_form cache,
                 size_t memory, mt_serve_need *need)
{
    const mt_serve_options options = {.config = config, .weights = weights, .cache = cache};
    return mt_serve_most(&options, memory, need) == MT_OK;
}

int main(void)
{
    static const mt_quant int8 = {.format = MT_QUANT_INT8}, nf4 = {.format = MT_QUANT_NF4};
    static const struct {
        const char *name;
        const mt_quant *format;
    } forms[] = {{"bf16", NULL}, {"int8", &int8}, {"nf4", &nf4}};
    mt_gpu gpu;
    mt_model_config config;
    mt_serve_need need;
    bool ok =
        mt_gpu_find("h100", &gpu) == MT_OK && mt_model_preset("llama-3.1-8b", &config) == MT_OK;
    config.dtype = MT_BF16;
    for (int c = 0; c < 2; c++)
        for (int i = 0; ok && i < 3; i++) {
            mt_kv_form cache = c ? MT_KV_8BIT : MT_KV_PREALLOCATED;
            ok = most(&config, forms[i].format, cache, gpu.memory, &need);
            if (!ok) continue;
            printf("weights %s, cache %-12s  %4lld sequences  weights %11zu  cache %11zu  peak "
                   "%11zu\n",
                   forms[i].name, mt_kv_form_name(cache), (long long)need.sequences, need.weights,
                   need.cache, need.peak);
        }
    if (!ok) fprintf(stderr, "%s\n", mt_last_error());
    return ok ? 0 : 1;
}

/* Does Llama 3.1 8B train on 8 H100s, and how is it best split? Each way to divide it is measured
 * on the meta device; the time of a step is a model. */
#include <stdio.h>
#include <memtape/all.h>

int main(void)
{
    mt_gpu gpu;
    mt_model_config config;
    mt_fit_result result = {0};
    if (mt_gpu_find("h100", &gpu) == MT_OK && mt_model_preset("llama-3.1-8b", &config) == MT_OK) {
        config.dtype = MT_BF16;
        mt_fit_search(&(mt_fit_options){.config = &config, .gpu = &gpu, .gpus = 8, .batch = 16},
                      &result);
    }
    for (size_t i = 0; i < result.n_fitting && i < 5; i++) {
        const mt_fit_setup *s = &result.setups[i];
        const mt_parallel *h = &s->parallel;
        printf("tp %lld pp %lld dp %lld zero %lld  checkpoint %-9s offload %-4s %lld x %lld  "
               "%5.1f GiB  %.3f s\n",
               (long long)h->tensor, (long long)h->pipeline, (long long)h->data, (long long)h->zero,
               s->checkpoint, s->offload, (long long)h->microbatches, (long long)s->microbatch,
               (double)s->reserved / (1 << 30), s->time.total);
    }
    if (mt_last_status() != MT_OK) fprintf(stderr, "%s\n", mt_last_error());
    int status = result.n_fitting ? 0 : 1;
    mt_fit_free(&result);
    return status;
}

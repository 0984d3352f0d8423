/* published.c: the division with which a model was trained, as its report has it, measured. */
#include <string.h>
#include "fit/search.h"

static const struct {
    const char *preset, *source;
    int64_t gpus, batch, seq;
    mt_parallel parallel; /* data follows from gpus */
    unsigned recompute;
} rows[] = {
    {"deepseek-v3",
     "DeepSeek-AI 2024, \"DeepSeek-V3 Technical Report\", 3.2, 3.3 and 4.2: H800s, DualPipe, fp8",
     2048,
     15360,
     4096,
     {.tensor = 1, .pipeline = 16, .expert = 64, .zero = 1},
     MT_RECOMPUTE_LAYERNORM | MT_RECOMPUTE_MLA_UP_PROJ | MT_RECOMPUTE_MOE_ACT}};

/* Korthikanti et al. 2022, table 3: all with 8 ranks that share a layer. */
static const struct {
    const char *preset;
    int64_t pipeline, interleave, microbatch, microbatches;
} megatron[] = {{"megatron-22b", 1, 1, 4, 1},
                {"megatron-175b", 8, 3, 1, 64},
                {"megatron-530b", 35, 3, 1, 280},
                {"megatron-1t", 64, 1, 1, 512}};

/* Whether the workload is the preset as it is. */
static bool is_preset(const mti_workload *w, const char *name)
{
    mt_model_config preset;
    uint64_t n, own;
    return w->preset && !strcmp(w->preset, name) && mt_model_preset(name, &preset) == MT_OK &&
           mt_model_config_params(&preset, &n) == MT_OK &&
           mt_model_config_params(&w->config, &own) == MT_OK && n == own && !w->memory.lora_rank;
}

static bool find(const mti_workload *w, mti_fit_published *out)
{
    mt_parallel *h = &out->setup.parallel;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        if (!is_preset(w, rows[i].preset)) continue;
        *out = (mti_fit_published){rows[i].source,
                                   rows[i].gpus,
                                   rows[i].seq,
                                   rows[i].recompute,
                                   {.parallel = rows[i].parallel, .checkpoint = "none"}};
        h->data = rows[i].gpus / h->tensor / h->pipeline;
        h->microbatches = rows[i].batch / h->data;
    }
    for (size_t i = 0; i < sizeof megatron / sizeof *megatron; i++) {
        if (!is_preset(w, megatron[i].preset)) continue;
        *h = (mt_parallel){.tensor = 8,
                           .sequence = true,
                           .pipeline = megatron[i].pipeline,
                           .interleave = megatron[i].interleave,
                           .microbatches = megatron[i].microbatches};
        out->setup.microbatch = megatron[i].microbatch;
        out->setup.checkpoint = "selective";
        out->source = "Korthikanti et al. 2022, table 3: A100s of 80 GB";
        out->gpus = h->tensor * h->pipeline, out->seq = w->config.context;
    }
    *h = mti_filled_in(h);
    if (!out->setup.microbatch) out->setup.microbatch = 1;
    return out->source;
}

bool mti_fit_measure_published(const mti_workload *workload, const mt_fit_result *r,
                               mti_fit_published *out)
{
    mti_workload w = *workload;
    mti_fit_measured seen;
    *out = (mti_fit_published){0};
    if (!find(workload, out)) return true;
    w.memory.recompute = out->recompute;
    out->setup.offload = "none";
    const mti_fit_task task = {.workload = &w,
                               .gpu = r->gpu,
                               .gpus = out->gpus,
                               .batch = out->setup.parallel.data *
                                        out->setup.parallel.microbatches * out->setup.microbatch,
                               .seq = out->seq,
                               .capacity = r->capacity,
                               .utilisation = 1,
                               .nearest = true};
    return mti_fit_measure(&task, &out->setup, &seen);
}

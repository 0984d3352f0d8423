/* formula.c: what a forward pass keeps, by formula, beside what it was measured to keep. */
#include <string.h>
#include "plan/plan.h"

/* Whether the terms of activations.c cover these options. */
static bool formula_exists(const mti_memory_options *memory)
{
    if (!memory) return true;
    const unsigned rules = memory->compress,
                   floats = 1u << MT_COMPRESS_INT8 | 1u << MT_COMPRESS_BF16;
    bool mixed = (rules & floats) && (rules & 1u << MT_COMPRESS_SIGNS);
    return !memory->amp && !memory->budget && !memory->lora_rank && !mixed &&
           !(memory->offload && (rules || memory->offload_modules));
}

bool mti_formula_make(mti_formula *f, const mt_model_config *config, int64_t batch, int64_t seq,
                      const mti_memory_options *memory, const mt_parallel *parallel,
                      size_t measured)
{
    mti_dims s;
    mti_rank_dims rank;
    *f = (mti_formula){0};
    if (!formula_exists(memory) || config->ops.linear || config->forms) return true;
    if (!mti_dims_make(&s, config, batch, seq, memory)) return false;
    if (parallel && !mti_rank_dims_make(&rank, &s, parallel)) return false;
    mti_formula_build(f, &s);
    if (parallel) f->n_keys = s.seq * rank.seen;
    f->unexplained = (int64_t)measured - f->bytes;
    for (int i = 0; i < f->n_residual; i++) f->unexplained -= f->residual[i].bytes;
    return true;
}

bool mti_plan_rank_activations(mt_plan_formula *out, const mt_model_config *config,
                               const mt_parallel *parallel, int64_t batch, int64_t seq,
                               const mti_memory_options *memory)
{
    mti_formula f;
    if (!mti_formula_make(&f, config, batch, seq, memory, parallel, 0)) return false;
    *out = (mt_plan_formula){.name = "activations",
                             .unit = "bytes",
                             .source = "Korthikanti et al. 2022, table 2, over the parts of the "
                                       "model in flight",
                             .value = f.bytes,
                             .expected = f.bytes};
    snprintf(out->text, sizeof out->text, "%s", f.text);
    for (int i = 0; i < f.n_residual; i++)
        if (!mti_add_row(out, f.residual[i].bytes, "%s", f.residual[i].text)) return false;
    return true;
}

bool mti_routed_formula(mti_formula *f, const mti_workload *w, bool has_data, size_t measured)
{
    *f = (mti_formula){0};
    const bool balanced = !w->routing || !strcmp(w->routing, "balanced");
    const bool bound = w->config.expert_capacity > 0, padded = w->config.expert_padding;
    const unsigned masks = 1u << MT_COMPRESS_MASK_BITS | 1u << MT_COMPRESS_MASK_SEED;
    const bool by_size = w->memory.offload || w->memory.compress & ~masks;
    const bool loop = w->config.experts && mti_expert_form_of(w->config.ops.expert_form)->alone;
    return (loop && by_size && (!balanced || has_data)) ||
           (!padded && bound && (!balanced || has_data)) ||
           (!padded && !balanced && w->ranked && w->parallel.expert > 1) ||
           mti_formula_make(f, &w->config, w->batch, w->seq, &w->memory,
                            w->ranked ? &w->parallel : NULL, measured);
}

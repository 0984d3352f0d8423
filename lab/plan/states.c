/* states.c: formulas for parameters, gradients and optimizer state, and for a KV cache. */
#include <stdio.h>
#include <string.h>
#include "nn/model.h"
#include "optim/optimizers.h"
#include "plan/plan.h"

/* ---- bytes for each parameter ---- */

static const mt_plan_regime regimes[] = {
    {"f32, AdamW", "--dtype f32 --optimizer adamw", 4, 4, 8, "Kingma and Ba 2014: m and v"},
    {"16 bits, AdamW, f32 master weights", "--dtype bf16 --optimizer adamw --master-weights", 2, 2,
     12, "Rajbhandari et al. 2020 (ZeRO), 3.1: 2 + 2 + K = 12"},
    {"the same, gradients in f32",
     "--dtype bf16 --optimizer adamw --master-weights --recipe plain:f32-gradients", 2, 4, 12,
     "sums of many microbatches, as Megatron-LM takes them"},
    {"the same, gradients in both", NULL, 2, 6, 12,
     "Smith et al. 2022 (Megatron-Turing NLG): 20 bytes"},
    {"16 bits, AdamW with f32 state", "--dtype bf16 --optimizer adamw", 2, 2, 8,
     "no master weights: small updates are rounded away"},
    {"16 bits throughout", "--dtype bf16 --optimizer adamw-16bit", 2, 2, 4,
     "m and v in 16 bits, too"},
    {"16 bits, AdamW in 8 bits, scales not counted", "--dtype bf16 --optimizer adamw-8bit", 2, 2, 2,
     "Dettmers et al. 2022: a scale for each 256 codes, small parameters as before"},
    {"16 bits, Adafactor, factors not counted", "--dtype bf16 --optimizer adafactor", 2, 2, 0,
     "Shazeer and Stern 2018: a number for each row and each column"},
    {"the same, f32 master weights", "--dtype bf16 --optimizer adafactor --master-weights", 2, 2, 4,
     "factors not counted"},
    {"f32, SGD with momentum", "--dtype f32 --optimizer sgd-momentum", 4, 4, 4,
     "Sutskever et al. 2013"},
    {"f32, SGD", "--dtype f32 --optimizer sgd", 4, 4, 0, "parameters and gradients alone"},
    {"LoRA over 16 bits, adapters not counted", NULL, 2, 0, 0, "Hu et al. 2021"},
    {"QLoRA, adapters and scales not counted", NULL, 0.5, 0, 0, "Dettmers et al. 2023: NF4"},
    {"inference in 16 bits", NULL, 2, 0, 0, "the parameters alone"},
};

const mt_plan_regime *mt_plan_regime_at(size_t i)
{
    return i < sizeof regimes / sizeof *regimes ? &regimes[i] : NULL;
}

mt_status mt_plan_states(const mt_plan_run *run, const mt_plan_training *training,
                         mt_plan_formula *out)
{
    const mt_plan_training t = training ? *training : (mt_plan_training){0};
    mt_plan_formula count;
    mt_model_config c;
    if (mt_plan_parameters(run, out ? &count : NULL) != MT_OK ||
        mt_model_config_resolve(run->config, &c) != MT_OK)
        return mt_last_status();
    int optimizer = t.optimizer ? mti_choose("plan: optimizer", mti_optimizers.names,
                                             mti_optimizers.n, t.optimizer)
                                : MTI_OPT_NONE;
    if (optimizer < 0) return MT_ERR_ARGUMENT;
    int64_t e = (int64_t)mt_dtype_size(c.dtype);
    int64_t gradient = t.f32_gradients && e == 2 ? 4 : e;
    int64_t state = mti_optimizer_element_bytes(optimizer, c.dtype) + (t.master && e == 2 ? 4 : 0);
    int64_t each = e + gradient + state;
    int64_t n = run->parameters ? run->parameters : count.expected;
    *out =
        (mt_plan_formula){.name = "states",
                          .unit = "bytes",
                          .source = "Rajbhandari et al. 2020 (ZeRO), 3.1: parameters, gradients, "
                                    "optimizer state",
                          .value = n * each,
                          .expected = n * each};
    snprintf(out->text, sizeof out->text, "(%lld + %lld + %lld) N", (long long)e,
             (long long)gradient, (long long)state);
    return mti_add_row(out, (count.expected - n) * each, "parameters that the rounded N leaves out")
               ? MT_OK
               : mt_last_status();
}

/* ---- keys and values ---- */

/* Bytes of the keys and values of seq positions, or of a window's. */
static int64_t cached(const mti_dims *s)
{
    const mt_model_config *c = &s->config;
    const int64_t width = c->kv_rank ? c->kv_rank + c->rope_dim : 2 * s->k;
    const int64_t layers = mti_dims_layers(s) - mti_dims_ahead(s); /* those write no text */
    const int64_t few = c->window && c->window < s->seq ? mti_local_layers(c, 0, c->layers) : 0;
    return s->batch * (s->seq * (layers - few) + c->window * few) * width *
           (int64_t)mt_dtype_size(c->dtype);
}

mt_status mt_plan_kv_cache(const mt_plan_run *run, int64_t new_tokens, mt_plan_formula *out)
{
    mti_dims s;
    mti_memory_options memory;
    if (!mti_run_dims(&s, &memory, run, out)) return mt_last_status();
    mt_model_kind kind = s.config.kind;
    if (kind != MT_MODEL_GPT && kind != MT_MODEL_LLAMA)
        return mti_fail(MT_ERR_ARGUMENT, "plan: a %s writes no text; need a gpt or a llama",
                        mt_model_kind_name(kind));
    if (new_tokens < 0 || new_tokens > s.config.context - s.seq)
        return mti_fail(MT_ERR_ARGUMENT,
                        "plan: %lld tokens after %lld; the model's context is %lld",
                        (long long)new_tokens, (long long)s.seq, (long long)s.config.context);
    s.seq += new_tokens;
    s.tokens = s.batch * s.seq;
    s.memory = NULL;
    *out =
        (mt_plan_formula){.name = "kv cache",
                          .unit = "bytes",
                          .text = "4bLh(s + n)",
                          .source = "Sheng et al. 2023 (FlexGen): keys and values, 2 bytes each, "
                                    "of every position in every layer"};
    return mti_derive_formula(out, &s, cached) ? MT_OK : mt_last_status();
}

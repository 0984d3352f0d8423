/* textbook.c: from the textbook's formula of activations to what a model keeps. */
#include <stdio.h>
#include "nn/model.h"
#include "plan/plan.h"

/* Bytes that the layers keep, small buffers left out. */
static int64_t layers_keep(const mti_dims *s)
{
    mti_formula f;
    int64_t bytes = 0;
    mti_formula_build(&f, s);
    for (int i = 0; i < f.n_layer_terms; i++) bytes += f.terms[i].bytes;
    return bytes;
}

mt_status mt_plan_activations(const mt_plan_run *run, mt_plan_formula *out)
{
    static const char *const texts[MT_MODEL_KIND_COUNT] = {
        [MT_MODEL_BLOCK] = "34bsh + 5abs^2",
        [MT_MODEL_ATTENTION] = "11bsh + 5abs^2",
        [MT_MODEL_MLP] = "19bsh",
        [MT_MODEL_LINEAR] = "2bsh",
    };
    mti_dims s;
    mti_formula f;
    mti_memory_options memory;
    if (!mti_run_dims(&s, &memory, run, out)) return mt_last_status();
    bool whole = mti_is_whole(s.config.kind);
    *out = (mt_plan_formula){.name = "activations",
                             .unit = "bytes",
                             .source = "Korthikanti et al. 2022, \"Reducing Activation "
                                       "Recomputation in Large Transformer Models\", eq. 2"};
    snprintf(out->text, sizeof out->text, "%s",
             whole ? "L(34bsh + 5abs^2) + 2bsh" : texts[s.config.kind]);
    if (!mti_derive_formula(out, &s, layers_keep)) return mt_last_status();
    mti_formula_build(&f, &s);
    int64_t embedded = whole ? 2 * s.tokens * s.config.hidden : 0;
    out->value += embedded;
    out->expected += embedded;
    bool ok = mti_add_row(out, -embedded,
                          "the embeddings' output, 2bsh: counted as the first layer's input");
    for (int i = f.n_layer_terms; ok && i < f.n_terms; i++)
        ok = mti_add_row(out, f.terms[i].bytes, "%s: %s", f.terms[i].text, f.terms[i].what);
    for (int i = 0; ok && i < f.n_residual; i++)
        ok = mti_add_row(out, f.residual[i].bytes, "%s", f.residual[i].text);
    return ok ? MT_OK : mt_last_status();
}

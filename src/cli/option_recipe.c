/* option_recipe.c: --recipe NAME, a bundle of plain options.
 *
 * hf: what the eager code of Hugging Face's Transformers 5.23 keeps, beside Transformers itself in
 * tests/parity/transformers_parity.py. The files that the rows follow are named in
 * docs/parity-transformers.md. */
#include <string.h>
#include "cli/option_rows.h"
#include "nn/model.h"

const mti_choice mti_recipes = {"recipe", MTI_NAMES("none", "hf")};

typedef struct recipe_row {
    mti_recipe recipe;
    mti_option option;
    const char *value;
    bool (*fits)(const mt_model_config *c); /* c: resolved */
} recipe_row;

static bool is_narrow(const mt_model_config *c) { return mt_dtype_size(c->dtype) == 2; }
static bool is_causal_and_narrow(const mt_model_config *c)
{
    return c->kind != MT_MODEL_BERT && is_narrow(c);
}
static bool has_rms(const mt_model_config *c) { return c->norm_kind != MT_NORM_LAYER; }
static bool has_swiglu(const mt_model_config *c) { return c->mlp == MT_MLP_SWIGLU; }
static bool has_rope(const mt_model_config *c) { return c->rope_theta > 0; }
static bool has_math(const mt_model_config *c) { return c->attention == MT_ATTENTION_MATH; }
static bool has_tanh(const mt_model_config *c)
{
    return c->act == MT_ACT_GELU_TANH && c->mlp == MT_MLP_PLAIN;
}
static bool is_narrow_llama_with_math(const mt_model_config *c)
{
    return c->kind == MT_MODEL_LLAMA && has_math(c) && is_narrow(c);
}
static bool is_grouped_with_math(const mt_model_config *c)
{
    return has_math(c) && c->kv_heads != c->heads;
}

static const recipe_row rows[] = {
    {MTI_RECIPE_HF, MTI_O_LOSS, "f32", is_causal_and_narrow},
    {MTI_RECIPE_HF, MTI_O_SWIGLU, "unfused", has_swiglu},
    {MTI_RECIPE_HF, MTI_O_RMS_NORM, "unfused", has_rms},
    {MTI_RECIPE_HF, MTI_O_GELU_TANH, "unfused", has_tanh},
    {MTI_RECIPE_HF, MTI_O_ROPE, "unfused", has_rope},
    {MTI_RECIPE_HF, MTI_O_SOFTMAX, "f32", is_narrow_llama_with_math},
    {MTI_RECIPE_HF, MTI_O_KV_GROUPS, "repeated", is_grouped_with_math},
};

static void set_choice(mt_model_config *c, const mti_option_row *r, const char *value)
{
    int i = 0;
    while (strcmp(r->choice->names[i], value) != 0) i++;
    memcpy((char *)c + (r->at - offsetof(mti_options, given_config)), &i, sizeof i);
}

bool mti_recipe_apply(mti_options *o, mt_model_config *c)
{
    mti_workload *w = &o->workload;
    mt_model_config resolved;
    w->recipe = o->recipe ? mti_recipes.names[o->recipe] : NULL;
    *w->recipe_options = 0;
    if (!o->recipe) return true;
    if (mt_model_config_resolve(c, &resolved) != MT_OK) return mti_options_refuse_as(o, "");
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        if (rows[i].recipe != o->recipe || !rows[i].fits(&resolved)) continue;
        if (o->given[rows[i].option]) continue;
        const mti_option_row *r = mti_option_row_of(rows[i].option);
        size_t n = strlen(w->recipe_options);
        set_choice(c, r, rows[i].value);
        snprintf(w->recipe_options + n, sizeof w->recipe_options - n, "%s--%s %s", n ? " " : "",
                 r->name, rows[i].value);
    }
    return true;
}

/* option_table.c: the verbs, and the table of their options. */
#include <string.h>
#include "workload/routing.h"
#include "options/option_table.h"
#include "nn/model.h"
#include "parallel/parallel.h"

/* ---- verbs ---- */

static const mti_verb_info verbs[MTI_VERB_COUNT] = {
#define VERB(id, name, args, run, rules, summary, doc, example)                                    \
    [MTI_##id] = {name, args, summary, doc, example},
#include "options/verbs.def"
#undef VERB
};

const mti_verb_info *mti_verb_get(mti_verb verb) { return &verbs[verb]; }

mti_verb mti_verb_find(const char *name)
{
    int v = 0;
    if (!strcmp(name, "oom")) return MTI_COMPARE; /* as people ask for its message */
    while (v < MTI_VERB_COUNT && strcmp(name, verbs[v].name)) v++;
    return (mti_verb)v;
}

/* ---- what the columns of the table say ---- */

#define V(verb)  (1u << MTI_##verb)
#define LOOKS    (V(PROFILE) | V(EXPLAIN) | V(SWEEP) | V(PLAN) | V(FIT) | V(COMPARE))
#define STEPS    (V(PROFILE) | V(SWEEP) | V(COMPARE))
#define PLANNED  (STEPS | V(PLAN))
#define BUILDS   (V(TRAIN) | LOOKS)
#define RUNS     (V(DEMO) | V(TRAIN))
#define EVERY    ((1u << MTI_VERB_COUNT) - 1)
#define SEARCHED (PLANNED | V(FIT))
#define META     (V(PLAN) | V(FIT) | V(SERVE) | V(COMPARE)) /* run on meta only */
#define SHAPED   (BUILDS | V(SERVE))                        /* what a forward alone depends on */
#define ON_GPUS  (V(FIT) | V(SERVE))
#define ON_A_GPU (V(PROFILE) | V(PLAN) | V(SWEEP))

#define M(model) (1u << MT_MODEL_##model)
#define WHOLE    (M(GPT) | M(BERT) | M(LLAMA))
#define LAYERED  (WHOLE | M(BLOCK) | M(ATTENTION) | M(MLP))
#define ANY      (LAYERED | M(LINEAR))
#define ATTENDS  (WHOLE | M(BLOCK) | M(ATTENTION))
#define FEEDS    (WHOLE | M(BLOCK) | M(MLP))
#define RANKED   (WHOLE | M(BLOCK))
#define ACTS     (FEEDS & ~M(LLAMA)) /* a llama's MLP is gated */

/* ---- choices ---- */

static const mti_choice kv_caches = {"kv-cache",
                                     MTI_NAMES("preallocated", "growing", "8bit", "paged", "none")};
static const mti_choice weight_forms = {"weights",
                                        MTI_NAMES("plain", "int8", "nf4", "nf4-double", "mxfp4")};
static const mti_choice dtypes = {"dtype", MTI_NAMES("f32", "bf16", "f16", "f64")};
static const mti_choice checkpoints = {
    "checkpoint", MTI_NAMES("none", "full", "selective", "ops", "sqrt", "every=K")};
static const mti_choice offloads = {"offload", MTI_NAMES("none", "cpu", "disk")};
static const mti_choice compressions = {"compress",
                                        MTI_NAMES("none", "bf16", "8bit", "bits", "seed", "signs")};
static const mti_choice fsdp_forms = {"fsdp", MTI_NAMES("module", "ahead", "block", "keep-root",
                                                        "keep-last", "f32-reduce", "f32-shards",
                                                        "group-ends", "reduce-last", "pytorch",
                                                        "torchtitan", "torchtitan-grouped")};
static const unsigned fsdp_bits[] = {0,
                                     MT_FSDP_AHEAD,
                                     MT_FSDP_BLOCK,
                                     MT_FSDP_KEEP_ROOT,
                                     MT_FSDP_KEEP_LAST,
                                     MT_FSDP_F32_REDUCE,
                                     MT_FSDP_F32_SHARDS,
                                     MT_FSDP_GROUP_ENDS,
                                     MT_FSDP_REDUCE_LAST,
                                     MT_FSDP_PYTORCH,
                                     MT_FSDP_TORCHTITAN,
                                     MT_FSDP_TORCHTITAN_GROUPED};
static const mti_choice amps = {"amp", MTI_NAMES("none", "bf16", "f16")};
static const char *const recipe_names[] = {
    "plain",
#define RECIPE(id, name, ...) name,
#define ROW(...)
#include "options/recipes.def"
#undef RECIPE
#undef ROW
};
static const mti_choice recipes = {"recipe", MTI_RECIPE_COUNT + 1, recipe_names};
static const mti_choice scratches = {"scratch", MTI_NAMES("none", "cpu")};

/* ---- the table ---- */

#define RANGE(low, high) .min = (low), .max = (high)
#define EXTENT           RANGE(1, MTI_MAX_EXTENT) /* of a model; products are checked separately */
#define AMOUNT           RANGE(1, 1e12)           /* of the batch */
#define IF(condition)    MTI_IF_##condition
#define KEY_OF(owner)    .key = MTI_KEY_##owner
#define NEEDS(option)    (MTI_NEEDS | MTI_O_##option)
#define NOT_WITH(option) (MTI_EXCLUDES | MTI_O_##option)
#define IN(verb, what)   ((MTI_##verb + 1) << MTI_OF_VERB | (what))
#define WHEN(...)        .when = {__VA_ARGS__}
#define ALWAYS           MTI_RUN_ALWAYS
#define CHOSEN           MTI_RUN_CHOSEN
#define AN_EXPR          MTI_BESIDE_AN_EXPR
#define A_PROMPT         MTI_BESIDE_A_PROMPT
#define A_REPORT         MTI_BESIDE_A_REPORT

const mti_option_row mti_option_rows[MTI_OPTION_COUNT] = {
#define OPTION(id_, name_, arg_, form_, field_, verbs_, models_, ...)                              \
    {.id = MTI_O_##id_,                                                                            \
     .name = name_,                                                                                \
     .arg = arg_,                                                                                  \
     .form = MTI_##form_,                                                                          \
     .field = #field_,                                                                             \
     .at = offsetof(mti_options, field_),                                                          \
     .verbs = verbs_,                                                                              \
     .models = models_,                                                                            \
     .doc = __VA_ARGS__},
#include "options/options.def"
};

const char *mti_verbs_text(unsigned set, char buf[MTI_VERBS_TEXT])
{
    *buf = 0;
    for (int v = 0; v < MTI_VERB_COUNT; v++)
        if (set >> v & 1)
            mti_append(buf, MTI_VERBS_TEXT, "%s%s", *buf ? ", " : "",
                       mti_verb_get((mti_verb)v)->name);
    return buf;
}

bool mti_takes(mti_verb verb, const mti_option_row *r) { return r->verbs >> verb & 1; }

bool mti_takes_file(const mti_option_row *r)
{
    return r->arg && (!strcmp(r->arg, "FILE") || !strcmp(r->arg, "PATH"));
}

const mti_option_row *mti_option_find(mti_verb verb, const char *name)
{
    for (int id = 0; id < MTI_OPTION_COUNT; id++) {
        const mti_option_row *r = &mti_option_rows[id];
        const bool named = !strcmp(r->name, name) || (r->alias && !strcmp(r->alias, name));
        if (named && mti_takes(verb, r)) return r;
    }
    return NULL;
}

const mti_option_row *mti_option_anywhere(const char *name, unsigned *takers)
{
    const mti_option_row *found = NULL;
    *takers = 0;
    for (int id = MTI_OPTION_COUNT - 1; id >= 0; id--) {
        if (strcmp(mti_option_rows[id].name, name) != 0) continue;
        found = &mti_option_rows[id];
        *takers |= found->verbs;
    }
    return found;
}

const char *mti_weights_name(mti_weights_choice weights)
{
    return mti_choice_name(&weight_forms, (int)weights);
}

const mt_quant *mti_weights_format(mti_weights_choice weights)
{
    static const mt_quant formats[MTI_WEIGHTS_COUNT] = {
        [MTI_WEIGHTS_INT8] = {.format = MT_QUANT_INT8},
        [MTI_WEIGHTS_NF4] = {.format = MT_QUANT_NF4},
        [MTI_WEIGHTS_NF4_DOUBLE] = {.format = MT_QUANT_NF4, .double_scales = true},
        [MTI_WEIGHTS_MXFP4] = {.format = MT_QUANT_MXFP4}};
    return weights ? &formats[weights] : NULL;
}

bool mti_verb_takes_model(mti_verb verb)
{
    return strstr(mti_verb_get(verb)->args, "MODEL") != NULL;
}
bool mti_verb_builds(mti_verb verb) { return SHAPED >> verb & 1; }

bool mti_runs_on_meta(mti_verb verb) { return META >> verb & 1; }

/* option_table.c: the verbs, and the table of their options. */
#include <string.h>
#include "workload/routing.h"
#include "options/option_table.h"
#include "nn/model.h"
#include "parallel/parallel.h"

/* ---- verbs ---- */

static const mti_verb_info verbs[MTI_VERB_COUNT] = {
    [MTI_DEMO] = {"demo", "",
                  "train a tiny transformer on real text, then show where its memory went",
                  "Trains a small byte-level GPT on the given text (memtape's own sources and docs "
                  "if none is given) for about a minute, compares it with three baselines on text "
                  "it has not seen, and measures what its memory would be with other choices.",
                  "memtape demo --seconds 20"},
    [MTI_TRAIN] =
        {"train", "", "train a byte-level GPT on any file",
         "Trains a byte-level GPT on files. Ctrl-C saves and stops; --resume goes on from "
         "there, bit for bit.",
         "memtape train --data notes.txt --steps 20 --save run.safetensors"},
    [MTI_GENERATE] =
        {"generate", "", "write text with a trained model",
         "Continues a prompt with a model that `memtape train --save` wrote, or with one in a "
         "folder as Transformers has it. A file or a "
         "pipe gets every byte; a terminal gets ? for those that it would obey.",
         "memtape generate --model run.safetensors --prompt 'To be' --tokens 40"},
    [MTI_PROFILE] =
        {"profile", "MODEL", "two training steps under the ledger: every saved byte",
         "Runs two training steps of MODEL (linear, mlp, attention, block, gpt, bert, llama, a "
         "preset or the path of a Hugging Face config.json or its folder) on random data and lists "
         "the tensors that the tape keeps for backward, who keeps them, and how they add up to "
         "what "
         "the allocator holds. A preset or config.json runs on meta unless told otherwise: bf16, "
         "AdamW with f32 masters, one sequence of the model's context, at most 8192.",
         "memtape profile block --act relu"},
    [MTI_EXPLAIN] =
        {"explain", "[MODEL]", "the tape op by op: what is saved and why",
         "Runs the forward pass of MODEL (linear, mlp, attention, block, gpt or a preset), or an "
         "expression, and walks through its tape, op by op.",
         "memtape explain mlp --act gelu"},
    [MTI_AUDIT] = {"audit", "[OP]", "what every op keeps, and whether it has to",
                   "Runs each op of the table (or one) with every set of wanted gradients, changes "
                   "every kept tensor in turn, and compares the gradients: if none changes, the "
                   "tensor need not be kept. Names cheaper ways.",
                   "memtape audit dropout"},
    [MTI_SWEEP] = {"sweep", "MODEL",
                   "any option over any list: bytes, time, gradients side by side",
                   "Runs a training step of MODEL for each combination of the lists given with "
                   "--over, and compares what is kept, the peak, the time of a step, and the "
                   "gradients, which are measured against the first row's.",
                   "memtape sweep gpt --device meta --over checkpoint=none,full"},
    [MTI_PLAN] =
        {"plan", "MODEL", "what training costs: formulas beside measurements on meta; what fits",
         "Works out parameters, training state, activations, operations, time and KV cache of "
         "MODEL by the closed formulas of the literature, measures each on the meta device, "
         "and explains the difference row by row. Unless told otherwise: bf16, AdamW with f32 "
         "masters, one sequence of the model's context, at most 8192. With --capacity it runs "
         "larger and larger batches and sequences until one is refused memory.",
         "memtape plan gpt3-175b -b 64"},
    [MTI_FIT] =
        {"fit", "MODEL", "whether MODEL trains on N GPUs, and the fastest ways to divide it",
         "Measures, on the meta device, the ways to divide MODEL (a gpt, bert, llama, a preset or "
         "the path of a config.json) and a batch among GPUs: tensor, pipeline and data "
         "parallelism, ZeRO, recomputation, offload, microbatches; orders those that fit by the "
         "time of a step, which is a stated model and no measurement. An option that a set-up is "
         "made of, such as --tp, leaves only set-ups with that value. Unless told otherwise: bf16, "
         "AdamW with f32 masters, a sequence a GPU, the model's context, at most 8192.",
         "memtape fit llama-3.1-8b --gpus 8 --gpu h100"},
    [MTI_SERVE] = {"serve", "MODEL", "how many sequences MODEL generates at once on a GPU",
                   "Generates with MODEL, a gpt or a llama, on the meta device: weights in 16, 8 "
                   "and 4 bits, KV caches in 16 and 8, texts of several lengths. Each number of "
                   "sequences was measured to fit, and one more not to.",
                   "memtape serve llama-3.1-8b --gpu h100"},
    [MTI_COMPARE] =
        {"compare", "FILE... MODEL", "what was measured elsewhere beside what is predicted",
         "Profiles MODEL on meta, as `memtape profile` with these options does, and sets beside it "
         "what the files have (- is standard input): PyTorch's message that memory ran out, memory "
         "snapshots (torch.cuda.memory._dump_snapshot), logs with max_memory_allocated or "
         "max_memory_reserved, of torchtitan, Megatron-LM or DeepSpeed, memory_summary(), PEFT's "
         "and Megatron-LM's JSON, nvidia-smi's table. Says row by row where they differ; of a "
         "message, which tensor it is about and what would make the run fit.",
         "memtape compare run.log gpt2 --batch 4"},
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
#define WHEN(...)        .when = {__VA_ARGS__}
#define ALWAYS           MTI_RUN_ALWAYS
#define CHOSEN           MTI_RUN_CHOSEN

const mti_option_row mti_option_rows[MTI_OPTION_COUNT] = {
#define OPTION(id_, name_, arg_, form_, field, verbs_, models_, ...)                               \
    {.id = MTI_O_##id_,                                                                            \
     .name = name_,                                                                                \
     .arg = arg_,                                                                                  \
     .form = MTI_##form_,                                                                          \
     .at = offsetof(mti_options, field),                                                           \
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

bool mti_verb_builds(mti_verb verb) { return SHAPED >> verb & 1; }

bool mti_runs_on_meta(mti_verb verb) { return META >> verb & 1; }

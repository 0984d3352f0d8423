/* options.h: one table of options for all verbs.
 *
 * A row names the verbs and the models that its option is for. Any other use is refused, never
 * ignored. */
#ifndef MTI_CLI_OPTIONS_H
#define MTI_CLI_OPTIONS_H

#include <stdio.h>
#include "base/base.h"
#include "memtape/parallel.h"
#include "cli/trainer.h"
#include "expression/expression.h"
#include "measure/plan.h"
#include "memtape/fit.h"

typedef enum mti_verb {
    MTI_DEMO,
    MTI_TRAIN,
    MTI_GENERATE,
    MTI_PROFILE,
    MTI_EXPLAIN,
    MTI_AUDIT,
    MTI_SWEEP,
    MTI_PLAN,
    MTI_RANKS,
    MTI_FIT,
    MTI_SERVE,
    MTI_VERB_COUNT
} mti_verb;

/* mt_kv_form in its order, and none. */
typedef enum mti_kv_choice {
    MTI_KV_PREALLOCATED,
    MTI_KV_GROWING,
    MTI_KV_8BIT,
    MTI_KV_PAGED,
    MTI_KV_NONE
} mti_kv_choice;

/* How the linears of the layers keep their weights. */
typedef enum mti_weights_choice {
    MTI_WEIGHTS_PLAIN, /* in the model's dtype */
    MTI_WEIGHTS_INT8,
    MTI_WEIGHTS_NF4,
    MTI_WEIGHTS_NF4_DOUBLE,
    MTI_WEIGHTS_COUNT
} mti_weights_choice;
const char *mti_weights_name(mti_weights_choice weights);

/* Exit statuses. */
enum {
    MTI_EXIT_OK = 0,
    MTI_EXIT_FAILED = 1,
    MTI_EXIT_USAGE = 2,
    MTI_EXIT_SIGNALLED = 128 /* plus the number of the signal */
};

/* A bundle of options that follows how a known stack spends memory (option_recipe.c). */
typedef enum mti_recipe {
    MTI_RECIPE_NONE,
    MTI_RECIPE_HF,
    MTI_RECIPE_LIGER,
    MTI_RECIPE_DDP,
    MTI_RECIPE_ZERO1,
    MTI_RECIPE_ZERO2,
    MTI_RECIPE_ZERO3,
    MTI_RECIPE_FSDP2,
    MTI_RECIPE_MEGATRON,
    MTI_RECIPE_COUNT
} mti_recipe;

typedef enum mti_option {
    MTI_O_MODEL_FILE,
    MTI_O_PROMPT,
    MTI_O_TOKENS,
    MTI_O_TEMPERATURE,
    MTI_O_TOP_K,
    MTI_O_KV_CACHE,
    MTI_O_ADAPTER,
    MTI_O_MERGE,
    MTI_O_DATA,
    MTI_O_PRESET,
    MTI_O_STEPS,
    MTI_O_SECONDS,
    MTI_O_LR,
    MTI_O_MIN_LR,
    MTI_O_WARMUP,
    MTI_O_WEIGHT_DECAY,
    MTI_O_CLIP,
    MTI_O_ACCUMULATE,
    MTI_O_VAL_FRACTION,
    MTI_O_EVAL_EVERY,
    MTI_O_SAVE,
    MTI_O_SAVE_EVERY,
    MTI_O_RESUME,
    MTI_O_FROM,
    MTI_O_SAVE_ADAPTER,
    MTI_O_GRAPH,
    MTI_O_LIVE,
    MTI_O_EXPR,
    MTI_O_SHAPES,
    MTI_O_NO_GRAD,
    MTI_O_WEIGHTS,
    MTI_O_BATCH,
    MTI_O_SEQ,
    MTI_O_HIDDEN,
    MTI_O_HEADS,
    MTI_O_LAYERS,
    MTI_O_VOCAB,
    MTI_O_FFN,
    MTI_O_ACT,
    MTI_O_INPLACE,
    MTI_O_OUT_ACT,
    MTI_O_NORM,
    MTI_O_NORM_KIND,
    MTI_O_KV_HEADS,
    MTI_O_DROPOUT,
    MTI_O_ATTENTION,
    MTI_O_CAUSAL,
    MTI_O_DTYPE,
    MTI_O_RECIPE,
    MTI_O_SWIGLU,
    MTI_O_RMS_NORM,
    MTI_O_GELU_TANH,
    MTI_O_ROPE,
    MTI_O_SOFTMAX,
    MTI_O_KV_GROUPS,
    MTI_O_LOSS,
    MTI_O_OPTIMIZER,
    MTI_O_CHECKPOINT,
    MTI_O_BUDGET,
    MTI_O_OFFLOAD,
    MTI_O_COMPRESS,
    MTI_O_AMP,
    MTI_O_LOSS_SCALE,
    MTI_O_MASTER,
    MTI_O_F32_GRADIENTS,
    MTI_O_STEP_IN_BACKWARD,
    MTI_O_LORA_RANK,
    MTI_O_LORA_TARGETS,
    MTI_O_QLORA,
    MTI_O_QLORA_DOUBLE,
    MTI_O_TP,
    MTI_O_SP,
    MTI_O_PP,
    MTI_O_INTERLEAVE,
    MTI_O_RANK,
    MTI_O_STAGE,
    MTI_O_MICROBATCHES,
    MTI_O_CP,
    MTI_O_DP,
    MTI_O_ZERO,
    MTI_O_F32_SHARDS,
    MTI_O_F32_REDUCE,
    MTI_O_KEEP_ROOT,
    MTI_O_GATHER,
    MTI_O_KEEP_LAST,
    MTI_O_REDUCE,
    MTI_O_DEVICE,
    MTI_O_CAPACITY,
    MTI_O_EXPANDABLE,
    MTI_O_GRANULE,
    MTI_O_RECLAIM,
    MTI_O_GEMM_WORKSPACE,
    MTI_O_SCRATCH,
    MTI_O_SEED,
    MTI_O_THREADS,
    MTI_O_RECOMPUTE,
    MTI_O_PARAMS,
    MTI_O_TRAIN_TOKENS,
    MTI_O_FLOPS_RATE,
    MTI_O_UTILISATION,
    MTI_O_DEVICES,
    MTI_O_KV,
    MTI_O_GPUS,
    MTI_O_GPU,
    MTI_O_GPUS_FILE,
    MTI_O_PRICE,
    MTI_O_SERVE_WEIGHTS,
    MTI_O_AT_ONCE,
    MTI_O_OVER,
    MTI_O_ROW,
    MTI_O_INFERENCE,
    MTI_O_TIMELINE,
    MTI_O_TRACE,
    MTI_O_SNAPSHOT,
    MTI_O_SVG,
    MTI_O_HTML,
    MTI_O_JSON,
    MTI_O_VERBOSE,
    MTI_O_QUIET,
    MTI_O_HELP,
    MTI_OPTION_COUNT
} mti_option;

/* The values of an option that may be given several times. */
typedef struct mti_words {
    const char **at;
    size_t n, cap;
} mti_words;

typedef struct mti_options {
    mti_verb verb;
    const char *program; /* argv[0], for the commands that demo suggests */
    mt_comm *world;      /* with the other ranks that mpirun started; NULL: none */
    bool given[MTI_OPTION_COUNT];
    bool by_recipe[MTI_OPTION_COUNT]; /* not given, but set by the recipe */

    /* What the verb runs; `name` is the MODEL argument (audit: the op). Its config is complete and
     * checked after a successful parse of a verb that builds a model. */
    mti_workload workload;
    mt_model_config given_config; /* a field counts only if its option was given */
    mti_recipe recipe;
    char notes[MT_HF_NOTES]; /* of a config.json that the model comes from */
    int64_t zero;            /* workload.parallel.zero, once it is checked */
    int64_t rank;            /* which of them; it sets workload.parallel.stage */

    const char *json;
    bool verbose, quiet, help;
    bool live; /* draw each step's memory while training */

    mti_words data; /* files and folders, in the order given */
    mti_train_settings train;
    int64_t eval_every, save_every;
    double seconds, val_fraction;
    const char *save, *resume, *save_adapter;

    mti_words over, rows; /* sweep: "act=relu,gelu", "full: --checkpoint full" */
    const char *svg, *html;
    bool timeline, inference; /* profile */
    const char *trace, *snapshot;

    mti_plan_options plan;

    struct mti_fit_words {
        int64_t gpus;
        const char *gpu, *file;
        double price;     /* of a GPU's hour */
        char plain[1024]; /* those of the options that a profile takes, too: "--dtype f32" */
    } fit;
    mti_weights_choice weights; /* serve */
    int64_t at_once;
    mti_expression_options expression; /* explain; its text NULL: a MODEL is given */

    const char *model_file, *prompt, *adapter;
    bool merge; /* generate: add the adapters to the weights first */
    int64_t tokens, top_k;
    double temperature;
    mti_kv_choice kv_cache;

    char error[1024]; /* why the parse failed; "" if argp has printed it */
} mti_options;

typedef struct mti_verb_info {
    const char *name, *args, *summary, *doc;
} mti_verb_info;
const mti_verb_info *mti_verb_get(mti_verb verb);
/* MTI_VERB_COUNT if there is no such verb. */
mti_verb mti_verb_find(const char *name);

/* argv[0] is the name that messages begin with ("memtape profile"). True if the options are
 * complete and valid; false with o->error otherwise. `silent`: nothing is printed. Strings are
 * borrowed from argv. Free with mti_options_free in any case. */
bool mti_options_parse(mti_options *o, mti_verb verb, int argc, char **argv, bool silent);
void mti_options_free(mti_options *o);
/* Sets one option of a sweep's row; value NULL or "yes" sets a flag, "no" clears it. Options for
 * the whole sweep, such as --json, are refused. */
bool mti_options_set(mti_options *o, const char *name, const char *value);
/* Whether any option asks for one rank of several. */
bool mti_is_rank(const mti_options *o);
/* "bits+seed", as --compress takes it. */
#define MTI_COMPRESS_TEXT 40
const char *mti_compress_text(char buf[MTI_COMPRESS_TEXT], unsigned rules);
/* Completes and checks the model by the options as they are now; o->error on failure. */
bool mti_options_complete(mti_options *o);
/* Whether no output file is also an input or another output; o->error otherwise. */
bool mti_files_apart(mti_options *o);
/* The command that profiles a set-up, of a fit. False if it is too long for buf. */
bool mti_profile_command(const mti_options *o, const mt_fit_result *r, const mt_fit_setup *s,
                         char *buf, size_t n);
/* Whether a report goes to standard output as text: not with --quiet, nor if JSON goes there. */
bool mti_wants_text(const mti_options *o);
void mti_options_help(mti_verb verb, const char *name, FILE *out);

/* Sets o->workload.config to `base`, overridden by the options that were given. */
bool mti_options_config(mti_options *o, const mt_model_config *base);
/* Whether the value, such as one from a file, is in the option's range. */
bool mti_option_in_range(mti_option id, double value);

#endif

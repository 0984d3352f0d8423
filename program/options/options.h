/* options.h: one table of options for all verbs.
 *
 * A row names the verbs and the models that its option is for. Any other use is refused, never
 * ignored. */
#ifndef MTI_OPTIONS_OPTIONS_H
#define MTI_OPTIONS_OPTIONS_H

#include <stdio.h>
#include "base/base.h"
#include "memtape/models/parallel.h"
#include "trainer/trainer.h"
#include "expression/expression.h"
#include "workload/workload.h"

typedef enum mti_verb {
#define VERB(id, ...) MTI_##id,
#include "options/verbs.def"
#undef VERB
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
    MTI_WEIGHTS_MXFP4, /* of experts alone */
    MTI_WEIGHTS_COUNT
} mti_weights_choice;
const char *mti_weights_name(mti_weights_choice weights);
const mt_quant *mti_weights_format(mti_weights_choice weights); /* NULL: plain */

/* Exit statuses. */
enum {
    MTI_EXIT_OK = 0,
    MTI_EXIT_FAILED = 1,
    MTI_EXIT_USAGE = 2,
    MTI_EXIT_SIGNALLED = 128 /* plus the number of the signal */
};

/* A bundle of options that follows how a known stack spends memory; a bit each (recipes.def). */
enum {
#define RECIPE(id, ...) MTI_RECIPE_AT_##id,
#define ROW(...)
#include "options/recipes.def"
#undef RECIPE
    MTI_RECIPE_COUNT
};
typedef enum mti_recipe {
#define RECIPE(id, ...) MTI_RECIPE_##id = 1 << MTI_RECIPE_AT_##id,
#include "options/recipes.def"
#undef RECIPE
#undef ROW
} mti_recipe;

typedef enum mti_option {
#define OPTION(id, ...) MTI_O_##id,
#include "options/options.def"
#undef OPTION
    MTI_OPTION_COUNT
} mti_option;

/* What has keys: options that are details of it (details.c). */
typedef enum mti_key_of {
    MTI_KEY_NONE,
    MTI_KEY_MODEL,
    MTI_KEY_RECIPE,
    MTI_KEY_OPTIMIZER,
    MTI_KEY_GPU,
    MTI_KEY_OWNERS
} mti_key_of;

/* The values of an option that may be given several times. */
typedef MTI_VEC(const char *) mti_words;

struct mti_options;

/* What only this verb has in its options. A function that is NULL does nothing. */
typedef struct mti_verb_rules {
    mti_verb verb;
    /* Sets the defaults that are not those of all verbs. */
    void (*defaults)(struct mti_options *o);
    /* Checks the options before there is a model. */
    bool (*check_words)(struct mti_options *o);
    /* Completes a model that is as a preset or a file has it, and what depends on it. */
    bool (*complete)(struct mti_options *o, mt_model_config *base);
    /* Checks the complete options. */
    bool (*check)(struct mti_options *o);
} mti_verb_rules;

/* What has decided an option's value: nobody, "no" in a sweep's row; from here on it is set: a word
 * that is given, or the recipe, which sets only what nobody has chosen. */
typedef enum mti_chosen { MTI_BY_NOBODY, MTI_BY_NO, MTI_BY_WORD, MTI_BY_RECIPE } mti_chosen;

typedef struct mti_options {
    /* The verb, and how it was called. */
    const mti_verb_rules *rules;
    mti_verb verb;
    const char *program; /* argv[0], for the commands that demo suggests */
    int argc;            /* the words that were parsed; borrowed */
    char **argv;
    mt_comm *world; /* borrowed; with the other ranks that mpirun started; NULL: none */
    mti_chosen chosen[MTI_OPTION_COUNT];
    bool help, help_all;
    char former[MTI_KEY_OWNERS][200]; /* keys given as the options that they were */
    char error[1024];                 /* why the parse failed */

    /* What is run. Its `name` is the MODEL argument; its config is complete and checked after a
     * successful parse of a verb that builds a model; before that its fields count only if their
     * options are chosen. */
    mti_workload workload;
    unsigned recipe;         /* mti_recipe */
    bool in_f16;             /* recipes' bf16 is f16: the GPU multiplies none */
    char notes[MT_HF_NOTES]; /* of a config.json that the model comes from */
    struct mti_train_words { /* demo and sweep have some of them */
        mti_train_settings settings;
        mti_words data; /* files and folders, in the order given */
        int64_t eval_every, save_every;
        double val_fraction, seconds;
        const char *save, *save_best, *resume, *save_adapter, *save_hf, *record_routing;
    } train;
    struct mti_gpu_words { /* of all that ask about GPUs */
        const char *name, *file;
        int64_t n;
        double price; /* of an hour of one */
        size_t keep_aside, host_memory;
    } gpu;

    /* What a verb does with it. */
    struct mti_generate_words {
        const char *model_file, *adapter, *ids; /* ids: tokens in place of prompts; NULL: none */
        mti_words prompts, stop;                /* prompts: also those of explain */
        double temperature, top_p, repetition_penalty;
        int64_t tokens, top_k;
        bool merge;                 /* add the adapters to the weights first */
        mti_kv_choice kv_cache;     /* also serve's, as ... */
        mti_weights_choice weights; /* ... this */
    } generate;
    mti_expression_options expression; /* explain; its text NULL: a MODEL is given */
    struct mti_sweep_words {
        mti_words over, rows; /* "act=relu,gelu", "full: --checkpoint full" */
    } sweep;
    mti_plan_options plan;
    struct mti_fit_words {
        bool max_seq, max_batch;
    } fit;
    struct mti_serve_words {
        int64_t at_once, users;
        bool exact;
    } serve;
    struct mti_compare_words {
        mti_until until;    /* how much of the prediction */
        mti_words files;    /* what was measured ... */
        const char *report; /* ... and in a model's place, a report; else NULL */
    } compare;

    struct mti_output {                                   /* what is shown and written */
        const char *json, *svg, *html, *trace, *snapshot; /* files; NULL: none */
        const char *show; /* only sections whose heading has these words */
        bool timeline, inference, outside, verbose, quiet;
    } output;
} mti_options;

typedef struct mti_verb_info {
    const char *name, *args, *summary, *doc;
    const char *example; /* a whole command */
} mti_verb_info;
const mti_verb_info *mti_verb_get(mti_verb verb);
/* MTI_VERB_COUNT if there is no such verb. */
mti_verb mti_verb_find(const char *name);

/* argv[0] is the name that messages begin with ("memtape profile"). True if the options are
 * complete and valid; false with o->error otherwise. Strings are borrowed from argv. `world`: of
 * the ranks that mpirun started; NULL: none. Free with mti_options_free in any case. */
bool mti_options_parse(mti_options *o, const mti_verb_rules *rules, mt_comm *world, int argc,
                       char **argv);
/* Writes o->error and returns false. The second takes the library's last error as text, and clears
 * it unless memory ran out. */
bool mti_options_refuse(mti_options *o, const char *fmt, ...) MT_PRINTF(2, 3);
bool mti_options_refuse_as(mti_options *o, const char *what);
void mti_options_free(mti_options *o);
/* Sets one option of a sweep's row; value NULL or "yes" sets a flag, "no" clears it. Options for
 * the whole sweep, such as --json, are refused. */
bool mti_options_set(mti_options *o, const char *name, const char *value);
static inline bool mti_is_given(const mti_options *o, mti_option id)
{
    return o->chosen[id] == MTI_BY_WORD;
}
/* Whether any option asks for one rank of several. */
bool mti_is_rank(const mti_options *o);
/* Whether one GPU trains by itself; whether several may have the same parameters, of which each
 * could keep a part. */
bool mti_is_alone(const mti_options *o);
bool mti_shares_batch(const mti_options *o);
/* Completes and checks the model by the options as they are now; o->error on failure. */
bool mti_options_complete(mti_options *o);
/* The options given, as a command of another verb that a shell takes. Fails if buf is too short. */
bool mti_options_command(const mti_options *o, mti_verb verb, char *buf, size_t n);
/* Whether no output file is also an input or another output; o->error otherwise. */
bool mti_files_apart(mti_options *o);
/* Whether a report goes to standard output as JSON; as text: not with --quiet, nor if JSON goes
 * there. */
bool mti_wants_json(const mti_options *o);
bool mti_wants_text(const mti_options *o);
/* The options that matter most, with an example each, or `all`. */
void mti_options_help(const mti_verb_rules *rules, const char *name, bool all, FILE *out);
/* The recipes, with what each sets and the source of it, and the keys that there are; or the recipe
 * of that name alone, with what its options mean. False if there is none of the name. */
bool mti_recipes_help(FILE *out, const char *name);
/* Tells of options that were given as they were typed until this release. */
void mti_keys_tell(const mti_options *o, FILE *out);
/* The defaults of the verb's options, and of a model that neither a preset nor a file defines. */
void mti_option_defaults(mti_options *o, const mti_verb_rules *rules);
/* Sets o->workload.config to `base`, overridden by the options that were given. */
bool mti_options_config(mti_options *o, const mt_model_config *base);

#endif

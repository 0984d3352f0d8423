/* option_table.h: what the files that parse options share. */
#ifndef MTI_OPTIONS_OPTION_TABLE_H
#define MTI_OPTIONS_OPTION_TABLE_H

#include "options/options.h"

/* The form of a value, and the type of its field. */
typedef enum mti_form {
    MTI_FLAG,   /* bool; no value */
    MTI_INT,    /* int64_t; 10k is 10,000 */
    MTI_EXTENT, /* int64_t of a dimension; 4k is 4096 */
    MTI_BYTES,  /* size_t; "40GiB", "1.5GB" */
    MTI_REAL,   /* double */
    MTI_SCALED, /* double; "300e9", "300B", "1.4T" */
    MTI_TEXT,   /* const char * */
    MTI_CHOICE, /* an enum; one of `choice` */
    MTI_SOME,   /* unsigned: flags; some of `choice`, joined by + */
    MTI_LIST,   /* mti_words; may be given several times */
    /* forms of one option */
    MTI_PRESET,
    MTI_GPU,
    MTI_DTYPE,
    MTI_OUT_ACT,
    MTI_DEVICE,
    MTI_SCRATCH,
    MTI_CHECKPOINT,
    MTI_AMP,
    MTI_LOSS_SCALE,
    MTI_RESHARD,
    MTI_ROUTING_TEXT,
    MTI_TARGETS,
    MTI_RECIPE, /* unsigned: flags as of MTI_SOME, then a colon and keys */
    MTI_FORM_COUNT
} mti_form;

typedef enum mti_condition {
    MTI_IF_NOTHING, /* ends a row's list */
#define CONDITION(id, ...) MTI_IF_##id,
#include "options/conditions.def"
#undef CONDITION
    MTI_CONDITION_COUNT
} mti_condition;

/* What a row's list may hold beside these: an option that has to be set, or may not be given. Each
 * may be of one verb alone, which is 1 more than in mti_verb then. */
enum { MTI_NEEDS = 1 << 9, MTI_EXCLUDES = 1 << 10, MTI_OF_VERB = 11 };

/* What may stand in a model's place: explain's --expr; its --prompt; compare's report. */
enum { MTI_BESIDE_AN_EXPR = 1, MTI_BESIDE_A_PROMPT = 2, MTI_BESIDE_A_REPORT = 4 };

/* Whether the file of a training run has the option, so that resuming the run is that run. */
typedef enum mti_in_run { MTI_RUN_NEVER, MTI_RUN_CHOSEN, MTI_RUN_ALWAYS } mti_in_run;

/* A row of options.def. */
typedef struct mti_option_row {
    mti_option id;
    const char *name, *arg; /* arg NULL: a flag */
    mti_key_of key;         /* whose detail it is; NONE: listed among the options */
    mti_form form;
    const char *field; /* "workload.parallel.tensor" */
    size_t at;         /* its offset in mti_options */
    unsigned verbs;    /* that take it */
    unsigned models;   /* on which it has an effect */
    const char *doc;
    int letter;          /* of the short form, or 0 */
    const char *alias;   /* another name, which help does not show */
    const char *heading; /* that help puts before it */
    const char *example; /* of an option that matters most; NULL: another */
    double min, max;     /* inclusive */
    const mti_choice *choice;
    const unsigned *bits; /* of MTI_SOME: what each sets; NULL: none, then a flag each */
    uint16_t when[10];    /* all must hold for it to have an effect: mti_condition and options */
    bool of_ranks;        /* asks for one rank of several */
    bool of_all_rows;     /* rows of a sweep cannot differ in it */
    unsigned beside;      /* in a model's place it is taken beside these, too */
    bool written;         /* a file that is an output; other files are inputs */
    mti_in_run run;
} mti_option_row;

/* ---- option_table.c: the table ---- */

extern const mti_option_row mti_option_rows[MTI_OPTION_COUNT];

/* The verb's option of that name, or of that other name; NULL if it has none. */
const mti_option_row *mti_option_find(mti_verb verb, const char *name);
/* The first of that name, whatever verb has it, and all verbs that do; NULL: none has. */
const mti_option_row *mti_option_anywhere(const char *name, unsigned *takers);
bool mti_takes(mti_verb verb, const mti_option_row *r);

/* ---- foreign.c: options as other programs name them ---- */

/* The verb's option that the word means; NULL: there is none. *value: that it means, too, or NULL.
 */
const mti_option_row *mti_foreign_option(mti_verb verb, const char *word, const char **value);
/* What to type in its place, where that is not plain; NULL: nothing is known. */
const char *mti_foreign_advice(mti_verb verb, const char *word);
/* Whether it is before a model's name elsewhere, where a verb here takes the name alone. */
bool mti_foreign_model(const char *word);
/* Advice on a program or a way to train that is no recipe, among n characters of names. */
const char *mti_foreign_recipe(const char *names, char word[24]);

/* Whether the option's value is a file or a folder. */
bool mti_takes_file(const mti_option_row *r);
/* The names of a set of verbs. */
#define MTI_VERBS_TEXT 96
const char *mti_verbs_text(unsigned set, char buf[MTI_VERBS_TEXT]);
/* Whether the verb takes a MODEL, alone or after FILEs; builds a model from its options. */
bool mti_verb_takes_model(mti_verb verb);
bool mti_verb_builds(mti_verb verb);
/* Whether it runs on meta only. */
bool mti_runs_on_meta(mti_verb verb);

/* ---- model_names.c ---- */

/* The preset that a model's name means, as people and Hugging Face write it: "llama 3 8b",
 * "meta-llama/Llama-3.1-8B-Instruct"; NULL: none is known. *in_fewer_bits: whether the name says
 * that its files keep weights so ("-AWQ", "-bnb-4bit"). */
const char *mti_preset_meant(const char *name, bool *in_fewer_bits);
/* Whether the model of that name sees pictures, too, and its preset is the text model alone. */
bool mti_is_more_than_text(const char *name);
/* Lists presets that may be meant by a name that is none: those that begin so ("llama3"), or of the
 * family and the size ("qwen 7b"); "": there are none. */
void mti_presets_near(char *out, size_t size, const char *name);

/* ---- details.c: keys, the details that follow a value after a colon, and their owners ---- */

/* "model", as an owner's keys are called; what one types before them, "--recipe" or MODEL; and a
 * value with some of them. */
const char *mti_key_name(mti_key_of owner);
const char *mti_key_owner(const mti_options *o, mti_key_of owner);
const char *mti_key_example(mti_key_of owner);
const char *mti_key_typed(mti_key_of owner); /* "--recipe plain:" */
/* Makes "--swiglu fast: ..." of a key "--recipe plain:swiglu=fast: ...", as it is typed. */
void mti_key_in_words(const mti_options *o, char *text, size_t size);
/* Notes a key that was given as the option that it was. */
void mti_keys_note(mti_options *o, const mti_option_row *r, const char *value);

/* ---- values.c: parsing values, their keys among them ---- */

/* Parses the value into the row's field. */
bool mti_option_read(mti_options *o, const mti_option_row *r, const char *value);
/* The row's field. */
const void *mti_option_field(const mti_options *o, const mti_option_row *r);
/* The bits of the i-th of several names. */
unsigned mti_option_bits(const mti_option_row *r, int i);
/* Whether the value is other than zero, none, no or the first choice. */
bool mti_option_is_set(const mti_options *o, const mti_option_row *r);
/* Copies the options of the model that were given to *c. */
void mti_options_override(mt_model_config *c, const mti_options *o);
/* Reads a MODEL, whose name or path may have colons, and the keys behind it; *name: without them.
 */
bool mti_model_read(mti_options *o, const char *word, const char **name);

/* ---- value_text.c: values as one would type them ---- */

/* The value, in buf or elsewhere; "" for a list. */
#define MTI_VALUE_TEXT 64
const char *mti_option_text(const mti_options *o, const mti_option_row *r,
                            char buf[MTI_VALUE_TEXT]);
/* The same of a verb's defaults; NULL for zero, "" and a flag. */
const char *mti_option_default_text(const mti_options *o, const mti_option_row *r,
                                    char buf[MTI_VALUE_TEXT]);
/* Writes `before` and an owner's keys that were given, ":swiglu=unfused"; false: there are none. */
bool mti_keys_print(FILE *out, const mti_options *o, mti_verb verb, mti_key_of owner,
                    const char *before);

/* ---- sweep_rows.c: the combinations of a sweep, named rows times the lists of --over ---- */

#define MTI_MAX_SWEEP 256

typedef struct mti_sweep_row {
    char *label; /* "full act=relu" */
    char *words; /* owns the strings in `options` */
    mti_options options;
} mti_sweep_row;

typedef struct mti_sweep_rows {
    size_t n;
    mti_sweep_row *at;
} mti_sweep_rows;

/* Rows in the order of --row, and within each the last --over changes fastest; complete and
 * checked. False with o->error on failure. Free in any case. */
bool mti_sweep_rows_make(mti_sweep_rows *rows, mti_options *o);
void mti_sweep_rows_free(mti_sweep_rows *rows);
/* Whether they can be made. */
bool mti_sweep_check(mti_options *o);

/* ---- conditions.c and one_rank.c: options that depend on each other ---- */

/* Whether every option given has an effect: once all are read and the config, if any, is complete;
 * before the model is known, because a file names it; for a sweep, whether some row uses it. */
bool mti_check_used(mti_options *o);
bool mti_check_used_so_far(mti_options *o);
bool mti_check_used_in_rows(mti_options *o, const mti_sweep_rows *rows);
/* Whether it names this preset of checkpoints. */
bool mti_checkpoints(const mti_memory_options *m, const char *preset);
/* Whether no option is given that is not taken beside it; `why` follows the name of one that is. */
bool mti_check_beside(mti_options *o, unsigned what, const char *why);
/* Whether the option would have an effect. */
bool mti_has_effect(const mti_options *o, const mti_option_row *r);
/* The optimizer that a rank has unless told otherwise; whether there is such a rank. */
bool mti_rank_defaults(mti_options *o);
bool mti_check_rank(mti_options *o);

/* ---- complete.c, recipes.c and help.c ---- */

/* The --lora-rank of --qlora alone, and of changes that add adapters. */
#define MTI_USUAL_RANK "16"

/* Recipes of one group set the same options. RANKS are of ranks that share a batch. */
typedef enum mti_recipe_group {
    MTI_RECIPES_OPS,
    MTI_RECIPES_TRAINER,
    MTI_RECIPES_RANKS,
    MTI_RECIPES_KERNELS,
    MTI_RECIPES_GROUPS
} mti_recipe_group;
const char *mti_recipe_group_text(mti_recipe_group group);
/* A recipe, with a name and no option, or one of its rows, which follow it. */
typedef struct mti_recipe_entry {
    unsigned recipe; /* its bit */
    mti_recipe_group group;
    const char *name, *value, *text; /* value NULL: of a flag */
    mti_option option;
    /* Whether the row holds; c: the model as it is resolved. */
    bool (*when)(const mti_options *o, const mt_model_config *c);
} mti_recipe_entry;
const mti_recipe_entry *mti_recipe_entry_at(size_t i); /* NULL past the last */

/* Whether MODEL is the path of a config.json or of its folder, and neither a kind nor a preset. */
bool mti_is_model_path(const char *name);
/* Sets those of the recipe's options that were not given, in *o and its config, and lists them in
 * the workload. */
bool mti_recipe_apply(mti_options *o);
/* Sets what the workload's answer does not count. */
void mti_find_left_out(mti_options *o);

#endif

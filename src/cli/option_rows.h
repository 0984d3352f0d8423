/* option_rows.h: what the files that parse options share. */
#ifndef MTI_CLI_OPTION_ROWS_H
#define MTI_CLI_OPTION_ROWS_H

#include "cli/sweep_rows.h"

/* The form of a value, and the type of the field at `at`. */
typedef enum mti_form {
    MTI_FLAG,   /* bool; no value */
    MTI_INT,    /* int64_t; 10k is 10,000 */
    MTI_EXTENT, /* int64_t of a dimension; 4k is 4096 */
    MTI_BYTES,  /* size_t; "40GiB", "1.5GB" */
    MTI_REAL,   /* double */
    MTI_SCALED, /* double; "300e9", "300B", "1.4T" */
    MTI_TEXT,   /* const char * */
    MTI_CHOICE, /* an enum; one of `choice` */
    MTI_OTHER,  /* parsed by `read` */
    MTI_LIST    /* mti_words; may be given several times */
} mti_form;

struct mti_option_row;
typedef bool mti_read_fn(mti_options *o, const struct mti_option_row *r, const char *value);

/* Conditions under which an option has an effect (option_when.c). */
typedef enum mti_condition {
    MTI_IF_RANKED,        /* one rank of several */
    MTI_IF_RANKS_TRAIN,   /* as RANKED, in train only */
    MTI_IF_ALONE,         /* not one */
    MTI_IF_ONE_FORWARD,   /* a step is one forward and one backward */
    MTI_IF_FLOATS,        /* not ZeRO stage 3 */
    MTI_IF_ONE_BACKWARD,  /* as ONE_FORWARD, with whole gradients that are not scaled */
    MTI_IF_SHARED_LAYERS, /* --tp 2 or more */
    MTI_IF_STAGED,        /* --pp 2 or more */
    MTI_IF_OTHER_DATA,    /* --dp 2 or more */
    MTI_IF_PIECES,        /* --zero 3 */
    MTI_IF_SHARDS,        /* --f32-shards */
    MTI_IF_KEEPS_ROOT,    /* neither --pp nor --lora-rank */
    MTI_IF_BLOCKS,        /* --gather block or ahead, and no --pp */
    MTI_IF_SUMS,          /* no --zero 2 or 3 */
    MTI_IF_NO_BUDGET,
    MTI_IF_BUDGETED, /* of a plan: --budget */
    MTI_IF_STEPS,    /* there is an optimizer */
    MTI_IF_ADAPTERS, /* --lora-rank */
    MTI_IF_CODES,    /* --qlora */
    MTI_IF_SAVES,    /* --save */
    MTI_IF_HELD_OUT, /* some text is held out */
    MTI_IF_TOKENS,   /* --tokens of a plan */
    MTI_IF_RATE,     /* --flops-rate */
    MTI_IF_NO_STEPS, /* no --steps */
    MTI_IF_NO_FILE,  /* neither --from nor --resume */
    MTI_IF_WARM,     /* --temperature above 0 */
    MTI_IF_CHOICE,   /* --top-k other than 1 */
    MTI_IF_DRAWS,    /* the device has data; in a sweep: one row's */
    MTI_IF_LEARNS,   /* the device has data */
    MTI_IF_SCALED,   /* as DRAWS, but always in a profile */
    MTI_IF_THREADS,  /* as DRAWS, or the device's scratch is counted */
    MTI_IF_COMPARED, /* as DRAWS, in a sweep only */
    MTI_IF_PRETENDS, /* the device has no data */
    MTI_IF_EXPR,     /* --expr */
    MTI_IF_PEAK,     /* of a plan: --capacity or --budget */
    MTI_IF_EXPANDS,  /* --expandable-segments; in a sweep: one row's */
    MTI_IF_RMS,      /* the norms are RMS norms */
    MTI_IF_TANH,     /* the activation is gelu_tanh */
    MTI_IF_MATH,     /* --attention math */
    MTI_IF_NARROW,   /* the model is in 2-byte floats */
    MTI_IF_GROUPED,  /* fewer heads of keys and values than heads */
    MTI_IF_TEXT,     /* text is printed */
    MTI_IF_CUDA,     /* the device's launches can be captured */
    MTI_CONDITION_COUNT
} mti_condition;

typedef struct mti_option_row {
    mti_option id;
    int letter; /* of the short form, or 0 */
    const char *name, *arg;
    mti_form form;
    size_t at;       /* offset of the field in mti_options */
    unsigned verbs;  /* that take it */
    unsigned models; /* on which it has an effect */
    double min, max; /* inclusive */
    const char *doc;
    uint64_t when; /* mti_conditions; all must hold for it to have an effect */
    const mti_choice *choice;
    mti_read_fn *read;
} mti_option_row;

/* Another name of an option. */
typedef struct mti_option_alias {
    mti_option id;
    const char *name;
} mti_option_alias;

/* Help puts this heading before the option `first`. */
typedef struct mti_option_group {
    mti_option first;
    const char *heading;
} mti_option_group;

/* ---- option_rows.c: the tables ---- */

extern const mti_option_row mti_option_rows[];
extern const size_t mti_n_option_rows;
extern const mti_option_alias mti_option_aliases[];
extern const size_t mti_n_option_aliases;
extern const mti_option_group mti_option_groups[];
extern const size_t mti_n_option_groups;

const mti_option_row *mti_option_row_of(mti_option id);
/* Whether the verb builds a model from its options. */
bool mti_verb_builds(mti_verb verb);

/* ---- option_values.c and option_memory.c: parsing values ---- */

/* Writes o->error and returns false. The second takes the library's last error as text, and clears
 * it unless memory ran out. */
bool mti_options_refuse(mti_options *o, const char *fmt, ...) MT_PRINTF(2, 3);
bool mti_options_refuse_as(mti_options *o, const char *what);
/* Parses the value into the row's field. */
bool mti_option_read(mti_options *o, const mti_option_row *r, const char *value);
/* Copies the option's value to the same field of *c, if it is of the model. */
void mti_option_override(mt_model_config *c, const mti_options *o, const mti_option_row *r);
mti_read_fn mti_read_dtype, mti_read_out_act, mti_read_device, mti_read_scratch;
mti_read_fn mti_read_checkpoint, mti_read_compress, mti_read_amp, mti_read_loss_scale;
mti_read_fn mti_read_lora_targets;

/* ---- option_when.c and option_checks.c: options that depend on each other ---- */

/* Whether every option given has an effect: once all are read and the config, if any, is complete;
 * before the model is known, because a file names it; for a sweep, whether some row uses it. */
bool mti_check_used(mti_options *o);
bool mti_check_used_so_far(mti_options *o);
bool mti_check_used_in_rows(mti_options *o, const mti_sweep_rows *rows);
/* Whether one condition holds, of an option that may be set without being given. */
bool mti_check_condition(mti_options *o, mti_option option, mti_condition condition);
/* Whether the device has what the verb needs. */
bool mti_check_device(mti_options *o);
bool mti_check_memory(mti_options *o);
/* What a rank has unless told otherwise: AdamW, with f32 masters of 16-bit parameters. */
bool mti_rank_defaults(mti_options *o);
bool mti_check_rank(mti_options *o);
/* Adafactor steps matrices, and ZeRO leaves pieces. */
bool mti_check_factored(mti_options *o);
bool mti_check_plan(mti_options *o);
/* Of a fit: what it has unless told otherwise, and whether it can be searched. */
bool mti_check_fit(mti_options *o);
/* Of serving: whether the model generates, and memory is given. */
bool mti_check_serve(mti_options *o);
/* Of a fit: keeps the option, as typed, for the command that profiles a set-up. */
bool mti_keep_word(mti_options *o, const mti_option_row *r, const char *value);
/* Of explain with --expr: whether nothing is given that is for a MODEL. */
bool mti_check_expression(mti_options *o);

/* ---- option_config.c ---- */

/* Whether MODEL is the path of a config.json or of its folder, and neither a kind nor a preset. */
bool mti_is_model_path(const char *name);
/* Sets those of the recipe's options that were not given, in *o or in *c, which is to become the
 * workload's config, and lists them in the workload. */
bool mti_recipe_apply(mti_options *o, mt_model_config *c);
/* The defaults of the verb's options, and of a model that neither a preset nor a file defines. */
void mti_option_defaults(mti_options *o, mti_verb verb);

#endif

/* option_rows.h: what the files that make up the options share. */
#ifndef MTI_CLI_OPTION_ROWS_H
#define MTI_CLI_OPTION_ROWS_H

#include "cli/sweep_rows.h"

/* What a value looks like, and what is at `at`. */
typedef enum mti_form {
    MTI_FLAG,   /* bool; no value */
    MTI_INT,    /* int64_t; 10k is 10,000 */
    MTI_EXTENT, /* int64_t of a dimension; 4k is 4096 */
    MTI_BYTES,  /* size_t; "40GiB", "1.5GB" */
    MTI_REAL,   /* double */
    MTI_SCALED, /* double; "300e9", "300B", "1.4T" */
    MTI_TEXT,   /* const char * */
    MTI_CHOICE, /* an enum; one of `choice` */
    MTI_OTHER,  /* what `read` makes of it */
    MTI_LIST    /* mti_words; may be given several times */
} mti_form;

struct mti_option_row;
typedef bool mti_read_fn(mti_options *o, const struct mti_option_row *r, const char *value);

/* When an option does something (option_when.c). */
typedef enum mti_condition {
    MTI_IF_ALONE,         /* not one rank of several */
    MTI_IF_SHARED_LAYERS, /* --tp 2 or more */
    MTI_IF_STAGED,        /* --pp 2 or more */
    MTI_IF_OTHER_DATA,    /* --dp 2 or more */
    MTI_IF_NO_BUDGET,
    MTI_IF_BUDGETED, /* of a plan: --budget */
    MTI_IF_STEPS,    /* there is an optimizer */
    MTI_IF_ADAPTERS, /* --lora-rank */
    MTI_IF_SAVES,    /* --save */
    MTI_IF_HELD_OUT, /* some text is held out */
    MTI_IF_TOKENS,   /* --tokens of a plan */
    MTI_IF_RATE,     /* --flops-rate */
    MTI_IF_NO_STEPS, /* no --steps */
    MTI_IF_NO_FILE,  /* neither --from nor --resume */
    MTI_IF_WARM,     /* --temperature above 0 */
    MTI_IF_CHOICE,   /* --top-k other than 1 */
    MTI_IF_DRAWS,    /* the device has data; in a sweep: that of one row */
    MTI_IF_LEARNS,   /* the device has data */
    MTI_IF_SCALED,   /* but for profile, the device has data; in a sweep: that of one row */
    MTI_IF_THREADS,  /* it has, or its scratch is counted; in a sweep: that of one row */
    MTI_IF_COMPARED, /* of a sweep: one row's device has data */
    MTI_IF_PRETENDS, /* it has none */
    MTI_IF_PEAK,     /* of a plan: --capacity or --budget */
    MTI_CONDITION_COUNT
} mti_condition;

typedef struct mti_option_row {
    mti_option id;
    int letter; /* of the short form, or 0 */
    const char *name, *arg;
    mti_form form;
    size_t at;       /* offset of the field in mti_options */
    unsigned verbs;  /* those that take it */
    unsigned models; /* those for which it means something */
    double min, max; /* inclusive */
    const char *doc;
    unsigned when; /* conditions, all of which must hold for it to do something */
    const mti_choice *choice;
    mti_read_fn *read;
} mti_option_row;

/* The option of the row has another name. */
typedef struct mti_option_alias {
    mti_option id;
    const char *name;
} mti_option_alias;

/* Help lists the options from `first` to the next group's under a heading. */
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

/* ---- option_values.c and option_memory.c: from a word to a value ---- */

/* Writes o->error; false. The second: with the library's last error, which is then forgotten unless
 * it is that memory ran out. */
bool mti_options_refuse(mti_options *o, const char *fmt, ...) MT_PRINTF(2, 3);
bool mti_options_refuse_as(mti_options *o, const char *what);
/* The value into the row's field. */
bool mti_option_read(mti_options *o, const mti_option_row *r, const char *value);
mti_read_fn mti_read_dtype, mti_read_device, mti_read_scratch;
mti_read_fn mti_read_checkpoint, mti_read_compress, mti_read_amp, mti_read_loss_scale;

/* ---- option_when.c and option_checks.c: what goes together ---- */

/* Once all options are read, and for a verb that builds a model once o->config is complete. */
bool mti_check_used(mti_options *o);
/* Before the model is known, as a file names it. */
bool mti_check_used_so_far(mti_options *o);
/* And what the rows of a sweep may leave to each other: that one of them uses an option. */
bool mti_check_used_in_rows(mti_options *o, const mti_sweep_rows *rows);
/* Whether the device has what the verb needs. */
bool mti_check_device(mti_options *o);
bool mti_check_memory(mti_options *o);
bool mti_check_rank(mti_options *o);
bool mti_check_plan(mti_options *o);

/* ---- option_config.c ---- */

/* Whether MODEL is the path of a config.json. */
bool mti_is_model_path(const char *name);
/* Where nothing is said: of the options, and of a model that is no preset's or file's. */
void mti_option_defaults(mti_options *o, mti_verb verb);

#endif

/* option_rows.h: what the files that make up the options share. */
#ifndef MTI_CLI_OPTION_ROWS_H
#define MTI_CLI_OPTION_ROWS_H

#include "cli/sweep_rows.h"

typedef enum mti_form {
    MTI_FLAG,
    MTI_INT,
    MTI_BYTES,
    MTI_REAL,
    MTI_SCALED,
    MTI_TEXT,
    MTI_CHOICE,
    MTI_LIST
} mti_form;

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
} mti_option_row;

extern const mti_option_row mti_option_rows[];
extern const size_t mti_n_option_rows;

/* Whether MODEL is the path of a config.json. */
bool mti_is_model_path(const char *name);
const mti_option_row *mti_option_row_of(mti_option id);
/* Whether the verb builds a model from its options. */
bool mti_verb_builds(mti_verb verb);

/* Writes o->error; false. */
bool mti_options_refuse(mti_options *o, const char *fmt, ...) MT_PRINTF(2, 3);
/* ---- values; out: an enum ---- */
bool mti_option_choose(mti_options *o, const mti_option_row *r, const char *arg, const char *names,
                       void *out);
/* "123", "40GiB", "1.5GB" into the row's int64_t. */
bool mti_parse_bytes(mti_options *o, const mti_option_row *r, const char *arg);
/* "300e9", "300B", "1.4T", "312T" into the row's double. */
bool mti_parse_scaled(mti_options *o, const mti_option_row *r, const char *arg);
bool mti_parse_scratch(mti_options *o, const char *arg);
bool mti_parse_checkpoint(mti_options *o, const char *arg);
bool mti_parse_compress(mti_options *o, const char *arg);
bool mti_parse_amp(mti_options *o, const char *arg);
bool mti_parse_loss_scale(mti_options *o, const char *arg);
/* Once all options are read, and for a verb that builds a model once o->config is complete. */
bool mti_check_used(mti_options *o);
/* Before the model is known, as a file names it. */
bool mti_check_used_so_far(mti_options *o);
/* And what the rows of a sweep may leave to each other: that one of them uses an option. */
bool mti_check_used_in_rows(mti_options *o, const mti_sweep_rows *rows);
bool mti_check_spending(mti_options *o);
bool mti_check_values(mti_options *o);
bool mti_check_rank(mti_options *o);
/* What a plan assumes of the model and the options where nothing is said; and whether it all makes
 * sense. */
void mti_plan_defaults(mti_options *o, mt_model_config *base);
bool mti_check_plan(mti_options *o);

#endif

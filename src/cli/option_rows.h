/* option_rows.h: what the files that make up the options share. */
#ifndef MTI_CLI_OPTION_ROWS_H
#define MTI_CLI_OPTION_ROWS_H

#include "cli/options.h"

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
/* Once the configuration is complete. */
bool mti_check_spending(mti_options *o);
bool mti_check_device(mti_options *o);
bool mti_check_values(mti_options *o);
bool mti_check_rank(mti_options *o);
/* What a plan assumes of the model and the options where nothing is said; and whether it all makes
 * sense. */
void mti_plan_defaults(mti_options *o, mt_model_config *base);
bool mti_check_plan(mti_options *o);

#endif

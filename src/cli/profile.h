/* profile.h: what measured steps look like, as text and as JSON. */
#ifndef MTI_CLI_PROFILE_H
#define MTI_CLI_PROFILE_H

#include "cli/budget.h"
#include "report/json.h"
#include "report/report.h"
#include "report/timeline.h"

typedef struct mti_profile_data {
    const mti_options *options;
    mt_device *device; /* borrowed */
    mti_measurement measured;
    mti_budgeted budgeted; /* with --budget */
    mti_formula formula;
} mti_profile_data;

/* The whole report. */
bool mti_profile_print(const mti_profile_data *p, FILE *out);
/* The object of docs/profile-json.md; NULL when memory ran out. */
json_t *mti_profile_json(const mti_profile_data *p);
/* The short one of a step that was refused memory. */
json_t *mti_profile_refused_json(const mti_profile_data *p, size_t refused);

/* "steady": peak, reserved and by_category of a step in the steady state. */
json_t *mti_steady_json(const mti_steady *s);
json_t *mti_formula_json(const mti_formula *f); /* null where none is known */

/* Who held memory at the peak and, with --timeline, over both steps. */
bool mti_print_memory(const mti_profile_data *p, FILE *out, const mti_style *style);
json_t *mti_peak_json(const mti_measurement *m);      /* null where no event was written down */
json_t *mti_timeline_json(const mti_profile_data *p); /* null without --timeline */
json_t *mti_categories_json(const size_t bytes[MT_CATEGORY_COUNT]);
bool mti_print_categories(const size_t bytes[MT_CATEGORY_COUNT], FILE *out, const mti_style *style);
/* The same for a step that ended at a refusal: event `refused` of the timeline. */
bool mti_print_refusal(const mti_profile_data *p, size_t refused, FILE *out);
json_t *mti_refusal_json(const mti_profile_data *p, size_t refused);

/* What the options that spare memory did; nothing where none was given. */
bool mti_print_spent(const mti_profile_data *p, FILE *out, const mti_style *style);
json_t *mti_spent_json(const mti_profile_data *p);

/* The table of distinct storages the tape keeps, equal ones of repeated layers folded. */
bool mti_print_saved(const mt_ledger *ledger, FILE *out, const mti_style *style);
/* "block  b=2 s=4096 d=1024 ...", and what it runs on, on a line of its own. */
void mti_print_model(const mti_options *o, mt_device *device, FILE *out, const mti_style *style);
/* The model's dimensions; null where the kind of model has no such thing. */
json_t *mti_model_json(const mti_options *o);
/* Rows of an equation: sign, bytes, what they are; and what ought to be 0. */
void mti_equation_row(mti_table *t, const char *sign, int64_t bytes, const char *text);
void mti_residual_row(mti_table *t, int64_t bytes, const char *text, const char *alarm);
const char *mti_role_name(mt_save_role role);

#endif

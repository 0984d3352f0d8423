/* results.h: what a verb has found, as text and as JSON (docs/profile-json.md and its neighbours).
 * A table of rows describes the JSON of each. */
#ifndef MTI_RESULTS_H
#define MTI_RESULTS_H

#include "fit/fit.h"
#include "measure/plan.h"
#include "measure/rank.h"
#include "measure/sweep.h"
#include "measure/tape.h"
#include "measure/together.h"
#include "memtape/fit.h"
#include "memtape/serve.h"
#include "report/json.h"
#include "report/text.h"

/* ---- a profile ---- */

/* The answer, and what else fits on a screen. whole: with the timeline of both steps; verbose: with
 * all details. */
bool mti_print_profile(const mti_profile_result *p, bool whole, bool verbose, FILE *out);
json_t *mti_profile_json(const mti_profile_result *p, bool whole);
/* For a step that ran out of memory at that event of the timeline: who held the memory then. */
bool mti_print_refusal(const mti_profile_result *p, size_t event, bool verbose, FILE *out);
json_t *mti_profile_refused_json(const mti_profile_result *p, size_t event, bool whole);

/* ---- a plan ---- */

/* The answer; verbose: with all details. */
bool mti_print_plan(const mti_plan_result *p, bool verbose, FILE *out);
json_t *mti_plan_json(const mti_plan_result *p);

/* ---- a sweep ---- */

bool mti_print_sweep(const mti_sweep_result *results, size_t n, bool quiet, FILE *out);
json_t *mti_sweep_json(const mti_sweep_result *results, size_t n);
/* name: of the model, for the title. */
bool mti_draw_sweep(const mti_sweep_result *results, size_t n, const char *name, const char *path);

/* ---- ways to divide a model among GPUs ---- */

typedef struct mti_fit_report {
    const mt_fit_result *result;
    const mti_fit_remedies *remedies;
    const mti_workload *workload;
    const char *command; /* that profiles the first set-up */
    double utilisation;
    double price;  /* of a GPU's hour; 0: unknown */
    double tokens; /* to train on; 0: unknown */
} mti_fit_report;

bool mti_print_fit(const mti_fit_report *f, FILE *out);
json_t *mti_fit_json(const mti_fit_report *f);
/* Dollars for a billion tokens; seconds to train on all. */
double mti_fit_cost(const mti_fit_report *f, const mt_fit_setup *s);
double mti_fit_seconds(const mti_fit_report *f, const mt_fit_setup *s);
/* What of PyTorch's memory is not in `reserved`, in brief; NULL: nothing is known. */
const char *mti_fit_besides(const mt_fit_setup *s);

/* ---- how many sequences fit ---- */

#define MTI_SERVE_LENGTHS 5 /* at most */

/* One form of weights and cache, at every length. */
typedef struct mti_serve_row {
    const char *weights; /* "bf16", "int8", ... */
    mt_kv_form cache;
    mt_serve_need *needs; /* [n_lengths] */
} mti_serve_row;

typedef struct mti_serve_report {
    const mti_workload *workload;
    const mt_gpu *gpu; /* NULL: only a capacity was given */
    size_t capacity;
    int64_t at_once;
    size_t n_rows, n_lengths;
    mti_serve_row *rows;
    size_t asked; /* the length that the answer is about */
} mti_serve_report;

bool mti_print_serve(const mti_serve_report *s, FILE *out);
json_t *mti_serve_json(const mti_serve_report *s);
/* Whether anything fits. */
bool mti_serve_fits(const mti_serve_report *s);

/* ---- ranks ---- */

/* The models and techniques of `memtape ranks`, side by side. */
bool mti_print_ranks(const mti_ranks_result *r, FILE *out);
json_t *mti_ranks_json(const mti_ranks_result *r);
/* All n ranks of one run. */
bool mti_print_together(const mti_workload *w, const mti_rank_figures *ranks, int64_t n, FILE *out);
/* One rank's profile, with what was predicted. */
json_t *mti_rank_run_json(const mti_rank_run *r, bool whole);
/* One rank that has trained. */
json_t *mti_training_json(const mti_workload *w, const mti_rank_figures *r, int64_t steps,
                          double loss, int64_t skipped);
/* A list of all ranks' objects, taken over, as the object that holds it. */
json_t *mti_gathered_json(json_t *ranks);

/* ---- a tape ---- */

/* Op by op. where: what the ops are in, "module"; folded: of layers that are alike, the first. */
bool mti_print_tape(const mti_tape *t, const char *where, bool folded, FILE *out,
                    const mti_style *style);
/* Why each kind of op keeps what it keeps. */
void mti_print_reasons(const mti_tape *t, FILE *out, const mti_style *style);
/* The tape of the workload: by kind of op, or op by op where that fits on a screen; verbose: both.
 */
bool mti_print_explained(const mti_tape *t, const mti_workload *w, const mt_device *device,
                         bool verbose, FILE *out);

/* ---- parts of their JSON ---- */

typedef struct mti_refusal {
    const mti_profile_result *profile;
    size_t event;
} mti_refusal;
mti_describe mti_describe_model, mti_describe_place; /* of a workload */
mti_describe mti_describe_steady, mti_describe_flops, mti_describe_event, mti_describe_peak,
    mti_describe_refusal;
void mti_describe_division(mti_fields *f, const mt_parallel *division);
/* The keys "formula" and "budget": null where there is none. measured: as mti_print_budget;
 * front: with other budgets. */
void mti_field_formula(mti_fields *f, const mti_formula *formula);
void mti_field_budget(mti_fields *f, const mti_budget_found *found, size_t measured, bool front);

/* ---- their schemas, for docs/schema ---- */

json_t *mti_profile_schema(void);
json_t *mti_plan_schema(void);
json_t *mti_sweep_schema(void);
json_t *mti_fit_schema(void);
json_t *mti_serve_schema(void);
json_t *mti_ranks_schema(void);
json_t *mti_training_schema(void); /* all ranks */

#endif

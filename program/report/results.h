/* results.h: what a verb has found, as text and as JSON (docs/profile-json.md and its neighbours).
 * A table of rows describes the JSON of each. */
#ifndef MTI_RESULTS_H
#define MTI_RESULTS_H

#include "compare/compare.h"
#include "fit/search.h"
#include "measure/costs.h"
#include "measure/rank.h"
#include "measure/sweep.h"
#include "measure/tape.h"
#include "memtape/lab/fit.h"
#include "memtape/lab/serve.h"
#include "report/json.h"
#include "report/terminal.h"

/* ---- a profile ---- */

/* The answer, and what else fits on a screen. whole: with the timeline of both steps; verbose: with
 * all details. */
bool mti_print_profile(const mti_profile_result *p, bool whole, bool verbose, FILE *out);
/* For a step that ran out of memory at that event of the timeline: who held the memory then. */
bool mti_print_refusal(const mti_profile_result *p, size_t event, bool verbose, FILE *out);

/* The rows of what is outside of the allocator. */
bool mti_print_outside(const mti_outside *o, const mti_sheet *to);
mti_describe mti_describe_outside;

/* ---- a plan ---- */

/* The answer; verbose: with all details. */
bool mti_print_plan(const mti_plan_result *p, bool verbose, FILE *out);

/* ---- a sweep ---- */

bool mti_print_sweep(const mti_sweep_result *results, size_t n, bool quiet, FILE *out);
/* name: of the model, for the title. */
bool mti_draw_sweep(const mti_sweep_result *results, size_t n, const char *name, const char *path);

/* ---- ways to divide a model among GPUs ---- */

/* The first set-up with another stack's ops. */
typedef struct mti_fit_other {
    const char *recipe; /* NULL: the same, or nothing fits */
    mt_fit_setup setup;
    bool any; /* if it does not fit: whether another set-up does */
} mti_fit_other;

typedef struct mti_fit_report {
    const mt_fit_result *result;
    const mti_fit_remedies *remedies;
    const mti_fit_other *other;
    const mti_fit_most *most; /* NULL: not asked for */
    const mti_fit_published *trained;
    const mti_workload *workload;
    const char *command; /* that profiles the first set-up */
    mti_outside outside; /* what is kept aside for; empty: another figure was asked for */
    bool rows;           /* these are printed */
    double utilisation;  /* of products */
    bool published;      /* the rates are shown at the shares that published runs reached */
    double price;        /* of a GPU's hour; 0: unknown */
    double tokens;       /* to train on; 0: unknown */
} mti_fit_report;

bool mti_print_fit(const mti_fit_report *f, FILE *out);

/* The first set-up that was found on a kind of GPU, or the nearest to one that fits. */
typedef struct mti_fit_tried {
    bool tried;
    mt_fit_setup setup;
} mti_fit_tried;
typedef struct mti_fit_kind {
    const mt_gpu *gpu;
    size_t capacity;
    bool in_f16;  /* it multiplies no bf16, and no dtype was asked for */
    bool no_bf16; /* it multiplies none, and bf16 was asked for */
    mt_fit_setup setup;
    mti_fit_tried adapted[2]; /* with LoRA, with QLoRA */
} mti_fit_kind;
typedef MTI_VEC(mti_fit_kind) mti_fit_kinds; /* least capacity first */
bool mti_print_fit_kinds(const mti_fit_kinds *all, const mti_workload *w, int64_t gpus, FILE *out);
/* The ops that the model is made of: "flash attention, fused rope, ..." */
void mti_stack_text(char *buf, size_t n, const mti_workload *w);
/* Dollars for a billion tokens, and seconds to train on all, at the formulas' rates. */
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
    const mt_serve_need *needs; /* [n_lengths], of the report's */
    mt_serve_need users;        /* so many, of the length that is asked for, fit or not */
} mti_serve_row;

typedef struct mti_serve_report {
    const mti_workload *workload;
    const mt_gpu *gpu; /* NULL: only a capacity was given */
    size_t capacity, kept_aside;
    int64_t at_once, gpus;
    int64_t users; /* sequences that shall fit; 0: any */
    size_t n_rows, n_lengths;
    mti_serve_row *rows;
    mt_serve_need *needs; /* of all rows */
    size_t asked;         /* the length that the answer is about */
} mti_serve_report;

bool mti_print_serve(const mti_serve_report *s, FILE *out);
/* Whether anything fits. */
bool mti_serve_fits(const mti_serve_report *s);

/* ---- a measurement beside the prediction ---- */

/* all: every size of tensors that differs. */
bool mti_print_compared(const mti_compared *c, bool all, FILE *out);
/* The message of one of its files. */
bool mti_print_oom(const mti_compared_oom *c, const mti_compared *all, const char *path,
                   bool verbose, const mti_sheet *to);
mti_describe mti_describe_oom;

/* ---- ranks ---- */

/* All n ranks of one run. */
bool mti_print_together(const mti_workload *w, const mti_rank_figures *ranks, int64_t n, FILE *out);
/* One rank's profile, with what was predicted. */
json_t *mti_rank_run_json(const mti_rank_run *r, bool whole);
/* One rank that has trained. */
typedef struct mti_training {
    const mti_workload *workload;
    const mti_rank_figures *figures;
    int64_t steps;
    double loss;
    const mt_scaler *scaler; /* NULL: there is none */
} mti_training;
/* A list of all ranks' objects, taken over, as the object that holds it. */
json_t *mti_gathered_json(json_t *ranks);

/* ---- a tape ---- */

/* Op by op. where: what the ops are in, "module"; folded: of layers that are alike, the first. */
bool mti_print_tape(const mti_tape *t, const char *where, bool folded, const mti_sheet *to);
/* Why each kind of op keeps what it keeps. */
void mti_print_reasons(const mti_tape *t, const mti_sheet *to);
/* The tape of the workload: by kind of op, or op by op where that fits on a screen; verbose: both.
 */
bool mti_print_explained(const mti_tape *t, const mti_workload *w, const mt_device *device,
                         bool verbose, FILE *out);

/* ---- JSON ---- */

/* A profile, with its timeline if it is to be whole; with the event at which memory ran out, what
 * there is of it. */
typedef struct mti_profile_object {
    const mti_profile_result *profile;
    bool whole;
    size_t event;
} mti_profile_object;
typedef struct mti_sweep_object {
    const mti_sweep_result *results;
    size_t n;
} mti_sweep_object;
/* For mti_json_of: of these, and of what the others are printed from. */
mti_describe mti_describe_profile, mti_describe_refused, mti_describe_plan, mti_describe_sweep,
    mti_describe_fit, mti_describe_serve, mti_describe_training, mti_describe_compared;
mti_describe mti_describe_model, mti_describe_place; /* of a workload */
mti_describe mti_describe_left_out;                  /* of an mti_left_out */
mti_describe mti_describe_steady, mti_describe_keeper, mti_describe_event, mti_describe_peak,
    mti_describe_refusal, mti_describe_needed, mti_describe_flops;
void mti_describe_division(mti_fields *f, const mt_parallel *division);
/* The key "streams", where a measurement has several. */
void mti_field_streams(mti_fields *f, const mti_measurement *m);
/* The keys "formula" and "budget": null where there is none. measured: as mti_print_budget;
 * front: with other budgets. */
void mti_field_formula(mti_fields *f, const mti_formula *formula);
void mti_field_budget(mti_fields *f, const mti_budget_found *found, size_t measured, bool front);

#endif

/* sections.h: parts of reports as text: what several of them show, and the sections of a profile.
 */
#ifndef MTI_SECTIONS_H
#define MTI_SECTIONS_H

#include "measure/profile.h"
#include "report/terminal.h"

/* ---- what was run ---- */

/* "block  b=2 sequences of s=4096 tokens, ...", the choices of ops, the device. */
void mti_print_model(const mti_workload *w, const mt_device *device, const mti_sheet *to);
/* "adapters of rank 16, ...", where nobody gave it; else nothing. */
void mti_print_usual_rank(const mti_workload *w, const mti_sheet *to);
/* What its answer does not count. */
void mti_print_left_out(const mti_workload *w, const mti_sheet *to);
uint64_t mti_left_out_bytes(const mti_workload *w); /* as far as they are known */
/* Which rank it is; what stays from step to step. Nothing if there is one rank. */
void mti_print_rank(const mti_workload *w, const mti_measurement *m, const mti_sheet *to);
bool mti_print_states(const mti_workload *w, const mti_measurement *m, const mti_sheet *to);
/* The first line of mti_print_rank: what was asked for. */
void mti_print_place(const mti_workload *w, const mti_sheet *to);

/* ---- rows and tables ---- */

/* A row of an equation: sign, bytes, text; and its last row, which has to be 0, or `alarm` follows.
 */
void mti_equation_row(mti_table *t, const char *sign, int64_t bytes, const char *fmt, ...)
    MT_PRINTF(4, 5);
void mti_residual_row(mti_table *t, int64_t bytes, const char *text, const char *alarm);
bool mti_print_categories(const size_t bytes[MT_CATEGORY_COUNT], const mti_sheet *to);

/* ---- the answer: the peak, what it is made of, whether it fits ---- */

#define MTI_MAX_BESIDE 5

typedef struct mti_answer {
    const char *where; /* the peak is reached: "reached in backward: ..."; may be "" */
    size_t peak, reserved;
    const size_t *at_peak; /* by category; they sum to the peak */
    size_t gradients;      /* of all parameters, whenever they are there; 0: never at once */
    bool steps;            /* there is an optimizer */
    int n_beside;
    struct {
        const char *name;
        size_t bytes;
    } beside[MTI_MAX_BESIDE]; /* other figures, such as what is saved for backward */
    size_t capacity;          /* 0: not asked */
    size_t left_out;          /* that is not counted */
    bool fits;                /* as was run within it */
} mti_answer;

void mti_answer_add(mti_answer *a, const char *name, size_t bytes);
bool mti_print_answer(const mti_answer *a, const mti_sheet *to);

/* ---- checkpoints that fit a budget ---- */

/* measured: the peak of the real run; 0 if there was none. */
bool mti_print_budget(const mti_budget_found *b, size_t measured, const mti_sheet *to);
/* Once the front has been found. */
bool mti_print_budget_front(const mti_budget_found *b, const mti_sheet *to);

/* ---- sections of a profile ---- */

/* A table of the distinct storages that the tape keeps; repeated layers share a row. `several`:
 * there were several forwards, and they share rows, too. */
bool mti_print_saved(const mt_ledger *ledger, bool several, const mti_sheet *to);
/* What the memory options did; prints nothing if none was given. */
bool mti_print_memory_stats(const mti_profile_result *p, const mti_sheet *to);
/* What is wrong with the checkpoints that were asked for; nothing if all is well. */
bool mti_print_warnings(const mti_profile_result *p, const mti_sheet *to);
/* Prints who held memory after an event: by category, and the largest holders. */
#define MTI_ROWS_AT_REFUSAL 4
#define MTI_ROWS_TO_SHOW    20 /* with -v or --timeline */
bool mti_print_instant(const mti_measurement *m, size_t event, size_t n_rows, const mti_sheet *to);
/* "event 221, second step: backward, gpt.h.3.mlp.act, gelu" */
const char *mti_instant_text(const mti_measurement *m, size_t event, char *buf, size_t size);
/* Prints who held memory at the peak and, if `whole`, the timeline of both steps. */
bool mti_print_memory(const mti_measurement *m, bool whole, const mti_sheet *to);
/* What each stream reserves, where there are several. */
bool mti_print_streams(const mti_measurement *m, const mti_sheet *to);

#endif

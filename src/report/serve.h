/* serve.h: how many sequences fit, as text and as the JSON of docs/serve.md. */
#ifndef MTI_REPORT_SERVE_H
#define MTI_REPORT_SERVE_H

#include "measure/workload.h"
#include "memtape/fit.h"
#include "memtape/serve.h"
#include "report/json.h"
#include "report/report.h"

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

#endif

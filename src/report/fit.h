/* fit.h: the ways to divide a model among GPUs as text and as the JSON of docs/fit.md. */
#ifndef MTI_REPORT_FIT_H
#define MTI_REPORT_FIT_H

#include "fit/fit.h"
#include "report/json.h"
#include "report/report.h"

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

#endif

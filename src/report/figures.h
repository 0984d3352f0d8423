/* figures.h: what several reports show. */
#ifndef MTI_FIGURES_H
#define MTI_FIGURES_H

#include "measure/step.h"
#include "report/json.h"
#include "report/report.h"

/* ---- text ---- */

/* "block  b=2 sequences of s=4096 tokens, ...", the choices of ops, the device. */
void mti_print_model(const mti_workload *w, const mt_device *device, FILE *out,
                     const mti_style *style);
/* A row of an equation: sign, bytes, text; and its last row, which has to be 0, or `alarm` follows.
 */
void mti_equation_row(mti_table *t, const char *sign, int64_t bytes, const char *text);
void mti_residual_row(mti_table *t, int64_t bytes, const char *text, const char *alarm);
bool mti_print_categories(const size_t bytes[MT_CATEGORY_COUNT], FILE *out, const mti_style *style);

/* ---- JSON ---- */

/* The model's dimensions; null for those that its kind does not have. */
json_t *mti_model_json(const mti_workload *w);
json_t *mti_params_json(uint64_t n_params, size_t n_bytes);
json_t *mti_categories_json(const size_t bytes[MT_CATEGORY_COUNT]);
/* "steady": the highest figures of a step in the steady state, and by_category. */
json_t *mti_steady_json(const mti_steady *s);
json_t *mti_flops_json(const mt_flops *flops);
json_t *mti_formula_json(const mti_formula *f); /* null if there is none */

#endif

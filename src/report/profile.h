/* profile.h: a profile as text and as the JSON of docs/profile-json.md. */
#ifndef MTI_REPORT_PROFILE_H
#define MTI_REPORT_PROFILE_H

#include "measure/profile.h"
#include "report/json.h"
#include "report/report.h"

/* whole: with what happened over both steps, not at the peak alone. */
bool mti_print_profile(const mti_profile_result *p, bool whole, FILE *out);
json_t *mti_profile_json(const mti_profile_result *p, bool whole);
/* Of a step that was refused memory, at that event of the timeline: who had filled the device. */
bool mti_print_refusal(const mti_profile_result *p, size_t event, FILE *out);
json_t *mti_profile_refused_json(const mti_profile_result *p, size_t event, bool whole);

/* ---- parts of it ---- */

/* The table of distinct storages the tape keeps, equal ones of repeated layers folded. */
bool mti_print_saved(const mt_ledger *ledger, FILE *out, const mti_style *style);
/* What the options that spare memory did; nothing where none was given. */
bool mti_print_memory_stats(const mti_profile_result *p, FILE *out, const mti_style *style);
json_t *mti_memory_stats_json(const mti_profile_result *p);
/* Who held memory at the peak and, if `whole`, what happened over both steps. */
bool mti_print_memory(const mti_measurement *m, bool whole, FILE *out, const mti_style *style);
json_t *mti_peak_json(const mti_measurement *m); /* null where no event was written down */
json_t *mti_timeline_json(const mti_timeline *t);
json_t *mti_refusal_json(const mti_measurement *m, size_t event);

#endif

/* profile.h: a profile as text and as the JSON of docs/profile-json.md. */
#ifndef MTI_REPORT_PROFILE_H
#define MTI_REPORT_PROFILE_H

#include "measure/profile.h"
#include "report/json.h"
#include "report/report.h"

/* The answer, and what else fits on a screen. whole: with the timeline of both steps; verbose: with
 * all details. */
bool mti_print_profile(const mti_profile_result *p, bool whole, bool verbose, FILE *out);
json_t *mti_profile_json(const mti_profile_result *p, bool whole);
/* For a step that ran out of memory at that event of the timeline: who held the memory then. */
bool mti_print_refusal(const mti_profile_result *p, size_t event, bool verbose, FILE *out);
json_t *mti_profile_refused_json(const mti_profile_result *p, size_t event, bool whole);

/* ---- parts of it ---- */

/* A table of the distinct storages that the tape keeps; repeated layers share a row. `several`:
 * there were several forwards, and they share rows, too. */
bool mti_print_saved(const mt_ledger *ledger, bool several, FILE *out, const mti_style *style);
/* What the memory options did; prints nothing if none was given. */
bool mti_print_memory_stats(const mti_profile_result *p, FILE *out, const mti_style *style);
/* What is wrong with the checkpoints that were asked for; nothing if all is well. */
void mti_print_warnings(const mti_profile_result *p, FILE *out, const mti_style *style);
json_t *mti_memory_stats_json(const mti_profile_result *p);
/* Who held memory at the peak; if `whole`, also the timeline of both steps. */
bool mti_print_memory(const mti_measurement *m, bool whole, FILE *out, const mti_style *style);
json_t *mti_peak_json(const mti_measurement *m); /* null if no event was recorded */
json_t *mti_timeline_json(const mti_timeline *t);
json_t *mti_refusal_json(const mti_profile_result *p, size_t event);

#endif

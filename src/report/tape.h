/* tape.h: the tape of a forward pass as text. */
#ifndef MTI_REPORT_TAPE_H
#define MTI_REPORT_TAPE_H

#include "measure/tape.h"
#include "report/report.h"

/* Op by op. where: what the ops are in, "module"; folded: of layers that are alike, the first. */
bool mti_print_tape(const mti_tape *t, const char *where, bool folded, FILE *out,
                    const mti_style *style);
/* Why each kind of op keeps what it keeps. */
void mti_print_reasons(const mti_tape *t, FILE *out, const mti_style *style);
/* The tape of the workload: by kind of op, or op by op where that fits on a screen; verbose: both.
 */
bool mti_print_explained(const mti_tape *t, const mti_workload *w, const mt_device *device,
                         bool verbose, FILE *out);

#endif

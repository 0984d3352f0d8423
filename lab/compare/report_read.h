/* report_read.h: a report that was written before as the prediction: of a module of PyTorch, which
 * only memtape.torch can profile, or of a run of this program. */
#ifndef MTI_COMPARE_REPORT_READ_H
#define MTI_COMPARE_REPORT_READ_H

#include "measure/profile.h"

/* Whether the file is a profile's JSON; false where it cannot be read. */
bool mti_is_report(const char *path);
/* Asks a meta device for all that the report's timeline lists. Sets the timeline of *m and, of each
 * step, the highest and last figures, as one phase; names *kind after the model, for the caller to
 * mti_free. Free *m in any case. A device of `capacity` bytes (0: no limit) may refuse a request,
 * which then is the last event. */
bool mti_report_read(mti_measurement *m, char **kind, const char *path, size_t capacity);

#endif

/* timeline.h: a timeline as a trace and as a picture. */
#ifndef MTI_TIMELINE_H
#define MTI_TIMELINE_H

#include "measure/timeline.h"

/* trace_event JSON for Perfetto and chrome://tracing: a counter with a series for each category,
 * and what ran. On a device without data an event takes a microsecond. */
mt_status mti_timeline_write_trace(const mti_timeline *t, const char *path);
/* The bytes of each category over the events, stacked, with the phases and the peak. */
mt_status mti_timeline_draw(const mti_timeline *t, const char *title, const char *path);

#endif

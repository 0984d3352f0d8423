/* need.h: what two training steps ask of a device. */
#ifndef MTI_MEASURE_NEED_H
#define MTI_MEASURE_NEED_H

#include "measure/step.h"

/* The most of both steps, the second with the optimizer's state there from its beginning. Bytes in
 * 512-byte blocks; reserved: in segments. */
typedef struct mti_need {
    size_t peak, reserved;
    const char *phase; /* of the peak */
    size_t at_peak[MT_CATEGORY_COUNT];
} mti_need;

/* Two steps on a device of their own, with its capacity. False with *refused where that was too
 * little. watch may be NULL. Free m in any case. */
bool mti_need_measure(mti_need *need, mti_measurement *m, const mti_workload *w,
                      const mti_watch *watch, bool *refused);
/* Whether the last failure was for want of memory that `device` (may be NULL) refused. */
bool mti_was_refused(mt_device *device);

#endif

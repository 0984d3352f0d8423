/* need.h: the memory that two training steps need. */
#ifndef MTI_MEASURE_NEED_H
#define MTI_MEASURE_NEED_H

#include "measure/step.h"

/* The highest of both steps; the second begins with the optimizer's state. */
typedef struct mti_need {
    size_t requested;      /* whatever the allocator does, it takes no less ... */
    size_t peak, reserved; /* ... but these depend on where blocks lie, and so on the capacity */
    const char *phase;     /* of the peak */
    size_t at_peak[MT_CATEGORY_COUNT];
} mti_need;

/* Measures two steps on a new device with the workload's capacity. False with *refused if that is
 * too little. watch may be NULL. Free m in any case. */
bool mti_need_measure(mti_need *need, mti_measurement *m, const mti_workload *w,
                      const mti_watch *watch, bool *refused);
/* Whether the last failure was out of memory on `device` (may be NULL). */
bool mti_was_refused(mt_device *device);

#endif

/* oom.h: PyTorch's out-of-memory message beside the run that is predicted: what asked for so many
 * bytes, whether the prediction runs out as well, and with which changes it does not. */
#ifndef MTI_COMPARE_OOM_H
#define MTI_COMPARE_OOM_H

#include "compare/readings.h"
#include "measure/profile.h"

/* The message, in any form that it has had since PyTorch 1.0. What it does not say is 0 to 0. */
typedef struct mti_oom {
    int64_t line;
    size_t n;             /* messages in the text; the first is this */
    mti_byte_range asked; /* of the device: what a tensor asks for, up to whole segments */
    mti_byte_range total, free, allocated, unallocated;
} mti_oom;

/* False if the text has none; else their digits are blanks in it from now on. */
bool mti_oom_take(mti_oom *oom, char *text);
/* Bytes that PyTorch could have had: what it has and what is free; 0: the message does not say. */
size_t mti_oom_capacity(const mti_oom *oom);

/* Holds what a change came to; the first of a kind that fits is the last that is measured. */
typedef struct mti_tried {
    const mti_change *change;
    mti_requirement needed;
    bool fits;
} mti_tried;

/* Requests for so many bytes in both steps that are alike: of one op, phase and size, of modules
 * that differ in a number. */
typedef struct mti_asker {
    char module[160];
    const char *op, *phase;
    mt_category category;
    size_t bytes, n;
    long first, last; /* numbers in the module's path; -1: none */
} mti_asker;

typedef struct mti_compared_oom {
    mti_oom read;
    size_t capacity;
    MTI_VEC(mti_asker) askers; /* forward's first */
    bool found;                /* which of these requests, when about as much was allocated: */
    size_t nearest;            /* an event of the profile's timeline */
    char product[160];         /* "b x s x f x 2 bytes", all that the size may be; else "" */
    bool refused;              /* in so much memory the predicted run is refused, too: */
    mti_profile_result run;    /* it, up to there, and what it needs */
    MTI_VEC(mti_tried) tried;  /* empty where the prediction fits */
} mti_compared_oom;

/* profile: without a limit. Free in any case. */
bool mti_oom_compare(mti_compared_oom *c, const mti_profile_result *profile,
                     const mti_changes *changes);
void mti_oom_free(mti_compared_oom *c);

#endif

/* changes.h: what people change when memory runs out: options beside those that were typed. */
#ifndef MTI_OPTIONS_CHANGES_H
#define MTI_OPTIONS_CHANGES_H

#include "options/options.h"

/* The changes that options allow, each parsed with all that was typed. */
typedef struct mti_option_changes {
    mti_changes changes;
    MTI_VEC(char *) words; /* own the strings in the workloads */
} mti_option_changes;

/* Those which have an effect, in the order of what they cost. searching: without those that a
 * search tries by itself: of batch, sequence, checkpoints, optimizer and allocator. Free in any
 * case. */
bool mti_option_changes_make(mti_option_changes *out, const mti_options *o, bool searching);
void mti_option_changes_free(mti_option_changes *c);

#endif

/* linear_low.h: linears whose products are of 8 or 4 bits. */
#ifndef MTI_LINEAR_LOW_H
#define MTI_LINEAR_LOW_H

#include "base/base.h"
#include "memtape/models/stacks.h"
#include "memtape/tensor.h"

/* How many values of a row share a scale; 1: all, or there are no scales. */
int64_t mti_linear_block(mt_linear_form form);
/* Whether backward reads codes, not x itself. */
bool mti_linear_keeps_codes(mt_linear_form form);

/* What a form whose scales are those of the steps before remembers: of forward, x, w and y, and of
 * backward, dy and dx. */
enum { MTI_LOW_HISTORY = 1024, MTI_LOW_FORWARD = 3, MTI_LOW_BACKWARD = 2 };
typedef struct mti_linear_low {
    mt_linear_form form;
    bool training;         /* of the forward that runs, or ran last */
    mt_tensor *history[2]; /* f32 [HISTORY,FORWARD], [HISTORY,BACKWARD]: each tensor's largest
                            * values, the last one's first; borrowed. NULL for other forms */
    mt_tensor *times[2];   /* f32 [FORWARD], [BACKWARD], ones before the first step: what each is
                            * multiplied by in this one */
} mti_linear_low;
/* Whether the form has such a history. */
bool mti_linear_remembers(mt_linear_form form);
/* x w^T + bias, which may be NULL. *l is read until backward is over. */
mt_tensor *mti_linear_low_run(mti_linear_low *l, mt_tensor *x, mt_tensor *w, mt_tensor *bias);

#endif

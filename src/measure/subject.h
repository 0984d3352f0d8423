/* subject.h: what training steps are made of: a model, or one rank of several, and its inputs. */
#ifndef MTI_MEASURE_SUBJECT_H
#define MTI_MEASURE_SUBJECT_H

#include "measure/workload.h"
#include "parallel/parallel.h"

typedef struct mti_subject {
    mt_device *device;            /* borrowed */
    const mti_workload *workload; /* borrowed */
    mti_stage stage;
    mt_tensor *input; /* [b,s,d] requiring grad, or i64 token ids [b,s]; NULL for a rank, which gets
                       * others for each microbatch */
    mt_tensor *target; /* i64 [b,s] for a whole model, whose output is then the loss; else NULL */
    bool has_loss;     /* some forward ends in one */
} mti_subject;

/* With the workload's adapters, if any; all other random numbers are the same. `target`: a whole
 * model gets one. Free in any case. */
bool mti_subject_make(mti_subject *s, mt_device *device, const mti_workload *w, bool target);
void mti_subject_free(mti_subject *s);
/* The input, and the target if there is one, of a part's forward; as mti_batches. */
bool mti_subject_take(const mti_subject *s, mti_turn turn, mti_in_flight *f);

#endif

/* subject.h: what training steps are made of: a model, or one rank of several, its inputs, and the
 * order of its forwards and backwards. */
#ifndef MTI_MEASURE_SUBJECT_H
#define MTI_MEASURE_SUBJECT_H

#include "measure/workload.h"
#include "parallel/parallel.h"

typedef struct mti_subject {
    mt_device *device;            /* borrowed */
    const mti_workload *workload; /* borrowed */
    mt_module *model;             /* of a rank: all that has parameters */
    mt_tensor *input; /* [b,s,d] requiring grad, or i64 token ids [b,s]; NULL for a rank, which gets
                       * others for each microbatch */
    mt_tensor *target; /* i64 [b,s] for a whole model, whose output is then the loss; else NULL */
    bool has_loss;     /* some forward ends in one */
    mti_stage *stage;  /* of a rank; else NULL */
    uint64_t n_params; /* before ZeRO cuts them */
} mti_subject;

/* With the workload's adapters, if any; all other random numbers are the same. `target`: a whole
 * model gets one. */
bool mti_subject_make(mti_subject *s, mt_device *device, const mti_workload *w, bool target);
void mti_subject_free(mti_subject *s);
/* The output (a gpt: the loss); the caller's. Not of a rank. */
mt_tensor *mti_subject_forward(const mti_subject *s);

/* ---- the forwards and backwards of a step ---- */

/* A part of the model whose forward has run and whose backward has not. */
typedef struct mti_flown {
    mt_tensor *input, *target; /* of a rank's microbatch */
    mt_tensor *output;
    bool last; /* the output is the model's: a loss, if there is one; else what is sent on */
} mti_flown;

/* How many there are, and how many forwards come before the first backward. */
int64_t mti_subject_turns(const mti_subject *s);
int64_t mti_subject_ahead(const mti_subject *s);
/* After how many forwards, and backwards, their parts are the same again. */
int64_t mti_subject_unit(const mti_subject *s);
/* From now on there are n, since the others would repeat them; 0: all. */
void mti_subject_set_turns(const mti_subject *s, int64_t n);
/* The k-th forward. Its output is in *out, to be freed in any case. */
bool mti_subject_fly(const mti_subject *s, int64_t k, mti_flown *out);
/* Which forward's backward is the k-th. */
int64_t mti_subject_return(const mti_subject *s, int64_t k);
void mti_flown_free(mti_flown *f);
/* For inference: dropout is off, and only the forwards of the first microbatch are wanted. */
void mti_subject_infers(mti_subject *s);
bool mti_subject_is_first(const mti_subject *s, int64_t k);
/* Of the whole step, where only so many microbatches ran. */
mt_flops mti_subject_flops(const mti_subject *s, mt_flops counted);
uint64_t mti_subject_whole(const mti_subject *s, uint64_t counted);
/* By which a stage's outputs leave for the next; NULL: none do. */
mt_comm *mti_subject_comm(const mti_subject *s);

/* Before a step's backwards, before the k-th, and after all, also after a failure. */
bool mti_subject_start_backward(const mti_subject *s);
void mti_subject_tell_backward(const mti_subject *s, int64_t k);
bool mti_subject_end_backward(const mti_subject *s);

/* ---- around an optimizer's step ---- */

mt_module *mti_subject_stepped(const mti_subject *s); /* whose parameters it steps */
bool mti_subject_before_step(const mti_subject *s);
bool mti_subject_after_step(const mti_subject *s); /* drops the gradients */
/* Requested bytes of the gradients of parameters, as they are now. */
bool mti_subject_grad_bytes(const mti_subject *s, size_t *bytes);

#endif

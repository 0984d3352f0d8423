/* fault.h: ctx->fault, the one note in device memory that all kernels share.
 *
 * A kernel that meets a bad number cannot say so to the call that launched it, which has
 * returned. It leaves a note, and the next sync or download finds it, whichever host thread asks:
 * it clears the note and fails with mti_fault_report. Kernels run one after the other on the one
 * stream, so no two write at once. */
#ifndef MTI_CUDA_FAULT_H
#define MTI_CUDA_FAULT_H

#include <inttypes.h>
#include "backends/cuda/gpu.h"

enum { MTI_FAULT_NONE, MTI_FAULT_INDEX, MTI_FAULT_TARGET, MTI_FAULT_GATHER };

/* The first bad number since the last sync: the earliest call's, and in it the lowest position. */
struct mti_fault {
    int64_t kind;            /* what was bad; 0: nothing */
    int64_t position, value; /* number `position` is `value` */
    int64_t limit, ignore;   /* it had to be in [0, limit), or `ignore` for a target; gather: the
                              * dimension */
};

/* Device: number `at` is bad. If it is the first of `numbers`, and nothing was bad before this
 * launch, it is noted: so exactly one thread of a launch writes, whichever comes first. */
static __device__ inline void mti_note_bad(mti_fault *fault, int64_t kind, const int64_t *numbers,
                                           int64_t at, int64_t limit, int64_t ignore)
{
    for (int64_t i = 0; i < at; i++) {
        bool good = (numbers[i] >= 0 && numbers[i] < limit) ||
                    (kind == MTI_FAULT_TARGET && numbers[i] == ignore);
        if (!good) return;
    }
    if (fault->kind != MTI_FAULT_NONE) return;
    *fault = {kind, at, numbers[at], limit, ignore};
}

/* Host: the error that a note stands for; false. */
static inline bool mti_fault_report(const struct mti_fault *f)
{
    if (f->kind == MTI_FAULT_INDEX)
        return mti_fail_bool(MT_ERR_ARGUMENT,
                             "embedding: index[%" PRId64 "] is %" PRId64
                             "; the table has rows 0 to %" PRId64,
                             f->position, f->value, f->limit - 1);
    if (f->kind == MTI_FAULT_GATHER)
        return mti_fail_bool(MT_ERR_ARGUMENT,
                             "gather: index[%" PRId64 "] is %" PRId64
                             "; x has elements 0 to %" PRId64 " in dimension %" PRId64,
                             f->position, f->value, f->limit - 1, f->ignore);
    return mti_fail_bool(MT_ERR_ARGUMENT,
                         "cross_entropy: target[%" PRId64 "] is %" PRId64 "; need 0 to %" PRId64
                         ", or %" PRId64 " to ignore the row",
                         f->position, f->value, f->limit - 1, f->ignore);
}

#endif

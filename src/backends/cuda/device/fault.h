/* fault.h: ctx->fault, the one note in device memory that all kernels share.
 *
 * A kernel that finds a bad index cannot fail the call that launched it, which has returned. It
 * writes a note; the next sync or download, by any host thread, finds and clears the note and fails
 * with mti_fault_report. All kernels run in order on one stream, so no two write at once. */
#ifndef MTI_CUDA_FAULT_H
#define MTI_CUDA_FAULT_H

#include <inttypes.h>
#include "backends/cuda/gpu.h"

enum { MTI_FAULT_NONE, MTI_FAULT_INDEX, MTI_FAULT_TARGET, MTI_FAULT_GATHER };

/* The first bad index since the last sync: of the earliest call, the lowest position. */
struct mti_fault {
    int64_t kind;            /* the kind of index; 0: no fault */
    int64_t position, value; /* numbers[position] is value */
    int64_t limit, ignore;   /* must be in [0, limit); ignore: a target's exception, or gather's
                              * dimension */
};

/* Device: numbers[at] is bad. Notes it if all earlier `numbers` are good and no earlier launch
 * noted a fault: so exactly one thread of a launch writes. */
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

/* Host: fails with the error that a note describes; false. */
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

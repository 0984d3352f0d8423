/* fault.h: ctx->fault, the one note in device memory that all kernels share: the first bad index
 * since the last sync, of the earliest call, the lowest position.
 *
 * A kernel that finds a bad index cannot fail the call that launched it, which has returned. It
 * writes a note; the next sync or download, by any host thread, finds and clears the note and fails
 * with mti_fault_report. All kernels run in order on one stream, so no two write at once. */
#ifndef MTI_CUDA_FAULT_H
#define MTI_CUDA_FAULT_H

#include "backends/cuda/gpu.h"

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

#endif

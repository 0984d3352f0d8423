/* frame.h: a checkpoint around a module, or around several of its layers. */
#ifndef MTI_FRAME_H
#define MTI_FRAME_H

#include "nn/nn.h"

typedef struct mti_module_frame {
    mt_module *m;
    mti_run_fn *run; /* NULL: runs layers from .. to - 1 of m, which take x over */
    mt_tensor *(*layers)(mt_module *m, mt_tensor *x, int64_t from, int64_t to);
    int64_t from, to;
} mti_module_frame;
mt_tensor *mti_run_frame(mti_module_frame frame, int n_in, mt_tensor *const *in,
                         const mt_checkpoint_options *options);

#endif

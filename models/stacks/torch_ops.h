/* torch_ops.h: ops of ours that take more memory in PyTorch: the same rows, which keep more.
 */
#ifndef MTI_TORCH_OPS_H
#define MTI_TORCH_OPS_H

#include "memtape/tensor.h"

/* The same as mt_log_softmax, but its gradient never takes the place of the one that comes in. */
mt_tensor *mti_torch_log_softmax(mt_tensor *x);
/* The same as mt_combine, but it keeps x, too, for its shape alone. */
mt_tensor *mti_torch_index_add(mt_tensor *x, mt_tensor *index, int64_t rows);

#endif

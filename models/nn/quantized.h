/* quantized.h: a linear whose weight is kept in 8 or 4 bits. */
#ifndef MTI_NN_QUANTIZED_H
#define MTI_NN_QUANTIZED_H

#include "memtape/ops.h"
#include "nn/nn.h"

/* y = x w^T + b with w as mt_quantize makes it, from a linear or a grouped one, which does not
 * change; NULL on failure. */
mt_module *mti_linear_quantized_new(const mt_module *linear, const mt_quant *format);
bool mti_is_linear_quantized(const mt_module *m);
/* How many rows each group has, where it was made from a grouped linear; borrowed until set again.
 */
void mti_linear_quantized_set_counts(mt_module *m, mt_tensor *counts);
/* The module's weight as a new tensor in `dtype`. */
mt_tensor *mti_linear_quantized_weight(const mt_module *m, mt_dtype dtype);
/* The dtype of the linear it was made from. */
mt_dtype mti_linear_quantized_dtype(const mt_module *m);

#endif

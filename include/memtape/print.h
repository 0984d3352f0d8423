/* print.h: a tensor as text. */
#ifndef MEMTAPE_PRINT_H
#define MEMTAPE_PRINT_H

#include <stdio.h>
#include "memtape/tensor.h"

MT_C_BEGIN

/* Prints a line with dtype, shape, device and the op that made t (or "requires grad"), and the
 * values in torch's format: one format for all, columns aligned, lines of 80. Of more than 1000
 * elements only the first and last three of each dimension; without data only the line. Flushes
 * out; MT_ERR_IO if writing fails. Allocates nothing on the device.
 *
 *     f32 [2,2] on cpu, made by mul
 *     [[1.0000, 0.5000],
 *      [   nan, 2.0000]]
 */
MT_API mt_status mt_print(const mt_tensor *t, FILE *out);

MT_C_END
#endif

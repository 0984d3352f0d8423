/* layouts.h: layouts of a tensor in its storage, and tensors with these layouts. */
#ifndef LAYOUTS_H
#define LAYOUTS_H

#include "mtt_engine.h"

/* Row-major, except as these fields say. Bit d stands for dimension d. */
typedef struct tensor_layout {
    int order[MT_MAX_RANK]; /* order of the dimensions in memory, slowest first */
    unsigned expanded;      /* dimensions with stride 0: one element for all indices */
    unsigned sliced;        /* dimensions with more elements before and after */
    bool offset;            /* the tensor begins at the storage's second element */
} tensor_layout;

tensor_layout layout_dense(int rank);
const char *layout_text(const tensor_layout *l, int rank, char text[128]);

/* Layouts of a tensor of this rank that expand exactly these dimensions: row-major; sliced in each
 * dimension and in all; with an offset; two neighbouring dimensions swapped in memory; all
 * dimensions reversed, also sliced. `every_order`: every permutation instead of swapped and
 * reversed ones, sliced and with an offset. The caller frees *out. */
int layouts_with(int rank, unsigned expanded, bool every_order, tensor_layout **out);

/* Sets every element to the one at index 0 of the expanded dimensions. */
void layout_repeat(int rank, const int64_t *shape, unsigned expanded, double *values);

/* Strides and offset of a tensor of this shape. *stored: number of elements in the storage. */
mt_layout layout_of(mt_dtype dtype, int rank, const int64_t *shape, const tensor_layout *l,
                    int64_t *stored);

/* A leaf with its own storage and these values (row-major; equal along expanded dimensions).
 * Elements of the storage outside the tensor are NaN, or -7. */
mt_tensor *layout_make(mt_device *device, mt_dtype dtype, int rank, const int64_t *shape,
                       const double *values, const tensor_layout *l);

#endif

/* layouts.h: the ways in which a tensor may lie in its storage, and tensors that lie so. */
#ifndef LAYOUTS_H
#define LAYOUTS_H

#include "mtt.h"

/* Row-major, but for what is said. Bit d speaks of dimension d. */
typedef struct tensor_layout {
    int order[MT_MAX_RANK]; /* dimensions as they lie in memory, slowest first */
    unsigned expanded;      /* one element for all of the dimension: stride 0 */
    unsigned sliced;        /* the storage goes on before and behind */
    bool offset;            /* an element of the storage comes first */
} tensor_layout;

tensor_layout layout_dense(int rank);
const char *layout_text(const tensor_layout *l, int rank, char text[128]);

/* Layouts of a tensor of that rank that expand just these dimensions: as it is, sliced in each
 * dimension and in all, with an offset; neighbours in memory swapped, all dimensions backwards, and
 * that sliced. `every_order`: instead of the latter every permutation, sliced and with an offset.
 * The caller frees *out. */
int layouts_with(int rank, unsigned expanded, bool every_order, tensor_layout **out);

/* Every element becomes the one at index 0 of the expanded dimensions. */
void layout_repeat(int rank, const int64_t *shape, unsigned expanded, double *values);

/* Where this layout finds the elements of a tensor of that shape. *stored: elements of the storage.
 */
mt_layout layout_of(mt_dtype dtype, int rank, const int64_t *shape, const tensor_layout *l,
                    int64_t *stored);

/* A leaf over a storage of its own with these values (row-major; the same along what is expanded).
 * Elements of the storage that are not the tensor's are NaN, or -7. */
mt_tensor *layout_make(mt_device *device, mt_dtype dtype, int rank, const int64_t *shape,
                       const double *values, const tensor_layout *l);

#endif

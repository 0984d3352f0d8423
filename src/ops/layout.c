/* layout.c: views of the same memory in another shape, for kernels. */
#include <string.h>
#include "ops/ops.h"

mti_view mti_flat(const mti_view *v)
{
    return (mti_view){
        .data = v->data, .dtype = v->dtype, .rank = 1, .shape = {mti_view_count(v)}, .stride = {1}};
}

mti_view mti_as_rows(const mti_view *v)
{
    int64_t n = v->shape[v->rank - 1], m = 1;
    for (int d = 0; d < v->rank - 1; d++) m *= v->shape[d];
    return (mti_view){
        .data = v->data, .dtype = v->dtype, .rank = 2, .shape = {m, n}, .stride = {n, 1}};
}

mti_view mti_range(const mti_view *v, int dim, int64_t start, int64_t length)
{
    mti_view r = *v;
    r.shape[dim] = length;
    if (v->data)
        r.data = (char *)v->data + start * v->stride[dim] * (int64_t)mt_dtype_size(v->dtype);
    return r;
}

mti_view mti_permuted(const mti_view *v, const int *order)
{
    mti_view r = *v;
    for (int d = 0; d < v->rank; d++)
        r.shape[d] = v->shape[order[d]], r.stride[d] = v->stride[order[d]];
    return r;
}

mti_view mti_transposed(const mti_view *v)
{
    mti_view r = *v;
    int i = v->rank - 2, j = v->rank - 1;
    r.shape[i] = v->shape[j], r.shape[j] = v->shape[i];
    r.stride[i] = v->stride[j], r.stride[j] = v->stride[i];
    return r;
}

mti_view mti_last_two(const mti_view *v)
{
    mti_view r = {.data = v->data, .dtype = v->dtype, .rank = 2};
    memcpy(r.shape, v->shape + v->rank - 2, 2 * sizeof *r.shape);
    memcpy(r.stride, v->stride + v->rank - 2, 2 * sizeof *r.stride);
    return r;
}

mti_view mti_broadcast_view(const mti_view *v, int rank, const int64_t *shape)
{
    mti_view b = *v;
    b.rank = rank;
    int lead = rank - v->rank;
    for (int d = 0; d < rank; d++) {
        bool stretched = d < lead || (v->shape[d - lead] == 1 && shape[d] != 1);
        b.shape[d] = shape[d];
        b.stride[d] = stretched ? 0 : v->stride[d - lead];
    }
    return b;
}

mti_view mti_heads_inside(const mti_view *v)
{
    mti_view r = *v;
    int64_t a = v->shape[1], s = v->shape[2], d = v->shape[3];
    const int64_t stride[4] = {s * a * d, d, a * d, 1};
    memcpy(r.stride, stride, sizeof stride);
    r.data = NULL;
    return r;
}

/* strided.c: what every backend asks of a view, and says of a bad index. */
#include <inttypes.h>
#include "backends/backend.h"

bool mti_view_is_contiguous(const mti_view *v)
{
    int64_t expected = 1;
    if (mti_view_count(v) == 0) return true;
    for (int d = v->rank - 1; d >= 0; d--) {
        if (v->shape[d] == 1) continue;
        if (v->stride[d] != expected) return false;
        expected *= v->shape[d];
    }
    return true;
}

bool mti_view_same_shape(const mti_view *a, const mti_view *b)
{
    if (a->rank != b->rank) return false;
    for (int d = 0; d < a->rank; d++)
        if (a->shape[d] != b->shape[d]) return false;
    return true;
}

void mti_view_sums(const mti_view *a, const mti_view *sums, mti_view *x, mti_view *y)
{
    *x = *a;
    x->shape[0] = a->shape[1], x->shape[1] = a->shape[0];
    x->stride[0] = a->stride[1], x->stride[1] = a->stride[0];
    *y = (mti_view){.data = sums ? sums->data : NULL,
                    .dtype = a->dtype,
                    .rank = 2,
                    .shape = {1, a->shape[0]},
                    .stride = {a->shape[0], 1}};
}

bool mti_fault_report(const mti_fault *f)
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
    if (f->kind == MTI_FAULT_GROUP)
        return mti_fail_bool(MT_ERR_ARGUMENT,
                             "dispatch: index[%" PRId64 "] is %" PRId64 "; need 0 to %" PRId64,
                             f->position, f->value, f->limit - 1);
    return mti_fail_bool(MT_ERR_ARGUMENT,
                         "cross_entropy: target[%" PRId64 "] is %" PRId64 "; need 0 to %" PRId64
                         ", or %" PRId64 " to ignore the row",
                         f->position, f->value, f->limit - 1, f->ignore);
}

#include "views.h"

mti_view mtt_view(mt_dtype dtype, int rank, const int64_t *shape, mtt_placing placing)
{
    mti_view v = {.dtype = dtype, .rank = rank};
    int64_t step = 1;
    for (int k = 0; k < rank; k++) {
        int d = placing == MTT_PLACED_REVERSED ? k : rank - 1 - k;
        v.shape[d] = shape[d];
        if (d == rank - 1 && placing == MTT_PLACED_STEPPED) step *= 2;
        v.stride[d] = d == 0 && placing == MTT_PLACED_BROADCAST ? 0 : step;
        step *= shape[d];
        if (d == rank - 1 && placing == MTT_PLACED_PADDED) step += 3;
    }
    v.data = mtt_memory(((size_t)step + 1) * mt_dtype_size(dtype));
    return v;
}

void mtt_drop(mti_view *v)
{
    mtt_memory_free(v->data);
    v->data = NULL;
}

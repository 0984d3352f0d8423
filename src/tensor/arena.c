/* arena.c: a list of tensors that are released together. */
#include "tensor/tensor.h"

struct mt_arena {
    MTI_VEC(mt_tensor *) tensors;
};

mt_arena *mt_arena_new(void) { return mti_calloc(1, sizeof(mt_arena)); }

mt_tensor *mt_in(mt_arena *a, mt_tensor *t)
{
    if (mti_given(a, "in", "the arena") && mti_given(t, "in", "the tensor") &&
        MTI_PUSH(&a->tensors, t))
        return t;
    mt_release(t);
    return NULL;
}

void mt_arena_clear(mt_arena *a)
{
    while (a && a->tensors.n) mt_release(a->tensors.at[--a->tensors.n]);
}

void mt_arena_free(mt_arena *a)
{
    if (!a) return;
    mt_arena_clear(a);
    mti_free(a->tensors.at);
    mti_free(a);
}

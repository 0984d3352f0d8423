/* rotary.c: heads turned by the op, and what every way to turn them begins with. */
#include "stacks/forms.h"

mt_tensor *mti_widen(mt_tensor *x)
{
    return x ? mt_cast(x, mt_dtype_of(x) == MT_F64 ? MT_F64 : MT_F32) : NULL;
}

void mti_rope_tables_free(mti_rope_tables *tables)
{
    for (int i = 0; i < MTI_ROPE_KINDS; i++)
        mt_release(tables->of[i].cosine), mt_release(tables->of[i].sine);
    *tables = (mti_rope_tables){0};
}

bool mti_halves_of_pairs(mt_tensor **x)
{
    const int64_t *shape = mt_shape(*x), b = shape[0], n = shape[1], s = shape[2], h = shape[3];
    mt_set(x, mt_reshape(*x, MT_SHAPE(b, n, s, h / 2, 2)));
    mt_set(x, mt_transpose(*x, 3, 4));
    return mt_set(x, *x ? mt_reshape(*x, MT_SHAPE(b, n, s, h)) : NULL) == MT_OK;
}

bool mti_rotate(const mti_rotation *r, int64_t start, mti_rope_tables *tables, mt_tensor **x)
{
    (void)tables;
    return (!r->pairs || mti_halves_of_pairs(x)) &&
           mt_set(x, mt_rope_with(*x, start, &r->angles)) == MT_OK;
}

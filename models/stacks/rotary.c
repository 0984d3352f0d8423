/* rotary.c: heads turned by the op, and what every way to turn them begins with. */
#include "stacks/forms.h"

mt_tensor *mti_widen(mt_tensor *x)
{
    return x ? mt_cast(x, mt_dtype_of(x) == MT_F64 ? MT_F64 : MT_F32) : NULL;
}

void mti_rope_tables_free(mti_rope_tables *tables)
{
    for (int i = 0; i < MTI_ROPE_THETAS; i++)
        mt_release(tables->of[i].cosine), mt_release(tables->of[i].sine);
    *tables = (mti_rope_tables){0};
}

/* The pairs of *x [b,n,s,h] as halves of it: a copy. */
static bool apart(mt_tensor **x)
{
    const int64_t *shape = mt_shape(*x), b = shape[0], n = shape[1], s = shape[2], h = shape[3];
    mt_set(x, mt_reshape(*x, MT_SHAPE(b, n, s, h / 2, 2)));
    mt_set(x, mt_transpose(*x, 3, 4));
    return mt_set(x, *x ? mt_reshape(*x, MT_SHAPE(b, n, s, h)) : NULL) == MT_OK;
}

bool mti_rotate_begin(const mti_rotation *r, bool pairs, mt_tensor **x)
{
    if (r->scale != 1 && mt_set(x, mt_affine(*x, r->scale, 0)) != MT_OK) return false;
    return !pairs || apart(x);
}

bool mti_rotate(const mti_rotation *r, int64_t start, mti_rope_tables *tables, mt_tensor **x)
{
    (void)tables;
    return mti_rotate_begin(r, r->pairs, x) &&
           mt_set(x, mt_rope_with(*x, start, &r->angles)) == MT_OK;
}

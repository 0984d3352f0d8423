/* transformers_rotary.c: rotary positions as products with tables of cosines and sines, in the
 * three orders that Transformers' models have. */
#include "stacks/forms.h"
#include "memtape/autocast.h"

/* Half of `turned` [1,1,s,h], twice: [s,h] in `dtype`. */
static mt_tensor *table_of(mt_tensor *turned, int half, mt_dtype dtype)
{
    int64_t s = mt_shape(turned)[2], h = mt_shape(turned)[3];
    mt_tensor *part = mt_slice(turned, 3, half ? h / 2 : 0, h / 2);
    mt_tensor *both = part ? mt_cat(2, (mt_tensor *[]){part, part}, 3) : NULL;
    mt_release(part);
    mt_set(&both, both ? mt_reshape(both, MT_SHAPE(s, h)) : NULL);
    mt_set(&both, both ? mt_cast(both, dtype) : NULL);
    return both;
}

/* The pair (1, 0), turned by an angle, is its cosine and sine: [1,1,s,h] */
static mt_tensor *turn_ones(mt_device *device, const mti_rotation *r, int64_t start, int64_t s,
                            int64_t h)
{
    const mt_dtype type = r->dtype == MT_F64 ? MT_F64 : MT_F32;
    mt_tensor *one = mt_full(device, type, MT_SHAPE(1, 1, s, h / 2), 1);
    mt_tensor *zero = one ? mt_zeros(device, type, MT_SHAPE(1, 1, s, h / 2)) : NULL;
    mt_tensor *turned = zero ? mt_cat(2, (mt_tensor *[]){one, zero}, 3) : NULL;
    mt_release(one), mt_release(zero);
    mt_set(&turned, turned ? mt_rope_with(turned, start, &r->angles) : NULL);
    return turned;
}

static bool make_tables(mt_tensor **cosine, mt_tensor **sine, mt_device *device,
                        const mti_rotation *r, int64_t start, int64_t s, int64_t h)
{
    mt_tensor *turned = turn_ones(device, r, start, s, h);
    *cosine = turned ? table_of(turned, 0, r->dtype) : NULL;
    *sine = *cosine ? table_of(turned, 1, r->dtype) : NULL;
    mt_release(turned);
    return *sine != NULL;
}

/* (x1, x2) -> (-x2, x1) in each row's halves */
static mt_tensor *quarter_turn(mt_tensor *x)
{
    int last = mt_rank(x) - 1;
    int64_t half = mt_shape(x)[last] / 2;
    mt_tensor *low = mt_slice(x, last, 0, half), *high = low ? mt_slice(x, last, half, half) : NULL;
    mt_set(&high, mt_affine(high, -1, 0));
    mt_tensor *y = high ? mt_cat(2, (mt_tensor *[]){high, low}, last) : NULL;
    mt_release(low), mt_release(high);
    return y;
}

static bool are_same(const mt_rope_options *a, const mt_rope_options *b)
{
    return a->theta == b->theta && a->factor == b->factor && a->low == b->low &&
           a->high == b->high && a->scale == b->scale && a->by_angle == b->by_angle;
}

/* Where tables of these angles are, or are to be made. */
static int place_of(const mti_rope_tables *tables, const mt_rope_options *angles)
{
    int i = 0;
    while (i < MTI_ROPE_KINDS - 1 && tables->of[i].angles.theta != 0 &&
           !are_same(&tables->of[i].angles, angles))
        i++;
    return i;
}

/* x cos + (-x2, x1) sin. Keeps the tables alone: they want no gradient, so neither product needs x.
 */
static bool by_wide_tables(const mti_rotation *r, int64_t start, mti_rope_tables *tables,
                           mt_tensor **x)
{
    int64_t s = mt_shape(*x)[2], h = mt_shape(*x)[3];
    const int i = place_of(tables, &r->angles);
    mt_tensor **cosine = &tables->of[i].cosine, **sine = &tables->of[i].sine;
    bool made = are_same(&tables->of[i].angles, &r->angles) && *sine && mt_shape(*sine)[0] == s;
    if (!made) {
        mt_release(*cosine), mt_release(*sine);
        *cosine = *sine = NULL;
        tables->of[i].angles = r->angles;
        if (!make_tables(cosine, sine, mt_device_of(*x), r, start, s, h)) return false;
    }
    mt_tensor *y = mt_mul(*x, *cosine), *turned = y ? quarter_turn(*x) : NULL;
    mt_set(&turned, mt_mul(turned, *sine));
    mt_set(&y, mt_add(y, turned));
    mt_release(turned);
    return mt_set(x, y) == MT_OK;
}

/* c x - d y */
static mt_tensor *product_sum(mt_tensor *c, mt_tensor *x, mt_tensor *d, mt_tensor *y, bool minus)
{
    MT_AUTO mt_tensor *cx = mt_mul(c, x), *dy = cx ? mt_mul(d, y) : NULL;
    return dy ? (minus ? mt_sub : mt_add)(cx, dy) : NULL;
}

/* One half of `turned`: [s,h/2] */
static mt_tensor *narrow_table(mt_tensor *turned, int half, mt_dtype dtype)
{
    const int64_t s = mt_shape(turned)[2], h = mt_shape(turned)[3];
    mt_tensor *part = mt_slice(turned, 3, half ? h / 2 : 0, h / 2);
    mt_set(&part, mt_affine(part, 1, 0)); /* a copy */
    mt_set(&part, part ? mt_reshape(part, MT_SHAPE(s, h / 2)) : NULL);
    mt_set(&part, part ? mt_cast(part, dtype) : NULL);
    return part;
}

/* From tables [s,h/2]: gpt-oss. */
static bool by_narrow_tables(const mti_rotation *r, int64_t start, mti_rope_tables *tables,
                             mt_tensor **x)
{
    const int64_t s = mt_shape(*x)[2], h = mt_shape(*x)[3];
    const int i = place_of(tables, &r->angles);
    mt_tensor **c = &tables->of[i].cosine, **d = &tables->of[i].sine, *turned[2] = {NULL, NULL};
    if (!are_same(&tables->of[i].angles, &r->angles) || !*d || mt_shape(*d)[0] != s) {
        MT_AUTO mt_tensor *ones = turn_ones(mt_device_of(*x), r, start, s, h);
        tables->of[i].angles = r->angles;
        mt_set(c, ones ? narrow_table(ones, 0, r->dtype) : NULL);
        mt_set(d, *c ? narrow_table(ones, 1, r->dtype) : NULL);
    }
    MT_AUTO mt_tensor *low = *c && *d ? mt_slice(*x, 3, 0, h / 2) : NULL;
    MT_AUTO mt_tensor *high = low ? mt_slice(*x, 3, h / 2, h / 2) : NULL;
    if (high) turned[0] = product_sum(*c, low, *d, high, true);
    if (turned[0]) turned[1] = product_sum(*c, high, *d, low, false);
    mt_set(x, turned[1] ? mt_cat(2, turned, 3) : NULL);
    mt_release(turned[0]), mt_release(turned[1]);
    return *x != NULL;
}

/* Pairs (x[2 i], x[2 i + 1]) by one table of cosines and sines in f32, [1,1,s,h], its halves; they
 * come out as halves, in x's dtype: DeepSeek V2. */
static bool by_complex_table(const mti_rotation *r, int64_t start, mti_rope_tables *tables,
                             mt_tensor **x)
{
    const mt_dtype dtype = mt_dtype_of(*x);
    const int64_t *shape = mt_shape(*x), b = shape[0], n = shape[1], s = shape[2], h = shape[3];
    const int place = place_of(tables, &r->angles);
    mt_tensor **table = &tables->of[place].cosine;
    if (!are_same(&tables->of[place].angles, &r->angles) || !*table || mt_shape(*table)[2] != s) {
        tables->of[place].angles = r->angles;
        mt_set(table, turn_ones(mt_device_of(*x), r, start, s, h));
    }
    MT_AUTO mt_tensor *c = *table ? mt_slice(*table, 3, 0, h / 2) : NULL;
    MT_AUTO mt_tensor *d = c ? mt_slice(*table, 3, h / 2, h / 2) : NULL;
    mt_set(x, d ? mti_widen(*x) : NULL);
    mt_set(x, *x ? mt_reshape(*x, MT_SHAPE(b, n, s, h / 2, 2)) : NULL);
    mt_tensor *part[2] = {NULL, NULL}, *turned[2] = {NULL, NULL};
    bool ok = *x && mt_split(*x, 4, 2, (const int64_t[]){1, 1}, part) == MT_OK;
    for (int i = 0; ok && i < 2; i++)
        ok = mt_set(&part[i], mt_reshape(part[i], MT_SHAPE(b, n, s, h / 2))) == MT_OK;
    if (ok) turned[0] = product_sum(c, part[0], d, part[1], true);
    if (turned[0]) turned[1] = product_sum(c, part[1], d, part[0], false);
    mt_set(x, turned[1] ? mt_cat(2, turned, 3) : NULL);
    for (int i = 0; i < 2; i++) mt_release(part[i]), mt_release(turned[i]);
    return *x && mt_set(x, mt_cast(*x, dtype)) == MT_OK;
}

bool mti_transformers_rotate(const mti_rotation *r, int64_t start, mti_rope_tables *tables,
                             mt_tensor **x)
{
    mt_dtype low;
    if (r->narrow) return by_narrow_tables(r, start, tables, x);
    if (r->complex) return by_complex_table(r, start, tables, x);
    if (r->pairs && !mti_halves_of_pairs(x)) return false;
    return by_wide_tables(r, start, tables, x) &&
           (!r->turns_back || !mt_autocast_active(&low) || mt_set(x, mt_cast(*x, low)) == MT_OK);
}

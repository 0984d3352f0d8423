/* dtype.c: what is known of each element type (dtypes.def). */
#include <string.h>
#include "base/base.h"

static const struct {
    const char *name;
    mt_bits bits;
} rows[MT_DTYPE_COUNT] = {
#define DTYPE(NAME, name, bytes, sign, exponent, mantissa, file)                                   \
    [MT_##NAME] = {name, {sign, exponent, mantissa}},
#include "base/dtypes.def"
#undef DTYPE
};

const unsigned char mti_dtype_sizes[MT_DTYPE_COUNT] = {
#define DTYPE(NAME, name, bytes, sign, exponent, mantissa, file) [MT_##NAME] = bytes,
#include "base/dtypes.def"
#undef DTYPE
};

static bool known(mt_dtype dtype) { return (unsigned)dtype < MT_DTYPE_COUNT; }

size_t mt_dtype_size(mt_dtype dtype) { return known(dtype) ? mti_dtype_sizes[dtype] : 0; }

const char *mt_dtype_name(mt_dtype dtype) { return known(dtype) ? rows[dtype].name : "unknown"; }

mt_bits mt_dtype_bits(mt_dtype dtype) { return known(dtype) ? rows[dtype].bits : (mt_bits){0}; }

bool mti_dtype_is_real(mt_dtype dtype) { return known(dtype) && rows[dtype].bits.exponent > 0; }

bool mt_dtype_is_float(mt_dtype dtype)
{
    return known(dtype) && rows[dtype].bits.exponent > 0 && mti_dtype_sizes[dtype] > 1;
}

bool mt_dtype_parse(const char *name, mt_dtype *out)
{
    for (int d = 0; name && d < MT_DTYPE_COUNT; d++)
        if (!strcmp(name, rows[d].name)) {
            *out = (mt_dtype)d;
            return true;
        }
    return false;
}

/* dtype.c: one row per element type, in the order of the enum. */
#include <string.h>
#include "base/base.h"

static const struct {
    const char *name;
    size_t size;
    bool is_float;
} rows[MT_DTYPE_COUNT] = {
    [MT_F32] = {"f32", 4, true}, [MT_F64] = {"f64", 8, true},    [MT_BF16] = {"bf16", 2, true},
    [MT_F16] = {"f16", 2, true}, [MT_I64] = {"i64", 8, false},   [MT_I32] = {"i32", 4, false},
    [MT_U8] = {"u8", 1, false},  [MT_BOOL] = {"bool", 1, false},
};

static bool known(mt_dtype dtype) { return (unsigned)dtype < MT_DTYPE_COUNT; }

size_t mt_dtype_size(mt_dtype dtype) { return known(dtype) ? rows[dtype].size : 0; }

const char *mt_dtype_name(mt_dtype dtype) { return known(dtype) ? rows[dtype].name : "unknown"; }

bool mt_dtype_is_float(mt_dtype dtype) { return known(dtype) && rows[dtype].is_float; }

bool mt_dtype_parse(const char *name, mt_dtype *out)
{
    for (int d = 0; name && d < MT_DTYPE_COUNT; d++)
        if (!strcmp(name, rows[d].name)) {
            *out = (mt_dtype)d;
            return true;
        }
    return false;
}

/* dtype.h: element types. */
#ifndef MEMTAPE_DTYPE_H
#define MEMTAPE_DTYPE_H

#include <stdbool.h>
#include <stddef.h>
#include "memtape/status.h"

MT_C_BEGIN

/* The most dimensions a tensor has. */
#define MT_MAX_RANK 8

/* The type of a tensor's elements. */
typedef enum mt_dtype {
    MT_F32,
    MT_F64,  /* the reference for gradient checks */
    MT_BF16, /* stored in 2 bytes, computed in f32 */
    MT_F16,  /* stored in 2 bytes, computed in f32 */
    MT_I64,
    MT_I32,
    MT_U8,
    MT_BOOL, /* one byte, 0 or 1 */
    /* Stored only: made, filled, cast from and to every other dtype, copied, compared (but for the
     * two of 8-bit floats), printed, saved and counted; arithmetic on them is refused. */
    MT_I8,
    MT_I16,
    MT_U16,
    MT_F8_E4M3, /* PyTorch's float8_e4m3fn: no infinity; what is larger than 448 becomes 448 */
    MT_F8_E5M2, /* PyTorch's float8_e5m2: what rounds to more than 57344 becomes infinity */
    MT_DTYPE_COUNT
} mt_dtype;

MT_API size_t mt_dtype_size(mt_dtype dtype);      /* bytes per element */
MT_API const char *mt_dtype_name(mt_dtype dtype); /* "f32", "bf16", ... */
/* Whether ops compute in it and gradients have it: f32, f64, bf16, f16. The 8-bit floats are not
 * among them: a cast to one passes no gradient back, and is refused of a tensor that wants one. */
MT_API bool mt_dtype_is_float(mt_dtype dtype);

/* The bits of an element by what they are for. A float has exponent bits; a whole number has none,
 * and its bits except for the sign are mantissa. The sum is 8 times the bytes, except for bool,
 * which uses 1 of 8 bits. */
typedef struct mt_bits {
    int sign, exponent, mantissa;
} mt_bits;

MT_API mt_bits mt_dtype_bits(mt_dtype dtype); /* all 0 for an unknown dtype */
/* Name to dtype; false, and *out unchanged, if no dtype has the name. */
MT_API bool mt_dtype_parse(const char *name, mt_dtype *out);

MT_C_END
#endif

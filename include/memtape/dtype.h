/* dtype.h: element types. */
#ifndef MEMTAPE_DTYPE_H
#define MEMTAPE_DTYPE_H

#include <stdbool.h>
#include <stddef.h>
#include "memtape/status.h"

#ifdef __cplusplus
extern "C" {
#endif

#define MT_MAX_RANK 8

typedef enum mt_dtype {
    MT_F32,
    MT_F64,  /* the reference for gradient checks */
    MT_BF16, /* stored in 2 bytes, computed in f32 */
    MT_F16,  /* stored in 2 bytes, computed in f32 */
    MT_I64,
    MT_I32,
    MT_U8,
    MT_BOOL, /* one byte, 0 or 1 */
    MT_DTYPE_COUNT
} mt_dtype;

MT_API size_t mt_dtype_size(mt_dtype dtype);      /* bytes per element */
MT_API const char *mt_dtype_name(mt_dtype dtype); /* "f32", "bf16", ... */
MT_API bool mt_dtype_is_float(mt_dtype dtype);
/* Name to dtype; false, and *out unchanged, if no dtype has the name. */
MT_API bool mt_dtype_parse(const char *name, mt_dtype *out);

#ifdef __cplusplus
}
#endif
#endif

/* blocks8.h: a matrix in 8 or 4 bits a value, with the scales that torchao and Transformer Engine
 * give it. */
#ifndef MTI_BLOCKS8_H
#define MTI_BLOCKS8_H

#include "base/base.h"
#include "memtape/tensor.h"

typedef enum mti_scales {
    MTI_SCALE_TENSOR, /* one f32 for the whole tensor */
    MTI_SCALE_F32,    /* a power of two in f32 for each block; Transformer Engine's blockwise */
    MTI_SCALE_FLOOR,  /* E8M0, the exponent of the largest less that of the format; torchao's MX */
    MTI_SCALE_CEIL,   /* E8M0, the least in which the largest fits; Transformer Engine's MX */
    MTI_SCALE_TWO     /* e4m3 for each block, over one f32 for the tensor; NVFP4 */
} mti_scales;

typedef enum mti_values8 { MTI_VALUES_E4M3, MTI_VALUES_E5M2, MTI_VALUES_E2M1 } mti_values8;

typedef struct mti_blocks8 {
    mti_scales scales;
    mti_values8 values;
    int64_t rows, columns; /* of a block; of a tensor's one scale 1, 1 */
    bool across;           /* blocks go down the columns: of a matrix, its transpose */
} mti_blocks8;

/* Bytes of a matrix of n elements that mti_blocks8_encode makes: the scales, then the codes. */
int64_t mti_blocks8_bytes(const mti_blocks8 *b, int64_t n);
/* Encodes x [m,n] into `out`, u8, from byte `at` on. times: f32 [1], what the values are multiplied
 * by, of MTI_SCALE_TENSOR; NULL: as the largest needs. */
bool mti_blocks8_encode(const mti_blocks8 *b, mt_tensor *x, const mt_tensor *times, mt_tensor *out,
                        int64_t at);
/* Decodes it into y [m,n], of any floating dtype. */
bool mti_blocks8_decode(const mti_blocks8 *b, mt_tensor *in, int64_t at, mt_tensor *y);
/* max|x| as f32 [1], and what it is to be multiplied by to become the largest value. */
mt_tensor *mti_blocks8_largest(mt_tensor *x);
mt_tensor *mti_blocks8_times(mti_values8 values, mt_tensor *largest);

#endif

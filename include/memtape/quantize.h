/* quantize.h: fewer bits, for what is kept: packed bits, int8, NF4, MXFP4. No gradient. */
#ifndef MEMTAPE_QUANTIZE_H
#define MEMTAPE_QUANTIZE_H

#include "memtape/tensor.h"

MT_C_BEGIN

/* u8 [(n+7)/8]: bit i % 8 of byte i / 8 is 1 if element i, in row-major order, is true (bool) or
 * above 0 (floating; also for NaN, as relu's backward passes its gradient). */
MT_API mt_tensor *mt_pack_bits(mt_tensor *x);
/* The same bits as bool, or as 0 and 1 in a floating dtype. */
MT_API mt_tensor *mt_unpack_bits(mt_tensor *bits, mt_dtype dtype, int rank, const int64_t *shape);
/* The mask that a dropout drew with this p, seed and offset (from mt_save_info): bool, 1 where it
 * kept the element. */
MT_API mt_tensor *mt_dropout_mask(mt_device *device, int rank, const int64_t *shape, double p,
                                  uint64_t seed, uint64_t offset);

/* Values in row-major order, in blocks that share an f32 scale; the last block may be shorter.
 * int8: scale = max|x| / 127, code = x / scale to the nearest integer, ties to even.
 * nf4: scale = max|x|, code = the nearest of 16 levels, quantiles of the normal distribution; of
 * two equally near ones the lower (Dettmers et al. 2023, QLoRA). Two values a byte, the first in
 * the high bits.
 * mxfp4: scale = 2^(floor(log2 max|x|) - 2) in a byte, code = the nearest of 0, 1/2, 1, 3/2, 2, 3,
 * 4, 6 and their negatives, of two equally near ones that with an even code (OCP 2023, MX
 * formats, 6.3). Two values a byte, the first in the low bits, as in gpt-oss' files.
 * double_scales: the scales less their mean as int8, in blocks of 256 (the paper's double
 * quantisation): 1/64 byte a value instead of 4/64. A scale is then off by at most 1/254 of the
 * largest difference from the mean in its block of 256.
 * A block with an infinity or a NaN is dequantised to NaN, with double_scales the whole tensor, so
 * that the error stays visible. f64 is rounded to f32 first. The same bits on every device (except
 * those of a NaN), at every number of threads. */
typedef enum mt_quant_format { MT_QUANT_INT8, MT_QUANT_NF4, MT_QUANT_MXFP4 } mt_quant_format;
/* A format and its block. */
typedef struct mt_quant {
    mt_quant_format format;
    int block; /* values that share a scale: 64, 128 or 256; 0: 128 for int8, 64 for nf4;
                * of mxfp4: 32, as 0 */
    bool double_scales;
} mt_quant;

/* Bytes of n quantised values: with m = ceil(n / block) scales, n (int8) or (n + 1) / 2 (nf4,
 * mxfp4), and 4 m, of mxfp4 m; double_scales: m + 4 ceil(m / 256) + 4. No values: 0. 0 and an error
 * if n is negative or the format invalid. */
MT_API size_t mt_quantized_bytes(const mt_quant *format, int64_t n);
/* x of any floating dtype and any strides -> u8 [mt_quantized_bytes(format, numel)]: codes
 * and scales in one storage, which can be saved as it is. */
MT_API mt_tensor *mt_quantize(mt_tensor *x, const mt_quant *format);
/* The inverse; format and shape as for mt_quantize. */
MT_API mt_tensor *mt_dequantize(mt_tensor *packed, const mt_quant *format, mt_dtype dtype, int rank,
                                const int64_t *shape);

MT_C_END
#endif

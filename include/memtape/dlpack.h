/* dlpack.h: tensors shared with other libraries, without a copy, through DLPack
 * (github.com/dmlc/dlpack, version 1). In Python numpy, PyTorch, JAX and others speak it.
 *
 * Either way the producer's memory lives as long as the consumer's tensor. On the CPU only. */
#ifndef MEMTAPE_DLPACK_H
#define MEMTAPE_DLPACK_H

#include "memtape/tensor.h"

MT_C_BEGIN

/* A DLManagedTensorVersioned. */
typedef struct mt_dlpack mt_dlpack;

/* t's elements, shape and strides for another library, which may write them; t's version counter
 * does not see that. t's storage lives until the result's deleter has been called, by the consumer
 * from any thread or by mt_dlpack_free. Refused if t requires grad (mt_set_requires_grad), is not
 * on the CPU, or has a dtype of 8-bit floats. */
MT_API mt_dlpack *mt_to_dlpack(mt_tensor *t);
/* Calls the deleter: for what no consumer took. NULL is allowed. */
MT_API void mt_dlpack_free(mt_dlpack *managed);
/* A tensor over the producer's memory, which the caller owns: `managed` is taken over, and its
 * deleter called, in whatever thread, when the last view is released. If the result is NULL it is
 * still the caller's.
 * The storage is an input of its whole extent in what tapes and ledgers save; the device's
 * allocator has not given it any bytes, so its `allocated` is 0. Refused: other versions than 1,
 * memory that is not the CPU's or is read-only (memtape has no such tensors), negative strides,
 * more dimensions than MT_MAX_RANK, dtypes that mt_dtype lacks, elements that are not aligned. */
MT_API mt_tensor *mt_from_dlpack(mt_device *device, mt_dlpack *managed);

MT_C_END
#endif

/* autocast.h: ops run in the dtype that suits them, from the inputs they are given.
 *
 * Within a region, matrix products and fused attention take their inputs in a 16-bit dtype; ops
 * that sum or exponentiate (softmax, layer_norm, losses, exp, log, sum) in f32; all others in
 * the widest dtype among their inputs. mt_op_get(i).autocast tells which; the lists are
 * torch.autocast's for CUDA where both have the op. What has to be cast is cast by the recorded op
 * `cast`, so gradients reach f32 parameters in f32. f64 is left alone.
 *
 *     mt_autocast_begin(MT_BF16);
 *     loss = forward(model, batch);
 *     mt_autocast_end();
 *     mt_backward(loss);               outside: each backward runs in the dtypes of its forward
 *
 * A copy of an f32 leaf that requires grad is made once for each outermost region, in category
 * MT_CACHE, and used again until the region ends; afterwards it lives as long as the tape keeps it.
 * The cache holds the leaf, too. A leaf written in the meantime is cast anew. */
#ifndef MEMTAPE_AUTOCAST_H
#define MEMTAPE_AUTOCAST_H

#include "memtape/tensor.h"

MT_C_BEGIN

/* Per thread; regions nest. dtype: MT_BF16, MT_F16, or MT_F32 to turn autocast off within. Hooks on
 * saved tensors run outside of any region but those they begin. */
MT_API mt_status mt_autocast_begin(mt_dtype dtype);
MT_API mt_status mt_autocast_end(void);
/* Whether ops of this thread are cast now; *dtype (may be NULL): in what products run. */
MT_API bool mt_autocast_active(mt_dtype *dtype);
/* Copies in this thread's cache, and their bytes. */
MT_API size_t mt_autocast_cached(size_t *n_bytes);

/* One tensor in two dtypes: `copy` was made from the whole of `source` by a cast (autocast's, the
 * caller's) or as an optimizer's f32 master, and both are alive. */
typedef struct mt_duplicate {
    uint64_t source, copy; /* serials of the storages */
    mt_dtype source_dtype, copy_dtype;
    mt_category source_category, copy_category;
    size_t source_bytes, copy_bytes; /* requested */
    const char *module, *op;         /* where the copy was made */
} mt_duplicate;

/* Every such pair on the device, in order of the copies' serials. fn may not be NULL. */
MT_API mt_status mt_visit_duplicates(mt_device *device,
                                     void (*fn)(void *user, const mt_duplicate *pair), void *user);

MT_C_END
#endif

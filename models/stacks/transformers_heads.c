/* transformers_heads.c: what goes into the core of attention in Transformers' code: heads of keys
 * and values copied for each head that reads them, and a window as a mask. */
#include "memtape/autocast.h"
#include "ops/ops.h"
#include "stacks/forms.h"

bool mti_copies_heads(int64_t b, int64_t k, int64_t n)
{
    return k == n ? b > 1 && k > 1 : b > 1 || k > 1;
}

/* [b,k,s,h] -> [b,n,s,h], each head n / k times in a row. It is a copy where a batched product of
 * PyTorch, which wants b n in one dimension, makes one, or, not `batched`, a reshape; else a view.
 */
static mt_tensor *repeat_heads(mt_tensor *x, int64_t n, bool batched)
{
    int64_t b = mt_shape(x)[0], k = mt_shape(x)[1], s = mt_shape(x)[2], h = mt_shape(x)[3];
    bool copied = batched ? mti_copies_heads(b, k, n) : k != n && k > 1;
    const int64_t *stride = x->view.stride; /* batch and heads may be one dimension already */
    if (k == n) return copied && stride[0] != k * stride[1] ? mt_contiguous(x) : mt_retain(x);
    mt_dtype low; /* a cast of repeated views is a copy of each */
    copied = copied || (mt_autocast_active(&low) && mt_dtype_of(x) != low);
    mt_tensor *y = mt_reshape(x, MT_SHAPE(b, k, 1, s, h));
    mt_set(&y, mt_expand(y, MT_SHAPE(b, k, n / k, s, h)));
    if (copied) mt_set(&y, mt_contiguous(y));
    mt_set(&y, mt_reshape(y, MT_SHAPE(b, n, s, h)));
    return y;
}

bool mti_core_inputs(const mti_core_form *f, bool flash, int64_t window, mt_tensor *part[3],
                     mt_tensor **mask)
{
    const int64_t *q = mt_shape(part[0]), b = q[0], n = q[1], s = q[2], t = mt_shape(part[1])[2];
    const bool masked = flash && f->masked && window && window <= t;
    const bool copied = f->repeated || (masked && s > 1); /* one query needs no copies */
    *mask = NULL;
    for (int i = 1; i < 3 && copied; i++)
        if (mt_set(&part[i], repeat_heads(part[i], n, f->repeated)) != MT_OK) return false;
    if (masked)
        *mask = mti_window_mask(mt_device_of(part[0]), mt_dtype_of(part[0]), 4,
                                (int64_t[]){b, 1, s, t}, window);
    return !masked || *mask;
}

/* clipping.c: gradient clipping and the learning-rate schedule. */
#include <math.h>
#include "tensor/tensor.h"
#include "memtape/ops.h"
#include "memtape/models/optimizer.h"
#include "nn/nn.h"
#include "optim/optimizers.h"

bool mti_dense_grad(mt_tensor *param)
{
    mt_tensor *grad = mt_grad(param);
    if (!grad || mt_is_contiguous(grad)) return true;
    mt_tensor *dense = mt_contiguous(grad);
    bool ok = dense && mt_set_grad(param, dense) == MT_OK;
    mt_release(dense);
    return ok;
}

/* Fills items[0 .. *n_items) with all gradients, which must be on one *device. */
static bool gather(const mt_named_tensor *list, size_t n, mti_opt_item *items, int *n_items,
                   mt_device **device)
{
    *n_items = 0;
    *device = NULL;
    for (size_t i = 0; i < n; i++) {
        if (!mti_dense_grad(list[i].tensor)) return false;
        mt_tensor *grad = mt_grad(list[i].tensor);
        if (!grad) continue;
        if (*device && *device != mt_device_of(grad))
            return mti_fail_bool(MT_ERR_ARGUMENT,
                                 "clip_grad_norm: %s is on another device than the rest",
                                 list[i].name);
        *device = mt_device_of(grad);
        items[(*n_items)++] = (mti_opt_item){.n = mti_view_count(&grad->view),
                                             .dtype = grad->view.dtype,
                                             .p = grad->view.data,
                                             .g = grad->view.data};
    }
    return true;
}

mt_status mt_clip_grad_norm(mt_module *m, double max_norm, double *norm)
{
    const mt_named_tensor *list;
    size_t n;
    if (!(max_norm >= 0))
        return mti_fail(MT_ERR_ARGUMENT, "clip_grad_norm: max_norm is %g; need it >= 0", max_norm);
    mt_status status = mt_module_params(m, &list, &n);
    if (status != MT_OK) return status;
    if (!n) {
        if (norm) *norm = 0;
        return MT_OK;
    }
    mt_device *device, *own = mt_device_of(list[0].tensor);
    mti_opt_item *items = mti_object_new(own, n * sizeof *items);
    if (!items) return MT_ERR_MEMORY;
    int n_items;
    double squares = 0;
    bool ok = gather(list, n, items, &n_items, &device);
    if (ok && n_items) ok = device->backend->sum_squares(device->ctx, n_items, items, &squares);
    double factor = max_norm / (sqrt(squares) + 1e-6);
    /* A NaN norm makes every gradient NaN, as in PyTorch, so that it is noticed. */
    if (ok && n_items && !(factor >= 1)) {
        ok = device->backend->scale_all(device->ctx, factor, n_items, items);
        for (size_t i = 0; ok && i < n; i++)
            if (mt_grad(list[i].tensor))
                atomic_fetch_add(&mt_grad(list[i].tensor)->storage->version, 1);
    }
    mti_object_free(own, items, n * sizeof *items);
    if (ok && norm) *norm = sqrt(squares);
    return ok ? MT_OK : mt_last_status();
}

double mt_cosine_lr(int64_t step, int64_t warmup, int64_t total, double max, double min)
{
    if (step < warmup) return max * ((double)step + 1) / (double)warmup;
    if (step >= total) return min;
    double done = ((double)step - (double)warmup) / ((double)total - (double)warmup);
    return min + (max - min) * 0.5 * (1 + cos(3.14159265358979323846 * done));
}

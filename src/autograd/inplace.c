/* inplace.c: ops in place, and when the tape refuses them. */
#include "autograd/autograd.h"

/* A recorded change in place needs x to be the only view of its storage. */
static bool check_inplace(const mti_op *op, const mt_tensor *x)
{
    if (!mti_given(x, op->name, "x")) return false;
    mti_storage *s = x->storage;
    if (!mti_check_writable(op->name, x) || !mti_check_holders(op, s)) return false;
    if (!x->requires_grad || !mt_grad_mode()) return true;
    if (!x->grad_fn)
        return mti_fail_bool(MT_ERR_STATE,
                             "%s: x is a leaf that requires grad; changing it in "
                             "place would lose its value (use the op that is not in place)",
                             op->name);
    int views = atomic_load(&s->refs) - atomic_load(&s->saved);
    return views == 1 || mti_fail_bool(MT_ERR_STATE,
                                       "%s: x shares its storage with %d other tensor%s in use; "
                                       "their gradients could not follow (clone x first)",
                                       op->name, views - 1, views == 2 ? "" : "s");
}

mt_status mti_apply_inplace(const mti_op *op, const mti_params *params, mt_tensor *x)
{
    if (!check_inplace(op, x)) return mt_last_status();
    mt_tensor *alias;
    if (!mti_apply(op, params, 1, &x, 1, &alias)) return mt_last_status();
    mt_release(alias);
    return MT_OK;
}

/* grad.c: leaves, their gradients, and adding hooks on gradients. */
#include <stdio.h>
#include "autograd/autograd.h"

/* ---- leaves ---- */

static void leaf_destroy(mti_ref *ref)
{
    mti_leaf *leaf = (mti_leaf *)ref;
    mt_release(leaf->grad);
    mti_hook_list_free(&leaf->hooks);
    mti_free(leaf);
}

static void leaf_orphan(mti_ref *ref) { ((mti_leaf *)ref)->owner = NULL; }

mti_leaf *mti_leaf_of(mt_tensor *t)
{
    if (t->leaf) return (mti_leaf *)t->leaf;
    mti_leaf *leaf = mti_calloc(1, sizeof *leaf);
    if (!leaf) return NULL;
    atomic_init(&leaf->ref.refs, 1);
    leaf->ref.destroy = leaf_destroy;
    leaf->owner = t;
    leaf->spec = t->view;
    t->leaf = &leaf->ref;
    t->orphan = leaf_orphan;
    return leaf;
}

mt_status mt_set_requires_grad(mt_tensor *t, bool requires_grad)
{
    if (!mti_given(t, "set_requires_grad", "the tensor")) return mt_last_status();
    if (t->grad_fn)
        return mti_fail(MT_ERR_STATE,
                        "set_requires_grad: need a leaf; the tensor was made by %s (mt_detach it)",
                        mt_grad_fn_name(t));
    if (requires_grad && !mt_dtype_is_float(t->view.dtype))
        return mti_fail(MT_ERR_ARGUMENT,
                        "set_requires_grad: dtype %s has no gradient; need f32, "
                        "f64, bf16 or f16",
                        mt_dtype_name(t->view.dtype));
    t->requires_grad = requires_grad;
    return MT_OK;
}

bool mt_requires_grad(const mt_tensor *t) { return t && t->requires_grad; }

mt_tensor *mt_grad(const mt_tensor *t) { return t && t->leaf ? ((mti_leaf *)t->leaf)->grad : NULL; }

/* Backward adds into the gradient, so it may not share the leaf's memory. The leaf owns it, so it
 * may not have a history: that would be a cycle of references. */
static bool check_gradient(const mt_tensor *t, const mt_tensor *grad)
{
    if (grad->storage == t->storage)
        return mti_fail_bool(MT_ERR_ARGUMENT, "set_grad: the gradient shares its storage with the "
                                              "tensor; need one with its own storage (mt_clone)");
    if (grad->requires_grad)
        return mti_fail_bool(MT_ERR_ARGUMENT,
                             "set_grad: the gradient requires grad itself; mt_detach it");
    return mti_check_writable("set_grad", grad);
}

mt_status mt_set_grad(mt_tensor *t, mt_tensor *grad)
{
    if (!mti_given(t, "set_grad", "the tensor")) return mt_last_status();
    if (!grad && !t->leaf) return MT_OK;
    mti_leaf *leaf = mti_leaf_of(t);
    if (!leaf || (grad && (!mti_is_like(MT_ERR_ARGUMENT, "set_grad", "the gradient", grad,
                                        &leaf->spec, t->storage->device) ||
                           !check_gradient(t, grad))))
        return mt_last_status();
    mt_release(leaf->grad);
    leaf->grad = mt_retain(grad);
    if (grad) mti_storage_settle(grad->storage, MT_GRADIENT);
    return MT_OK;
}

mt_status mt_set_grad_dtype(mt_tensor *t, mt_dtype dtype)
{
    if (!mti_given(t, "set_grad_dtype", "the tensor")) return mt_last_status();
    if (t->grad_fn)
        return mti_fail(MT_ERR_STATE,
                        "set_grad_dtype: need a leaf; the tensor was made by %s (mt_detach it)",
                        mt_grad_fn_name(t));
    if (!mt_dtype_is_float(dtype) || !mt_dtype_is_float(t->view.dtype))
        return mti_fail(MT_ERR_ARGUMENT,
                        "set_grad_dtype: dtype %s for a tensor of %s; need f32, f64, bf16 or f16 "
                        "for both",
                        mt_dtype_name(dtype), mt_dtype_name(t->view.dtype));
    mti_leaf *leaf = mti_leaf_of(t);
    if (!leaf) return mt_last_status();
    if (leaf->grad && leaf->grad->view.dtype != dtype)
        return mti_fail(MT_ERR_STATE,
                        "set_grad_dtype: the tensor has a gradient of %s; need none, or one of %s",
                        mt_dtype_name(leaf->grad->view.dtype), mt_dtype_name(dtype));
    leaf->spec.dtype = dtype;
    return MT_OK;
}

mt_dtype mt_grad_dtype(const mt_tensor *t)
{
    return t && t->leaf ? ((mti_leaf *)t->leaf)->spec.dtype : mt_dtype_of(t);
}

mt_status mt_zero_grads(int n, mt_tensor *const *leaves)
{
    char name[40];
    if (n < 0) return mti_fail(MT_ERR_ARGUMENT, "zero_grads: %d leaves; need 0 or more", n);
    if (n && !leaves) return mti_fail(MT_ERR_ARGUMENT, "zero_grads: leaves is NULL");
    for (int i = 0; i < n; i++) {
        snprintf(name, sizeof name, "leaves[%d]", i);
        if (!mti_given(leaves[i], "zero_grads", name)) return mt_last_status();
    }
    for (int i = 0; i < n; i++) mt_set_grad(leaves[i], NULL);
    return MT_OK;
}

mt_tensor *mt_detach(mt_tensor *t)
{
    return mti_given(t, "detach", "the tensor") ? mti_tensor_alias(t) : NULL;
}

const char *mt_grad_fn_name(const mt_tensor *t)
{
    return t && t->grad_fn ? ((mti_node *)t->grad_fn)->op->name : "";
}

uint64_t mt_grad_fn_sequence(const mt_tensor *t)
{
    return t && t->grad_fn ? ((mti_node *)t->grad_fn)->sequence : 0;
}

/* ---- hooks ---- */

static mti_hook_list *hook_list(mt_tensor *t)
{
    if (t->grad_fn) return &((mti_node *)t->grad_fn)->hooks;
    mti_leaf *leaf = mti_leaf_of(t);
    return leaf ? &leaf->hooks : NULL;
}

static int add_hook(const char *caller, mt_tensor *t, mti_grad_hook init)
{
    if (!t->requires_grad) {
        mti_fail(MT_ERR_STATE, "%s: the tensor does not require grad", caller);
        return 0;
    }
    mti_hook_list *list = hook_list(t);
    mti_grad_hook *h = list ? mti_malloc(sizeof *h) : NULL, **end;
    if (!h) return 0;
    *h = init;
    h->handle = ++list->last_handle;
    h->out_index = t->out_index;
    h->walk = mti_modes_now()->walk;
    for (end = &list->first; *end; end = &(*end)->next) continue;
    *end = h;
    return h->handle;
}

int mt_add_grad_hook(mt_tensor *t, mt_grad_hook_fn *fn, void *user)
{
    if (!mti_given(t, "add_grad_hook", "the tensor")) return 0;
    if (!fn) return mti_fail(MT_ERR_ARGUMENT, "add_grad_hook: fn is NULL"), 0;
    return add_hook("add_grad_hook", t, (mti_grad_hook){.fn = fn, .user = user});
}

int mt_add_leaf_hook(mt_tensor *leaf, mt_leaf_hook_fn *fn, void *user)
{
    if (!mti_given(leaf, "add_leaf_hook", "the leaf")) return 0;
    if (!fn) return mti_fail(MT_ERR_ARGUMENT, "add_leaf_hook: fn is NULL"), 0;
    if (leaf->grad_fn)
        return mti_fail(MT_ERR_STATE, "add_leaf_hook: the tensor was made by %s; need a leaf",
                        mt_grad_fn_name(leaf)),
               0;
    return add_hook("add_leaf_hook", leaf, (mti_grad_hook){.leaf_fn = fn, .user = user});
}

mt_status mt_remove_hook(mt_tensor *t, int handle)
{
    if (!mti_given(t, "remove_hook", "the tensor")) return mt_last_status();
    mti_hook_list *list = t->grad_fn || t->leaf ? hook_list(t) : NULL;
    for (mti_grad_hook *h = list ? list->first : NULL; h; h = h->next) {
        if (h->handle != handle || h->out_index != t->out_index || h->removed) continue;
        mti_hook_list_enter(list);
        h->removed = true;
        mti_hook_list_leave(list);
        return MT_OK;
    }
    return mti_fail(MT_ERR_ARGUMENT, "remove_hook: the tensor has no hook %d", handle);
}

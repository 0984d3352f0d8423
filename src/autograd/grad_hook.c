/* grad_hook.c: runs hooks on gradients, whose lists may change meanwhile. */
#include "autograd/autograd.h"

/* ---- lists ---- */

void mti_hook_list_free(mti_hook_list *list)
{
    for (mti_grad_hook *h = list->first, *next; h; h = next) {
        next = h->next;
        mti_free(h);
    }
    list->first = NULL;
}

void mti_hook_list_enter(mti_hook_list *list) { list->running++; }

void mti_hook_list_leave(mti_hook_list *list)
{
    if (--list->running) return;
    for (mti_grad_hook **link = &list->first, *h; (h = *link);) {
        if (h->removed) {
            *link = h->next;
            mti_free(h);
        } else {
            link = &h->next;
        }
    }
}

/* ---- running ---- */

/* The engine's state around user code in a backward: its tensors are the user's, and nothing is
 * recorded. */
typedef struct engine_state {
    mti_making making;
    bool grad_mode;
    uint64_t failures;
} engine_state;

static engine_state enter_user_code(void)
{
    engine_state outer = {*mti_making_now(), mt_set_grad_mode(false), mti_failures()};
    *mti_making_now() = (mti_making){MT_INPUT, false};
    return outer;
}

static void leave_user_code(engine_state outer)
{
    mt_set_grad_mode(outer.grad_mode);
    *mti_making_now() = outer.making;
}

/* Not if a hook removed it or added it during the walk. */
static bool is_called(const mti_grad_hook *h)
{
    return !h->removed && h->walk < mti_modes_now()->walk;
}

bool mti_any_is_called(const mti_hook_list *list)
{
    const mti_grad_hook *h = list->first;
    while (h && !is_called(h)) h = h->next;
    return h != NULL;
}

/* Takes grad over; NULL on failure. */
static mt_tensor *run_hook(const mti_grad_hook *h, const mti_view *spec, mt_tensor *grad)
{
    engine_state outer = enter_user_code();
    mt_tensor *next = h->fn(h->user, grad);
    leave_user_code(outer);
    bool fits = next && mti_is_like(MT_ERR_STATE, "backward", "the result of a gradient hook", next,
                                    spec, grad->storage->device);
    mt_release(grad);
    if (fits) return next;
    if (!next) mti_fail_around(outer.failures, MT_ERR_STATE, "backward: a gradient hook failed");
    mt_release(next);
    return NULL;
}

mt_tensor *mti_run_grad_hooks(mti_hook_list *list, int out_index, const mti_view *spec,
                              mt_tensor *grad)
{
    if (!list->first) return grad;
    mti_hook_list_enter(list);
    for (const mti_grad_hook *h = list->first; h && grad; h = h->next)
        if (h->fn && h->out_index == out_index && is_called(h)) grad = run_hook(h, spec, grad);
    mti_hook_list_leave(list);
    return grad;
}

bool mti_run_leaf_hooks(mti_leaf *leaf)
{
    if (!leaf->hooks.first) return true;
    bool ok = true;
    mti_hook_list_enter(&leaf->hooks);
    for (const mti_grad_hook *h = leaf->hooks.first; ok && h && leaf->owner; h = h->next) {
        if (!h->leaf_fn || !is_called(h)) continue;
        mt_tensor *owner = mt_retain(leaf->owner);
        engine_state outer = enter_user_code();
        mt_status status = h->leaf_fn(h->user, owner);
        leave_user_code(outer);
        ok = status == MT_OK;
        if (!ok)
            mti_fail_around(outer.failures, status, "backward: a leaf hook failed (%s)",
                            mt_status_name(status));
        mt_release(owner);
    }
    mti_hook_list_leave(&leaf->hooks);
    return ok;
}

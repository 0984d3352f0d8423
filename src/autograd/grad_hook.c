/* grad_hook.c: hooks on gradients: lists of them that may change while they run, and running them.
 */
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
    for (mti_grad_hook **at = &list->first, *h; (h = *at);) {
        if (h->removed) {
            *at = h->next;
            mti_free(h);
        } else {
            at = &h->next;
        }
    }
}

/* ---- running ---- */

/* User code within a backward: what it makes is its own, and nothing is recorded. */
typedef struct outside {
    mti_making making;
    bool grad_mode;
    uint64_t failures;
} outside;

static outside step_out(void)
{
    outside was = {*mti_making_now(), mt_set_grad_mode(false), mti_failures()};
    *mti_making_now() = (mti_making){MT_INPUT, false};
    return was;
}

static void step_in(outside was)
{
    mt_set_grad_mode(was.grad_mode);
    *mti_making_now() = was.making;
}

bool mti_is_called(const mti_grad_hook *h)
{
    return !h->removed && h->walk < mti_modes_now()->walk;
}

bool mti_any_is_called(const mti_hook_list *list)
{
    const mti_grad_hook *h = list->first;
    while (h && !mti_is_called(h)) h = h->next;
    return h != NULL;
}

/* Takes grad over; NULL on failure. */
static mt_tensor *run_hook(const mti_grad_hook *h, const mti_view *spec, mt_tensor *grad)
{
    outside was = step_out();
    mt_tensor *next = h->fn(h->user, grad);
    step_in(was);
    bool fits = next && mti_is_like(MT_ERR_STATE, "backward", "what a gradient hook returned", next,
                                    spec, grad->storage->device);
    mt_release(grad);
    if (fits) return next;
    if (!next) mti_fail_around(was.failures, MT_ERR_STATE, "backward: a gradient hook failed");
    mt_release(next);
    return NULL;
}

mt_tensor *mti_run_grad_hooks(mti_hook_list *list, int out_index, const mti_view *spec,
                              mt_tensor *grad)
{
    mti_hook_list_enter(list);
    for (const mti_grad_hook *h = list->first; h && grad; h = h->next)
        if (h->fn && h->out_index == out_index && mti_is_called(h)) grad = run_hook(h, spec, grad);
    mti_hook_list_leave(list);
    return grad;
}

bool mti_run_leaf_hooks(mti_leaf *leaf)
{
    bool ok = true;
    mti_hook_list_enter(&leaf->hooks);
    for (const mti_grad_hook *h = leaf->hooks.first; ok && h && leaf->owner; h = h->next) {
        if (!h->leaf_fn || !mti_is_called(h)) continue;
        mt_tensor *owner = mt_retain(leaf->owner);
        outside was = step_out();
        mt_status status = h->leaf_fn(h->user, owner);
        step_in(was);
        ok = status == MT_OK;
        if (!ok)
            mti_fail_around(was.failures, status, "backward: a leaf hook failed (%s)",
                            mt_status_name(status));
        mt_release(owner);
    }
    mti_hook_list_leave(&leaf->hooks);
    return ok;
}

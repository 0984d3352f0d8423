/* inplace.c: ops in place, and when the tape refuses them.
 *
 * Each storage has a list of the saved slots that keep it, so that an op about to overwrite it can
 * name the op whose backward still needs it. */
#include <sched.h>
#include <stdio.h>
#include "autograd/autograd.h"

/* A spin lock: threads wait only if they save the same tensor, such as a weight, at once. */
static void lock(mti_storage *s)
{
    while (atomic_flag_test_and_set_explicit(&s->busy, memory_order_acquire)) sched_yield();
}

static void unlock(mti_storage *s) { atomic_flag_clear_explicit(&s->busy, memory_order_release); }

void mti_slot_hold(mti_saved_tensor *s)
{
    if (!s->kept) return;
    mti_storage *storage = s->kept->storage;
    lock(storage);
    s->next = storage->holders;
    s->link = &storage->holders;
    if (s->next) s->next->link = &s->next;
    storage->holders = s;
    atomic_fetch_add_explicit(&storage->saved, 1, memory_order_relaxed);
    unlock(storage);
}

void mti_slot_unhold(mti_saved_tensor *s)
{
    if (!s->kept) return;
    mti_storage *storage = s->kept->storage;
    lock(storage);
    if (s->link) { /* read under the lock: a neighbour in the list may change it */
        *s->link = s->next;
        if (s->next) s->next->link = s->link;
        s->link = NULL;
        atomic_fetch_sub_explicit(&storage->saved, 1, memory_order_relaxed);
    }
    unlock(storage);
}

/* Fails if a backward still needs the storage's values. */
static bool check_holders(const mti_op *op, mti_storage *s)
{
    mt_save_info info = {0};
    int n_others = -1;
    lock(s);
    for (const mti_saved_tensor *t = s->holders; t; t = t->next, n_others++)
        if (!t->next) info = mti_slot_info(t); /* the first that saved it */
    unlock(s);
    if (n_others < 0) return true;
    char more[48] = "";
    if (n_others)
        snprintf(more, sizeof more, " (and %d other%s)", n_others, n_others == 1 ? "" : "s");
    static const char *const roles[] = {"input", "output", "auxiliary"};
    return mti_fail_bool(MT_ERR_STATE,
                         "%s: x must not change: the backward of %s%s%s needs it as its %s %s%s "
                         "(use the op that is not in place)",
                         op->name, info.op, *info.module ? " in " : "", info.module,
                         roles[info.role], info.argument, more);
}

/* A recorded change in place needs x to be the only view of its storage. */
static bool check_inplace(const mti_op *op, const mt_tensor *x)
{
    if (!mti_given(x, op->name, "x")) return false;
    mti_storage *s = x->storage;
    if (!mti_check_writable(op->name, x) || !check_holders(op, s)) return false;
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

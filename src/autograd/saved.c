/* saved.c: saving a tensor for backward and loading it again, through the stack of hooks. */
#include <stdio.h>
#include <string.h>
#include "autograd/autograd.h"

/* Hooks run with recording off; the tensors they make are temporaries until the hook returns. */
typedef struct hook_scope {
    mti_making making;
    mti_rewrite_fn *rewrite;
    mti_hooks *top; /* pinned: a running hook may not pop what is below it */
    uint64_t failures;
} hook_scope;

static hook_scope enter_hook(void)
{
    mti_modes *modes = mti_modes_now();
    hook_scope outer = {*mti_making_now(), modes->rewrite, modes->hooks, mti_failures()};
    modes->rewrite = NULL;
    mti_making_now()->category = MT_TEMPORARY;
    mti_making_now()->in_op = true;
    modes->in_hook++;
    if (outer.top) outer.top->pins++;
    return outer;
}

/* False if the hook failed. */
static bool leave_hook(hook_scope outer, mt_status status, const char *kind,
                       const mt_save_info *info)
{
    if (outer.top) outer.top->pins--;
    mti_modes_now()->in_hook--;
    mti_modes_now()->rewrite = outer.rewrite;
    *mti_making_now() = outer.making;
    if (status != MT_OK)
        mti_fail_around(outer.failures, status, "%s: the %s hook for %s failed (%s)", info->op,
                        kind, info->argument, mt_status_name(status));
    return status == MT_OK;
}

static bool check_unpacked(const mti_packed *p, const mt_tensor *t, const mt_save_info *info)
{
    char name[64];
    if (mti_fits(t, &p->spec, p->device)) return true;
    snprintf(name, sizeof name, "the result of the unpack hook for %s", info->argument);
    return mti_is_like(MT_ERR_STATE, info->op, name, t, &p->spec, p->device);
}

/* Room for one level for each of the hooks on the stack. */
static bool reserve_levels(mti_saved_tensor *s, const mti_hooks *top)
{
    if (s->packed) return true;
    for (const mti_hooks *h = top; h; h = h->below) s->depth++;
    s->device = s->kept->storage->device;
    s->packed = mti_object_new(s->device, (size_t)s->depth * sizeof *s->packed);
    return s->packed != NULL;
}

/* Runs one hook: replaces s->kept by what the hook keeps of it. A hook that only looked on has
 * nothing to undo and nothing to be told, and so has no level. */
static bool pack_level(mti_saved_tensor *s, mti_hooks *top, mti_hooks *h)
{
    mt_save_info info = mti_slot_info(s);
    bool may_look_on = !h->fn.unpack && !h->fn.drop;
    if (!may_look_on && !reserve_levels(s, top)) return false;
    mt_tensor *given = s->kept, *kept = given;
    void *state = NULL;
    hook_scope outer = enter_hook();
    mt_status status = h->fn.pack ? h->fn.pack(h->user, &info, given, &kept, &state) : MT_OK;
    if (!leave_hook(outer, status, "pack", &info)) return false;
    if (may_look_on && kept == given && !state) return true;
    if (!reserve_levels(s, top)) {
        if (kept != given) mt_release(kept);
        return false;
    }
    mti_packed *p = &s->packed[s->n_packed];
    atomic_fetch_add(&h->refs, 1);
    p->hooks = h;
    p->state = state;
    p->spec = given->view;
    p->device = mt_device_retain(given->storage->device);
    p->left_tensor = kept != NULL;
    s->n_packed++;
    if (kept == given) return true;
    s->kept = kept;
    /* The hook may keep any tensor on any device; only unpack's result is checked. */
    if (kept && kept->storage != given->storage) {
        s->original = false;
        /* A tensor that the hook did not make has its category already. */
        if (kept->storage->unclassified_in) mti_storage_settle(kept->storage, MT_PACKED);
    }
    mt_release(given);
    return true;
}

bool mti_slot_save(mti_saved_tensor *s, const mti_node *n, int bit, mt_tensor *t)
{
    memset(s, 0, sizeof *s);
    s->node = n;
    /* A handle without history: a saved output must not keep its own node alive. */
    s->kept = mti_tensor_alias(t);
    if (!s->kept) return false;
    s->bit = bit;
    s->original = true;
    s->version = atomic_load(&t->storage->version);
    mti_hooks *top = mti_modes_now()->hooks;
    if (top && !mti_modes_now()->in_hook) {
        bool ok = true;
        for (mti_hooks *h = top; ok && h && s->kept; h = h->below)
            ok = h->onlooker ? h->onlooker->saved(h->user, s, s->kept) : pack_level(s, top, h);
        if (!ok) {
            mti_slot_drop(s);
            return false;
        }
    }
    mti_slot_hold(s);
    return true;
}

static mt_tensor *unpack_level(const mti_saved_tensor *s, const mti_packed *p, mt_tensor *current)
{
    mt_tensor *given = p->left_tensor ? current : NULL, *t = given;
    const mti_hooks *h = p->hooks;
    mt_save_info info = mti_slot_info(s);
    hook_scope outer = enter_hook();
    mt_status status = h->fn.unpack ? h->fn.unpack(h->user, &info, &t, p->state) : MT_OK;
    bool ok = leave_hook(outer, status, "unpack", &info);
    if (t != given) mt_release(given);
    if (ok && !t)
        ok = mti_fail_bool(MT_ERR_STATE, "%s: the unpack hook for %s returned no tensor", info.op,
                           info.argument);
    if (ok && check_unpacked(p, t, &info)) return t;
    mt_release(t);
    return NULL;
}

static bool check_version(const mti_saved_tensor *s)
{
    if (!s->original || !s->kept) return true;
    uint64_t version = atomic_load(&s->kept->storage->version);
    if (version == s->version) return true;
    mt_save_info info = mti_slot_info(s);
    const mti_view *spec = s->n_packed ? &s->packed[0].spec : &s->kept->view;
    char text[MTI_SHAPE_TEXT];
    return mti_fail_bool(
        MT_ERR_STATE,
        "%s backward%s%s: %s (%s %s) was changed in place after it was saved: it is at "
        "version %llu, saved at version %llu",
        info.op, *info.module ? " in " : "", info.module, info.argument, mt_dtype_name(spec->dtype),
        mti_shape_text(text, spec->rank, spec->shape), (unsigned long long)version,
        (unsigned long long)s->version);
}

mt_tensor *mti_slot_load(const mti_saved_tensor *s)
{
    if (!check_version(s)) return NULL;
    mt_tensor *t = mt_retain(s->kept);
    for (int i = s->n_packed - 1; i >= 0; i--) {
        t = unpack_level(s, &s->packed[i], t);
        if (!t) return NULL;
    }
    return t;
}

/* Tells whether it served its purpose. Without a node it did if it was read, or if it is released
 * during a backward. */
static bool was_used(const mti_saved_tensor *s)
{
    if (s->node) return s->node->ran;
    return ((const mt_saved *)s)->was_read || mti_where_now()->in_backward;
}

static void tell_onlookers(const mti_saved_tensor *s)
{
    for (const mti_hooks *h = mti_modes_now()->hooks; h; h = h->below)
        if (h->onlooker) h->onlooker->given_up(h->user, h, s);
}

void mti_slot_drop(mti_saved_tensor *s)
{
    if (!was_used(s)) tell_onlookers(s);
    mti_slot_unhold(s);
    mt_release(s->kept);
    s->kept = NULL;
    if (!s->packed) return;
    for (int i = s->n_packed - 1; i >= 0; i--) {
        mti_packed *p = &s->packed[i];
        if (p->hooks->fn.drop) {
            mt_save_info info = mti_slot_info(s);
            p->hooks->fn.drop(p->hooks->user, &info, p->state);
        }
        mti_hooks_release(p->hooks);
        if (i) mt_device_release(p->device);
    }
    mt_device *first = s->n_packed ? s->packed[0].device : NULL;
    mti_object_free(s->device, s->packed, (size_t)s->depth * sizeof *s->packed);
    mt_device_release(first);
    s->packed = NULL;
    s->n_packed = 0;
}

/* ---- tensors saved by other code than ops ---- */

mt_saved *mt_saved_new(mt_tensor *t, const mt_save_info *info)
{
    if (!mti_given(t, "saved_new", "the tensor")) return NULL;
    if (!info || !info->op || !info->argument)
        return mti_fail_null(MT_ERR_ARGUMENT, "saved_new: need info with an op and an argument");
    mt_saved *s = mti_malloc(sizeof *s);
    if (!s) return NULL;
    s->was_read = false;
    s->info = *info;
    s->info.op = mti_intern(info->op);
    s->info.argument = mti_intern(info->argument);
    s->info.module = info->module ? mti_intern(info->module) : mti_where_now()->module;
    s->info.node = mti_next_sequence();
    bool named = s->info.op && s->info.argument && s->info.module;
    if (named && mti_slot_save(&s->slot, NULL, 0, t)) {
        /* If the current op made t, the op may not keep it otherwise: give it a category. */
        if (t->storage->unclassified_in == mti_thread_token())
            mti_storage_settle(t->storage, MT_ACTIVATION);
        return s;
    }
    mti_free(s);
    return NULL;
}

mt_tensor *mt_saved_get(mt_saved *s)
{
    if (!mti_given(s, "saved_get", "the saved tensor")) return NULL;
    mt_tensor *t = mti_slot_load(&s->slot);
    if (t) s->was_read = true;
    if (t && t->storage->unclassified_in == mti_thread_token() && !mti_making_now()->in_op)
        mti_storage_settle(t->storage, MT_ACTIVATION);
    return t;
}

void mt_saved_free(mt_saved *s)
{
    if (!s) return;
    mti_slot_drop(&s->slot);
    mti_free(s);
}

/* modes.c: the state of a thread: grad mode, the stack of saved-tensor hooks, module scopes. */
#include <string.h>
#include "autograd/autograd.h"

#define MAX_SCOPES 64
#define MAX_PATH   512

static _Thread_local mti_modes modes;
mti_modes *mti_modes_now(void) { return &modes; }

bool mt_grad_mode(void) { return !modes.grad_off; }

bool mt_set_grad_mode(bool on)
{
    bool previous = !modes.grad_off;
    modes.grad_off = !on;
    return previous;
}

/* Sequence numbers order all nodes of the process: creation order is a topological order. */
static atomic_uint_fast64_t last_sequence;

uint64_t mti_next_sequence(void)
{
    return atomic_fetch_add_explicit(&last_sequence, 1, memory_order_relaxed) + 1;
}

/* ---- hooks ---- */

void mti_hooks_release(mti_hooks *h)
{
    if (!h || atomic_fetch_sub_explicit(&h->refs, 1, memory_order_acq_rel) != 1) return;
    if (h->onlooker) {
        h->onlooker->popped(h->user, h);
        return;
    }
    if (h->fn.destroy) h->fn.destroy(h->user);
    mti_free(h);
}

static void push(mti_hooks *h, void *user)
{
    atomic_init(&h->refs, 1);
    h->pins = 0;
    h->user = user, h->below = modes.hooks;
    modes.hooks = h;
}

void mti_onlooker_push(mti_hooks *h, const mti_onlooker *onlooker, void *user)
{
    h->fn = (mt_saved_hooks){0};
    h->onlooker = onlooker;
    h->failures = mti_failures();
    push(h, user);
}

mt_status mt_push_saved_hooks(const mt_saved_hooks *fn, void *user)
{
    if (!fn) return mti_fail(MT_ERR_ARGUMENT, "push_saved_hooks: hooks is NULL");
    mti_hooks *h = mti_malloc(sizeof *h);
    if (!h) return mt_last_status();
    h->fn = *fn, h->onlooker = NULL;
    push(h, user);
    return MT_OK;
}

static void pop_hooks(void)
{
    mti_hooks *h = modes.hooks;
    modes.hooks = h->below;
    mti_hooks_release(h);
}

void mti_hooks_pop_all(void)
{
    while (modes.hooks) pop_hooks();
}

mt_status mt_pop_saved_hooks(void)
{
    if (!modes.hooks) return mti_fail(MT_ERR_STATE, "pop_saved_hooks: the stack is empty");
    if (modes.hooks->pins)
        return mti_fail(MT_ERR_STATE, "pop_saved_hooks: within a hook on saved tensors, or below "
                                      "hooks, only hooks pushed there can be popped");
    pop_hooks();
    return MT_OK;
}

void *mt_saved_hooks_user(void) { return modes.hooks ? modes.hooks->user : NULL; }

void *mt_step_below_saved_hooks(const void *user)
{
    mti_hooks *top = modes.hooks, *h = top;
    while (h && h->user != user) h = h->below;
    if (!h) return mti_fail_null(MT_ERR_STATE, "step_below_saved_hooks: no hooks have this user");
    modes.hooks = h->below;
    if (modes.hooks) modes.hooks->pins++;
    return top;
}

void mt_step_back_to_saved_hooks(void *place)
{
    if (!place) return;
    /* Pop hooks pushed since the step below, down to the pinned one. */
    while (modes.hooks && !modes.hooks->pins) pop_hooks();
    if (modes.hooks) modes.hooks->pins--;
    modes.hooks = place;
}

/* ---- scopes ---- */

static _Thread_local struct {
    int depth;
    const char *outer[MAX_SCOPES];
} scopes;

/* Whether path is outer.name, or name where outer is empty. */
static bool is_path(const char *path, const char *outer, const char *name)
{
    size_t n = strlen(outer);
    if (strncmp(path, outer, n) != 0 || (n && path[n++] != '.')) return false;
    return strcmp(path + n, name) == 0;
}

static const char *path_of(const char *outer, const char *name)
{
    char text[MAX_PATH];
    size_t n = strlen(outer), m = strlen(name);
    if (n + m + 2 > sizeof text)
        return mti_fail_null(MT_ERR_ARGUMENT, "scope_push: the path to \"%.40s\" exceeds %d bytes",
                             name, MAX_PATH - 1);
    memcpy(text, outer, n);
    if (n) text[n++] = '.';
    memcpy(text + n, name, m + 1);
    return mti_intern(text);
}

mt_status mt_scope_push(const char *name) { return mti_scope_push(name, NULL); }

mt_status mti_scope_push(const char *name, mti_known_path *known)
{
    if (!name) return mti_fail(MT_ERR_ARGUMENT, "scope_push: the name is NULL");
    if (scopes.depth == MAX_SCOPES)
        return mti_fail(MT_ERR_STATE, "scope_push: \"%s\" would be scope %d; at most %d nest", name,
                        MAX_SCOPES + 1, MAX_SCOPES);
    mti_where *where = mti_where_now();
    const char *path = where->module;
    if (*name) { /* a nameless scope adds nothing to the path */
        path = known ? atomic_load_explicit(known, memory_order_acquire) : NULL;
        if (!path || !is_path(path, where->module, name)) {
            path = path_of(where->module, name);
            if (!path) return mt_last_status();
            if (known) atomic_store_explicit(known, path, memory_order_release);
        }
    }
    scopes.outer[scopes.depth++] = where->module;
    where->module = path;
    return MT_OK;
}

void mt_scope_pop(void)
{
    if (scopes.depth) mti_where_now()->module = scopes.outer[--scopes.depth];
}

int mti_scope_depth(void) { return scopes.depth; }
void mti_scope_restore(int depth) { scopes.depth = depth; }

const char *mt_scope_path(void) { return mti_where_now()->module; }

mt_status mt_set_phase(const char *phase)
{
    const char *name = mti_intern(phase);
    if (!name) return mt_last_status();
    mti_where_now()->phase = name;
    return MT_OK;
}

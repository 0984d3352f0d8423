/* ledger.c: the public ledger: a saved-tensor hook that writes each save into memtrack's book. */
#include "autograd/autograd.h"

struct mt_ledger {
    atomic_int refs; /* the owner, and one for each begin */
    mt_device *device;
    mti_book *book;
    pthread_mutex_t lock; /* frees may come from other threads */
    int observer;         /* of frees; 0 before the first begin, and from a reset to the next */
    uint64_t failures;    /* when it began last, of that thread */
    bool count_parameters;
    mti_hooks hooks;         /* of one begin at a time: no memory is asked for it */
    atomic_bool hooks_taken; /* by a begin, until the last tensor saved under it is freed */
};

/* Notes that a storage of the book was freed. The pool calls this under its lock: take the ledger's
 * lock second. */
static void on_event(void *user, const mt_mem_event *e)
{
    mt_ledger *l = user;
    const mti_where where = {e->op, e->module, e->phase};
    pthread_mutex_lock(&l->lock);
    mti_book_freed(l->book, e->serial, mti_modes_now()->in_backward ? &where : NULL);
    pthread_mutex_unlock(&l->lock);
}

static bool watch(mt_ledger *l)
{
    if (!l->observer)
        l->observer =
            mti_pool_add_observer(l->device->pool, 1u << MT_MEM_FREE | MTI_NOTED_ONLY, on_event, l);
    return l->observer;
}

mt_ledger *mt_ledger_new(mt_device *device)
{
    if (!mti_given(device, "ledger_new", "the device")) return NULL;
    mt_ledger *l = mti_calloc(1, sizeof *l);
    if (!l) return NULL;
    atomic_init(&l->refs, 1);
    pthread_mutex_init(&l->lock, NULL);
    l->device = mt_device_retain(device);
    l->book = mti_book_new();
    if (l->book) return l;
    mt_ledger_free(l);
    return NULL;
}

static void ledger_release(void *user)
{
    mt_ledger *l = user;
    if (atomic_fetch_sub(&l->refs, 1) != 1) return;
    if (l->observer) mt_mem_remove_observer(l->device, l->observer);
    mti_book_free(l->book);
    mt_device_release(l->device);
    pthread_mutex_destroy(&l->lock);
    mti_free(l);
}

static void return_hooks(void *user)
{
    mt_ledger *l = user;
    atomic_store(&l->hooks_taken, false);
    ledger_release(l);
}

void mt_ledger_free(mt_ledger *l)
{
    if (l) ledger_release(l);
}

/* *state: the storage's serial, if the save is in the book. */
static mt_status on_pack(void *user, const mt_save_info *info, mt_tensor *t, mt_tensor **kept,
                         void **state)
{
    (void)kept; /* pass through */
    mt_ledger *l = user;
    mt_storage_info s = mt_storage_of(t);
    if (mt_device_of(t) != l->device) return MT_OK;
    if (s.category == MT_PARAMETER && !l->count_parameters) return MT_OK;
    mti_save save = {.serial = s.serial,
                     .bytes = s.bytes,
                     .rounded = s.allocated,
                     .saver = mt_saver_of(info, t)};
    atomic_store_explicit(&t->storage->block->noted, true, memory_order_relaxed);
    pthread_mutex_lock(&l->lock);
    bool ok = mti_book_save(l->book, &save);
    pthread_mutex_unlock(&l->lock);
    *state = (void *)(uintptr_t)s.serial;
    return ok ? MT_OK : mt_last_status();
}

static bool is_recording(const mt_ledger *l)
{
    const mti_hooks *h = mti_modes_now()->hooks;
    while (h && h->user != l) h = h->below;
    return h;
}

/* What a node gives up while the ledger records, and not because its backward has run, is not kept
 * for backward: an unused result was released, or a checkpoint around what needs no gradient. After
 * a failure everything is given up; then the record stays, to tell who kept what at that moment. */
static void on_drop(void *user, const mt_save_info *info, void *state)
{
    mt_ledger *l = user;
    if (!state || mti_modes_now()->in_backward || !is_recording(l)) return;
    if (mti_failures() != l->failures) return;
    pthread_mutex_lock(&l->lock);
    mti_book_take_back(l->book, (uintptr_t)state, info->node, info->argument);
    pthread_mutex_unlock(&l->lock);
}

mt_status mt_ledger_begin(mt_ledger *l)
{
    static const mt_saved_hooks hooks = {.pack = on_pack,
                                         .drop = on_drop,
                                         .destroy = ledger_release},
                                own_hooks = {
                                    .pack = on_pack, .drop = on_drop, .destroy = return_hooks};
    if (!mti_given(l, "ledger_begin", "the ledger") || !watch(l)) return mt_last_status();
    atomic_fetch_add(&l->refs, 1);
    l->failures = mti_failures();
    if (!atomic_exchange(&l->hooks_taken, true)) {
        mti_hooks_push(&l->hooks, &own_hooks, l, true);
        return MT_OK;
    }
    mt_status status = mt_push_saved_hooks(&hooks, l);
    if (status != MT_OK) atomic_fetch_sub(&l->refs, 1);
    return status;
}

mt_status mt_ledger_end(mt_ledger *l)
{
    const mti_hooks *top = mti_modes_now()->hooks;
    if (!mti_given(l, "ledger_end", "the ledger")) return mt_last_status();
    if (!top || top->user != l)
        return mti_fail(MT_ERR_STATE, "ledger_end: this ledger is not the innermost hook");
    return mt_pop_saved_hooks();
}

mt_status mt_ledger_reset(mt_ledger *l)
{
    if (!mti_given(l, "ledger_reset", "the ledger")) return mt_last_status();
    /* Outside the lock, which the pool takes under its own. */
    if (l->observer && atomic_load(&l->refs) == 1) {
        mt_mem_remove_observer(l->device, l->observer);
        l->observer = 0;
    }
    pthread_mutex_lock(&l->lock);
    mti_book_reset(l->book);
    pthread_mutex_unlock(&l->lock);
    return MT_OK;
}

mt_status mt_ledger_ignore(mt_ledger *l, const mt_tensor *t)
{
    if (!mti_given(l, "ledger_ignore", "the ledger")) return mt_last_status();
    if (!mti_given(t, "ledger_ignore", "the tensor")) return mt_last_status();
    pthread_mutex_lock(&l->lock);
    bool ok = mti_book_ignore(l->book, t->storage->block->serial);
    pthread_mutex_unlock(&l->lock);
    return ok ? MT_OK : mt_last_status();
}

mt_status mt_ledger_count_parameters(mt_ledger *l, bool count)
{
    if (!mti_given(l, "ledger_count_parameters", "the ledger")) return mt_last_status();
    l->count_parameters = count;
    return MT_OK;
}

/* ---- reading ---- */

size_t mt_ledger_bytes(const mt_ledger *l) { return l ? mti_book_bytes(l->book) : 0; }
size_t mt_ledger_allocated(const mt_ledger *l) { return l ? mti_book_rounded_bytes(l->book) : 0; }
size_t mt_ledger_live_bytes(const mt_ledger *l) { return l ? mti_book_live_bytes(l->book) : 0; }
size_t mt_ledger_count(const mt_ledger *l) { return l ? mti_book_count(l->book) : 0; }

static const mti_record *record_at(const char *caller, const mt_ledger *l, size_t i)
{
    if (!mti_given(l, caller, "the ledger")) return NULL;
    size_t n = mti_book_count(l->book);
    if (i < n) return mti_book_get(l->book, i);
    return mti_fail_null(MT_ERR_ARGUMENT, "%s: entry %zu; there are %zu", caller, i, n);
}

mt_status mt_ledger_get(const mt_ledger *l, size_t i, mt_ledger_entry *out)
{
    const mti_record *r = record_at("ledger_get", l, i);
    if (!r) return mt_last_status();
    *out = (mt_ledger_entry){.storage = r->first.serial,
                             .bytes = r->first.bytes,
                             .allocated = r->first.rounded,
                             .n_savers = r->n_also + 1,
                             .saver = r->first.saver,
                             .freed = r->freed,
                             .freed_after_op = r->freed_after_op,
                             .freed_after_module = r->freed_after_module};
    return MT_OK;
}

mt_status mt_ledger_get_saver(const mt_ledger *l, size_t i, size_t j, mt_saver *out)
{
    const mti_record *r = record_at("ledger_get_saver", l, i);
    if (!r) return mt_last_status();
    if (j > r->n_also)
        return mti_fail(MT_ERR_ARGUMENT, "ledger_get_saver: saver %zu; entry %zu has %zu", j, i,
                        r->n_also + 1);
    *out = j ? r->also[j - 1] : r->first.saver;
    return MT_OK;
}

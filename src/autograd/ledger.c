/* ledger.c: the public ledger: looks on at what the tape saves and writes it into memtrack's book.
 */
#include "autograd/autograd.h"

struct mt_ledger {
    atomic_int refs; /* the owner, and one for each begin */
    mt_device *device;
    mti_book *book;
    bool count_parameters;
    mti_hooks hooks;         /* of one begin at a time: no memory is asked for it */
    atomic_bool hooks_taken; /* by a begin */
};

mt_ledger *mt_ledger_new(mt_device *device)
{
    if (!mti_given(device, "ledger_new", "the device")) return NULL;
    mt_ledger *l = mti_calloc(1, sizeof *l);
    if (!l) return NULL;
    atomic_init(&l->refs, 1);
    l->device = mt_device_retain(device);
    l->book = mti_book_new(device->pool);
    if (l->book) return l;
    mt_ledger_free(l);
    return NULL;
}

void mt_ledger_free(mt_ledger *l)
{
    if (!l || atomic_fetch_sub(&l->refs, 1) != 1) return;
    mti_book_free(l->book);
    mt_device_release(l->device);
    mti_free(l);
}

static bool on_saved(void *user, const mti_saved_tensor *s, mt_tensor *t)
{
    const mt_ledger *l = user;
    mti_storage *storage = t->storage;
    if (storage->device != l->device) return true;
    if (storage->block->category == MT_PARAMETER && !l->count_parameters) return true;
    mt_saver saver = mti_slot_saver(s, t);
    return mti_book_save(l->book, storage->block, storage->bytes, &saver);
}

/* What a node gives up while the ledger records, and not because its backward has run, is not kept
 * for backward: an unused result was released, or a checkpoint around what needs no gradient. After
 * a failure everything is given up; then the record stays, to tell who kept what at that moment. */
static void on_given_up(void *user, const mti_hooks *h, const mti_saved_tensor *s)
{
    const mt_ledger *l = user;
    if (mti_failures() != h->failures) return;
    mt_save_info info = mti_slot_info(s);
    /* What the ledger was shown is what the slot keeps, unless a hook kept something else. */
    mti_book_take_back(l->book, s->original && s->kept ? s->kept->storage->block : NULL, info.node,
                       info.argument);
}

static void on_popped(void *user, mti_hooks *h)
{
    mt_ledger *l = user;
    if (h == &l->hooks)
        atomic_store(&l->hooks_taken, false);
    else
        mti_free(h);
    mt_ledger_free(l);
}

mt_status mt_ledger_begin(mt_ledger *l)
{
    static const mti_onlooker onlooker = {on_saved, on_given_up, on_popped};
    if (!mti_given(l, "ledger_begin", "the ledger")) return mt_last_status();
    mti_hooks *h = atomic_exchange(&l->hooks_taken, true) ? mti_malloc(sizeof *h) : &l->hooks;
    if (!h) return mt_last_status();
    atomic_fetch_add(&l->refs, 1);
    mti_onlooker_push(h, &onlooker, l);
    return MT_OK;
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
    mti_book_reset(l->book);
    return MT_OK;
}

mt_status mt_ledger_ignore(mt_ledger *l, const mt_tensor *t)
{
    if (!mti_given(l, "ledger_ignore", "the ledger")) return mt_last_status();
    if (!mti_given(t, "ledger_ignore", "the tensor")) return mt_last_status();
    return mti_book_ignore(l->book, t->storage->block->serial) ? MT_OK : mt_last_status();
}

mt_status mt_ledger_count_parameters(mt_ledger *l, bool count)
{
    if (!mti_given(l, "ledger_count_parameters", "the ledger")) return mt_last_status();
    l->count_parameters = count;
    return MT_OK;
}

/* ---- reading ---- */

size_t mt_ledger_bytes(const mt_ledger *l) { return l ? mti_book_bytes(l->book) : 0; }
size_t mt_ledger_allocated(const mt_ledger *l) { return l ? mti_book_allocated(l->book) : 0; }
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
    *out = (mt_ledger_entry){.storage = r->serial,
                             .bytes = r->bytes,
                             .rounded = r->rounded,
                             .allocated = r->allocated,
                             .n_savers = r->n_also + 1,
                             .saver = r->saver,
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
    *out = j ? r->also[j - 1] : r->saver;
    return MT_OK;
}

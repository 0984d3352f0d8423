/* offload.c: the hook that copies saved tensors to host memory or disk and back, and its
 * statistics. */
#include "hooks/offload.h"

/* ---- making ---- */

static bool fill_defaults(mt_offload_options *o)
{
    if (o->in_flight < 0 || o->prefetch < -1)
        return mti_fail_bool(MT_ERR_ARGUMENT,
                             "offload_new: in_flight is %d and prefetch %d; need 0 or more, and -1 "
                             "or more",
                             o->in_flight, o->prefetch);
    if (!o->min_bytes) o->min_bytes = 4096;
    if (!o->in_flight) o->in_flight = 2;
    o->prefetch = o->prefetch < 0 ? 0 : o->prefetch ? o->prefetch : 2;
    return true;
}

static bool open_parts(mt_offload *o, const char *directory)
{
    o->leaving = mti_calloc((size_t)o->options.in_flight, sizeof *o->leaving);
    if (!o->leaving) return false;
    if (directory && !(o->disk = mti_disk_open(directory))) return false;
    o->observer = mt_mem_add_observer(o->device, mti_books_on_event, &o->books);
    return o->observer != 0;
}

mt_offload *mt_offload_new(mt_device *device, const mt_offload_options *options)
{
    mt_offload_options filled = options ? *options : (mt_offload_options){0};
    if (!mti_given(device, "offload_new", "the device")) return NULL;
    if (!fill_defaults(&filled)) return NULL;
    mt_offload *o = mti_calloc(1, sizeof *o);
    if (!o) return NULL;
    atomic_init(&o->refs, 1);
    pthread_mutex_init(&o->lock, NULL);
    mti_books_init(&o->books);
    o->device = mt_device_retain(device);
    o->options = filled;
    o->options.directory = NULL; /* the caller's; the disk has a copy */
    if (open_parts(o, filled.directory)) return o;
    mt_offload_free(o);
    return NULL;
}

/* Every saved tensor holds the hook, so there is no item any more. */
static void release(void *user)
{
    mt_offload *o = user;
    if (!o || atomic_fetch_sub(&o->refs, 1) != 1) return;
    if (o->observer) mt_mem_remove_observer(o->device, o->observer);
    mti_disk_close(o->disk);
    mti_free(o->leaving);
    mti_books_free(&o->books);
    pthread_mutex_destroy(&o->lock);
    mt_device_release(o->device);
    mti_free(o);
}

void mt_offload_free(mt_offload *o) { release(o); }

mti_disk *mti_offload_disk(mt_offload *o) { return o->disk; }

/* ---- the hook ---- */

/* Whether an op made it and a transfer is worth it. Other tensors are held elsewhere anyway. */
static bool is_wanted(const mt_offload *o, const mt_save_info *info, const mt_tensor *t,
                      const mt_storage_info *s)
{
    if (mt_device_of(t) != o->device || s->bytes < o->options.min_bytes) return false;
    if (o->options.wants && !o->options.wants(o->options.wants_user, info)) return false;
    switch (s->category) {
    case MT_ACTIVATION:
    case MT_PACKED:
    case MT_TEMPORARY: return true; /* TEMPORARY: made by an inner hook */
    case MT_INPUT: return o->options.inputs;
    default: return false;
    }
}

/* Whether t stays on the device; if not, *item has its bytes already, or is NULL. */
static bool stays(mt_offload *o, const mt_save_info *info, const mt_tensor *t, mti_item **item)
{
    mt_storage_info s = mt_storage_of(t);
    o->stats.saves++;
    *item = NULL;
    if (!is_wanted(o, info, t, &s)) return o->stats.saves_left++, true;
    mti_item *known = mti_books_find(&o->books, s.serial);
    if (known && known->serial == s.serial && known->version == s.version) {
        o->stats.saves_shared++;
        *item = known;
        return false;
    }
    size_t room = o->options.capacity ? o->options.capacity - o->held_bytes : SIZE_MAX;
    if (s.bytes > room) return o->stats.saves_over++, true;
    return false;
}

static mt_status pack(mt_offload *o, const mt_save_info *info, mt_tensor *t, void **state)
{
    mti_item *item;
    if (stays(o, info, t, &item)) return MT_OK;
    mti_offload_slot *slot = mti_calloc(1, sizeof *slot);
    if (slot && !item) item = mti_item_new(o, info, t);
    if (!slot || !item) {
        mti_free(slot);
        return mt_last_status();
    }
    slot->item = item;
    slot->layout = mt_layout_of(t);
    item->refs++;
    if (item->back) item->unread++;
    *state = slot;
    return MT_OK;
}

static mt_status on_pack(void *user, const mt_save_info *info, mt_tensor *t, mt_tensor **kept,
                         void **state)
{
    mt_offload *o = user;
    pthread_mutex_lock(&o->lock);
    mt_status status = pack(o, info, t, state);
    pthread_mutex_unlock(&o->lock);
    if (*state) *kept = NULL;
    return status;
}

static mt_status on_unpack(void *user, const mt_save_info *info, mt_tensor **tensor, void *state)
{
    mt_offload *o = user;
    mti_offload_slot *slot = state;
    if (!slot) return MT_OK;
    pthread_mutex_lock(&o->lock);
    mti_item *item = slot->item;
    mt_tensor *base = mti_item_bring(o, item, info);
    *tensor = base ? mt_view_as(base, &slot->layout) : NULL;
    if (*tensor) {
        if (item->back && slot->read != item->times_back) {
            slot->read = item->times_back;
            mti_item_read(item);
        }
        item->read_by = info->node;
        mti_item_prefetch(o, item, info->node);
    }
    pthread_mutex_unlock(&o->lock);
    return *tensor ? MT_OK : mt_last_status();
}

static void on_drop(void *user, const mt_save_info *info, void *state)
{
    (void)info;
    mt_offload *o = user;
    mti_offload_slot *slot = state;
    if (!slot) return;
    pthread_mutex_lock(&o->lock);
    mti_item *item = slot->item;
    if (--item->refs == 0)
        mti_item_free(o, item);
    else if (item->back && slot->read != item->times_back)
        mti_item_read(item);
    pthread_mutex_unlock(&o->lock);
    mti_free(slot);
}

/* ---- from begin to end ---- */

static mt_status start_report(mt_offload *o)
{
    mt_status status = mt_copy_times_get(o->device, &o->times_before);
    if (status != MT_OK) return status;
    if (o->disk) o->disk_times_before = mti_disk_times(o->disk);
    size_t host_bytes = o->stats.host_bytes;
    o->stats = (mt_offload_stats){.host_bytes = host_bytes, .host_peak = host_bytes};
    if (o->disk) o->stats.disk_peak = o->held_bytes;
    mti_books_start(&o->books, o->device);
    o->round++;
    return MT_OK;
}

static const mt_saved_hooks hooks = {on_pack, on_unpack, on_drop, release};

const mt_saved_hooks *mt_offload_hooks(void) { return &hooks; }

mt_status mt_offload_begin(mt_offload *o)
{
    if (!mti_given(o, "offload_begin", "the offload")) return mt_last_status();
    atomic_fetch_add(&o->refs, 1);
    mt_status status = mt_push_saved_hooks(&hooks, o);
    if (status != MT_OK) {
        atomic_fetch_sub(&o->refs, 1);
        return status;
    }
    pthread_mutex_lock(&o->lock);
    status = start_report(o);
    pthread_mutex_unlock(&o->lock);
    if (status != MT_OK) mt_pop_saved_hooks();
    return status;
}

mt_status mt_offload_end(mt_offload *o)
{
    if (!mti_given(o, "offload_end", "the offload")) return mt_last_status();
    if (mt_saved_hooks_user() != o)
        return mti_fail(MT_ERR_STATE, "offload_end: this offload is not the innermost hook");
    mt_status status = MT_OK;
    mti_error first; /* all leave; the first failure is reported */
    pthread_mutex_lock(&o->lock);
    while (o->n_leaving)
        if (mti_item_depart(o) != MT_OK && status == MT_OK) {
            status = mt_last_status();
            mti_error_get(&first);
        }
    o->stats.bytes_still_held = 0;
    for (const mti_item *i = o->first; i; i = i->later)
        if (i->round == o->round && mti_books_still_held(&o->books, i))
            o->stats.bytes_still_held += i->n_bytes;
    pthread_mutex_unlock(&o->lock);
    mt_status popped = mt_pop_saved_hooks();
    if (status == MT_OK) return popped;
    mti_error_set(&first);
    return status;
}

mt_status mt_offload_get_stats(mt_offload *o, mt_offload_stats *out)
{
    mt_copy_times times;
    if (!out) return mti_fail(MT_ERR_ARGUMENT, "offload_get_stats: the result is NULL");
    *out = (mt_offload_stats){0};
    if (!mti_given(o, "offload_get_stats", "the offload")) return mt_last_status();
    mt_status status = mt_copy_times_get(o->device, &times);
    if (status != MT_OK) return status;
    pthread_mutex_lock(&o->lock);
    *out = o->stats;
    out->disk_bytes = o->disk ? o->held_bytes : 0;
    out->copy_s = times.copy_s - o->times_before.copy_s;
    out->wait_s = times.wait_s - o->times_before.wait_s;
    if (o->disk) {
        times = mti_disk_times(o->disk);
        out->copy_s += times.copy_s - o->disk_times_before.copy_s;
        out->wait_s += times.wait_s - o->disk_times_before.wait_s;
    }
    mti_books_read(&o->books, out);
    pthread_mutex_unlock(&o->lock);
    if (out->peak_without > out->peak) out->lowered = out->peak_without - out->peak;
    if (out->bytes_out > out->lowered) out->bytes_in_vain = out->bytes_out - out->lowered;
    if (out->copy_s > 0 && out->wait_s < out->copy_s) out->hidden = 1 - out->wait_s / out->copy_s;
    return MT_OK;
}

/* offload_item.c: a storage leaves, with its device bytes held until the copy is done, and comes
 * back, ahead of its use. The program alone decides when each step happens. */
#include <string.h>
#include "hooks/offload.h"

static void raise_to(size_t *peak, size_t now)
{
    if (now > *peak) *peak = now;
}

static void count_host(mt_offload *o, const mti_item *item)
{
    o->stats.host_bytes += item->n_bytes;
    raise_to(&o->stats.host_peak, o->stats.host_bytes);
}

static void free_host(mt_offload *o, mti_item *item)
{
    if (!item->copy) return;
    mt_host_copy_free(item->copy);
    item->copy = NULL;
    o->stats.host_bytes -= item->n_bytes;
}

/* ---- the list, in the order of packing, which is also the order in the file ---- */

static void append(mt_offload *o, mti_item *item)
{
    item->earlier = o->last;
    if (o->last)
        o->last->later = item;
    else
        o->first = item;
    o->last = item;
}

static void unlink_item(mt_offload *o, mti_item *item)
{
    if (item->earlier)
        item->earlier->later = item->later;
    else
        o->first = item->later;
    if (item->later)
        item->later->earlier = item->earlier;
    else
        o->last = item->earlier;
}

/* Backward frees items in reverse order of packing, so the file grows and shrinks at its end. */
static uint64_t end_of_file(const mt_offload *o)
{
    return o->last ? o->last->job.offset + o->last->n_bytes : 0;
}

/* ---- out ---- */

static mti_item *item_of(mt_offload *o, const mt_save_info *info, mt_tensor *t)
{
    mti_item *item = mti_calloc(1, sizeof *item);
    if (!item) return NULL;
    mt_storage_info s = mt_storage_of(t);
    item->op = info->op, item->argument = info->argument, item->module = info->module;
    item->serial = s.serial, item->version = s.version, item->n_bytes = s.bytes;
    item->allocated = s.allocated;
    item->job = (mti_disk_job){.offset = end_of_file(o), .n_bytes = s.bytes, .write = true};
    return item;
}

mti_item *mti_item_new(mt_offload *o, const mt_save_info *info, mt_tensor *t)
{
    while (o->n_leaving == o->options.in_flight)
        if (mti_item_depart(o) != MT_OK) return NULL;
    mti_item *item = item_of(o, info, t);
    if (!item) return NULL;
    /* A device without data writes nothing. */
    bool fits =
        !o->disk || !mt_device_has_data(o->device) ||
        mti_disk_reserve(o->disk, item->job.offset + item->n_bytes, info->op, item->n_bytes);
    if (fits && mti_books_reserve(&o->books)) item->copy = mt_host_copy_out(t);
    if (!item->copy) {
        mti_free(item);
        return NULL;
    }
    /* Nothing fails from here on. */
    count_host(o, item);
    if (o->disk) {
        item->job.copy = item->copy;
        mti_disk_submit(o->disk, &item->job);
    }
    item->source = mt_retain(t);
    item->round = o->round;
    append(o, item);
    mti_books_add(&o->books, item->serial, item);
    o->leaving[o->n_leaving++] = item;
    o->held_bytes += item->n_bytes;
    if (o->disk) raise_to(&o->stats.disk_peak, o->held_bytes);
    o->stats.n_out++;
    o->stats.bytes_out += item->n_bytes;
    return item;
}

/* Removes it from `leaving` and releases its device bytes. */
static mt_status leave(mt_offload *o, mti_item *item)
{
    int i = 0;
    while (o->leaving[i] != item) i++;
    memmove(&o->leaving[i], &o->leaving[i + 1], (size_t)(--o->n_leaving - i) * sizeof *o->leaving);
    uint64_t version = mt_storage_of(item->source).version;
    if (version != item->version) item->new_version = version;
    mt_status status = mt_host_copy_wait(item->copy);
    mt_release(item->source);
    item->source = NULL;
    if (!o->disk) return status;
    /* If the disk failed, the host copy stays: only the saving is lost. */
    if (!mti_disk_finish(o->disk, &item->job))
        return status != MT_OK ? status : mti_disk_failed(o->disk, &item->job, item->op);
    free_host(o, item);
    return status;
}

mt_status mti_item_depart(mt_offload *o) { return leave(o, o->leaving[0]); }

/* ---- back ---- */

static bool begin_read(mt_offload *o, mti_item *item)
{
    if (item->copy) return true;
    item->copy = mt_host_copy_new(o->device, item->n_bytes);
    if (!item->copy) return false;
    count_host(o, item);
    item->job.copy = item->copy;
    item->job.write = false;
    mti_disk_submit(o->disk, &item->job);
    return true;
}

static bool finish_read(mt_offload *o, mti_item *item, const char *op)
{
    if (mti_disk_finish(o->disk, &item->job)) return true;
    mti_disk_failed(o->disk, &item->job, op);
    free_host(o, item);
    return false;
}

static bool begin_back(mt_offload *o, mti_item *item, const char *op)
{
    if (o->disk && (!begin_read(o, item) || !finish_read(o, item, op))) return false;
    if (!mti_books_reserve(&o->books)) return false;
    mti_books_coming_back(&o->books, item, true);
    item->back = mt_host_copy_back(item->copy);
    if (item->back) mti_books_add(&o->books, mt_storage_of(item->back).serial, item);
    mti_books_coming_back(&o->books, item, false);
    if (!item->back) return false;
    item->times_back++;
    item->unread = item->refs;
    o->stats.n_in++;
    o->stats.bytes_in += item->n_bytes;
    return true;
}

mt_tensor *mti_item_bring(mt_offload *o, mti_item *item, const mt_save_info *info)
{
    uint64_t version = item->source ? mt_storage_of(item->source).version : item->version;
    if (item->new_version || version != item->version)
        return mti_fail_null(MT_ERR_STATE,
                             "%s backward%s%s: %s was changed in place after it was saved and "
                             "before it had left the device: it went from version %llu to %llu",
                             info->op, *info->module ? " in " : "", info->module, info->argument,
                             (unsigned long long)item->version,
                             (unsigned long long)(item->new_version ? item->new_version : version));
    if (item->source) return item->source; /* it had not left yet */
    if (!item->back && !begin_back(o, item, info->op)) return NULL;
    if (item->copy && mt_host_copy_wait(item->copy) != MT_OK) return NULL;
    /* The disk copy stays valid for another read, once it has been written. */
    if (o->disk && !(item->job.write && item->job.error)) free_host(o, item);
    return item->back;
}

void mti_item_read(mti_item *item)
{
    if (--item->unread) return;
    mt_release(item->back);
    item->back = NULL;
}

void mti_item_prefetch(mt_offload *o, mti_item *item, uint64_t node)
{
    /* A failed attempt is not reported: the bytes are requested again when they are needed. */
    mti_error before;
    mti_error_get(&before);
    bool ok = true;
    for (int i = 0; ok && i < o->options.prefetch && (item = item->earlier); i++)
        if (!item->source && !item->back && !item->new_version && item->read_by != node)
            ok = o->disk ? begin_read(o, item) : begin_back(o, item, item->op);
    if (!ok) mti_error_set(&before);
}

void mti_item_free(mt_offload *o, mti_item *item)
{
    /* It will not be read again, so its errors do not matter. */
    mti_error before;
    mti_error_get(&before);
    if (item->source) leave(o, item);
    if (o->disk) mti_disk_finish(o->disk, &item->job);
    mti_books_forget(&o->books, item);
    free_host(o, item); /* waits for a copy back */
    mt_release(item->back);
    unlink_item(o, item);
    o->held_bytes -= item->n_bytes;
    mti_error_set(&before);
    mti_free(item);
}

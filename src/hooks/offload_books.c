/* offload_books.c: what an offload really saved, by the device's events: which storages are gone,
 * and how many bytes were away when the device held most. */
#include <string.h>
#include "hooks/offload.h"

void mti_books_init(mti_offload_books *b) { pthread_mutex_init(&b->lock, NULL); }

void mti_books_free(mti_offload_books *b)
{
    pthread_mutex_destroy(&b->lock);
    mti_free(b->known.at);
}

/* The first index whose serial is not smaller. */
static size_t place_of(const mti_offload_books *b, uint64_t serial)
{
    size_t low = 0, high = b->known.n;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (b->known.at[middle].serial < serial)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static mti_item *find(const mti_offload_books *b, uint64_t serial)
{
    size_t i = place_of(b, serial);
    return i < b->known.n && b->known.at[i].serial == serial ? b->known.at[i].item : NULL;
}

static void recount(mti_offload_books *b, mti_item *item)
{
    int here = (item->source_serial != 0) + (item->back_serial != 0 || item->coming);
    int previous = item->counted;
    item->counted = 1 - here;
    b->elsewhere += (item->counted - previous) * (int64_t)item->allocated;
    if (item->counted == 1 && previous != 1) b->away += item->n_bytes;
    if (item->counted != 1 && previous == 1) b->away -= item->n_bytes;
}

/* A storage has two items if it left, was changed and left again. */
static void remove_serial(mti_offload_books *b, const mti_item *item, uint64_t *serial)
{
    size_t i = place_of(b, *serial);
    while (b->known.at[i].item != item) i++;
    memmove(&b->known.at[i], &b->known.at[i + 1], (--b->known.n - i) * sizeof *b->known.at);
    *serial = 0;
}

static void raise_peaks(mti_offload_books *b, size_t current)
{
    size_t without = (size_t)((int64_t)current + b->elsewhere);
    if (current > b->peak) b->peak = current;
    if (without > b->peak_without) b->peak_without = without;
}

void mti_books_on_event(void *user, const mt_mem_event *e)
{
    mti_offload_books *b = user;
    pthread_mutex_lock(&b->lock);
    if (e->kind == MT_MEM_ALLOC) raise_peaks(b, e->current);
    mti_item *item;
    while (e->kind == MT_MEM_FREE && (item = find(b, e->serial))) {
        bool left = item->source_serial == e->serial;
        remove_serial(b, item, left ? &item->source_serial : &item->back_serial);
        recount(b, item);
    }
    pthread_mutex_unlock(&b->lock);
}

void mti_books_start(mti_offload_books *b, mt_device *device)
{
    mt_mem_stats stats;
    mt_mem_get_stats(device, &stats); /* the device's lock comes before ours */
    pthread_mutex_lock(&b->lock);
    b->peak = b->peak_without = 0;
    raise_peaks(b, stats.allocated.current);
    pthread_mutex_unlock(&b->lock);
}

void mti_books_read(mti_offload_books *b, mt_offload_stats *out)
{
    pthread_mutex_lock(&b->lock);
    out->bytes_away = b->away;
    out->peak = b->peak, out->peak_without = b->peak_without;
    pthread_mutex_unlock(&b->lock);
}

bool mti_books_reserve(mti_offload_books *b)
{
    pthread_mutex_lock(&b->lock);
    bool ok = b->known.n + 2 <= b->known.cap ||
              mti_grow((void **)&b->known.at, &b->known.cap, sizeof *b->known.at);
    pthread_mutex_unlock(&b->lock);
    return ok;
}

void mti_books_add(mti_offload_books *b, uint64_t serial, mti_item *item)
{
    pthread_mutex_lock(&b->lock);
    size_t i = place_of(b, serial);
    memmove(&b->known.at[i + 1], &b->known.at[i], (b->known.n++ - i) * sizeof *b->known.at);
    b->known.at[i].serial = serial;
    b->known.at[i].item = item;
    *(item->serial == serial ? &item->source_serial : &item->back_serial) = serial;
    recount(b, item);
    pthread_mutex_unlock(&b->lock);
}

void mti_books_forget(mti_offload_books *b, mti_item *item)
{
    pthread_mutex_lock(&b->lock);
    if (item->source_serial) remove_serial(b, item, &item->source_serial);
    if (item->back_serial) remove_serial(b, item, &item->back_serial);
    item->coming = true; /* no longer counted as elsewhere */
    recount(b, item);
    pthread_mutex_unlock(&b->lock);
}

mti_item *mti_books_find(mti_offload_books *b, uint64_t serial)
{
    pthread_mutex_lock(&b->lock);
    mti_item *item = find(b, serial);
    pthread_mutex_unlock(&b->lock);
    return item;
}

bool mti_books_still_held(mti_offload_books *b, const mti_item *item)
{
    pthread_mutex_lock(&b->lock);
    bool held = item->source_serial != 0;
    pthread_mutex_unlock(&b->lock);
    return held;
}

/* Called before its new storage is allocated, so that the event does not count it as away. */
void mti_books_coming_back(mti_offload_books *b, mti_item *item, bool coming)
{
    pthread_mutex_lock(&b->lock);
    item->coming = coming;
    recount(b, item);
    pthread_mutex_unlock(&b->lock);
}

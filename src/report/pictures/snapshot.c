/* snapshot.c: events as PyTorch's memory snapshot.
 *
 * `device_traces` come first in the file, then `segments`: what is there at the end is known only
 * after the last event. Python's dictionaries have no order, so readers do not care. */
#include <stdlib.h>
#include <string.h>
#include "memtrack/fit.h"
#include "report/pickle.h"
#include "report/pictures.h"

/* Added to places, so that no address is 0. */
#define FIRST_ADDRESS ((int64_t)1 << 40)
/* The viewer passes a batch as the arguments of one call, which JavaScript limits. */
#define BATCH 1000

/* Where in the program something happens: strings that are never freed, compared by address. */
typedef struct context {
    const char *op, *module, *phase;
    uint32_t frames; /* number of the list in the memo */
} context;

/* A block that is allocated, or a segment: of an expandable one, a part without gaps. */
typedef struct stretch {
    uint64_t place;
    size_t size, requested;
    size_t context; /* its number */
    bool large, expandable;
    int stream;
} stretch;

/* By place; those that are gone leave their slots to new ones. */
typedef struct stretches {
    mti_hashmap at;
    MTI_VEC(stretch) slots;
    MTI_VEC(size_t) spare;
} stretches;

struct mti_snapshot {
    mti_pickle pickle;
    bool clocked;
    double began;     /* seconds of the first event */
    size_t n;         /* events so far */
    size_t n_batch;   /* entries in the batch that is open */
    uint32_t no_pool; /* its number in the memo */
    bool pool_known;
    mti_hashmap context_at; /* a hash of addresses -> number of a context */
    MTI_VEC(context) contexts;
    stretches blocks, segments;
    bool expands; /* some segment did */
};

static void put_key(mti_snapshot *s, const char *key) { mti_pickle_key(&s->pickle, key); }

static void put_int(mti_snapshot *s, const char *key, int64_t value)
{
    mti_pickle_key_int(&s->pickle, key, value);
}

/* The memory pool of all segments: the default one. */
static void put_pool(mti_snapshot *s)
{
    if (s->pool_known) {
        mti_pickle_again(&s->pickle, s->no_pool);
        return;
    }
    mti_pickle_pair(&s->pickle, 0, 0);
    s->no_pool = mti_pickle_remember(&s->pickle);
    s->pool_known = true;
}

/* ---- frames ---- */

static void put_frame(mti_snapshot *s, const char *file, const char *name)
{
    mti_pickle *p = &s->pickle;
    mti_pickle_dict(p);
    put_key(s, "filename");
    mti_pickle_text(p, file);
    put_key(s, "name");
    mti_pickle_text(p, name);
    put_int(s, "line", 0);
    mti_pickle_set(p);
}

/* As a call stack, the innermost first: the op, its module, the modules around that, the phase. */
static void put_new_frames(mti_snapshot *s, const context *c)
{
    mti_pickle *p = &s->pickle;
    mti_pickle_list(p);
    mti_pickle_mark(p);
    if (*c->op) put_frame(s, c->module, c->op);
    char path[512];
    snprintf(path, sizeof path, "%s", c->module);
    while (*path) {
        char *dot = strrchr(path, '.');
        put_frame(s, path, dot ? dot + 1 : path);
        *(dot ? dot : path) = '\0';
    }
    if (*c->phase) put_frame(s, "phase", c->phase);
    mti_pickle_append(p);
}

static uint64_t hash_of(const context *c)
{
    uint64_t hash = mti_hash_bytes(MTI_HASH_BEGIN, &c->op, sizeof c->op);
    hash = mti_hash_bytes(hash, &c->module, sizeof c->module);
    return mti_hash_bytes(hash, &c->phase, sizeof c->phase);
}

/* The number of the event's context, MTI_NO_PLACE if memory ran out. */
static size_t context_of(mti_snapshot *s, const mt_mem_event *e)
{
    context c = {e->op, e->module, e->phase, UINT32_MAX};
    uint64_t hash = hash_of(&c);
    size_t probe = 0, i;
    while ((i = mti_hashmap_next(&s->context_at, hash, &probe)) != MTI_NO_PLACE) {
        const context *known = &s->contexts.at[i];
        if (known->op == c.op && known->module == c.module && known->phase == c.phase) return i;
    }
    if (!MTI_RESERVE(&s->contexts) || !mti_hashmap_add(&s->context_at, hash, s->contexts.n))
        return MTI_NO_PLACE;
    s->contexts.at[s->contexts.n] = c;
    return s->contexts.n++;
}

static void put_frames(mti_snapshot *s, size_t number)
{
    context *c = &s->contexts.at[number];
    put_key(s, "frames");
    if (c->frames != UINT32_MAX) {
        mti_pickle_again(&s->pickle, c->frames);
        return;
    }
    put_new_frames(s, c);
    c->frames = mti_pickle_remember(&s->pickle);
}

static void put_no_frames(mti_snapshot *s)
{
    put_key(s, "frames");
    mti_pickle_list(&s->pickle);
}

/* ---- what is there ---- */

static bool insert(stretches *all, const stretch *one)
{
    if (all->spare.n) {
        size_t slot = all->spare.at[all->spare.n - 1];
        if (!mti_hashmap_add(&all->at, one->place, slot)) return false;
        all->spare.n--;
        all->slots.at[slot] = *one;
        return true;
    }
    return MTI_RESERVE(&all->slots) && mti_hashmap_add(&all->at, one->place, all->slots.n) &&
           MTI_PUSH(&all->slots, *one);
}

/* What was there before the first event is not known. */
static bool erase(stretches *all, uint64_t place)
{
    size_t slot = mti_hashmap_find(&all->at, place);
    if (slot == MTI_NO_PLACE) return true;
    if (!MTI_PUSH(&all->spare, slot)) return false;
    mti_hashmap_remove(&all->at, place, slot);
    return true;
}

static bool is_there(const stretches *all, size_t slot)
{
    return mti_hashmap_find(&all->at, all->slots.at[slot].place) == slot;
}

/* Addresses got memory: they join the part before them and the part behind them. */
static bool map(stretches *segments, stretch one)
{
    for (size_t i = 0; i < segments->slots.n; i++) {
        const stretch other = segments->slots.at[i];
        if (!is_there(segments, i) || !other.expandable) continue;
        bool before = other.place + other.size == one.place;
        if (!before && one.place + one.size != other.place) continue;
        if (!erase(segments, other.place)) return false;
        one.size += other.size;
        if (before) one.place = other.place, one.context = other.context;
    }
    return insert(segments, &one);
}

/* They have none any more: of the part that they were in, what is before and behind them stays. */
static bool unmap(stretches *segments, const stretch *gone)
{
    uint64_t end = gone->place + gone->size;
    for (size_t i = 0; i < segments->slots.n; i++) {
        const stretch whole = segments->slots.at[i];
        uint64_t whole_end = whole.place + whole.size;
        if (!is_there(segments, i) || whole.place > gone->place || whole_end < end) continue;
        stretch before = whole, behind = whole;
        before.size = (size_t)(gone->place - whole.place);
        behind.place = end, behind.size = (size_t)(whole_end - end);
        return erase(segments, whole.place) && (!before.size || insert(segments, &before)) &&
               (!behind.size || insert(segments, &behind));
    }
    return true; /* as with erase */
}

static bool follow(mti_snapshot *s, const mt_mem_event *e, size_t number)
{
    bool expands = e->kind == MT_MEM_SEGMENT_MAP || e->kind == MT_MEM_SEGMENT_UNMAP;
    const stretch one = {e->place, e->allocated, e->requested, number,
                         e->large, expands,      e->stream};
    s->expands |= expands;
    switch (e->kind) {
    case MT_MEM_ALLOC: return insert(&s->blocks, &one);
    case MT_MEM_FREE: return erase(&s->blocks, e->place);
    case MT_MEM_SEGMENT_ALLOC: return insert(&s->segments, &one);
    case MT_MEM_SEGMENT_FREE: return erase(&s->segments, e->place);
    case MT_MEM_SEGMENT_MAP: return map(&s->segments, one);
    case MT_MEM_SEGMENT_UNMAP: return unmap(&s->segments, &one);
    default: return true;
    }
}

static int by_place(const void *a, const void *b)
{
    const stretch *x = a, *y = b;
    return x->place < y->place ? -1 : x->place > y->place;
}

/* Moves the stretches that are there to the front of the slots, by their places; returns how many.
 */
static size_t put_in_order(stretches *all)
{
    size_t n = 0;
    for (size_t i = 0; i < all->slots.n; i++)
        if (is_there(all, i)) all->slots.at[n++] = all->slots.at[i];
    if (n) qsort(all->slots.at, n, sizeof *all->slots.at, by_place);
    return n;
}

static void free_stretches(stretches *all)
{
    mti_hashmap_free(&all->at);
    mti_free(all->slots.at);
    mti_free(all->spare.at);
}

/* ---- entries of the trace ---- */

static void open_batch(mti_snapshot *s)
{
    mti_pickle_mark(&s->pickle);
    s->n_batch = 0;
}

static void next_in_batch(mti_snapshot *s)
{
    if (++s->n_batch < BATCH) return;
    mti_pickle_append(&s->pickle);
    open_batch(s);
}

static int64_t address(uint64_t place) { return FIRST_ADDRESS + (int64_t)place; }

static void put_entry(mti_snapshot *s, const char *action, const mt_mem_event *e, size_t number,
                      int64_t time_us)
{
    mti_pickle *p = &s->pickle;
    bool oom = e->kind == MT_MEM_OOM;
    mti_pickle_dict(p);
    put_key(s, "action");
    put_key(s, action);
    if (oom)
        put_int(s, "device_free", e->room == SIZE_MAX ? 0 : (int64_t)e->room);
    else
        put_int(s, "addr", address(e->place));
    put_int(s, "size", (int64_t)e->requested);
    put_int(s, "stream", e->stream);
    put_key(s, "pool_id");
    put_pool(s);
    put_int(s, "time_us", time_us);
    put_frames(s, number);
    mti_pickle_set(p);
    next_in_batch(s);
}

bool mti_snapshot_add(mti_snapshot *s, const mt_mem_event *e, double seconds)
{
    if (!s->pickle.ok) return false;
    if (!s->n) s->began = seconds;
    int64_t time_us = s->clocked ? (int64_t)((seconds - s->began) * 1e6) : (int64_t)s->n;
    s->n++;
    if (e->kind == MT_MEM_RECATEGORY) return true; /* PyTorch has no categories */
    size_t number = context_of(s, e);
    if (number == MTI_NO_PLACE || !follow(s, e, number)) return s->pickle.ok = false;
    static const char *const actions[] = {[MT_MEM_ALLOC] = "alloc",
                                          [MT_MEM_FREE] = "free_requested",
                                          [MT_MEM_OOM] = "oom",
                                          [MT_MEM_SEGMENT_ALLOC] = "segment_alloc",
                                          [MT_MEM_SEGMENT_FREE] = "segment_free",
                                          [MT_MEM_SEGMENT_MAP] = "segment_map",
                                          [MT_MEM_SEGMENT_UNMAP] = "segment_unmap"};
    put_entry(s, actions[e->kind], e, number, time_us);
    /* A block can be used again as soon as it is freed. */
    if (e->kind == MT_MEM_FREE) put_entry(s, "free_completed", e, number, time_us);
    return s->pickle.ok;
}

/* ---- segments ---- */

static void put_block(mti_snapshot *s, uint64_t place, size_t size, const stretch *block)
{
    mti_pickle *p = &s->pickle;
    mti_pickle_dict(p);
    put_int(s, "address", address(place));
    put_int(s, "size", (int64_t)size);
    put_int(s, "requested_size", block ? (int64_t)block->requested : 0);
    put_key(s, "state");
    put_key(s, block ? "active_allocated" : "inactive");
    if (block)
        put_frames(s, block->context);
    else
        put_no_frames(s);
    mti_pickle_set(p);
    next_in_batch(s);
}

/* blocks[n]: in the segment, in order; what is between them is free. */
static void put_blocks(mti_snapshot *s, const stretch *segment, const stretch *blocks, size_t n)
{
    uint64_t at = segment->place, end = at + segment->size;
    put_key(s, "blocks");
    mti_pickle_list(&s->pickle);
    open_batch(s);
    for (size_t i = 0; i < n; i++) {
        if (blocks[i].place > at) put_block(s, at, blocks[i].place - at, NULL);
        put_block(s, blocks[i].place, blocks[i].size, &blocks[i]);
        at = blocks[i].place + blocks[i].size;
    }
    if (end > at) put_block(s, at, end - at, NULL);
    mti_pickle_append(&s->pickle);
}

static void put_segment(mti_snapshot *s, const stretch *segment, const stretch *blocks, size_t n)
{
    mti_pickle *p = &s->pickle;
    int64_t active = 0, requested = 0;
    for (size_t i = 0; i < n; i++) {
        active += (int64_t)blocks[i].size;
        requested += (int64_t)blocks[i].requested;
    }
    mti_pickle_dict(p);
    put_int(s, "device", 0);
    put_int(s, "address", address(segment->place));
    put_int(s, "total_size", (int64_t)segment->size);
    put_int(s, "allocated_size", active);
    put_int(s, "active_size", active);
    put_int(s, "requested_size", requested);
    put_int(s, "stream", segment->stream);
    put_key(s, "segment_type");
    mti_pickle_text(p, segment->large ? "large" : "small");
    put_key(s, "segment_pool_id");
    put_pool(s);
    put_key(s, "is_expandable");
    mti_pickle_bool(p, segment->expandable);
    put_frames(s, segment->context);
    put_blocks(s, segment, blocks, n);
    mti_pickle_set(p);
}

static void put_segments(mti_snapshot *s)
{
    mti_pickle *p = &s->pickle;
    size_t n_blocks = put_in_order(&s->blocks), n = put_in_order(&s->segments), first = 0;
    const stretch *blocks = s->blocks.slots.at;
    put_key(s, "segments");
    mti_pickle_list(p);
    for (size_t i = 0; i < n; i++) {
        const stretch *segment = &s->segments.slots.at[i];
        size_t end = first;
        while (end < n_blocks && blocks[end].place < segment->place + segment->size) end++;
        mti_pickle_mark(p);
        put_segment(s, segment, blocks + first, end - first);
        mti_pickle_append(p);
        first = end;
    }
}

/* The settings of an allocator that nobody configured, or only so that its segments expand: ours
 * follows its rules. */
static void put_settings(mti_snapshot *s)
{
    mti_pickle *p = &s->pickle;
    put_key(s, "allocator_settings");
    mti_pickle_dict(p);
    put_key(s, "PYTORCH_CUDA_ALLOC_CONF");
    mti_pickle_text(p, s->expands ? "expandable_segments:True" : "");
    put_int(s, "max_split_size", -1); /* no limit */
    put_key(s, "garbage_collection_threshold");
    mti_pickle_real(p, 0);
    put_key(s, "expandable_segments");
    mti_pickle_bool(p, s->expands);
    put_key(s, "roundup_power2_divisions");
    mti_pickle_dict(p);
    mti_pickle_set(p);
    mti_pickle_set(p);
}

/* ---- the file ---- */

static void begin(mti_snapshot *s, const char *kind)
{
    mti_pickle *p = &s->pickle;
    mti_pickle_dict(p);
    put_key(s, "memtape"); /* no key of PyTorch's */
    mti_pickle_dict(p);
    put_key(s, "schema");
    mti_pickle_text(p, "memtape.snapshot/1");
    put_key(s, "device");
    mti_pickle_text(p, kind);
    put_key(s, "time");
    mti_pickle_text(p, s->clocked ? "measured" : "not measured: a microsecond for each event");
    mti_pickle_set(p);
    put_key(s, "device_traces");
    mti_pickle_list(p); /* of one device */
    mti_pickle_mark(p);
    mti_pickle_list(p);
    open_batch(s);
}

mti_snapshot *mti_snapshot_begin(const char *path, const char *kind, bool clocked)
{
    mti_snapshot *s = mti_calloc(1, sizeof *s);
    if (!s) return NULL;
    mti_file *file = mti_file_create(path);
    if (!file) {
        mti_free(s);
        return NULL;
    }
    s->clocked = clocked;
    mti_pickle_begin(&s->pickle, file);
    begin(s, kind);
    if (s->pickle.ok) return s;
    mti_snapshot_abandon(s);
    return NULL;
}

static void free_all(mti_snapshot *s)
{
    mti_hashmap_free(&s->context_at);
    mti_free(s->contexts.at);
    free_stretches(&s->blocks);
    free_stretches(&s->segments);
    mti_pickle_free(&s->pickle);
    mti_free(s);
}

mt_status mti_snapshot_end(mti_snapshot *s)
{
    mti_pickle *p = &s->pickle;
    mti_pickle_append(p); /* the last batch of entries */
    mti_pickle_append(p); /* the device */
    put_segments(s);
    put_settings(s);
    mti_pickle_set(p);
    mti_pickle_end(p);
    bool ok = p->ok;
    if (ok)
        ok = mti_file_commit(p->file);
    else
        mti_file_abandon(p->file);
    free_all(s);
    return ok ? MT_OK : mt_last_status();
}

void mti_snapshot_abandon(mti_snapshot *s)
{
    if (!s) return;
    mti_file_abandon(s->pickle.file);
    free_all(s);
}

mt_status mti_snapshot_write(const mti_timeline *t, const char *kind, const char *path)
{
    mti_snapshot *s = mti_snapshot_begin(path, kind, t->clocked);
    if (!s) return mt_last_status();
    bool ok = true;
    for (size_t i = 0, k = 0; ok && (i < t->events.n || k < t->segments.n);) {
        if (k < t->segments.n && t->segments.at[k].before <= i) {
            ok = mti_snapshot_add(s, &t->segments.at[k].event, t->segments.at[k].seconds);
            k++;
        } else {
            ok = mti_snapshot_add(s, &t->events.at[i], t->seconds.at[i]);
            i++;
        }
    }
    if (ok) return mti_snapshot_end(s);
    mti_snapshot_abandon(s);
    return mt_last_status();
}

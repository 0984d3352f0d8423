/* snapshot_write.c: events as PyTorch's memory snapshot.
 *
 * `device_traces` come first in the file, then `segments`: what is there at the end is known only
 * after the last event. Python's dictionaries have no order, so readers do not care. */
#include <stdlib.h>
#include <string.h>
#include "compare/history.h"
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
    mti_areas blocks, segments;
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

static void put_entry(mti_snapshot *s, mti_action action, const mt_mem_event *e, size_t number,
                      int64_t time_us)
{
    mti_pickle *p = &s->pickle;
    bool oom = e->kind == MT_MEM_OOM;
    mti_pickle_dict(p);
    put_key(s, "action");
    put_key(s, mti_choice_name(&mti_actions, (int)action));
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
    s->expands |= e->kind == MT_MEM_SEGMENT_MAP;
    if (number == MTI_NO_PLACE || !mti_areas_follow(&s->blocks, &s->segments, e, number))
        return s->pickle.ok = false;
    put_entry(s, mti_action_of(e->kind), e, number, time_us);
    /* A block can be used again as soon as it is freed. */
    if (e->kind == MT_MEM_FREE) put_entry(s, MTI_ACT_FREE_COMPLETED, e, number, time_us);
    return s->pickle.ok;
}

/* ---- segments ---- */

static void put_block(mti_snapshot *s, uint64_t place, size_t size, const mti_area *block)
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
static void put_blocks(mti_snapshot *s, const mti_area *segment, const mti_area *blocks, size_t n)
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

static void put_segment(mti_snapshot *s, const mti_area *segment, const mti_area *blocks, size_t n)
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
    size_t n_blocks = mti_areas_sort(&s->blocks), n = mti_areas_sort(&s->segments), first = 0;
    const mti_area *blocks = s->blocks.slots.at;
    put_key(s, "segments");
    mti_pickle_list(p);
    for (size_t i = 0; i < n; i++) {
        const mti_area *segment = &s->segments.slots.at[i];
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
    mti_areas_free(&s->blocks);
    mti_areas_free(&s->segments);
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

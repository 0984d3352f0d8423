/* timeline.c: recording events, and deriving from them who held what. */
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "memtape/device.h"
#include "measure/timeline.h"

/* ---- recording ---- */

static void note(void *user, const mt_mem_event *event)
{
    mti_timeline *t = user;
    double now = mti_now();
    if (t->lost) return;
    if (event->kind >= MT_MEM_SEGMENT_ALLOC) {
        mti_segment_event segment = {t->events.n, *event, now};
        t->lost = !MTI_PUSH(&t->segments, segment);
        return;
    }
    t->lost = !MTI_RESERVE(&t->seconds) || !MTI_PUSH(&t->events, *event);
    if (!t->lost) t->seconds.at[t->seconds.n++] = now;
}

bool mti_timeline_begin(mti_timeline *t, mt_device *device)
{
    mt_mem_stats stats;
    mt_mem_get_stats(device, &stats);
    *t = (mti_timeline){.device = device, .clocked = mt_device_has_data(device)};
    memcpy(t->before, stats.by_category, sizeof t->before);
    t->observer = mt_mem_add_observer(device, note, t);
    if (!t->observer) t->device = NULL;
    return t->observer != 0;
}

bool mti_timeline_end(mti_timeline *t)
{
    if (t->device) mt_mem_remove_observer(t->device, t->observer);
    t->device = NULL;
    return !t->lost || mti_fail_bool(MT_ERR_MEMORY, "timeline: no memory for its events");
}

void mti_timeline_mark_steady(mti_timeline *t) { t->steady = t->events.n; }

void mti_timeline_free(mti_timeline *t)
{
    if (t->device) mt_mem_remove_observer(t->device, t->observer);
    mti_free(t->events.at);
    mti_free(t->seconds.at);
    mti_free(t->segments.at);
    *t = (mti_timeline){0};
}

/* Serials count up from 1 and are dense. */
static uint64_t last_serial(const mti_timeline *t, size_t n_events)
{
    uint64_t last = 0;
    for (size_t i = 0; i < n_events && i < t->events.n; i++)
        if (t->events.at[i].serial > last) last = t->events.at[i].serial;
    return last;
}

bool mti_timeline_name(mti_timeline *t, const mt_named_tensor *params, size_t n)
{
    uint64_t last = last_serial(t, t->events.n);
    const char **names = mti_calloc((size_t)last + 1, sizeof *names);
    bool ok = names != NULL;
    for (size_t i = 0; ok && i < n; i++) {
        uint64_t serial = mt_storage_of(params[i].tensor).serial;
        if (serial <= last) ok = (names[serial] = mti_intern(params[i].name)) != NULL;
    }
    for (size_t i = 0; ok && i < t->events.n; i++) {
        mt_mem_event *e = &t->events.at[i];
        if (e->kind == MT_MEM_ALLOC && names[e->serial]) e->module = names[e->serial];
    }
    mti_free(names);
    return ok;
}

const mti_choice mti_event_kinds = {"event",
                                    MTI_NAMES("alloc", "free", "recategory", "oom", "segment_alloc",
                                              "segment_free", "segment_map", "segment_unmap")};

/* ---- totals ---- */

size_t mti_timeline_peak(const mti_timeline *t)
{
    size_t peak = t->steady < t->events.n ? t->steady : 0;
    for (size_t i = peak + 1; i < t->events.n; i++)
        if (t->events.at[i].current > t->events.at[peak].current) peak = i;
    return peak;
}

size_t mti_timeline_highest(const mti_timeline *t)
{
    size_t highest = 0;
    for (size_t i = 0; i < t->events.n; i++)
        if (t->events.at[i].current > highest) highest = t->events.at[i].current;
    return highest;
}

bool mti_timeline_refusal(const mti_timeline *t, size_t *event)
{
    for (size_t i = t->events.n; i-- > 0;)
        if (t->events.at[i].kind == MT_MEM_OOM) {
            *event = i;
            return true;
        }
    return false;
}

void mti_timeline_move(size_t by_category[MT_CATEGORY_COUNT], const mt_mem_event *e)
{
    if (e->kind == MT_MEM_ALLOC || e->kind == MT_MEM_RECATEGORY)
        by_category[e->category] += e->allocated;
    if (e->kind == MT_MEM_FREE) by_category[e->category] -= e->allocated;
    if (e->kind == MT_MEM_RECATEGORY) by_category[e->was] -= e->allocated;
}

void mti_timeline_categories(const mti_timeline *t, size_t event,
                             size_t by_category[MT_CATEGORY_COUNT])
{
    memcpy(by_category, t->before, sizeof t->before);
    for (size_t i = 0; i <= event && i < t->events.n; i++)
        mti_timeline_move(by_category, &t->events.at[i]);
}

size_t mti_timeline_most_reserved(const mti_timeline *t)
{
    size_t most = t->steady < t->events.n ? t->steady : 0;
    for (size_t i = most + 1; i < t->events.n; i++) {
        const mt_mem_event *e = &t->events.at[i], *m = &t->events.at[most];
        if (e->reserved != m->reserved ? e->reserved > m->reserved : e->current > m->current)
            most = i;
    }
    return most;
}

int mti_timeline_streams(const mti_timeline *t, size_t event, mt_stream_stats out[MT_MAX_STREAMS])
{
    int n = 0;
    for (size_t i = 0, k = 0; i <= event && i < t->events.n;) {
        bool segment = k < t->segments.n && t->segments.at[k].before <= i;
        const mt_mem_event *e = segment ? &t->segments.at[k++].event : &t->events.at[i++];
        while (n <= e->stream) out[n++] = (mt_stream_stats){0};
        mt_stream_stats *s = &out[e->stream];
        s->name = e->stream_name;
        if (e->kind == MT_MEM_ALLOC) s->allocated += e->allocated;
        if (e->kind == MT_MEM_FREE) s->allocated -= e->allocated;
        if (e->kind == MT_MEM_SEGMENT_ALLOC || e->kind == MT_MEM_SEGMENT_MAP)
            s->reserved += e->allocated;
        if (e->kind == MT_MEM_SEGMENT_FREE || e->kind == MT_MEM_SEGMENT_UNMAP)
            s->reserved -= e->allocated;
    }
    return n;
}

size_t mti_timeline_stretches(const mti_timeline *t, size_t n, mti_stretch *out)
{
    size_t n_events = t->events.n, done = 0, by_category[MT_CATEGORY_COUNT];
    if (n > n_events) n = n_events;
    memcpy(by_category, t->before, sizeof by_category);
    for (size_t k = 0; k < n; k++) {
        size_t end = n_events * (k + 1) / n, first = done;
        for (; done < end; done++) {
            const mt_mem_event *e = &t->events.at[done];
            mti_timeline_move(by_category, e);
            if (done > first && e->current <= t->events.at[out[k].event].current) continue;
            out[k].event = done;
            memcpy(out[k].by_category, by_category, sizeof by_category);
        }
    }
    return n;
}

/* ---- holders ---- */

/* A storage: the event that made it, its category now, its ledger entry. */
typedef struct life {
    const mt_mem_event *made; /* NULL: not allocated */
    mt_category category;
    size_t entry; /* of the ledger, from 1 on; 0: none */
} life;

const char *mti_number_in(const char *path)
{
    for (const char *at = path; at; at = strchr(at, '.') ? strchr(at, '.') + 1 : NULL)
        if (isdigit((unsigned char)*at)) return at;
    return path + strlen(path);
}

int mti_compare_paths(const char *a, const char *b)
{
    const char *x = mti_number_in(a), *y = mti_number_in(b);
    size_t m = (size_t)(x - a), n = (size_t)(y - b);
    int order = strncmp(a, b, m < n ? m : n);
    if (order || m != n) return order ? order : m < n ? -1 : 1;
    return strcmp(x + strspn(x, "0123456789"), y + strspn(y, "0123456789"));
}

/* 0 if a and b are alike, which includes the size of each storage. */
static int compare_holders(const mti_holder *a, const mti_holder *b)
{
    int order = mti_compare_paths(a->module, b->module);
    if (!order) order = strcmp(a->op, b->op);
    if (!order) order = (int)a->category - (int)b->category;
    if (!order) order = (int)a->kept - (int)b->kept;
    if (!order && a->kept) order = strcmp(a->saver.op, b->saver.op);
    if (!order && a->kept) order = (int)a->saver.role - (int)b->saver.role;
    if (!order && a->kept) order = strcmp(a->saver.argument, b->saver.argument);
    return order ? order : (a->each > b->each) - (a->each < b->each);
}

static int most_first(const void *a, const void *b)
{
    const mti_holder *x = a, *y = b;
    if (x->bytes != y->bytes) return x->bytes < y->bytes ? 1 : -1;
    return compare_holders(x, y);
}

/* An array of *n lives, indexed by serial. */
static life *lives_until(const mti_timeline *t, size_t event, size_t *n)
{
    *n = (size_t)last_serial(t, event + 1) + 1;
    life *lives = mti_calloc(*n, sizeof *lives);
    for (size_t i = 0; lives && i <= event && i < t->events.n; i++) {
        const mt_mem_event *e = &t->events.at[i];
        life *l = &lives[e->serial];
        if (e->kind == MT_MEM_ALLOC) l->made = e;
        if (e->kind == MT_MEM_FREE) l->made = NULL;
        if (e->kind != MT_MEM_OOM) l->category = e->category;
    }
    return lives;
}

static bool note_savers(life *lives, size_t n, const mt_ledger *ledger)
{
    for (size_t i = 0; ledger && i < mt_ledger_count(ledger); i++) {
        mt_ledger_entry e;
        if (mt_ledger_get(ledger, i, &e) != MT_OK) return false;
        if (e.storage < n) lives[e.storage].entry = i + 1;
    }
    return true;
}

/* Makes a holder of one storage. */
static bool holder_of(const life *l, const mt_ledger *ledger, mti_holder *out)
{
    const mt_mem_event *e = l->made;
    const char *number = mti_number_in(e->module);
    mt_ledger_entry entry = {0};
    if (l->entry && mt_ledger_get(ledger, l->entry - 1, &entry) != MT_OK) return false;
    *out = (mti_holder){.op = e->op,
                        .phase = e->phase,
                        .category = l->category,
                        .bytes = e->allocated,
                        .each = e->requested,
                        .n = 1,
                        .kept = l->entry > 0,
                        .saver = entry.saver,
                        .first = *number ? strtol(number, NULL, 10) : -1};
    out->last = out->first;
    snprintf(out->module, sizeof out->module, "%s", e->module);
    return true;
}

/* Equal for holders that are alike. */
static uint64_t hash_of(const mti_holder *h)
{
    const char *number = mti_number_in(h->module), *rest = number + strspn(number, "0123456789");
    uint64_t hash = mti_hash_bytes(MTI_HASH_BEGIN, h->module, (size_t)(number - h->module));
    hash = mti_hash_bytes(hash, rest, strlen(rest));
    return mti_hash_bytes(hash, &h->each, sizeof h->each);
}

/* Adds to the holder that is alike, or appends. map: from hashes to indices of out. */
static bool add_holder(mti_holders *out, const mti_holder *h, mti_hashmap *map)
{
    uint64_t hash = hash_of(h);
    size_t probe = 0, i;
    while ((i = mti_hashmap_next(map, hash, &probe)) != MTI_NO_PLACE)
        if (!compare_holders(&out->at[i], h)) break;
    if (i == MTI_NO_PLACE) return mti_hashmap_add(map, hash, out->n) && MTI_PUSH(out, *h);
    mti_holder *sum = &out->at[i];
    sum->bytes += h->bytes, sum->n++;
    if (h->first < sum->first) sum->first = h->first;
    if (h->last > sum->last) sum->last = h->last;
    return true;
}

const char *mti_name_all(char *buf, size_t size, const char *path, long first, long last)
{
    const char *number = mti_number_in(path);
    if (first == last || !*number)
        snprintf(buf, size, "%s", path);
    else
        snprintf(buf, size, "%.*s%ld-%ld%s", (int)(number - path), path, first, last,
                 number + strspn(number, "0123456789"));
    return buf;
}

static void name_all(mti_holder *h)
{
    char name[sizeof h->module];
    memcpy(h->module, mti_name_all(name, sizeof name, h->module, h->first, h->last), sizeof name);
}

bool mti_timeline_holders(const mti_timeline *t, size_t event, const mt_ledger *ledger,
                          mti_holders *out)
{
    size_t n;
    life *lives = lives_until(t, event, &n);
    mti_hashmap map = {0};
    *out = (mti_holders){0};
    bool ok = lives && note_savers(lives, n, ledger);
    mti_holder one;
    for (size_t i = 0; ok && i < n; i++)
        if (lives[i].made) ok = holder_of(&lives[i], ledger, &one) && add_holder(out, &one, &map);
    mti_hashmap_free(&map);
    mti_free(lives);
    for (size_t i = 0; ok && i < out->n; i++) name_all(&out->at[i]);
    if (ok && out->n) qsort(out->at, out->n, sizeof *out->at, most_first);
    return ok;
}

void mti_holders_free(mti_holders *h)
{
    mti_free(h->at);
    *h = (mti_holders){0};
}

/* history.c: a prediction's events as a history; sums over any history. */
#include <stdlib.h>
#include <string.h>
#include "compare/history.h"

const mti_choice mti_actions = {"action", MTI_NAMES("alloc", "free_requested", "free_completed",
                                                    "oom", "segment_alloc", "segment_free",
                                                    "segment_map", "segment_unmap")};

mti_action mti_action_of(mt_mem_event_kind kind)
{
    switch (kind) {
    case MT_MEM_ALLOC: return MTI_ACT_ALLOC;
    case MT_MEM_FREE: return MTI_ACT_FREE_REQUESTED;
    case MT_MEM_OOM: return MTI_ACT_OOM;
    case MT_MEM_SEGMENT_ALLOC: return MTI_ACT_SEGMENT_ALLOC;
    case MT_MEM_SEGMENT_FREE: return MTI_ACT_SEGMENT_FREE;
    case MT_MEM_SEGMENT_MAP: return MTI_ACT_SEGMENT_MAP;
    case MT_MEM_SEGMENT_UNMAP: return MTI_ACT_SEGMENT_UNMAP;
    default: return MTI_ACT_OTHER;
    }
}

void mti_history_free(mti_history *h)
{
    for (size_t i = 0; i < h->texts.n; i++) mti_free(h->texts.at[i]);
    mti_free(h->texts.at);
    mti_free(h->events.at);
    mti_free(h->blocks.at);
    mti_free(h->segments.at);
    mti_free(h->contexts.at);
    mti_free(h->streams.at);
    *h = (mti_history){0};
}

/* ---- of a prediction ---- */

/* What is built along the events. */
typedef struct building {
    mti_history *history;
    mti_areas blocks, segments;
    mti_hashmap contexts; /* a hash of two addresses -> a number */
} building;

/* Names are interned, so their addresses tell them apart. */
static bool find_context(building *b, const mt_mem_event *e, size_t *number)
{
    mti_history *h = b->history;
    const mti_context c = {e->op, e->module};
    const uint64_t hash = mti_hash_bytes(MTI_HASH_BEGIN, &c, sizeof c);
    size_t probe = 0;
    while ((*number = mti_hashmap_next(&b->contexts, hash, &probe)) != MTI_NO_PLACE)
        if (h->contexts.at[*number].op == c.op && h->contexts.at[*number].where == c.where)
            return true;
    *number = h->contexts.n;
    return mti_hashmap_add(&b->contexts, hash, *number) && MTI_PUSH(&h->contexts, c);
}

static bool follow(building *b, const mt_mem_event *e)
{
    mti_history *h = b->history;
    size_t context;
    if (e->kind == MT_MEM_RECATEGORY) return true;
    if (!find_context(b, e, &context) || !mti_areas_follow(&b->blocks, &b->segments, e, context))
        return false;
    for (int64_t next = (int64_t)h->streams.n; next <= e->stream; next++)
        if (!MTI_PUSH(&h->streams, next)) return false;
    mti_action_event event = {mti_action_of(e->kind), e->place,
                              e->kind >= MT_MEM_SEGMENT_ALLOC ? e->allocated : e->requested,
                              context};
    if (!MTI_PUSH(&h->events, event)) return false;
    event.action = MTI_ACT_FREE_COMPLETED; /* at once: no other stream uses it */
    return e->kind != MT_MEM_FREE || MTI_PUSH(&h->events, event);
}

static bool follow_all(building *b, const mti_timeline *t)
{
    for (size_t i = 0, k = 0; i < t->events.n || k < t->segments.n;) {
        const bool segment = k < t->segments.n && t->segments.at[k].before <= i;
        if (!follow(b, segment ? &t->segments.at[k++].event : &t->events.at[i++])) return false;
    }
    return true;
}

bool mti_history_of(mti_history *h, const mti_timeline *t)
{
    building b = {.history = h};
    *h = (mti_history){0};
    bool ok = MTI_PUSH(&h->contexts, ((mti_context){"", ""})) && follow_all(&b, t);
    const size_t n_blocks = mti_areas_sort(&b.blocks), n = mti_areas_sort(&b.segments);
    for (size_t i = 0; ok && i < n_blocks; i++) ok = MTI_PUSH(&h->blocks, b.blocks.slots.at[i]);
    for (size_t i = 0; ok && i < n; i++) ok = MTI_PUSH(&h->segments, b.segments.slots.at[i]);
    mti_hashmap_free(&b.contexts);
    mti_areas_free(&b.blocks);
    mti_areas_free(&b.segments);
    return ok;
}

/* ---- sums ---- */

/* Whatever a file says, sums stay below this, so that their differences do not overflow. */
#define MOST ((size_t)1 << 62)

static void add(size_t *sum, size_t n) { *sum = n > MOST - *sum ? MOST : *sum + n; }
static void subtract(size_t *sum, size_t n) { *sum = n > *sum ? 0 : *sum - n; }

/* As far as a request tells: rests of larger blocks that were not split off are not known. */
static size_t rounded(size_t n) { return n > MOST ? MOST : (n + 511) / 512 * 512; }

mti_memory_sums mti_history_end(const mti_history *h)
{
    mti_memory_sums s = {0};
    for (size_t i = 0; i < h->segments.n; i++) add(&s.reserved, h->segments.at[i].size);
    for (size_t i = 0; i < h->blocks.n; i++) {
        const mti_area *b = &h->blocks.at[i];
        add(&s.active, b->size);
        if (!b->pending) add(&s.allocated, b->size), add(&s.requested, b->requested);
    }
    return s;
}

/* From after the event to before it. */
static void undo(mti_memory_sums *s, const mti_action_event *e)
{
    switch (e->action) {
    case MTI_ACT_ALLOC:
        subtract(&s->requested, e->size);
        subtract(&s->allocated, rounded(e->size));
        subtract(&s->active, rounded(e->size));
        break;
    case MTI_ACT_FREE_REQUESTED:
        add(&s->requested, e->size);
        add(&s->allocated, rounded(e->size));
        break;
    case MTI_ACT_FREE_COMPLETED: add(&s->active, rounded(e->size)); break;
    case MTI_ACT_SEGMENT_ALLOC:
    case MTI_ACT_SEGMENT_MAP: subtract(&s->reserved, e->size); break;
    case MTI_ACT_SEGMENT_FREE:
    case MTI_ACT_SEGMENT_UNMAP: add(&s->reserved, e->size); break;
    default: break;
    }
}

static void raise_to(size_t *most, size_t n)
{
    if (n > *most) *most = n;
}

/* Backwards from the end, which is known whole, whenever recording began. */
mti_memory_sums mti_history_peak(const mti_history *h, size_t *n_events)
{
    mti_memory_sums now = mti_history_end(h), peak;
    now.allocated = now.active = 0;
    for (size_t i = 0; i < h->blocks.n; i++) {
        const mti_area *b = &h->blocks.at[i];
        add(&now.active, rounded(b->requested));
        if (!b->pending) add(&now.allocated, rounded(b->requested));
    }
    peak = now;
    *n_events = h->events.n;
    for (size_t i = h->events.n; i-- > 0;) {
        undo(&now, &h->events.at[i]);
        if (now.requested > peak.requested) *n_events = i;
        raise_to(&peak.requested, now.requested);
        raise_to(&peak.allocated, now.allocated);
        raise_to(&peak.active, now.active);
        raise_to(&peak.reserved, now.reserved);
    }
    return peak;
}

/* Adds one segment, whose blocks are [first, end). */
static void add_segment(mti_stream_use *use, const mti_history *h, const mti_area *segment,
                        size_t first, size_t end)
{
    size_t used = 0;
    for (size_t i = first; i < end; i++) {
        const mti_area *b = &h->blocks.at[i];
        const size_t asked = b->requested < b->size ? b->requested : b->size;
        add(&used, b->size);
        add(b->pending ? &use->pending : &use->requested, b->pending ? b->size : asked);
        if (!b->pending) add(&use->rounding, b->size - asked);
    }
    const size_t left = segment->size > used ? segment->size - used : 0;
    add(&use->reserved, segment->size);
    add(used ? &use->split : &use->whole, left);
    use->n_segments++;
    use->n_free += !used;
}

/* Adds the i-th segment; *first: its first block, and then the next one's. */
static void add_next(mti_stream_use *use, const mti_history *h, size_t i, size_t *first)
{
    const mti_area *s = &h->segments.at[i];
    size_t end = *first;
    while (end < h->blocks.n && h->blocks.at[end].place - s->place < s->size) end++;
    add_segment(use, h, s, *first, end);
    *first = end;
}

mti_stream_use mti_history_use(const mti_history *h, int stream)
{
    mti_stream_use use = {0}, others = {0};
    for (size_t i = 0, first = 0; i < h->segments.n; i++)
        add_next(stream < 0 || h->segments.at[i].stream == stream ? &use : &others, h, i, &first);
    return use;
}

/* ---- segments side by side ---- */

int64_t mti_bytes_more(size_t measured, size_t predicted, size_t size)
{
    const int64_t n = (int64_t)measured - (int64_t)predicted;
    int64_t bytes;
    if (!__builtin_mul_overflow(n, (int64_t)size, &bytes) && bytes > -INT64_MAX) return bytes;
    return n < 0 ? -INT64_MAX : INT64_MAX;
}

static bool add_rows(mti_segment_rows *out, const mti_history *h, bool measured)
{
    for (size_t i = 0, first = 0; i < h->segments.n; i++) {
        mti_stream_use use = {0};
        add_next(&use, h, i, &first);
        const size_t size = h->segments.at[i].size, left = use.split + use.whole;
        const mti_segment_row row = {size, measured, !measured, measured ? left : 0,
                                     measured ? 0 : left};
        if (!MTI_PUSH(out, row)) return false;
    }
    return true;
}

static int largest_first(const void *a, const void *b)
{
    const mti_segment_row *x = a, *y = b;
    return x->size < y->size ? 1 : -(x->size > y->size);
}

bool mti_segments_match(mti_segment_rows *out, const mti_history *measured,
                        const mti_history *predicted)
{
    size_t n = 0;
    *out = (mti_segment_rows){0};
    if (!add_rows(out, measured, true) || !add_rows(out, predicted, false)) return false;
    if (out->n) qsort(out->at, out->n, sizeof *out->at, largest_first);
    for (size_t i = 0; i < out->n; i++) {
        const mti_segment_row one = out->at[i];
        if (!n || out->at[n - 1].size != one.size) out->at[n++] = (mti_segment_row){one.size};
        mti_segment_row *sum = &out->at[n - 1];
        sum->measured += one.measured, sum->predicted += one.predicted;
        add(&sum->measured_free, one.measured_free), add(&sum->predicted_free, one.predicted_free);
    }
    out->n = n;
    return true;
}

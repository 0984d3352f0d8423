/* report_read.c: what a report lists is asked of the allocator again, which gives the same blocks
 * and segments. */
#include <string.h>
#include "memtape/device.h"
#include "memtape/tensor.h"
#include "compare/report_read.h"
#include "files/files.h"
#include "files/json_text.h"

#define LONGEST_REPORT ((size_t)2 << 30)
#define LARGE_SEGMENT  ((size_t)20 << 20) /* of requests up to 10 MiB */
#define SCHEMA         "memtape.profile/1"

static bool is_profile(const json_t *root)
{
    const char *schema = json_string_value(json_object_get(root, "schema"));
    return schema && !strcmp(schema, SCHEMA);
}

bool mti_is_report(const char *path)
{
    const size_t n = strlen(path);
    if (n < 5 || strcmp(path + n - 5, ".json") != 0) return false;
    json_t *root = mti_json_file(path, LONGEST_REPORT);
    const bool is = is_profile(root);
    json_decref(root);
    mt_clear_error();
    return is;
}

/* ---- events ---- */

/* Where an event happened: interned. */
typedef struct place {
    const char *op, *module, *phase;
} place;

typedef struct replay {
    const char *path;
    mt_device *device;
    size_t capacity; /* of the device; 0: no limit */
    bool ran_out;    /* a request was refused: what follows never was */
    mti_hashmap at;  /* a storage's serial -> its tensor */
    MTI_VEC(mt_tensor *) tensors;
    MTI_VEC(place) places; /* one for each event of the timeline */
} replay;

static bool bad(const replay *r, size_t i, const char *what)
{
    return mti_fail_bool(MT_ERR_FORMAT, "%s: timeline[%zu]: %s", r->path, i, what);
}

static bool take_place(replay *r, const json_t *event)
{
    place p;
    const char **names[] = {&p.op, &p.module, &p.phase};
    static const char *const keys[] = {"op", "module", "phase"};
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        const char *text = json_string_value(json_object_get(event, keys[i]));
        *names[i] = mti_intern(text ? text : "");
        if (!*names[i]) return false;
    }
    return MTI_PUSH(&r->places, p);
}

/* On the stream that the event names. */
static mt_tensor *requested(const replay *r, const json_t *event, int64_t n)
{
    const char *stream = json_string_value(json_object_get(event, "stream"));
    if (!stream) return mt_empty(r->device, MT_U8, 1, &n);
    mt_stream_scope scope;
    if (mt_mem_stream_begin(&scope, r->device, stream) != MT_OK) return NULL;
    mt_tensor *t = mt_empty(r->device, MT_U8, 1, &n);
    mt_mem_stream_end(&scope);
    return t;
}

/* Whether the device's capacity was in the way of n bytes, not the host's memory: the largest
 * segment for a smaller request would not fit, either. */
static bool is_full(const replay *r, int64_t n)
{
    mt_mem_stats now;
    mt_mem_get_stats(r->device, &now);
    return r->capacity && now.ooms &&
           now.reserved.current + (size_t)n + LARGE_SEGMENT > r->capacity;
}

static bool ask(replay *r, const json_t *event, size_t i, uint64_t serial)
{
    const int64_t n = json_integer_value(json_object_get(event, "bytes"));
    if (n < 1) return bad(r, i, "\"bytes\" is not a number above 0");
    mt_tensor *t = requested(r, event, n);
    if (!t && is_full(r, n)) {
        mt_clear_error();
        r->ran_out = true;
        return take_place(r, event);
    }
    if (t && MTI_PUSH(&r->tensors, t))
        return mti_hashmap_add(&r->at, serial, r->tensors.n - 1) && take_place(r, event);
    mt_release(t);
    return false;
}

static bool give_back(replay *r, const json_t *event, size_t i, uint64_t serial)
{
    const size_t at = mti_hashmap_find(&r->at, serial);
    if (at == MTI_NO_PLACE) return bad(r, i, "frees a storage that is not there");
    mt_release(r->tensors.at[at]);
    r->tensors.at[at] = NULL;
    mti_hashmap_remove(&r->at, serial, at);
    return take_place(r, event);
}

static bool follow(replay *r, const json_t *event, size_t i)
{
    const char *kind = json_string_value(json_object_get(event, "kind"));
    const json_int_t serial = json_integer_value(json_object_get(event, "storage"));
    if (!kind || serial < 0) return bad(r, i, "is not an event");
    if (!strcmp(kind, "alloc")) return ask(r, event, i, (uint64_t)serial);
    return strcmp(kind, "free") != 0 || give_back(r, event, i, (uint64_t)serial);
}

static bool follow_all(replay *r, mti_timeline *t, const json_t *events, size_t steady)
{
    bool ok = true;
    for (size_t i = 0; ok && !r->ran_out && i < json_array_size(events); i++) {
        if (i == steady) mti_timeline_mark_steady(t);
        ok = follow(r, json_array_get(events, i), i);
    }
    ok = mti_timeline_end(t) && ok;
    for (size_t i = 0; ok && i < t->events.n && i < r->places.n; i++) {
        const place *p = &r->places.at[i];
        mt_mem_event *e = &t->events.at[i];
        e->op = p->op, e->module = p->module, e->phase = p->phase;
    }
    return ok;
}

/* ---- figures ---- */

static void raise_to(size_t *most, const json_t *of, const char *key)
{
    const json_int_t n = json_integer_value(json_object_get(of, key));
    if (n > 0 && (size_t)n > *most) *most = (size_t)n;
}

/* All phases as one. */
static mti_phases together(const json_t *phases)
{
    mti_phases out = {.n = 1};
    mti_phase *p = &out.at[0];
    for (size_t i = 0; i < json_array_size(phases); i++) {
        const json_t *phase = json_array_get(phases, i);
        raise_to(&p->peak, phase, "peak");
        raise_to(&p->requested_peak, phase, "requested_peak");
        raise_to(&p->reserved_peak, phase, "reserved_peak");
        p->requested = p->allocated = p->reserved = 0;
        raise_to(&p->requested, phase, "requested");
        raise_to(&p->allocated, phase, "allocated");
        raise_to(&p->reserved, phase, "reserved");
    }
    return out;
}

static void take_figures(mti_measurement *m, const json_t *root)
{
    const json_t *steady = json_object_get(root, "steady");
    m->phases = together(json_object_get(root, "phases"));
    m->steady.phases = together(json_object_get(steady, "phases"));
    raise_to(&m->steady.peak, steady, "peak");
    raise_to(&m->steady.requested, steady, "requested");
    raise_to(&m->steady.reserved, steady, "reserved");
}

static char *kind_of(const json_t *root)
{
    const json_t *model = json_object_get(root, "model");
    const char *preset = json_string_value(json_object_get(model, "preset"));
    const char *kind = json_string_value(json_object_get(model, "kind"));
    return mti_strdup(preset ? preset : kind ? kind : "model");
}

static bool replay_all(replay *r, mti_measurement *m, const json_t *root)
{
    const json_t *steady = json_object_get(root, "steady");
    const json_t *events = json_object_get(root, "timeline");
    if (!is_profile(root))
        return mti_fail_bool(MT_ERR_FORMAT, "%s: not a report of a profile", r->path);
    if (!json_is_array(events) || !json_is_object(steady))
        return mti_fail_bool(MT_ERR_FORMAT,
                             "%s: lists no events of a training step; give "
                             "memtape.torch.profile(..., timeline=True) a batch and an optimizer, "
                             "or memtape profile --timeline --json %s",
                             r->path, r->path);
    const json_int_t begins = json_integer_value(json_object_get(steady, "event"));
    r->device = mt_device_open("meta");
    const bool expands = json_is_object(json_object_get(root, "expandable_segments"));
    if (r->device) mt_mem_set_capacity(r->device, r->capacity);
    return r->device &&
           (!expands || mt_mem_set_expandable(r->device, &(mt_expandable){0}) == MT_OK) &&
           mti_timeline_begin(&m->timeline, r->device) &&
           follow_all(r, &m->timeline, events, begins > 0 ? (size_t)begins : 0);
}

bool mti_report_read(mti_measurement *m, char **kind, const char *path, size_t capacity)
{
    replay r = {.path = path, .capacity = capacity};
    *m = (mti_measurement){0};
    *kind = NULL;
    json_t *root = mti_json_file(path, LONGEST_REPORT);
    bool ok = root && replay_all(&r, m, root) && (*kind = kind_of(root));
    if (ok) take_figures(m, root);
    mti_timeline_end(&m->timeline);
    for (size_t i = 0; i < r.tensors.n; i++) mt_release(r.tensors.at[i]);
    mti_free(r.tensors.at);
    mti_free(r.places.at);
    mti_hashmap_free(&r.at);
    mt_device_release(r.device);
    json_decref(root);
    return ok;
}

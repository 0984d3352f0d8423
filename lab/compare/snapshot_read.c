/* snapshot_read.c: reading what torch.cuda.memory._dump_snapshot writes.
 *
 * The layout is that of torch/cuda/memory.py (class Snapshot) and
 * torch/csrc/cuda/memory_snapshot.cpp in PyTorch 2.13. Older ones are read, too: blocks without
 * addresses or with their frames in "history" (2.0), and a bare list of segments, which is what
 * torch.cuda.memory_snapshot() returns. */
#include <stdlib.h>
#include <string.h>
#include "compare/history.h"
#include "compare/unpickle.h"

#define MOST_BYTES ((int64_t)1 << 46) /* no device has so many */

typedef struct reader {
    const char *path;
    mti_unpickled pickled;
    mti_history *history;
    mti_hashmap contexts; /* the number of a list of frames -> that of a context */
    bool by_memtape;
} reader;

static bool bad(const reader *r, const char *what)
{
    return mti_fail_bool(MT_ERR_FORMAT, "%s: not a memory snapshot of PyTorch: %s", r->path, what);
}

/* ---- values ---- */

static const mti_py_value *get(const reader *r, const mti_py_value *dict, const char *key)
{
    return mti_py_get(&r->pickled, dict, key);
}

/* `otherwise`: what an absent key stands for; negative: it has to be there. */
static bool take_int(const reader *r, const mti_py_value *dict, const char *key, int64_t otherwise,
                     int64_t most, int64_t *out)
{
    const mti_py_value *value = get(r, dict, key);
    *out = otherwise;
    if (!value && otherwise >= 0) return true;
    if (!value || (value->kind != MTI_PY_INT && value->kind != MTI_PY_BOOL) || value->i < 0 ||
        value->i > most)
        return mti_fail_bool(MT_ERR_FORMAT,
                             "%s: not a memory snapshot of PyTorch: \"%s\" %s; need a whole number "
                             "of 0 to %lld",
                             r->path, key, value ? "has another value" : "is missing",
                             (long long)most);
    *out = value->i;
    return true;
}

static bool take_size(const reader *r, const mti_py_value *dict, const char *key, int64_t otherwise,
                      size_t *out)
{
    int64_t n;
    bool ok = take_int(r, dict, key, otherwise, MOST_BYTES, &n);
    *out = (size_t)n;
    return ok;
}

/* ---- frames ---- */

static mti_py_value text_of(const reader *r, const mti_py_value *frame, const char *key)
{
    const mti_py_value *value = get(r, frame, key);
    return value && value->kind == MTI_PY_TEXT ? *value
                                               : (mti_py_value){.kind = MTI_PY_TEXT, .text = ""};
}

static bool holds(mti_py_value text, const char *part)
{
    const size_t n = strlen(part);
    for (size_t i = 0; i + n <= text.n; i++)
        if (!memcmp(text.text + i, part, n)) return true;
    return false;
}

/* From behind the last `c`. */
static mti_py_value after_last(mti_py_value text, char c)
{
    for (uint32_t i = text.n; i > 0; i--)
        if (text.text[i - 1] == c)
            return (mti_py_value){.kind = MTI_PY_TEXT, .n = text.n - i, .text = text.text + i};
    return text;
}

static bool is_python(mti_py_value file)
{
    return file.n > 3 && !memcmp(file.text + file.n - 3, ".py", 3);
}

/* A copy that the history owns. */
static const char *own(reader *r, const char *text)
{
    char *copy = mti_strdup(text);
    if (!copy) return NULL;
    if (MTI_PUSH(&r->history->texts, copy)) return copy;
    mti_free(copy);
    return NULL;
}

/* What memtape writes: the op in its module, or, outside of all ops, the module alone. */
static void name_by_memtape(const reader *r, const mti_py_list *frames, char op[128],
                            char where[256])
{
    const mti_py_value file = text_of(r, &frames->at[0], "filename"),
                       name = text_of(r, &frames->at[0], "name"), last = after_last(file, '.'),
                       next = frames->n > 1 ? text_of(r, &frames->at[1], "filename") : last;
    if (mti_py_is(&file, "phase")) return; /* outside of all modules */
    const bool in_op = next.n == file.n && !memcmp(next.text, file.text, file.n);
    const bool module = last.n == name.n && !memcmp(last.text, name.text, name.n);
    snprintf(where, 256, "%.*s", (int)(file.n < 255 ? file.n : 255), file.text);
    if (in_op || !module) snprintf(op, 128, "%.*s", (int)(name.n < 127 ? name.n : 127), name.text);
}

/* PyTorch's: the innermost function of Python, by its file's name where it is called "forward"; and
 * the innermost line outside of PyTorch. */
static void name_by_torch(const reader *r, const mti_py_list *frames, char op[128], char where[256])
{
    for (size_t i = 0; i < frames->n; i++) {
        const mti_py_value file = text_of(r, &frames->at[i], "filename"),
                           base = after_last(file, '/');
        mti_py_value name = text_of(r, &frames->at[i], "name");
        int64_t line;
        if (!is_python(file) && i + 1 < frames->n) continue;
        if (!*op) {
            if (mti_py_is(&name, "forward") && base.n > 3)
                name = (mti_py_value){.n = base.n - 3, .text = base.text};
            snprintf(op, 128, "%.*s", (int)(name.n < 127 ? name.n : 127), name.text);
        }
        if (*where && holds(file, "/torch/")) continue;
        if (!take_int(r, &frames->at[i], "line", 0, INT64_MAX, &line)) mt_clear_error();
        snprintf(where, 256, "%.*s:%lld", (int)(base.n < 200 ? base.n : 200), base.text,
                 (long long)line);
        if (!holds(file, "/torch/")) return;
    }
}

/* The number of the context that a list of frames is; the lists are shared. */
static bool context_of(reader *r, const mti_py_value *frames, size_t *number)
{
    char op[128] = "", where[256] = "";
    const mti_py_list *list = mti_py_items(&r->pickled, frames);
    *number = 0;
    if (!list->n) return true;
    *number = mti_hashmap_find(&r->contexts, frames->list);
    if (*number != MTI_NO_PLACE) return true;
    if (r->by_memtape)
        name_by_memtape(r, list, op, where);
    else
        name_by_torch(r, list, op, where);
    *number = r->history->contexts.n;
    const mti_context c = {own(r, op), own(r, where)};
    return c.op && c.where && MTI_PUSH(&r->history->contexts, c) &&
           mti_hashmap_add(&r->contexts, frames->list, *number);
}

/* ---- segments and blocks ---- */

/* The stream's number; PyTorch's is an address, 0 that of the default one. */
static bool stream_of(reader *r, const mti_py_value *dict, int *stream)
{
    int64_t id;
    mti_history *h = r->history;
    if (!take_int(r, dict, "stream", 0, INT64_MAX, &id)) return false;
    for (*stream = 0; (size_t)*stream < h->streams.n; ++*stream)
        if (h->streams.at[*stream] == id) return true;
    return h->streams.n < 1024 ? MTI_PUSH(&h->streams, id) : bad(r, "more than 1024 streams");
}

/* Layouts before 2.1 have the bytes asked for and the frames in the first of "history". */
static bool add_block(reader *r, const mti_py_value *block, mti_area *b)
{
    const mti_py_list *past = mti_py_items(&r->pickled, get(r, block, "history"));
    const mti_py_value *from = past->n ? &past->at[0] : block, *state = get(r, block, "state");
    const char *asked = past->n ? "real_size" : "requested_size";
    if (!take_size(r, block, "size", -1, &b->size)) return false;
    if (mti_py_is(state, "inactive")) return true;
    b->pending =
        mti_py_is(state, "active_pending_free") || mti_py_is(state, "active_awaiting_free");
    if (!b->pending && !mti_py_is(state, "active_allocated"))
        return bad(r, "the state of a block is none of active_allocated, active_pending_free, "
                      "active_awaiting_free and inactive");
    return take_size(r, from, asked, (int64_t)b->size, &b->requested) &&
           context_of(r, get(r, from, "frames"), &b->context) && MTI_PUSH(&r->history->blocks, *b);
}

static bool add_segment(reader *r, const mti_py_value *segment)
{
    const mti_py_list *blocks = mti_py_items(&r->pickled, get(r, segment, "blocks"));
    const mti_py_value *expandable = get(r, segment, "is_expandable");
    mti_area s = {.large = mti_py_is(get(r, segment, "segment_type"), "large"),
                  .expandable = expandable && expandable->kind == MTI_PY_BOOL && expandable->i};
    int64_t address;
    if (!take_int(r, segment, "address", -1, INT64_MAX - MOST_BYTES, &address) ||
        !take_size(r, segment, "total_size", -1, &s.size) || !stream_of(r, segment, &s.stream))
        return false;
    s.place = (uint64_t)address;
    size_t used = 0;
    for (size_t i = 0; i < blocks->n; i++) {
        mti_area b = {.place = s.place + used, .stream = s.stream};
        if (!add_block(r, &blocks->at[i], &b)) return false;
        if (b.size > s.size - used) return bad(r, "the blocks of a segment are more than it has");
        used += b.size;
    }
    return MTI_PUSH(&r->history->segments, s);
}

/* The device that reserves most; the number of others that reserve something. */
static bool choose_device(reader *r, const mti_py_list *segments)
{
    enum { MOST_DEVICES = 1024 };
    size_t reserved[MOST_DEVICES] = {0};
    mti_history *h = r->history;
    for (size_t i = 0; i < segments->n; i++) {
        int64_t device;
        size_t n;
        if (segments->at[i].kind != MTI_PY_DICT) return bad(r, "a segment is not a dictionary");
        if (!take_int(r, &segments->at[i], "device", 0, MOST_DEVICES - 1, &device) ||
            !take_size(r, &segments->at[i], "total_size", -1, &n))
            return false;
        reserved[device] += n;
    }
    for (int d = 0; d < MOST_DEVICES; d++) {
        h->other_devices += reserved[d] > 0;
        if (reserved[d] > reserved[h->device]) h->device = d;
    }
    if (h->other_devices) h->other_devices--;
    return true;
}

static bool read_segments(reader *r, const mti_py_value *list)
{
    const mti_py_list *segments = mti_py_items(&r->pickled, list);
    mti_history *h = r->history;
    if (!list || list->kind != MTI_PY_LIST) return bad(r, "it has no list \"segments\"");
    if (!choose_device(r, segments)) return false;
    for (size_t i = 0; i < segments->n; i++) {
        int64_t device;
        if (!take_int(r, &segments->at[i], "device", 0, INT64_MAX, &device)) return false;
        if (device == h->device && !add_segment(r, &segments->at[i])) return false;
    }
    if (h->segments.n)
        qsort(h->segments.at, h->segments.n, sizeof *h->segments.at, mti_area_by_place);
    if (h->blocks.n) qsort(h->blocks.at, h->blocks.n, sizeof *h->blocks.at, mti_area_by_place);
    return true;
}

/* ---- the trace ---- */

static bool add_event(reader *r, const mti_py_value *entry)
{
    int64_t place;
    mti_action_event e = {.action = MTI_ACT_OTHER};
    const mti_py_value *action = get(r, entry, "action");
    if (!action || action->kind != MTI_PY_TEXT) return bad(r, "an entry of a trace has no action");
    for (int i = 0; i < mti_actions.n; i++)
        if (mti_py_is(action, mti_actions.names[i])) e.action = (mti_action)i;
    if (e.action == MTI_ACT_OTHER || e.action == MTI_ACT_OOM) return true;
    if (!take_int(r, entry, "addr", -1, INT64_MAX, &place) ||
        !take_size(r, entry, "size", -1, &e.size) ||
        !context_of(r, get(r, entry, "frames"), &e.context))
        return false;
    e.place = (uint64_t)place;
    return MTI_PUSH(&r->history->events, e);
}

static bool read_trace(reader *r, const mti_py_value *traces)
{
    const mti_py_list *all = mti_py_items(&r->pickled, traces);
    if ((size_t)r->history->device >= all->n) return true; /* nothing was recorded */
    const mti_py_list *trace = mti_py_items(&r->pickled, &all->at[r->history->device]);
    for (size_t i = 0; i < trace->n; i++)
        if (!add_event(r, &trace->at[i])) return false;
    return true;
}

static bool read_all(reader *r)
{
    const mti_py_value *root = &r->pickled.root;
    const bool bare = root->kind == MTI_PY_LIST;
    if (!bare && root->kind != MTI_PY_DICT) return bad(r, "it is neither a dictionary nor a list");
    r->by_memtape = get(r, root, "memtape");
    return MTI_PUSH(&r->history->contexts, ((mti_context){"", "no recorded place"})) &&
           MTI_PUSH(&r->history->streams, 0) &&
           read_segments(r, bare ? root : get(r, root, "segments")) &&
           (bare || read_trace(r, get(r, root, "device_traces")));
}

bool mti_history_read(mti_history *h, const char *path, const void *bytes, size_t n)
{
    reader r = {.path = path, .history = h};
    *h = (mti_history){0};
    bool ok = mti_unpickle(&r.pickled, path, bytes, n) && read_all(&r);
    mti_hashmap_free(&r.contexts);
    mti_unpickled_free(&r.pickled);
    return ok;
}

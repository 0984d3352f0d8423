/* timeline_trace.c: events as trace_event JSON (the "Trace Event Format" of Chrome's tracing). */
#include <string.h>
#include "report/json.h"
#include "report/timeline.h"

enum { STEPS = 1, PHASES, OPS }; /* rows of slices */

static double microseconds(const mti_timeline *t, size_t i)
{
    if (i >= t->events.n) return t->events.n ? microseconds(t, t->events.n - 1) + 1 : 0;
    return t->clocked ? (t->seconds.at[i] - t->seconds.at[0]) * 1e6 : (double)i;
}

static json_t *record(const char *kind, const char *name, int row, double at_us)
{
    return json_pack("{s:s,s:s,s:i,s:i,s:f}", "ph", kind, "name", name, "pid", 1, "tid", row, "ts",
                     at_us);
}

static void push_name(json_t *records, const char *kind, int row, const char *name)
{
    json_t *j = record("M", kind, row, 0);
    mti_json_put(j, "args", json_pack("{s:s}", "name", name));
    mti_json_push(records, j);
}

/* Categories that are never used have no series. */
static void push_counters(json_t *records, const mti_timeline *t)
{
    size_t bytes[MT_CATEGORY_COUNT];
    bool used[MT_CATEGORY_COUNT] = {false};
    for (size_t i = 0; i < t->events.n; i++) used[t->events.at[i].category] = true;
    memcpy(bytes, t->before, sizeof bytes);
    for (size_t i = 0; i < t->events.n; i++) {
        mti_timeline_move(bytes, &t->events.at[i]);
        json_t *j = record("C", "allocated bytes", 0, microseconds(t, i)), *args = json_object();
        for (int c = 0; c < MT_CATEGORY_COUNT; c++)
            if (used[c]) mti_json_put_int(args, mt_category_name((mt_category)c), bytes[c]);
        mti_json_put(j, "args", args);
        mti_json_push(records, j);
    }
}

static bool same_phase(const mt_mem_event *a, const mt_mem_event *b)
{
    return !strcmp(a->phase, b->phase);
}

static bool same_op(const mt_mem_event *a, const mt_mem_event *b)
{
    return same_phase(a, b) && !strcmp(a->module, b->module) && !strcmp(a->op, b->op);
}

/* A slice for each run of events for which same() holds, up to the first event after it. */
static void push_slices(json_t *records, const mti_timeline *t, int row,
                        bool (*same)(const mt_mem_event *a, const mt_mem_event *b))
{
    for (size_t i = 0, end; i < t->events.n; i = end) {
        const mt_mem_event *e = &t->events.at[i];
        for (end = i + 1; end < t->events.n && same(e, &t->events.at[end]);) end++;
        const char *name = row == PHASES ? e->phase : *e->op ? e->op : e->module;
        if (!*name) continue;
        json_t *j = record("X", name, row, microseconds(t, i)), *args = json_object();
        mti_json_put(j, "dur", json_real(microseconds(t, end) - microseconds(t, i)));
        if (row == OPS) mti_json_put_text(args, "module", e->module);
        mti_json_put(j, "args", args);
        mti_json_push(records, j);
    }
}

static void push_steps(json_t *records, const mti_timeline *t)
{
    const struct {
        const char *name;
        size_t from, to;
    } steps[] = {{"first step", 0, t->steady}, {"second step", t->steady, t->events.n}};
    for (size_t i = 0; t->steady && i < 2; i++) {
        double from = microseconds(t, steps[i].from), to = microseconds(t, steps[i].to);
        json_t *j = record("X", steps[i].name, STEPS, from);
        mti_json_put(j, "dur", json_real(to - from));
        mti_json_push(records, j);
    }
}

mt_status mti_timeline_write_trace(const mti_timeline *t, const char *path)
{
    json_t *root = json_object(), *records = json_array();
    const char *time = t->clocked ? "measured" : "not measured: a microsecond for each event";
    push_name(records, "process_name", 0, "memtape");
    if (t->steady) push_name(records, "thread_name", STEPS, "step");
    push_name(records, "thread_name", PHASES, "phase");
    push_name(records, "thread_name", OPS, "op");
    push_counters(records, t);
    push_steps(records, t);
    push_slices(records, t, PHASES, same_phase);
    push_slices(records, t, OPS, same_op);
    mti_json_put(root, "traceEvents", records);
    mti_json_put_text(root, "displayTimeUnit", "ns");
    mti_json_put(root, "otherData", json_pack("{s:s}", "time", time));
    return mti_json_write(root, path);
}

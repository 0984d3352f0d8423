/* timeline_trace.c: events as trace_event JSON (the "Trace Event Format" of Chrome's tracing).
 *
 * A record a line, written as it is made: beside the timeline the file takes no memory. */
#include <string.h>
#include "report/json.h"
#include "report/terminal.h"
#include "report/pictures.h"

enum { STEPS = 1, PHASES, OPS }; /* rows of slices */

typedef struct page {
    FILE *out;
    const mti_timeline *t;
    bool any; /* a record is written, so the next one needs a comma */
} page;

static double microseconds(const mti_timeline *t, size_t i)
{
    if (i >= t->events.n) return t->events.n ? microseconds(t, t->events.n - 1) + 1 : 0;
    return t->clocked ? (t->seconds.at[i] - t->seconds.at[0]) * 1e6 : (double)i;
}

static void put_text(FILE *out, const char *text)
{
    fputc('"', out);
    mti_json_print(out, text, "\"\\\n\t");
    fputc('"', out);
}

/* The caller adds what else the record has, each part after a comma, and "}". */
static void begin_record(page *p, const char *kind, const char *name, int row, double at_us)
{
    mti_print(p->out, "%s{\"ph\": \"%s\", \"pid\": 1, \"tid\": %d, \"ts\": %.3f, \"name\": ",
              p->any ? ",\n" : "", kind, row, at_us);
    put_text(p->out, name);
    p->any = true;
}

static void put_name(page *p, const char *kind, int row, const char *name)
{
    begin_record(p, "M", kind, row, 0);
    fputs(", \"args\": {\"name\": ", p->out);
    put_text(p->out, name);
    fputs("}}", p->out);
}

static void put_slice(page *p, const char *name, int row, size_t from, size_t to)
{
    begin_record(p, "X", name, row, microseconds(p->t, from));
    mti_print(p->out, ", \"dur\": %.3f", microseconds(p->t, to) - microseconds(p->t, from));
    if (row == OPS) {
        fputs(", \"args\": {\"module\": ", p->out);
        put_text(p->out, p->t->events.at[from].module);
        fputs("}", p->out);
    }
    fputs("}", p->out);
}

/* Categories that are never used have no series. */
static void put_counters(page *p)
{
    const mti_timeline *t = p->t;
    size_t bytes[MT_CATEGORY_COUNT];
    bool used[MT_CATEGORY_COUNT] = {false};
    for (size_t i = 0; i < t->events.n; i++) used[t->events.at[i].category] = true;
    memcpy(bytes, t->before, sizeof bytes);
    for (size_t i = 0; i < t->events.n; i++) {
        mti_timeline_move(bytes, &t->events.at[i]);
        begin_record(p, "C", "allocated bytes", 0, microseconds(t, i));
        const char *between = ", \"args\": {";
        for (int c = 0; c < MT_CATEGORY_COUNT; c++) {
            if (!used[c]) continue;
            mti_print(p->out, "%s\"%s\": %zu", between, mt_category_name((mt_category)c), bytes[c]);
            between = ", ";
        }
        fputs("}}", p->out);
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
static void put_slices(page *p, int row, bool (*same)(const mt_mem_event *a, const mt_mem_event *b))
{
    const mti_timeline *t = p->t;
    for (size_t i = 0, end; i < t->events.n; i = end) {
        const mt_mem_event *e = &t->events.at[i];
        for (end = i + 1; end < t->events.n && same(e, &t->events.at[end]);) end++;
        const char *name = row == PHASES ? e->phase : *e->op ? e->op : e->module;
        if (*name) put_slice(p, name, row, i, end);
    }
}

mt_status mti_timeline_write_trace(const mti_timeline *t, const char *path)
{
    mti_file *file = mti_file_create(path);
    page p = {.out = file ? mti_file_stream(file) : NULL, .t = t};
    if (!p.out) return mti_finish_file(file, NULL);
    mti_print(p.out,
              "{\"displayTimeUnit\": \"ns\", \"otherData\": {\"time\": \"%s\"}, "
              "\"traceEvents\": [\n",
              t->clocked ? "measured" : "not measured: a microsecond for each event");
    put_name(&p, "process_name", 0, "memtape");
    if (t->steady) put_name(&p, "thread_name", STEPS, "step");
    put_name(&p, "thread_name", PHASES, "phase");
    put_name(&p, "thread_name", OPS, "op");
    put_counters(&p);
    if (t->steady) {
        put_slice(&p, "first step", STEPS, 0, t->steady);
        put_slice(&p, "second step", STEPS, t->steady, t->events.n);
    }
    put_slices(&p, PHASES, same_phase);
    put_slices(&p, OPS, same_op);
    fputs("\n]}\n", p.out);
    return mti_finish_file(file, p.out);
}

/* instant.c: who held memory at the peak, at a refusal, and over both steps. */
#include <string.h>
#include "report/sections.h"
#include "report/pictures.h"
#include "report/keys.h"
#include "report/results.h"

#define ROWS_AT_PEAK 8 /* of largest holders */
#define STRETCHES    28
#define BAR          32 /* letters in the longest bar */

/* ---- who held memory at one instant ---- */

/* How the tape keeps it: "x, input of gelu". */
static const char *kept_text(const mti_holder *h, char *buf, size_t size)
{
    const mt_saver *s = &h->saver;
    snprintf(buf, size, "%s, %s of %s", s->argument, mt_save_role_name(s->role), s->op);
    return h->kept ? buf : "";
}

static bool print_holders(const mti_holders *h, size_t n_rows, const mti_sheet *to)
{
    mti_table *t = mti_table_new("lelwrr", "category|of|made by|kept as||bytes of blocks");
    size_t rest = 0, n_rest = 0;
    for (size_t i = 0; i < h->n; i++) {
        const mti_holder *holder = &h->at[i];
        char kept[128];
        if (i >= n_rows) {
            rest += holder->bytes;
            n_rest += holder->n;
            continue;
        }
        mti_table_cells(t, "%s|%s|%s|%s", mt_category_name(holder->category),
                        *holder->module ? holder->module : "-", *holder->op ? holder->op : "-",
                        kept_text(holder, kept, sizeof kept));
        if (holder->n > 1)
            mti_table_cell(t, "%zu x", holder->n);
        else
            mti_table_skip(t, 1);
        mti_table_bytes(t, (int64_t)holder->bytes);
    }
    if (n_rest) {
        mti_table_ink(t, MTI_DIM);
        mti_table_cells(t, "the rest||||%zu x|%s", n_rest, MTI_THOUSANDS(rest));
    }
    return mti_table_finish(t, to);
}

static bool in_steady_step(const mti_measurement *m, size_t event)
{
    return m->timeline.steady && event >= m->timeline.steady;
}

/* Each step has its own ledger. */
static bool holders_of(const mti_measurement *m, size_t event, mti_holders *out)
{
    bool second = in_steady_step(m, event) && m->steady.ledger;
    return mti_timeline_holders(&m->timeline, event, second ? m->steady.ledger : m->ledger, out);
}

bool mti_print_instant(const mti_measurement *m, size_t event, size_t n_rows, const mti_sheet *to)
{
    size_t bytes[MT_CATEGORY_COUNT];
    mti_holders holders;
    mti_timeline_categories(&m->timeline, event, bytes);
    bool ok = holders_of(m, event, &holders) && mti_print_categories(bytes, to);
    if (ok && holders.n) {
        fputs("\n", to->out);
        ok = print_holders(&holders, n_rows, to);
    }
    mti_holders_free(&holders);
    return ok;
}

const char *mti_instant_text(const mti_measurement *m, size_t event, char *buf, size_t size)
{
    const mt_mem_event *e = &m->timeline.events.at[event];
    snprintf(buf, size, "event %zu, %s: %s%s%s%s%s", event,
             in_steady_step(m, event) ? "second step" : "first step",
             *e->phase ? e->phase : "between phases", *e->module ? ", " : "", e->module,
             *e->op ? ", " : "", e->op);
    return buf;
}

static bool print_peak(const mti_measurement *m, size_t n_rows, const mti_sheet *to)
{
    char where[256];
    size_t peak = mti_timeline_peak(&m->timeline);
    mti_heading(to, "What made the peak of %s bytes (%s)",
                MTI_THOUSANDS(m->timeline.events.at[peak].current),
                mti_instant_text(m, peak, where, sizeof where));
    return mti_print_instant(m, peak, n_rows, to);
}

/* ---- reserved by stream ---- */

/* At the instant of the steady step at which most was reserved. */
static int streams_of(const mti_measurement *m, mt_stream_stats out[MT_MAX_STREAMS])
{
    return mti_timeline_streams(&m->timeline, mti_timeline_most_reserved(&m->timeline), out);
}

bool mti_print_streams(const mti_measurement *m, const mti_sheet *to)
{
    mt_stream_stats streams[MT_MAX_STREAMS];
    int n = streams_of(m, streams);
    if (n < 2) return true;
    fputs("\n", to->out);
    mti_table *t =
        mti_table_new("lrrr", "reserved by stream|reserved|allocated|free, for it alone");
    for (int i = 0; i < n; i++) {
        const mt_stream_stats *s = &streams[i];
        mti_table_cells(t, "%s|%s|%s|%s", s->name, MTI_THOUSANDS(s->reserved),
                        MTI_THOUSANDS(s->allocated), MTI_THOUSANDS(s->reserved - s->allocated));
    }
    return mti_table_finish(t, to);
}

/* ---- the timeline of both steps ---- */

/* A bar of letters in proportion to the bytes of each category; less than half a letter is left
 * out. */
static const char *bar_of(const size_t bytes[MT_CATEGORY_COUNT], size_t most, char bar[BAR + 1])
{
    size_t sum = 0, n = 0;
    for (int c = 0; c < MT_CATEGORY_COUNT; c++) {
        sum += bytes[c];
        size_t end = (size_t)((double)sum / (double)most * BAR + 0.5);
        bool small = (double)bytes[c] * BAR < 0.5 * (double)most;
        while (!small && n < end && n < BAR) bar[n++] = mti_category_looks[c].letter;
    }
    bar[n] = 0;
    return bar;
}

/* "p parameter, g gradient, ..." */
static void print_letters(const mti_sheet *to)
{
    char text[256] = "", *at = text;
    for (int c = 0; c < MT_CATEGORY_COUNT; c++)
        at += sprintf(at, "%s%c %s", c ? ", " : "", mti_category_looks[c].letter,
                      mt_category_name((mt_category)c));
    for (char *line = text; (line = strchr(line, '_'));) *line = ' ';
    mti_print_wrapped(to, 2, text);
}

static bool print_timeline(const mti_measurement *m, const mti_sheet *to)
{
    const mti_timeline *tl = &m->timeline;
    mti_stretch stretches[STRETCHES];
    size_t n = mti_timeline_stretches(tl, STRETCHES, stretches), peak = mti_timeline_peak(tl);
    size_t highest = mti_timeline_highest(tl);
    mti_heading(to, "Over two steps: %zu events in %zu stretches, the highest of each",
                tl->events.n, n);
    mti_table *t = mti_table_new("rllelrl", "event|step|phase|module|op|bytes of blocks|for");
    for (size_t i = 0; i < n; i++) {
        const mt_mem_event *e = &tl->events.at[stretches[i].event];
        char bar[BAR + 1];
        if (stretches[i].event == peak) mti_table_ink(t, MTI_BOLD);
        mti_table_cells(t, "%zu|%s|%s|%s|%s|%s|%s", stretches[i].event,
                        in_steady_step(m, stretches[i].event) ? "second" : "first", e->phase,
                        e->module, e->op, MTI_THOUSANDS(e->current),
                        bar_of(stretches[i].by_category, highest, bar));
    }
    bool ok = mti_table_finish(t, to);
    print_letters(to);
    return ok;
}

bool mti_print_memory(const mti_measurement *m, bool whole, const mti_sheet *to)
{
    if (!m->timeline.events.n) return true;
    return (!whole || print_timeline(m, to)) &&
           print_peak(m, whole ? MTI_ROWS_TO_SHOW : ROWS_AT_PEAK, to);
}

/* What a device that is large enough needs; `capacity` 0: unknown. */
static void print_needed(const mti_requirement *need, size_t capacity, const mti_sheet *to)
{
    mti_print_line(to, "A device that is large enough needs %s bytes (%s); %s reserved",
                   MTI_THOUSANDS(need->peak), MTI_BYTES(need->peak), MTI_THOUSANDS(need->reserved));
    if (capacity && need->peak > capacity)
        mti_print(to->out, "It does not fit in %s: %s more are allocated at the peak\n",
                  MTI_BYTES(capacity), MTI_BYTES(need->peak - capacity));
}

bool mti_print_refusal(const mti_profile_result *p, size_t event, bool verbose, FILE *out)
{
    const mti_measurement *m = &p->measured;
    const mt_mem_event *e = &m->timeline.events.at[event];
    mti_sheet sheet = mti_sheet_of(out);
    char where[256];
    mti_print_model(&p->workload, p->device, &sheet);
    mti_print_rank(&p->workload, m, &sheet);
    mti_heading(&sheet, "Out of memory: %s bytes of %s were refused", MTI_THOUSANDS(e->requested),
                mt_category_name(e->category));
    mti_print(out, "%s\n", mti_instant_text(m, event, where, sizeof where));
    if (p->needed.peak) print_needed(&p->needed, p->workload.device.capacity, &sheet);
    fputs("Who held what at that moment:\n", out);
    return mti_print_instant(m, event, verbose ? MTI_ROWS_TO_SHOW : MTI_ROWS_AT_REFUSAL, &sheet);
}

/* ---- as JSON ---- */

void mti_describe_keeper(mti_fields *f, const void *saver)
{
    KEYS(f, mt_saver, saver, KEY(op), KEY_CHOICE(role, &mti_save_roles), KEY_AS("name", argument));
}

static void describe_holder(mti_fields *f, const void *holder)
{
    const mti_holder *h = holder;
    KEYS(f, mti_holder, h, KEY_CHOICE(category, &mti_categories), KEY(module), KEY(op), KEY(phase),
         KEY_AS("storages", n), KEY_AS("allocated", bytes));
    mti_field_object(mti_null_unless(f, h->kept), "kept", mti_describe_keeper, &h->saver);
}

static void describe_instant(mti_fields *f, const mti_measurement *m, size_t event)
{
    const mt_mem_event none = {0},
                       *e = m->timeline.events.n ? &m->timeline.events.at[event] : &none;
    size_t bytes[MT_CATEGORY_COUNT] = {0};
    mti_holders holders = {0};
    bool ok = holders_of(m, event, &holders);
    size_t n = holders.n < MTI_ROWS_TO_SHOW ? holders.n : MTI_ROWS_TO_SHOW;
    mti_timeline_categories(&m->timeline, event, bytes);
    mti_field_size(f, "event", event);
    mti_field_int(f, "step", in_steady_step(m, event) ? 2 : 1);
    KEYS(f, mt_mem_event, e, KEY(phase), KEY(module), KEY(op), KEY_AS("allocated", current));
    mti_field_categories(f, "by_category", bytes);
    mti_field_list(f, "largest", describe_holder, holders.at, n, sizeof *holders.at);
    mti_holders_free(&holders);
    if (!ok) mti_json_put(f->json, "largest", NULL);
}

void mti_describe_peak(mti_fields *f, const void *measurement)
{
    const mti_measurement *m = measurement;
    describe_instant(f, m, mti_timeline_peak(&m->timeline));
}

void mti_describe_needed(mti_fields *f, const void *need)
{
    KEYS(f, mti_requirement, need, KEY(peak), KEY(reserved));
}

void mti_describe_refusal(mti_fields *f, const void *refusal)
{
    const mti_profile_object *r = refusal;
    const mti_profile_result *p = r->profile;
    const mt_mem_event none = {0}, *events = p->measured.timeline.events.at;
    const mt_mem_event *e = events ? &events[r->event] : &none;
    describe_instant(f, &p->measured, r->event);
    KEYS(f, mt_mem_event, e, KEY(requested), KEY_CHOICE(category, &mti_categories));
    mti_field_object(mti_null_unless(f, p->needed.peak), "needed", mti_describe_needed, &p->needed);
}

static void describe_stream(mti_fields *f, const void *stream)
{
    const mt_stream_stats *s = stream;
    KEYS(f, mt_stream_stats, s, KEY(name), KEY(reserved), KEY(allocated));
    mti_field_size(f, "free", s->reserved - s->allocated);
}

void mti_field_streams(mti_fields *f, const mti_measurement *m)
{
    mt_stream_stats streams[MT_MAX_STREAMS] = {{0}};
    int n = streams_of(m, streams);
    if (mti_field_there(f, n > 1))
        mti_field_list(f, "streams", describe_stream, streams, (size_t)n, sizeof *streams);
}

void mti_describe_event(mti_fields *f, const void *event)
{
    const mt_mem_event *e = event;
    bool was = e->kind == MT_MEM_RECATEGORY;
    mti_field_one_of(f, "kind", mti_choice_name(&mti_event_kinds, (int)e->kind),
                     mti_event_kinds.names, MT_MEM_OOM + 1);
    KEYS(f, mt_mem_event, e, KEY_AS("storage", serial), KEY_AS("bytes", requested), KEY(allocated),
         KEY_CHOICE(category, &mti_categories));
    mti_field_name(mti_null_unless(f, was), "was", &mti_categories, (int)e->was);
    KEYS(f, mt_mem_event, e, KEY(phase), KEY(module), KEY(op), KEY(current), KEY(reserved));
    if (mti_field_there(f, e->stream > 0)) mti_field_text(f, "stream", e->stream_name);
}

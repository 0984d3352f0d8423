/* instant.c: who held memory at the peak, at a refusal, and over both steps. */
#include <string.h>
#include "report/figures.h"
#include "report/profile.h"
#include "report/rank.h"

#define ROWS_AT_PEAK    8 /* of largest holders */
#define ROWS_AT_REFUSAL 4
#define ROWS_TO_SHOW    20 /* the same with -v or --timeline */
#define STRETCHES       28
#define BAR             32 /* letters in the longest bar */

/* ---- who held memory at one instant ---- */

/* How the tape keeps it: "x, input of gelu". */
static const char *kept_text(const mti_holder *h, char *buf, size_t size)
{
    const mt_saver *s = &h->saver;
    snprintf(buf, size, "%s, %s of %s", s->argument, mt_save_role_name(s->role), s->op);
    return h->kept ? buf : "";
}

static bool print_holders(const mti_holders *h, size_t n_rows, FILE *out, const mti_style *style)
{
    static const char *const headings[] = {"category", "of", "made by",
                                           "kept as",  "",   "bytes of blocks"};
    mti_table *t = mti_table_new("lelwrr", headings);
    size_t rest = 0, n_rest = 0;
    for (size_t i = 0; i < h->n; i++) {
        const mti_holder *holder = &h->at[i];
        char kept[128];
        if (i >= n_rows) {
            rest += holder->bytes;
            n_rest += holder->n;
            continue;
        }
        mti_table_cell(t, "%s", mt_category_name(holder->category));
        mti_table_cell(t, "%s", *holder->module ? holder->module : "-");
        mti_table_cell(t, "%s", *holder->op ? holder->op : "-");
        mti_table_cell(t, "%s", kept_text(holder, kept, sizeof kept));
        if (holder->n > 1)
            mti_table_cell(t, "%zu x", holder->n);
        else
            mti_table_skip(t, 1);
        mti_table_bytes(t, (int64_t)holder->bytes);
    }
    if (n_rest) {
        mti_table_ink(t, MTI_DIM);
        mti_table_cell(t, "the rest");
        mti_table_skip(t, 3);
        mti_table_cell(t, "%zu x", n_rest);
        mti_table_bytes(t, (int64_t)rest);
    }
    return mti_table_finish(t, out, style);
}

static bool in_steady_step(const mti_measurement *m, size_t event)
{
    return m->timeline.steady && event >= m->timeline.steady;
}

/* Each step has a ledger of its own. */
static bool holders_of(const mti_measurement *m, size_t event, mti_holders *out)
{
    bool second = in_steady_step(m, event) && m->steady.ledger;
    return mti_timeline_holders(&m->timeline, event, second ? m->steady.ledger : m->ledger, out);
}

static bool print_instant(const mti_measurement *m, size_t event, size_t n_rows, FILE *out,
                          const mti_style *style)
{
    size_t bytes[MT_CATEGORY_COUNT];
    mti_holders holders;
    mti_timeline_categories(&m->timeline, event, bytes);
    bool ok = holders_of(m, event, &holders) && mti_print_categories(bytes, out, style);
    if (ok && holders.n) {
        fputs("\n", out);
        ok = print_holders(&holders, n_rows, out, style);
    }
    mti_holders_free(&holders);
    return ok;
}

/* "event 221, second step: backward, gpt.h.3.mlp.act, gelu" */
static const char *instant_text(const mti_measurement *m, size_t event, char *buf, size_t size)
{
    const mt_mem_event *e = &m->timeline.events.at[event];
    snprintf(buf, size, "event %zu, %s: %s%s%s%s%s", event,
             in_steady_step(m, event) ? "second step" : "first step",
             *e->phase ? e->phase : "between phases", *e->module ? ", " : "", e->module,
             *e->op ? ", " : "", e->op);
    return buf;
}

static bool print_peak(const mti_measurement *m, size_t n_rows, FILE *out, const mti_style *style)
{
    char bytes[MTI_NUMBER], where[256];
    size_t peak = mti_timeline_peak(&m->timeline);
    const mt_mem_event *e = &m->timeline.events.at[peak];
    mti_heading(out, style, "What made the peak of %s bytes (%s)",
                mti_thousands(bytes, (int64_t)e->current),
                instant_text(m, peak, where, sizeof where));
    return print_instant(m, peak, n_rows, out, style);
}

/* ---- the timeline of both steps ---- */

/* A bar of letters in proportion to the bytes of each category; less than half a letter is left
 * out. */
static const char *bar_of(const size_t bytes[MT_CATEGORY_COUNT], size_t most, char bar[BAR + 1])
{
    static const char letters[] = "pgoiayrkctw";
    size_t sum = 0, n = 0;
    for (int c = 0; c < MT_CATEGORY_COUNT; c++) {
        sum += bytes[c];
        size_t end = (size_t)((double)sum / (double)most * BAR + 0.5);
        bool small = (double)bytes[c] * BAR < 0.5 * (double)most;
        while (!small && n < end && n < BAR) bar[n++] = letters[c];
    }
    bar[n] = 0;
    return bar;
}

static bool print_timeline(const mti_measurement *m, FILE *out, const mti_style *style)
{
    static const char *const headings[] = {"event",           "step", "phase", "module", "op",
                                           "bytes of blocks", "for"};
    const mti_timeline *tl = &m->timeline;
    mti_stretch stretches[STRETCHES];
    size_t n = mti_timeline_stretches(tl, STRETCHES, stretches), peak = mti_timeline_peak(tl);
    size_t highest = mti_timeline_highest(tl);
    mti_heading(out, style, "Over two steps: %zu events in %zu stretches, the highest of each",
                tl->events.n, n);
    mti_table *t = mti_table_new("rllelrl", headings);
    for (size_t i = 0; i < n; i++) {
        const mt_mem_event *e = &tl->events.at[stretches[i].event];
        char bar[BAR + 1];
        if (stretches[i].event == peak) mti_table_ink(t, MTI_BOLD);
        mti_table_cell(t, "%zu", stretches[i].event);
        mti_table_cell(t, "%s", in_steady_step(m, stretches[i].event) ? "second" : "first");
        mti_table_cell(t, "%s", e->phase);
        mti_table_cell(t, "%s", e->module);
        mti_table_cell(t, "%s", e->op);
        mti_table_bytes(t, (int64_t)e->current);
        mti_table_cell(t, "%s", bar_of(stretches[i].by_category, highest, bar));
    }
    mt_status status = mti_table_print(t, out, style);
    mti_table_free(t);
    mti_print_wrapped(
        out, 2, style->width,
        "p parameter, g gradient, o optimizer, i input, a activation, y output, r rng "
        "state, k packed, c cache, t temporary, w workspace, m communication");
    return status == MT_OK;
}

bool mti_print_memory(const mti_measurement *m, bool whole, FILE *out, const mti_style *style)
{
    if (!m->timeline.events.n) return true;
    return (!whole || print_timeline(m, out, style)) &&
           print_peak(m, whole ? ROWS_TO_SHOW : ROWS_AT_PEAK, out, style);
}

/* What a device that is large enough needs; `capacity` 0: unknown. */
static void print_needed(const mti_need *need, size_t capacity, FILE *out, const mti_style *style)
{
    char bytes[MTI_NUMBER], reserved[MTI_NUMBER], text[MTI_NUMBER], more[MTI_NUMBER];
    char line[200];
    snprintf(line, sizeof line, "A device that is large enough needs %s bytes (%s); %s reserved",
             mti_thousands(bytes, (int64_t)need->peak),
             mti_bytes_text(text, sizeof text, need->peak),
             mti_thousands(reserved, (int64_t)need->reserved));
    mti_print_line(out, style, line);
    if (capacity && need->peak > capacity)
        mti_print(out, "It does not fit in %s: %s more are allocated at the peak\n",
                  mti_bytes_text(text, sizeof text, capacity),
                  mti_bytes_text(more, sizeof more, need->peak - capacity));
}

bool mti_print_refusal(const mti_profile_result *p, size_t event, bool verbose, FILE *out)
{
    const mti_measurement *m = &p->measured;
    const mt_mem_event *e = &m->timeline.events.at[event];
    mti_style style = mti_style_of(out);
    char bytes[MTI_NUMBER], where[256];
    mti_print_model(&p->workload, p->device, out, &style);
    mti_print_rank(&p->workload, m, out, &style);
    mti_heading(out, &style, "Out of memory: %s bytes of %s were refused",
                mti_thousands(bytes, (int64_t)e->requested), mt_category_name(e->category));
    mti_print(out, "%s\n", instant_text(m, event, where, sizeof where));
    if (p->needed.peak) print_needed(&p->needed, p->workload.device.capacity, out, &style);
    fputs("Who held what at that moment:\n", out);
    return print_instant(m, event, verbose ? ROWS_TO_SHOW : ROWS_AT_REFUSAL, out, &style);
}

/* ---- as JSON ---- */

static json_t *holder_json(const mti_holder *h)
{
    json_t *j = json_object();
    mti_json_put_text(j, "category", mt_category_name(h->category));
    mti_json_put_text(j, "module", h->module);
    mti_json_put_text(j, "op", h->op);
    mti_json_put_text(j, "phase", h->phase);
    mti_json_put_int(j, "storages", h->n);
    mti_json_put_int(j, "allocated", h->bytes);
    mti_json_put(j, "kept",
                 h->kept ? json_pack("{s:s,s:s,s:s}", "op", h->saver.op, "role",
                                     mt_save_role_name(h->saver.role), "name", h->saver.argument)
                         : json_null());
    return j;
}

static json_t *instant_json(const mti_measurement *m, size_t event)
{
    json_t *j = json_object(), *largest = json_array();
    const mt_mem_event *e = &m->timeline.events.at[event];
    size_t bytes[MT_CATEGORY_COUNT];
    mti_holders holders;
    mti_json_put_int(j, "event", event);
    mti_json_put_int(j, "step", in_steady_step(m, event) ? 2 : 1);
    mti_json_put_text(j, "phase", e->phase);
    mti_json_put_text(j, "module", e->module);
    mti_json_put_text(j, "op", e->op);
    mti_json_put_int(j, "allocated", e->current);
    mti_timeline_categories(&m->timeline, event, bytes);
    mti_json_put(j, "by_category", mti_categories_json(bytes));
    bool ok = holders_of(m, event, &holders);
    for (size_t i = 0; ok && i < holders.n && i < ROWS_TO_SHOW; i++)
        mti_json_push(largest, holder_json(&holders.at[i]));
    mti_holders_free(&holders);
    if (ok)
        mti_json_put(j, "largest", largest);
    else
        json_decref(largest), mti_json_put(j, "largest", NULL);
    return j;
}

json_t *mti_peak_json(const mti_measurement *m)
{
    return m->timeline.events.n ? instant_json(m, mti_timeline_peak(&m->timeline)) : json_null();
}

static json_t *event_json(const mt_mem_event *e)
{
    json_t *j = json_object();
    mti_json_put_text(j, "kind", mti_event_kind_name(e->kind));
    mti_json_put_int(j, "storage", e->serial);
    mti_json_put_int(j, "bytes", e->requested);
    mti_json_put_int(j, "allocated", e->allocated);
    mti_json_put_text(j, "category", mt_category_name(e->category));
    mti_json_put_text(j, "was", e->kind == MT_MEM_RECATEGORY ? mt_category_name(e->was) : NULL);
    mti_json_put_text(j, "phase", e->phase);
    mti_json_put_text(j, "module", e->module);
    mti_json_put_text(j, "op", e->op);
    mti_json_put_int(j, "current", e->current);
    mti_json_put_int(j, "reserved", e->reserved);
    return j;
}

json_t *mti_timeline_json(const mti_timeline *t)
{
    json_t *j = json_array();
    for (size_t i = 0; i < t->events.n; i++) mti_json_push(j, event_json(&t->events.at[i]));
    return j;
}

json_t *mti_refusal_json(const mti_profile_result *p, size_t event)
{
    const mti_measurement *m = &p->measured;
    const mt_mem_event *e = &m->timeline.events.at[event];
    json_t *j = instant_json(m, event);
    mti_json_put_int(j, "requested", e->requested);
    mti_json_put_text(j, "category", mt_category_name(e->category));
    mti_json_put(j, "needed",
                 p->needed.peak ? json_pack("{s:I,s:I}", "peak", (json_int_t)p->needed.peak,
                                            "reserved", (json_int_t)p->needed.reserved)
                                : json_null());
    return j;
}

/* oom_report.c: an out-of-memory message beside the prediction, as text and as JSON
 * (docs/compare.md). */
#include "report/sections.h"
#include "report/keys.h"
#include "report/results.h"

#define ASKERS_TO_SHOW 6

/* ---- text ---- */

/* Returns the middle of what is known to some digits. */
static uint64_t middle(const mti_byte_range *s) { return s->low + (s->high - s->low) / 2; }
/* "20.52 GiB" */
#define ABOUT(span) MTI_BYTES(middle(span))

static void print_range(mti_table *t, const char *what, const mti_byte_range *s)
{
    if (s->high) mti_table_cells(t, "%s|%s", what, ABOUT(s));
}

static bool print_message(const mti_compared_oom *c, const char *path, const mti_sheet *to)
{
    const mti_oom *m = &c->read;
    mti_heading(to, "%s, line %lld: out of memory while allocating %s", path, (long long)m->line,
                ABOUT(&m->asked));
    if (m->n > 1) mti_print_line(to, "This is the first of %zu such messages.", m->n);
    mti_table *t = mti_table_new("lr", NULL);
    print_range(t, "allocated by PyTorch", &m->allocated);
    print_range(t, "reserved by PyTorch but unallocated", &m->unallocated);
    print_range(t, "free", &m->free);
    if (c->capacity && middle(&m->total) > c->capacity)
        mti_table_cells(t, "the rest: CUDA context, libraries, other processes|%s",
                        MTI_BYTES(middle(&m->total) - c->capacity));
    if (m->total.high) mti_table_rule(t);
    print_range(t, "memory of the device", &m->total);
    return mti_table_finish(t, to);
}

/* Requests under 10 MiB are served from segments whose size says nothing of them. */
static void print_size(const mti_compared_oom *c, const mti_sheet *to)
{
    const uint64_t asked = c->read.asked.high;
    if (*c->product) mti_print_line(to, "%s = %s", ABOUT(&c->read.asked), c->product);
    if (asked < (uint64_t)20 << 20)
        mti_print_line(to,
                       "PyTorch reports 2 MiB for every tensor of up to 1 MiB, so any small tensor "
                       "may be meant.");
    else if (asked < (uint64_t)21 << 20)
        mti_print_line(to,
                       "PyTorch reports 20 MiB for every tensor of more than 1 MiB and less than "
                       "10 MiB, so this may be one of them.");
}

static bool print_askers(const mti_compared_oom *c, const mti_compared *all, const mti_sheet *to)
{
    const size_t n = c->askers.n, shown = n < ASKERS_TO_SHOW ? n : ASKERS_TO_SHOW;
    const mti_measurement *m = &all->profile.measured;
    char where[256];
    mti_heading(to, "Tensors of that size in the predicted run");
    print_size(c, to);
    if (!n) {
        mti_print_line(to, "None. Either the sizes differ (--batch, --seq), or the run that failed "
                           "makes a tensor that this one does not: try --recipe hf or --loss f32.");
        return true;
    }
    mti_table *t = mti_table_new("llerr", "phase|op|in||bytes");
    for (size_t i = 0; i < shown; i++) {
        const mti_asker *a = &c->askers.at[i];
        mti_table_cells(t, "%s|%s|%s|%zu x|%s", *a->phase ? a->phase : "-", *a->op ? a->op : "-",
                        *a->module ? a->module : "-", a->n, MTI_THOUSANDS(a->bytes));
    }
    if (shown < n) mti_table_note(t, 0, "and %zu others", n - shown);
    if (!mti_table_finish(t, to)) return false;
    if (!c->found) return true;
    const mt_mem_event *e = &m->timeline.events.at[c->nearest];
    mti_print_line(to, "Closest to the message's %s allocated: %s, with %s allocated before",
                   ABOUT(&c->read.allocated), mti_instant_text(m, c->nearest, where, sizeof where),
                   MTI_BYTES(e->current - e->allocated));
    return true;
}

#define PARTS "allocated, unallocated and free"

static bool print_refused(const mti_compared_oom *c, bool verbose, const mti_sheet *to)
{
    size_t event;
    char where[256];
    const mti_measurement *m = &c->run.measured;
    const mti_requirement *need = &c->run.needed;
    if (!mti_timeline_refusal(&m->timeline, &event)) return true;
    const mt_mem_event *e = &m->timeline.events.at[event];
    mti_heading(to, "With %s (" PARTS "), the predicted run runs out of memory as well",
                MTI_BYTES(c->capacity));
    mti_print_line(to, "%s: %s refused while %s is allocated",
                   mti_instant_text(m, event, where, sizeof where), MTI_BYTES(e->requested),
                   MTI_BYTES(e->current));
    if (!mti_print_instant(m, event, verbose ? MTI_ROWS_TO_SHOW : MTI_ROWS_AT_REFUSAL, to))
        return false;
    mti_print_line(to, "It would need %s, %s reserved: %s more than there is.",
                   MTI_BYTES(need->peak), MTI_BYTES(need->reserved),
                   MTI_BYTES(need->reserved > c->capacity ? need->reserved - c->capacity : 0));
    return true;
}

static void print_fits(const mti_compared_oom *c, const mti_compared *all, const mti_sheet *to)
{
    const mti_predicted *of = all->runs[0].figures;
    const size_t peak = of[MTI_READ_PEAK_ALLOCATED].any;
    const uint64_t held = middle(&c->read.allocated) + middle(&c->read.asked);
    mti_heading(to, "With %s (" PARTS "), the predicted run fits", MTI_BYTES(c->capacity));
    mti_print_line(
        to,
        "Its peak is %s, %s reserved. The run that failed held %s and wanted %s more, so "
        "the prediction lacks at least %s.",
        MTI_BYTES(peak), MTI_BYTES(of[MTI_READ_PEAK_RESERVED].any), ABOUT(&c->read.allocated),
        ABOUT(&c->read.asked), MTI_BYTES(held > peak ? held - peak : 0));
    mti_print_line(to,
                   "Look for what the command does not say: longer or more sequences, weights in "
                   "f32, logits that the loop keeps, an evaluation, tensors of another process.");
}

/* Whether what was reserved but unallocated would have served. */
static void print_unallocated(const mti_compared_oom *c, const mti_sheet *to)
{
    const mti_oom *m = &c->read;
    if (!m->allocated.high) return;
    if (m->unallocated.high < m->asked.low)
        mti_print_line(to, "Less was unallocated than was asked for, so fragmentation is not the "
                           "cause: no allocator setting would have helped.");
    else
        mti_print_line(to, "More was unallocated than was asked for, but not in one piece: that is "
                           "fragmentation, and PYTORCH_ALLOC_CONF=expandable_segments:True helps "
                           "against it (here --expandable-segments).");
}

/* Prints the last of each kind: what fits, or comes nearest to it. */
static bool print_tried(const mti_compared_oom *c, const mti_sheet *to)
{
    if (!c->tried.n) return true;
    mti_heading(to, "What would make it fit; each was measured with %s", MTI_BYTES(c->capacity));
    mti_table *t = mti_table_new("lrrl", "change|allocated|reserved|");
    for (size_t i = 0; i < c->tried.n; i++) {
        const mti_tried *r = &c->tried.at[i];
        if (i + 1 < c->tried.n && r[1].change->kind == r->change->kind) continue;
        mti_table_ink(t, r->fits ? MTI_GOOD : MTI_DIM);
        mti_table_cells(t, "%s|%s|%s|%s", r->change->words, MTI_BYTES(r->needed.peak),
                        MTI_BYTES(r->needed.reserved), r->fits ? "fits" : "does not fit");
    }
    return mti_table_finish(t, to);
}

bool mti_print_oom(const mti_compared_oom *c, const mti_compared *all, const char *path,
                   bool verbose, const mti_sheet *to)
{
    bool ok = print_message(c, path, to) && print_askers(c, all, to);
    if (ok && !c->capacity)
        mti_print_line(to,
                       "The message does not say how much was allocated and free. Paste all of it, "
                       "and memtape measures which changes would make the run fit.");
    if (ok && c->capacity && c->refused) ok = print_refused(c, verbose, to);
    if (ok && c->capacity && !c->refused) print_fits(c, all, to);
    if (ok) print_unallocated(c, to);
    return ok && print_tried(c, to);
}

/* ---- JSON ---- */

DESCRIBE(describe_asker, mti_asker, KEY(phase), KEY(op), KEY(module),
         KEY_CHOICE(category, &mti_categories), KEY(bytes), KEY(n));

static void describe_tried(mti_fields *f, const void *tried)
{
    const mti_tried *t = tried;
    mti_field_text(f, "change", t->change ? t->change->words : "");
    KEYS(f, mti_tried, t, KEY_AS("allocated", needed.peak), KEY_AS("reserved", needed.reserved),
         KEY(fits));
}

/* Describes a request of the predicted run that was refused. */
static void describe_refusal(mti_fields *f, const void *compared)
{
    const mti_compared_oom *c = compared;
    const mt_mem_event none = {0}, *e = &none;
    size_t event = 0;
    if (mti_timeline_refusal(&c->run.measured.timeline, &event))
        e = &c->run.measured.timeline.events.at[event];
    mti_field_size(f, "event", event);
    KEYS(f, mt_mem_event, e, KEY(phase), KEY(module), KEY(op), KEY(requested),
         KEY_AS("allocated", current));
    mti_field_object(f, "needed", mti_describe_needed, &c->run.needed);
}

DESCRIBE(describe_range, mti_byte_range, KEY(low), KEY(high));

/* Describes what the message may leave out. */
static void describe_known(mti_fields *f, const char *key, const mti_byte_range *s)
{
    mti_field_object(mti_null_unless(f, s->high), key, describe_range, s);
}

void mti_describe_oom(mti_fields *f, const void *compared)
{
    const mti_compared_oom *c = compared;
    const mti_oom *m = &c->read;
    KEYS(f, mti_oom, m, KEY(line), KEY_AS("messages", n));
    mti_field_object(f, "asked", describe_range, &m->asked);
    describe_known(f, "allocated", &m->allocated);
    describe_known(f, "unallocated", &m->unallocated);
    describe_known(f, "free", &m->free);
    describe_known(f, "total", &m->total);
    KEYS(f, mti_compared_oom, c, KEY_OR_NULL(product));
    mti_field_list(f, "askers", describe_asker, c->askers.at, c->askers.n, sizeof *c->askers.at);
    mti_field_size(mti_null_unless(f, c->found), "nearest", c->nearest);
    KEYS(f, mti_compared_oom, c, KEY_OR_NULL(capacity));
    mti_field_bool(mti_null_unless(f, c->capacity), "fits", !c->refused);
    mti_field_object(mti_null_unless(f, c->refused), "refusal", describe_refusal, c);
    mti_field_list(f, "changes", describe_tried, c->tried.at, c->tried.n, sizeof *c->tried.at);
}

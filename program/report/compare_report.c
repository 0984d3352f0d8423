/* compare_report.c: measured beside predicted, as text and as JSON (docs/compare.md). */
#include <string.h>
#include "report/sections.h"
#include "report/keys.h"
#include "report/results.h"

#define ROWS_TO_SHOW 12

/* ---- text ---- */

static void side_by_side(mti_table *t, const char *what, size_t measured, size_t predicted)
{
    const int64_t difference = (int64_t)measured - (int64_t)predicted;
    if (!difference) mti_table_ink(t, MTI_GOOD);
    mti_table_cells(t, "%s|%s|%s|%s", what, MTI_THOUSANDS(measured), MTI_THOUSANDS(predicted),
                    MTI_THOUSANDS(difference));
}

#define SIDES "lrrr", "|measured|predicted|difference"

/* Where memory ran out, last. */
static void print_refused(const mti_history *h, const mti_action_event *e, const mti_sheet *to)
{
    const mti_context *at = &h->contexts.at[e->context];
    mti_print_line(to, "Memory ran out: %s bytes were refused%s%s%s%s, after event %zu.",
                   MTI_THOUSANDS(e->size), *at->op ? ", to " : "", at->op, *at->where ? " in " : "",
                   at->where, (size_t)(e - h->events.at));
}

static void print_head(const mti_compared_file *f, const mti_sheet *to)
{
    const mti_history *h = &f->snapshot->history;
    mti_heading(to, "%s: a memory snapshot of %zu events; %zu blocks in %zu segments", f->path,
                h->events.n, h->blocks.n, h->segments.n);
    if (h->other_devices)
        mti_print_line(to, "It has %zu other devices; this is device %lld, which reserves most.",
                       h->other_devices, (long long)h->device);
    const mti_action_event *last = h->events.n ? &h->events.at[h->events.n - 1] : NULL;
    for (size_t i = h->events.n; i-- > 0 && last->action != MTI_ACT_OOM;)
        if (h->events.at[i].action == MTI_ACT_OOM) last = &h->events.at[i];
    if (last && last->action == MTI_ACT_OOM) print_refused(h, last, to);
    if (!h->events.n)
        mti_print_line(to, "%s",
                       "Nothing was recorded (torch.cuda.memory._record_memory_history), so its "
                       "peak is what was there when it was taken.");
}

static bool print_sums(const mti_compared_history *s, const mti_compared *c, const mti_sheet *to)
{
    const mti_predicted *first = c->runs[0].figures;
    const mti_memory_sums *a = &s->peak, *b = &s->predicted_peak, *d = &s->end,
                          *e = &s->predicted_end;
    mti_table *t = mti_table_new(SIDES);
    side_by_side(t, "peak requested", a->requested, b->requested);
    side_by_side(t, "peak allocated, in blocks of 512 bytes", a->allocated, b->allocated);
    side_by_side(t, "peak active, in blocks of 512 bytes", a->active, b->active);
    side_by_side(t, "peak reserved", a->reserved, b->reserved);
    mti_table_rule(t);
    side_by_side(t, "requested at the end", d->requested, e->requested);
    side_by_side(t, "allocated at the end", d->allocated, e->allocated);
    side_by_side(t, "active at the end", d->active, e->active);
    side_by_side(t, "reserved at the end", d->reserved, e->reserved);
    if (!mti_table_finish(t, to)) return false;
    mti_print_line(
        to, "The first step alone is predicted to have a peak of %s requested and %s reserved.",
        MTI_THOUSANDS(first[MTI_READ_PEAK_REQUESTED].first),
        MTI_THOUSANDS(first[MTI_READ_PEAK_RESERVED].first));
    return true;
}

static void print_row(mti_table *t, const mti_block_row *r)
{
    char more[48] = "";
    const mti_context *c = &r->context;
    if (r->n_contexts > 1)
        snprintf(more, sizeof more, ", and %zu other%s", r->n_contexts - 1,
                 r->n_contexts == 2 ? "" : "s");
    mti_table_bytes(t, (int64_t)r->size);
    mti_table_bytes(t, (int64_t)r->measured);
    mti_table_bytes(t, (int64_t)r->predicted);
    mti_table_bytes(t, mti_block_row_difference(r));
    mti_table_cell(t, "%s%s%s%s%s%s", r->known ? r->known : "", r->known ? "; " : "",
                   *c->op || *c->where ? c->op : "outside of all modules",
                   *c->op && *c->where ? " in " : "", c->where, more);
}

/* The rows, and what both have: the peaks' difference is the rows' sum. */
static bool print_blocks(const mti_block_match *m, bool all, const mti_sheet *to)
{
    const size_t shown = all || m->rows.n <= ROWS_TO_SHOW ? m->rows.n : ROWS_TO_SHOW;
    int64_t rest = 0;
    mti_heading(to, "Tensors at the peak: sizes of which one side has more");
    if (m->rows.n) {
        mti_table *t = mti_table_new("rrrre", "bytes each|measured|predicted|bytes more|such as");
        for (size_t i = 0; i < shown; i++) print_row(t, &m->rows.at[i]);
        for (size_t i = shown; i < m->rows.n; i++)
            if (__builtin_add_overflow(rest, mti_block_row_difference(&m->rows.at[i]), &rest))
                rest = INT64_MAX;
        if (shown < m->rows.n)
            mti_table_note(t, 0, "%s bytes more in %zu other size%s, which -v lists",
                           MTI_THOUSANDS(rest), m->rows.n - shown,
                           m->rows.n - shown == 1 ? "" : "s");
        if (!mti_table_finish(t, to)) return false;
        if (shown < m->rows.n) fputc('\n', to->out);
    } else {
        fputs("  none\n", to->out);
    }
    mti_print_line(
        to, "Both have %zu tensors of one size and op, %s bytes, and %zu of one size only, %s.",
        m->n_by_op, MTI_THOUSANDS(m->bytes_by_op), m->n_by_size, MTI_THOUSANDS(m->bytes_by_size));
    return true;
}

static bool print_use(const mti_compared_history *s, const mti_sheet *to)
{
    const mti_stream_use *a = &s->use, *b = &s->predicted_use;
    mti_heading(to, "Reserved at the end, and what of it is used");
    mti_table *t = mti_table_new(SIDES);
    side_by_side(t, "by tensors, as requested", a->requested, b->requested);
    side_by_side(t, "by their blocks beyond that", a->rounding, b->rounding);
    side_by_side(t, "waits for another stream", a->pending, b->pending);
    side_by_side(t, "free, in segments that are partly used", a->split, b->split);
    side_by_side(t, "free segments, which empty_cache gives back", a->whole, b->whole);
    mti_table_rule(t);
    side_by_side(t, "reserved", a->reserved, b->reserved);
    side_by_side(t, "segments", a->n_segments, b->n_segments);
    return mti_table_finish(t, to);
}

/* All sizes, or those of which one side has more. */
static bool print_segments(const mti_segment_rows *rows, bool all, const mti_sheet *to)
{
    size_t differ = 0;
    for (size_t i = 0; i < rows->n; i++) differ += rows->at[i].measured != rows->at[i].predicted;
    if (!differ && !all) return true;
    mti_heading(to, all ? "Segments by size" : "Segments: sizes of which one side has more");
    mti_table *t =
        mti_table_new("rrrrrr", "bytes each|measured|predicted|bytes more|free in these|predicted");
    for (size_t i = 0; i < rows->n; i++) {
        const mti_segment_row *r = &rows->at[i];
        if (r->measured == r->predicted && !all) continue;
        mti_table_bytes(t, (int64_t)r->size);
        mti_table_bytes(t, (int64_t)r->measured);
        mti_table_bytes(t, (int64_t)r->predicted);
        mti_table_bytes(t, mti_bytes_more(r->measured, r->predicted, r->size));
        mti_table_bytes(t, (int64_t)r->measured_free);
        mti_table_bytes(t, (int64_t)r->predicted_free);
    }
    return mti_table_finish(t, to);
}

static void print_stream(mti_table *t, const char *side, const char *name, const mti_history *h,
                         int stream)
{
    const mti_stream_use use = mti_history_use(h, stream);
    if (!use.n_segments) return;
    mti_table_cells(t, "%s|%s|%s|%s|%s|%s", side, name, MTI_THOUSANDS(use.reserved),
                    MTI_THOUSANDS(use.requested + use.rounding + use.pending),
                    MTI_THOUSANDS(use.split), MTI_THOUSANDS(use.whole));
}

/* A stream's free bytes serve no other one. */
static bool print_streams(const mti_compared_history *s, const mti_compared *c, const mti_sheet *to)
{
    const mti_timeline *timeline = &c->profile.measured.timeline;
    mt_stream_stats named[MT_MAX_STREAMS];
    char name[32];
    if (s->history.streams.n < 2 && c->predicted.streams.n < 2) return true;
    const int n = mti_timeline_streams(timeline, timeline->events.n, named);
    mti_heading(to, "By stream: what one has free, no other can use");
    mti_table *t = mti_table_new("llrrrr", "|stream|reserved|used|free in part|free segments");
    for (size_t i = 0; i < s->history.streams.n; i++) {
        snprintf(name, sizeof name, "%lld", (long long)s->history.streams.at[i]);
        print_stream(t, "measured", i ? name : "default", &s->history, (int)i);
    }
    for (int i = 0; i < n; i++) print_stream(t, "predicted", named[i].name, &c->predicted, i);
    return mti_table_finish(t, to);
}

static bool print_snapshot(const mti_compared_file *f, const mti_compared *c, bool all,
                           const mti_sheet *to)
{
    const mti_compared_history *s = f->snapshot;
    print_head(f, to);
    return print_sums(s, c, to) && print_blocks(&s->blocks, all, to) && print_use(s, to) &&
           print_segments(&s->segments, all, to) && print_streams(s, c, to);
}

/* ---- figures of a text ---- */

static const char *place_of(char buf[64], const mti_reading *m)
{
    *buf = 0;
    if (m->line) mti_append(buf, 64, "line %lld", (long long)m->line);
    if (m->step >= 0) mti_append(buf, 64, "%sstep %lld", *buf ? ", " : "", (long long)m->step);
    return buf;
}

/* Which instant is predicted. */
static const char *when(const mti_compared_reading *f)
{
    const mti_reading_kind kind = f->measured.kind;
    if (kind == MTI_READ_WEIGHTS || kind == MTI_READ_LOADED) return "before the first step";
    if (kind == MTI_READ_ALLOCATED || kind == MTI_READ_RESERVED || kind == MTI_READ_DEVICE)
        return f->first ? "at the end of the first step" : "at the end of the second step";
    return f->first ? "in the first step" : "the highest of both steps";
}

static void print_figure(mti_table *t, const mti_compared_reading *f)
{
    char place[64];
    const mti_reading *m = &f->measured;
    const double share = f->predicted ? 100.0 * (double)f->difference / (double)f->predicted : 0;
    mti_table_ink(t, f->difference ? MTI_PLAIN : MTI_GOOD);
    mti_table_cell(t, "%s", place_of(place, m));
    mti_table_cell(t, "%s %s", m->name, m->text);
    mti_table_bytes(t, (int64_t)f->predicted);
    mti_table_bytes(t, f->difference);
    mti_table_cell(t, "%.2f %%", share);
    mti_table_note(t, 1, "%s%s; predicted: %s", mti_choice_name(&mti_reading_kinds, (int)m->kind),
                   m->kind == MTI_READ_DEVICE
                       ? ", with CUDA's context, its libraries and NCCL, which no allocator has"
                       : "",
                   when(f));
    if (m->low < m->high)
        mti_table_note(t, 1, "rounded: stands for %s to %s bytes", MTI_THOUSANDS(m->low),
                       MTI_THOUSANDS(m->high));
    for (int i = 0; i < f->n; i++) {
        const mti_explanation *e = &f->other[i];
        mti_table_note(t, 1, "%s: %s, %s%s", e->what, MTI_THOUSANDS(e->predicted),
                       e->difference      ? "off by "
                       : m->low < m->high ? "within the rounding"
                                          : "which is the figure",
                       e->difference ? MTI_THOUSANDS(e->difference) : "");
    }
}

static bool print_figures(const mti_compared_file *f, const mti_sheet *to)
{
    mti_heading(to, "%s: %zu figure%s", f->path, f->figures.n, f->figures.n == 1 ? "" : "s");
    mti_table *t = mti_table_new("lerrr", "|as written|predicted|difference|");
    for (size_t i = 0; i < f->figures.n; i++) print_figure(t, &f->figures.at[i]);
    return mti_table_finish(t, to);
}

bool mti_print_compared(const mti_compared *c, bool all, FILE *out)
{
    const mti_profile_result *p = &c->profile;
    const mti_sheet sheet = mti_sheet_of(out);
    bool ok = true;
    if (c->of_report) {
        mti_print_line(&sheet, "predicted: a report of %s", c->of_report);
    } else {
        mti_print_model(&p->workload, p->device, &sheet);
        mti_print_rank(&p->workload, &p->measured, &sheet);
    }
    for (size_t i = 0; ok && i < c->files.n; i++) {
        const mti_compared_file *f = &c->files.at[i];
        if (f->snapshot) ok = print_snapshot(f, c, all, &sheet);
        if (ok && f->oom) ok = mti_print_oom(f->oom, c, f->path, all, &sheet);
        if (ok && f->figures.n) ok = print_figures(f, &sheet);
        if (ok && *f->unclear) mti_print_line(&sheet, "Not compared: %s, %s", f->path, f->unclear);
    }
    return ok;
}

/* ---- JSON ---- */

DESCRIBE(describe_explanation, mti_explanation, KEY(what), KEY(predicted), KEY(difference));

static void describe_figure(mti_fields *f, const void *figure)
{
    const mti_compared_reading *c = figure;
    const mti_reading *m = &c->measured;
    KEYS(f, mti_reading, m, KEY_CHOICE(kind, &mti_reading_kinds), KEY(name), KEY(text),
         KEY_OR_NULL(line));
    mti_field_int(mti_null_unless(f, m->step >= 0), "step", m->step);
    KEYS(f, mti_reading, m, KEY(low), KEY(high));
    KEYS(f, mti_compared_reading, c, KEY(predicted), KEY(difference));
    mti_field_list(f, "otherwise", describe_explanation, c->other, (size_t)c->n, sizeof *c->other);
}

DESCRIBE(describe_sums, mti_memory_sums, KEY(requested), KEY(allocated), KEY(active),
         KEY(reserved));
DESCRIBE(describe_use, mti_stream_use, KEY(requested), KEY(rounding), KEY(pending),
         KEY_AS("free_split", split), KEY_AS("free_whole", whole), KEY(reserved),
         KEY_AS("segments", n_segments), KEY_AS("free_segments", n_free));

static void describe_row(mti_fields *f, const void *row)
{
    const mti_block_row *r = row;
    KEYS(f, mti_block_row, r, KEY_AS("bytes", size), KEY(measured), KEY(predicted));
    mti_field_int(f, "difference", mti_block_row_difference(r));
    KEYS(f, mti_block_row, r, KEY_AS("op", context.op), KEY_AS("where", context.where),
         KEY_AS("places", n_contexts), KEY_OR_NULL(known));
}

DESCRIBE(describe_segment, mti_segment_row, KEY_AS("bytes", size), KEY(measured), KEY(predicted),
         KEY(measured_free), KEY(predicted_free));

static void describe_stream(mti_fields *f, const void *history)
{
    const mti_history *h = history;
    const mti_stream_use use = mti_history_use(h, (int)f->i);
    mti_field_int(f, "stream", h->streams.n ? h->streams.at[f->i] : 0);
    describe_use(f, &use);
}

static void describe_side(mti_fields *f, const mti_memory_sums *peak, const mti_memory_sums *end,
                          const mti_stream_use *use, const mti_history *h)
{
    mti_field_object(f, "peak", describe_sums, peak);
    mti_field_object(f, "end", describe_sums, end);
    mti_field_object(f, "use", describe_use, use);
    mti_field_list(f, "streams", describe_stream, h, h->streams.n, 0);
    mti_field_size(f, "events", h->events.n);
    mti_field_size(f, "blocks", h->blocks.n);
}

/* A file's snapshot and the prediction. */
typedef struct sides {
    const mti_compared_history *measured;
    const mti_history *predicted;
    const mti_predicted *figures; /* [MTI_READ_COUNT] */
} sides;

static void describe_measured(mti_fields *f, const void *at)
{
    const mti_compared_history *s = ((const sides *)at)->measured;
    mti_field_int(f, "device", s->history.device);
    mti_field_size(f, "other_devices", s->history.other_devices);
    describe_side(f, &s->peak, &s->end, &s->use, &s->history);
}

DESCRIBE(describe_first_step, mti_memory_sums, KEY(requested), KEY(allocated), KEY(reserved));

static void describe_predicted(mti_fields *f, const void *at)
{
    const sides *both = at;
    const mti_compared_history *s = both->measured;
    const mti_memory_sums first = {.requested = both->figures[MTI_READ_PEAK_REQUESTED].first,
                                   .allocated = both->figures[MTI_READ_PEAK_ALLOCATED].first,
                                   .reserved = both->figures[MTI_READ_PEAK_RESERVED].first};
    describe_side(f, &s->predicted_peak, &s->predicted_end, &s->predicted_use, both->predicted);
    mti_field_object(f, "first_step", describe_first_step, &first);
}

DESCRIBE(describe_matched, mti_block_match, KEY_AS("by_op", n_by_op),
         KEY_AS("by_op_bytes", bytes_by_op), KEY_AS("by_size", n_by_size),
         KEY_AS("by_size_bytes", bytes_by_size));

static void describe_snapshot(mti_fields *f, const void *at)
{
    const mti_compared_history *s = ((const sides *)at)->measured;
    const mti_block_match *m = &s->blocks;
    mti_field_object(f, "measured", describe_measured, at);
    mti_field_object(f, "predicted", describe_predicted, at);
    mti_field_object(f, "matched", describe_matched, m);
    mti_field_list(f, "rows", describe_row, m->rows.at, m->rows.n, sizeof *m->rows.at);
    mti_field_list(f, "segments", describe_segment, s->segments.at, s->segments.n,
                   sizeof *s->segments.at);
}

static void describe_file(mti_fields *f, const void *compared)
{
    static const mti_compared_history none;
    static const mti_compared_oom no_oom;
    const mti_compared *c = compared;
    const mti_compared_file *file = c->files.n ? &c->files.at[f->i] : &(mti_compared_file){0};
    const sides both = {file->snapshot ? file->snapshot : &none, &c->predicted, c->runs[0].figures};
    mti_field_text(f, "path", file->path);
    mti_field_object(mti_null_unless(f, file->snapshot), "snapshot", describe_snapshot, &both);
    mti_field_object(mti_null_unless(f, file->oom), "out_of_memory", mti_describe_oom,
                     file->oom ? file->oom : &no_oom);
    mti_field_list(f, "figures", describe_figure, file->figures.at, file->figures.n,
                   sizeof *file->figures.at);
    mti_field_text(mti_null_unless(f, *file->unclear), "unclear", file->unclear);
}

void mti_describe_compared(mti_fields *f, const void *compared)
{
    const mti_compared *c = compared;
    const mti_profile_result *p = &c->profile;
    mti_field_schema(f, "memtape.compare/1");
    mti_field_object(mti_null_unless(f, !c->of_report), "model", mti_describe_model, &p->workload);
    mti_field_text(f, "device", p->device ? mt_device_kind(p->device) : "meta");
    mti_field_list(f, "files", describe_file, c, c->files.n, 0);
}

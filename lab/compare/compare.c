/* compare.c: measured beside predicted. */
#include <stdlib.h>
#include <string.h>
#include "compare/compare.h"
#include "compare/report_read.h"
#include "files/files.h"

#define LONGEST_FILE ((size_t)8 << 30)

/* ---- files ---- */

/* Sets f->oom if the text has such a message. */
static bool take_oom(mti_compared_file *f, char *text)
{
    mti_oom oom;
    if (!mti_oom_take(&oom, text)) return true;
    f->oom = mti_calloc(1, sizeof *f->oom);
    if (f->oom) f->oom->read = oom;
    return f->oom != NULL;
}

static bool read_file(mti_compared_file *f, mti_readings *figures)
{
    size_t n;
    const char *from = strcmp(f->path, "-") ? f->path : "/dev/stdin"; /* what one pastes */
    char *bytes = mti_file_read(from, LONGEST_FILE, &n);
    bool ok = bytes != NULL;
    if (ok && (unsigned char)*bytes == 0x80) {
        f->snapshot = mti_calloc(1, sizeof *f->snapshot);
        ok = f->snapshot && mti_history_read(&f->snapshot->history, f->path, bytes, n);
    } else if (ok) {
        bytes[n = mti_make_plain(bytes, n)] = 0;
        ok = take_oom(f, bytes) && mti_readings_read(figures, f->path, bytes, n, f->oom != NULL);
    }
    memcpy(f->unclear, figures->unclear, sizeof f->unclear);
    for (size_t i = 0; ok && i < figures->n; i++)
        ok = MTI_PUSH(&f->figures, ((mti_compared_reading){.measured = figures->at[i]}));
    mti_free(bytes);
    return ok;
}

static bool read_files(mti_compared *c, const char *const *paths, size_t n)
{
    bool ok = true;
    for (size_t i = 0; ok && i < n; i++) {
        mti_readings figures = {0};
        ok = MTI_PUSH(&c->files, ((mti_compared_file){.path = paths[i]})) &&
             read_file(&c->files.at[i], &figures);
        mti_free(figures.at);
    }
    return ok;
}

/* ---- predictions ---- */

static void raise_to(size_t *most, size_t n)
{
    if (n > *most) *most = n;
}

/* Takes the figures of a run up to then. Nothing waits for another stream, so what is active is
 * allocated. */
static void predict(mti_alternative *a, const char *what, const mti_measurement *m, mti_until until)
{
    mti_predicted *f = a->figures;
    *a = (mti_alternative){.what = what};
    for (int i = 0; i < m->phases.n && (until != MTI_UNTIL_FORWARD || i < 2); i++) {
        const mti_phase *p = &m->phases.at[i];
        raise_to(&f[MTI_READ_PEAK_ALLOCATED].first, p->peak);
        raise_to(&f[MTI_READ_PEAK_REQUESTED].first, p->requested_peak);
        raise_to(&f[MTI_READ_PEAK_RESERVED].first, p->reserved_peak);
        f[MTI_READ_ALLOCATED].first = p->allocated, f[MTI_READ_RESERVED].first = p->reserved;
    }
    if (m->phases.n) {
        const mti_phase *init = &m->phases.at[0];
        f[MTI_READ_WEIGHTS].first = init->by_category[MT_PARAMETER] + init->by_category[MT_CACHE];
        f[MTI_READ_LOADED].first = init->reserved;
    }
    for (int k = 0; k < MTI_READ_COUNT; k++) f[k].any = f[k].first;
    const mti_steady *s = &m->steady;
    if (until == MTI_UNTIL_END) {
        raise_to(&f[MTI_READ_PEAK_ALLOCATED].any, s->peak);
        raise_to(&f[MTI_READ_PEAK_REQUESTED].any, s->requested);
        raise_to(&f[MTI_READ_PEAK_RESERVED].any, s->reserved);
    }
    if (until == MTI_UNTIL_END && s->phases.n) {
        f[MTI_READ_ALLOCATED].any = s->phases.at[s->phases.n - 1].allocated;
        f[MTI_READ_RESERVED].any = s->phases.at[s->phases.n - 1].reserved;
    }
    f[MTI_READ_PEAK_ACTIVE] = f[MTI_READ_PEAK_ALLOCATED];
    f[MTI_READ_DEVICE] = f[MTI_READ_RESERVED];
}

/* The same run with another choice; a run that a capacity refuses is none. */
static bool run_other(mti_compared *c, const char *what, const mti_workload *w)
{
    mti_measurement m;
    mti_requirement need;
    bool refused = false;
    bool ok = mti_measure_requirement(&need, &m, w, NULL, &refused);
    if (ok) predict(&c->runs[c->n_runs++], what, &m, c->until);
    if (!ok && refused) mt_clear_error();
    mti_measurement_free(&m);
    return ok || refused;
}

/* Other choices that the measured run may have made, of those that show only in its figures. */
static bool run_others(mti_compared *c, const mt_gpu *gpu)
{
    mti_workload w = c->profile.workload;
    w.device.expandable = !w.device.expandable;
    w.device.granule = 0, w.device.reclaim = false;
    if (!run_other(
            c, w.device.expandable ? "with --expandable-segments" : "without --expandable-segments",
            &w))
        return false;
    w = c->profile.workload;
    if (w.device.gemm_workspace) return true;
    const size_t n = w.device.gemm_workspace = mti_outside_workspace(gpu);
    const bool whole = n % ((size_t)1 << 20) == 0;
    snprintf(c->workspaces, sizeof c->workspaces,
             "with --recipe plain:gemm-workspace=%zu%s (cuBLAS on an %s)", whole ? n >> 20 : n,
             whole ? "MiB" : "", gpu->name);
    return run_other(c, c->workspaces, &w);
}

/* ---- figures ---- */

/* From the nearest byte that the figure may stand for; 0: it may stand for this one. */
static int64_t distance(const mti_reading *f, uint64_t predicted)
{
    if (predicted < f->low) return (int64_t)(f->low - predicted);
    return predicted > f->high ? -(int64_t)(predicted - f->high) : 0;
}

static void explain(mti_compared_reading *f, const char *what, uint64_t predicted,
                    int64_t difference)
{
    int i = f->n;
    if (predicted == f->predicted && difference == f->difference) return;
    if (i == MTI_MOST_EXPLANATIONS) return;
    f->n++;
    for (; i > 0 && llabs(f->other[i - 1].difference) > llabs(difference); i--)
        f->other[i] = f->other[i - 1];
    f->other[i] = (mti_explanation){what, predicted, difference};
}

static void compare_figure(mti_compared_reading *f, const mti_compared *c)
{
    const mti_reading *m = &f->measured;
    const mti_predicted *asked = &c->runs[0].figures[m->kind];
    f->first = m->step == 0 || m->step == 1;
    f->predicted = f->first ? asked->first : asked->any;
    f->difference = distance(m, f->predicted);
    if (!f->difference) return;
    explain(f, f->first ? "in the steady state" : "in the first step",
            f->first ? asked->any : asked->first,
            distance(m, f->first ? asked->any : asked->first));
    for (int i = 1; i < c->n_runs; i++) {
        const mti_predicted *p = &c->runs[i].figures[m->kind];
        const size_t n = f->first ? p->first : p->any;
        explain(f, c->runs[i].what, n, distance(m, n));
    }
    if (m->kind == MTI_READ_DEVICE) {
        const mti_alternative *last = &c->runs[c->n_runs - 1]; /* with workspaces, if any */
        const mti_alternative *run = last->what == c->workspaces ? last : c->runs;
        const size_t n = run->figures[m->kind].any + c->n_beyond;
        explain(f, c->beyond, n, distance(m, n));
    }
    if (m->otherwise) {
        const uint64_t half = (m->high - m->low) / 2;
        const mti_reading other = {.low = m->otherwise - half, .high = m->otherwise + half};
        explain(f, "if its unit is a power of 1024", f->predicted, distance(&other, f->predicted));
    }
}

/* What nvidia-smi sees of the card beside the allocator. */
static void find_beyond(mti_compared *c, const mt_gpu *gpu)
{
    mti_outside o;
    mti_outside_begin(&o, gpu, &c->profile.workload.parallel);
    c->n_beyond = mti_outside_sum(&o, MTI_SIDE_BEYOND);
    snprintf(c->beyond, sizeof c->beyond, "with what --outside adds on an %s", gpu->name);
}

/* ---- snapshots ---- */

/* Libraries' workspaces, which PyTorch's allocator has and a profile only if told so. */
static void name_known(mti_block_match *m, const mt_gpu *gpu)
{
    for (size_t i = 0; i < m->rows.n; i++) {
        mti_block_row *r = &m->rows.at[i];
        if (r->measured <= r->predicted) continue;
        if (r->size == mti_outside_workspace(gpu))
            r->known = "cuBLAS's workspace: --recipe plain:gemm-workspace";
        if (r->size == mti_outside_te_workspace(gpu)) r->known = "Transformer Engine's workspace";
    }
}

static bool compare_snapshot(mti_compared_history *s, const mti_compared *c, const mt_gpu *gpu)
{
    s->peak = mti_history_peak(&s->history, &s->n_events);
    s->end = mti_history_end(&s->history);
    s->predicted_peak = mti_history_peak(&c->predicted, &s->n_predicted);
    s->predicted_end = mti_history_end(&c->predicted);
    s->use = mti_history_use(&s->history, -1);
    s->predicted_use = mti_history_use(&c->predicted, -1);
    bool ok = mti_segments_match(&s->segments, &s->history, &c->predicted) &&
              mti_blocks_match(&s->blocks, &s->history, s->n_events, &c->predicted, s->n_predicted);
    name_known(&s->blocks, gpu);
    return ok;
}

/* The events of the prediction up to c->until. */
static bool take_history(mti_compared *c)
{
    mti_timeline t = c->profile.measured.timeline;
    size_t n = t.steady ? t.steady : t.events.n, segments = 0;
    for (size_t i = 0; i < n && c->until == MTI_UNTIL_FORWARD; i++)
        if (!strcmp(t.events.at[i].phase, "backward")) n = i;
    if (c->until != MTI_UNTIL_END) {
        while (segments < t.segments.n && t.segments.at[segments].before < n) segments++;
        t.events.n = n, t.segments.n = segments;
    }
    return mti_history_of(&c->predicted, &t);
}

/* Whatever was read, beside c->profile. changes: to try; NULL: none can be run. */
static bool compare_all(mti_compared *c, const mt_gpu *gpu, const mti_changes *changes)
{
    bool figures = false, ok = take_history(c);
    predict(&c->runs[c->n_runs++], "as asked for", &c->profile.measured, c->until);
    for (size_t i = 0; i < c->files.n; i++) figures = figures || c->files.at[i].figures.n;
    find_beyond(c, gpu);
    if (ok && figures && changes) ok = run_others(c, gpu);
    for (size_t i = 0; ok && i < c->files.n; i++) {
        mti_compared_file *f = &c->files.at[i];
        for (size_t k = 0; k < f->figures.n; k++) compare_figure(&f->figures.at[k], c);
        ok = (!f->snapshot || compare_snapshot(f->snapshot, c, gpu)) &&
             (!f->oom || mti_oom_compare(f->oom, &c->profile, changes));
    }
    return ok;
}

bool mti_compared_make(mti_compared *c, const char *const *paths, size_t n, const mti_workload *w,
                       const mt_gpu *gpu, const mti_changes *changes, const char *advice)
{
    *c = (mti_compared){.until = c->until};
    return read_files(c, paths, n) && mti_profile_make(&c->profile, w, advice, false) &&
           compare_all(c, gpu, changes);
}

/* A report tells the phases of a step, and not what was there before. */
static void drop_loaded(mti_compared_file *f)
{
    size_t n = 0;
    for (size_t i = 0; i < f->figures.n; i++) {
        const mti_reading *m = &f->figures.at[i].measured;
        const bool loaded = m->kind == MTI_READ_WEIGHTS || m->kind == MTI_READ_LOADED;
        if (loaded && !*f->unclear)
            mti_format(f->unclear, sizeof f->unclear, "line %lld: %s needs a MODEL, not a report",
                       (long long)m->line, m->name);
        if (!loaded) f->figures.at[n++] = f->figures.at[i];
    }
    f->figures.n = n;
}

bool mti_compared_with_report(mti_compared *c, const char *const *paths, size_t n,
                              const char *report, const mt_gpu *gpu)
{
    *c = (mti_compared){0};
    if (!read_files(c, paths, n)) return false;
    for (size_t i = 0; i < n; i++) drop_loaded(&c->files.at[i]);
    for (size_t i = 0; i < n; i++)
        if (c->files.at[i].oom)
            return mti_fail_bool(MT_ERR_UNSUPPORTED,
                                 "%s: the text of the error needs a MODEL that can run again; "
                                 "beside a report give the snapshot of that instant",
                                 paths[i]);
    return mti_report_read(&c->profile.measured, &c->of_report, report, 0) &&
           compare_all(c, gpu, NULL);
}

void mti_compared_free(mti_compared *c)
{
    for (size_t i = 0; i < c->files.n; i++) {
        mti_compared_file *f = &c->files.at[i];
        if (f->snapshot) {
            mti_history_free(&f->snapshot->history);
            mti_block_match_free(&f->snapshot->blocks);
            mti_free(f->snapshot->segments.at);
        }
        mti_free(f->snapshot);
        mti_oom_free(f->oom);
        mti_free(f->oom);
        mti_free(f->figures.at);
    }
    mti_free(c->files.at);
    mti_history_free(&c->predicted);
    mti_profile_free(&c->profile);
    mti_free(c->of_report);
    *c = (mti_compared){0};
}

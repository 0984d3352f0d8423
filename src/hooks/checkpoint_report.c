/* checkpoint_report.c: what checkpoints keep and give up, and warnings where that saves nothing. */
#include <stdio.h>
#include <string.h>
#include "hooks/checkpoint.h"

struct mt_checkpoint_report {
    int depth;
    MTI_VEC(mt_checkpoint_segment) segments;
    mti_hashmap inputs; /* serials counted in `between` */
    size_t between, inside;
};

mt_checkpoint_report *mt_checkpoint_report_new(void)
{
    return mti_calloc(1, sizeof(mt_checkpoint_report));
}

void mt_checkpoint_report_clear(mt_checkpoint_report *r)
{
    if (!r) return;
    r->segments.n = 0;
    mti_hashmap_free(&r->inputs);
    r->between = r->inside = 0;
}

void mt_checkpoint_report_free(mt_checkpoint_report *r)
{
    if (!r) return;
    mti_free(r->segments.at);
    mti_hashmap_free(&r->inputs);
    mti_free(r);
}

size_t mt_checkpoint_report_count(const mt_checkpoint_report *r) { return r ? r->segments.n : 0; }

mt_status mt_checkpoint_report_get(const mt_checkpoint_report *r, size_t i,
                                   mt_checkpoint_segment *out)
{
    if (!mti_given(r, "checkpoint_report_get", "the report")) return mt_last_status();
    if (!out) return mti_fail(MT_ERR_ARGUMENT, "checkpoint_report_get: the result is NULL");
    if (i >= mt_checkpoint_report_count(r))
        return mti_fail(MT_ERR_ARGUMENT, "checkpoint_report_get: segment %zu; there are %zu", i,
                        mt_checkpoint_report_count(r));
    *out = r->segments.at[i];
    return MT_OK;
}

void mt_checkpoint_report_totals(const mt_checkpoint_report *r, size_t *between, size_t *inside)
{
    if (between) *between = r ? r->between : 0;
    if (inside) *inside = r ? r->inside : 0;
}

/* ---- counting ---- */

/* NULL while recomputing: the checkpoint was reported in forward. */
static mt_checkpoint_report *report_of(const mti_frame *f)
{
    return mt_recomputing() ? NULL : f->options.report;
}

static bool in(const mti_hashmap *serials, uint64_t serial)
{
    return mti_hashmap_find(serials, serial) != MTI_NO_PLACE;
}

bool mti_report_saved(mti_frame *f, const mt_tensor *t)
{
    if (!report_of(f)) return true;
    mt_storage_info s = mt_storage_of(t);
    if (in(&f->seen, s.serial)) return true;
    if (!mti_hashmap_add(&f->seen, s.serial, 0)) return false;
    f->inside_bytes += s.bytes;
    return true;
}

void mti_report_enter(mti_frame *f)
{
    if (report_of(f)) f->options.report->depth++;
}

mt_status mti_report_leave(mti_frame *f, mt_tensor *const *inputs)
{
    mt_checkpoint_report *r = report_of(f);
    if (!r) return MT_OK;
    mt_checkpoint_segment s = {.label = f->options.label,
                               .depth = --r->depth,
                               .policy_bytes = f->policy_bytes,
                               .inside_bytes = f->inside_bytes};
    for (size_t i = 0; i < f->entries.n; i++) s.n_inside += !f->entries.at[i].parameter;
    bool kept = f->holders > 1; /* a save in it holds the hooks, and they the frame */
    for (int i = 0; kept && inputs && i < f->n_in; i++) {
        mt_storage_info info = mt_storage_of(inputs[i]);
        bool skip = info.category == MT_PARAMETER;
        for (int k = 0; k < i; k++) skip = skip || mt_same_storage(inputs[i], inputs[k]);
        if (skip) continue;
        s.input_bytes += info.bytes;
        if (s.depth || in(&r->inputs, info.serial)) continue;
        if (!mti_hashmap_add(&r->inputs, info.serial, 0)) return mt_last_status();
        r->between += info.bytes;
    }
    if (!inputs) return MT_OK;
    if (!MTI_PUSH(&r->segments, s)) return mt_last_status();
    if (!s.depth && s.inside_bytes > r->inside) r->inside = s.inside_bytes;
    return MT_OK;
}

/* ---- warnings ---- */

typedef struct text {
    char *buf;
    size_t size, n;
    int n_lines;
} text;

static void add(text *t, const char *line)
{
    size_t n = strlen(line);
    if (t->n < t->size) snprintf(t->buf + t->n, t->size - t->n, "%s\n", line);
    t->n += n + 1;
    t->n_lines++;
}

int mt_checkpoint_lint(const mt_checkpoint_report *r, char *buf, size_t n_bytes)
{
    if (!buf) n_bytes = 0;
    text t = {buf, n_bytes, 0, 0};
    char line[512], a[32], b[32];
    if (n_bytes) *buf = '\0';
    for (size_t i = 0; i < mt_checkpoint_report_count(r); i++) {
        const mt_checkpoint_segment *s = &r->segments.at[i];
        if (s->input_bytes < s->inside_bytes || !s->n_inside) continue;
        snprintf(line, sizeof line,
                 "checkpoint %.200s keeps %s of inputs and gives up %s inside: it saves nothing",
                 s->label, mti_bytes_text(a, sizeof a, s->input_bytes),
                 mti_bytes_text(b, sizeof b, s->inside_bytes));
        add(&t, line);
    }
    if (r && r->between > r->inside) {
        snprintf(line, sizeof line,
                 "%s are kept between checkpoints, at most %s come back inside one: larger "
                 "segments would lower the peak",
                 mti_bytes_text(a, sizeof a, r->between), mti_bytes_text(b, sizeof b, r->inside));
        add(&t, line);
    }
    return t.n_lines;
}

/* checkpoint_trace.c: the saves of a function, to compare its second run with the first. */
#include <stdio.h>
#include <string.h>
#include "hooks/checkpoint.h"

/* ---- digests ---- */

static uint64_t mix(uint64_t h)
{
    h ^= h >> 32;
    h *= 0xd6e8feb86659fd93u;
    return h ^ h >> 29;
}

static uint64_t hash(const unsigned char *data, size_t n_bytes)
{
    uint64_t h = n_bytes;
    for (size_t i = 0; i < n_bytes; i += 8) {
        uint64_t word = 0;
        memcpy(&word, data + i, n_bytes - i < 8 ? n_bytes - i : 8);
        h = mix(h ^ word) + 0x9e3779b97f4a7c15u;
    }
    return h;
}

static bool digest(mt_tensor *t, uint64_t *out)
{
    size_t n_bytes = (size_t)mt_numel(t) * mt_dtype_size(mt_dtype_of(t));
    unsigned char *data = mti_malloc(n_bytes);
    if (!data) return false;
    bool ok = mt_to_host(t, data, n_bytes) == MT_OK;
    if (ok) *out = hash(data, n_bytes);
    mti_free(data);
    return ok;
}

bool mti_trace_note(const mti_frame *f, const mt_save_info *info, mt_tensor *t, mti_trace_entry *e)
{
    *e = (mti_trace_entry){.saver = mt_saver_of(info, t),
                           .device = mt_device_of(t),
                           .parameter = mt_storage_of(t).category == MT_PARAMETER};
    bool digested = f->options.check && !e->parameter && mt_device_has_data(mt_device_of(t));
    return !digested || digest(t, &e->digest);
}

/* ---- comparing ---- */

/* The name of what differs; NULL if nothing does. */
static const char *difference(const mti_trace_entry *then, const mti_trace_entry *now)
{
    const mt_saver *a = &then->saver, *b = &now->saver;
    if (strcmp(a->op, b->op) != 0) return "op";
    if (strcmp(a->argument, b->argument) != 0) return "argument";
    if (a->module != b->module && strcmp(a->module, b->module) != 0) return "module";
    if (then->device != now->device) return "device";
    if (a->dtype != b->dtype) return "dtype";
    if (a->rank != b->rank || memcmp(a->shape, b->shape, (size_t)a->rank * sizeof *a->shape) != 0)
        return "shape";
    if (then->parameter != now->parameter) return "category";
    return then->digest == now->digest ? NULL : "value";
}

/* An error text of whole lines. */
typedef struct text {
    char buf[960];
    size_t n;
} text;

static void add_line(text *t, const char *when, size_t i, const mti_trace_entry *entry)
{
    const mt_saver *e = entry ? &entry->saver : NULL;
    char line[2 * MTI_SHAPE_TEXT], shape[MTI_SHAPE_TEXT];
    if (e)
        snprintf(line, sizeof line, "\n  %s %zu: %s %s %s %s%s%.48s", when, i, e->op, e->argument,
                 mt_dtype_name(e->dtype), mti_shape_text(shape, e->rank, e->shape),
                 *e->module ? " in " : "", e->module);
    else
        snprintf(line, sizeof line, "\n  %s %zu: (the end)", when, i);
    size_t n = strlen(line);
    if (t->n + n >= sizeof t->buf) return;
    memcpy(t->buf + t->n, line, n + 1);
    t->n += n;
}

static const mti_trace_entry *then(const mti_frame *f, size_t i)
{
    return i < f->entries.n ? &f->entries.at[i] : NULL;
}

bool mti_trace_compare(const mti_frame *f, size_t i, const mti_trace_entry *now)
{
    const mti_trace_entry *first = then(f, i);
    const char *field = first && now ? difference(first, now) : "number of saves";
    if (!field) return true;
    const mt_saver *named = now ? &now->saver : &first->saver;
    text t = {.n = 0};
    t.n = (size_t)snprintf(t.buf, sizeof t.buf,
                           "checkpoint %.80s: running it again saved something else: %s of %s "
                           "%s%s%.80s (forward saved %zu)",
                           f->options.label, field, named->op, named->argument,
                           *named->module ? " in " : "", named->module, f->entries.n);
    size_t from = i < 2 ? 0 : i - 2;
    for (size_t k = from; k <= i + 1 && (k <= i || then(f, k)); k++)
        add_line(&t, "then", k, then(f, k));
    for (size_t k = from; k < i; k++) add_line(&t, "now ", k, then(f, k));
    add_line(&t, "now ", i, now);
    return mti_fail_bool(MT_ERR_STATE, "%s", t.buf);
}

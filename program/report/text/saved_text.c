/* saved_text.c: a table of what the tape keeps. */
#include <stdlib.h>
#include <string.h>
#include "report/sections.h"
#include "report/results.h"

/* Entries that differ only in their layer's number, or in the forward that they are of, share a
 * line. */
typedef struct line {
    mt_ledger_entry entry; /* the first of them */
    size_t index;          /* its place in the ledger */
    size_t count;
    long first, last; /* numbers of the layers; -1 if the path has none */
} line;

static bool alike(const mt_ledger_entry *a, const mt_ledger_entry *b)
{
    const mt_saver *s = &a->saver, *t = &b->saver;
    if (a->bytes != b->bytes || a->n_savers != b->n_savers) return false;
    if (s->role != t->role || s->dtype != t->dtype || s->rank != t->rank) return false;
    for (int d = 0; d < s->rank; d++)
        if (s->shape[d] != t->shape[d]) return false;
    return !strcmp(s->op, t->op) && !strcmp(s->argument, t->argument);
}

static bool foldable(const mt_ledger_entry *a, const mt_ledger_entry *b)
{
    return alike(a, b) && *mti_number_in(a->saver.module) &&
           mti_compare_paths(a->saver.module, b->saver.module) == 0;
}

/* Whether the entry, of this layer, goes to the line. With several forwards through the same
 * modules, those of all of them do. */
static bool joins(const line *l, const mt_ledger_entry *e, long layer, bool repeated)
{
    if (layer >= 0 && foldable(&l->entry, e))
        return l->last == layer - 1 || (repeated && l->first <= layer && layer <= l->last);
    return repeated && layer < 0 && alike(&l->entry, e) &&
           !strcmp(l->entry.saver.module, e->saver.module);
}

/* lines has room for every entry. Returns the number of lines. */
static size_t fold(const mt_ledger *ledger, bool repeated, line *lines)
{
    size_t n = 0;
    for (size_t i = 0; i < mt_ledger_count(ledger); i++) {
        mt_ledger_entry e;
        if (mt_ledger_get(ledger, i, &e) != MT_OK) break;
        const char *number = mti_number_in(e.saver.module);
        long layer = *number ? strtol(number, NULL, 10) : -1;
        size_t k = 0;
        while (k < n && !joins(&lines[k], &e, layer, repeated)) k++;
        if (k == n) {
            lines[n++] = (line){.entry = e, .index = i, .count = 1, .first = layer, .last = layer};
        } else {
            lines[k].count++;
            if (layer > lines[k].last) lines[k].last = layer;
        }
    }
    return n;
}

/* A path of the first entry, made to name all of the line's: "gpt.h.0-11.mlp.act". */
static const char *path_of_all(char *buf, size_t size, const line *l, const char *path)
{
    return mti_name_all(buf, size, path, l->first, l->last);
}

static size_t view_bytes(const mt_saver *s)
{
    size_t n = mt_dtype_size(s->dtype);
    for (int d = 0; d < s->rank; d++) n *= (size_t)s->shape[d];
    return n;
}

/* A note of who else keeps the same storage: "k, v, attn.proj linear x". */
static void note_sharers(mti_table *table, const mt_ledger *ledger, const line *l)
{
    char text[512] = "", path[256];
    const mt_saver *last = &l->entry.saver;
    mt_saver s, held;
    for (size_t j = 1; j < l->entry.n_savers; j++) {
        if (mt_ledger_get_saver(ledger, l->index, j, &s) != MT_OK) return;
        if (j > 1) mti_append(text, sizeof text, ", ");
        if (s.node != last->node && strcmp(s.module, last->module) != 0)
            mti_append(text, sizeof text, "%s ", path_of_all(path, sizeof path, l, s.module));
        if (s.node != last->node) mti_append(text, sizeof text, "%s ", s.op);
        mti_append(text, sizeof text, "%s", s.argument);
        held = s;
        last = &held;
    }
    if (!*text) return;
    bool part = view_bytes(&l->entry.saver) < l->entry.bytes;
    mti_table_ink(table, MTI_DIM);
    mti_table_note(table, 2, part ? "one storage with %s" : "also kept, at no cost: %s", text);
}

static void print_line(mti_table *table, const mt_ledger *ledger, const line *l, const char *path,
                       bool repeated, size_t total)
{
    char shape[MTI_SHAPE_TEXT];
    const mt_saver *s = &l->entry.saver;
    size_t sum = l->entry.bytes * l->count;
    mti_table_cells(table, "%s|%s|%s|%s|%s|%s", repeated ? "" : path, repeated ? "" : s->op,
                    s->argument, mt_save_role_name(s->role),
                    mti_shape_text(shape, s->rank, s->shape), mt_dtype_name(s->dtype));
    if (l->count > 1)
        mti_table_cell(table, "%zu x", l->count);
    else
        mti_table_skip(table, 1);
    mti_table_cells(table, "%s|%.1f %%", MTI_THOUSANDS(sum),
                    total ? 100.0 * (double)sum / (double)total : 0.0);
    note_sharers(table, ledger, l);
}

bool mti_print_saved(const mt_ledger *ledger, bool several, const mti_sheet *to)
{
    line *lines = mti_calloc(mt_ledger_count(ledger) + 1, sizeof *lines);
    if (!lines) return false;
    mti_table *table = mti_table_new("eelolrrro", "module|op|keeps|its|shape|dtype||bytes|share");
    size_t n = fold(ledger, several, lines), total = mt_ledger_bytes(ledger);
    char path[256], before[256] = "";
    const char *op = "";
    for (size_t i = 0; i < n; i++) {
        path_of_all(path, sizeof path, &lines[i], lines[i].entry.saver.module);
        bool repeated = !strcmp(path, before) && !strcmp(op, lines[i].entry.saver.op);
        print_line(table, ledger, &lines[i], path, repeated, total);
        snprintf(before, sizeof before, "%s", path);
        op = lines[i].entry.saver.op;
    }
    mti_table_rule(table);
    mti_table_ink(table, MTI_BOLD);
    mti_table_cells(table, "all, each once||||||%zu|%s|100 %%", mt_ledger_count(ledger),
                    MTI_THOUSANDS(total));
    mti_free(lines);
    return mti_table_finish(table, to);
}

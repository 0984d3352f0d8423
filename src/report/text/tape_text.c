/* tape_text.c: the tape op by op, what each keeps and why. */
#include <stdlib.h>
#include <string.h>
#include "measure/timeline.h"
#include "memtape/op_table.h"
#include "report/parts.h"
#include "report/results.h"

/* ---- the table ---- */

static void save_cells(mti_table *table, const mti_tape *t, const mti_tape_save *s, size_t *total)
{
    static const char *const roles[] = {"in", "out", "aux"};
    char shape[MTI_SHAPE_TEXT];
    const mti_tape_save *payer = s->payer;
    mti_table_cells(table, "%s|%s|%s|%s", s->info.argument, roles[s->info.role],
                    mti_shape_text(shape, s->rank, s->shape), mt_dtype_name(s->dtype));
    if (s->parameter) {
        mti_table_cell(table, "parameter");
    } else if (payer != s) {
        mti_table_cell(table, "as #%zu %s", mti_tape_number(t, payer->info.node),
                       payer->info.argument);
    } else {
        *total += s->bytes;
        mti_table_bytes(table, (int64_t)s->bytes);
    }
    mti_table_bytes(table, (int64_t)*total);
}

/* *next: the first save that no node before this one has made. */
static void node_rows(mti_table *table, const mti_tape *t, size_t n, size_t *next, size_t *total)
{
    const mt_node_info *node = &t->nodes.at[n];
    const mti_tape_save *end = t->saves.at + t->saves.n, *s = t->saves.at + *next;
    while (s < end && s->info.node < node->sequence) s++; /* of nodes that are gone */
    const mti_tape_save *first = s;
    if (s == end || s->info.node != node->sequence) mti_table_ink(table, MTI_DIM);
    mti_table_cells(table, "#%zu|%s|%s", n + 1, node->module, node->op);
    for (; s < end && s->info.node == node->sequence; s++) {
        if (s != first) mti_table_skip(table, 3);
        save_cells(table, t, s, total);
    }
    *next = (size_t)(s - t->saves.at);
    if (s == first) mti_table_cells(table, "nothing|||||%s", MTI_THOUSANDS(*total));
}

/* One row for the layers after the first of the stretch, which are like it. */
static void rest_row(mti_table *table, const mti_tape *t, const mti_tape_stretch *s, size_t *total)
{
    char path[160], all[160];
    const char *module = t->nodes.at[s->first].module, *number = mti_number_in(module);
    size_t rest = s->n_layers - 1, from = s->first + s->n;
    int length = (int)(number - module + (ptrdiff_t)strspn(number, "0123456789"));
    snprintf(path, sizeof path, "%.*s", length, module);
    mti_table_ink(table, MTI_BOLD);
    *total += rest * s->bytes;
    mti_table_cells(table, "#%zu-%zu|%s|%zu x|as|in|%s||%s|%s", from + 1, from + rest * s->n,
                    mti_name_all(all, sizeof all, path, s->first_layer + 1, s->last_layer), rest,
                    path, MTI_THOUSANDS(rest * s->bytes), MTI_THOUSANDS(*total));
}

bool mti_print_tape(const mti_tape *t, const char *where, bool folded, FILE *out,
                    const mti_style *style)
{
    const char *const headings[] = {"op",    where,   "",      "keeps", "its",
                                    "shape", "dtype", "bytes", "so far"};
    mti_tape_stretches stretches = {0};
    if (folded && !mti_tape_stretches_of(t, &stretches)) return mti_free(stretches.at), false;
    mti_table *table = mti_table_new("reelllrrr", headings);
    size_t next = 0, total = 0, n = 0;
    for (size_t i = 0; i < stretches.n; i++) {
        const mti_tape_stretch *s = &stretches.at[i];
        for (n = s->first; n < s->first + s->n; n++) node_rows(table, t, n, &next, &total);
        if (s->n_layers > 1) rest_row(table, t, s, &total);
        n = s->first + s->n * s->n_layers;
    }
    for (; n < t->nodes.n; n++) node_rows(table, t, n, &next, &total);
    mti_free(stretches.at);
    return mti_table_finish(table, out, style);
}

/* ---- the reasons: one paragraph for each kind of op on this tape ---- */

static bool on_tape(const mti_tape *t, const char *op)
{
    for (size_t n = 0; n < t->nodes.n; n++)
        if (!strcmp(t->nodes.at[n].op, op)) return true;
    return false;
}

void mti_print_reasons(const mti_tape *t, FILE *out, const mti_style *style)
{
    mti_heading(out, style, "Why");
    for (int i = 0; i < mt_op_count(); i++) {
        mt_op_info info = mt_op_get(i);
        if (!on_tape(t, info.name)) continue;
        fputs("  ", out);
        mti_inked(out, style, MTI_BOLD, "%s", info.name);
        mti_print(out, "  %s\n", info.formula);
        mti_print_wrapped(out, 6, style->width, info.why);
    }
}

/* explain.c: `memtape explain MODEL`: the tape op by op, what each keeps and why. */
#include <string.h>
#include "cli/verbs.h"
#include "measure/room.h"
#include "measure/tape.h"
#include "memtape/ops.h"
#include "report/figures.h"

/* ---- the table ---- */

static void save_cells(mti_table *table, const mti_tape *t, const mti_tape_save *s, size_t *total)
{
    static const char *const roles[] = {"in", "out", "aux"};
    char shape[MTI_SHAPE_TEXT];
    const mti_tape_save *payer = s->payer;
    mti_table_cell(table, "%s", s->info.argument);
    mti_table_cell(table, "%s", roles[s->info.role]);
    mti_table_cell(table, "%s", mti_shape_text(shape, s->rank, s->shape));
    mti_table_cell(table, "%s", mt_dtype_name(s->dtype));
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
    mti_table_cell(table, "#%zu", n + 1);
    mti_table_cell(table, "%s", node->module);
    mti_table_cell(table, "%s", node->op);
    for (; s < end && s->info.node == node->sequence; s++) {
        if (s != first) mti_table_skip(table, 3);
        save_cells(table, t, s, total);
    }
    *next = (size_t)(s - t->saves.at);
    if (s != first) return;
    mti_table_cell(table, "nothing");
    mti_table_skip(table, 4);
    mti_table_bytes(table, (int64_t)*total);
}

static bool print_table(const mti_tape *t, FILE *out, const mti_style *style)
{
    static const char *const headings[] = {"op",    "module", "",      "keeps", "its",
                                           "shape", "dtype",  "bytes", "so far"};
    mti_table *table = mti_table_new("reelllrrr", headings);
    size_t next = 0, total = 0;
    for (size_t n = 0; n < t->nodes.n; n++) node_rows(table, t, n, &next, &total);
    return mti_table_finish(table, out, style);
}

/* ---- the reasons: one paragraph for each kind of op on this tape ---- */

static bool on_tape(const mti_tape *t, const char *op)
{
    for (size_t n = 0; n < t->nodes.n; n++)
        if (!strcmp(t->nodes.at[n].op, op)) return true;
    return false;
}

static void print_reasons(const mti_tape *t, FILE *out, const mti_style *style)
{
    mti_heading(out, style, "Why");
    for (int i = 0; i < mt_op_count(); i++) {
        mt_op_info info = mt_op_get(i);
        if (!on_tape(t, info.name)) continue;
        fputs("  ", out);
        mti_inked(out, style, MTI_BOLD, "%s", info.name);
        fprintf(out, "  %s\n", info.formula);
        mti_print_wrapped(out, 6, style->width, info.why);
    }
}

static bool print(const mti_tape *t, const mti_options *o, const mt_device *device)
{
    mti_style style = mti_style_of(stdout);
    if (o->quiet) return print_table(t, stdout, &style);
    mti_print_model(&o->workload, device, stdout, &style);
    fputs("the tape after forward, in the order in which ops were recorded\n\n", stdout);
    if (!print_table(t, stdout, &style)) return false;
    print_reasons(t, stdout, &style);
    return true;
}

static bool rehearse(void *user, mt_device *meta)
{
    mti_tape t;
    bool ok = mti_tape_record(&t, meta, user);
    mti_tape_free(&t);
    return ok;
}

int mti_explain(const mti_options *o)
{
    mti_tape t = {0};
    mti_workload w = o->workload;
    mt_device *device = mti_device_make(&w.device);
    bool ok = device && mti_check_room(device, &w, rehearse, &w, MTI_ON_META) &&
              mti_tape_record(&t, device, &w) && print(&t, o, device);
    int status = ok ? MTI_EXIT_OK : mti_report_failure(o);
    mti_tape_free(&t);
    mt_device_release(device);
    return status;
}

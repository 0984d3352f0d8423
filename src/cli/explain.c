/* explain.c: `memtape explain MODEL` or `--expr TEXT`: the tape op by op, what each keeps and why.
 */
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

/* where: what the ops are in, "module". */
static bool print_table(const mti_tape *t, const char *where, FILE *out, const mti_style *style)
{
    const char *const headings[] = {"op",    where,   "",      "keeps", "its",
                                    "shape", "dtype", "bytes", "so far"};
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
    if (o->quiet) return print_table(t, "module", stdout, &style);
    mti_print_model(&o->workload, device, stdout, &style);
    fputs("the tape after forward, in the order in which ops were recorded\n\n", stdout);
    if (!print_table(t, "module", stdout, &style)) return false;
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

/* ---- an expression ---- */

static bool print_leaves(const mti_expression *e, FILE *out, const mti_style *style)
{
    char shape[MTI_SHAPE_TEXT];
    mti_table *table = mti_table_new("llll", NULL);
    for (int i = 0; i < e->n_leaves; i++) {
        const mti_named_leaf *leaf = &e->leaves[i];
        mti_table_cell(table, "%s", leaf->name);
        mti_table_cell(table, "%s", mti_shape_text(shape, leaf->rank, leaf->shape));
        mti_table_cell(table, "%s", mt_dtype_name(leaf->indices ? MT_I64 : e->options.dtype));
        mti_table_cell(table, "%s%s",
                       leaf->indices  ? "indices"
                       : leaf->weight ? "a weight, there anyway"
                                      : "an input",
                       leaf->wants     ? ", wants a gradient"
                       : leaf->indices ? ""
                                       : ", wants no gradient");
    }
    return mti_table_finish(table, out, style);
}

static bool print_expression(const mti_expression *e, const mti_tape *t, const mti_options *o,
                             const mt_device *device)
{
    mti_style style = mti_style_of(stdout);
    if (o->quiet) return print_table(t, "expression", stdout, &style);
    mti_inked(stdout, &style, MTI_BOLD, "%s", e->options.text);
    printf("  on %s\n", mt_device_kind(device));
    if (!print_leaves(e, stdout, &style)) return false;
    if (!t->nodes.n) {
        puts("\nnothing is recorded: no op has an operand that wants a gradient");
        return true;
    }
    fputs("\nthe tape, in the order in which ops were recorded\n\n", stdout);
    if (!print_table(t, "expression", stdout, &style)) return false;
    print_reasons(t, stdout, &style);
    return true;
}

static bool rehearse_expression(void *user, mt_device *meta)
{
    mti_tape t;
    bool ok = mti_expression_record(&t, meta, user);
    mti_tape_free(&t);
    return ok;
}

/* What is wrong with the expression or its shapes is found on meta, before the device is opened. */
static int explain_expression(const mti_options *o)
{
    mti_expression e;
    mti_tape t = {0};
    mt_device *device = NULL;
    mti_expression_options options = o->expression;
    options.dtype = o->given_config.dtype;
    mti_device_options unbounded = o->workload.device;
    unbounded.capacity = 0;
    size_t peak;
    bool ok = mti_expression_read(&e, &options) &&
              mti_rehearse(&unbounded, rehearse_expression, &e, &peak, NULL);
    if (!ok && mt_last_status() == MT_ERR_ARGUMENT) {
        mti_report_failure(o);
        mti_expression_free(&e);
        return MTI_EXIT_USAGE;
    }
    if (ok) device = mti_open_device(&o->workload);
    ok = ok && device && mti_check_fits(device, "the expression", peak, MTI_ON_META) &&
         mti_expression_record(&t, device, &e) && print_expression(&e, &t, o, device);
    int status = ok ? MTI_EXIT_OK : mti_report_failure(o);
    mti_tape_free(&t);
    mti_expression_free(&e);
    mt_device_release(device);
    return status;
}

int mti_explain(const mti_options *o)
{
    if (o->expression.text) return explain_expression(o);
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

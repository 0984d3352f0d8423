/* tape_text.c: the tape op by op, what each keeps and why, and what the ops of each kind keep. */
#include <stdlib.h>
#include <string.h>
#include "measure/timeline.h"
#include "memtape/models/collectives.h"
#include "report/sections.h"
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

bool mti_print_tape(const mti_tape *t, const char *where, bool folded, const mti_sheet *to)
{
    char headings[96];
    snprintf(headings, sizeof headings, "op|%s||keeps|its|shape|dtype|bytes|so far", where);
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
    return mti_table_finish(table, to);
}

/* ---- the reasons: one paragraph for each kind of op on this tape ---- */

static bool on_tape(const mti_tape *t, const char *op)
{
    for (size_t n = 0; n < t->nodes.n; n++)
        if (!strcmp(t->nodes.at[n].op, op)) return true;
    return false;
}

void mti_print_reasons(const mti_tape *t, const mti_sheet *to)
{
    mti_heading(to, "Why");
    for (int i = 0; i < mt_all_ops_count(); i++) {
        mt_op_info info = mt_all_ops_get(i);
        if (!on_tape(t, info.name)) continue;
        fputs("  ", to->out);
        mti_inked(to, MTI_BOLD, "%s", info.name);
        mti_print(to->out, "  %s\n", info.formula);
        mti_print_wrapped(to, 6, info.why);
    }
}

/* ---- by kind of op ---- */

typedef struct kind {
    const char *op;
    size_t n, bytes; /* ops; kept, each storage at its payer */
    char keeps[64];  /* "q, k, v, out" */
} kind;

typedef MTI_VEC(kind) kinds;

static kind *kind_of(kinds *all, const char *op)
{
    for (size_t i = 0; i < all->n; i++)
        if (!strcmp(all->at[i].op, op)) return &all->at[i];
    const kind fresh = {.op = op};
    return MTI_PUSH(all, fresh) ? &all->at[all->n - 1] : NULL;
}

/* Adds the argument's letter unless it is there. */
static void note_argument(kind *k, const char *argument)
{
    const size_t length = strlen(argument);
    for (const char *at = k->keeps; (at = strstr(at, argument)); at++) {
        bool begins = at == k->keeps || at[-1] == ' ';
        if (begins && (!at[length] || at[length] == ',')) return;
    }
    mti_append(k->keeps, sizeof k->keeps, "%s%s", *k->keeps ? ", " : "", argument);
}

static int by_bytes(const void *a, const void *b)
{
    const kind *x = a, *y = b;
    if (x->bytes != y->bytes) return x->bytes > y->bytes ? -1 : 1;
    return strcmp(x->op, y->op);
}

/* Most bytes first. */
static bool count(kinds *all, const mti_tape *t)
{
    for (size_t i = 0; i < t->nodes.n; i++) {
        kind *k = kind_of(all, t->nodes.at[i].op);
        if (!k) return false;
        k->n++;
    }
    for (size_t i = 0; i < t->saves.n; i++) {
        const mti_tape_save *s = &t->saves.at[i];
        if (s->parameter || s->payer->info.node != s->info.node) continue;
        kind *k = kind_of(all, s->info.op); /* views of one storage cost it once */
        if (!k) return false;
        if (s->payer == s) k->bytes += s->bytes;
        note_argument(k, s->info.argument);
    }
    if (all->n) qsort(all->at, all->n, sizeof *all->at, by_bytes);
    return true;
}

static bool print_kinds(const kinds *all, const mti_sheet *to)
{
    char others[200] = "";
    size_t total = 0, n_others = 0;
    for (size_t i = 0; i < all->n; i++) total += all->at[i].bytes;
    mti_heading(to, "Kept for backward by each kind of op");
    mti_table *t = mti_table_new("lrwrr", "|ops|keep||bytes");
    for (size_t i = 0; i < all->n; i++) {
        const kind *k = &all->at[i];
        if (!k->bytes) {
            mti_append(others, sizeof others, "%s%s", *others ? ", " : "", k->op);
            n_others += k->n;
            continue;
        }
        mti_table_cells(t, "%s|%zu|%s|%s|%s", k->op, k->n, k->keeps, MTI_BYTES(k->bytes),
                        MTI_THOUSANDS(k->bytes));
    }
    mti_table_rule(t);
    mti_table_ink(t, MTI_BOLD);
    mti_table_cells(t, "all|||%s|%s", MTI_BYTES(total), MTI_THOUSANDS(total));
    if (!mti_table_finish(t, to)) return false;
    if (n_others) {
        fprintf(to->out, "  %zu others keep nothing of their own:\n", n_others);
        mti_print_wrapped(to, 4, others);
    }
    return true;
}

static bool print_whole(const mti_tape *t, const mti_sheet *to)
{
    mti_heading(to, "The tape after forward, in the order in which ops were recorded");
    if (!mti_print_tape(t, "module", true, to)) return false;
    mti_print_reasons(t, to);
    return true;
}

bool mti_print_explained(const mti_tape *t, const mti_workload *w, const mt_device *device,
                         bool verbose, FILE *out)
{
    const mti_sheet sheet = mti_sheet_of(out);
    mti_screen s;
    const mti_sheet *to;
    kinds all = {0};
    mti_screen_begin(&s, &sheet, false);
    bool ok = (to = mti_screen_open(&s)) != NULL;
    if (ok) mti_print_model(w, device, to);
    ok = ok && mti_screen_close(&s, true, true) && count(&all, t) &&
         (!verbose || print_kinds(&all, &sheet)) && (to = mti_screen_open(&s)) &&
         mti_screen_close(&s, print_whole(t, to), verbose) &&
         (!s.less || print_kinds(&all, &sheet));
    if (ok && s.less)
        mti_inked(&sheet, MTI_DIM, "-v adds all %zu ops, one by one, and why they keep it\n",
                  t->nodes.n);
    mti_free(all.at);
    return ok;
}

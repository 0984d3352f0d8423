/* tape_summary.c: what the ops of each kind keep. */
#include <stdlib.h>
#include <string.h>
#include "report/parts.h"
#include "report/results.h"

typedef struct kind {
    const char *op;
    size_t n, bytes; /* ops; kept, each storage at its payer */
    char keeps[64];  /* "q, k, v, out" */
} kind;

typedef struct kinds {
    kind *at;
    size_t n, cap;
} kinds;

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
    size_t n = strlen(k->keeps), length = strlen(argument);
    for (const char *at = k->keeps; (at = strstr(at, argument)); at++) {
        bool begins = at == k->keeps || at[-1] == ' ';
        if (begins && (!at[length] || at[length] == ',')) return;
    }
    snprintf(k->keeps + n, sizeof k->keeps - n, "%s%s", n ? ", " : "", argument);
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

static bool print_kinds(const kinds *all, FILE *out, const mti_style *style)
{
    char others[200] = "";
    size_t total = 0, n_others = 0, length = 0;
    for (size_t i = 0; i < all->n; i++) total += all->at[i].bytes;
    static const char *const headings[] = {"", "ops", "keep", "", "bytes"};
    mti_heading(out, style, "Kept for backward by each kind of op");
    mti_table *t = mti_table_new("lrwrr", headings);
    for (size_t i = 0; i < all->n; i++) {
        const kind *k = &all->at[i];
        if (!k->bytes) {
            length += (size_t)snprintf(others + length, sizeof others - length, "%s%s",
                                       length ? ", " : "", k->op);
            if (length >= sizeof others) length = sizeof others - 1;
            n_others += k->n;
            continue;
        }
        mti_table_cells(t, "%s|%zu|%s|%s|%s", k->op, k->n, k->keeps, MTI_BYTES(k->bytes),
                        MTI_THOUSANDS(k->bytes));
    }
    mti_table_rule(t);
    mti_table_ink(t, MTI_BOLD);
    mti_table_cells(t, "all|||%s|%s", MTI_BYTES(total), MTI_THOUSANDS(total));
    if (!mti_table_finish(t, out, style)) return false;
    if (n_others) {
        fprintf(out, "  %zu others keep nothing of their own:\n", n_others);
        mti_print_wrapped(out, 4, style->width, others);
    }
    return true;
}

static bool print_whole(const mti_tape *t, FILE *out, const mti_style *style)
{
    mti_heading(out, style, "The tape after forward, in the order in which ops were recorded");
    if (!mti_print_tape(t, "module", true, out, style)) return false;
    mti_print_reasons(t, out, style);
    return true;
}

bool mti_print_explained(const mti_tape *t, const mti_workload *w, const mt_device *device,
                         bool verbose, FILE *out)
{
    const mti_style style = mti_style_of(out);
    mti_screen s;
    FILE *to;
    kinds all = {0};
    mti_screen_begin(&s, out, &style, false);
    bool ok = (to = mti_screen_open(&s)) != NULL;
    if (ok) mti_print_model(w, device, to, &style);
    ok = ok && mti_screen_close(&s, true, true) && count(&all, t) &&
         (!verbose || print_kinds(&all, out, &style)) && (to = mti_screen_open(&s)) &&
         mti_screen_close(&s, print_whole(t, to, &style), verbose) &&
         (!s.less || print_kinds(&all, out, &style));
    if (ok && s.less)
        mti_inked(out, &style, MTI_DIM, "-v adds all %zu ops, one by one, and why they keep it\n",
                  t->nodes.n);
    mti_free(all.at);
    return ok;
}

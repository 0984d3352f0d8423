/* sweep_report.c: a sweep as a table, as JSON and as a picture. */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "report/sections.h"
#include "report/pictures.h"
#include "report/keys.h"
#include "report/results.h"

/* ---- the table ---- */

/* A terminal that gets shorter headings, and labels on lines of their own. */
static bool is_narrow(const mti_sheet *to) { return to->elides && to->width < 100; }

static const char *gradient_text(char *buf, size_t size, const mti_sweep_result *r, bool first)
{
    if (!r->has_data || r->off.compared == 0)
        snprintf(buf, size, "-");
    else if (first)
        snprintf(buf, size, "0");
    else if (r->off.same_bits)
        snprintf(buf, size, "0 (same bits)");
    else if (isfinite(r->off.relative))
        mti_format(buf, size, "%.2g", r->off.relative);
    else
        snprintf(buf, size, "not finite");
    return buf;
}

/* Columns that some row needs; on a device without data there are none. */
typedef struct columns {
    bool times, gradients, losses;
} columns;

static columns columns_of(const mti_sweep_result *results, size_t n)
{
    columns c = {0};
    for (size_t i = 0; i < n; i++) {
        if (results[i].refused) continue;
        c.times = c.times || !isnan(results[i].step_s);
        c.gradients = c.gradients || results[i].has_data;
        c.losses = c.losses || !isnan(results[i].loss);
    }
    return c;
}

static void number_cell(mti_table *t, const char *format, double value)
{
    if (isnan(value))
        mti_table_cell(t, "-");
    else
        mti_table_cell(t, format, value);
}

static void result_cells(mti_table *t, const mti_sweep_result *r, const mti_sweep_result *first,
                         columns shown)
{
    char text[40];
    mti_table_cell(t, "%s", r->entry->label);
    if (r->refused) {
        mti_table_cells(t, "-|out of memory");
        for (int i = 0; i < 2 + shown.times + shown.gradients + shown.losses; i++)
            mti_table_cell(t, "-");
        return;
    }
    mti_table_cells(t, "%s|%s|%s|%s", MTI_THOUSANDS(r->saved),
                    r->formula.known ? r->formula.text : "no formula",
                    MTI_THOUSANDS(r->steady.peak), MTI_THOUSANDS(r->steady.reserved));
    if (shown.times) number_cell(t, "%.2f", r->step_s * 1e3);
    if (shown.gradients) mti_table_cell(t, "%s", gradient_text(text, sizeof text, r, r == first));
    if (shown.losses)
        number_cell(t, r == first ? "%.6f" : "%+.2g", r == first ? r->loss : r->loss - first->loss);
}

static bool print_table(const mti_sweep_result *results, size_t n, const mti_sheet *to)
{
    bool narrow = is_narrow(to);
    char headings[96], alignment[9] = "wrorr"; /* the formula stands below, too */
    columns shown = columns_of(results, n);
    snprintf(headings, sizeof headings, "row|%s|formula|peak|reserved",
             narrow ? "saved" : "saved bytes");
    if (shown.times) mti_append(headings, sizeof headings, narrow ? "|ms" : "|ms a step");
    if (shown.gradients)
        mti_append(headings, sizeof headings, narrow ? "|off by" : "|gradients off by");
    if (shown.losses) mti_append(headings, sizeof headings, "|loss");
    for (int i = shown.times + shown.gradients + shown.losses; i > 0; i--) strcat(alignment, "r");
    mti_table *t = mti_table_new(alignment, headings);
    for (size_t i = 0; i < n; i++) result_cells(t, &results[i], &results[0], shown);
    return mti_table_finish(t, to);
}

/* What the letters of the rows' formulas stand for. */
static void print_letters(const mti_sweep_result *results, size_t n, const mti_sheet *to)
{
    bool ranks = false, pieces = false;
    for (size_t i = 0; i < n; i++) {
        const mti_workload *w = &results[i].entry->workload;
        ranks = ranks || w->ranked;
        pieces = pieces || (w->ranked && w->parallel.context > 1);
    }
    const struct {
        char letter;
        const char *what;
    } all[] = {{'b', "b sequences"},
               {'s', pieces ? "s tokens of each on a rank" : "s tokens of each"},
               {'h', "width h"},
               {'a', "a heads"},
               {'q', "all heads' queries of width q"},
               {'k', "all heads' keys of width k"},
               {'u', "u keys that the queries see"},
               {'f', "MLP of width f"},
               {'v', "vocabulary v"},
               {'L', ranks ? "L layers in flight" : "L layers"},
               {'N', "N groups of layers"},
               {'E', "E forwards with the embeddings"},
               {'H', "H with the head"},
               {'t', "t ranks that share a layer"}};
    char text[512] = "";
    for (size_t k = 0; k < sizeof all / sizeof *all; k++) {
        bool there = false;
        for (size_t i = 0; i < n; i++)
            there = there || (results[i].formula.known &&
                              strchr(results[i].formula.text, all[k].letter) != NULL);
        if (there) mti_append(text, sizeof text, "%s%s", *text ? ", " : "", all[k].what);
    }
    mti_print_wrapped(to, 2, text);
}

/* For each row: saved = formula + each term that the formula leaves out. */
static bool print_sums(const mti_sweep_result *results, size_t n, const mti_sheet *to)
{
    bool narrow = is_narrow(to), any = false;
    for (size_t i = 0; i < n; i++) any = any || results[i].formula.known;
    if (!any) return true;
    mti_table *t =
        narrow ? mti_table_new("rw", NULL) : mti_table_new("lrrl", "row|saved bytes||made of");
    for (size_t i = 0; i < n; i++) {
        const mti_formula *f = &results[i].formula;
        if (!f->known) continue;
        const char *label = results[i].entry->label, *saved = MTI_THOUSANDS(results[i].saved);
        if (narrow)
            mti_table_note(t, 0, "%s: %s", label, saved);
        else
            mti_table_cells(t, "%s|%s", label, saved);
        mti_table_bytes(t, f->bytes);
        if (f->n_groups)
            mti_table_cell(t, "= %s, N = %lld", f->text, (long long)f->n_groups);
        else
            mti_table_cell(t, "= %s", f->text);
        for (int k = 0; k < f->n_residual; k++) {
            if (!narrow) mti_table_skip(t, 2);
            mti_table_cells(t, "%s|%s", MTI_THOUSANDS(f->residual[k].bytes), f->residual[k].text);
        }
    }
    mti_heading(to, "Saved bytes, formula and what it leaves out");
    if (!mti_table_finish(t, to)) return false;
    print_letters(results, n, to);
    return true;
}

static void print_skipped(const char *label, const mti_sheet *to)
{
    char text[512];
    snprintf(text, sizeof text,
             "%.300s: the loss scaler has skipped the step that is measured; its peak and its time "
             "are not to be compared.",
             label);
    mti_print_wrapped(to, 0, text);
}

bool mti_print_sweep(const mti_sweep_result *results, size_t n, bool quiet, FILE *out)
{
    mti_sheet sheet = mti_sheet_of(out);
    if (sheet.width < 140 && !sheet.live) sheet.width = 140; /* a file may have long lines */
    if (!print_table(results, n, &sheet)) return false;
    if (quiet) return true;
    if (!print_sums(results, n, &sheet)) return false;
    columns shown = columns_of(results, n);
    fputs("\n", out);
    mti_print_wrapped(&sheet, 0,
                      "Bytes are measured: saved are those that the tape keeps on the device after "
                      "forward, peak and reserved the allocator's over the second step, which "
                      "begins with the optimizer's state there, as all later ones do.");
    for (size_t i = 0; i < n; i++)
        if (results[i].steady.skipped) print_skipped(results[i].entry->label, &sheet);
    if (shown.times)
        mti_print_wrapped(&sheet, 0,
                          "The time is the median of a few such steps, in which the rows took "
                          "turns.");
    if (shown.gradients)
        mti_print_wrapped(&sheet, 0,
                          "Gradients are compared with the first row's: bit by bit, and else as "
                          "|g' - g| / |g|.");
    return true;
}

/* ---- JSON ---- */

static void describe_gradients(mti_fields *f, const void *difference)
{
    const mti_gradient_difference *d = difference;
    KEYS(f, mti_gradient_difference, d, KEY(compared), KEY(alone), KEY(same_bits));
    mti_field_real(mti_null_unless(f, d->compared && isfinite(d->relative)), "relative",
                   d->relative);
}

static void describe_result(mti_fields *f, const void *result)
{
    const mti_sweep_result *r = result;
    const char *recipe = r->entry ? r->entry->workload.recipe : "";
    mti_field_text(f, "row", r->entry ? r->entry->label : NULL);
    mti_field_text(mti_null_unless(f, *recipe), "recipe", recipe);
    mti_field_text(mti_null_unless(f, *recipe), "recipe_options",
                   *recipe ? r->entry->workload.recipe_options : NULL);
    mti_field_bool(f, "out_of_memory", r->refused);
    if (!mti_fields_go_on(f, !r->refused)) return;
    KEYS(f, mti_sweep_result, r, KEY(saved), KEY(asked), KEY_AS("peak", steady.peak),
         KEY_AS("reserved", steady.reserved), KEY_OBJECT(steady, mti_describe_steady),
         KEY_OR_NULL_AS("step_seconds", step_s), KEY_OR_NULL(loss));
    mti_field_object(mti_null_unless(f, r->has_data), "gradients", describe_gradients, &r->off);
    mti_field_size(f, "recompute_flops", r->flops.recompute);
    mti_field_formula(f, &r->formula);
}

void mti_describe_sweep(mti_fields *f, const void *object)
{
    const mti_sweep_object *s = object;
    mti_field_schema(f, "memtape.sweep/1");
    mti_field_list(f, "rows", describe_result, s->results, s->n, sizeof *s->results);
}

/* ---- the picture ---- */

/* "12.1 ms, gradients the same" */
static void note_row(char *buf, size_t size, const mti_sweep_result *r, bool first)
{
    char gradients[40];
    *buf = 0;
    if (r->refused) {
        snprintf(buf, size, "out of memory");
        return;
    }
    if (!isnan(r->step_s)) mti_append(buf, size, "%.1f ms", r->step_s * 1e3);
    if (first || !r->off.compared) return;
    gradient_text(gradients, sizeof gradients, r, false);
    mti_append(buf, size, "%sgradients %s%.30s", *buf ? ", " : "",
               r->off.same_bits ? "" : "off by ", r->off.same_bits ? "the same" : gradients);
}

/* A row as it is drawn. */
typedef struct drawn {
    const mti_sweep_result *result;
    char group[80], note[128];
    const char *label;
    size_t order;       /* as given */
    double group_peak;  /* the least of its group */
    size_t group_order; /* of its first row */
} drawn;

static double peak_of(const mti_sweep_result *r)
{
    return r->refused ? INFINITY : (double)r->steady.peak;
}

static int least_first(const void *a, const void *b)
{
    const drawn *x = a, *y = b;
    if (x->group_peak != y->group_peak) return x->group_peak < y->group_peak ? -1 : 1;
    if (x->group_order != y->group_order) return x->group_order < y->group_order ? -1 : 1;
    double p = peak_of(x->result), q = peak_of(y->result);
    if (p != q) return p < q ? -1 : 1;
    return x->order < y->order ? -1 : 1;
}

/* "act=relu" of "act=relu checkpoint=full". */
static size_t first_word(const char *label)
{
    const char *space = strchr(label, ' ');
    return space ? (size_t)(space - label) : 0;
}

/* Whether rows of several options fall into groups by the first. */
static bool is_grouped(const mti_sweep_result *results, size_t n)
{
    size_t same = 0, first = first_word(results[0].entry->label);
    for (size_t i = 0; i < n; i++) {
        const char *label = results[i].entry->label;
        size_t word = first_word(label);
        if (!word || word >= sizeof((drawn){0}).group) return false;
        same += word == first && !strncmp(label, results[0].entry->label, word);
    }
    return same > 1 && same < n;
}

/* Sorted by peak, and so are the groups by their least. */
static void put_in_order(drawn *rows, const mti_sweep_result *results, size_t n)
{
    bool grouped = is_grouped(results, n);
    for (size_t i = 0; i < n; i++) {
        drawn *row = &rows[i];
        const char *label = results[i].entry->label;
        size_t word = grouped ? first_word(label) : 0;
        *row = (drawn){.result = &results[i], .order = i, .label = label + word + (word > 0)};
        snprintf(row->group, sizeof row->group, "%.*s", (int)word, label);
        note_row(row->note, sizeof row->note, &results[i], i == 0);
    }
    for (size_t i = 0; grouped && i < n; i++) {
        rows[i].group_peak = INFINITY;
        rows[i].group_order = n;
        for (size_t k = n; k-- > 0;) {
            if (strcmp(rows[i].group, rows[k].group)) continue;
            rows[i].group_peak = fmin(rows[i].group_peak, peak_of(rows[k].result));
            rows[i].group_order = k;
        }
    }
    qsort(rows, n, sizeof *rows, least_first);
}

static void describe_notes(char *buf, size_t size, const mti_sweep_result *results, size_t n)
{
    if (columns_of(results, n).times)
        snprintf(buf, size,
                 "the second training step; notes: median time of a step, difference "
                 "from the gradients of %.80s",
                 results[0].entry->label);
    else
        snprintf(buf, size, "the second training step, on the meta device");
}

bool mti_draw_sweep(const mti_sweep_result *results, size_t n, const char *name, const char *path)
{
    drawn *order = mti_calloc(n, sizeof *order);
    mti_svg_row *rows = mti_calloc(n, sizeof *rows);
    const mti_workload **workloads = mti_calloc(n, sizeof *workloads);
    char title[MTI_TITLE], subtitle[256];
    bool ok = order && rows && workloads;
    if (ok) put_in_order(order, results, n);
    for (size_t i = 0; ok && i < n; i++) {
        const mti_sweep_result *r = order[i].result;
        rows[i] = (mti_svg_row){.group = *order[i].group ? order[i].group : NULL,
                                .label = order[i].label,
                                .note = order[i].note,
                                .value = {r->refused ? NAN : (double)r->saved,
                                          r->refused ? NAN : (double)r->steady.peak}};
        workloads[i] = &r->entry->workload;
    }
    if (ok) {
        mti_title(title, sizeof title, name, workloads, n);
        describe_notes(subtitle, sizeof subtitle, results, n);
    }
    ok = ok && mti_svg_write(&(mti_svg_bars){.title = title,
                                             .subtitle = subtitle,
                                             .n_series = 2,
                                             .series = {"saved for backward", "peak"},
                                             .n_rows = n,
                                             .rows = rows},
                             path) == MT_OK;
    mti_free(order);
    mti_free(rows);
    mti_free(workloads);
    return ok;
}

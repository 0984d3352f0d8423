/* text_table.c: text in columns. */
#include <stdarg.h>
#include <string.h>
#include "report/terminal.h"

#define MAX_COLUMNS 16
#define GAP         2      /* columns of space between cells */
#define INDENT      2      /* before the first cell */
#define NARROWEST   8      /* least width of a column that is shortened */
#define LEFT_OUT    (-GAP) /* width of a column that is not shown, with its gap 0 */

typedef enum row_kind { CELLS, RULE, NOTE } row_kind;

typedef struct row {
    row_kind kind;
    mti_ink ink;
    int n, from;              /* cells filled; NOTE: the column it starts at */
    char *cells[MAX_COLUMNS]; /* NULL: empty */
} row;

struct mti_table {
    int n_columns;
    char align[MAX_COLUMNS + 1];
    bool failed;
    mti_ink next_ink;
    MTI_VEC(row) rows;
};

static char *formatted(const char *fmt, va_list args)
{
    va_list again;
    va_copy(again, args);
    int n = mti_vformat(NULL, 0, fmt, again);
    va_end(again);
    char *text = n < 0 ? NULL : mti_malloc((size_t)n + 1);
    if (text) mti_vformat(text, (size_t)n + 1, fmt, args);
    if (text) mti_make_printable(text);
    return text;
}

/* The row that takes the next cell; NULL once memory has run out. */
static row *open_row(mti_table *table, row_kind kind)
{
    if (table->failed) return NULL;
    row *last = table->rows.n ? &table->rows.at[table->rows.n - 1] : NULL;
    if (kind == CELLS && last && last->kind == CELLS && last->n < table->n_columns) return last;
    row fresh = {.kind = kind, .ink = table->next_ink};
    if (!MTI_PUSH(&table->rows, fresh)) {
        table->failed = true;
        return NULL;
    }
    table->next_ink = MTI_PLAIN;
    return &table->rows.at[table->rows.n - 1];
}

mti_table *mti_table_new(const char *columns, const char *headings)
{
    mti_table *table = mti_calloc(1, sizeof *table);
    if (!table) return NULL;
    snprintf(table->align, sizeof table->align, "%s", columns);
    table->n_columns = (int)strlen(table->align);
    if (!headings) return table;
    mti_table_ink(table, MTI_DIM);
    while (headings) {
        const char *bar = strchr(headings, '|');
        const int n = (int)(bar ? bar - headings : (ptrdiff_t)strlen(headings));
        mti_table_cell(table, "%.*s", n, headings);
        headings = bar ? bar + 1 : NULL;
    }
    return table;
}

void mti_table_free(mti_table *table)
{
    if (!table) return;
    for (size_t i = 0; i < table->rows.n; i++)
        for (int j = 0; j < MAX_COLUMNS; j++) mti_free(table->rows.at[i].cells[j]);
    mti_free(table->rows.at);
    mti_free(table);
}

void mti_table_cell(mti_table *table, const char *fmt, ...)
{
    row *r = table ? open_row(table, CELLS) : NULL;
    if (!r) return;
    va_list args;
    va_start(args, fmt);
    r->cells[r->n] = formatted(fmt, args);
    va_end(args);
    if (!r->cells[r->n]) table->failed = true;
    r->n++;
}

void mti_table_cells(mti_table *table, const char *fmt, ...)
{
    char lines[256]; /* a cell each, as values may have bars */
    snprintf(lines, sizeof lines, "%s", fmt);
    for (char *c = lines; (c = strchr(c, '|'));) *c = '\n';
    va_list args;
    va_start(args, fmt);
    char *all = formatted(lines, args), *rest = all, *text;
    va_end(args);
    if (table && !all) table->failed = true;
    while ((text = strsep(&rest, "\n"))) mti_table_cell(table, "%s", text);
    mti_free(all);
}

void mti_table_bytes(mti_table *table, int64_t value)
{
    mti_table_cell(table, "%s", MTI_THOUSANDS(value));
}

void mti_table_skip(mti_table *table, int n_cells)
{
    for (int i = 0; i < n_cells; i++) {
        row *r = table ? open_row(table, CELLS) : NULL;
        if (r) r->n++;
    }
}

void mti_table_ink(mti_table *table, mti_ink ink)
{
    if (!table || table->failed) return;
    row *last = table->rows.n ? &table->rows.at[table->rows.n - 1] : NULL;
    if (last && last->kind == CELLS && last->n < table->n_columns)
        last->ink = ink;
    else
        table->next_ink = ink;
}

void mti_table_rule(mti_table *table)
{
    if (table) open_row(table, RULE);
}

void mti_table_note(mti_table *table, int from, const char *fmt, ...)
{
    row *r = table ? open_row(table, NOTE) : NULL;
    if (!r) return;
    va_list args;
    va_start(args, fmt);
    r->cells[0] = formatted(fmt, args);
    va_end(args);
    r->from = from;
    if (!r->cells[0]) table->failed = true;
}

/* Sets the widths of the columns, leaving out those marked 'o' and shortening those marked 'e' and
 * 'w' until the table fits; returns its width. */
static int lay_out(const mti_table *table, const mti_sheet *to, int width[MAX_COLUMNS])
{
    int total = INDENT + GAP * (table->n_columns - 1);
    for (int j = 0; j < table->n_columns; j++) {
        width[j] = 0;
        for (size_t i = 0; i < table->rows.n; i++) {
            const row *r = &table->rows.at[i];
            int w = r->kind == CELLS && r->cells[j] ? mti_text_width(r->cells[j]) : 0;
            if (w > width[j]) width[j] = w;
        }
        total += width[j];
    }
    for (int j = 0; j < table->n_columns && to->elides && total > to->width; j++) {
        if (table->align[j] != 'o') continue;
        total -= width[j] + GAP;
        width[j] = LEFT_OUT;
    }
    while (to->elides && total > to->width) {
        int widest = -1;
        for (int j = 0; j < table->n_columns; j++)
            if ((table->align[j] == 'e' || table->align[j] == 'w') && width[j] > NARROWEST &&
                (widest < 0 || width[j] > width[widest]))
                widest = j;
        if (widest < 0) break;
        width[widest]--;
        total--;
    }
    return total;
}

static void pad(FILE *out, int n)
{
    while (n-- > 0) fputc(' ', out);
}

/* Prints text in at most `width` columns, with an ellipsis for its middle; returns the columns
 * used. Most of what stays is the end, in which paths differ. */
static int put(FILE *out, const char *text, int width)
{
    int needed = mti_text_width(text), head = (width - 1) / 3;
    if (needed <= width) {
        fputs(text, out);
        return needed;
    }
    fwrite(text, 1, mti_text_fit(text, head), out);
    fputs("\u2026", out);
    fputs(text + mti_text_skip(text, width - 1 - head), out);
    return width;
}

/* A note that begins at column `at`; a terminal gets it in as many lines as it takes. */
static void put_note(const mti_sheet *to, const char *text, int at)
{
    mti_sheet wide = *to;
    if (wide.width < at + NARROWEST) wide.width = at + NARROWEST;
    if (!to->elides || at + mti_text_width(text) <= wide.width) {
        pad(to->out, at);
        fputs(text, to->out);
        fputc('\n', to->out);
    } else {
        mti_print_wrapped(&wide, at + (int)strspn(text, " "), text);
    }
}

/* Where a column begins. */
static int column_at(const int *width, int column)
{
    int at = INDENT;
    for (int j = 0; j < column; j++) at += width[j] + GAP;
    return at;
}

/* The rest of a cell that did not fit in its row, below it. */
static void put_rest(FILE *out, const char *text, int at, int width)
{
    while (*(text += strspn(text, " "))) {
        size_t n = mti_text_line(text, width);
        fputc('\n', out);
        pad(out, at);
        fwrite(text, 1, n, out);
        text += n;
    }
}

static void print_cells(const mti_table *table, const row *r, const int *width, FILE *out)
{
    int spaces = INDENT; /* not yet written, so that no line ends in spaces */
    int going_on = 0;
    const char *rest = "";
    for (int j = 0; j < table->n_columns; j++) {
        const char *text = r->cells[j] ? r->cells[j] : "";
        int w = mti_text_width(text);
        if (width[j] == LEFT_OUT) continue;
        if (!w) {
            spaces += width[j] + GAP;
            continue;
        }
        pad(out, spaces + (table->align[j] == 'r' ? width[j] - w : 0));
        if (table->align[j] == 'w' && w > width[j]) {
            going_on = j;
            rest = text + mti_text_line(text, width[j]);
            fwrite(text, 1, (size_t)(rest - text), out);
            w -= mti_text_width(rest);
        } else {
            w = put(out, text, width[j]);
        }
        spaces = GAP + (table->align[j] == 'r' ? 0 : width[j] - w);
    }
    put_rest(out, rest, column_at(width, going_on), width[going_on]);
}

mt_status mti_table_print(const mti_table *table, const mti_sheet *to)
{
    if (!table || table->failed) return mti_fail(MT_ERR_MEMORY, "table: no memory for its text");
    int width[MAX_COLUMNS], total = lay_out(table, to, width);
    for (size_t i = 0; i < table->rows.n; i++) {
        const row *r = &table->rows.at[i];
        bool inked = to->colour && r->ink != MTI_PLAIN;
        if (inked) fputs(mti_ink_codes[r->ink], to->out);
        if (r->kind == RULE) {
            pad(to->out, INDENT);
            for (int k = INDENT; k < total; k++) fputs("\u2500", to->out);
        } else if (r->kind == NOTE) {
            put_note(to, r->cells[0], column_at(width, r->from));
        } else {
            print_cells(table, r, width, to->out);
        }
        if (inked) fputs("\x1b[0m", to->out);
        if (r->kind != NOTE) fputc('\n', to->out);
    }
    return MT_OK;
}

bool mti_table_finish(mti_table *table, const mti_sheet *to)
{
    mt_status status = mti_table_print(table, to);
    mti_table_free(table);
    return status == MT_OK;
}

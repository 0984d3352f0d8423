/* report.h: how figures are put before people: numbers, aligned tables, a progress bar.
 *
 * This room formats what it is given. It asks no tensor anything. */
#ifndef MTI_REPORT_H
#define MTI_REPORT_H

#include <stdio.h>
#include "base/base.h"

/* ---- where the text goes ---- */

typedef struct mti_style {
    bool colour; /* a terminal, NO_COLOR unset, TERM not "dumb" */
    bool live;   /* a terminal: lines may be redrawn */
    int width;   /* columns that a line may take */
} mti_style;

#define MTI_REPORT_WIDTH 100 /* where nothing says how wide the reader's page is */

mti_style mti_style_of(FILE *out);

typedef enum mti_ink { MTI_PLAIN, MTI_BOLD, MTI_DIM, MTI_GOOD, MTI_BAD, MTI_INK_COUNT } mti_ink;
/* Text in that ink, then plain again. Without colour: the text. */
void mti_inked(FILE *out, const mti_style *style, mti_ink ink, const char *fmt, ...)
    MT_PRINTF(4, 5);
/* A heading: bold, with an empty line before it. */
void mti_heading(FILE *out, const mti_style *style, const char *fmt, ...) MT_PRINTF(3, 4);

/* ---- text ---- */

/* Columns that UTF-8 text takes on a terminal: combining marks 0, wide characters 2. */
int mti_text_width(const char *text);
/* Bytes of `text` that fit in `columns`, never cutting a character in two. */
size_t mti_text_fit(const char *text, int columns);
/* Bytes that came from a model or a file: control characters and broken UTF-8 are shown as `?`
 * instead of being obeyed by a terminal; newlines and tabs pass. */
void mti_print_bytes(FILE *out, const unsigned char *bytes, size_t n_bytes);
/* A paragraph: lines broken at spaces, each indented. */
void mti_print_wrapped(FILE *out, int indent, int width, const char *text);

/* ---- numbers; buf of MTI_NUMBER bytes, returned; mti_thousands is in base.h ---- */

const char *mti_scaled(char buf[MTI_NUMBER], double value);     /* "137.4 G", "4.10 k", "12" */
const char *mti_duration(char buf[MTI_NUMBER], double seconds); /* "1:02:03", "2:03", "45 s" */

/* ---- tables ---- */

/* Filled cell by cell, row by row; columns take the width of their widest cell. A table that ran
 * out of memory remembers it and mti_table_print says so: one check, at the end. */
typedef struct mti_table mti_table;

/* columns: one letter each: l left, r right, e left and the first to be shortened (with an
 * ellipsis) when the table is wider than the page. headings: one each, NULL for no heading row. */
mti_table *mti_table_new(const char *columns, const char *const *headings);
void mti_table_free(mti_table *table);
void mti_table_cell(mti_table *table, const char *fmt, ...) MT_PRINTF(2, 3);
void mti_table_bytes(mti_table *table, int64_t value); /* a cell with thousands */
void mti_table_skip(mti_table *table, int n_cells);    /* empty ones */
void mti_table_ink(mti_table *table, mti_ink ink);     /* of the row being filled */
void mti_table_rule(mti_table *table);                 /* a line across, between rows */
/* A row of one text across all columns from column `from` on. */
void mti_table_note(mti_table *table, int from, const char *fmt, ...) MT_PRINTF(3, 4);
mt_status mti_table_print(const mti_table *table, FILE *out, const mti_style *style);

/* ---- progress ---- */

typedef struct mti_progress {
    FILE *out;
    mti_style style;
    bool quiet;
    int64_t first, total, every; /* a line each `every` steps when not a terminal */
    double began, drawn;
    int drawn_width;
} mti_progress;

void mti_progress_begin(mti_progress *p, FILE *out, int64_t first, int64_t total, int64_t every,
                        bool quiet);
/* After step `done` (counted from 1 at the very first start); text: what to show beside the bar. */
void mti_progress_step(mti_progress *p, int64_t done, const char *text);
/* A line of its own, above the bar. */
void mti_progress_say(mti_progress *p, const char *fmt, ...) MT_PRINTF(2, 3);
void mti_progress_end(mti_progress *p);

#endif

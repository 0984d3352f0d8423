/* terminal.h: what reports for a terminal are made of: numbers, aligned tables, a progress bar.
 * This room formats what it is given and measures nothing. */
#ifndef MTI_TERMINAL_H
#define MTI_TERMINAL_H

#include <stdio.h>
#include "files/files.h"

/* ---- what a report is printed on ---- */

typedef struct mti_sheet {
    FILE *out;
    bool colour; /* a terminal, NO_COLOR unset, TERM not "dumb" */
    bool live;   /* a terminal: lines may be redrawn */
    bool elides; /* a terminal: what is too wide for its column loses its middle */
    int width;   /* columns that a line may take */
    int height;  /* lines of a screen */
} mti_sheet;

#define MTI_REPORT_WIDTH  100 /* if the output is not a terminal */
#define MTI_REPORT_HEIGHT 24

mti_sheet mti_sheet_of(FILE *out);

typedef enum mti_ink { MTI_PLAIN, MTI_BOLD, MTI_DIM, MTI_GOOD, MTI_BAD, MTI_INK_COUNT } mti_ink;
extern const char *const mti_ink_codes[MTI_INK_COUNT]; /* what switches a terminal to the ink */
/* Prints the text in that ink; in plain text if the sheet has no colour. */
void mti_inked(const mti_sheet *to, mti_ink ink, const char *fmt, ...) MT_PRINTF(3, 4);
/* A heading: bold, with an empty line before it. */
void mti_heading(const mti_sheet *to, const char *fmt, ...) MT_PRINTF(2, 3);

/* ---- text ---- */

/* Columns that UTF-8 text takes on a terminal: combining marks 0, wide characters 2. */
int mti_text_width(const char *text);
/* How many bytes of `text` fit in `columns`; no character is cut. */
size_t mti_text_fit(const char *text, int columns);
/* How many bytes of `text` to skip so that the rest fits in `columns`; no character is cut. */
size_t mti_text_skip(const char *text, int columns);
/* The same, but up to a space where there is one. */
size_t mti_text_line(const char *text, int columns);
/* A paragraph, broken at spaces; every line is indented. */
void mti_print_wrapped(const mti_sheet *to, int indent, const char *text);
/* A line of prose, which a terminal gets in as many as it takes. */
void mti_print_line(const mti_sheet *to, const char *fmt, ...) MT_PRINTF(2, 3);
/* All lines of a text, each under 2 KiB. */
void mti_print_lines(const mti_sheet *to, mti_ink ink, const char *text);
/* A line whose first bytes, as far as they are in the first line, are in an ink. */
void mti_print_headed(const mti_sheet *to, mti_ink ink, const char *text, size_t head);

/* ---- files ---- */

/* Closes `out`, the file's stream, which may be NULL: the file is there whole or not at all. */
mt_status mti_finish_file(mti_file *file, FILE *out);

/* ---- numbers; buf of MTI_NUMBER bytes, returned; mti_thousands is in base.h ---- */

const char *mti_scaled(char buf[MTI_NUMBER], double value); /* "137.4 G", "4.10 k", "12" */
/* "3.14e23", for what no unit reaches. */
const char *mti_power_of_ten(char buf[MTI_NUMBER], double value);
const char *mti_duration(char buf[MTI_NUMBER], double seconds); /* "1:02:03", "2:03", "45 s" */
#define MTI_SCALED(value) mti_scaled((char[MTI_NUMBER]){0}, value)

/* ---- tables ---- */

/* Filled cell by cell, row by row; a column is as wide as its widest cell. If memory runs out on
 * the way, mti_table_print fails: one check, at the end. */
typedef struct mti_table mti_table;

/* columns: a letter each: l left, r right; and what gives way on a terminal for which the table is
 * too wide, on the left, too: o is left out, e gets an ellipsis for its middle (paths differ at
 * their ends), w goes on in further lines (at most one column is w). headings: one for each
 * column, "name|bytes"; NULL for no heading row. */
mti_table *mti_table_new(const char *columns, const char *headings);
void mti_table_free(mti_table *table);
void mti_table_cell(mti_table *table, const char *fmt, ...) MT_PRINTF(2, 3);
/* Several cells, with bars between them: "%s|%zu||%s". */
void mti_table_cells(mti_table *table, const char *fmt, ...) MT_PRINTF(2, 3);
void mti_table_bytes(mti_table *table, int64_t value); /* a cell with thousands */
void mti_table_skip(mti_table *table, int n_cells);    /* empty cells */
void mti_table_ink(mti_table *table, mti_ink ink);     /* of the row being filled */
void mti_table_rule(mti_table *table);                 /* a line across, between rows */
/* A row with one text that begins at column `from` and runs across the rest. */
void mti_table_note(mti_table *table, int from, const char *fmt, ...) MT_PRINTF(3, 4);
mt_status mti_table_print(const mti_table *table, const mti_sheet *to);
/* Prints the table and frees it. */
bool mti_table_finish(mti_table *table, const mti_sheet *to);

/* ---- what fits on a screen ---- */

/* A report prints its answer, and of its details all, or those that fit on the rest of a screen.
 * One section is open at a time. */
typedef struct mti_screen {
    const mti_sheet *to;
    bool all;  /* sections are printed whether they fit or not */
    bool less; /* some section was left out */
    int left;  /* lines of the screen */
    mti_sheet section;
    char *text;
    size_t n;
} mti_screen;

void mti_screen_begin(mti_screen *s, const mti_sheet *to, bool all);
/* What the next section is to be printed to; NULL on failure. */
const mti_sheet *mti_screen_open(mti_screen *s);
/* Prints the section if it was made (`ok`), and if it fits or is `needed`. False on failure. */
bool mti_screen_close(mti_screen *s, bool ok, bool needed);

/* Prints a whole report. */
typedef bool mti_print_whole(const void *report, FILE *out);
/* Prints those sections of a report whose heading has the words, in small letters or capitals.
 * False on failure, and if no section has them: the error then says which there are. */
bool mti_show_sections(const char *words, mti_print_whole *print, const void *report, FILE *out);

/* ---- progress ---- */

typedef struct mti_progress {
    mti_sheet sheet;
    bool quiet;
    int64_t first, total, every; /* a line each `every` steps when not a terminal */
    double began, drawn;
    int drawn_width;
} mti_progress;

void mti_progress_begin(mti_progress *p, FILE *out, int64_t first, int64_t total, int64_t every,
                        bool quiet);
/* After step `done`, counted from 1 in the first of resumed runs; text is shown beside the bar. */
bool mti_progress_due(const mti_progress *p, int64_t done); /* whether the next shows its text */
void mti_progress_step(mti_progress *p, int64_t done, const char *text);
/* A line above the bar. */
void mti_progress_say(mti_progress *p, const char *fmt, ...) MT_PRINTF(2, 3);
void mti_progress_end(mti_progress *p);

#endif

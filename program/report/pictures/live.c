/* live.c: a frame of `memtape train --live`.
 *
 * A frame is written at once and leaves the cursor below it. Nothing of the terminal is changed
 * that would have to be put back: no cursor is hidden, no other screen shown, and colours end with
 * their line, or with the run where Ctrl-C cut the line. So a run may end in any way at any time.
 */
#include <stdlib.h>
#include <string.h>
#include "report/pictures.h"

#define REDRAW_S  0.1 /* seconds between frames */
#define LABEL     10  /* columns of the scale on the left: "1023.9 KiB" */
#define MOST_WIDE 120 /* columns of the picture */
#define MOST_TALL 14  /* its rows */
#define AROUND    7   /* lines of a frame beside these, the cursor's included */

#define BACKGROUND 10 /* more than the colour of the letter */

typedef struct frame {
    mti_sheet to; /* a text in memory */
    const mti_timeline *t;
    size_t peak; /* event */
    size_t most; /* bytes at the top of the picture */
    mti_stretch columns[MOST_WIDE];
    size_t n;
    int rows, lines;
} frame;

void mti_live_begin(mti_live *l, FILE *out, int64_t total, int64_t every)
{
    *l = (mti_live){.total = total, .every = every > 0 ? every : 1};
    l->sheet = mti_sheet_of(out);
}

bool mti_live_due(const mti_live *l, int64_t step)
{
    if (step == l->total) return true;
    return l->sheet.live ? mti_now() - l->drawn >= REDRAW_S : step % l->every == 0;
}

/* ---- lines ---- */

static void end_line(frame *f)
{
    fputs(f->to.live ? "\x1b[K\n" : "\n", f->to.out);
    f->lines++;
}

/* A line of text, cut to the width: a wrapped one could not be drawn over. */
static void put_line(frame *f, mti_ink ink, const char *text)
{
    mti_inked(&f->to, ink, "%.*s", (int)mti_text_fit(text, f->to.width - 1), text);
    end_line(f);
}

/* ---- the picture ---- */

/* What the stack of a column has at `height` in [0, most); MT_CATEGORY_COUNT: nothing. */
static int category_at(const mti_stretch *column, double height)
{
    double sum = 0;
    for (int c = 0; c < MT_CATEGORY_COUNT; c++) {
        sum += (double)column->by_category[c];
        if (height < sum) return c;
    }
    return MT_CATEGORY_COUNT;
}

/* A cell shows the categories at two heights, or one letter. */
static void put_cell(const frame *f, const mti_stretch *column, double row_bytes, int row)
{
    if (!f->to.colour) {
        int c = category_at(column, (row + 0.5) * row_bytes);
        fputc(c < MT_CATEGORY_COUNT ? mti_category_looks[c].letter : ' ', f->to.out);
        return;
    }
    int low = category_at(column, (row + 0.25) * row_bytes);
    int high = category_at(column, (row + 0.75) * row_bytes);
    if (low == MT_CATEGORY_COUNT)
        fputs(" ", f->to.out);
    else if (high == MT_CATEGORY_COUNT)
        fprintf(f->to.out, "\x1b[%dm\u2584\x1b[0m", mti_category_looks[low].colour);
    else if (low == high)
        fprintf(f->to.out, "\x1b[%dm\u2588\x1b[0m", mti_category_looks[low].colour);
    else
        fprintf(f->to.out, "\x1b[%d;%dm\u2580\x1b[0m", mti_category_looks[high].colour,
                mti_category_looks[low].colour + BACKGROUND);
}

/* Columns until the last that is higher. */
static size_t width_at(const frame *f, double height)
{
    size_t n = f->n;
    while (n && (double)f->t->events.at[f->columns[n - 1].event].current <= height) n--;
    return n;
}

static void put_picture(frame *f)
{
    double row_bytes = (double)f->most / f->rows;
    for (int row = f->rows - 1; row >= 0; row--) {
        char label[MTI_NUMBER] = "";
        if (row == f->rows - 1) mti_bytes_text(label, sizeof label, f->most);
        if (row == 0) strcpy(label, "0");
        mti_print(f->to.out, "%*s |", LABEL, label);
        size_t n = width_at(f, (row + (f->to.colour ? 0.25 : 0.5)) * row_bytes);
        for (size_t k = 0; k < n; k++) put_cell(f, &f->columns[k], row_bytes, row);
        end_line(f);
    }
}

static size_t column_of(const frame *f, size_t event)
{
    size_t k = 0, n_events = f->t->events.n;
    while (k + 1 < f->n && event >= n_events * (k + 1) / f->n) k++;
    return k;
}

/* Above the picture: where the peak is. */
static void put_mark(frame *f)
{
    char text[2 * MOST_WIDE], size[MTI_NUMBER];
    const char *mark = f->to.colour ? "\u25bc" : "v";
    int at = LABEL + 2 + (int)column_of(f, f->peak);
    mti_bytes_text(size, sizeof size, f->t->events.at[f->peak].current);
    if (at + 8 + (int)strlen(size) < f->to.width)
        snprintf(text, sizeof text, "%*s%s peak %s", at, "", mark, size);
    else
        snprintf(text, sizeof text, "%*speak %s %s", at - 6 - (int)strlen(size), "", size, mark);
    put_line(f, MTI_BOLD, text);
}

/* Below it: the phases where they begin, as far as there is room for their names. */
static void put_phases(frame *f)
{
    char text[LABEL + 3 + MOST_WIDE + 1];
    const char *last = "";
    size_t free_from = LABEL + 2;
    memset(text, ' ', sizeof text);
    for (size_t i = 0; i < f->t->events.n; i++) {
        const char *phase = f->t->events.at[i].phase;
        size_t at = LABEL + 2 + column_of(f, i), n = strlen(phase) + 1;
        bool begins = strcmp(phase, last) != 0;
        last = phase;
        if (!begins || !*phase || at < free_from || at + n >= sizeof text) continue;
        text[at] = '|';
        memcpy(text + at + 1, phase, n - 1);
        free_from = at + n + 1;
    }
    text[free_from] = 0;
    put_line(f, MTI_DIM, text);
}

static void put_peak(frame *f)
{
    char text[512];
    const mt_mem_event *e = &f->t->events.at[f->peak];
    snprintf(text, sizeof text, "the peak: event %zu of %zu, in %s%s%s%s%s", f->peak + 1,
             f->t->events.n, *e->phase ? e->phase : "no phase", *e->module ? ", " : "", e->module,
             *e->op ? ", " : "", e->op);
    put_line(f, MTI_PLAIN, text);
}

/* A frame taller than the screen would scroll, and could not be drawn over. */
static bool full(const frame *f) { return f->to.live && f->lines + 1 >= f->to.height; }

static bool occurs(const frame *f, int category)
{
    size_t k = 0;
    while (k < f->n && !f->columns[k].by_category[category]) k++;
    return k < f->n;
}

/* The picture's categories and their shares of the peak, as many to a line as fit. */
static void put_categories(frame *f)
{
    size_t bytes[MT_CATEGORY_COUNT], sum = f->t->events.at[f->peak].current;
    int column = 0;
    mti_timeline_categories(f->t, f->peak, bytes);
    for (int c = 0; c < MT_CATEGORY_COUNT; c++) {
        char text[96];
        if (!occurs(f, c)) continue;
        mti_format(text, sizeof text, "%s %.1f %%", mt_category_name((mt_category)c),
                   100 * (double)bytes[c] / (double)sum);
        int width = 2 + (int)strlen(text) + (column ? 2 : 0);
        if (column && column + width >= f->to.width) {
            end_line(f);
            column = 0;
            width -= 2;
        }
        if (width >= f->to.width || full(f)) break;
        if (column) fputs("  ", f->to.out);
        if (f->to.colour)
            fprintf(f->to.out, "\x1b[%dm\u2588\x1b[0m", mti_category_looks[c].colour);
        else
            fputc(mti_category_looks[c].letter, f->to.out);
        mti_print(f->to.out, " %s", text);
        column += width;
    }
    if (column) end_line(f);
}

/* ---- frames ---- */

static void put_frame(frame *f, const char *text)
{
    int room = f->to.height - AROUND;
    int wide = f->to.width - LABEL - 3;
    f->rows = f->to.live && room < MOST_TALL ? room : MOST_TALL;
    put_line(f, MTI_BOLD, text);
    if (!f->t->events.n || f->rows < 2 || wide < 16) return; /* a screen for one line */
    f->n = mti_timeline_stretches(f->t, (size_t)(wide < MOST_WIDE ? wide : MOST_WIDE), f->columns);
    f->peak = mti_timeline_peak(f->t);
    f->most = f->t->events.at[f->peak].current;
    if (!f->most) return;
    put_mark(f);
    put_picture(f);
    put_phases(f);
    put_peak(f);
    put_categories(f);
}

/* At Ctrl-C the terminal drops what it has not shown yet: a colour's end may be among it. */
static void end_ink(const mti_live *l, FILE *out)
{
    if (l->sheet.colour) fputs("\x1b[0m", out);
}

/* Moves to the first line of the last frame. After the terminal's size has changed it is not known
 * where that is. */
static void go_back(const mti_live *l, const mti_sheet *now, FILE *out)
{
    if (!l->drawn_rows || !l->sheet.live) return;
    end_ink(l, out);
    if (now->width != l->sheet.width || now->height != l->sheet.height)
        fputs("\x1b[H\x1b[J", out);
    else
        fprintf(out, "\x1b[%dA", l->drawn_rows);
}

mt_status mti_live_draw(mti_live *l, const mti_timeline *t, const char *text)
{
    char *written = NULL;
    size_t n = 0;
    mti_sheet sheet = mti_sheet_of(l->sheet.out);
    FILE *memory = open_memstream(&written, &n);
    if (!memory) return mti_fail(MT_ERR_MEMORY, "live: no memory for a frame");
    frame f = {.to = sheet, .t = t};
    f.to.out = memory;
    go_back(l, &sheet, memory);
    put_frame(&f, text);
    if (sheet.live) fputs("\x1b[J", memory); /* what is left of a taller one */
    bool failed = ferror(memory) != 0;
    failed = fclose(memory) != 0 || failed;
    if (!failed) {
        fwrite(written, 1, n, l->sheet.out);
        fflush(l->sheet.out);
        l->sheet = sheet;
        l->drawn_rows = f.lines;
        l->drawn = mti_now();
    }
    free(written);
    return failed ? mti_fail(MT_ERR_MEMORY, "live: no memory for a frame") : MT_OK;
}

void mti_live_clear(mti_live *l)
{
    if (!l->drawn_rows) return;
    mti_sheet sheet = mti_sheet_of(l->sheet.out);
    go_back(l, &sheet, l->sheet.out);
    if (sheet.live) fputs("\x1b[J", l->sheet.out);
    l->drawn_rows = 0;
    l->drawn = 0;
}

void mti_live_end(mti_live *l)
{
    if (l->drawn_rows && l->sheet.live) {
        end_ink(l, l->sheet.out);
        fputs("\r\x1b[K", l->sheet.out); /* over the ^C that the terminal echoes */
    }
    l->drawn_rows = 0;
}

/* progress.c: a bar on a terminal, a plain line per interval elsewhere. */
#include <stdarg.h>
#include "report/terminal.h"

#define REDRAW_S 0.1 /* seconds between redraws */
#define BAR      24

void mti_progress_begin(mti_progress *p, FILE *out, int64_t first, int64_t total, int64_t every,
                        bool quiet)
{
    *p = (mti_progress){.sheet = mti_sheet_of(out),
                        .quiet = quiet,
                        .first = first,
                        .total = total,
                        .every = every > 0 ? every : 1,
                        .began = mti_now()};
}

static void clear_bar(mti_progress *p)
{
    if (p->drawn_width) fputs("\r\x1b[K", p->sheet.out);
    p->drawn_width = 0;
}

/* Cut to the width of the terminal, since a wrapped line could not be redrawn. */
static void draw_bar(mti_progress *p, int64_t done, const char *text, double eta)
{
    static const char *const eighths[] = {" ",      "\u258f", "\u258e", "\u258d",
                                          "\u258c", "\u258b", "\u258a", "\u2589"};
    char line[512] = "", left[MTI_NUMBER];
    int64_t filled = p->total ? done * BAR * 8 / p->total : 0; /* in eighths of a cell */
    for (int64_t i = 0; i < BAR; i++) {
        int64_t part = filled - i * 8;
        mti_append(line, sizeof line, "%s", part >= 8 ? "\u2588" : part > 0 ? eighths[part] : " ");
    }
    mti_append(line, sizeof line, "\u2502 %lld/%lld  %s  ETA %s", (long long)done,
               (long long)p->total, text, mti_duration(left, eta));
    size_t fit = mti_text_fit(line, p->sheet.width - 1);
    fputs("\r", p->sheet.out);
    fwrite(line, 1, fit, p->sheet.out);
    fputs("\x1b[K", p->sheet.out);
    fflush(p->sheet.out);
    p->drawn_width = 1;
}

/* Seconds until the last step; below 0: unknown. */
static double seconds_left(const mti_progress *p, int64_t done, double now)
{
    int64_t since = done - p->first;
    return since > 0 ? (now - p->began) / (double)since * (double)(p->total - done) : -1;
}

bool mti_progress_due(const mti_progress *p, int64_t done)
{
    bool due = p->sheet.live ? mti_now() - p->drawn >= REDRAW_S : done % p->every == 0;
    return !p->quiet && (due || done == p->total);
}

void mti_progress_step(mti_progress *p, int64_t done, const char *text)
{
    if (!mti_progress_due(p, done)) return;
    double now = mti_now();
    if (p->sheet.live) {
        p->drawn = now;
        draw_bar(p, done, text, seconds_left(p, done, now));
    } else {
        char left[MTI_NUMBER];
        mti_print(p->sheet.out, "step %lld/%lld  %s  ETA %s\n", (long long)done,
                  (long long)p->total, text, mti_duration(left, seconds_left(p, done, now)));
        fflush(p->sheet.out);
    }
}

void mti_progress_say(mti_progress *p, const char *fmt, ...)
{
    if (p->quiet) return;
    clear_bar(p);
    va_list args;
    va_start(args, fmt);
    mti_vprint(p->sheet.out, fmt, args);
    va_end(args);
    fputc('\n', p->sheet.out);
    fflush(p->sheet.out);
}

void mti_progress_end(mti_progress *p)
{
    if (p->drawn_width) fputc('\n', p->sheet.out);
    p->drawn_width = 0;
}

/* timeline_svg.c: bytes by category, as a picture.
 *
 * To the right goes time, where it is measured; else an event is as wide as the bytes that it
 * allocates or frees. What comes before the first step, many events and nothing to see but a slope,
 * is made narrow. */
#include <math.h>
#include <string.h>
#include "report/terminal.h"
#include "report/pictures.h"

#define LEFT    96 /* the scale's labels */
#define TOP     104
#define PLOT    860
#define TALL    380
#define LEGEND  200
#define COLUMNS 1200 /* more than this would be narrower than a pixel */
#define INIT    0.04 /* most of the width that what comes before the first step gets */

typedef struct page {
    FILE *out;
    const mti_timeline *t;
    size_t peak; /* event */
    mti_svg_scale scale;
    double *x;              /* [events + 1]: where the state after each event begins, in columns */
    size_t n;               /* columns: 0, or COLUMNS */
    mti_stretch *stretches; /* the highest state in each column */
    double measured;        /* seconds, or bytes, of the whole width */
    bool narrowed;          /* what comes before the first step */
} page;

static double y_of(const page *p, size_t bytes)
{
    return TOP + TALL * (1 - (double)bytes / p->scale.unit / p->scale.end);
}

/* The left edge of column i. */
static double x_of(const page *p, size_t i)
{
    return LEFT + PLOT * (double)i / (double)(p->n ? p->n : 1);
}

static double x_of_event(const page *p, size_t event)
{
    return LEFT + PLOT * p->x[event] / COLUMNS;
}

/* ---- from events to columns ---- */

/* Seconds from event i to the next, or bytes that it moves. */
static double extent_of(const mti_timeline *t, size_t i)
{
    const mt_mem_event *e = &t->events.at[i];
    if (t->clocked) return i + 1 < t->events.n ? t->seconds.at[i + 1] - t->seconds.at[i] : 0;
    return e->kind == MT_MEM_ALLOC || e->kind == MT_MEM_FREE ? (double)e->allocated : 0;
}

static size_t end_of_init(const mti_timeline *t)
{
    size_t i = 0;
    while (i < t->events.n && !strcmp(t->events.at[i].phase, "init")) i++;
    return i < t->events.n ? i : 0;
}

static void place_events(page *p)
{
    const mti_timeline *t = p->t;
    size_t n = t->events.n, steps = end_of_init(t);
    double init = 0, rest = 0;
    for (size_t i = 0; i < n; i++) *(i < steps ? &init : &rest) += extent_of(t, i);
    p->measured = init + rest;
    double share = init + rest > 0 ? fmin(init / (init + rest), INIT) : 0;
    p->narrowed = init > 0 && share < init / (init + rest);
    double of_init = init > 0 ? share * COLUMNS / init : 0;
    double of_rest = rest > 0 ? (1 - share) * COLUMNS / rest : 0;
    for (size_t i = 0; i < n; i++)
        p->x[i + 1] = fmin(COLUMNS, p->x[i] + extent_of(t, i) * (i < steps ? of_init : of_rest));
}

static size_t column_of(const page *p, size_t event)
{
    size_t column = (size_t)p->x[event];
    return column < COLUMNS ? column : COLUMNS - 1;
}

/* Each column shows the highest state that is there within it. */
static void fill_columns(page *p)
{
    const mti_timeline *t = p->t;
    size_t by_category[MT_CATEGORY_COUNT], next = 0;
    memcpy(by_category, t->before, sizeof by_category);
    for (size_t i = 0; i < t->events.n; i++) {
        mti_timeline_move(by_category, &t->events.at[i]);
        size_t last = column_of(p, i + 1);
        for (size_t k = column_of(p, i); k <= last; k++) {
            mti_stretch *column = &p->stretches[k];
            if (k < next && t->events.at[i].current <= t->events.at[column->event].current)
                continue;
            column->event = i;
            memcpy(column->by_category, by_category, sizeof by_category);
        }
        if (last + 1 > next) next = last + 1;
    }
    for (; t->events.n && next > 0 && next < COLUMNS; next++)
        p->stretches[next] = p->stretches[next - 1];
    p->n = t->events.n ? COLUMNS : 0;
}

static void draw_axis(const page *p)
{
    for (int i = 0; i <= mti_svg_ticks(&p->scale); i++) {
        char label[48];
        double y = TOP + TALL * (1 - i * p->scale.step / p->scale.end);
        mti_print(p->out, "<line x1=\"%d\" y1=\"%.1f\" x2=\"%d\" y2=\"%.1f\" stroke=\"%s\"/>\n",
                  LEFT, y, LEFT + PLOT, y, i ? "#e3e7ea" : "#8b949c");
        mti_svg_text(p->out, LEFT - 8, y + 4.5, "text-anchor=\"end\" fill=\"#5a6570\"",
                     mti_svg_tick(&p->scale, i, label, sizeof label));
    }
    char events[160];
    const char *narrow = p->narrowed ? ", init made narrow" : "";
    if (p->t->clocked)
        mti_format(events, sizeof events, "%zu events over %.3g ms%s", p->t->events.n,
                   p->measured * 1e3, narrow);
    else
        snprintf(events, sizeof events,
                 "%zu events, each as wide as the bytes it allocates or frees (%s)%s",
                 p->t->events.n, MTI_BYTES((uint64_t)p->measured), narrow);
    mti_svg_text(p->out, LEFT + PLOT / 2.0, TOP + TALL + 24,
                 "text-anchor=\"middle\" fill=\"#5a6570\"", events);
}

/* Bytes of categories 0 to c. */
static size_t stacked(const mti_stretch *s, int c)
{
    size_t sum = 0;
    for (int i = 0; i <= c; i++) sum += s->by_category[i];
    return sum;
}

static size_t most_of(const page *p, int c)
{
    size_t most = 0;
    for (size_t i = 0; i < p->n; i++)
        if (p->stretches[i].by_category[c] > most) most = p->stretches[i].by_category[c];
    return most;
}

/* One path: along the top of the category to the right, and back along the top of the one below.
 * Equal heights become one segment. */
static void draw_category(const page *p, int c)
{
    size_t most = most_of(p, c);
    if (!most) return;
    mti_print(p->out, "<path fill=\"%s\" d=\"M%d %.1f", mti_category_looks[c].fill, LEFT,
              y_of(p, stacked(&p->stretches[0], c)));
    for (size_t i = 0; i < p->n; i++) {
        size_t top = stacked(&p->stretches[i], c);
        if (i + 1 < p->n && stacked(&p->stretches[i + 1], c) == top) continue;
        mti_print(p->out, "V%.1fH%.1f", y_of(p, top), x_of(p, i + 1));
    }
    for (size_t i = p->n; i-- > 0;) {
        size_t below = stacked(&p->stretches[i], c - 1);
        if (i && stacked(&p->stretches[i - 1], c - 1) == below) continue;
        mti_print(p->out, "V%.1fH%.1f", y_of(p, below), x_of(p, i));
    }
    fputs("Z\">", p->out);
    mti_svg_tip(p->out, "%s: at most %s bytes", mt_category_name((mt_category)c),
                MTI_THOUSANDS(most));
    fputs("</path>\n", p->out);
}

/* A line with its name where each phase begins. */
static void draw_phases(const page *p)
{
    const char *phase = "";
    double free_from = 0; /* names do not write over each other */
    for (size_t i = 0; i < p->t->events.n; i++) {
        const char *now = p->t->events.at[i].phase;
        if (!strcmp(now, phase)) continue;
        phase = now;
        if (!*phase) continue;
        double x = x_of_event(p, i), name = x + 4 > free_from ? x + 4 : free_from;
        mti_print(p->out,
                  "<line x1=\"%.1f\" y1=\"%d\" x2=\"%.1f\" y2=\"%d\" stroke=\"#1c2329\" "
                  "stroke-dasharray=\"2 3\"/>\n",
                  x, TOP - 20, x, TOP + TALL);
        mti_svg_text(p->out, name, TOP - 10, "font-size=\"12\"", phase);
        free_from = name + MTI_SVG_CHARACTER * mti_text_width(phase) + 6;
    }
}

static void draw_steps(const page *p)
{
    double x = x_of_event(p, p->t->steady);
    if (!p->t->steady) return;
    mti_print(p->out, "<line x1=\"%.1f\" y1=\"%d\" x2=\"%.1f\" y2=\"%d\" stroke=\"#1c2329\"/>\n", x,
              TOP - 36, x, TOP + TALL);
    const char *style = "font-size=\"12\" font-weight=\"600\"";
    mti_svg_text(p->out, LEFT + 4, TOP - 26, style, "first step");
    mti_svg_text(p->out, x + 4, TOP - 26, style, "second step");
}

static void draw_peak(const page *p)
{
    char label[64];
    const mt_mem_event *e = &p->t->events.at[p->peak];
    double x = (x_of_event(p, p->peak) + x_of_event(p, p->peak + 1)) / 2, y = y_of(p, e->current);
    snprintf(label, sizeof label, "peak %s", MTI_BYTES(e->current));
    bool right = x + 8 + MTI_SVG_CHARACTER * mti_text_width(label) > LEFT + PLOT;
    mti_print(p->out, "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"3.5\" fill=\"#b00020\">", x, y);
    mti_svg_tip(p->out, "%s bytes, in %s: %s, %s", MTI_THOUSANDS(e->current), e->phase, e->module,
                e->op);
    fputs("</circle>\n", p->out);
    mti_svg_text(p->out, right ? x - 8 : x + 8, y - 5,
                 right ? "text-anchor=\"end\" font-weight=\"600\" fill=\"#b00020\""
                       : "font-weight=\"600\" fill=\"#b00020\"",
                 label);
}

static double draw_heading(const page *p, double y, const char *text)
{
    mti_svg_text(p->out, LEFT + PLOT + 24, y, "fill=\"#5a6570\"", text);
    return y + 20;
}

static double draw_key(const page *p, double y, int c, size_t n_bytes)
{
    double x = LEFT + PLOT + 24;
    mti_print(p->out, "<rect x=\"%.1f\" y=\"%.1f\" width=\"12\" height=\"12\" fill=\"%s\"/>\n", x,
              y - 10, mti_category_looks[c].fill);
    mti_svg_text(p->out, x + 18, y, "", mt_category_name((mt_category)c));
    mti_svg_text(p->out, x + LEGEND - 6, y, "text-anchor=\"end\" fill=\"#5a6570\"",
                 MTI_BYTES(n_bytes));
    return y + 20;
}

/* The categories in use, topmost first: with their bytes at the peak, or if they have none then,
 * the most they ever have. */
static void draw_legend(const page *p)
{
    size_t at_peak[MT_CATEGORY_COUNT];
    bool others = false;
    double y = draw_heading(p, TOP + 4, "at the peak");
    mti_timeline_categories(p->t, p->peak, at_peak);
    for (int c = MT_CATEGORY_COUNT; c-- > 0;)
        if (at_peak[c]) y = draw_key(p, y, c, at_peak[c]);
    for (int c = MT_CATEGORY_COUNT; c-- > 0;) {
        if (at_peak[c] || !most_of(p, c)) continue;
        if (!others) y = draw_heading(p, y + 10, "at other times, at most");
        others = true;
        y = draw_key(p, y, c, most_of(p, c));
    }
}

mt_status mti_timeline_draw(const mti_timeline *t, const char *title, const char *path)
{
    mti_file *file = NULL;
    const char *subtitle = t->steady ? "allocated bytes over two training steps, by what they are "
                                       "for; all later steps are like the second"
                                     : "allocated bytes, by what they are for";
    page p = {.t = t,
              .stretches = mti_calloc(COLUMNS, sizeof *p.stretches),
              .x = mti_calloc(t->events.n + 1, sizeof *p.x)};
    bool ok = p.stretches && p.x;
    if (ok) {
        place_events(&p);
        fill_columns(&p);
        p.peak = mti_timeline_peak(t);
        p.scale = mti_svg_scale_of((double)mti_timeline_highest(t));
        p.out = mti_svg_begin(
            &file, path, mti_svg_width(LEFT + PLOT + 24 + LEGEND + MTI_SVG_MARGIN, title, subtitle),
            TOP + TALL + 34 + MTI_SVG_MARGIN, title, subtitle);
    }
    if (p.out) {
        draw_axis(&p);
        for (int c = 0; c < MT_CATEGORY_COUNT; c++) draw_category(&p, c);
        if (p.n) draw_phases(&p);
        if (p.n) draw_steps(&p);
        if (p.n) draw_peak(&p);
        draw_legend(&p);
    }
    mti_free(p.stretches);
    mti_free(p.x);
    return ok ? mti_svg_end(p.out, file) : mt_last_status();
}

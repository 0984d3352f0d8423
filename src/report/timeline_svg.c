/* timeline_svg.c: bytes by category over events, as a picture. */
#include <string.h>
#include "report/report.h"
#include "report/svg_parts.h"
#include "report/timeline.h"

#define LEFT    96 /* the scale's labels */
#define TOP     104
#define PLOT    860
#define TALL    380
#define LEGEND  200
#define COLUMNS 1200 /* more stretches than this would be narrower than a pixel */

/* Neighbours in the stack differ in lightness, too. */
static const char *const colours[MT_CATEGORY_COUNT] = {
    [MT_PARAMETER] = "#1f4e79", [MT_GRADIENT] = "#e07b39",   [MT_OPTIMIZER] = "#7fb2d9",
    [MT_INPUT] = "#6b7280",     [MT_ACTIVATION] = "#4c9f70", [MT_OUTPUT] = "#b9c95a",
    [MT_RNG_STATE] = "#8c6bb1", [MT_PACKED] = "#c2a5cf",     [MT_CACHE] = "#a6761d",
    [MT_TEMPORARY] = "#f2c14e", [MT_WORKSPACE] = "#b33a3a",
};

typedef struct page {
    FILE *out;
    const mti_timeline *t;
    size_t peak; /* event */
    mti_svg_scale scale;
    size_t n;
    mti_stretch *stretches; /* columns, of equal width */
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
    return LEFT + PLOT * (double)event / (double)p->t->events.n;
}

static void draw_axis(const page *p)
{
    for (int i = 0; i <= mti_svg_ticks(&p->scale); i++) {
        char label[48];
        double y = TOP + TALL * (1 - i * p->scale.step / p->scale.end);
        fprintf(p->out, "<line x1=\"%d\" y1=\"%.1f\" x2=\"%d\" y2=\"%.1f\" stroke=\"%s\"/>\n", LEFT,
                y, LEFT + PLOT, y, i ? "#e3e7ea" : "#8b949c");
        mti_svg_text(p->out, LEFT - 8, y + 4.5, "text-anchor=\"end\" fill=\"#5a6570\"",
                     mti_svg_tick(&p->scale, i, label, sizeof label));
    }
    char events[64];
    snprintf(events, sizeof events, "%zu events: allocations, releases, changes of category",
             p->t->events.n);
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

/* One path: along the top of the category to the right, and back along the top of the one below.
 * Equal heights become one segment. */
static void draw_category(const page *p, int c)
{
    bool any = false;
    for (size_t i = 0; i < p->n; i++) any = any || p->stretches[i].by_category[c];
    if (!any) return;
    fprintf(p->out, "<path fill=\"%s\" d=\"M%d %.1f", colours[c], LEFT,
            y_of(p, stacked(&p->stretches[0], c)));
    for (size_t i = 0; i < p->n; i++) {
        size_t top = stacked(&p->stretches[i], c);
        if (i + 1 < p->n && stacked(&p->stretches[i + 1], c) == top) continue;
        fprintf(p->out, "V%.1fH%.1f", y_of(p, top), x_of(p, i + 1));
    }
    for (size_t i = p->n; i-- > 0;) {
        size_t below = stacked(&p->stretches[i], c - 1);
        if (i && stacked(&p->stretches[i - 1], c - 1) == below) continue;
        fprintf(p->out, "V%.1fH%.1f", y_of(p, below), x_of(p, i));
    }
    fputs("Z\"/>\n", p->out);
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
        fprintf(p->out,
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
    fprintf(p->out, "<line x1=\"%.1f\" y1=\"%d\" x2=\"%.1f\" y2=\"%d\" stroke=\"#1c2329\"/>\n", x,
            TOP - 36, x, TOP + TALL);
    const char *style = "font-size=\"12\" font-weight=\"600\"";
    mti_svg_text(p->out, LEFT + 4, TOP - 26, style, "first step");
    mti_svg_text(p->out, x + 4, TOP - 26, style, "second step");
}

static void draw_peak(const page *p)
{
    char label[64], bytes[MTI_NUMBER];
    const mt_mem_event *e = &p->t->events.at[p->peak];
    double x = x_of_event(p, p->peak) + PLOT * 0.5 / (double)p->t->events.n,
           y = y_of(p, e->current);
    snprintf(label, sizeof label, "peak %s", mti_bytes_text(bytes, sizeof bytes, e->current));
    bool right = x + 8 + MTI_SVG_CHARACTER * mti_text_width(label) > LEFT + PLOT;
    fprintf(p->out, "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"3.5\" fill=\"#b00020\"/>\n", x, y);
    mti_svg_text(p->out, right ? x - 8 : x + 8, y - 5,
                 right ? "text-anchor=\"end\" font-weight=\"600\" fill=\"#b00020\""
                       : "font-weight=\"600\" fill=\"#b00020\"",
                 label);
}

/* The categories in use, topmost first, with their bytes at the peak. */
static void draw_legend(const page *p)
{
    size_t at_peak[MT_CATEGORY_COUNT];
    double y = TOP + 10, x = LEFT + PLOT + 24;
    mti_timeline_categories(p->t, p->peak, at_peak);
    mti_svg_text(p->out, x, y - 20, "fill=\"#5a6570\"", "at the peak");
    for (int c = MT_CATEGORY_COUNT; c-- > 0;) {
        bool any = at_peak[c] > 0;
        for (size_t i = 0; i < p->n; i++) any = any || p->stretches[i].by_category[c];
        if (!any) continue;
        char bytes[MTI_NUMBER];
        fprintf(p->out, "<rect x=\"%.1f\" y=\"%.1f\" width=\"12\" height=\"12\" fill=\"%s\"/>\n", x,
                y - 10, colours[c]);
        mti_svg_text(p->out, x + 18, y, "", mt_category_name((mt_category)c));
        mti_svg_text(p->out, x + LEGEND - 6, y, "text-anchor=\"end\" fill=\"#5a6570\"",
                     mti_bytes_text(bytes, sizeof bytes, at_peak[c]));
        y += 20;
    }
}

mt_status mti_timeline_draw(const mti_timeline *t, const char *title, const char *path)
{
    mti_file *file = NULL;
    page p = {.t = t, .stretches = mti_calloc(COLUMNS, sizeof *p.stretches)};
    if (!p.stretches) return mt_last_status();
    p.n = mti_timeline_stretches(t, COLUMNS, p.stretches);
    p.peak = mti_timeline_peak(t);
    p.scale = mti_svg_scale_of((double)mti_timeline_highest(t));
    p.out = mti_svg_begin(
        &file, path, LEFT + PLOT + 24 + LEGEND + MTI_SVG_MARGIN, TOP + TALL + 34 + MTI_SVG_MARGIN,
        title,
        t->steady ? "allocated bytes over two training steps, by what they are for; all "
                    "later steps are like the second"
                  : "allocated bytes, by what they are for");
    if (p.out) {
        draw_axis(&p);
        for (int c = 0; c < MT_CATEGORY_COUNT; c++) draw_category(&p, c);
        if (p.n) draw_phases(&p);
        if (p.n) draw_steps(&p);
        if (p.n) draw_peak(&p);
        draw_legend(&p);
    }
    mti_free(p.stretches);
    return mti_svg_end(p.out, file);
}

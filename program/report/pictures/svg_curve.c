/* svg_curve.c: a falling staircase, and single points beside it. */
#include <math.h>
#include <stdio.h>
#include "report/terminal.h"
#include "report/pictures.h"

/* All in pixels. */
#define TOP    96 /* title, subtitle, legend */
#define LEFT   84
#define WIDE   700
#define HIGH   380
#define BOTTOM 60 /* ticks and the axis' name */
#define FRONT  "#1f6fb4"
#define OTHERS "#5a6570"

typedef struct page {
    FILE *out;
    const mti_svg_curve *c;
    mti_svg_scale scale;
    double most, step; /* of percent */
} page;

static double x_of(const page *p, double bytes)
{
    return LEFT + WIDE * (bytes / p->scale.unit) / p->scale.end;
}

static double y_of(const page *p, double percent) { return TOP + HIGH * (1 - percent / p->most); }

static double most_percent(const mti_svg_point *points, size_t n, double most)
{
    for (size_t i = 0; i < n; i++) most = fmax(most, points[i].percent);
    return most;
}

static double most_bytes(const mti_svg_point *points, size_t n, double most)
{
    for (size_t i = 0; i < n; i++) most = fmax(most, points[i].bytes);
    return most;
}

static void line(const page *p, double x1, double y1, double x2, double y2, bool axis)
{
    mti_print(p->out, "<line x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\" stroke=\"%s\"/>\n", x1,
              y1, x2, y2, axis ? "#8b949c" : "#e3e7ea");
}

static void draw_axes(const page *p)
{
    char label[48];
    for (int i = 0; i <= mti_svg_ticks(&p->scale); i++) {
        double x = x_of(p, i * p->scale.step * p->scale.unit);
        line(p, x, TOP, x, TOP + HIGH, i == 0);
        mti_svg_text(p->out, x, TOP + HIGH + 20, "text-anchor=\"middle\" fill=\"#5a6570\"",
                     mti_svg_tick(&p->scale, i, label, sizeof label));
    }
    for (double percent = 0; percent <= p->most * 1.0001; percent += p->step) {
        double y = y_of(p, percent);
        line(p, LEFT, y, LEFT + WIDE, y, percent == 0);
        mti_format(label, sizeof label, "%g %%", percent);
        mti_svg_text(p->out, LEFT - 8, y + 4.5, "text-anchor=\"end\" fill=\"#5a6570\"", label);
    }
    mti_svg_text(p->out, LEFT + WIDE / 2.0, TOP + HIGH + 44, "text-anchor=\"middle\"",
                 p->c->bytes_name);
    mti_svg_text(p->out, -(TOP + HIGH / 2.0), 24,
                 "text-anchor=\"middle\" transform=\"rotate(-90)\"", p->c->percent_name);
}

static void draw_legend(const page *p)
{
    double y = TOP - 18;
    mti_print(p->out, "<circle cx=\"%d\" cy=\"%.1f\" r=\"4\" fill=\"" FRONT "\"/>\n", LEFT + 5,
              y - 4.5);
    mti_svg_text(p->out, LEFT + 16, y, "", p->c->front_name);
    if (!p->c->n_others) return;
    mti_print(p->out, "<rect x=\"%d\" y=\"%.1f\" width=\"8\" height=\"8\" fill=\"" OTHERS "\"/>\n",
              LEFT + 260, y - 8.5);
    mti_svg_text(p->out, LEFT + 275, y, "", p->c->others_name);
}

/* Above the mark, or below it. */
static void draw_label(const page *p, const mti_svg_point *point, const char *colour, bool below)
{
    char attributes[64];
    double x = x_of(p, point->bytes), y = y_of(p, point->percent) + (below ? 24 : 0);
    bool left = below || x > LEFT + WIDE * 0.85;
    if (!point->label) return;
    snprintf(attributes, sizeof attributes, "font-size=\"12\" fill=\"%s\"%s", colour,
             left ? " text-anchor=\"end\"" : "");
    mti_svg_text(p->out, left ? x - 8 : x + 8, y - 7, attributes, point->label);
}

static void draw_tip(const page *p, const char *kind, const mti_svg_point *point)
{
    mti_svg_tip(p->out, "%s: %s bytes, %.3g %%", point->label ? point->label : kind,
                MTI_THOUSANDS(point->bytes), point->percent);
}

static void draw_front(const page *p)
{
    const mti_svg_curve *c = p->c;
    fputs("<path fill=\"none\" stroke=\"" FRONT "\" stroke-width=\"1.5\" d=\"", p->out);
    for (size_t i = 0; i < c->n_front; i++) {
        double x = x_of(p, c->front[i].bytes), y = y_of(p, c->front[i].percent);
        mti_print(p->out, i ? "H%.1fV%.1f" : "M%.1f %.1f", x, y);
    }
    fprintf(p->out, "H%d\"/>\n", LEFT + WIDE);
    for (size_t i = 0; i < c->n_front; i++) {
        mti_print(p->out, "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"3.5\" fill=\"" FRONT "\">",
                  x_of(p, c->front[i].bytes), y_of(p, c->front[i].percent));
        draw_tip(p, c->front_name, &c->front[i]);
        fputs("</circle>\n", p->out);
        draw_label(p, &c->front[i], FRONT, false);
    }
}

/* Whether the label of point i would overlap that of an earlier point. */
static bool is_crowded(const page *p, const mti_svg_point *points, size_t i)
{
    for (size_t k = 0; k < i; k++)
        if (fabs(x_of(p, points[k].bytes) - x_of(p, points[i].bytes)) < 60 &&
            fabs(y_of(p, points[k].percent) - y_of(p, points[i].percent)) < 16)
            return true;
    return false;
}

static void draw_others(const page *p)
{
    for (size_t i = 0; i < p->c->n_others; i++) {
        const mti_svg_point *point = &p->c->others[i];
        mti_print(p->out,
                  "<rect x=\"%.1f\" y=\"%.1f\" width=\"8\" height=\"8\" fill=\"" OTHERS "\">",
                  x_of(p, point->bytes) - 4, y_of(p, point->percent) - 4);
        draw_tip(p, p->c->others_name, point);
        fputs("</rect>\n", p->out);
        draw_label(p, point, OTHERS, is_crowded(p, p->c->others, i));
    }
}

mt_status mti_svg_curve_write(const mti_svg_curve *c, const char *path)
{
    mti_file *file = NULL;
    page p = {.c = c};
    double most = most_percent(c->others, c->n_others, most_percent(c->front, c->n_front, 1));
    p.step = pow(10, floor(log10(most)));
    if (most / p.step < 2) p.step /= 5;
    if (most / p.step < 5) p.step /= 2;
    p.most = ceil(most / p.step - 1e-9) * p.step;
    p.scale =
        mti_svg_scale_of(most_bytes(c->others, c->n_others, most_bytes(c->front, c->n_front, 1)));
    p.out = mti_svg_begin(&file, path,
                          mti_svg_width(LEFT + WIDE + 2 * MTI_SVG_MARGIN, c->title, c->subtitle),
                          TOP + HIGH + BOTTOM, c->title, c->subtitle);
    if (p.out) {
        draw_legend(&p);
        draw_axes(&p);
        draw_front(&p);
        draw_others(&p);
    }
    return mti_svg_end(p.out, file);
}

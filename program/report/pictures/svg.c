/* svg.c: horizontal bars. */
#include <math.h>
#include <stdio.h>
#include <string.h>
#include "report/terminal.h"
#include "report/pictures.h"

/* All in pixels. */
#define CHARACTER MTI_SVG_CHARACTER
#define MARGIN    MTI_SVG_MARGIN
#define TOP       96 /* title, subtitle, legend */
#define BAR       13
#define GROUP_GAP 14
#define HEADING   24
#define PLOT      560
#define AXIS      34 /* ticks and their labels */

/* What is saved is activations, and has their colour; the others are no category's. They differ in
 * lightness, for colour-blind readers and in print. */
static const char *const colours[MTI_SVG_SERIES] = {"#4c9f70", "#3c4650", "#b3bbc2"};

typedef struct page {
    FILE *out;
    const mti_svg_bars *bars;
    mti_svg_scale scale;
    int left, group, height, width;
} page;

static double x_of(const page *p, double bytes)
{
    return p->left + PLOT * (bytes / p->scale.unit) / p->scale.end;
}

/* ---- parts ---- */

static void draw_legend(const page *p)
{
    double x = p->left;
    for (int s = 0; s < p->bars->n_series; s++) {
        mti_print(p->out, "<rect x=\"%.1f\" y=\"%d\" width=\"12\" height=\"12\" fill=\"%s\"/>\n", x,
                  TOP - 24, colours[s]);
        mti_svg_text(p->out, x + 18, TOP - 13, "", p->bars->series[s]);
        x += 18 + CHARACTER * mti_text_width(p->bars->series[s]) + 24;
    }
}

static void draw_axis(const page *p)
{
    int bottom = p->height - MARGIN - AXIS;
    for (int i = 0; i <= mti_svg_ticks(&p->scale); i++) {
        char label[48];
        double x = x_of(p, i * p->scale.step * p->scale.unit);
        mti_print(p->out, "<line x1=\"%.1f\" y1=\"%d\" x2=\"%.1f\" y2=\"%d\" stroke=\"%s\"/>\n", x,
                  TOP, x, bottom, i ? "#e3e7ea" : "#8b949c");
        mti_svg_text(p->out, x, bottom + 20, "text-anchor=\"middle\" fill=\"#5a6570\"",
                     mti_svg_tick(&p->scale, i, label, sizeof label));
    }
}

static bool begins_group(const mti_svg_bars *b, size_t i)
{
    const char *group = b->rows[i].group;
    return group && (!i || !b->rows[i - 1].group || strcmp(group, b->rows[i - 1].group));
}

static size_t n_headings(const mti_svg_bars *b, size_t n_rows)
{
    size_t n = 0;
    for (size_t i = 0; i < n_rows; i++) n += begins_group(b, i);
    return n;
}

static void draw_row(const page *p, size_t i)
{
    const mti_svg_row *row = &p->bars->rows[i];
    double y =
        TOP + GROUP_GAP / 2.0 + (double)i * p->group + (double)n_headings(p->bars, i + 1) * HEADING;
    int n = p->bars->n_series;
    if (begins_group(p->bars, i))
        mti_svg_text(p->out, MARGIN, y - 6, "font-weight=\"600\"", row->group);
    mti_svg_text(p->out, p->left - 10, y + n * BAR / 2.0 + 4.5, "text-anchor=\"end\"", row->label);
    for (int s = 0; s < n; s++, y += BAR) {
        if (isnan(row->value[s])) continue;
        double x = x_of(p, row->value[s]);
        mti_print(p->out, "<rect x=\"%d\" y=\"%.1f\" width=\"%.2f\" height=\"%d\" fill=\"%s\">",
                  p->left, y, x - p->left, BAR - 1, colours[s]);
        mti_svg_tip(p->out, "%s%s%s, %s: %s bytes", row->group ? row->group : "",
                    row->group ? " " : "", row->label, p->bars->series[s],
                    MTI_THOUSANDS(row->value[s]));
        fputs("</rect>\n", p->out);
        mti_svg_text(p->out, x + 5, y + BAR - 2.5, "font-size=\"11\" fill=\"#3c4650\"",
                     MTI_BYTES((uint64_t)row->value[s]));
    }
    if (row->note && *row->note)
        mti_svg_text(p->out, isnan(row->value[0]) ? p->left + 8 : p->left + PLOT + 110,
                     y - n * BAR / 2.0 + 4.5, "fill=\"#5a6570\"", row->note);
}

static void lay_out(page *p)
{
    int label = 0, note = 0;
    double most = 0;
    for (size_t i = 0; i < p->bars->n_rows; i++) {
        const mti_svg_row *row = &p->bars->rows[i];
        int group = row->group ? mti_text_width(row->group) * 12 / 10 : 0; /* bold */
        int n = mti_text_width(row->label), m = row->note ? mti_text_width(row->note) : 0;
        if (n > label) label = n;
        if (group > label) label = group;
        if (m > note) note = m;
        for (int s = 0; s < p->bars->n_series; s++) most = fmax(most, row->value[s]);
    }
    p->scale = mti_svg_scale_of(most);
    p->left = MARGIN + 10 + (int)(CHARACTER * label);
    p->group = p->bars->n_series * BAR + GROUP_GAP;
    p->width = mti_svg_width(p->left + PLOT + 110 + (int)(CHARACTER * note) + MARGIN,
                             p->bars->title, p->bars->subtitle);
    p->height = TOP + (int)p->bars->n_rows * p->group +
                (int)n_headings(p->bars, p->bars->n_rows) * HEADING + AXIS + MARGIN;
}

mt_status mti_svg_write(const mti_svg_bars *bars, const char *path)
{
    mti_file *file = NULL;
    page p = {.bars = bars};
    lay_out(&p);
    p.out = mti_svg_begin(&file, path, p.width, p.height, bars->title, bars->subtitle);
    if (p.out) {
        draw_legend(&p);
        draw_axis(&p);
        for (size_t i = 0; i < bars->n_rows; i++) draw_row(&p, i);
    }
    return mti_svg_end(p.out, file);
}

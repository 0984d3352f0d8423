/* svg.c: horizontal bars. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "report/report.h"
#include "report/svg.h"

/* All in pixels. Text is 13 high; half-width characters of it are about 7.3 wide. */
#define FONT      "font-family=\"system-ui, -apple-system, 'Segoe UI', 'DejaVu Sans', sans-serif\""
#define CHARACTER 7.3
#define MARGIN    24
#define TOP       96 /* title, subtitle, legend */
#define BAR       13
#define GROUP_GAP 14
#define PLOT      560
#define AXIS      34 /* ticks and their labels */

/* Told apart by colour-blind readers, and in print. */
static const char *const colours[MTI_SVG_SERIES] = {"#1f6fb4", "#f2a03d", "#7a8793"};

typedef struct page {
    FILE *out;
    const mti_svg_bars *bars;
    double most, step, unit; /* of the scale: its end, between ticks, bytes of its unit */
    const char *unit_name;
    int left, group, height, width;
} page;

/* ---- the scale ---- */

/* The largest of 1, 2, 2.5, 5 times a power of 10 (or of 1, 2, 4, ... where the unit is binary and
 * the number large) that gives no fewer than 4 steps. */
static double round_step(double most)
{
    double power = pow(10, floor(log10(most))), best = power / 10;
    static const double factors[] = {0.1, 0.2, 0.25, 0.5, 1, 2, 2.5};
    for (size_t i = 0; i < sizeof factors / sizeof *factors; i++)
        if (most / (factors[i] * power) >= 4) best = factors[i] * power;
    return best;
}

static void set_scale(page *p)
{
    static const char *const names[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
    double most = 0;
    for (size_t i = 0; i < p->bars->n_rows; i++)
        for (int s = 0; s < p->bars->n_series; s++) most = fmax(most, p->bars->rows[i].value[s]);
    size_t unit = 0;
    p->unit = 1;
    while (most / p->unit >= 1024 && unit + 1 < sizeof names / sizeof *names)
        p->unit *= 1024, unit++;
    p->unit_name = names[unit];
    double end = most > 0 ? most / p->unit : 1;
    p->step = round_step(end);
    p->most = ceil(end / p->step - 1e-9) * p->step;
}

static double x_of(const page *p, double bytes)
{
    return p->left + PLOT * (bytes / p->unit) / p->most;
}

/* ---- text ---- */

/* Markup characters are spelt out; control characters are left out. */
static void put_text(FILE *out, const char *text)
{
    for (const char *c = text; *c; c++) {
        if (*c == '&')
            fputs("&amp;", out);
        else if (*c == '<')
            fputs("&lt;", out);
        else if (*c == '>')
            fputs("&gt;", out);
        else if (*c == '"')
            fputs("&quot;", out);
        else if ((unsigned char)*c >= ' ')
            fputc(*c, out);
    }
}

static void text_at(const page *p, double x, double y, const char *attributes, const char *text)
{
    fprintf(p->out, "<text x=\"%.1f\" y=\"%.1f\" %s>", x, y, attributes);
    put_text(p->out, text);
    fputs("</text>\n", p->out);
}

/* ---- parts ---- */

static void draw_head(const page *p)
{
    fprintf(p->out,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%d\" "
            "viewBox=\"0 0 %d %d\" " FONT " font-size=\"13\" fill=\"#1c2329\">\n"
            "<rect width=\"100%%\" height=\"100%%\" fill=\"#ffffff\"/>\n",
            p->width, p->height, p->width, p->height);
    text_at(p, MARGIN, 34, "font-size=\"18\" font-weight=\"600\"", p->bars->title);
    if (p->bars->subtitle) text_at(p, MARGIN, 56, "fill=\"#5a6570\"", p->bars->subtitle);
    double x = p->left;
    for (int s = 0; s < p->bars->n_series; s++) {
        fprintf(p->out, "<rect x=\"%.1f\" y=\"%d\" width=\"12\" height=\"12\" fill=\"%s\"/>\n", x,
                TOP - 24, colours[s]);
        text_at(p, x + 18, TOP - 13, "", p->bars->series[s]);
        x += 18 + CHARACTER * mti_text_width(p->bars->series[s]) + 24;
    }
}

static void draw_axis(const page *p)
{
    int bottom = p->height - MARGIN - AXIS;
    int n = (int)(p->most / p->step + 0.5);
    for (int i = 0; i <= n; i++) {
        char label[48];
        double x = x_of(p, i * p->step * p->unit);
        snprintf(label, sizeof label, i ? "%g %s" : "%g", i * p->step, p->unit_name);
        fprintf(p->out, "<line x1=\"%.1f\" y1=\"%d\" x2=\"%.1f\" y2=\"%d\" stroke=\"%s\"/>\n", x,
                TOP, x, bottom, i ? "#e3e7ea" : "#8b949c");
        text_at(p, x, bottom + 20, "text-anchor=\"middle\" fill=\"#5a6570\"", label);
    }
}

static void draw_row(const page *p, size_t i)
{
    const mti_svg_row *row = &p->bars->rows[i];
    double y = TOP + GROUP_GAP / 2.0 + (double)i * p->group, end = p->left;
    int n = p->bars->n_series;
    text_at(p, p->left - 10, y + n * BAR / 2.0 + 4.5, "text-anchor=\"end\"", row->label);
    for (int s = 0; s < n; s++, y += BAR) {
        char number[MTI_NUMBER];
        double x = x_of(p, row->value[s]);
        fprintf(p->out, "<rect x=\"%d\" y=\"%.1f\" width=\"%.2f\" height=\"%d\" fill=\"%s\"/>\n",
                p->left, y, x - p->left, BAR - 1, colours[s]);
        mti_bytes_text(number, sizeof number, (uint64_t)row->value[s]);
        text_at(p, x + 5, y + BAR - 2.5, "font-size=\"11\" fill=\"#3c4650\"", number);
        end = fmax(end, x + 5 + 6.2 * (double)strlen(number));
    }
    if (row->note)
        text_at(p, p->left + PLOT + 110, y - n * BAR / 2.0 + 4.5, "fill=\"#5a6570\"", row->note);
}

static void lay_out(page *p)
{
    int label = 0, note = 0;
    for (size_t i = 0; i < p->bars->n_rows; i++) {
        const mti_svg_row *row = &p->bars->rows[i];
        int n = mti_text_width(row->label), m = row->note ? mti_text_width(row->note) : 0;
        if (n > label) label = n;
        if (m > note) note = m;
    }
    p->left = MARGIN + 10 + (int)(CHARACTER * label);
    p->group = p->bars->n_series * BAR + GROUP_GAP;
    p->width = p->left + PLOT + 110 + (int)(CHARACTER * note) + MARGIN;
    p->height = TOP + (int)p->bars->n_rows * p->group + AXIS + MARGIN;
}

mt_status mti_svg_write(const mti_svg_bars *bars, const char *path)
{
    char *text = NULL;
    size_t n = 0;
    page p = {.out = open_memstream(&text, &n), .bars = bars};
    if (!p.out) return mti_fail(MT_ERR_MEMORY, "svg: no memory for the picture");
    set_scale(&p);
    lay_out(&p);
    draw_head(&p);
    draw_axis(&p);
    for (size_t i = 0; i < bars->n_rows; i++) draw_row(&p, i);
    fputs("</svg>\n", p.out);
    bool ok = !ferror(p.out);
    ok = fclose(p.out) == 0 && ok;
    if (!ok) mti_fail(MT_ERR_MEMORY, "svg: no memory for the picture");
    mti_file *f = ok ? mti_file_create(path) : NULL;
    if (f && mti_file_write(f, text, n))
        mti_file_commit(f);
    else if (f)
        mti_file_abandon(f);
    free(text);
    return mt_last_status();
}

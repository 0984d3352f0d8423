/* svg_parts.c: pages, scales and text. */
#include <math.h>
#include <string.h>
#include "report/terminal.h"
#include "report/pictures.h"

#define FONT "font-family=\"system-ui, -apple-system, 'Segoe UI', 'DejaVu Sans', sans-serif\""

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

mti_svg_scale mti_svg_scale_of(double most)
{
    static const char *const names[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
    mti_svg_scale s = {.unit = 1};
    size_t unit = 0;
    while (most / s.unit >= 1024 && unit + 1 < sizeof names / sizeof *names) s.unit *= 1024, unit++;
    s.unit_name = names[unit];
    double end = most > 0 ? most / s.unit : 1;
    s.step = round_step(end);
    s.end = ceil(end / s.step - 1e-9) * s.step;
    return s;
}

int mti_svg_ticks(const mti_svg_scale *s) { return (int)(s->end / s->step + 0.5); }

const char *mti_svg_tick(const mti_svg_scale *s, int i, char *buf, size_t size)
{
    mti_format(buf, size, i ? "%g %s" : "%g", i * s->step, s->unit_name);
    return buf;
}

/* ---- text ---- */

void mti_put_markup(FILE *out, const char *text)
{
    const unsigned char *s = (const unsigned char *)text, *end = s + strlen(text);
    size_t length;
    for (; s < end; s += length) {
        uint32_t c = mti_next_char(s, end, &length);
        if (c == '&')
            fputs("&amp;", out);
        else if (c == '<')
            fputs("&lt;", out);
        else if (c == '>')
            fputs("&gt;", out);
        else if (c == '"')
            fputs("&quot;", out);
        else if (c != '\n')
            mti_print_bytes(out, s, length);
    }
}

void mti_svg_text(FILE *out, double x, double y, const char *attributes, const char *text)
{
    mti_print(out, "<text x=\"%.1f\" y=\"%.1f\" %s>", x, y, attributes);
    mti_put_markup(out, text);
    fputs("</text>\n", out);
}

void mti_svg_tip(FILE *out, const char *fmt, ...)
{
    char text[512];
    va_list args;
    va_start(args, fmt);
    mti_vformat(text, sizeof text, fmt, args);
    va_end(args);
    fputs("<title>", out);
    mti_put_markup(out, text);
    fputs("</title>", out);
}

/* ---- the page ---- */

/* Attributes have the light colours, which every viewer knows. Where the reader's system is dark
 * and the viewer has style sheets, these stand in their place. */
static const struct {
    const char *light, *dark;
} colours[] = {
    {"#ffffff", "#12171c"},                         /* the page */
    {"#1c2329", "#e6eaed"},                         /* text */
    {"#5a6570", "#9aa6b1"},                         /* text of less weight */
    {"#3c4650", "#c3ccd4"}, {"#e3e7ea", "#2a333b"}, /* lines of a scale */
    {"#8b949c", "#6f7b86"},                         /* its first */
    {"#b00020", "#ff7a85"},                         /* the peak */
    {"#1f6fb4", "#5aa7e8"},                         /* a curve */
    {"#b3bbc2", "#55606a"},                         /* what is reserved */
    {"#1f4e79", "#3f86c8"},                         /* categories: others are clear on both pages */
    {"#6b7280", "#8d95a3"}, {"#a6761d", "#c9993f"}, {"#b33a3a", "#d76060"},
};

/* Neighbours in a stack differ in lightness, too. */
const mti_category_look mti_category_looks[MT_CATEGORY_COUNT] = {
    [MT_PARAMETER] = {'p', "#1f4e79"},  [MT_GRADIENT] = {'g', "#e07b39"},
    [MT_OPTIMIZER] = {'o', "#7fb2d9"},  [MT_INPUT] = {'i', "#6b7280"},
    [MT_ACTIVATION] = {'a', "#4c9f70"}, [MT_OUTPUT] = {'y', "#b9c95a"},
    [MT_RNG_STATE] = {'r', "#8c6bb1"},  [MT_PACKED] = {'k', "#c2a5cf"},
    [MT_CACHE] = {'c', "#a6761d"},      [MT_TEMPORARY] = {'t', "#f2c14e"},
    [MT_WORKSPACE] = {'w', "#b33a3a"},  [MT_COMMUNICATION] = {'m', "#2aa198"},
};

static void put_style(FILE *out)
{
    fputs("<style>@media (prefers-color-scheme: dark) {\n", out);
    for (size_t i = 0; i < sizeof colours / sizeof *colours; i++)
        mti_print(out, "[fill=\"%s\"] { fill: %s } [stroke=\"%s\"] { stroke: %s }\n",
                  colours[i].light, colours[i].dark, colours[i].light, colours[i].dark);
    fputs("}</style>\n", out);
}

int mti_svg_width(int width, const char *title, const char *subtitle)
{
    int wide = (int)(MTI_SVG_CHARACTER * 19 / 13 * mti_text_width(title)); /* bold */
    int below = subtitle ? (int)(MTI_SVG_CHARACTER * mti_text_width(subtitle)) : 0;
    int text = 2 * MTI_SVG_MARGIN + (wide > below ? wide : below);
    return text > width ? text : width;
}

FILE *mti_svg_begin(mti_file **file, const char *path, int width, int height, const char *title,
                    const char *subtitle)
{
    *file = mti_file_create(path);
    FILE *out = *file ? mti_file_stream(*file) : NULL;
    if (!out) return NULL;
    fprintf(out,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%d\" "
            "viewBox=\"0 0 %d %d\" " FONT " font-size=\"13\" fill=\"#1c2329\" role=\"img\">\n",
            width, height, width, height);
    mti_svg_tip(out, "%s", title);
    fputs("<desc>", out);
    mti_put_markup(out, subtitle ? subtitle : title);
    fputs("</desc>\n", out);
    put_style(out);
    fputs("<rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>\n", out);
    mti_svg_text(out, MTI_SVG_MARGIN, 34, "font-size=\"18\" font-weight=\"600\"", title);
    if (subtitle) mti_svg_text(out, MTI_SVG_MARGIN, 56, "fill=\"#5a6570\"", subtitle);
    return out;
}

mt_status mti_svg_end(FILE *out, mti_file *file)
{
    if (out) fputs("</svg>\n", out);
    return mti_finish_file(file, out);
}

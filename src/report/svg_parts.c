/* svg_parts.c: pages, scales and text. */
#include <math.h>
#include "report/svg_parts.h"

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
    snprintf(buf, size, i ? "%g %s" : "%g", i * s->step, s->unit_name);
    return buf;
}

/* ---- text ---- */

void mti_put_markup(FILE *out, const char *text)
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

void mti_svg_text(FILE *out, double x, double y, const char *attributes, const char *text)
{
    fprintf(out, "<text x=\"%.1f\" y=\"%.1f\" %s>", x, y, attributes);
    mti_put_markup(out, text);
    fputs("</text>\n", out);
}

/* ---- the page ---- */

FILE *mti_svg_begin(mti_file **file, const char *path, int width, int height, const char *title,
                    const char *subtitle)
{
    *file = mti_file_create(path);
    FILE *out = *file ? mti_file_stream(*file) : NULL;
    if (!out) return NULL;
    fprintf(out,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%d\" "
            "viewBox=\"0 0 %d %d\" " FONT " font-size=\"13\" fill=\"#1c2329\">\n"
            "<rect width=\"100%%\" height=\"100%%\" fill=\"#ffffff\"/>\n",
            width, height, width, height);
    mti_svg_text(out, MTI_SVG_MARGIN, 34, "font-size=\"18\" font-weight=\"600\"", title);
    if (subtitle) mti_svg_text(out, MTI_SVG_MARGIN, 56, "fill=\"#5a6570\"", subtitle);
    return out;
}

mt_status mti_svg_end(FILE *out, mti_file *file)
{
    bool ok = out != NULL;
    if (out) {
        fputs("</svg>\n", out);
        ok = !ferror(out);
        ok = fclose(out) == 0 && ok;
    }
    if (ok) return mti_file_commit(file) ? MT_OK : mt_last_status();
    mti_file_abandon(file);
    return mt_last_status();
}

/* svg_parts.h: scale, text and page, which all pictures share. */
#ifndef MTI_SVG_PARTS_H
#define MTI_SVG_PARTS_H

#include <stdio.h>
#include "files/files.h"

/* In pixels: text is 13 high, half-width characters of it are about 7.3 wide. */
#define MTI_SVG_CHARACTER 7.3
#define MTI_SVG_MARGIN    24

/* A scale of bytes from 0 to a round number. All fields are in units of `unit` bytes, 1024 for
 * "KiB". */
typedef struct mti_svg_scale {
    double end, step, unit;
    const char *unit_name;
} mti_svg_scale;
mti_svg_scale mti_svg_scale_of(double most_bytes);
int mti_svg_ticks(const mti_svg_scale *s); /* after the one at 0 */
/* "1.5 GiB", "0" into buf. */
const char *mti_svg_tick(const mti_svg_scale *s, int i, char *buf, size_t size);

/* Begins a page with its title in a new file; subtitle may be NULL. */
FILE *mti_svg_begin(mti_file **file, const char *path, int width, int height, const char *title,
                    const char *subtitle);
/* Text of an XML or HTML page: markup characters are escaped, control characters left out. */
void mti_put_markup(FILE *out, const char *text);
/* attributes: of the element, "" for none. Markup in the text is escaped. */
void mti_svg_text(FILE *out, double x, double y, const char *attributes, const char *text);
/* What is shown where the pointer rests on the element that it stands in. */
void mti_svg_tip(FILE *out, const char *fmt, ...) MT_PRINTF(2, 3);
/* The width of a page that holds its title and its subtitle. */
int mti_svg_width(int width, const char *title, const char *subtitle);
/* Closes `out`, which may be NULL, and the file: it holds the whole page or is not there. */
mt_status mti_svg_end(FILE *out, mti_file *file);

#endif

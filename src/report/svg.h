/* svg.h: horizontal bars as a picture that any browser shows. */
#ifndef MTI_SVG_H
#define MTI_SVG_H

#include "base/base.h"

#define MTI_SVG_SERIES 3

/* A group of bars, one for each series, with a note after the last. */
typedef struct mti_svg_row {
    const char *label, *note;     /* UTF-8; note may be NULL */
    double value[MTI_SVG_SERIES]; /* NaN: no bar, and the note stands in its place */
    const char *group;            /* a heading stands before the first row of each; NULL: none */
} mti_svg_row;

typedef struct mti_svg_bars {
    const char *title, *subtitle; /* subtitle may be NULL */
    int n_series;
    const char *series[MTI_SVG_SERIES]; /* their names, for the legend */
    size_t n_rows;
    const mti_svg_row *rows;
} mti_svg_bars;

/* Values are bytes, 0 or more, on one scale from 0; its ticks are round numbers of B, KiB, MiB, ...
 * Written whole or not at all. */
mt_status mti_svg_write(const mti_svg_bars *bars, const char *path);

#endif

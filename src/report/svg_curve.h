/* svg_curve.h: how a cost falls as bytes rise, as a picture that any browser shows. */
#ifndef MTI_SVG_CURVE_H
#define MTI_SVG_CURVE_H

#include "base/base.h"

typedef struct mti_svg_point {
    double bytes, percent; /* 0 or more */
    const char *label;     /* UTF-8; NULL: none */
} mti_svg_point;

/* `front` is sorted by bytes and drawn as a staircase: between two points the left one counts.
 * `others` are single points. Both axes begin at 0. */
typedef struct mti_svg_curve {
    const char *title, *subtitle;          /* subtitle may be NULL */
    const char *bytes_name, *percent_name; /* what the axes show */
    const char *front_name, *others_name;  /* for the legend */
    size_t n_front, n_others;
    const mti_svg_point *front, *others;
} mti_svg_curve;

/* Written whole or not at all. */
mt_status mti_svg_curve_write(const mti_svg_curve *curve, const char *path);

#endif

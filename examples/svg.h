/* svg.h: the few shapes of which the lessons' pictures are made. Without a path nothing is drawn.
 * Each colour has another one for readers whose pages are dark. */
#ifndef SVG_H
#define SVG_H

#include <stdio.h>
#include <stdlib.h>

/* The colours of what bytes are for, as the program's own pictures have them. */
#define SVG_PARAMETER  "#1f4e79"
#define SVG_GRADIENT   "#e07b39"
#define SVG_OPTIMIZER  "#7fb2d9"
#define SVG_INPUT      "#6b7280"
#define SVG_ACTIVATION "#4c9f70"
#define SVG_OUTPUT     "#b9c95a"
#define SVG_PALE       "#a7d3b9" /* an activation, with text on it */

typedef struct svg {
    FILE *out; /* NULL: draw nothing */
} svg;

/* Returns the picture's path, the program's only word, or NULL; ends the program if there are
 * others, or if it is an option. */
static inline const char *svg_path(int argc, char **argv)
{
    if (argc > 2 || (argc == 2 && *argv[1] == '-')) {
        fprintf(stderr, "usage: %s [PICTURE.svg]\n", argv[0]);
        exit(2);
    }
    return argc == 2 ? argv[1] : NULL;
}

static inline svg svg_begin(const char *path, int width, int height, const char *title)
{
    svg s = {path ? fopen(path, "w") : NULL};
    if (path && !s.out) perror(path);
    if (s.out)
        fprintf(s.out,
                "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%d\" "
                "font-family=\"system-ui, 'DejaVu Sans', sans-serif\" font-size=\"12\" "
                "fill=\"#1c2329\" role=\"img\">\n<title>%s</title>\n"
                "<style>@media (prefers-color-scheme: dark) {\n"
                "[fill=\"#ffffff\"] { fill: #12171c } [fill=\"#1c2329\"] { fill: #e6eaed }\n"
                "[fill=\"#e3e7ea\"] { fill: #2a333b } [stroke=\"#e3e7ea\"] { stroke: #2a333b }\n"
                "[fill=\"#a9cdec\"] { fill: #1f4e79 }\n"
                "[fill=\"#a7d3b9\"] { fill: #2c6145 } [fill=\"#1f4e79\"] { fill: #3f86c8 }\n"
                "[fill=\"#6b7280\"] { fill: #8d95a3 }\n"
                "[fill=\"#8b949c\"] { fill: #6f7b86 } [stroke=\"#8b949c\"] { stroke: #6f7b86 }\n"
                "[fill=\"#1f6fb4\"] { fill: #5aa7e8 } [stroke=\"#1f6fb4\"] { stroke: #5aa7e8 }\n"
                "}</style>\n"
                "<rect width=\"100%%\" height=\"100%%\" fill=\"#ffffff\"/>\n",
                width, height, title);
    return s;
}

static inline void svg_rect(svg s, double x, double y, double width, double height,
                            const char *colour)
{
    if (s.out)
        fprintf(s.out, "<rect x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%.1f\" fill=\"%s\"/>\n",
                x, y, width, height, colour);
}

static inline void svg_line(svg s, double x1, double y1, double x2, double y2, const char *colour)
{
    if (s.out)
        fprintf(s.out, "<line x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\" stroke=\"%s\"/>\n",
                x1, y1, x2, y2, colour);
}

/* anchor: "start", "middle" or "end"; degrees: turned clockwise around (x, y). */
static inline void svg_text(svg s, double x, double y, const char *anchor, int degrees,
                            const char *text)
{
    if (s.out)
        fprintf(s.out,
                "<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"%s\" "
                "transform=\"rotate(%d %.1f %.1f)\">%s</text>\n",
                x, y, anchor, degrees, x, y, text);
}

/* Whether the picture was drawn, if one was wanted. */
static inline int svg_end(svg s, const char *path)
{
    if (!s.out) return !path;
    fprintf(s.out, "</svg>\n");
    int failed = ferror(s.out);
    return !fclose(s.out) && !failed;
}

#endif

/* pictures.h: memory as pictures: SVG, a trace for Perfetto, a snapshot for PyTorch's viewer. */
#ifndef MTI_PICTURES_H
#define MTI_PICTURES_H

#include "measure/budget_search.h"
#include "measure/timeline.h"
#include "report/terminal.h"

/* How a category is drawn: its letter in text, and its colour in a picture. */
typedef struct mti_category_look {
    char letter;
    const char *fill;
} mti_category_look;
extern const mti_category_look mti_category_looks[MT_CATEGORY_COUNT];

/* ---- over time ---- */

/* trace_event JSON for Perfetto and chrome://tracing: a counter with a series for each category,
 * and what ran. On a device without data an event takes a microsecond. */
mt_status mti_timeline_write_trace(const mti_timeline *t, const char *path);
/* The bytes of each category over the events, stacked, with the phases and the peak. */
mt_status mti_timeline_draw(const mti_timeline *t, const char *title, const char *path);

/* ---- PyTorch's memory snapshot, for pytorch.org/memory_viz and torch.cuda._memory_viz ----
 *
 * The keys are those of torch.cuda.memory._snapshot(), as its documentation (torch/cuda/memory.py)
 * and torch/csrc/cuda/memory_snapshot.cpp have them in PyTorch 2.13. It is written as the events
 * come: in memory are only the blocks and segments that are there now, and a number for each place
 * in the model that allocates. */

typedef struct mti_snapshot mti_snapshot;

/* Begins the file, for a device of that kind. clocked: the seconds of events are meaningful. NULL
 * on failure. */
mti_snapshot *mti_snapshot_begin(const char *path, const char *kind, bool clocked);
/* The next event of the device, from the first on. False once something failed. */
bool mti_snapshot_add(mti_snapshot *s, const mt_mem_event *event, double seconds);
/* Adds what is there after the last event, and puts the file in its place. Frees s, whatever
 * happens. */
mt_status mti_snapshot_end(mti_snapshot *s);
/* Leaves no file. NULL is allowed. */
void mti_snapshot_abandon(mti_snapshot *s);

/* All of a timeline. */
mt_status mti_snapshot_write(const mti_timeline *t, const char *kind, const char *path);

/* ---- bars ---- */

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

/* ---- how a cost falls as bytes rise ---- */

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

/* The least that is computed again within any budget. */
bool mti_draw_budget(const mti_budget_found *b, const char *path);

/* ---- scale, text and page, which all pictures share ---- */

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

/* "gpt: b=2 s=128 h=256 L=4, gelu, bf16, adamw, checkpoint full" into buf. Of several workloads
 * only what all have in common: the rest is what their rows differ in. n >= 1. */
#define MTI_TITLE 256
void mti_title(char *buf, size_t size, const char *name, const mti_workload *const *workloads,
               size_t n);

#endif

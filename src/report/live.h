/* live.h: the memory of training steps in a terminal, drawn again and again in one place. */
#ifndef MTI_LIVE_H
#define MTI_LIVE_H

#include "measure/timeline.h"
#include "report/report.h"

typedef struct mti_live {
    FILE *out;
    mti_style style; /* of the frame on the screen */
    int drawn_rows;  /* lines of it, above the cursor; 0: there is none to draw over */
    int64_t every, total;
    double drawn; /* when */
} mti_live;

/* Where lines cannot be drawn over (a pipe, a file, TERM=dumb) there is a frame each `every` steps,
 * one below the other, of plain text. */
void mti_live_begin(mti_live *l, FILE *out, int64_t total, int64_t every);
/* Whether the step that ends as number `step` is to be recorded and drawn. */
bool mti_live_due(const mti_live *l, int64_t step);
/* A frame: `text`, the bytes of each category over the step's events, and what made the peak. */
mt_status mti_live_draw(mti_live *l, const mti_timeline *t, const char *text);
/* Takes the frame off the screen, so that a line can be printed in its place; or lets it stand, and
 * what is printed next comes below. Both do nothing where there is none. */
void mti_live_clear(mti_live *l);
void mti_live_end(mti_live *l);

#endif

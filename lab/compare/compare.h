/* compare.h: what was measured elsewhere beside what a profile predicts, and where the difference
 * comes from. */
#ifndef MTI_COMPARE_COMPARE_H
#define MTI_COMPARE_COMPARE_H

#include "compare/blocks.h"
#include "compare/oom.h"
#include "fit/search.h"
#include "measure/profile.h"

/* A figure as a prediction has it. */
typedef struct mti_predicted {
    size_t first, any; /* in the first step; the highest of both */
} mti_predicted;

/* What a run with one more choice would be. */
typedef struct mti_alternative {
    const char *what; /* "with --expandable-segments" */
    mti_predicted figures[MTI_READ_COUNT];
} mti_alternative;
#define MTI_MOST_ALTERNATIVES 3 /* the first is the run that was asked for */

/* One thing that a figure may stand for instead. */
typedef struct mti_explanation {
    const char *what;
    uint64_t predicted;
    int64_t difference; /* to the nearest end of the measured interval; 0: within it */
} mti_explanation;
#define MTI_MOST_EXPLANATIONS 6

typedef struct mti_compared_reading {
    mti_reading measured;
    bool first; /* it is of the first step */
    uint64_t predicted;
    int64_t difference; /* measured - predicted, to the nearest end; 0: within the rounding */
    int n;              /* of what else it may be, where it differs: nearest first */
    mti_explanation other[MTI_MOST_EXPLANATIONS];
} mti_compared_reading;

/* Rows of a snapshot, of both. What the prediction has in the first step alone is in runs[0]. */
typedef struct mti_compared_history {
    mti_history history;
    mti_memory_sums peak, end, predicted_peak, predicted_end;
    size_t n_events, n_predicted; /* after which most was requested */
    mti_block_match blocks;
    mti_stream_use use, predicted_use; /* of all streams, at the end */
    mti_segment_rows segments;
} mti_compared_history;

typedef struct mti_compared_file {
    const char *path;
    mti_compared_history *snapshot; /* NULL: a text with figures, or ... */
    mti_compared_oom *oom;          /* ... with this; NULL: it has none */
    MTI_VEC(mti_compared_reading) figures;
    char unclear[160]; /* as that of mti_readings */
} mti_compared_file;

typedef struct mti_compared {
    mti_until until;
    mti_profile_result profile; /* from a report: its timeline and phases */
    char *of_report;            /* whose; NULL: a workload that was profiled */
    mti_history predicted;
    char workspaces[112], beyond[80]; /* what an alternative and an explanation are */
    size_t n_beyond;                  /* bytes that no allocator has, on the card */
    mti_alternative runs[MTI_MOST_ALTERNATIVES];
    int n_runs;
    MTI_VEC(mti_compared_file) files;
} mti_compared;

/* Reads the files, profiles the workload, and compares it up to c->until, which the caller sets.
 * The files come first: what cannot be read is refused before anything runs. gpu: the card, for
 * what the allocator does not show. changes: to try where memory ran out; they outlive *c. Free in
 * any case. */
bool mti_compared_make(mti_compared *c, const char *const *paths, size_t n, const mti_workload *w,
                       const mt_gpu *gpu, const mti_changes *changes, const char *advice);
/* The same beside a report that was written before, of which no other choice can be run; whole. */
bool mti_compared_with_report(mti_compared *c, const char *const *paths, size_t n,
                              const char *report, const mt_gpu *gpu);
void mti_compared_free(mti_compared *c);

#endif

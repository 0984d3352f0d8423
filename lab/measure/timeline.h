/* timeline.h: all memory events of a device in order, and who held its bytes at any instant. */
#ifndef MTI_MEASURE_TIMELINE_H
#define MTI_MEASURE_TIMELINE_H

#include "base/base.h"
#include "memtape/models/module.h"

/* A segment that came from the system or went back. */
typedef struct mti_segment_event {
    size_t before; /* this event of the timeline, and after all those before it */
    mt_mem_event event;
    double seconds;
} mti_segment_event;

typedef struct mti_timeline {
    mt_device *device;                /* while it is observed; then NULL */
    size_t before[MT_CATEGORY_COUNT]; /* held when it began */
    bool clocked;                     /* the device computes: seconds are meaningful */
    MTI_VEC(mt_mem_event) events;
    MTI_VEC(double) seconds;             /* one for each event */
    MTI_VEC(mti_segment_event) segments; /* beside the events, in order */
    size_t steady; /* the first event of the step in the steady state; 0: all events are of one */
    int observer;
    bool lost; /* memory ran out: events are missing */
} mti_timeline;

/* Observes the device from begin to end; end is false if memory ran out. Free in any case. */
bool mti_timeline_begin(mti_timeline *t, mt_device *device);
bool mti_timeline_end(mti_timeline *t);
void mti_timeline_free(mti_timeline *t);

/* The step in the steady state begins here. */
void mti_timeline_mark_steady(mti_timeline *t);

/* Sets the `module` of the events that made parameters, which happen outside of all modules, to the
 * parameters' paths. */
bool mti_timeline_name(mti_timeline *t, const mt_named_tensor *params, size_t n);

extern const mti_choice mti_event_kinds; /* "alloc", ... */

/* The event of the steady state after which most was allocated, the first of equals; 0 if there is
 * none. */
size_t mti_timeline_peak(const mti_timeline *t);
/* The highest allocated bytes, over all events. */
size_t mti_timeline_highest(const mti_timeline *t);
/* The last refusal; false if nothing was refused. */
bool mti_timeline_refusal(const mti_timeline *t, size_t *event);
/* Updates the bytes of each category from before the event to after it. */
void mti_timeline_move(size_t by_category[MT_CATEGORY_COUNT], const mt_mem_event *event);
void mti_timeline_categories(const mti_timeline *t, size_t event,
                             size_t by_category[MT_CATEGORY_COUNT]);

/* What each stream had after the event, "default" first; returns how many there were. */
int mti_timeline_streams(const mti_timeline *t, size_t event, mt_stream_stats out[MT_MAX_STREAMS]);
/* The event of the steady state after which most was reserved and, of those, most allocated. */
size_t mti_timeline_most_reserved(const mti_timeline *t);

/* The first component of a module's path that is a number; its end if there is none. */
const char *mti_number_in(const char *path);
/* <0, 0, >0 as strcmp, whatever that number is. */
int mti_compare_paths(const char *a, const char *b);
/* "gpt.h.0.mlp" for layers first to last: "gpt.h.0-11.mlp" into buf. */
const char *mti_name_all(char *buf, size_t size, const char *path, long first, long last);

/* Storages that are alive after an event and alike: made by the same op of the same module, or of
 * modules that differ in one number ("gpt.h.3.mlp", "gpt.h.4.mlp"), and kept alike by the tape. */
typedef struct mti_holder {
    char module[160]; /* "gpt.h.0-11.mlp" for several */
    const char *op, *phase;
    mt_category category;
    size_t bytes, n; /* allocated, all together; storages */
    size_t each;     /* requested for one: their blocks may differ in rests */
    bool kept;       /* by the tape, if a ledger was given: its first saver */
    mt_saver saver;
    long first, last; /* numbers in the module's path; -1: none */
} mti_holder;

typedef MTI_VEC(mti_holder) mti_holders; /* most bytes first */

/* ledger may be NULL. Free in any case. */
bool mti_timeline_holders(const mti_timeline *t, size_t event, const mt_ledger *ledger,
                          mti_holders *out);
void mti_holders_free(mti_holders *h);

/* The events in stretches of equal length, each represented by its highest event. */
typedef struct mti_stretch {
    size_t event; /* the highest of them, the first of equals */
    size_t by_category[MT_CATEGORY_COUNT];
} mti_stretch;
/* Fills in at most n of them; returns how many. */
size_t mti_timeline_stretches(const mti_timeline *t, size_t n, mti_stretch *out);

#endif

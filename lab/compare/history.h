/* history.h: what happened to a device's memory while it was watched, and what is there at the end:
 * a prediction's from its events, a measurement's from PyTorch's snapshot. */
#ifndef MTI_COMPARE_HISTORY_H
#define MTI_COMPARE_HISTORY_H

#include "compare/areas.h"
#include "measure/timeline.h"

/* What PyTorch's snapshot calls an event, which its writer shares. */
typedef enum mti_action {
    MTI_ACT_ALLOC,
    MTI_ACT_FREE_REQUESTED,
    MTI_ACT_FREE_COMPLETED,
    MTI_ACT_OOM,
    MTI_ACT_SEGMENT_ALLOC,
    MTI_ACT_SEGMENT_FREE,
    MTI_ACT_SEGMENT_MAP,
    MTI_ACT_SEGMENT_UNMAP,
    MTI_ACT_OTHER
} mti_action;
extern const mti_choice mti_actions; /* "alloc", ...; not the last */
/* A free stands for both that it is written as. */
mti_action mti_action_of(mt_mem_event_kind kind);

typedef struct mti_action_event {
    mti_action action;
    uint64_t place;
    size_t size; /* bytes asked for */
    size_t context;
} mti_action_event;

/* Where something is requested: "gelu" in "gpt.h.3.mlp.act", "linear" in "model.py:88 forward".
 * Both empty: outside of all modules. */
typedef struct mti_context {
    const char *op, *where;
} mti_context;

typedef struct mti_history {
    MTI_VEC(mti_action_event) events;
    MTI_VEC(mti_area) blocks, segments; /* at the end, by their places */
    MTI_VEC(mti_context) contexts;      /* the first: not recorded */
    MTI_VEC(char *) texts;              /* that the contexts own */
    MTI_VEC(int64_t) streams;           /* PyTorch's numbers of them, by mti_area.stream */
    int64_t device;                     /* whose memory it is ... */
    size_t other_devices;               /* ... of several */
} mti_history;

/* Free in any case. */
bool mti_history_of(mti_history *h, const mti_timeline *t);
/* The bytes of a file that torch.cuda.memory._dump_snapshot wrote, or that --snapshot did; path:
 * for messages. */
bool mti_history_read(mti_history *h, const char *path, const void *bytes, size_t n);
void mti_history_free(mti_history *h);

/* Bytes of live tensors: as asked for; as the allocator counts them, which for an instant in the
 * past is in blocks of 512 bytes, as an event has no rests that were not split off; with those that
 * wait for another stream; in segments. */
typedef struct mti_memory_sums {
    size_t requested, allocated, active, reserved;
} mti_memory_sums;
mti_memory_sums mti_history_end(const mti_history *h);
/* The highest of each after any event. *event: after which most was requested; all events if that
 * is the end. */
mti_memory_sums mti_history_peak(const mti_history *h, size_t *n_events);

/* What of a stream's segments is used. They sum to `reserved`. */
typedef struct mti_stream_use {
    size_t reserved;
    size_t requested; /* by tensors that are there */
    size_t rounding;  /* of their blocks: up to 512 bytes, and rests that were not split off */
    size_t pending;   /* freed, and another stream may still use it */
    size_t split;     /* free, in segments that are partly used: fragmentation */
    size_t whole;     /* free segments, which empty_cache gives back */
    size_t n_segments, n_free;
} mti_stream_use;
/* At the end, of the stream; -1: of all. */
mti_stream_use mti_history_use(const mti_history *h, int stream);

/* Bytes that one side has more, of all of one size; never past what can be counted. */
int64_t mti_bytes_more(size_t measured, size_t predicted, size_t size);

/* Segments of one size, at the end. */
typedef struct mti_segment_row {
    size_t size, measured, predicted;     /* how many each side has */
    size_t measured_free, predicted_free; /* bytes of them that no block has */
} mti_segment_row;
typedef MTI_VEC(mti_segment_row) mti_segment_rows;

/* All sizes, the largest first: what both sides reserve differs by the rows' sum. The caller frees
 * out->at. */
bool mti_segments_match(mti_segment_rows *out, const mti_history *measured,
                        const mti_history *predicted);

#endif

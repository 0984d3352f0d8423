/* readings.h: what logs say of memory: lines of training programs, JSON of benchmarks, nvidia-smi.
 */
#ifndef MTI_COMPARE_READINGS_H
#define MTI_COMPARE_READINGS_H

#include "base/base.h"

typedef enum mti_reading_kind {
    MTI_READ_PEAK_ALLOCATED,
    MTI_READ_PEAK_ACTIVE,
    MTI_READ_PEAK_REQUESTED,
    MTI_READ_PEAK_RESERVED,
    MTI_READ_ALLOCATED, /* at the end of a step */
    MTI_READ_RESERVED,
    MTI_READ_WEIGHTS, /* before the first step: allocated ... */
    MTI_READ_LOADED,  /* ... and reserved */
    MTI_READ_DEVICE,  /* all that is used of a device: with what no allocator has */
    MTI_READ_COUNT
} mti_reading_kind;
extern const mti_choice mti_reading_kinds; /* "peak allocated", ... */

/* A figure that was rounded stands for all numbers that are rounded to it: low to high. */
typedef struct mti_reading {
    mti_reading_kind kind;
    char name[96], text[48]; /* as written: "memory", "42.08GiB" */
    int64_t line;            /* from 1 on; 0: of a JSON object */
    int64_t step;            /* -1: unknown */
    uint64_t low, high;      /* bytes */
    uint64_t otherwise;      /* bytes, if its GB are powers of 1024; 0: it has none */
} mti_reading;

/* The bytes that a rounded number stands for. */
typedef struct mti_byte_range {
    uint64_t low, high;
} mti_byte_range;

#define MTI_DELTAS        3
#define MTI_MOST_READINGS 256
/* Where several figures have one name, the first is kept and the highest of the others: of a log of
 * many steps, the first step and the peak. */
typedef struct mti_readings {
    mti_reading *at;
    size_t n, cap;
    char unclear[160];                 /* the first that is not understood, and why; "": none */
    mti_byte_range deltas[MTI_DELTAS]; /* that sum to a peak */
    bool has_delta[MTI_DELTAS];
    int64_t delta_line;
} mti_readings;

/* All figures in a plain text, which is changed on the way. False if there is none, unless there
 * may be, with an error that says what is read. */
bool mti_readings_read(mti_readings *out, const char *path, char *text, size_t n, bool maybe_none);
/* ---- for what reads them ---- */

/* Colours of a terminal, and zero bytes, are taken out of a text of n bytes; returns its length. */
size_t mti_make_plain(char *text, size_t n);
/* A number and its unit at the beginning of the text, "896.00 MiB"; *length: of both. */
bool mti_byte_range_read(const char *text, size_t *length, mti_byte_range *out);

/* Adds the peak that the differences of a text sum to, once it is read. */
bool mti_readings_add_deltas(mti_readings *out, const char *path);
bool mti_reading_add(mti_readings *out, const char *path, const mti_reading *reading);
/* The kind of a name whose figures are a number of bytes ("max_memory_allocated"). */
bool mti_reading_find(const char *name, mti_reading_kind *kind);
bool mti_readings_of_line(mti_readings *out, const char *path, const char *line, int64_t number);
bool mti_readings_of_json(mti_readings *out, const char *path, const char *text, size_t n);

#endif

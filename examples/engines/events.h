/* events.h: three callbacks by which an engine in C tells what it does (docs/teachers.md). Copy
 * this file beside your engine, and call events_begin first. A file that cannot be written ends the
 * process. */
#ifndef EVENTS_H
#define EVENTS_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static FILE *events_file;
static const char *events_category; /* of new storages; set it where another one fits: "input" */
static bool events_paused; /* what is made meanwhile, and gone at its end, is not told of */

/* Ends the line that was begun. */
static inline void events_end_line(void)
{
    if (fputs("}\n", events_file) == EOF || fflush(events_file) == EOF) {
        perror("events");
        exit(1);
    }
}

/* "init", "forward", "backward" or "step" begins. */
static inline void events_phase(const char *name)
{
    events_category = !strcmp(name, "init")      ? "parameter"
                      : !strcmp(name, "forward") ? "activation"
                                                 : "temporary";
    fprintf(events_file, "{\"event\": \"phase\", \"name\": \"%s\"", name);
    events_end_line();
}

static inline void events_begin(const char *path)
{
    events_file = fopen(path, "w");
    if (!events_file) {
        perror(path);
        exit(1);
    }
    events_phase("init");
}

/* A storage is there now; shape NULL: it is about to be freed. */
static inline void events_storage(const void *storage, const char *dtype, size_t n_bytes, int rank,
                                  const int64_t *shape)
{
    if (events_paused) return;
    fprintf(events_file, "{\"event\": \"%s\", \"id\": %llu", shape ? "alloc" : "free",
            (unsigned long long)(uintptr_t)storage);
    if (shape) {
        fprintf(events_file, ", \"category\": \"%s\", \"dtype\": \"%s\", \"bytes\": %zu",
                events_category, dtype, n_bytes);
        fputs(", \"shape\": [", events_file);
        for (int i = 0; i < rank; i++)
            fprintf(events_file, "%s%lld", i ? ", " : "", (long long)shape[i]);
        fputs("]", events_file);
    }
    events_end_line();
}

/* The node of an op keeps a storage for backward, under that name; or keeps it no longer. */
static inline void events_kept(const void *storage, const char *op, const char *name, bool kept)
{
    if (events_paused) return;
    fprintf(events_file, "{\"event\": \"%s\", \"id\": %llu, \"op\": \"%s\", \"name\": \"%s\"",
            kept ? "save" : "release", (unsigned long long)(uintptr_t)storage, op, name);
    events_end_line();
}

/* The gradient of the index-th number of a leaf, and the loss where that number is larger and
 * smaller by `by`. */
static inline void events_probe(const char *name, int index, double gradient, double up,
                                double down, double by)
{
    fprintf(events_file,
            "{\"event\": \"probe\", \"name\": \"%s\", \"index\": %d, \"gradient\": %.17g, \"up\": "
            "%.17g, \"down\": %.17g, \"by\": %.17g",
            name, index, gradient, up, down, by);
    events_end_line();
}

#endif

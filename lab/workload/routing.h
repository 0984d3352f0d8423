/* routing.h: which experts the tokens of a measurement take, where there is no data. */
#ifndef MTI_WORKLOAD_ROUTING_H
#define MTI_WORKLOAD_ROUTING_H

#include "nn/model.h"
#include "workload/workload.h"

/* "balanced", "worst", "random"; and "recorded=FILE", of which *file is the path. */
extern const mti_choice mti_routing_kinds;
bool mti_routing_parse(const char *text, mti_routing_kind *kind, const char **file);

/* The same, with a recorded file's rows, which the caller mti_frees in any case; text NULL:
 * balanced. */
bool mti_routing_make(mti_routing *r, const char *text, uint64_t seed);

/* Whether bytes depend on it: experts run one by one, are divided among ranks or drop rows, without
 * data. */
bool mti_routing_matters(const mti_workload *w, const mt_device *device);
/* *rows: how many rows the first layer's experts have, without data, where they are bounded. */
bool mti_routing_keeps(const mti_workload *w, int64_t *rows);

/* Counts while a model runs, and writes them: each layer's rows of each expert in the last forward.
 */
typedef struct mti_recorder {
    int64_t layers, experts;
    int64_t *rows; /* [layers,experts] */
} mti_recorder;
bool mti_recorder_start(mti_recorder *r, mt_module *m, const mt_model_config *c);
bool mti_recorder_write(const mti_recorder *r, const char *path);
void mti_recorder_free(mti_recorder *r);

#endif

/* tape.h: the tape of a forward pass, op by op, and what each op saves. */
#ifndef MTI_MEASURE_TAPE_H
#define MTI_MEASURE_TAPE_H

#include "measure/two_steps.h"

/* One save, in the order in which they happen. */
typedef struct mti_tape_save {
    mt_save_info info;
    size_t place;                      /* in the order of saving */
    const struct mti_tape_save *payer; /* the first save of this storage */
    uint64_t storage;
    size_t bytes;
    bool parameter;
    mt_dtype dtype;
    int rank;
    int64_t shape[MT_MAX_RANK];
} mti_tape_save;

typedef struct mti_tape {
    MTI_VEC(mti_tape_save) saves; /* once sorted: in the order of their nodes */
    MTI_VEC(mt_node_info) nodes;  /* once sorted: in the order of creation */
    bool failed;
} mti_tape;

/* What is put on the tape of the output in between. Free in any case; end even if there is no
 * output (NULL), which fails. */
bool mti_tape_begin(mti_tape *t);
bool mti_tape_end(mti_tape *t, mt_tensor *output);
/* What forward(user), which returns its output, puts on the tape. Free in any case. */
typedef mt_tensor *mti_forward_fn(void *user);
bool mti_tape_of(mti_tape *t, mti_forward_fn *forward, void *user);
/* The workload's forward pass with every save and every node noted. Free in any case. */
bool mti_tape_record(mti_tape *t, mt_device *device, const mti_workload *w);
void mti_tape_free(mti_tape *t);
/* The number, counted from 1, of the op that made `node`. */
size_t mti_tape_number(const mti_tape *t, uint64_t node);

/* Consecutive ops of one layer, or of none; and the layers after it that keep the same to the byte,
 * in the same way. */
typedef struct mti_tape_stretch {
    size_t first, n;              /* nodes of its first layer */
    size_t n_layers;              /* 1 if no other is like it */
    long first_layer, last_layer; /* -1: in no layer */
    size_t bytes;                 /* kept by the ops of one layer, each storage at its payer */
} mti_tape_stretch;

typedef MTI_VEC(mti_tape_stretch) mti_tape_stretches;

/* All nodes, in order. Free out->at in any case. */
bool mti_tape_stretches_of(const mti_tape *t, mti_tape_stretches *out);

#endif

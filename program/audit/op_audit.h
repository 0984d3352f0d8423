/* op_audit.h: what an op keeps for each set of wanted gradients, and whether it has to: each kept
 * tensor is altered in turn, and the gradients are compared. */
#ifndef MTI_OP_AUDIT_H
#define MTI_OP_AUDIT_H

#include "memtape/memtape.h"
#include "collectives/collective_cases.h"

#define MTI_AUDIT_KEPT 8
#define MTI_AUDIT_SETS 15 /* of wanted gradients: 2^4 - 1 for four inputs */

/* The nth case of the op table (ops/op_cases.h) to audit; false past the last. Other ops of its
 * call are not counted. */
bool mti_audit_case(int nth, mti_case *out);

/* A cheaper way to have a kept tensor in backward. */
typedef enum mti_cheaper_kind {
    MTI_CHEAPER_OUTPUT,    /* from the output, which the next op often keeps: 0 bytes */
    MTI_CHEAPER_BITS,      /* one bit an element */
    MTI_CHEAPER_SEED,      /* drawn again from seed and offset: 16 bytes */
    MTI_CHEAPER_HALF,      /* half the bytes: a narrower type, or one tensor for two */
    MTI_CHEAPER_RECOMPUTE, /* computed again from tensors that are kept: 0 bytes, and time */
    MTI_CHEAPER_COUNT
} mti_cheaper_kind;

typedef struct mti_cheaper {
    const char *op, *argument;
    mti_cheaper_kind kind;
    const char *text;
} mti_cheaper;
const char *mti_cheaper_name(mti_cheaper_kind kind);

/* ---- results ---- */

typedef struct mti_audit_kept {
    const char *argument;
    mt_save_role role;
    int index;
    mt_dtype dtype;
    int rank;
    int64_t shape[MT_MAX_RANK];
    size_t bytes;        /* of its storage */
    bool parameter;      /* kept anyway: not counted */
    const char *altered; /* how: "reversed", "zeroed", "next value" */
    double difference;   /* |g' - g| / |g| over the wanted gradients; INFINITY where not finite */
    bool needed;         /* some alteration changed a gradient */
} mti_audit_kept;

typedef struct mti_audit_set {
    unsigned want; /* bit i: the gradient of input i */
    size_t bytes;  /* of the distinct storages kept, parameters left out */
    int n_kept;
    mti_audit_kept kept[MTI_AUDIT_KEPT];
} mti_audit_set;

/* A cheaper way, taken by a hook or a checkpoint as any program could. */
typedef struct mti_audit_taken {
    const char *argument; /* NULL: all that is kept, recomputed at once */
    mti_cheaper_kind kind;
    /* Bytes kept for all gradients, without inputs of the products that make the op's inputs. */
    size_t before, after;
    double difference; /* |g' - g| / |g|, the largest of all gradients; 0: the same bits */
} mti_audit_taken;

typedef struct mti_op_audit {
    mti_case of;
    int n_sets, n_findings; /* kept tensors of which no alteration changed a gradient */
    mti_audit_set sets[MTI_AUDIT_SETS];
    int n_taken;
    mti_audit_taken taken[MTI_AUDIT_KEPT];
} mti_op_audit;

bool mti_audit_run(mti_op_audit *a, const mti_case *c, mt_device *device, uint64_t seed);
/* The nth cheaper way to have what `op` keeps; NULL past the last. */
const mti_cheaper *mti_audit_cheaper(const char *op, const mti_audit_kept *kept, size_t nth);
size_t mti_cheaper_bytes(const mti_cheaper *way, const mti_audit_kept *kept);
/* Takes the ways that need no other op, after mti_audit_run: fills in a->taken. */
bool mti_audit_take(mti_op_audit *a, mt_device *device, uint64_t seed);

/* ---- for one run ---- */

/* A random input: f32 by the device's generator, or indices by `seed`. */
mt_tensor *mti_audit_input_make(mt_device *device, const mti_case_input *in, uint64_t seed);
/* Backward from a random gradient of y. */
mt_status mti_audit_backward(mt_tensor *y);

#endif

/* audit.h: what an op keeps for one set of wanted gradients, and whether it has to: each kept
 * tensor is altered in turn, and the gradients are compared. Without cmocka, as lesson 24's
 * program, examples/audit.c, prints the same. */
#ifndef AUDIT_H
#define AUDIT_H

#include "memtape/memtape.h"
#include "ops/op_cases.h"

#define AUDIT_KEPT 8

typedef struct audit_kept {
    const char *argument;
    mt_save_role role;
    int index; /* its position among the inputs, outputs or auxiliaries */
    int rank;
    int64_t shape[MT_MAX_RANK];
    size_t bytes;   /* of its storage */
    bool parameter; /* in memory anyway */
    /* |g' - g| / |g| over the wanted gradients, where g' comes from the altered tensor. INFINITY:
     * not finite; 0: no alteration changed a gradient, so the tensor was not needed. */
    double off;
    const char *why; /* a known reason why these gradients do not need it; NULL: none */
} audit_kept;

typedef struct audit_set {
    int n_kept;
    audit_kept kept[AUDIT_KEPT];
} audit_set;

/* The nth case of a table to audit; false past the last. */
bool audit_case(const mti_case_table *t, int nth, mti_case *out);
/* The next set of gradients of the case's inputs, bit i that of input i, from 0 to the first one;
 * 0 after the last. Integers have no gradient. */
unsigned audit_next(const mti_case *c, unsigned want);
/* Runs the case for these gradients, and once more for each kept tensor and alteration of it until
 * a gradient changes. False on failure. */
bool audit_run(audit_set *set, const mti_case *c, mt_device *device, unsigned want);
/* Whether the tensor is kept for nothing and no reason is known, or is needed in spite of one. */
bool audit_is_fault(const audit_kept *k);

/* ---- for one run ---- */

/* New inputs, the same for the same seed of the device; those of `want` require grad. False on
 * failure; the caller releases in[] in any case. */
bool audit_inputs(const mti_case *c, mt_device *device, unsigned want,
                  mt_tensor *in[MTI_CASE_INPUTS]);
/* Backward from a random gradient of y. */
mt_status audit_backward(mt_tensor *y);

#endif

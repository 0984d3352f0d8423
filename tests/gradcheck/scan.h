/* scan.h: a case of the gradient checks with its inputs, and the incoming gradient, in every
 * layout: values and gradients against those of contiguous f64 on the CPU. */
#ifndef SCAN_H
#define SCAN_H

#include "gradcheck.h"
#include "layouts.h"

/* How much of all this: a kernel on the simulator takes a hundred times as long as on the CPU. */
typedef enum scan_breadth {
    SCAN_NARROW, /* a dtype in turn; other shapes with all operands alike only */
    SCAN_USUAL,  /* f64, f32 and bf16; each extent replaced by 0 and by 1 */
    SCAN_WIDE    /* larger extents, every order in memory, f16, each gradient wanted alone, too */
} scan_breadth;

typedef struct scan_result {
    long n_runs;     /* one layout of each operand, one dtype, one set of wanted gradients */
    long n_wrong;    /* of these */
    long n_shapes;   /* the case's own shapes, and those with an extent replaced */
    long n_refused;  /* of these: contiguous inputs are refused as well */
    char fault[500]; /* the first one that was wrong; "" if none */
} scan_result;

/* Adds to *result. `cpu` is where the reference is computed. */
void scan_layouts(mt_device *device, mt_device *cpu, const grad_case *c, scan_breadth breadth,
                  scan_result *result);

#endif

/* scan.h: runs a case of the gradient checks with its inputs and the incoming gradient in every
 * layout, and compares values and gradients with contiguous f64 on the CPU. */
#ifndef SCAN_H
#define SCAN_H

#include "gradcheck.h"
#include "layouts.h"

/* How much is run: a kernel on the simulator takes a hundred times as long as on the CPU. */
typedef enum scan_breadth {
    SCAN_NARROW, /* one dtype in turn; other shapes only with all operands in the same layout */
    SCAN_USUAL,  /* f64, f32 and bf16; each extent replaced by 0 and by 1 */
    SCAN_WIDE    /* also larger extents, every order in memory, f16, and each gradient alone */
} scan_breadth;

typedef struct scan_result {
    long n_runs;     /* one layout of each operand, one dtype, one set of wanted gradients */
    long n_wrong;    /* of these, the wrong ones */
    long n_shapes;   /* the case's own shapes, and those with an extent replaced */
    long n_refused;  /* of these, the ones that are refused with contiguous inputs, too */
    char fault[500]; /* describes the first wrong run; "" if none */
} scan_result;

/* Adds to *result. `cpu` computes the reference. */
void scan_layouts(mt_device *device, mt_device *cpu, const grad_case *c, scan_breadth breadth,
                  scan_result *result);

#endif

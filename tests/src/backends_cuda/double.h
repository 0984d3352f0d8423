/* double.h: what the simulator tells of itself. */
#ifndef MTT_DOUBLE_H
#define MTT_DOUBLE_H

#include <stdbool.h>
#include <stdint.h>

/* A function of the simulator's module, which a device has loaded; NULL on a GPU, which does not
 * tell. */
typedef void (*mtt_double_fn)(void);
mtt_double_fn mtt_double(const char *name);

/* Kernels that have run so far, waits of the host so far; 0 on a GPU. */
uint64_t mtt_double_kernels(void);
uint64_t mtt_double_waits(void);
uint64_t mtt_double_threads(void); /* of kernels */
/* Products so far with the sums of an operand, or without; -1 on a GPU. */
long mtt_double_products(bool with_sums);

#endif

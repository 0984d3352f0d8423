/* chain.h: a chain of linears, for tests that must know every byte. */
#ifndef CHAIN_H
#define CHAIN_H

#include "mtt_fixture.h"

/* Activations [ROWS,WIDTH] of S bytes, weights [WIDTH,WIDTH] of D. */
enum { LAYERS = 8, ROWS = 256, WIDTH = 64 };
#define S (ROWS * WIDTH * 4)
#define D (WIDTH * WIDTH * 4)

typedef struct chain {
    mt_device *device;
    mt_tensor *x, *w[LAYERS];
} chain;

/* Opens the device as mtt_open_device does, but products take no workspace, so that peaks are those
 * of tensors alone. */
int open_without_workspace(void **state);

chain open_chain(mt_device *on);
void close_chain(chain *c);
/* The sum of h_n, h_i = h_{i-1} w_i^T. Each linear saves its input. h_0 is the caller's, so the
 * tape alone holds LAYERS - 1 activations of S bytes. NULL on failure. */
mt_tensor *chain_loss(const chain *c);
void chain_zero(chain *c);                  /* no gradients */
unsigned char *chain_grads(const chain *c); /* LAYERS * D bytes; the caller frees them */

typedef struct step {
    size_t peak, forward_peak, after_forward; /* beyond the bytes before the step */
    mt_offload_stats stats;
    unsigned char *grads;
} step;
/* Forward and backward, under `o` unless it is NULL. Every gradient exists before, so that backward
 * only adds to it. */
step chain_step(chain *c, mt_offload *o);

/* A step that may fail; `o` may be used again. */
mt_status chain_try(const chain *c, mt_offload *o);
/* Asserts that the gradients are these, LAYERS * D bytes, and drops them. */
void chain_check(chain *c, const unsigned char *expected);
/* Runs a step under a new offload with these options once for every allocation in it, which is made
 * to fail. Either there is an error and nothing is left, or the gradients are those of a plain
 * step. After every `again`-th of these, one more step has the right gradients. Returns how many
 * steps failed. */
uint64_t chain_fail_each(const mt_offload_options *options, uint64_t again);

/* Fails the running test with the engine's message if `o` is NULL. */
mt_offload *made_offload(mt_offload *o);
/* The report, whose figures must agree with each other. */
mt_offload_stats stats_of(mt_offload *o);

#endif

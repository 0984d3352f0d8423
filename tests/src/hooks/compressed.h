/* compressed.h: a small function, run with and without compression of what it saves. */
#ifndef COMPRESSED_H
#define COMPRESSED_H

#include "memtape/compress.h"
#include "mtt_fixture.h"

#define RULE(name) (1u << MT_COMPRESS_##name)
mt_compress *compressor(unsigned rules); /* with these rules, for storages of any size */
/* Values drawn from `seed`; requires grad. */
mt_tensor *leaf(mt_dtype dtype, int rank, const int64_t *shape, uint64_t seed);

enum { ROWS = 48, WIDTH = 32, WIDE = 96 };
static const size_t hidden = (size_t)ROWS * WIDE, input = (size_t)ROWS * WIDTH; /* elements */

/* x [ROWS,WIDTH], w1 [WIDE,WIDTH], w2 [WIDTH,WIDE] */
typedef struct net {
    mt_dtype dtype;
    mt_tensor *x, *w1, *w2;
} net;
net open_net(mt_dtype dtype);
void close_net(net *n);

typedef mt_tensor *act_fn(mt_tensor *x);
typedef mt_tensor *net_fn(net *n, act_fn *act); /* a scalar, or NULL on failure */
/* mean(dropout(act(x w1^T)) w2^T). Because of the dropout, the second product does not keep the
 * activation's output. */
mt_tensor *mlp(net *n, act_fn *act);

/* Gradients of x, w1, w2; the ledger's bytes; the compressor's report. */
typedef struct outcome {
    mt_tensor *grad[3];
    size_t saved;
    mt_compress_stats stats;
} outcome;
outcome run(net *n, net_fn *fn, act_fn *act, mt_compress *c); /* c may be NULL */
void free_outcome(outcome *o);
double worst_error(outcome *got, outcome *exact);
size_t int8_bytes(size_t n); /* of n elements in blocks of 128 with one scale each */

#endif

/* views.h: views in many layouts, read and written as doubles, for tests of the kernels. Test data
 * are a function of their index, so no copy is needed for comparison. */
#ifndef MTT_VIEWS_H
#define MTT_VIEWS_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>
#include "chosen.h"

typedef enum mtt_placing {
    MTT_PLACED_DENSE,    /* row-major */
    MTT_PLACED_PADDED,   /* each row of the last dimension is followed by a gap of 3 */
    MTT_PLACED_REVERSED, /* the first dimension is the fastest */
    MTT_PLACED_STEPPED,  /* every second element of the last dimension */
    MTT_PLACING_COUNT,
    MTT_PLACED_BROADCAST /* stride 0 in the first dimension: inputs only */
} mtt_placing;

/* A view in mtt_memory; mtt_drop frees it. */
mti_view mtt_view(mt_dtype dtype, int rank, const int64_t *shape, mtt_placing placing);
void mtt_drop(mti_view *v);
#define mtt_dense(dtype, ...)                                                                      \
    mtt_view((dtype), (int)(sizeof((int64_t[]){__VA_ARGS__}) / sizeof(int64_t)),                   \
             (const int64_t[]){__VA_ARGS__}, MTT_PLACED_DENSE)

/* Element i in row-major order. */
double mtt_get(const mti_view *v, int64_t i);
void mtt_set(const mti_view *v, int64_t i, double value);
/* Fills with numbers in [lo, hi) that depend on the seed and the index. */
void mtt_fill(const mti_view *v, uint64_t seed, double lo, double hi);

/* One unit in the last place at 1: 2^-23 for f32. */
double mtt_epsilon(mt_dtype dtype);
/* Fails unless |got - want| <= tolerance * max(1, |want|), or both are NaN, or both are equal. */
void mtt_close(double got, double want, double tolerance, const char *what, int64_t i);

/* Fails unless both have the same number of elements with the same bits. */
void mtt_same(const mti_view *a, const mti_view *b, const char *what);

extern const mt_dtype mtt_floats[4];
extern const int64_t mtt_sizes[9];

#endif

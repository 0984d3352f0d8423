/* values.h: views over made-up numbers, read and written as f64 whatever their dtype. */
#ifndef MTT_VALUES_H
#define MTT_VALUES_H

#include "chosen.h"

mti_ctx *values_open(int threads); /* a context of mtt_chosen(): close it */

/* Views live until values_free_all. Elements outside a view's own are -77. */
mti_view values_new(mt_dtype dtype, int rank, const int64_t *shape);
/* The last two dimensions lie transposed; each row is followed by `pad` foreign elements. */
mti_view values_new_laid_out(mt_dtype dtype, int rank, const int64_t *shape, bool transposed,
                             int64_t pad);
mti_view values_i64(int64_t value); /* rank 0 */
void values_free_all(void);

/* Element i in row-major order. */
double values_get(const mti_view *v, int64_t i);
void values_set(const mti_view *v, int64_t i, double value);
void values_fill(const mti_view *v, double value);
/* Uniform in [-1, 1), rounded to the view's dtype. */
void values_random(const mti_view *v, uint64_t seed);

/* Scratch for a kernel, exactly as much as was asked for: AddressSanitizer sees who writes beyond
 * it, and without it the bytes behind do, which values_scratch_free looks at. */
char *values_scratch(size_t n_bytes);
void values_scratch_free(char *scratch, size_t n_bytes);

/* The whole memory behind a view made here, foreign elements included. */
size_t values_bytes(const mti_view *v);
bool values_same_bits(const mti_view *a, const mti_view *b);
/* Every element outside the view still holds what it was made with. */
bool values_surroundings_untouched(const mti_view *v);

/* Half of the distance between 1 and the next number. */
double values_rounding(mt_dtype dtype);

#endif

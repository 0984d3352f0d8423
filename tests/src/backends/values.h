/* values.h: views of random numbers, read and written as f64 for every dtype. */
#ifndef MTT_VALUES_H
#define MTT_VALUES_H

#include "chosen.h"

mti_ctx *values_open(int threads); /* a context of mtt_chosen(), which the caller closes */

/* Views live until values_free_all. Memory around a view's elements holds -77. */
mti_view values_new(mt_dtype dtype, int rank, const int64_t *shape);
/* If `transposed`, the last two dimensions are swapped in memory; `pad` more elements follow each
 * row. */
mti_view values_new_laid_out(mt_dtype dtype, int rank, const int64_t *shape, bool transposed,
                             int64_t pad);
mti_view values_i64(int64_t value); /* rank 0 */
void values_free_all(void);

/* Element i in row-major order. */
double values_get(const mti_view *v, int64_t i);
/* All elements in row-major order, for the caller to free. */
double *values_all(const mti_view *v);
void values_set(const mti_view *v, int64_t i, double value);
void values_fill(const mti_view *v, double value);
/* Uniform in [-1, 1), rounded to the view's dtype. */
void values_random(const mti_view *v, uint64_t seed);

/* Scratch of exactly this size for a kernel. AddressSanitizer finds writes beyond it; without the
 * sanitizer, values_scratch_free checks the bytes after it. */
char *values_scratch(size_t n_bytes);
void values_scratch_free(char *scratch, size_t n_bytes);

/* Size of the whole memory of a view made here, with the elements around it. */
size_t values_bytes(const mti_view *v);
bool values_same_bits(const mti_view *a, const mti_view *b);
/* Whether every element around the view still holds -77. */
bool values_surroundings_untouched(const mti_view *v);

/* Half of the distance between 1 and the next number of the dtype. */
double values_rounding(mt_dtype dtype);

#endif

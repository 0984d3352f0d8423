/* inputs.c: large tensors of pseudo-random values. The device computes them from a table, because
 * the host would need longer than the measurement. */
#include <stdlib.h>
#include <string.h>
#include "gpu.h"

#define TABLE 1000003 /* a prime, so that the rows of no shape repeat */

static int64_t count(int rank, const int64_t *shape)
{
    int64_t n = 1;
    for (int d = 0; d < rank; d++) n *= shape[d];
    return n;
}

/* In [-1, 1), a multiple of 1/128, so exact in every float type. */
static double element(int64_t i, int k)
{
    uint32_t h = (uint32_t)(i + 1) * 2654435761u + (uint32_t)k * 40503u * 65537u;
    return ((double)((h >> 13) & 255) - 128) / 128;
}

/* [1,n] */
static mt_tensor *make_table(mt_device *device, mt_dtype dtype, int64_t n, int k, bool positive)
{
    double *values = malloc((size_t)n * sizeof *values);
    if (!values) return NULL;
    for (int64_t i = 0; i < n; i++) values[i] = element(i, k) + (positive ? 1.5 : 0);
    mt_tensor *t = mt_from_data(device, MT_F64, MT_SHAPE(1, n), values, (size_t)n * sizeof *values);
    free(values);
    mt_set(&t, mt_cast(t, dtype));
    return t;
}

mt_tensor *gpu_values(mt_device *device, mt_dtype dtype, int rank, const int64_t *shape, int k,
                      bool positive)
{
    int64_t n = count(rank, shape), n_table = n < TABLE ? n : TABLE;
    int64_t rows = (n + n_table - 1) / n_table;
    mt_tensor *t = make_table(device, dtype, n_table, k, positive);
    mt_set(&t, mt_expand(t, MT_SHAPE(rows, n_table)));
    mt_set(&t, mt_contiguous(t));
    mt_set(&t, mt_reshape(t, MT_SHAPE(rows * n_table)));
    mt_set(&t, mt_slice(t, 0, 0, n));
    mt_set(&t, mt_reshape(t, rank, shape));
    return t;
}

static mt_tensor *make_index(mt_device *device, int rank, const int64_t *shape, int64_t below)
{
    int64_t n = count(rank, shape);
    int64_t *ids = malloc((size_t)n * sizeof *ids);
    if (!ids) return NULL;
    for (int64_t i = 0; i < n; i++) ids[i] = (i * 7919 + 104729) % below;
    mt_tensor *t = mt_from_data(device, MT_I64, rank, shape, ids, (size_t)n * sizeof *ids);
    free(ids);
    return t;
}

mt_tensor *gpu_input(mt_device *device, mt_dtype dtype, const char *spec, int k)
{
    int64_t shape[MT_MAX_RANK], below = strtoll(spec + 1, NULL, 10);
    int rank = 0;
    const char *at = strchr(spec, ':');
    if (!at) return NULL;
    while (*++at && rank < MT_MAX_RANK) {
        char *end;
        shape[rank++] = strtoll(at, &end, 10);
        if (end == at || (*end && *end != 'x')) return NULL;
        at = *end ? end : end - 1;
    }
    if (*spec == 'i') return make_index(device, rank, shape, below);
    mt_tensor *t = NULL;
    if (*spec == 'b') {
        t = make_index(device, rank, shape, 2);
        mt_set(&t, mt_cast(t, MT_BOOL));
        return t;
    }
    t = gpu_values(device, dtype, rank, shape, k, *spec == 'p');
    if (t && mt_set_requires_grad(t, true) != MT_OK) mt_set(&t, NULL);
    return t;
}

/* collectives.c: what each rank of a group checks of the collectives, whatever carries them. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "ranks.h"

void mtt_need(bool ok, const char *what, const char *file, int line)
{
    if (ok) return;
    fprintf(stderr, "%s:%d: not so: %s (%s)\n", file, line, what, mt_last_error());
    abort();
}

/* Rank r's x: small whole numbers, so that sums are exact in every dtype. */
static double value(int64_t rank, int64_t i) { return (double)((7 * i + 3 * rank) % 11 - 5); }

static mt_tensor *x_of(mt_device *device, mt_dtype dtype, const int64_t *shape, int64_t rank,
                       mtt_layout layout)
{
    int64_t n = shape[0] * shape[1] * shape[2];
    double *values = malloc((size_t)(n > 0 ? n : 1) * sizeof *values);
    MTT_NEED(values);
    for (int64_t i = 0; i < n; i++) values[i] = value(rank, i);
    mt_tensor *x = mtt_laid_out(device, dtype, 3, shape, values, layout);
    free(values);
    MTT_NEED(x);
    return x;
}

static double sum_at(int64_t ranks, int64_t i)
{
    double sum = 0;
    for (int64_t r = 0; r < ranks; r++) sum += value(r, i);
    return sum;
}

/* The element of x that stands at [a,b,c] of a gathered tensor, and whose it is. */
static int64_t index_of(const int64_t *shape, int dim, const int64_t *at, int64_t *rank)
{
    int64_t own[3] = {at[0], at[1], at[2]};
    *rank = at[dim] / shape[dim];
    own[dim] = at[dim] % shape[dim];
    return (own[0] * shape[1] + own[1]) * shape[2] + own[2];
}

static void check_gathered(mt_tensor *y, const int64_t *shape, int dim, int64_t ranks)
{
    double *got = mtt_doubles(y);
    int64_t wide[3] = {shape[0], shape[1], shape[2]}, at[3], i = 0, rank;
    wide[dim] *= ranks;
    MTT_NEED(!memcmp(mt_shape(y), wide, sizeof wide));
    for (at[0] = 0; at[0] < wide[0]; at[0]++)
        for (at[1] = 0; at[1] < wide[1]; at[1]++)
            for (at[2] = 0; at[2] < wide[2]; at[2]++, i++) {
                int64_t from = index_of(shape, dim, at, &rank);
                MTT_NEED(got[i] == value(rank, from));
            }
    free(got);
}

static void check_sum(mt_tensor *y, int64_t ranks, double scale)
{
    double *got = mtt_doubles(y);
    for (int64_t i = 0; i < mt_numel(y); i++) MTT_NEED(got[i] == scale * sum_at(ranks, i));
    free(got);
}

static uint64_t n_bytes(mt_tensor *x)
{
    return (uint64_t)mt_numel(x) * mt_dtype_size(mt_dtype_of(x));
}

/* all_gather forward and, by the sum of all dy, backward; then reduce_scatter of what was gathered.
 */
static void check_gather_and_scatter(mt_comm *comm, mt_device *device, mt_dtype dtype,
                                     const int64_t *shape, int dim, mtt_layout layout)
{
    mt_group group = mt_comm_group(comm);
    int64_t ranks = group.ranks;
    MT_AUTO mt_tensor *x = x_of(device, dtype, shape, group.rank, layout);
    MTT_NEED(mt_set_requires_grad(x, true) == MT_OK);
    uint64_t before = mt_comm_sent(comm), others = (uint64_t)(ranks - 1);
    mt_sent counted = mt_sent_get(device);
    MT_AUTO mt_tensor *y = mt_all_gather(x, dim, &group);
    MTT_NEED(y);
    check_gathered(y, shape, dim, ranks);
    MTT_NEED(mt_comm_sent(comm) - before == others * n_bytes(x));
    /* what the op counts, on devices without data too, is what was sent */
    mt_sent now = mt_sent_get(device);
    MTT_NEED(now.layers - counted.layers + now.shards - counted.shards == others * n_bytes(x));
    /* every rank has the same y, so the sum of all dy = y is ranks times x */
    MT_AUTO mt_tensor *dy = mt_detach(y);
    before = mt_comm_sent(comm);
    MTT_NEED(mt_backward_with(y, &(mt_backward_options){.gradient = dy}) == MT_OK);
    MTT_NEED(mt_comm_sent(comm) - before == others * n_bytes(x));
    double *got = mtt_doubles(mt_grad(x));
    for (int64_t i = 0; i < mt_numel(x); i++)
        MTT_NEED(got[i] == (double)ranks * value(group.rank, i));
    free(got);
    MT_AUTO mt_tensor *part = mt_reduce_scatter(dy, dim, &group);
    MTT_NEED(part && mtt_same_bits(part, mt_grad(x)));
}

/* A sum that all get has taken twice this rank's part of a round of the ring, by what the op counts
 * since `counted` and, where the pieces are equal, by what was sent since `before`. */
static void check_sent(mt_comm *comm, mt_tensor *x, mt_sent counted, uint64_t before)
{
    const uint64_t ranks = (uint64_t)mt_comm_group(comm).ranks;
    const uint64_t layers = mt_sent_get(mt_device_of(x)).layers - counted.layers;
    MTT_NEED(layers == 2 * (n_bytes(x) / ranks * (ranks - 1)));
    if ((uint64_t)mt_numel(x) % ranks == 0) MTT_NEED(mt_comm_sent(comm) - before == layers);
}

/* all_reduce; and replicate, whose gradient is the sum of all dy. */
static void check_sums(mt_comm *comm, mt_device *device, mt_dtype dtype, const int64_t *shape,
                       mtt_layout layout)
{
    mt_group group = mt_comm_group(comm);
    MT_AUTO mt_tensor *x = x_of(device, dtype, shape, group.rank, layout);
    MTT_NEED(mt_set_requires_grad(x, true) == MT_OK);
    uint64_t before = mt_comm_sent(comm);
    mt_sent counted = mt_sent_get(device);
    MT_AUTO mt_tensor *y = mt_all_reduce(x, &group);
    MTT_NEED(y);
    check_sum(y, group.ranks, 1);
    check_sent(comm, x, counted, before);
    before = mt_comm_sent(comm), counted = mt_sent_get(device);
    MT_AUTO mt_tensor *same = mt_replicate(x, &group);
    MT_AUTO mt_tensor *dy = mt_detach(x);
    MTT_NEED(same && mt_backward_with(same, &(mt_backward_options){.gradient = dy}) == MT_OK);
    check_sent(comm, x, counted, before); /* forward sends nothing */
    check_sum(mt_grad(x), group.ranks, 1);
    MTT_NEED(mtt_same_bits(mt_grad(x), y));
}

/* Numbers whose sums are rounded: the same bits whether a sum is scattered or given to all. */
static void check_bits(mt_comm *comm, mt_device *device, mt_dtype dtype, int64_t n)
{
    mt_group group = mt_comm_group(comm);
    MT_AUTO mt_tensor *x = mtt_random(device, dtype, 1, &n, 5 + (uint64_t)group.rank, -1, 1);
    MT_AUTO mt_tensor *all = mt_all_reduce(x, &group);
    MTT_NEED(all);
    int64_t own = n / group.ranks;
    MT_AUTO mt_tensor *cut = mt_slice(x, 0, 0, own * group.ranks);
    MT_AUTO mt_tensor *part = mt_reduce_scatter(cut, 0, &group);
    MTT_NEED(part);
    MT_AUTO mt_tensor *again = mt_all_gather(part, 0, &group);
    MT_AUTO mt_tensor *want = mt_slice(all, 0, 0, own * group.ranks);
    MTT_NEED(again && mtt_same_bits(again, want));
}

void mtt_check_collectives(mt_comm *comm)
{
    static const mt_dtype dtypes[] = {MT_F32, MT_F64, MT_BF16, MT_F16};
    static const int64_t shapes[][3] = {{2, 3, 5}, {1, 1, 1}, {4, 1, 7}, {3, 0, 2}};
    mt_device *device = mtt_device();
    MTT_NEED(device);
    for (int d = 0; d < 4; d++) {
        for (size_t k = 0; k < sizeof shapes / sizeof *shapes; k++)
            for (mtt_layout layout = 0; layout < MTT_LAYOUT_COUNT; layout++) {
                for (int dim = 0; dim < 3; dim++)
                    check_gather_and_scatter(comm, device, dtypes[d], shapes[k], dim, layout);
                check_sums(comm, device, dtypes[d], shapes[k], layout);
            }
        check_bits(comm, device, dtypes[d], 1);
        check_bits(comm, device, dtypes[d], 100003); /* more than one piece of scratch */
    }
    MTT_NEED(mtt_allocated(device) == 0);
    mt_device_release(device);
}

/* Odd and even ranks apart, in the opposite order. */
void mtt_check_split(mt_comm *comm)
{
    mt_group all = mt_comm_group(comm);
    mt_comm *part = mt_comm_split(comm, all.rank % 2, -all.rank);
    MTT_NEED(part);
    mt_group group = mt_comm_group(part);
    MTT_NEED(group.ranks == (all.ranks + 1 - all.rank % 2) / 2);
    MTT_NEED(group.rank == group.ranks - 1 - all.rank / 2);
    mtt_check_collectives(part);
    mt_comm_free(part);
}

/* exchange_device.c: what the ranks of a collective send each other from device memory that the
 * host cannot read: CUDA's, through NCCL. There the order of a sum, and how a sum of 16-bit numbers
 * is rounded on the way, are the library's; it takes no scratch of ours. What is counted as sent is
 * what rings send, as in collective.c. */
#include "collectives/links.h"

/* A group of calls is not longer than this. */
#define MOST_CALLS 256

bool mti_has_links(const mti_call *c) { return c->k->links != NULL; }

mti_moving mti_moving_of(const mti_call *c)
{
    return mti_has_links(c)                ? MTI_BY_DEVICE
           : mt_device_has_data(c->device) ? MTI_BY_HOST
                                           : MTI_STAYS;
}

static void retain(void *device) { mt_device_retain(device); }
static void release(void *device) { mt_device_release(device); }

bool mti_prepare_links(const mti_call *c, mt_comm *comm)
{
    const mti_comm_device device = {c->k->links, c->ctx, c->device, retain, release};
    return !mti_has_links(c) || mti_comm_use_device(comm, &device);
}

/* ---- one after the other, in groups ---- */

typedef struct calls {
    mt_comm *comm;
    const mti_link_kind *k;
    mti_link *link;
    int n; /* of the group that is open */
} calls;

static bool begin(calls *s, mti_call *c, const mt_group *group)
{
    *s = (calls){.comm = group->comm, .k = c->k->links};
    return mti_prepare_links(c, s->comm) && (s->link = mti_comm_link(s->comm));
}

/* Before each call. */
static bool next(calls *s)
{
    bool full = s->n == MOST_CALLS;
    if (full) s->n = 0;
    if (full && !s->k->end(s->link)) return false;
    if (s->n == 0 && !s->k->begin(s->link)) return false;
    s->n++;
    return true;
}

/* Ends the last group, after a failure too. */
static bool end(calls *s, bool ok) { return (s->n == 0 || s->k->end(s->link)) && ok; }

static char *at(const mti_view *v, int64_t i)
{
    return (char *)v->data + i * (int64_t)mt_dtype_size(v->dtype);
}

static void count_sent(calls *s, const mti_view *v, int64_t n)
{
    s->comm->sent += (uint64_t)n * mt_dtype_size(v->dtype);
}

/* ---- along a dimension ---- */

int64_t mti_inner_count(const mti_view *v, int dim)
{
    int64_t n = 1;
    for (int d = dim; d < v->rank; d++) n *= v->shape[d];
    return n;
}

bool mti_gather_links(mti_call *c, const mt_group *group, int dim, const mti_view *x,
                      const mti_view *y)
{
    calls s;
    int64_t n = mti_inner_count(x, dim), count = mti_view_count(x);
    if (!begin(&s, c, group)) return false;
    int64_t ranks = s.comm->end.ranks;
    bool ok = true;
    for (int64_t i = 0; ok && i < count; i += n)
        ok = next(&s) && s.k->gather(s.link, x->dtype, at(x, i), at(y, i * ranks), (size_t)n);
    count_sent(&s, x, count * (ranks - 1));
    return end(&s, ok);
}

bool mti_scatter_sum_links(mti_call *c, const mt_group *group, int dim, const mti_view *x,
                           const mti_view *y)
{
    calls s;
    int64_t n = mti_inner_count(y, dim), count = mti_view_count(y);
    if (!begin(&s, c, group)) return false;
    int64_t ranks = s.comm->end.ranks;
    bool ok = true;
    for (int64_t i = 0; ok && i < count; i += n)
        ok = next(&s) && s.k->scatter_sum(s.link, x->dtype, at(x, i * ranks), at(y, i), (size_t)n);
    count_sent(&s, y, count * (ranks - 1));
    return end(&s, ok);
}

/* ---- in place ---- */

/* This rank's shard of y. */
static mti_shard_range shard_of(const calls *s, const mti_view *y)
{
    const mt_group group = mt_comm_group(s->comm);
    return mti_shard_of(mti_view_count(y), &group);
}

bool mti_sum_links(mti_call *c, const mt_group *group, const mti_view *y)
{
    calls s;
    const int64_t n = mti_view_count(y);
    if (!begin(&s, c, group)) return false;
    const int64_t own = shard_of(&s, y).n;
    count_sent(&s, y, n - own + own * (s.comm->end.ranks - 1)); /* to add up, then sums */
    return n == 0 || s.k->sum(s.link, y->dtype, at(y, 0), (size_t)n);
}

/* Where shards differ in length: a call for each. */
typedef bool shard_fn(mti_link *link, mt_dtype dtype, void *x, size_t n, int64_t rank);

static bool shard_by_shard(calls *s, const mti_view *y, int64_t shard, shard_fn *call)
{
    bool ok = true;
    int64_t count = mti_view_count(y), r = 0;
    for (int64_t i = 0; ok && i < count; i += shard, r++) {
        int64_t n = count - i < shard ? count - i : shard;
        ok = next(s) && call(s->link, y->dtype, at(y, i), (size_t)n, r);
    }
    return end(s, ok);
}

bool mti_scatter_inside_links(mti_call *c, const mt_group *group, const mti_view *y)
{
    calls s;
    const int64_t count = mti_view_count(y);
    if (!begin(&s, c, group)) return false;
    const mti_shard_range own = shard_of(&s, y);
    const int64_t n = own.length;
    count_sent(&s, y, count - own.n);
    if (n == 0) return true;
    if (n * s.comm->end.ranks != count) return shard_by_shard(&s, y, n, s.k->sum_on);
    return s.k->scatter_sum(s.link, y->dtype, at(y, 0), at(y, s.comm->end.rank * n), (size_t)n);
}

bool mti_gather_inside_links(mti_call *c, const mt_group *group, const mti_view *y)
{
    calls s;
    const int64_t count = mti_view_count(y);
    if (!begin(&s, c, group)) return false;
    const mti_shard_range own = shard_of(&s, y);
    const int64_t n = own.length, ranks = s.comm->end.ranks;
    count_sent(&s, y, own.n * (ranks - 1));
    if (n == 0) return true;
    if (n * ranks != count) return shard_by_shard(&s, y, n, s.k->spread);
    return s.k->gather(s.link, y->dtype, at(y, s.comm->end.rank * n), at(y, 0), (size_t)n);
}

bool mti_join_links(mti_call *c, const mt_group *group)
{
    calls s;
    return begin(&s, c, group);
}

/* One group: a rank's sends wait for receives that others make after theirs. */
bool mti_exchange_links(mti_call *c, const mt_group *group)
{
    calls s;
    if (!begin(&s, c, group)) return false;
    const mt_comm *comm = s.comm;
    bool ok = s.k->begin(s.link);
    for (int64_t r = 0; ok && r < comm->end.ranks; r++) {
        const mti_span *out = &comm->out[r], *in = &comm->in[r];
        ok = s.k->trade(s.link, out->at, out->n_bytes, in->at, in->n_bytes, r);
        if (r != comm->end.rank) s.comm->sent += out->n_bytes;
    }
    return s.k->end(s.link) && ok;
}

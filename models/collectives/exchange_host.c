/* exchange_host.c: what the ranks of a collective send each other, from memory that the host can
 * read; other devices' are in exchange_device.c.
 *
 * A sum is formed by the rank that has its shard, of what all ranks send, in the order of the
 * ranks; so its bits do not depend on what carries it, nor on whether the shard stays
 * (reduce_scatter) or goes to all (all_reduce). Scratch holds one such shard at a time: it does not
 * grow with x. */
#include "collectives/links.h"

static char *at(const mti_view *v, int64_t i)
{
    return (char *)v->data + i * (int64_t)mt_dtype_size(v->dtype);
}

void mti_count_sent(mti_call *c, mti_route route, uint64_t n_bytes)
{
    atomic_fetch_add_explicit(&c->device->counters[route], n_bytes, memory_order_relaxed);
    c->sends = true;
}

mt_sent mt_sent_get(const mt_device *d)
{
    uint64_t n[MTI_ROUTES];
    if (!mti_given(d, "sent_get", "the device")) return (mt_sent){0};
    for (int r = 0; r < MTI_ROUTES; r++) n[r] = atomic_load(&d->counters[r]);
    return (mt_sent){n[MTI_TO_LAYERS], n[MTI_TO_SHARDS],   n[MTI_TO_CONTEXT],
                     n[MTI_TO_STAGES], n[MTI_TO_REPLICAS], n[MTI_TO_EXPERTS]};
}

/* NULL where nothing moves. */
static mt_comm *comm_of(const mti_call *c, const mt_group *group)
{
    return mt_device_has_data(c->device) ? group->comm : NULL;
}

bool mti_gather_ranks(mti_call *c, const mt_group *group, int dim, const mti_view *x,
                      const mti_view *y)
{
    mt_comm *comm = comm_of(c, group);
    const mti_view *dense = mti_dense(c, x);
    if (!dense || !comm) return dense != NULL;
    if (mti_has_links(c)) return mti_gather_links(c, group, dim, dense, y);
    int64_t n = mti_inner_count(dense, dim), count = mti_view_count(dense);
    size_t n_bytes = (size_t)n * mt_dtype_size(x->dtype);
    for (int64_t i = 0; i < count; i += n) {
        for (int64_t r = 0; r < comm->end.ranks; r++) {
            comm->out[r] = (mti_span){at(dense, i), n_bytes};
            comm->in[r] = (mti_span){at(y, i * comm->end.ranks + r * n), n_bytes};
        }
        if (!mti_comm_exchange(comm)) return false;
    }
    return true;
}

/* ---- sums ---- */

/* Scratch: a shard of each rank, then two in f32 for sums of 16-bit numbers. */
typedef struct sums {
    mti_call *c;
    mt_comm *comm;       /* NULL: nothing moves */
    int64_t ranks, most; /* elements of a shard */
    mt_dtype dtype;
    char *room;
} sums;

size_t mti_sums_scratch(const mti_call *c, int64_t ranks)
{
    return c->k->exchange_scratch(c->ctx, ranks + 4);
}

static sums sums_in(mti_call *c, const mt_group *group, mt_dtype dtype, void *room)
{
    int64_t ranks = group->ranks;
    size_t shard = mti_sums_scratch(c, ranks) / (size_t)(ranks + 4);
    return (sums){c,   comm_of(c, group), ranks, (int64_t)(shard / mt_dtype_size(dtype)), dtype,
                  room};
}

static bool take_scratch(mti_call *c, const mt_group *group, void **room)
{
    return mti_scratch_as(c, MT_COMMUNICATION, mti_sums_scratch(c, group->ranks), room);
}

static mti_view row_of(mt_dtype dtype, void *data, int64_t n)
{
    return (mti_view){.data = data, .dtype = dtype, .rank = 1, .shape = {n}, .stride = {1}};
}

/* total += part */
static bool add(const sums *s, const mti_view *total, const mti_view *part)
{
    return s->c->k->binary(s->c->ctx, MTI_ADD, total, part, total);
}

/* The sum of the n elements that every rank has sent, at `to`; 16-bit numbers are added in f32. */
static bool add_up(const sums *s, int64_t n, void *to)
{
    const mti_backend *k = s->c->k;
    size_t size = mt_dtype_size(s->dtype), shard = (size_t)s->most * size;
    bool narrow = size == 2, ok = true;
    char *wide = s->room + (size_t)s->ranks * shard;
    mti_view first = row_of(s->dtype, s->room, n), y = row_of(s->dtype, to, n);
    mti_view total = narrow ? row_of(MT_F32, wide, n) : first;
    mti_view widened = row_of(MT_F32, wide + 2 * shard, n);
    if (narrow) ok = k->copy(s->c->ctx, &first, &total);
    for (int64_t r = 1; ok && r < s->ranks; r++) {
        mti_view part = row_of(s->dtype, s->room + (size_t)r * shard, n);
        if (narrow) ok = k->copy(s->c->ctx, &part, &widened);
        ok = ok && add(s, &total, narrow ? &widened : &part);
    }
    return ok && k->copy(s->c->ctx, &total, &y);
}

/* Where the shards lie of which one goes to each rank, in elements: shard r begins at r * step, and
 * is of `length` or of what is left of `total`. */
typedef struct shards {
    char *at;
    int64_t step, length, total;
} shards;

static int64_t length_of(const shards *p, int64_t r)
{
    int64_t left = p->total - r * p->step;
    return left < 0 ? 0 : left < p->length ? left : p->length;
}

static mti_span span_of(const sums *s, const shards *p, int64_t r)
{
    size_t size = mt_dtype_size(s->dtype);
    int64_t n = length_of(p, r);
    return (mti_span){n ? p->at + (size_t)(r * p->step) * size : NULL, (size_t)n * size};
}

/* Puts the sum of this rank's shard, of what all ranks have there, at `to`. */
static bool sum_shard(const sums *s, const shards *p, void *to)
{
    mt_comm *comm = s->comm;
    size_t shard = (size_t)s->most * mt_dtype_size(s->dtype);
    mti_span own = span_of(s, p, comm->end.rank);
    for (int64_t r = 0; r < s->ranks; r++) {
        comm->out[r] = span_of(s, p, r);
        comm->in[r] = (mti_span){s->room + (size_t)r * shard, own.n_bytes};
    }
    int64_t n = length_of(p, comm->end.rank);
    return mti_comm_exchange(comm) && (n == 0 || add_up(s, n, to));
}

/* Gives every rank each rank's shard. */
static bool spread_shards(const sums *s, const shards *p)
{
    mt_comm *comm = s->comm;
    for (int64_t r = 0; r < s->ranks; r++) {
        comm->out[r] = span_of(s, p, comm->end.rank);
        comm->in[r] = span_of(s, p, r);
    }
    return mti_comm_exchange(comm);
}

bool mti_scatter_sum(mti_call *c, const mt_group *group, int dim, const mti_view *x,
                     const mti_view *y)
{
    void *room;
    const mti_view *dense = mti_dense(c, x);
    if (!dense) return false;
    if (mti_has_links(c)) return mti_scatter_sum_links(c, group, dim, dense, y);
    if (!take_scratch(c, group, &room)) return false;
    const sums s = sums_in(c, group, x->dtype, room);
    int64_t n = mti_inner_count(y, dim), count = mti_view_count(y);
    for (int64_t i = 0; s.comm && i < count; i += n)
        for (int64_t done = 0; done < n; done += s.most) {
            int64_t left = n - done, length = left < s.most ? left : s.most;
            shards p = {at(dense, i * s.ranks + done), n, length, INT64_MAX};
            if (!sum_shard(&s, &p, at(y, i + done))) return false;
        }
    return true;
}

/* ---- in place ---- */

/* Shard r of y, as one part of what lies in every shard at the same place. */
static shards part_of_shards(const sums *s, const mti_view *y, int64_t n, int64_t done)
{
    int64_t left = n - done;
    return (shards){at(y, done), n, left < s->most ? left : s->most, mti_view_count(y) - done};
}

bool mti_scatter_sum_with(mti_call *c, const mt_group *group, const mti_view *y, void *scratch)
{
    const sums s = sums_in(c, group, y->dtype, scratch);
    const int64_t n = mti_shard_of(mti_view_count(y), group).length;
    for (int64_t done = 0; s.comm && done < n; done += s.most) {
        shards p = part_of_shards(&s, y, n, done);
        if (!sum_shard(&s, &p, span_of(&s, &p, s.comm->end.rank).at)) return false;
    }
    return true;
}

bool mti_scatter_sum_inside(mti_call *c, const mt_group *group, const mti_view *y)
{
    void *scratch;
    if (mti_has_links(c)) return mti_scatter_inside_links(c, group, y);
    return take_scratch(c, group, &scratch) && mti_scatter_sum_with(c, group, y, scratch);
}

bool mti_gather_inside(mti_call *c, const mt_group *group, const mti_view *y)
{
    if (mti_has_links(c)) return mti_gather_inside_links(c, group, y);
    const int64_t count = mti_view_count(y), n = mti_shard_of(count, group).length;
    const sums s = {.c = c, .comm = comm_of(c, group), .ranks = group->ranks, .dtype = y->dtype};
    const shards p = {at(y, 0), n, n, count};
    return !s.comm || spread_shards(&s, &p);
}

/* All sums before any is shared: each exchange waits for the slowest rank. */
bool mti_sum_ranks(mti_call *c, const mt_group *group, const mti_view *y)
{
    if (mti_has_links(c)) return mti_sum_links(c, group, y);
    return mti_scatter_sum_inside(c, group, y) && mti_gather_inside(c, group, y);
}

/* ---- between the stages of a pipeline ---- */

/* What is on the way, held without the graph that made it. */
typedef struct sent {
    mt_tensor *tensor;
    uint64_t version;
    const char *op;
} sent;

static bool let_go(void *owner)
{
    sent *s = owner;
    bool same = atomic_load(&s->tensor->storage->version) == s->version;
    if (!same)
        mti_fail(
            MT_ERR_STATE,
            "%s: x has been changed in place before it arrived; it is sent from its own memory "
            "until the next call through its comm, or mt_comm_settle",
            s->op);
    mt_release(s->tensor);
    mti_free(s);
    return same;
}

bool mti_send_on(mti_call *c, const mt_group *group, mti_way way, mt_tensor *x)
{
    mt_comm *comm = group->comm;
    if (!comm) return true;
    const mti_view *dense = mti_dense(c, &x->view);
    sent *s = dense ? mti_malloc(sizeof *s) : NULL;
    if (!s) return false;
    mt_tensor *from = dense == &x->view ? x : c->temps[c->n_temps - 1];
    *s = (sent){mti_tensor_view(from, dense), atomic_load(&from->storage->version), c->op->name};
    if (!s->tensor) {
        mti_free(s);
        return false;
    }
    mti_span span = {dense->data, (size_t)mti_view_count(dense) * mt_dtype_size(dense->dtype)};
    from->storage->unclassified_in = NULL; /* it may outlive the op */
    if (mti_prepare_links(c, comm) &&
        mti_comm_post(comm, way, &span, (mti_posted){s, let_go, mti_moving_of(c)}))
        return true;
    mt_release(s->tensor);
    mti_free(s);
    return false;
}

const mt_tensor *mti_on_the_way(const mt_comm *comm, mti_way way)
{
    const sent *s = comm ? comm->posted[way].owner : NULL;
    return s ? s->tensor : NULL;
}

bool mti_receive(mti_call *c, const mt_group *group, mti_way way, const mti_view *y)
{
    mt_comm *comm = group->comm;
    mti_span span = {y->data, (size_t)mti_view_count(y) * mt_dtype_size(y->dtype)};
    return !comm ||
           (mti_prepare_links(c, comm) && mti_comm_fetch(comm, way, &span, mti_moving_of(c)));
}

/* shard_gather.c: the shards of several parameters, gathered as one, as PyTorch's fully_shard
 * gathers those of a block (foreach_all_gather): this rank's are cast and laid side by side in its
 * row of a buffer [ranks, bytes], the rows are exchanged, and the parameters copied out. And their
 * gradients summed as one (foreach_reduce). Not recorded. Buffers come from PyTorch's streams: the
 * one that is copied in and the cast shards before it from one, a sum from another; the rest from
 * the default one (_fsdp_param_group.py, FSDPCommContext). */
#include "collectives/links.h"

struct mti_gathering {
    mt_group group;
    mt_device *device;
    mt_tensor *buffer; /* u8 [ranks, row]; NULL for one rank */
    mti_job *job;      /* NULL: it moves nothing, or has moved */
    size_t row;
    int n;
    mti_shard shards[]; /* the tensors borrowed */
};

/* Wide enough for an element of any dtype to begin at. */
static size_t aligned(size_t n_bytes) { return (n_bytes + 7) / 8 * 8; }

static size_t bytes_of(const mti_shard *p)
{
    return (size_t)mt_numel(p->shard) * mt_dtype_size(p->dtype);
}

/* [rows, n] of a shard's dtype at `offset` of each row of the buffer, from row `first` on. */
static mti_view in_buffer(const mti_gathering *g, const mti_shard *p, size_t offset, int64_t first,
                          int64_t rows)
{
    int64_t stride = (int64_t)(g->row / mt_dtype_size(p->dtype));
    char *data = g->buffer->view.data;
    return (mti_view){.data = data ? data + (size_t)first * g->row + offset : NULL,
                      .dtype = p->dtype,
                      .rank = 2,
                      .shape = {rows, mt_numel(p->shard)},
                      .stride = {stride, 1}};
}

/* A contiguous tensor's elements as [rows, n]. */
static mti_view in_rows(const mt_tensor *t, int64_t rows)
{
    int64_t n = mt_numel(t) / rows;
    return (mti_view){.data = t->view.data,
                      .dtype = t->view.dtype,
                      .rank = 2,
                      .shape = {rows, n},
                      .stride = {n, 1}};
}

static bool copy(const mti_gathering *g, const mti_view *x, const mti_view *y)
{
    return g->device->backend->copy(g->device->ctx, x, y);
}

/* A contiguous tensor on a stream of the device; NULL on failure. */
static mt_tensor *on_stream(mt_device *d, const char *stream, mt_dtype dtype, int rank,
                            const int64_t *shape)
{
    mt_stream_scope scope;
    if (mt_mem_stream_begin(&scope, d, stream) != MT_OK) return NULL;
    mti_view v;
    size_t n_bytes;
    mt_tensor *t = NULL;
    if (mti_view_init(&v, "gather", dtype, rank, shape, &n_bytes))
        t = mti_tensor_new(d, &v, MT_COMMUNICATION, false);
    mt_mem_stream_end(&scope);
    return t;
}

static bool casts(const mti_gathering *g)
{
    int i = 0;
    while (i < g->n && mt_dtype_of(g->shards[i].shard) == g->shards[i].dtype &&
           !g->shards[i].is_staged)
        i++;
    return i < g->n;
}

static bool copy_rows(const mti_gathering *g, mt_tensor *cast)
{
    size_t offset = 0;
    bool ok = true;
    for (int i = 0; ok && i < g->n; i++) {
        const mti_shard *p = &g->shards[i];
        mti_view x = in_rows(p->shard, 1), y = in_buffer(g, p, offset, g->group.rank, 1), z = y;
        if (cast) {
            z.data = cast->view.data ? (char *)cast->view.data + offset : NULL;
            ok = copy(g, &x, &z);
        }
        ok = ok && copy(g, cast ? &z : &x, &y);
        offset += aligned(bytes_of(p));
    }
    return ok;
}

/* Makes the buffer, with this rank's row. Where shards are cast, they are so in memory of their own
 * first, as in PyTorch. */
static bool copy_in(mti_gathering *g)
{
    const int64_t row = (int64_t)g->row;
    mt_tensor *cast = casts(g) ? on_stream(g->device, "all_gather_copy_in", MT_U8, 1, &row) : NULL;
    bool ok = cast || !casts(g);
    if (ok)
        g->buffer = on_stream(g->device, "all_gather_copy_in", MT_U8, 2,
                              (const int64_t[]){g->group.ranks, row});
    ok = ok && g->buffer && copy_rows(g, cast);
    mt_release(cast);
    return ok;
}

/* From device to device, in the order of the device's stream. */
static bool exchange_links(mti_call *c, const mti_gathering *g)
{
    mti_view all = g->buffer->view, own = all;
    own.shape[0] = 1;
    own.data = (char *)all.data + (size_t)g->group.rank * g->row;
    return mti_gather_links(c, &g->group, 0, &own, &all);
}

/* Every rank's row to all others. */
static bool exchange(mti_gathering *g, bool behind)
{
    mt_device *d = g->device;
    mt_comm *comm = mt_device_has_data(d) ? g->group.comm : NULL;
    mti_call c = {.device = d, .k = d->backend, .ctx = d->ctx};
    mti_count_sent(&c, MTI_TO_SHARDS, (uint64_t)g->row * (uint64_t)(g->group.ranks - 1));
    if (!comm) return true;
    if (mti_has_links(&c)) return exchange_links(&c, g);
    char *data = g->buffer->view.data;
    for (int64_t r = 0; r < g->group.ranks; r++) {
        comm->out[r] = (mti_span){data + (size_t)g->group.rank * g->row, g->row};
        comm->in[r] = (mti_span){data + (size_t)r * g->row, g->row};
    }
    if (!behind) return mti_comm_exchange(comm);
    g->job = mti_comm_begin(comm);
    return g->job != NULL;
}

static bool check_reach(mt_device *device, const mt_group *group)
{
    return group->ranks == 1 || !mt_device_has_data(device) || group->comm ||
           mti_fail_bool(MT_ERR_UNSUPPORTED, "gather: %lld ranks without a comm",
                         (long long)group->ranks);
}

mti_gathering *mti_shards_begin(mt_device *device, int n, const mti_shard *shards,
                                const mt_group *group, bool behind)
{
    if (!check_reach(device, group)) return NULL;
    mti_gathering *g = mti_calloc(1, sizeof *g + (size_t)n * sizeof *g->shards);
    if (!g) return NULL;
    g->group = *group, g->device = device, g->n = n;
    for (int i = 0; i < n; i++) {
        g->shards[i] = shards[i];
        g->row += aligned(bytes_of(&shards[i]));
    }
    if (group->ranks == 1) return g;
    if (copy_in(g) && exchange(g, behind)) return g;
    mti_shards_drop(g);
    return NULL;
}

/* Waits for what is on its way. */
static bool settle(mti_gathering *g)
{
    mti_job *job = g->job;
    g->job = NULL;
    return !job || mti_comm_finish(g->group.comm, job);
}

void mti_shards_drop(mti_gathering *g)
{
    if (!g) return;
    settle(g);
    mt_release(g->buffer);
    mti_free(g);
}

/* What one rank, which has no buffer, casts, it casts before it copies, as in PyTorch; the one
 * before is there until then. False on failure. */
static bool cast_alone(const mti_gathering *g, const mti_shard *p, mt_tensor **last)
{
    if (g->buffer || mt_dtype_of(p->shard) == p->dtype) return true;
    const int64_t n = mt_numel(p->shard);
    mt_tensor *y = on_stream(g->device, "default", p->dtype, 1, &n);
    mt_set(last, y);
    if (!y) return false;
    mti_view from = in_rows(p->shard, 1), to = in_rows(y, 1);
    return copy(g, &from, &to);
}

static mt_tensor *copy_out(const mti_gathering *g, const mti_shard *p, size_t offset)
{
    int64_t ranks = g->group.ranks;
    mt_tensor *flat = mt_empty(g->device, p->dtype, MT_SHAPE(ranks * mt_numel(p->shard)));
    if (!flat) return NULL;
    mti_view x = g->buffer ? in_buffer(g, p, offset, 0, ranks) : in_rows(p->shard, 1);
    mti_view y = in_rows(flat, ranks);
    if (mt_set_category(flat, MT_PARAMETER) != MT_OK || !copy(g, &x, &y)) mt_set(&flat, NULL);
    return flat;
}

bool mti_shards_end(mti_gathering *g, mt_tensor **flats, mt_tensor **buffer)
{
    size_t offset = 0;
    bool ok = settle(g);
    mt_tensor *cast = NULL;
    int made = 0;
    for (; ok && made < g->n; made++) {
        ok = cast_alone(g, &g->shards[made], &cast);
        flats[made] = ok ? copy_out(g, &g->shards[made], offset) : NULL;
        offset += aligned(bytes_of(&g->shards[made]));
        if (!(ok = flats[made] != NULL)) break;
    }
    mt_release(cast);
    for (int i = 0; !ok && i < made; i++) {
        mt_release(flats[i]);
        flats[i] = NULL;
    }
    if (buffer) *buffer = mt_retain(g->buffer);
    mti_shards_drop(g);
    return ok;
}

/* ---- gradients ---- */

/* n columns of the rows of a contiguous tensor [rows, all], from `first` on. */
static mti_view columns(const mt_tensor *t, int64_t first, int64_t n)
{
    mti_view v = t->view;
    if (v.data) v.data = (char *)v.data + (size_t)first * mt_dtype_size(v.dtype);
    v.shape[v.rank - 1] = n;
    return v;
}

/* The gradients as columns of the buffer; then they are let go. */
static bool copy_gradients(mti_call *c, int n, mt_tensor **grads, const mt_tensor *buffer)
{
    const int64_t ranks = buffer->view.shape[0];
    int64_t first = 0;
    bool ok = true;
    for (int i = 0; ok && i < n; i++) {
        mti_view x = grads[i]->view;
        int64_t length = mti_view_count(&x) / ranks, step = x.stride[0];
        x.rank = 2, x.shape[0] = ranks, x.shape[1] = length;
        x.stride[0] = length * step, x.stride[1] = step;
        mti_view y = columns(buffer, first, length);
        ok = c->k->copy(c->ctx, &x, &y);
        first += length;
    }
    return ok;
}

static bool sum_rows(mti_call *c, const mt_group *group, const mti_view *x, const mti_view *y)
{
    const uint64_t ranks = (uint64_t)group->ranks;
    mti_count_sent(c, MTI_TO_SHARDS, mti_view_bytes(x) / ranks * (ranks - 1));
    return ranks > 1 ? mti_scatter_sum(c, group, 0, x, y) : c->k->copy(c->ctx, x, y);
}

/* The rank's shards of the sum side by side, [1,row], as they are kept: of the stream that makes
 * them last. */
static mt_tensor *make_sum(mti_summing *s, int64_t row)
{
    mti_call *c = s->call;
    const bool several = s->replicas.ranks > 1;
    const int64_t shape[] = {1, row};
    mt_tensor *cast = NULL;
    s->sum = on_stream(c->device, "reduce_scatter", s->dtype, 2, shape);
    if (!s->sum || !sum_rows(c, &s->group, &s->buffer->view, &s->sum->view)) return NULL;
    if (several && !mti_collective_run(s->sum, MTI_ALL_REDUCE, &s->replicas)) return NULL;
    if (s->to == s->dtype) return mt_retain(s->sum);
    cast = on_stream(c->device, several ? "all_reduce" : "reduce_scatter", s->to, 2, shape);
    if (cast && !c->k->copy(c->ctx, &s->sum->view, &cast->view)) mt_set(&cast, NULL);
    return cast;
}

bool mti_shards_sum(mti_summing *s, int n, mt_tensor **grads)
{
    int64_t row = 0, *lengths = mti_malloc((size_t)n * sizeof *lengths);
    if (!lengths) return false;
    for (int i = 0; i < n; i++) row += lengths[i] = mt_numel(grads[i]) / s->group.ranks;
    s->buffer =
        on_stream(s->call->device, "default", s->dtype, 2, (const int64_t[]){s->group.ranks, row});
    bool ok = s->buffer && copy_gradients(s->call, n, grads, s->buffer);
    for (int i = 0; i < n; i++) {
        mt_release(grads[i]);
        grads[i] = NULL;
    }
    mt_tensor *sum = ok ? make_sum(s, row) : NULL;
    for (int64_t i = 0, first = 0; sum && i < n; first += lengths[i++]) {
        mti_view part = columns(sum, first, lengths[i]);
        grads[i] = mti_tensor_view(sum, &part);
        ok = ok && grads[i];
    }
    ok = ok && sum;
    mt_release(sum);
    mti_free(lengths);
    return ok;
}

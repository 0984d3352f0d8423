/* collective.c: collectives between the ranks of a parallel model, seen from one rank. n is the
 * number of ranks.
 *   all_gather      y = every rank's x side by side      dx = its shard of the sum of all dy
 *   reduce_scatter  y = its shard of the sum of all x    dx = every rank's dy side by side
 *   all_reduce      y = the sum of every rank's x        dx = dy        (Megatron-LM's g)
 *   replicate       y = x, which all ranks have          dx = the sum of every rank's dy  (its f)
 *   send            y stands for x, now elsewhere        dx = what comes back
 *   recv            y = what came; x stands for it       dx = dy, which is sent back
 * As rings do it, a rank sends (n-1)/n of what all have together, and for a sum that all get twice
 * that. Nothing is kept. The data of more than one rank moves through the group's comm
 * (exchange_host.c); on a device without data none has to. Shoeybi et al. 2019; Korthikanti et al.
 * 2022.
 */
#include <string.h>
#include "collectives/collectives.h"

/* What a call has besides x. */
typedef struct arguments {
    int dim;
    mt_group group;
    bool positions; /* of keys and values: see mti_gather_positions */
    bool casts;     /* to dtype before it is gathered; f32_sum, leaf: see mti_gather_shard */
    bool f32_sum;
    mt_dtype dtype;
    mti_leaf *leaf; /* there as long as the node is */
} arguments;
_Static_assert(sizeof(arguments) <= sizeof((mti_params){0}.other), "arguments fit");

static arguments arguments_of(const mti_call *c)
{
    arguments a;
    memcpy(&a, c->params->other, sizeof a);
    return a;
}

static mt_group group_of(const mti_call *c) { return arguments_of(c).group; }
static int64_t n_ranks(const mti_call *c) { return arguments_of(c).group.ranks; }
static int along(const mti_call *c) { return arguments_of(c).dim; }

/* Memory that the host can read is the CPU's; of other devices, those with links. */
bool mti_check_ranks(const mti_call *c, const mt_group *group)
{
    const char *kind = mt_device_kind(c->device);
    bool reached = group->comm && (!strcmp(kind, "cpu") || mti_has_links(c));
    return group->ranks == 1 || !mt_device_has_data(c->device) || reached ||
           mti_fail_bool(MT_ERR_UNSUPPORTED,
                         "%s: %lld ranks on %s%s; need 1, cpu or cuda with a comm, or a device "
                         "without data (meta)",
                         c->op->name, (long long)group->ranks, kind,
                         group->comm ? "" : " without a comm");
}

static bool check(const mti_call *c)
{
    const mt_group group = group_of(c);
    return mti_check_ranks(c, &group);
}

/* ---- what this rank sends ---- */

/* Shards of parameters lie along dimension 0, those of sequences along others. */
static mti_route route_of(const mti_call *c)
{
    if (arguments_of(c).positions) return MTI_TO_CONTEXT;
    return along(c) == 0 ? MTI_TO_SHARDS : MTI_TO_LAYERS;
}

static uint64_t round_of_a_ring(const mti_call *c, const mti_view *whole)
{
    uint64_t n = (uint64_t)n_ranks(c);
    return mti_view_bytes(whole) / n * (n - 1);
}

static void send_pieces(mti_call *c, const mti_view *whole)
{
    mti_count_sent(c, route_of(c), round_of_a_ring(c, whole));
}

static void send_sum(mti_call *c, const mti_view *whole)
{
    mti_count_sent(c, MTI_TO_LAYERS, 2 * round_of_a_ring(c, whole));
}

static void send_stage(mti_call *c, const mti_view *x)
{
    mti_count_sent(c, MTI_TO_STAGES, n_ranks(c) > 1 ? mti_view_bytes(x) : 0);
}

static bool same_shape(mti_call *c) { return check(c) && mti_shape_same(c); }

static bool pass_backward(mti_call *c) { return mti_give_din(c, 0, mt_retain(c->dout[0])); }

/* ---- all_gather, reduce_scatter: along dim ---- */

static bool gather_shape(mti_call *c)
{
    mti_view y = *mti_in(c, 0);
    int64_t *extent = &y.shape[along(c)];
    if (!check(c) || (!arguments_of(c).positions && !mti_need_float(c, 0))) return false;
    if (arguments_of(c).casts) y.dtype = arguments_of(c).dtype;
    if (__builtin_mul_overflow(*extent, n_ranks(c), extent))
        return mti_fail_bool(MT_ERR_ARGUMENT, "all_gather: the extent of dimension %d overflows",
                             along(c));
    return mti_out_like(c, &y);
}

static bool scatter_shape(mti_call *c)
{
    mti_view y = *mti_in(c, 0);
    int dim = along(c);
    char text[MTI_SHAPE_TEXT];
    if (!check(c) || !mti_need_float(c, 0)) return false;
    if (y.shape[dim] % n_ranks(c))
        return mti_fail_bool(MT_ERR_ARGUMENT,
                             "reduce_scatter: x is %s; dimension %d needs a multiple of %lld",
                             mti_shape_text(text, y.rank, y.shape), dim, (long long)n_ranks(c));
    y.shape[dim] /= n_ranks(c);
    return mti_out_like(c, &y);
}

static bool gather(mti_call *c, const mti_view *x, const mti_view *y)
{
    const arguments a = arguments_of(c);
    send_pieces(c, y);
    return a.group.ranks > 1 ? mti_gather_ranks(c, &a.group, a.dim, x, y)
                             : c->k->copy(c->ctx, x, y);
}

static bool scatter(mti_call *c, const mti_view *x, const mti_view *y)
{
    const arguments a = arguments_of(c);
    send_pieces(c, x);
    return a.group.ranks > 1 ? mti_scatter_sum(c, &a.group, a.dim, x, y) : c->k->copy(c->ctx, x, y);
}

/* x in another type; x itself if it has the type. NULL on failure. */
static const mti_view *cast(mti_call *c, const mti_view *x, mt_dtype dtype)
{
    if (x->dtype == dtype) return x;
    const mt_tensor *y = mti_temp(c, dtype, x->rank, x->shape);
    return y && c->k->copy(c->ctx, x, &y->view) ? &y->view : NULL;
}

static bool gather_forward(mti_call *c)
{
    const mti_view *x = cast(c, mti_in(c, 0), mti_out(c, 0)->dtype);
    return x && gather(c, x, mti_out(c, 0));
}

static bool scatter_forward(mti_call *c) { return scatter(c, mti_in(c, 0), mti_out(c, 0)); }

static bool gather_backward(mti_call *c)
{
    mti_leaf *leaf = arguments_of(c).leaf;
    mti_collector *collector = leaf ? leaf->guest : NULL;
    if (collector) return collector->collect(collector, leaf, c);
    const mti_view *dx = mti_din(c, 0), *dy = mti_dout(c);
    if (dx && arguments_of(c).f32_sum) dy = cast(c, dy, dx->dtype);
    if (!dx || !dy) return false;
    if (dx->dtype == dy->dtype) return scatter(c, dy, dx);
    const mt_tensor *sum = mti_temp(c, dy->dtype, dx->rank, dx->shape);
    return sum && scatter(c, dy, &sum->view) && c->k->copy(c->ctx, &sum->view, dx);
}

static bool scatter_backward(mti_call *c)
{
    const mti_view *dx = mti_din(c, 0);
    return dx && gather(c, mti_dout(c), dx);
}

const mti_op_code mti_code_all_gather = {gather_shape, gather_forward, gather_backward};
const mti_op_code mti_code_reduce_scatter = {scatter_shape, scatter_forward, scatter_backward};

/* ---- all_reduce, replicate ---- */

static bool reduce_forward(mti_call *c)
{
    const mt_group group = group_of(c);
    send_sum(c, mti_in(c, 0));
    return c->k->copy(c->ctx, mti_in(c, 0), mti_out(c, 0)) &&
           (group.ranks == 1 || mti_sum_ranks(c, &group, mti_out(c, 0)));
}

const mti_op_code mti_code_all_reduce = {same_shape, reduce_forward, pass_backward};

static bool alias_forward(mti_call *c)
{
    c->out[0] = mti_tensor_view(c->in[0], mti_in(c, 0));
    return c->out[0] != NULL;
}

/* With n > 1 the sum goes into dy's memory if dy has no other reference. */
static bool replicate_backward(mti_call *c)
{
    const mt_group group = group_of(c);
    send_sum(c, mti_dout(c));
    if (group.ranks == 1) return pass_backward(c);
    const mti_view *dx = mti_din_reuse(c, 0);
    return dx && (dx->data == mti_dout(c)->data || c->k->copy(c->ctx, mti_dout(c), dx)) &&
           mti_sum_ranks(c, &group, dx);
}

const mti_op_code mti_code_replicate = {same_shape, alias_forward, replicate_backward};

/* ---- send, recv: between stages of a pipeline ---- */

/* The caller need not keep x after the send, the comm holds it until it has arrived: y is one
 * element, broadcast, for backward to start from. */
static bool send_forward(mti_call *c)
{
    const mt_group group = group_of(c);
    if (group.ranks == 1) return alias_forward(c);
    const mti_view *x = mti_in(c, 0);
    send_stage(c, x);
    mti_view one = {.dtype = x->dtype, .rank = 0};
    size_t n_bytes;
    if (!mti_view_pack(&one, &n_bytes)) return false;
    mt_tensor *token = mti_tensor_new(c->device, &one, MT_ACTIVATION, true);
    if (!token) return false;
    mti_view y = mti_broadcast_view(&token->view, x->rank, x->shape);
    const bool is_zero = c->k->fill(c->ctx, &token->view, 0); /* for who sums it up */
    c->out[0] = is_zero ? mti_tensor_view(token, &y) : NULL;
    mt_release(token);
    return c->out[0] && mti_send_on(c, &group, MTI_ONWARD, c->in[0]);
}

static bool send_backward(mti_call *c)
{
    const mt_group group = group_of(c);
    if (group.ranks == 1) return pass_backward(c);
    const mti_view *dx = mti_din(c, 0);
    return dx && mti_receive(c, &group, MTI_RETURNING, dx);
}

static bool recv_forward(mti_call *c)
{
    const mt_group group = group_of(c);
    mti_count_sent(c, MTI_TO_STAGES, 0); /* the stage before counts it */
    return group.ranks > 1 ? mti_receive(c, &group, MTI_ONWARD, mti_out(c, 0))
                           : c->k->copy(c->ctx, mti_in(c, 0), mti_out(c, 0));
}

static bool recv_backward(mti_call *c)
{
    const mt_group group = group_of(c);
    send_stage(c, mti_dout(c));
    return pass_backward(c) &&
           (group.ranks == 1 || mti_send_on(c, &group, MTI_RETURNING, c->dout[0]));
}

const mti_op_code mti_code_send = {same_shape, send_forward, send_backward};
const mti_op_code mti_code_recv = {same_shape, recv_forward, recv_backward};

/* ---- calls ---- */

bool mti_check_group(const char *name, const mt_group *g)
{
    if (!g) return mti_fail_bool(MT_ERR_ARGUMENT, "%s: the group is NULL", name);
    if (g->ranks < 1)
        return mti_fail_bool(MT_ERR_ARGUMENT, "%s: %lld ranks; need at least 1", name,
                             (long long)g->ranks);
    return !g->comm || mti_comm_is(g) ||
           mti_fail_bool(MT_ERR_ARGUMENT, "%s: rank %lld of %lld, but the comm's group is another",
                         name, (long long)g->rank, (long long)g->ranks);
}

static mt_tensor *call(const mti_op *op, mt_tensor *x, const arguments *a)
{
    mti_params params = {0};
    memcpy(params.other, a, sizeof *a);
    return mti_op1(op, &params, x);
}

static mt_tensor *call_among(const mti_op *op, mt_tensor *x, int dim, const mt_group *g)
{
    if (!mti_given(x, op->name, "x") || !mti_check_group(op->name, g)) return NULL;
    return call(op, x, &(arguments){.dim = dim, .group = *g});
}

static mt_tensor *call_along(const mti_op *op, mt_tensor *x, int dim, const mt_group *g)
{
    if (!mti_given(x, op->name, "x")) return NULL;
    return mti_dim(op->name, x->view.rank, &dim) ? call_among(op, x, dim, g) : NULL;
}

mt_tensor *mt_all_gather(mt_tensor *x, int dim, const mt_group *group)
{
    return call_along(&mti_op_all_gather, x, dim, group);
}
mt_tensor *mti_gather_positions(mt_tensor *x, int dim, const mt_group *group)
{
    if (!mti_check_group("all_gather", group)) return NULL;
    return call(&mti_op_all_gather, x, &(arguments){dim, *group, true});
}
mt_tensor *mti_gather_shard(mt_tensor *x, mt_dtype dtype, bool f32_sum, mti_leaf *leaf,
                            const mt_group *group)
{
    if (!mti_check_group("all_gather", group)) return NULL;
    const arguments a = {.group = *group,
                         .casts = dtype != mt_dtype_of(x),
                         .f32_sum = f32_sum,
                         .dtype = dtype,
                         .leaf = leaf};
    return call(&mti_op_all_gather, x, &a);
}
mt_tensor *mt_reduce_scatter(mt_tensor *x, int dim, const mt_group *group)
{
    return call_along(&mti_op_reduce_scatter, x, dim, group);
}
mt_tensor *mt_all_reduce(mt_tensor *x, const mt_group *group)
{
    return call_among(&mti_op_all_reduce, x, 0, group);
}
mt_tensor *mt_replicate(mt_tensor *x, const mt_group *group)
{
    return call_among(&mti_op_replicate, x, 0, group);
}
mt_tensor *mt_send(mt_tensor *x, const mt_group *group)
{
    return call_among(&mti_op_send, x, 0, group);
}
mt_tensor *mt_recv(mt_tensor *x, const mt_group *group)
{
    return call_among(&mti_op_recv, x, 0, group);
}

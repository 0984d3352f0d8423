/* all_to_all.c: rows that go to the ranks that have their experts, and back.
 *
 * Of E experts each of n ranks has E/n, in the order of the ranks. A rank's rows come sorted by
 * expert; those of one expert are a chunk. Chunks are received where they belong: sorted by this
 * rank's experts, and for each of them by the rank that sends them; so nothing is permuted again.
 *   all_to_all   x [n_sent,d] -> y [n_received,d], or back       dx = dy, sent the other way
 * Both lists of counts are kept, on the device, and read by the host before rows are sent.
 * A device without data receives as many rows as routing is said to give. */
#include <string.h>
#include "collectives/links.h"

/* ---- which rows go where ---- */

void mt_routes_release(mt_routes *r)
{
    if (!r) return;
    mt_release(r->sent), mt_release(r->received), mt_release(r->counts);
    *r = (mt_routes){0};
}

/* Bytes of counts that a rank sends. */
static void count_lists(mt_device *d, int64_t experts, const mt_group *group)
{
    mti_call c = {.device = d};
    mti_count_sent(&c, MTI_TO_EXPERTS,
                   (uint64_t)(experts / group->ranks * (group->ranks - 1)) * sizeof(int32_t));
}

static bool exchange_counts(const mt_group *group, int32_t *sent, int32_t *received, int64_t own)
{
    mt_comm *comm = group->comm;
    for (int64_t r = 0; r < group->ranks; r++) {
        comm->out[r] = (mti_span){sent + r * own, (size_t)own * sizeof *sent};
        comm->in[r] = (mti_span){received + r * own, (size_t)own * sizeof *received};
    }
    return mti_comm_exchange(comm);
}

/* lists [2 experts + own]: sent, received, and the sum of that over the ranks. */
static bool find_counts(mt_tensor *counts, const mt_group *group, int32_t *lists, mt_routes *out)
{
    const int64_t n = mt_numel(counts), own = n / group->ranks;
    int32_t *received = lists + n, *sums = received + n;
    if (mti_read_once(counts, lists, (size_t)n * sizeof *lists) != MT_OK) return false;
    if (group->ranks == 1)
        memcpy(received, lists, (size_t)n * sizeof *lists);
    else if (!exchange_counts(group, lists, received, own))
        return false;
    out->n_received = 0;
    for (int64_t i = 0; i < n; i++) {
        sums[i % own] += received[i];
        out->n_received += received[i];
    }
    return true;
}

static mt_tensor *list_of(mt_device *d, int rank, const int64_t *shape, const int32_t *values)
{
    mt_tensor *t = mt_empty(d, MT_I32, rank, shape);
    if (t && (mt_set_category(t, MT_ACTIVATION) != MT_OK ||
              (mt_device_has_data(d) &&
               mt_copy_from_host(t, values, (size_t)mt_numel(t) * sizeof *values) != MT_OK)))
        mt_set(&t, NULL);
    return t;
}

static bool check_routes(mt_tensor *counts, const mt_group *group)
{
    if (!mti_given(counts, "routes", "counts") || !mti_check_group("routes", group)) return false;
    if (mt_rank(counts) != 1 || mt_dtype_of(counts) != MT_I32 || !mt_numel(counts) ||
        mt_numel(counts) % group->ranks)
        return mti_fail_bool(MT_ERR_ARGUMENT,
                             "routes: counts is %s of %lld; need i32 [experts], a multiple of %lld "
                             "ranks",
                             mt_dtype_name(mt_dtype_of(counts)), (long long)mt_numel(counts),
                             (long long)group->ranks);
    const mti_call c = {.op = &mti_op_all_to_all,
                        .device = mt_device_of(counts),
                        .k = mt_device_of(counts)->backend};
    return mti_check_ranks(&c, group);
}

mt_status mt_routes_make(mt_tensor *counts, int64_t rows, const mt_group *group, mt_routes *out)
{
    if (!out) return mti_fail(MT_ERR_ARGUMENT, "routes: the result is NULL");
    *out = (mt_routes){0};
    if (!check_routes(counts, group)) return mt_last_status();
    mt_device *d = mt_device_of(counts);
    const int64_t n = mt_numel(counts), own = n / group->ranks;
    int32_t *lists = mti_calloc((size_t)(2 * n + own), sizeof *lists);
    *out = (mt_routes){.sent = mt_retain(counts), .n_sent = rows, .n_received = rows};
    count_lists(d, n, group);
    bool ok = lists && (!mt_device_has_data(d) || find_counts(counts, group, lists, out));
    if (ok) out->received = list_of(d, MT_SHAPE(group->ranks, own), lists + n);
    if (ok) out->counts = list_of(d, MT_SHAPE(own), lists + 2 * n);
    mti_free(lists);
    if (out->received && out->counts) return MT_OK;
    mt_routes_release(out);
    return mt_last_status();
}

/* ---- the op ---- */

typedef struct arguments {
    mt_group group;
    int64_t rows; /* of y */
    bool back;
} arguments;
_Static_assert(sizeof(arguments) <= sizeof((mti_params){0}.other), "arguments fit");

static arguments arguments_of(const mti_call *c)
{
    arguments a;
    memcpy(&a, c->params->other, sizeof a);
    return a;
}

static bool all_to_all_shape(mti_call *c)
{
    const arguments a = arguments_of(c);
    const mti_view *x = mti_in(c, 0), *sent = mti_in(c, 1), *received = mti_in(c, 2);
    char tx[MTI_SHAPE_TEXT], ts[MTI_SHAPE_TEXT], tr[MTI_SHAPE_TEXT];
    if (!mti_check_ranks(c, &a.group) || !mti_need_float(c, 0)) return false;
    bool fits = x->rank == 2 && sent->rank == 1 && received->rank == 2 && sent->dtype == MT_I32 &&
                received->dtype == MT_I32 && received->shape[0] == a.group.ranks &&
                sent->shape[0] == a.group.ranks * received->shape[1];
    if (!fits)
        return mti_fail_bool(MT_ERR_ARGUMENT,
                             "all_to_all: x is %s, sent %s, received %s; need [n,d], i32 [experts] "
                             "and i32 [%lld,experts/%lld]",
                             mti_shape_text(tx, x->rank, x->shape),
                             mti_shape_text(ts, sent->rank, sent->shape),
                             mti_shape_text(tr, received->rank, received->shape),
                             (long long)a.group.ranks, (long long)a.group.ranks);
    return mti_out_set(c, 0, x->dtype, 2, (const int64_t[]){a.rows, x->shape[1]});
}

/* On the host; mti_free `sent`, which holds both. */
typedef struct chunks {
    const mt_group *group;
    int64_t own;              /* experts of a rank */
    int32_t *sent, *received; /* [ranks, own] each */
    bool back;
} chunks;

static mti_span rows_of(const mti_view *v, int64_t from, int64_t n)
{
    const size_t row = (size_t)v->shape[1] * mt_dtype_size(v->dtype);
    return (mti_span){n ? (char *)v->data + (size_t)from * row : NULL, (size_t)n * row};
}

/* Sets comm->out and in to the chunks of each rank's jth expert. at[ranks + 1]: where they begin
 * among what is sorted by all experts; at last, among what is sorted by this rank's. */
static void find_chunks(const chunks *k, int64_t j, int64_t *at, const mti_view *all,
                        const mti_view *own)
{
    mt_comm *comm = k->group->comm;
    const int64_t ranks = k->group->ranks;
    for (int64_t r = 0; r < ranks; r++) {
        const int64_t i = r * k->own + j;
        const mti_span here = rows_of(all, at[r], k->sent[i]),
                       there = rows_of(own, at[ranks], k->received[i]);
        comm->out[r] = k->back ? there : here;
        comm->in[r] = k->back ? here : there;
        at[r] += k->sent[i];
        at[ranks] += k->received[i];
    }
}

/* x and y lie side by side. */
static bool send_chunks(mti_call *c, const chunks *k, const mti_view *x, const mti_view *y)
{
    const int64_t ranks = k->group->ranks;
    int64_t *at = mti_calloc((size_t)ranks + 1, sizeof *at);
    for (int64_t r = 1; at && r < ranks; r++) {
        at[r] = at[r - 1];
        for (int64_t j = 0; j < k->own; j++) at[r] += k->sent[(r - 1) * k->own + j];
    }
    bool ok = at && (!mti_has_links(c) || mti_join_links(c, k->group));
    for (int64_t j = 0; ok && j < k->own; j++) {
        find_chunks(k, j, at, k->back ? y : x, k->back ? x : y);
        ok = mti_has_links(c) ? mti_exchange_links(c, k->group) : mti_comm_exchange(k->group->comm);
    }
    mti_free(at);
    return ok;
}

/* Rows that are sent from here to others, of `list`; *sum: and to itself. */
static int64_t rows_to_others(const chunks *k, const int32_t *list, int64_t *sum)
{
    int64_t others = 0;
    *sum = 0;
    for (int64_t i = 0; i < k->group->ranks * k->own; i++) {
        *sum += list[i];
        if (i / k->own != k->group->rank) others += list[i];
    }
    return others;
}

static void count_rows(mti_call *c, const mti_view *x, int64_t rows)
{
    mti_count_sent(c, MTI_TO_EXPERTS, (uint64_t)(rows * x->shape[1]) * mt_dtype_size(x->dtype));
}

/* Inputs 1 and 2: how many rows are sent, and received. */
static bool move(mti_call *c, const mti_view *x, const mti_view *y, bool back)
{
    const arguments a = arguments_of(c);
    const mti_view *dense = mti_dense(c, x);
    const int64_t ranks = a.group.ranks, n = mti_view_count(&c->in_spec[1]);
    const size_t n_bytes = (size_t)n * sizeof(int32_t);
    int64_t n_sent, n_received;
    if (!dense) return false;
    if (ranks == 1) return c->k->copy(c->ctx, x, y);
    if (!mt_device_has_data(c->device))
        return count_rows(c, x, x->shape[0] * (ranks - 1) / ranks), true;
    chunks k = {&a.group, n / ranks, mti_malloc(2 * n_bytes), NULL, back};
    if (!k.sent) return false;
    k.received = k.sent + n;
    bool ok = mti_in_to_host(c, 1, k.sent, n_bytes) && mti_in_to_host(c, 2, k.received, n_bytes);
    if (ok) {
        const int64_t to = rows_to_others(&k, k.sent, &n_sent),
                      from = rows_to_others(&k, k.received, &n_received);
        count_rows(c, x, back ? from : to);
        ok = (n_sent == (back ? y : x)->shape[0] && n_received == (back ? x : y)->shape[0]) ||
             mti_fail_bool(MT_ERR_ARGUMENT,
                           "all_to_all: %lld rows to %lld, and counts of %lld sent and %lld "
                           "received",
                           (long long)x->shape[0], (long long)y->shape[0], (long long)n_sent,
                           (long long)n_received);
    }
    ok = ok && send_chunks(c, &k, dense, y);
    mti_free(k.sent);
    return ok;
}

static bool all_to_all_forward(mti_call *c)
{
    return move(c, mti_in(c, 0), mti_out(c, 0), arguments_of(c).back);
}

static bool all_to_all_backward(mti_call *c)
{
    const mti_view *dx = mti_din(c, 0);
    return dx && move(c, mti_dout(c), dx, !arguments_of(c).back);
}

const mti_op_code mti_code_all_to_all = {all_to_all_shape, all_to_all_forward, all_to_all_backward};

mt_tensor *mt_all_to_all(mt_tensor *x, const mt_routes *routes, bool back, const mt_group *group)
{
    if (!routes) return mti_fail_null(MT_ERR_ARGUMENT, "all_to_all: the routes are NULL");
    if (!mti_given(x, "all_to_all", "x") || !mti_check_group("all_to_all", group)) return NULL;
    const arguments a = {*group, back ? routes->n_sent : routes->n_received, back};
    mti_params params = {0};
    memcpy(params.other, &a, sizeof a);
    return mti_op3(&mti_op_all_to_all, &params, x, routes->sent, routes->received);
}

/* vocabulary.c: embedding and cross_entropy where each rank has some rows of the vocabulary's
 * table, or some columns of the logits, as Megatron-LM cuts them (Shoeybi et al. 2019).
 *
 * The loss: each rank finds log sum exp of its columns, and the target's logit if it has it; ranks
 * send each other these two numbers of each row, in f32 (f64 for f64), and each adds up the same in
 * the order of the ranks. What is kept is what cross_entropy keeps, of this rank's columns: the
 * log-probabilities and the targets. */
#include <math.h>
#include "ops/links.h"

/* ---- embedding ---- */

bool mti_own_rows(mti_call *c, const mti_view *index, int64_t rows, mti_view *own)
{
    int64_t first = c->params->embedding.first, all = c->params->embedding.rows;
    *own = mti_flat(index);
    if (!all) return true;
    size_t n_bytes = c->k->own_rows_scratch(c->ctx, own);
    return mti_scratch(c, n_bytes, &own->data) &&
           c->k->own_rows(c->ctx, first, rows, all, index, own);
}

/* ---- loss ---- */

/* Scratch: an f64; then for some rows targets, and two numbers of this rank and of each. */
typedef struct share {
    mti_call *c;
    mt_comm *comm;                        /* NULL: nothing moves */
    int64_t ranks, first, columns, width; /* own: first, without padding, with it */
    int64_t most;                         /* rows at a time */
    size_t size;                          /* of a number */
    mt_dtype stats;
    char *room;
} share;

static bool open_share(share *s, mti_call *c, const mti_view *x)
{
    const mt_group *group = &c->params->loss.group;
    mt_dtype stats = x->dtype == MT_F64 ? MT_F64 : MT_F32;
    size_t size = mt_dtype_size(stats);
    size_t row = sizeof(int64_t) + 2 * size * (size_t)(group->ranks + 1);
    size_t n_bytes = c->k->shared_entropy_scratch(c->ctx, x->shape[0], row);
    void *room;
    if (!mti_scratch_as(c, MT_COMMUNICATION, n_bytes, &room)) return false;
    *s = (share){.c = c,
                 .comm = mt_device_has_data(c->device) ? group->comm : NULL,
                 .ranks = group->ranks,
                 .width = x->shape[1],
                 .first = group->rank * x->shape[1],
                 .most = n_bytes ? (int64_t)((n_bytes - sizeof(double)) / row) : 0,
                 .size = size,
                 .stats = stats,
                 .room = room};
    int64_t left = c->params->loss.classes - s->first;
    s->columns = left < 0 ? 0 : left < s->width ? left : s->width;
    return true;
}

/* For the loss's sum, or the scale of its gradient. */
static mti_view one_number(const share *s, mt_dtype dtype)
{
    return (mti_view){.data = s->room, .dtype = dtype};
}

static mti_view vector(char *at, mt_dtype dtype, int64_t n)
{
    return (mti_view){.data = at, .dtype = dtype, .rank = 1, .shape = {n}, .stride = {1}};
}

/* Targets [i, i + n) as columns of this rank. */
static bool own_targets(const share *s, const mti_view *target, int64_t i, int64_t n, mti_view *own)
{
    mti_view some = mti_range(target, 0, i, n);
    *own = vector(s->room + sizeof(double), MT_I64, n);
    return s->c->k->own_targets(s->c->ctx, s->first, s->columns, s->c->params->loss.ignore, &some,
                                own);
}

/* Log sum exp of this rank's columns [n], and below it the part of the loss that is known here. */
static bool find_own(const share *s, const mti_view *x, const mti_view *target, const mti_view *lse)
{
    const mti_backend *k = s->c->k;
    int64_t n = lse->shape[0];
    mti_view loss = *lse, columns = mti_range(x, 1, 0, s->columns);
    loss.data = (char *)lse->data + (size_t)n * s->size;
    if (!s->columns) return k->fill(s->c->ctx, lse, -INFINITY) && k->fill(s->c->ctx, &loss, 0);
    return k->entropy_rows(s->c->ctx, MTI_IGNORED, &columns, target, lse, &loss);
}

/* own [2, n] to all [ranks, 2, n] */
static bool tell_others(const share *s, const mti_view *own, const mti_view *all)
{
    if (mti_has_links(s->c)) {
        const mti_params params = {.collective = {.group = s->c->params->loss.group}};
        mti_call call = *s->c;
        call.params = &params;
        return mti_gather_links(&call, 0, own, all);
    }
    size_t n_bytes = (size_t)mti_view_count(own) * s->size;
    for (int64_t r = 0; r < s->ranks; r++) {
        s->comm->out[r] = (mti_span){own->data, n_bytes};
        s->comm->in[r] = (mti_span){(char *)all->data + (size_t)r * n_bytes, n_bytes};
    }
    return mti_comm_exchange(s->comm);
}

/* Rows of x: their losses are added to the sum. */
static bool some_rows(const share *s, const mti_view *x, const mti_view *target, int64_t i,
                      const mti_view *logp)
{
    const mti_backend *k = s->c->k;
    int64_t n = x->shape[0];
    mti_view own, sum = one_number(s, MT_F64), all_targets = mti_range(target, 0, i, n);
    if (!own_targets(s, target, i, n, &own)) return false;
    mti_view lse = vector((char *)own.data + (size_t)n * sizeof(int64_t), s->stats, n), told = lse;
    told.shape[0] = 2 * n;
    mti_view all = vector((char *)lse.data + 2 * (size_t)n * s->size, s->stats, 2 * n * s->ranks);
    return find_own(s, x, &own, &lse) && tell_others(s, &told, &all) &&
           k->join_entropy(s->c->ctx, s->c->params->loss.ignore, s->width, &all_targets, &all, &lse,
                           &sum) &&
           k->log_probabilities(s->c->ctx, x, &lse, logp);
}

bool mti_ranks_entropy(mti_call *c, const mti_view *x, const mti_view *target, const mti_view *logp)
{
    share s;
    int64_t n = x->shape[0];
    if (!open_share(&s, c, x)) return false;
    mti_count_sent(c, MTI_TO_LAYERS, 2 * (uint64_t)n * s.size * (uint64_t)(s.ranks - 1));
    c->sends = false; /* its tensors are read and written here, too */
    if (!s.comm) return true;
    const mti_view sum = one_number(&s, MT_F64);
    if (!c->k->fill(c->ctx, &sum, 0)) return false;
    for (int64_t i = 0, m; i < n; i += m) {
        m = n - i < s.most ? n - i : s.most;
        mti_view x_rows = mti_range(x, 0, i, m), logp_rows = mti_range(logp, 0, i, m);
        if (!some_rows(&s, &x_rows, target, i, &logp_rows)) return false;
    }
    return c->k->counted_mean(c->ctx, c->params->loss.ignore, c->params->loss.classes, target, &sum,
                              mti_out(c, 0));
}

bool mti_ranks_entropy_backward(mti_call *c, const mti_view *logp, const mti_view *target,
                                const mti_view *dx)
{
    share s;
    int64_t n = dx->shape[0];
    if (!open_share(&s, c, dx)) return false;
    if (!s.comm) return true;
    const mti_view scale = one_number(&s, s.stats);
    if (!c->k->counted_mean(c->ctx, c->params->loss.ignore, c->params->loss.classes, target,
                            mti_dout(c), &scale))
        return false;
    mti_view padding = mti_range(dx, 1, s.columns, s.width - s.columns);
    if (padding.shape[1] && !c->k->fill(c->ctx, &padding, 0)) return false;
    for (int64_t i = 0, m; s.columns && i < n; i += m) {
        m = n - i < s.most ? n - i : s.most;
        mti_view own, from = mti_range(logp, 0, i, m), to = mti_range(dx, 0, i, m);
        from = mti_range(&from, 1, 0, s.columns), to = mti_range(&to, 1, 0, s.columns);
        if (!own_targets(&s, target, i, m, &own) ||
            !c->k->entropy_rows_backward(c->ctx, MTI_IGNORED, 0, &from, &own, NULL, &scale, &to))
            return false;
    }
    return true;
}

/* vocabulary.c: embedding and cross_entropy where each rank has some rows of the vocabulary's
 * table, or some columns of the logits, as Megatron-LM cuts them (Shoeybi et al. 2019). On memory
 * that the host can read.
 *
 * The loss: each rank finds log sum exp of its columns, and the target's logit if it has it; ranks
 * send each other these two numbers of each row, in f32 (f64 for f64), and each adds up the same in
 * the order of the ranks. What is kept is what cross_entropy keeps, of this rank's columns: the
 * log-probabilities and the targets. */
#include <math.h>
#include <string.h>
#include "comm/comm.h"
#include "ops/ops.h"

/* ---- embedding ---- */

bool mti_can_own_rows(const mti_call *c)
{
    const char *kind = mt_device_kind(c->device);
    return !c->params->embedding.rows || !mt_device_has_data(c->device) || !strcmp(kind, "cpu") ||
           mti_fail_bool(MT_ERR_UNSUPPORTED,
                         "embedding: a part of the table on %s; need cpu, or a device without data",
                         kind);
}

static bool refuse_index(int64_t i, int64_t index, int64_t rows)
{
    return mti_fail_bool(MT_ERR_ARGUMENT,
                         "embedding: index[%lld] is %lld; the table has rows 0 to %lld",
                         (long long)i, (long long)index, (long long)rows - 1);
}

/* The kernel finds every bad index but one: it takes MTI_NO_ROW for a row of another rank. */
static bool check_whole(const mti_call *c, const mti_view *index, int64_t rows)
{
    if (strcmp(mt_device_kind(c->device), "cpu") != 0) return true;
    const int64_t *from = index->data;
    for (int64_t i = 0, n = mti_view_count(index); i < n; i++)
        if (from[i] == MTI_NO_ROW) return refuse_index(i, from[i], rows);
    return true;
}

bool mti_own_rows(mti_call *c, const mti_view *index, int64_t rows, mti_view *own)
{
    int64_t first = c->params->embedding.first, all = c->params->embedding.rows;
    int64_t n = mti_view_count(index);
    void *room;
    *own = mti_flat(index);
    if (!all) return check_whole(c, index, rows);
    size_t n_bytes = c->k->exchange_scratch(c->ctx, 1) ? (size_t)n * sizeof(int64_t) : 0;
    if (!mti_scratch(c, n_bytes, &room)) return false;
    if (!mt_device_has_data(c->device)) return true;
    const int64_t *from = index->data;
    int64_t *to = room;
    for (int64_t i = 0; i < n; i++) {
        bool is_row = from[i] >= 0 && from[i] < all,
             here = from[i] >= first && from[i] < first + rows;
        to[i] = here ? from[i] - first : is_row ? MTI_NO_ROW : from[i] < 0 ? from[i] : rows;
        if (!is_row) return refuse_index(i, from[i], all);
    }
    own->data = to;
    return true;
}

/* ---- loss ---- */

bool mti_can_share_classes(const mti_call *c)
{
    return mti_check_ranks(c, &c->params->loss.group) &&
           (!mti_has_links(c) ||
            mti_fail_bool(MT_ERR_UNSUPPORTED,
                          "cross_entropy: %lld ranks with a part of the classes each on %s; need "
                          "cpu, or a device without data",
                          (long long)c->params->loss.group.ranks, mt_device_kind(c->device)));
}

#define IGNORED   INT64_MIN
#define ELSEWHERE INT64_MAX /* another rank has the target's column */

/* Scratch: for some rows targets, then two numbers of this rank and of each; then a tile in f32. */
typedef struct share {
    mti_call *c;
    mt_comm *comm;                        /* NULL: nothing moves */
    int64_t ranks, first, columns, width; /* own: first, without padding, with it */
    int64_t most;                         /* rows at a time */
    size_t size, piece;                   /* of a number; of the tile */
    mt_dtype stats;
    char *room;
} share;

static bool open_share(share *s, mti_call *c, const mti_view *x)
{
    const mt_group *group = &c->params->loss.group;
    int64_t classes = c->params->loss.classes, pieces = group->ranks + 4;
    size_t n_bytes = c->k->exchange_scratch(c->ctx, pieces);
    void *room;
    if (!mti_scratch(c, n_bytes, &room)) return false;
    *s = (share){.c = c,
                 .comm = mt_device_has_data(c->device) ? group->comm : NULL,
                 .ranks = group->ranks,
                 .width = x->shape[1],
                 .first = group->rank * x->shape[1],
                 .piece = n_bytes / (size_t)pieces,
                 .stats = x->dtype == MT_F64 ? MT_F64 : MT_F32,
                 .room = room};
    s->size = mt_dtype_size(s->stats);
    int64_t left = classes - s->first;
    s->columns = left < 0 ? 0 : left < s->width ? left : s->width;
    size_t row = sizeof(int64_t) + 2 * s->size * (size_t)(s->ranks + 1);
    s->most = (int64_t)((n_bytes - s->piece) / row);
    return true;
}

static mti_view vector(const share *s, size_t at, mt_dtype dtype, int64_t n)
{
    return (mti_view){.data = s->room + at, .dtype = dtype, .rank = 1, .shape = {n}, .stride = {1}};
}

/* Targets [i, i + n) as columns of this rank. */
static mti_view own_targets(const share *s, const mti_view *target, int64_t i, int64_t n)
{
    const int64_t *from = (const int64_t *)target->data + i;
    int64_t *to = (int64_t *)(void *)s->room;
    for (int64_t r = 0; r < n; r++) {
        int64_t column = from[r] - s->first;
        bool here = column >= 0 && column < s->columns;
        to[r] = from[r] == s->c->params->loss.ignore ? IGNORED : here ? column : ELSEWHERE;
    }
    return vector(s, 0, MT_I64, n);
}

static double number(const share *s, const void *at, int64_t i)
{
    return s->stats == MT_F64 ? ((const double *)at)[i] : (double)((const float *)at)[i];
}

/* Log sum exp of this rank's columns [n], and below it the part of the loss that is known here. */
static bool find_own(const share *s, const mti_view *x, const mti_view *target, const mti_view *lse)
{
    const mti_backend *k = s->c->k;
    int64_t n = lse->shape[0];
    mti_view loss = *lse, columns = mti_range(x, 1, 0, s->columns);
    loss.data = (char *)lse->data + (size_t)n * s->size;
    if (!s->columns) return k->fill(s->c->ctx, lse, -INFINITY) && k->fill(s->c->ctx, &loss, 0);
    return k->entropy_rows(s->c->ctx, IGNORED, &columns, target, lse, &loss);
}

static bool tell_others(const share *s, const mti_view *lse, char *all)
{
    size_t n_bytes = 2 * (size_t)lse->shape[0] * s->size;
    for (int64_t r = 0; r < s->ranks; r++) {
        s->comm->out[r] = (mti_span){lse->data, n_bytes};
        s->comm->in[r] = (mti_span){all + (size_t)r * n_bytes, n_bytes};
    }
    return mti_comm_exchange(s->comm);
}

/* Sets lse to that of all columns; adds the rows' losses to *sum. */
static void combine(const share *s, const int64_t *target, const mti_view *lse, const char *all,
                    double *sum)
{
    int64_t n = lse->shape[0];
    for (int64_t i = 0; i < n; i++) {
        double top = -INFINITY, total = 0, of_all;
        for (int64_t r = 0; r < s->ranks; r++) top = fmax(top, number(s, all, 2 * r * n + i));
        for (int64_t r = 0; r < s->ranks; r++) total += exp(number(s, all, 2 * r * n + i) - top);
        of_all = top + log(total);
        int64_t owner = target[i] / s->width;
        if (s->stats == MT_F64)
            ((double *)lse->data)[i] = of_all;
        else
            ((float *)lse->data)[i] = (float)of_all;
        if (target[i] == s->c->params->loss.ignore || target[i] < 0 || owner >= s->ranks) continue;
        double logit = number(s, all, 2 * owner * n + i) - number(s, all, (2 * owner + 1) * n + i);
        *sum += of_all - logit;
    }
}

/* logp = x - lse, in f32 for 16-bit x, by tiles. */
static bool subtract(const share *s, const mti_view *x, const mti_view *lse, const mti_view *logp)
{
    const mti_backend *k = s->c->k;
    mti_ctx *ctx = s->c->ctx;
    bool narrow = mt_dtype_size(x->dtype) == 2;
    int64_t n = x->shape[0], v = x->shape[1], fit = (int64_t)(s->piece / sizeof(float));
    int64_t columns = narrow && fit < v ? fit : v, rows = narrow && columns ? fit / columns : n;
    for (int64_t i = 0; i < n; i += rows)
        for (int64_t j = 0; j < v; j += columns) {
            mti_view from = mti_range(x, 0, i, n - i < rows ? n - i : rows), by = *lse;
            from = mti_range(&from, 1, j, v - j < columns ? v - j : columns);
            mti_view to = mti_range(logp, 0, i, from.shape[0]), tile = to;
            to = mti_range(&to, 1, j, from.shape[1]);
            by = mti_range(&by, 0, i, from.shape[0]);
            by.rank = 2, by.shape[1] = from.shape[1], by.stride[1] = 0;
            if (narrow)
                tile = (mti_view){.data = s->room + (size_t)(s->ranks + 3) * s->piece,
                                  .dtype = MT_F32,
                                  .rank = 2,
                                  .shape = {from.shape[0], from.shape[1]},
                                  .stride = {from.shape[1], 1}};
            bool ok = narrow ? k->copy(ctx, &from, &tile) &&
                                   k->binary(ctx, MTI_SUB, &tile, &by, &tile) &&
                                   k->copy(ctx, &tile, &to)
                             : k->binary(ctx, MTI_SUB, &from, &by, &to);
            if (!ok) return false;
        }
    return true;
}

bool mti_ranks_entropy(mti_call *c, const mti_view *x, const mti_view *target, const mti_view *logp)
{
    share s;
    double sum = 0;
    int64_t n = x->shape[0];
    if (!open_share(&s, c, x)) return false;
    mti_count_sent(c, MTI_TO_LAYERS, 2 * (uint64_t)n * s.size * (uint64_t)(s.ranks - 1));
    c->sends = false; /* its tensors are read and written here, too */
    for (int64_t i = 0, m; s.comm && i < n; i += m) {
        m = n - i < s.most ? n - i : s.most;
        const int64_t *all_targets = (const int64_t *)target->data + i;
        mti_view x_rows = mti_range(x, 0, i, m), logp_rows = mti_range(logp, 0, i, m);
        mti_view own = own_targets(&s, target, i, m);
        mti_view lse = vector(&s, (size_t)m * sizeof(int64_t), s.stats, m);
        char *all = (char *)lse.data + 2 * (size_t)m * s.size;
        if (!find_own(&s, &x_rows, &own, &lse) || !tell_others(&s, &lse, all)) return false;
        combine(&s, all_targets, &lse, all, &sum);
        if (!subtract(&s, &x_rows, &lse, &logp_rows)) return false;
    }
    const mti_view total = {.data = &sum, .dtype = MT_F64};
    return !s.comm || c->k->counted_mean(c->ctx, c->params->loss.ignore, c->params->loss.classes,
                                         target, &total, mti_out(c, 0));
}

bool mti_ranks_entropy_backward(mti_call *c, const mti_view *logp, const mti_view *target,
                                const mti_view *dx)
{
    share s;
    double room;
    int64_t n = dx->shape[0];
    if (!open_share(&s, c, dx)) return false;
    const mti_view scale = {.data = &room, .dtype = s.stats};
    if (!s.comm) return true;
    if (!c->k->counted_mean(c->ctx, c->params->loss.ignore, c->params->loss.classes, target,
                            mti_dout(c), &scale))
        return false;
    mti_view padding = mti_range(dx, 1, s.columns, s.width - s.columns);
    if (padding.shape[1] && !c->k->fill(c->ctx, &padding, 0)) return false;
    for (int64_t i = 0, m; s.columns && i < n; i += m) {
        m = n - i < s.most ? n - i : s.most;
        mti_view own = own_targets(&s, target, i, m);
        mti_view from = mti_range(logp, 0, i, m), to = mti_range(dx, 0, i, m);
        from = mti_range(&from, 1, 0, s.columns), to = mti_range(&to, 1, 0, s.columns);
        if (!c->k->entropy_rows_backward(c->ctx, IGNORED, 0, &from, &own, NULL, &scale, &to))
            return false;
    }
    return true;
}

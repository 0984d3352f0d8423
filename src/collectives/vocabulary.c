/* vocabulary.c: cross_entropy where each rank has some columns of the logits, as Megatron-LM cuts
 * the vocabulary (Shoeybi et al. 2019).
 *
 * Each rank finds log sum exp of its columns, and the target's logit if it has it; ranks send each
 * other these two numbers of each row, in f32 (f64 for f64), and each adds up the same in the order
 * of the ranks. What is kept is what cross_entropy keeps, of this rank's columns: the
 * log-probabilities and the targets. */
#include <math.h>
#include <string.h>
#include "collectives/links.h"

typedef struct arguments {
    int64_t ignore, classes; /* of all ranks together */
    mt_group group;
} arguments;

static arguments arguments_of(const mti_call *c)
{
    arguments a;
    memcpy(&a, c->params->other, sizeof a);
    return a;
}

/* Scratch: an f64; then for some rows targets, and two numbers of this rank and of each. */
typedef struct share {
    mti_call *c;
    arguments of;
    mt_comm *comm;                        /* NULL: nothing moves */
    int64_t ranks, first, columns, width; /* own: first, without padding, with it */
    int64_t most;                         /* rows at a time */
    size_t size;                          /* of a number */
    mt_dtype stats;
    char *room;
} share;

static bool open_share(share *s, mti_call *c, const mti_view *x)
{
    const arguments of = arguments_of(c);
    const mt_group *group = &of.group;
    mt_dtype stats = x->dtype == MT_F64 ? MT_F64 : MT_F32;
    size_t size = mt_dtype_size(stats);
    size_t row = sizeof(int64_t) + 2 * size * (size_t)(group->ranks + 1);
    size_t n_bytes = c->k->shared_entropy_scratch(c->ctx, x->shape[0], row);
    void *room;
    if (!mti_scratch_as(c, MT_COMMUNICATION, n_bytes, &room)) return false;
    *s = (share){.c = c,
                 .of = of,
                 .comm = mt_device_has_data(c->device) ? group->comm : NULL,
                 .ranks = group->ranks,
                 .width = x->shape[1],
                 .first = group->rank * x->shape[1],
                 .most = n_bytes ? (int64_t)((n_bytes - sizeof(double)) / row) : 0,
                 .size = size,
                 .stats = stats,
                 .room = room};
    int64_t left = of.classes - s->first;
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
    return s->c->k->own_targets(s->c->ctx, s->first, s->columns, s->of.ignore, &some, own);
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
    if (mti_has_links(s->c)) return mti_gather_links(s->c, &s->of.group, 0, own, all);
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
           k->join_entropy(s->c->ctx, s->of.ignore, s->width, &all_targets, &all, &lse, &sum) &&
           k->log_probabilities(s->c->ctx, x, &lse, logp);
}

static bool entropy(mti_call *c, const mti_view *x, const mti_view *target, const mti_view *logp)
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
    return c->k->counted_mean(c->ctx, s.of.ignore, s.of.classes, target, &sum, mti_out(c, 0));
}

static bool entropy_backward(mti_call *c, const mti_view *logp, const mti_view *target,
                             const mti_view *dx)
{
    share s;
    int64_t n = dx->shape[0];
    if (!open_share(&s, c, dx)) return false;
    if (!s.comm) return true;
    const mti_view scale = one_number(&s, s.stats);
    if (!c->k->counted_mean(c->ctx, s.of.ignore, s.of.classes, target, mti_dout(c), &scale))
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

/* ---- the op ---- */

static bool shape(mti_call *c)
{
    const arguments a = arguments_of(c);
    return mti_code_cross_entropy.shape(c) && mti_check_ranks(c, &a.group);
}

static bool forward(mti_call *c)
{
    const mti_view *x = mti_dense(c, mti_in(c, 0)), *t = mti_dense(c, mti_in(c, 1));
    if (!x || !t) return false;
    mti_view x2 = mti_rows(x), t1 = mti_flat(t), logp = mti_rows(mti_aux(c, 0));
    return entropy(c, &x2, &t1, &logp);
}

static bool backward(mti_call *c)
{
    const mti_view *t = mti_dense(c, mti_saved(c, MTI_IN1)), *dx = mti_din(c, 0);
    if (!t || !dx) return false;
    mti_view logp = mti_rows(mti_saved(c, MTI_AUX0)), t1 = mti_flat(t), dx2 = mti_rows(dx);
    return entropy_backward(c, &logp, &t1, &dx2);
}

/* Not a row of a table: it is cross_entropy, with other code. */
static const mti_op_code code = {shape, forward, backward};
static const mti_op among_ranks = {.name = "cross_entropy",
                                   .n_in = 2,
                                   .n_aux = 1,
                                   .keep = {MTI_IN1 | MTI_AUX0},
                                   .flags = MTI_FULL,
                                   .in = {"logits", "target"},
                                   .out = {"loss"},
                                   .aux = {"logp"},
                                   .code = &code};

mt_tensor *mti_cross_entropy_part(mt_tensor *logits, mt_tensor *target, int64_t ignore,
                                  int64_t classes, const mt_group *group)
{
    if (!mti_given(logits, "cross_entropy_part", "the logits") ||
        !mti_given(target, "cross_entropy_part", "the target") ||
        !mti_check_group("cross_entropy_part", group))
        return NULL;
    int64_t v = logits->view.rank ? logits->view.shape[logits->view.rank - 1] : 0;
    if (classes < 1 || v < 1 || (classes - 1) / v >= group->ranks)
        return mti_fail_null(MT_ERR_ARGUMENT,
                             "cross_entropy_part: %lld classes among %lld ranks of %lld; need 1 or "
                             "more, and no more than there are columns",
                             (long long)classes, (long long)group->ranks, (long long)v);
    if (group->ranks == 1) return mt_cross_entropy(logits, target, ignore);
    const arguments a = {ignore, classes, *group};
    mti_params params = {0};
    memcpy(params.other, &a, sizeof a);
    return mti_op2(&among_ranks, &params, logits, target);
}

/* vocabulary.c: cross_entropy where each rank has some columns of the logits, as Megatron-LM cuts
 * the vocabulary (Shoeybi et al. 2019).
 *
 * Each rank finds log sum exp of its columns, and the target's logit if it has it; ranks send each
 * other these two numbers of each row, in f32 (f64 for f64), and each adds up the same in the order
 * of the ranks. What is kept is what cross_entropy keeps, of this rank's columns: the
 * log-probabilities and the targets; or what cross_entropy_lse does: the logits, and log sum exp of
 * all columns. */
#include <math.h>
#include <string.h>
#include "collectives/links.h"

typedef struct arguments {
    int64_t ignore, classes; /* of all ranks together */
    mt_group group;
    mti_entropy_options options;
} arguments;

static arguments arguments_of(const mti_call *c)
{
    arguments a;
    memcpy(&a, c->params->other, sizeof a);
    return a;
}

/* Scratch: an f64; then for some rows targets, and two numbers of this rank and of each. */
typedef struct shard {
    mti_call *c;
    arguments of;
    mt_comm *comm;                        /* NULL: nothing moves */
    int64_t ranks, first, columns, width; /* own: first, without padding, with it */
    int64_t most;                         /* rows at a time */
    size_t size;                          /* of a number */
    mt_dtype stats;
    char *room;
} shard;

static bool open_shard(shard *s, mti_call *c, const mti_view *x)
{
    const arguments of = arguments_of(c);
    const mt_group *group = &of.group;
    mt_dtype stats = x->dtype == MT_F64 ? MT_F64 : MT_F32;
    size_t size = mt_dtype_size(stats);
    size_t row = sizeof(int64_t) + 2 * size * (size_t)(group->ranks + 1);
    size_t n_bytes = c->k->shared_entropy_scratch(c->ctx, x->shape[0], row);
    void *room;
    if (!mti_scratch_as(c, MT_COMMUNICATION, n_bytes, &room)) return false;
    *s = (shard){.c = c,
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
static mti_view one_number(const shard *s, mt_dtype dtype)
{
    return (mti_view){.data = s->room, .dtype = dtype};
}

static mti_view vector(char *at, mt_dtype dtype, int64_t n)
{
    return (mti_view){.data = at, .dtype = dtype, .rank = 1, .shape = {n}, .stride = {1}};
}

/* Targets [i, i + n) as columns of this rank. */
static bool own_targets(const shard *s, const mti_view *target, int64_t i, int64_t n, mti_view *own)
{
    mti_view some = mti_range(target, 0, i, n);
    *own = vector(s->room + sizeof(double), MT_I64, n);
    return s->c->k->own_targets(s->c->ctx, s->first, s->columns, s->of.ignore, &some, own);
}

/* Log sum exp of this rank's columns [n], and below it the part of the loss that is known here. */
static bool find_own(const shard *s, const mti_view *x, const mti_view *target, const mti_view *lse)
{
    const mti_backend *k = s->c->k;
    int64_t n = lse->shape[0];
    mti_view loss = *lse, columns = mti_range(x, 1, 0, s->columns);
    loss.data = (char *)lse->data + (size_t)n * s->size;
    if (!s->columns) return k->fill(s->c->ctx, lse, -INFINITY) && k->fill(s->c->ctx, &loss, 0);
    return k->entropy_rows(s->c->ctx, MTI_IGNORED, &columns, target, lse, &loss);
}

/* own [2, n] to all [ranks, 2, n] */
static bool tell_others(const shard *s, const mti_view *own, const mti_view *all)
{
    if (mti_has_links(s->c)) return mti_gather_links(s->c, &s->of.group, 0, own, all);
    size_t n_bytes = (size_t)mti_view_count(own) * s->size;
    for (int64_t r = 0; r < s->ranks; r++) {
        s->comm->out[r] = (mti_span){own->data, n_bytes};
        s->comm->in[r] = (mti_span){(char *)all->data + (size_t)r * n_bytes, n_bytes};
    }
    return mti_comm_exchange(s->comm);
}

/* Rows of x: their losses are added to the sum. kept: rows of log-probabilities, or log sum exp. */
static bool some_rows(const shard *s, const mti_view *x, const mti_view *target, int64_t i,
                      const mti_view *kept)
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
           (s->of.options.keep_logits ? k->copy(s->c->ctx, &lse, kept)
                                      : k->log_probabilities(s->c->ctx, x, &lse, kept));
}

static bool entropy(mti_call *c, const mti_view *x, const mti_view *target, const mti_view *kept)
{
    shard s;
    int64_t n = x->shape[0];
    if (!open_shard(&s, c, x)) return false;
    mti_count_sent(c, MTI_TO_LAYERS, 2 * (uint64_t)n * s.size * (uint64_t)(s.ranks - 1));
    c->sends = false; /* its tensors are read and written here, too */
    if (!s.comm) return true;
    const mti_view sum = one_number(&s, MT_F64);
    if (!c->k->fill(c->ctx, &sum, 0)) return false;
    for (int64_t i = 0, m; i < n; i += m) {
        m = n - i < s.most ? n - i : s.most;
        mti_view x_rows = mti_range(x, 0, i, m), kept_rows = mti_range(kept, 0, i, m);
        if (!some_rows(&s, &x_rows, target, i, &kept_rows)) return false;
    }
    /* the mean is made for a sum, too, because it checks the targets */
    return c->k->counted_mean(c->ctx, s.of.ignore, s.of.classes, target, &sum, mti_out(c, 0)) &&
           (!s.of.options.sum || c->k->copy(c->ctx, &sum, mti_out(c, 0)));
}

/* dx of rows from the ith on as PyTorch's loss_parallel makes it: from exp(logp) in one tensor and
 * minus the onehot in another. */
static bool rows_apart(const shard *s, const mti_view *logp, const mti_view *target,
                       const mti_view *scale, mt_tensor *const apart[2], int64_t i,
                       const mti_view *dx)
{
    const mti_backend *k = s->c->k;
    shard nothing = *s;
    mti_view own, rows[2];
    nothing.columns = 0; /* no target is among them */
    for (int t = 0; t < 2; t++) {
        rows[t] = mti_range(&apart[t]->view, 0, i, dx->shape[0]);
        rows[t] = mti_range(&rows[t], 1, 0, dx->shape[1]);
    }
    return own_targets(&nothing, target, i, dx->shape[0], &own) &&
           k->entropy_rows_backward(s->c->ctx, MTI_IGNORED, 0, logp, &own, NULL, scale, &rows[0]) &&
           own_targets(s, target, i, dx->shape[0], &own) &&
           k->fill(s->c->ctx, &rows[1], -INFINITY) &&
           k->entropy_rows_backward(s->c->ctx, MTI_IGNORED, 0, &rows[1], &own, NULL, scale,
                                    &rows[1]) &&
           k->binary(s->c->ctx, MTI_ADD, &rows[0], &rows[1], dx);
}

/* kept: what forward kept. lse: NULL if these are log-probabilities. */
static bool entropy_backward(mti_call *c, const mti_view *kept, const mti_view *lse,
                             const mti_view *target, const mti_view *dx)
{
    shard s;
    int64_t n = dx->shape[0];
    mt_tensor *apart[2] = {NULL};
    if (!open_shard(&s, c, dx)) return false;
    for (int i = 0; i < 2 && s.of.options.apart; i++)
        if (!(apart[i] = mti_temp(c, dx->dtype, dx->rank, dx->shape))) return false;
    if (!s.comm) return true;
    const mti_view scale = one_number(&s, s.stats);
    if (!(s.of.options.sum
              ? c->k->copy(c->ctx, mti_dout(c), &scale)
              : c->k->counted_mean(c->ctx, s.of.ignore, s.of.classes, target, mti_dout(c), &scale)))
        return false;
    mti_view padding = mti_range(dx, 1, s.columns, s.width - s.columns);
    if (padding.shape[1] && !c->k->fill(c->ctx, &padding, 0)) return false;
    for (int64_t i = 0, m; s.columns && i < n; i += m) {
        m = n - i < s.most ? n - i : s.most;
        mti_view own, some = lse ? mti_range(lse, 0, i, m) : scale;
        mti_view from = mti_range(kept, 0, i, m), to = mti_range(dx, 0, i, m);
        from = mti_range(&from, 1, 0, s.columns), to = mti_range(&to, 1, 0, s.columns);
        if (*apart ? !rows_apart(&s, &from, target, &scale, apart, i, &to)
                   : !own_targets(&s, target, i, m, &own) ||
                         !c->k->entropy_rows_backward(c->ctx, MTI_IGNORED, 0, &from, &own,
                                                      lse ? &some : NULL, &scale, &to))
            return false;
    }
    return true;
}

/* ---- the op ---- */

static bool shape(mti_call *c)
{
    const arguments a = arguments_of(c);
    const mti_view *x = mti_in(c, 0);
    const mt_dtype stats = x->dtype == MT_F64 ? MT_F64 : MT_F32;
    return mti_code_cross_entropy.shape(c) && mti_check_ranks(c, &a.group) &&
           (!a.options.keep_logits || mti_aux_set(c, 0, stats, x->rank - 1, x->shape)) &&
           (!a.options.sum || mti_out_set(c, 0, stats, 0, x->shape));
}

static bool forward(mti_call *c)
{
    const mti_view *x = mti_dense(c, mti_in(c, 0)), *t = mti_dense(c, mti_in(c, 1));
    if (!x || !t) return false;
    const mti_view *aux = mti_aux(c, 0);
    mti_view x2 = mti_as_rows(x), t1 = mti_flat(t);
    mti_view kept = arguments_of(c).options.keep_logits ? mti_flat(aux) : mti_as_rows(aux);
    return entropy(c, &x2, &t1, &kept);
}

static bool backward(mti_call *c)
{
    const mti_view *t = mti_dense(c, mti_saved(c, MTI_IN1)), *dx = mti_din(c, 0);
    if (!t || !dx) return false;
    mti_view logp = mti_as_rows(mti_saved(c, MTI_AUX0)), t1 = mti_flat(t), dx2 = mti_as_rows(dx);
    return entropy_backward(c, &logp, NULL, &t1, &dx2);
}

static bool backward_of_logits(mti_call *c)
{
    const mti_view *x = mti_dense(c, mti_saved(c, MTI_IN0)), *dx = mti_din(c, 0),
                   *t = mti_dense(c, mti_saved(c, MTI_IN1));
    if (!x || !t || !dx) return false;
    mti_view lse = mti_flat(mti_saved(c, MTI_AUX0)), x2 = mti_as_rows(x), t1 = mti_flat(t),
             dx2 = mti_as_rows(dx);
    return entropy_backward(c, &x2, &lse, &t1, &dx2);
}

/* Not rows of a table: they are cross_entropy and cross_entropy_lse, with other code. */
static const mti_op_code code = {shape, forward, backward};
static const mti_op_code code_of_logits = {shape, forward, backward_of_logits};
static const mti_op among_ranks[] = {{.name = "cross_entropy",
                                      .n_in = 2,
                                      .n_aux = 1,
                                      .keep = {MTI_IN1 | MTI_AUX0},
                                      .flags = MTI_FULL,
                                      .in = {"logits", "target"},
                                      .out = {"loss"},
                                      .aux = {"logp"},
                                      .code = &code},
                                     {.name = "cross_entropy_lse",
                                      .n_in = 2,
                                      .n_aux = 1,
                                      .keep = {MTI_IN0 | MTI_IN1 | MTI_AUX0},
                                      .flags = MTI_FULL,
                                      .in = {"logits", "target"},
                                      .out = {"loss"},
                                      .aux = {"lse"},
                                      .code = &code_of_logits}};

mt_tensor *mti_cross_entropy_shard(mt_tensor *logits, mt_tensor *target, int64_t ignore,
                                   int64_t classes, const mt_group *group,
                                   const mti_entropy_options *options)
{
    const mti_entropy_options o = options ? *options : (mti_entropy_options){0};
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
    const mt_cross_entropy_options alone = {.keep_logits = o.keep_logits, .sum = o.sum};
    if (group->ranks == 1) return mt_cross_entropy_with(logits, target, ignore, &alone);
    const arguments a = {ignore, classes, *group, o};
    mti_params params = {0};
    memcpy(params.other, &a, sizeof a);
    return mti_op2(&among_ranks[o.keep_logits], &params, logits, target);
}

/* mtp.c: multi-token prediction (DeepSeek-AI 2024, 2.2), as Megatron-Core has it. Module k, from 1
 * on, makes of h [b,s,d], what the head of prediction k - 1 gets, and of the tokens k places ahead
 *
 *     ln(block(eh_proj [enorm(embedding), hnorm(h)]))
 *
 * of which the model's own head predicts the token k + 1 places ahead. The last k positions have no
 * such token: theirs is 0, and their target ignored. loss = the model's + mtp_loss times the mean
 * of the modules'. Only training runs them.
 *
 * Ranks with a shard of every sequence each gather tokens and targets, for those of the next shard;
 * the loss of each counts as much as it has targets. */
#include <stdio.h>
#include "nn/model.h"
#include "memtape/ops.h"
#include "collectives/collectives.h"

/* User data of such a module. */
typedef struct mtp {
    mt_tensor *hidden; /* borrowed while a forward runs */
} mtp;

static mt_tensor *mtp_forward(mt_module *self, mt_tensor *embedded)
{
    const mtp *user = mt_module_user(self);
    mt_tensor *part[2] = {mt_forward_child(self, "enorm", embedded), NULL};
    part[1] = part[0] ? mt_forward_child(self, "hnorm", user->hidden) : NULL;
    mt_tensor *y = part[1] ? mt_cat(2, part, -1) : NULL;
    mt_release(part[0]), mt_release(part[1]);
    mt_set(&y, mt_forward_child(self, "eh_proj", y));
    mt_set(&y, mt_forward_child(self, "block", y));
    if (y && mt_module_child(self, "ln")) mt_set(&y, mt_forward_child(self, "ln", y));
    return y;
}

const char *mti_mtp_name(char name[MTI_LAYER_NAME], int64_t k)
{
    snprintf(name, MTI_LAYER_NAME, "mtp.%lld", (long long)k);
    return name;
}

mt_module *mti_add_mtp_module(mt_module *m, int64_t k, mt_device *device, const mt_model_config *c)
{
    char name[MTI_LAYER_NAME];
    mt_model_config plain = *c;
    plain.no_bias = true;
    plain.qkv_bias = false;
    mtp *user = mti_calloc(1, sizeof *user);
    mt_module *own = user ? mt_module_new("mtp", mtp_forward, user, mti_free) : NULL;
    const bool ok =
        own && mti_add_norm(own, "enorm", device, c) && mti_add_norm(own, "hnorm", device, c) &&
        (c->norm == MT_NORM_POST || mti_add_norm(own, "ln", device, c)) &&
        mti_add_linear(own, "eh_proj", device, &plain, 2 * c->hidden, c->hidden, MTI_INIT_STD);
    return mt_module_add_child(m, mti_mtp_name(name, k), mti_module_complete(own, ok));
}

mt_tensor *mti_shift(mt_tensor *x, int dim, int64_t n, double fill)
{
    int64_t shape[MT_MAX_RANK];
    const int64_t length = mt_shape(x)[dim];
    for (int d = 0; d < mt_rank(x); d++) shape[d] = mt_shape(x)[d];
    shape[dim] = n;
    mt_tensor *part[2] = {mt_slice(x, dim, n, length - n), NULL};
    part[1] = part[0] ? mt_full(mt_device_of(x), mt_dtype_of(x), mt_rank(x), shape, fill) : NULL;
    mt_tensor *y = part[1] ? mt_cat(2, part, dim) : NULL;
    mt_release(part[0]), mt_release(part[1]);
    return y;
}

/* What is k places ahead of each of x [b,s], `fill` after the last. */
static mt_tensor *places_ahead(const mti_ahead *a, mt_tensor *x, int64_t k, double fill)
{
    const int64_t s = mt_shape(x)[1];
    if (a->shards.ranks < 2) return mti_shift(x, 1, k, fill);
    mt_tensor *y = mti_gather_positions(x, 1, &a->shards);
    mt_set(&y, y ? mti_shift(y, 1, k, fill) : NULL);
    mt_set(&y, y ? mt_slice(y, 1, a->shards.rank * s, s) : NULL);
    mt_set(&y, y ? mt_clone(y) : NULL); /* the whole is let go */
    return y;
}

/* The mean over a rank's targets, taken over, as its part of the ranks' mean: the last shard has k
 * targets fewer than the others. */
static mt_tensor *weigh(const mti_ahead *a, mt_tensor *loss, int64_t k)
{
    const int64_t c = a->shards.ranks, s = mt_shape(a->tokens)[1];
    const int64_t own = a->shards.rank == c - 1 ? s - k : s;
    if (c > 1 && loss) mt_set(&loss, mt_mul_scalar(loss, (double)(c * own) / (double)(c * s - k)));
    return loss;
}

/* Prediction k's rows, of those of the one before: *h, taken over. And its loss. */
static mt_tensor *predict(mt_module *m, int64_t k, mt_tensor **h, const mti_ahead *a)
{
    char name[MTI_LAYER_NAME];
    mt_module *child = mt_module_child(m, mti_mtp_name(name, k - 1));
    MT_AUTO mt_tensor *tokens = places_ahead(a, a->tokens, k, 0);
    MT_AUTO mt_tensor *target = tokens ? places_ahead(a, a->target, k, (double)MT_IGNORE) : NULL;
    mt_tensor *y = target ? a->embed(m, tokens, k) : NULL, *loss = NULL;
    mtp *user = mt_module_user(child);
    int64_t group;
    const mt_checkpoint_options *again =
        mti_module_checkpoint(mt_module_child(child, "block"), &group);
    if (again && again->policy) mti_share_rope_tables(child, NULL); /* as in mti_run_layers */
    user->hidden = *h;
    mt_set(&y, mt_forward_child(m, name, y));
    user->hidden = NULL;
    mt_release(*h);
    *h = y;
    if (y && mt_scope_push(name) == MT_OK) {
        loss = weigh(a, a->loss(m, y, target), k);
        mt_scope_pop();
    }
    return loss;
}

bool mti_check_ahead(const mt_model_config *c, int64_t tokens)
{
    const int64_t n = c->mtp_layers;
    return !n || tokens > n ||
           mti_fail_bool(MT_ERR_ARGUMENT,
                         "mtp: %lld tokens in a row, and %lld predictions ahead; need at least "
                         "%lld",
                         (long long)tokens, (long long)n, (long long)n + 1);
}

mt_tensor *mti_loss_ahead(mt_module *m, const mt_model_config *c, mt_tensor *h, const mti_ahead *a)
{
    const int64_t n = c->mtp_layers;
    mt_tensor *at = mti_check_ahead(c, mt_shape(a->tokens)[1]) ? mt_retain(h) : NULL;
    mt_tensor *sum = NULL, *y = NULL;
    mti_rope_tables tables = {0};
    bool ok = at != NULL;
    mti_share_rope_tables(m, &tables);
    for (int64_t k = 1; ok && k <= n; k++) {
        mt_tensor *loss = predict(m, k, &at, a);
        if (sum && loss) mt_set(&loss, mt_add(sum, loss));
        mt_release(sum);
        sum = loss;
        ok = sum != NULL;
    }
    mti_share_rope_tables(m, NULL);
    mti_rope_tables_free(&tables);
    mt_release(at);
    if (ok) mt_set(&sum, mt_mul_scalar(sum, c->mtp_loss / (double)n));
    if (ok && sum) y = a->loss(m, h, a->target);
    if (y) mt_set(&y, mt_add(y, sum));
    mt_release(sum);
    mt_release(h);
    return y;
}

/* layer_comms.c: how a layer communicates with other ranks: inputs are replicated or gathered,
 * results are summed. */
#include <string.h>
#include "memtape/ops.h"
#include "nn/lora.h"
#include "collectives/collectives.h"
#include "parallel/parallel.h"

/* ---- hooks on saved tensors: keep a shard, gather the whole again ---- */

struct mti_regather {
    uint64_t whole; /* serial of the storage */
    mt_layout layout;
    int64_t n;        /* elements */
    mt_tensor *shard; /* NULL once it has ended */
    mt_group group;   /* that has shards of a sequence */
    mti_pass *pass;   /* of a parameter; NULL: it is a sequence */
    int in_unit;      /* the parameter */
};

/* A sequence may be saved as rows, too. */
static bool is_whole(const mti_regather *r, const mt_tensor *t)
{
    if (mt_storage_of(t).serial != r->whole) return false;
    if (!r->pass) return mt_numel(t) == r->n;
    return mt_rank(t) == r->layout.rank &&
           !memcmp(mt_shape(t), r->layout.shape, (size_t)r->layout.rank * sizeof(int64_t));
}

static mt_status keep_shard(void *user, const mt_save_info *info, mt_tensor *tensor,
                            mt_tensor **kept, void **state)
{
    mti_regather *r = user;
    (void)info;
    mt_layout *view = is_whole(r, tensor) ? mti_malloc(sizeof *view) : NULL;
    if (!view) return is_whole(r, tensor) ? mt_last_status() : MT_OK;
    *view = mt_layout_of(tensor);
    *kept = mt_retain(r->shard);
    *state = view;
    if (r->pass) mti_pass_keeps(r->pass);
    return MT_OK;
}

static void drop_shard(void *user, const mt_save_info *info, void *state)
{
    const mti_regather *r = user;
    (void)info;
    if (state && r->pass) mti_pass_drops(r->pass);
    mti_free(state);
}

static mt_status gather_again(void *user, const mt_save_info *info, mt_tensor **tensor, void *state)
{
    mti_regather *r = user;
    (void)info;
    if (!state) return MT_OK;
    mt_tensor *whole =
        r->pass ? mti_pass_backward(r->pass, r->in_unit) : mt_all_gather(*tensor, 1, &r->group);
    if (whole && !r->pass) mt_set(&whole, mt_view_as(whole, state));
    if (whole) *tensor = whole;
    return whole ? MT_OK : mt_last_status();
}

static void regather_free(void *user)
{
    mti_regather *r = user;
    mt_release(r->shard);
    mti_pass_release(r->pass);
    mti_free(r);
}

/* Saves of `whole` keep `shard` from now on. */
static mti_regather *begin(mt_tensor *whole, mt_tensor *shard, mti_regather how)
{
    static const mt_saved_hooks hooks = {keep_shard, gather_again, drop_shard, regather_free};
    mti_regather *r = mti_malloc(sizeof *r);
    if (!r) {
        mti_pass_release(how.pass);
        return NULL;
    }
    *r = how;
    r->whole = mt_storage_of(whole).serial;
    r->layout = mt_layout_of(whole);
    r->n = mt_numel(whole);
    r->shard = mt_detach(shard);
    if (r->shard && mt_push_saved_hooks(&hooks, r) == MT_OK) return r;
    regather_free(r);
    return NULL;
}

mti_regather *mti_regather_param(mt_tensor *whole, mt_tensor *shard, mti_pass *pass, int in_unit)
{
    return begin(whole, shard, (mti_regather){.pass = mti_pass_retain(pass), .in_unit = in_unit});
}

bool mti_regather_end(mti_regather *r)
{
    mt_release(r->shard); /* what is kept of it now, the hooks around decide */
    r->shard = NULL;
    return mt_pop_saved_hooks() == MT_OK;
}

/* ---- inputs of the ranks ---- */

mt_tensor *mti_run_entered(mt_module *m, mt_forward_fn *run, const mt_parallel *parallel,
                           mt_tensor *x)
{
    const mt_group group = mti_tensor_group(parallel);
    return mti_enter(m, run, &group, parallel->sequence, x);
}

mt_tensor *mti_enter(mt_module *m, mt_forward_fn *run, const mt_group *group, bool sequence,
                     mt_tensor *x)
{
    if (!x || group->ranks == 1) return run(m, x);
    if (!sequence) {
        MT_AUTO mt_tensor *same = mt_replicate(x, group);
        return same ? run(m, same) : NULL;
    }
    MT_AUTO mt_tensor *whole = mt_all_gather(x, 1, group); /* [b,s/t,d] -> [b,s,d] */
    mti_regather *r = whole ? begin(whole, x, (mti_regather){.group = *group}) : NULL;
    if (!r) return NULL;
    mt_tensor *y = run(m, whole);
    if (!mti_regather_end(r)) mt_set(&y, NULL);
    return y;
}

static mt_tensor *entered(mt_module *m, void *user, mt_tensor *x)
{
    return mti_run_entered(m, mti_module_run_inner, user, x);
}

static mt_parallel *copy_of(const mt_parallel *parallel)
{
    mt_parallel *copy = mti_malloc(sizeof *copy);
    if (copy) *copy = *parallel;
    return copy;
}

bool mti_enter_ranks(mt_module *m, const mt_parallel *parallel)
{
    if (!m || parallel->tensor == 1) return m != NULL;
    mt_parallel *user = copy_of(parallel);
    if (user) mti_module_set_around(m, (mti_around){entered, user, mti_free});
    return user != NULL;
}

/* ---- sums over the ranks ---- */

static mt_tensor *sum(const mt_parallel *parallel, mt_tensor *partial)
{
    mt_group group = mti_tensor_group(parallel);
    if (!partial) return NULL;
    return parallel->sequence ? mt_reduce_scatter(partial, 1, &group)
                              : mt_all_reduce(partial, &group);
}

static mt_tensor *row_forward(mt_module *self, mt_tensor *x)
{
    mt_tensor *y = mt_linear(x, mt_module_param(self, "weight"), NULL), *bias;
    mt_set(&y, sum(mt_module_user(self), y));
    if ((bias = mt_module_param(self, "bias"))) mt_set(&y, mt_add(y, bias));
    return y;
}

/* Around a weight in 4 bits, and products of 8 or 4: the module runs as it is, without its bias. */
static mt_tensor *sum_around(mt_module *m, void *user, mt_tensor *x)
{
    mt_tensor *bias = mt_module_param(m, "bias");
    if (bias) mti_module_lend_param(m, "bias", NULL);
    mt_tensor *y = mti_module_run_inner(m, x);
    if (bias) mti_module_lend_param(m, "bias", bias);
    mt_set(&y, sum(user, y));
    if (bias) mt_set(&y, mt_add(y, bias));
    return y;
}

typedef struct embedding {
    mt_parallel parallel;
    int64_t vocab; /* rows of all ranks, without those that fill up the last one's */
    bool padded;   /* as in mt_model_config */
    int64_t pad_token;
} embedding;

static mt_tensor *embedding_forward(mt_module *self, mt_tensor *ids)
{
    const embedding *user = mt_module_user(self);
    mt_tensor *w = mt_module_param(self, "weight");
    int64_t own = w ? mt_shape(w)[0] : 0, t = user->parallel.tensor;
    const mt_embedding_options options = {user->padded, user->pad_token};
    mt_tensor *y = mti_embedding_part(ids, w, user->parallel.tensor_rank * own,
                                      t > 1 ? user->vocab : 0, &options);
    mt_set(&y, sum(&user->parallel, y));
    return y;
}

/* Adds old's parameter to m; frozen if it was. */
static bool take_param(mt_module *m, const mt_module *old, const char *name)
{
    mt_tensor *param = mt_module_param(old, name);
    bool wanted = mt_requires_grad(param);
    return !param || (mt_module_add_param(m, name, mt_retain(param)) &&
                      mt_set_requires_grad(param, wanted) == MT_OK);
}

/* Replaces the child by a module with its parameters. user is taken over. */
static bool replace_with(mt_module *parent, const char *name, const char *kind,
                         mt_forward_fn *forward, void *user)
{
    const mt_module *old = mt_module_child(parent, name);
    mt_module *m = user ? mt_module_new(kind, forward, user, mti_free) : NULL;
    m = mti_module_complete(m, m && take_param(m, old, "weight") && take_param(m, old, "bias"));
    mt_module *previous = m ? mt_module_swap_child(parent, name, m) : NULL;
    mt_module_free(previous);
    return previous != NULL;
}

static bool replace(mt_module *parent, const char *name, const char *kind, mt_forward_fn *forward,
                    const mt_parallel *parallel)
{
    return replace_with(parent, name, kind, forward, copy_of(parallel));
}

/* Whether the module's own forward is to run. */
static bool sums_itself(const mt_module *m)
{
    return mti_is_linear_quantized(m) || mti_is_linear_low(m);
}

static bool sum_after(mt_module *m, const mt_parallel *parallel)
{
    mt_parallel *user = copy_of(parallel);
    if (user) mti_module_set_around(m, (mti_around){sum_around, user, mti_free});
    return user != NULL;
}

static bool sum_base(mt_module *lora, const mt_parallel *parallel)
{
    mt_module *base = mt_module_child(lora, MTI_LORA_BASE);
    return sums_itself(base) ? sum_after(base, parallel)
                             : replace(lora, MTI_LORA_BASE, "linear", row_forward, parallel);
}

bool mti_sum_over_ranks(mt_module *parent, const char *name, const mt_parallel *parallel)
{
    mt_module *child = mt_module_child(parent, name);
    if (parallel->tensor == 1) return true;
    if (sums_itself(child)) return sum_after(child, parallel);
    if (!mti_is_lora(child)) return replace(parent, name, "linear", row_forward, parallel);
    return sum_base(child, parallel) && replace(child, MTI_LORA_A, "linear", row_forward, parallel);
}

bool mti_shard_embedding(mt_module *parent, const char *name, const mti_model_shard *shard)
{
    if (shard->parallel.tensor == 1 && !shard->whole.padded) return true;
    embedding *user = mti_malloc(sizeof *user);
    if (user)
        *user =
            (embedding){shard->parallel, shard->vocab, shard->whole.padded, shard->whole.pad_token};
    return replace_with(parent, name, "embedding", embedding_forward, user);
}

/* ---- what dropout draws ---- */

static mt_tensor *draw_shard(mt_module *m, void *user, mt_tensor *x)
{
    mti_draw_part *drawn = &mti_modes_now()->part, outer = *drawn;
    *drawn = *(const mti_draw_part *)user;
    mt_tensor *y = mti_module_run_inner(m, x);
    *drawn = outer;
    return y;
}

bool mti_shard_draws(mt_module *m, const mt_parallel *h)
{
    const mti_draw_part heads = {h->data, h->data_rank, h->tensor, h->tensor_rank};
    mti_draw_part *between;
    mt_module *child;
    if (mti_heads_of(m)) mti_heads_of(m)->part = heads;
    if (!strcmp(mt_module_kind(m), "dropout")) {
        if (!(between = mti_malloc(sizeof *between))) return false;
        *between = heads;
        if (!h->sequence) between->parts = 1, between->part = 0;
        mti_module_set_around(m, (mti_around){draw_shard, between, mti_free});
    }
    for (size_t i = 0; (child = mt_module_child_at(m, i)); i++)
        if (!mti_shard_draws(child, h)) return false;
    return true;
}

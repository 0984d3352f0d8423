/* parts.c: how a layer communicates with other ranks: inputs are replicated or gathered, results
 * are summed, and parameters of ZeRO 3 are gathered while they are used. */
#include <string.h>
#include "memtape/autocast.h"
#include "memtape/ops.h"
#include "nn/lora.h"
#include "collectives/collectives.h"
#include "parallel/parallel.h"

/* ---- hooks on saved tensors: keep a piece, gather the whole again ---- */

struct mti_regather {
    uint64_t whole;   /* serial of the storage */
    mt_tensor *piece; /* NULL once it has ended */
    mt_tensor *kept;  /* the whole; NULL: it is gathered again */
    mti_pass *pass;   /* of the block that gathers it; NULL: by itself */
    int nth;          /* in that block */
    int dim;
    mt_group group;
    mt_dtype dtype; /* of whole */
    mt_layout layout;
};

static bool is_whole(const mti_regather *r, const mt_tensor *t)
{
    return mt_storage_of(t).serial == r->whole && mt_rank(t) == r->layout.rank &&
           !memcmp(mt_shape(t), r->layout.shape, (size_t)r->layout.rank * sizeof(int64_t));
}

static mt_status keep_piece(void *user, const mt_save_info *info, mt_tensor *tensor,
                            mt_tensor **kept, void **state)
{
    mti_regather *r = user;
    (void)info;
    if (!is_whole(r, tensor)) return MT_OK;
    *kept = mt_retain(r->piece);
    *state = r;
    if (r->pass) mti_pass_keeps(r->pass);
    return MT_OK;
}

static void drop_piece(void *user, const mt_save_info *info, void *state)
{
    const mti_regather *r = user;
    (void)info;
    if (state && r->pass) mti_pass_drops(r->pass);
}

/* The parameter of this shape that lies in y, flat, perhaps with padding after it. y is taken over.
 */
static mt_tensor *shaped(mt_tensor *y, int rank, const int64_t *shape)
{
    int64_t n = 1;
    for (int d = 0; d < rank; d++) n *= shape[d];
    if (y && mt_numel(y) > n) mt_set(&y, mt_slice(y, 0, 0, n));
    mt_set(&y, mt_reshape(y, rank, shape));
    return y;
}

/* Gathers a parameter's pieces, flat, in this type; the last may be padded. */
static mt_tensor *gather_flat(mt_tensor *piece, mt_dtype dtype, bool f32_sum, const mt_group *group,
                              int rank, const int64_t *shape)
{
    mt_tensor *y = mt_reshape(piece, MT_SHAPE(-1));
    mt_set(&y, y ? mti_gather_shard(y, dtype, f32_sum, group) : NULL);
    return shaped(y, rank, shape);
}

/* Gathers pieces along `dim`; 0: a parameter's. */
static mt_tensor *gather(mt_tensor *piece, int dim, const mt_group *group, int rank,
                         const int64_t *shape)
{
    return dim > 0 ? mt_all_gather(piece, dim, group)
                   : gather_flat(piece, mt_dtype_of(piece), false, group, rank, shape);
}

static mt_status gather_again(void *user, const mt_save_info *info, mt_tensor **tensor, void *state)
{
    mti_regather *r = user;
    (void)info;
    if (!state) return MT_OK;
    if (r->kept) {
        *tensor = mt_retain(r->kept);
        return MT_OK;
    }
    if (r->pass) {
        mt_tensor *flat = mti_pass_gather(r->pass, r->nth);
        mt_tensor *of_block = shaped(mt_retain(flat), r->layout.rank, r->layout.shape);
        if (of_block) *tensor = of_block;
        return of_block ? MT_OK : mt_last_status();
    }
    MT_AUTO mt_tensor *piece = mt_cast(*tensor, r->dtype);
    mt_tensor *whole =
        piece ? gather(piece, r->dim, &r->group, r->layout.rank, r->layout.shape) : NULL;
    if (whole) *tensor = whole;
    return whole ? MT_OK : mt_last_status();
}

static void regather_free(void *user)
{
    mti_regather *r = user;
    mt_release(r->piece);
    mt_release(r->kept);
    mti_pass_release(r->pass);
    mti_free(r);
}

mti_regather *mti_regather_begin(mt_tensor *whole, mt_tensor *piece, int dim, const mt_group *group)
{
    static const mt_saved_hooks hooks = {keep_piece, gather_again, drop_piece, regather_free};
    mti_regather *r = mti_malloc(sizeof *r);
    if (!r) return NULL;
    *r = (mti_regather){.whole = mt_storage_of(whole).serial,
                        .piece = mt_detach(piece),
                        .dim = dim,
                        .group = *group,
                        .dtype = mt_dtype_of(whole),
                        .layout = mt_layout_of(whole)};
    if (r->piece && mt_push_saved_hooks(&hooks, r) == MT_OK) return r;
    regather_free(r);
    return NULL;
}

bool mti_regather_keeps(mti_regather *r, mt_tensor *whole)
{
    r->kept = mt_detach(whole);
    return r->kept != NULL;
}

/* From now on backward takes parameter `nth` of the block of this pass. */
static void take_from_block(mti_regather *r, mti_pass *pass, int nth)
{
    r->pass = mti_pass_retain(pass);
    r->nth = nth;
}

bool mti_regather_end(mti_regather *r)
{
    mt_release(r->piece); /* what is kept of it now, the hooks around decide */
    r->piece = NULL;
    return mt_pop_saved_hooks() == MT_OK;
}

/* ---- inputs of the ranks ---- */

mt_tensor *mti_run_entered(mt_module *m, mt_forward_fn *run, const mt_parallel *parallel,
                           mt_tensor *x)
{
    mt_group group = mti_tensor_group(parallel);
    if (!x || parallel->tensor == 1) return run(m, x);
    if (!parallel->sequence) {
        MT_AUTO mt_tensor *same = mt_replicate(x, &group);
        return same ? run(m, same) : NULL;
    }
    MT_AUTO mt_tensor *whole = mt_all_gather(x, 1, &group); /* [b,s/t,d] -> [b,s,d] */
    mti_regather *r = whole ? mti_regather_begin(whole, x, 1, &group) : NULL;
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

/* Around a weight in 4 bits: its module runs as it is, without its bias. */
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

static bool sum_base(mt_module *lora, const mt_parallel *parallel)
{
    mt_module *base = mt_module_child(lora, MTI_LORA_BASE);
    if (!mti_is_linear_quantized(base))
        return replace(lora, MTI_LORA_BASE, "linear", row_forward, parallel);
    mt_parallel *user = copy_of(parallel);
    if (user) mti_module_set_around(base, (mti_around){sum_around, user, mti_free});
    return user != NULL;
}

bool mti_sum_over_ranks(mt_module *parent, const char *name, const mt_parallel *parallel)
{
    mt_module *child = mt_module_child(parent, name);
    if (parallel->tensor == 1) return true;
    if (!mti_is_lora(child)) return replace(parent, name, "linear", row_forward, parallel);
    return sum_base(child, parallel) && replace(child, MTI_LORA_A, "linear", row_forward, parallel);
}

bool mti_share_embedding(mt_module *parent, const char *name, const mti_share *share)
{
    if (share->parallel.tensor == 1 && !share->whole.padded) return true;
    embedding *user = mti_malloc(sizeof *user);
    if (user)
        *user =
            (embedding){share->parallel, share->vocab, share->whole.padded, share->whole.pad_token};
    return replace_with(parent, name, "embedding", embedding_forward, user);
}

/* ---- what dropout draws ---- */

static mt_tensor *drop_part(mt_module *m, void *user, mt_tensor *x)
{
    mti_draw_part *drawn = &mti_modes_now()->part, outer = *drawn;
    *drawn = *(const mti_draw_part *)user;
    mt_tensor *y = mti_module_run_inner(m, x);
    *drawn = outer;
    return y;
}

bool mti_share_draws(mt_module *m, const mt_parallel *h)
{
    const mti_draw_part heads = {h->data, h->data_rank, h->tensor, h->tensor_rank};
    mti_draw_part *between;
    mt_module *child;
    if (mti_heads_of(m)) mti_heads_of(m)->part = heads;
    if (!strcmp(mt_module_kind(m), "dropout")) {
        if (!(between = mti_malloc(sizeof *between))) return false;
        *between = heads;
        if (!h->sequence) between->parts = 1, between->part = 0;
        mti_module_set_around(m, (mti_around){drop_part, between, mti_free});
    }
    for (size_t i = 0; (child = mt_module_child_at(m, i)); i++)
        if (!mti_share_draws(child, h)) return false;
    return true;
}

/* ---- ZeRO 3: parameters as pieces ---- */

#define MOST_PARAMS 2 /* of one module of ours: weight and bias */

typedef struct cut_param {
    const char *name;
    mt_dtype dtype; /* of the whole */
    int rank;
    int64_t shape[MT_MAX_RANK];
    int nth; /* in the block */
} cut_param;

typedef struct cut {
    mt_group group;
    bool f32_reduce;
    mti_kept *kept;  /* NULL: gathered while the module runs ... */
    mti_unit *block; /* ... or, not NULL, while the block does */
    int n;
    cut_param params[MOST_PARAMS];
} cut;

static bool is_product(const mt_module *m)
{
    const char *kind = mt_module_kind(m);
    return !strcmp(kind, "linear") || !strcmp(kind, MTI_TIED);
}

/* Where autocast runs m's product in 16 bits, the piece is cast before it is gathered, as FSDP
 * does: so neither the whole in f32 is ever there, nor a copy of it in 16 bits kept. */
static mt_tensor *gather_param(const mt_module *m, mt_tensor *piece, const cut *c,
                               const cut_param *p)
{
    mt_dtype dtype = p->dtype;
    if (dtype != mt_dtype_of(piece))
        return gather_flat(piece, dtype, c->f32_reduce, &c->group, p->rank, p->shape);
    if (dtype == MT_F32 && is_product(m)) mt_autocast_active(&dtype);
    MT_AUTO mt_tensor *cast = mt_cast(piece, dtype);
    return cast ? gather(cast, 0, &c->group, p->rank, p->shape) : NULL;
}

static mt_tensor *gather_kept(const mt_module *m, const char *name, void *cut_of)
{
    const cut *c = cut_of;
    int i = 0;
    while (strcmp(c->params[i].name, name) != 0) i++;
    return gather_param(m, mt_module_param(m, name), c, &c->params[i]);
}

static mt_status supply(void *user, const mt_op_call *call, mt_op_result *result, bool *supplied)
{
    *supplied = !strcmp(call->op, "all_gather");
    if (*supplied) result->outputs[0] = mt_retain(user);
    return MT_OK;
}

/* The same as gather_param of what the block has gathered: recorded as if it were done here. */
static mt_tensor *take_gathered(mt_tensor *piece, mt_tensor *flat, const cut *c, const cut_param *p)
{
    static const mt_op_hooks hooks = {.before = supply};
    if (mt_push_op_hooks(&hooks, flat) != MT_OK) return NULL;
    mt_tensor *y =
        gather_flat(piece, mt_dtype_of(flat), c->f32_reduce, &c->group, p->rank, p->shape);
    if (mt_pop_op_hooks() != MT_OK) mt_set(&y, NULL);
    return y;
}

static mti_regather *make_whole_of_block(mt_tensor *piece, const cut *c, const cut_param *p,
                                         mt_tensor **whole)
{
    mti_pass *pass = mti_unit_running(c->block);
    *whole = take_gathered(piece, mti_pass_flat(pass, p->nth), c, p);
    mti_regather *r = *whole ? mti_regather_begin(*whole, piece, 0, &c->group) : NULL;
    if (r) take_from_block(r, pass, p->nth);
    return r;
}

/* The whole of m's parameter, and the hook that lets the tape keep its piece. */
static mti_regather *make_whole(const mt_module *m, mt_tensor *piece, const cut *c,
                                const cut_param *p, mt_tensor **whole)
{
    if (c->block) return make_whole_of_block(piece, c, p, whole);
    mt_tensor *kept = c->kept ? mti_kept_whole(c->kept, piece) : NULL;
    *whole = kept ? mt_retain(kept) : gather_param(m, piece, c, p);
    mti_regather *r = *whole ? mti_regather_begin(*whole, piece, 0, &c->group) : NULL;
    if (!r || !kept || mti_regather_keeps(r, kept)) return r;
    mti_regather_end(r);
    return NULL;
}

/* Runs m with whole parameters; the tape keeps their pieces. */
static mt_tensor *run_gathered(mt_module *m, void *user, mt_tensor *x)
{
    const cut *c = user;
    mt_tensor *whole[MOST_PARAMS] = {NULL}, *piece[MOST_PARAMS], *y = NULL;
    mti_regather *hooks[MOST_PARAMS];
    int n = 0;
    bool ok = true;
    for (; ok && n < c->n; n++) {
        const cut_param *p = &c->params[n];
        piece[n] = mt_module_param(m, p->name);
        hooks[n] = make_whole(m, piece[n], c, p, &whole[n]);
        ok = hooks[n] != NULL;
        if (!ok) break;
        mti_module_lend_param(m, p->name, whole[n]);
    }
    if (ok) y = mti_module_run_inner(m, x);
    for (int i = n - 1; i >= 0; i--) { /* what began last ends first */
        ok = mti_regather_end(hooks[i]) && ok;
        mti_module_lend_param(m, c->params[i].name, piece[i]);
    }
    for (int i = 0; i < c->n; i++) mt_release(whole[i]);
    if (!ok) mt_set(&y, NULL);
    return y;
}

int64_t mti_piece_count(const mt_tensor *whole, int64_t n) { return (mt_numel(whole) + n - 1) / n; }

/* Zeros, until mti_rank_draw gives it values. */
static mt_tensor *piece_of(mti_cutter *cutter, mt_tensor *whole)
{
    if (whole == cutter->shared && cutter->piece) return mt_retain(cutter->piece);
    int64_t n = mti_piece_count(whole, cutter->group.ranks);
    int64_t cols = mt_rank(whole) > 1 ? mt_shape(whole)[mt_rank(whole) - 1] : 1;
    mt_dtype dtype = cutter->f32 ? MT_F32 : mt_dtype_of(whole);
    mt_tensor *piece = mt_zeros(cutter->device, dtype, mt_rank(whole) > 1 ? 2 : 1,
                                (const int64_t[]){mt_rank(whole) > 1 ? 1 : n, n});
    const mti_cut_shape shape = {piece, mt_numel(whole) / (cols ? cols : 1), cols};
    if (piece && (mt_set_category(piece, MT_PARAMETER) != MT_OK ||
                  mt_set_requires_grad(piece, mt_requires_grad(whole)) != MT_OK ||
                  !MTI_PUSH(&cutter->shapes, shape)))
        mt_set(&piece, NULL);
    if (whole == cutter->shared) cutter->piece = piece;
    return piece;
}

static bool cut_param_of(mt_module *m, mti_cutter *cutter, cut *c, const char *name)
{
    mt_tensor *whole = mt_module_param(m, name);
    if (!whole) return true;
    cut_param *p = &c->params[c->n++];
    *p = (cut_param){.name = name, .dtype = mt_dtype_of(whole), .rank = mt_rank(whole)};
    memcpy(p->shape, mt_shape(whole), (size_t)p->rank * sizeof *p->shape);
    mt_tensor *piece = piece_of(cutter, whole);
    if (!piece) return false;
    mt_release(mti_module_swap_param(m, name, piece));
    if (c->block) return (p->nth = mti_unit_add(c->block, piece, p->dtype, is_product(m))) >= 0;
    return !c->kept || mti_kept_add(c->kept, m, name, gather_kept, c);
}

bool mti_cut_params(mt_module *m, mti_cutter *cutter)
{
    if (mt_module_param(m, "weight")) {
        cut *c = mti_malloc(sizeof *c);
        if (!c) return false;
        *c = (cut){.group = cutter->group,
                   .f32_reduce = cutter->f32_reduce,
                   .kept = cutter->kept,
                   .block = cutter->block};
        mti_module_set_around(m, (mti_around){run_gathered, c, mti_free});
        if (!cut_param_of(m, cutter, c, "weight") || !cut_param_of(m, cutter, c, "bias"))
            return false;
    }
    mt_module *child;
    mti_kept *kept = cutter->kept;
    const bool is_block = !strcmp(mt_module_kind(m), "block");
    bool ok = true;
    if (is_block) cutter->kept = NULL;
    if (is_block && cutter->blocks) ok = (cutter->block = mti_units_add(cutter->blocks, m)) != NULL;
    for (size_t i = 0; ok && (child = mt_module_child_at(m, i)); i++)
        ok = mti_cut_params(child, cutter);
    if (is_block) cutter->kept = kept, cutter->block = NULL;
    return ok;
}

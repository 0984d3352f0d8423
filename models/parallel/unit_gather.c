/* unit_gather.c: when the parameters of ZeRO 3's units are gathered, and let go.
 *
 * A module: each by itself, when the module runs and again when backward asks for it.
 * A block, as PyTorch's fully_shard has it: all with one all-gather, before its forward and before
 * its backward, after which they are let go; if wanted, those of the next block in forward, of the
 * one before it in backward, while this block computes (torch/distributed/fsdp/_fully_shard/
 * _fsdp_param_group.py, unshard, wait_for_unshard and _backward_prefetch).
 * Experts that ranks divide: the same, with their block, from those of the block's ranks that have
 * the same ones (torchtitan/models/llama4/infra/parallelize.py, apply_fsdp).
 * The root, what is in no block: before its forward, and they are let go once backward has the
 * gradient of each (_fsdp_state.py, _lazy_init and _root_post_backward_final_callback). */
#include <string.h>
#include "memtape/autocast.h"
#include "memtape/autograd.h"
#include "memtape/ops.h"
#include "parallel/units.h"

/* ---- one parameter ---- */

/* y, flat, perhaps with padding after it, as the parameter that lies in it. y is taken over. */
static mt_tensor *shaped(mt_tensor *y, const mt_layout *layout)
{
    const int64_t n = mti_layout_count(layout);
    if (y && mt_numel(y) > n) mt_set(&y, mt_slice(y, 0, 0, n));
    mt_set(&y, mt_reshape(y, layout->rank, layout->shape));
    return y;
}

/* shard is taken over. leaf: as in mti_gather_shard. */
static mt_tensor *gather_flat(mt_tensor *shard, mt_dtype dtype, const mti_unit *u, mti_leaf *leaf)
{
    mt_set(&shard, mt_reshape(shard, MT_SHAPE(-1)));
    mt_set(&shard, shard
                       ? mti_gather_shard(shard, dtype, u->all->policy.f32_reduce, leaf, &u->group)
                       : NULL);
    return shard;
}

static mt_status supply(void *user, const mt_op_call *call, mt_op_result *result, bool *supplied)
{
    *supplied = !strcmp(call->op, "all_gather");
    if (*supplied) result->outputs[0] = mt_retain(user);
    return MT_OK;
}

/* The same as gather_flat of what has been gathered: recorded as if it were done here. */
static mt_tensor *take_gathered(const mti_unit_param *p, const mti_unit *u)
{
    static const mt_op_hooks hooks = {.before = supply};
    if (mt_push_op_hooks(&hooks, p->whole) != MT_OK) return NULL;
    mt_tensor *y = gather_flat(mt_retain(p->own.shard), mt_dtype_of(p->whole), u,
                               (mti_leaf *)p->own.shard->leaf);
    if (mt_pop_op_hooks() != MT_OK) mt_set(&y, NULL);
    return y;
}

/* Where autocast runs the product in 16 bits, the shard is cast before it is gathered, as FSDP
 * does: so neither the whole in f32 is ever there, nor a copy of it in 16 bits kept. */
static mt_tensor *gather_alone(const mti_unit_param *p, const mti_unit *u, mt_dtype products)
{
    const mt_dtype dtype = mti_unit_type(p, products);
    const bool casts = p->own.whole.dtype != mt_dtype_of(p->own.shard); /* as it is gathered */
    return gather_flat(casts ? mt_retain(p->own.shard) : mt_cast(p->own.shard, dtype), dtype, u,
                       NULL);
}

/* ---- a block's, or its experts' ---- */

static bool gathers_as_one(const mti_unit *u)
{
    return u->kind == MTI_UNIT_BLOCK || u->kind == MTI_UNIT_EXPERTS;
}

/* products: as the unit's were gathered when it was resharded, if it was. */
static bool is_resharded(const mti_unit *u, mt_dtype products)
{
    return u->params.n && u->params.at[0].resharded && u->products == products;
}

static mti_gathering *begin(mti_unit *u, mt_dtype products, bool behind)
{
    const mti_units *all = u->all;
    const bool from_resharded = is_resharded(u, products);
    mti_shard *shards = mti_malloc(u->params.n * sizeof *shards);
    for (size_t i = 0; shards && i < u->params.n; i++) {
        const mti_unit_param *p = &u->params.at[i];
        const mt_dtype dtype = mti_unit_type(p, products);
        shards[i] = (mti_shard){p->own.shard, dtype, false};
        if (from_resharded)
            shards[i] = (mti_shard){p->resharded, dtype, dtype != mt_dtype_of(p->own.shard)};
    }
    u->products = products;
    mti_gathering *g = shards ? mti_shards_begin(all->device, (int)u->params.n, shards,
                                                 from_resharded ? &all->few : &u->group, behind)
                              : NULL;
    mti_free(shards);
    return g;
}

/* In forward the buffer stays until the next unit's parameters are there, as in PyTorch. */
static bool finish(mti_unit *u, mti_gathering *g, bool forward)
{
    mti_units *all = u->all;
    mt_tensor **flats = g ? mti_calloc(u->params.n, sizeof *flats) : NULL;
    mti_drop_tensor(&all->gathered);
    if (!flats) {
        mti_shards_drop(g);
        return false;
    }
    bool ok = mti_shards_end(g, flats, forward ? &all->gathered : NULL);
    for (size_t i = 0; ok && i < u->params.n; i++) u->params.at[i].whole = flats[i];
    mti_unit_drop_resharded(u);
    mti_free(flats);
    return ok;
}

/* Takes what is on its way to the block. */
static mti_gathering *take_coming(mti_unit *u, mt_dtype products)
{
    mti_gathering *g = u->coming;
    if (g && u->products != products) mti_units_drop_coming(u->all);
    if (!u->coming) return begin(u, products, false);
    u->coming = NULL;
    if (u->all->coming == u) u->all->coming = NULL;
    return g;
}

static uint64_t versions_of(const mti_unit *u)
{
    uint64_t sum = 0;
    for (size_t i = 0; i < u->params.n; i++) sum += u->params.at[i].own.shard->storage->version;
    return sum;
}

/* Only one block's parameters are there at a time, and its experts', except those that stay. */
static bool gather(mti_unit *u, mt_dtype products, bool forward)
{
    mti_units *all = u->all;
    const uint64_t versions = versions_of(u);
    const bool is_block = u->kind == MTI_UNIT_BLOCK;
    if (u->is_gathered && u->products == products && u->versions == versions) return true;
    if (u->is_gathered) mti_unit_let_go(u);
    if (is_block && all->last_gathered) mti_unit_let_go(all->last_gathered);
    if (!finish(u, take_coming(u, products), forward)) return false;
    u->is_gathered = true;
    u->versions = versions;
    if (is_block) all->last_gathered = u;
    return true;
}

/* For a backward that needs no parameter, as PyTorch does. */
static bool gather_again(mti_unit *u) { return gather(u, u->products, false); }

/* Begins to gather the block that comes next, in forward or in backward, and its experts. */
static bool go_ahead(mti_units *all, mti_unit *next, mt_dtype products)
{
    if (all->policy.gather != MTI_GATHER_AHEAD || all->coming || !next || next->is_gathered)
        return true;
    mti_unit *experts = next->experts;
    next->coming = begin(next, products, true);
    if (!next->coming) return false;
    all->coming = next;
    if (!experts || experts->is_gathered || experts->coming) return true;
    experts->coming = begin(experts, products, true);
    return experts->coming != NULL;
}

/* Each rank keeps of what is gathered what it is among the few (to_sharded_post_forward). */
static bool cut(mti_unit *u)
{
    const mt_group few = u->all->few;
    bool ok = true;
    for (size_t i = 0; ok && few.ranks > 1 && i < u->params.n; i++) {
        mti_unit_param *p = &u->params.at[i];
        const int64_t n = mt_numel(p->whole) / few.ranks;
        MT_AUTO mt_tensor *own = mt_detach(p->whole);
        mt_set(&own, mt_slice(own, 0, few.rank * n, n));
        p->resharded = own ? mt_clone(own) : NULL;
        ok = p->resharded && mt_set_category(p->resharded, MT_PARAMETER) == MT_OK;
    }
    return ok;
}

/* A forward without a tape keeps nothing. What is gathered is recorded once, whoever reads it. */
static bool gather_root(mti_unit *u, mt_dtype products)
{
    mti_unit_let_go(u); /* of a forward that had no backward */
    bool ok = !mt_grad_mode() || finish(u, begin(u, products, false), true);
    for (size_t i = 0; ok && i < u->params.n && mt_grad_mode(); i++) {
        mti_unit_param *p = &u->params.at[i];
        mt_set(&p->whole, shaped(take_gathered(p, u), &p->own.whole));
        ok = p->whole != NULL;
    }
    if (!ok) mti_unit_let_go(u);
    return ok;
}

/* ---- one forward ---- */

static mti_pass *pass_new(mti_unit *u)
{
    mti_pass *p = mti_malloc(sizeof *p);
    if (!p) return NULL;
    *p = (mti_pass){.unit = mti_unit_retain(u), .products = MT_F32};
    atomic_init(&p->refs, 1);
    mt_autocast_active(&p->products);
    return p;
}

mti_pass *mti_pass_retain(mti_pass *p)
{
    atomic_fetch_add(&p->refs, 1);
    return p;
}

void mti_pass_release(mti_pass *p)
{
    if (!p || atomic_fetch_sub(&p->refs, 1) != 1) return;
    mti_unit_release(p->unit);
    mti_free(p);
}

mti_pass *mti_unit_pass(mti_unit *u)
{
    return u->running ? mti_pass_retain(u->running) : pass_new(u);
}

mt_tensor *mti_pass_forward(mti_pass *p, int i)
{
    const mti_unit *u = p->unit;
    const mti_unit_param *q = &u->params.at[i];
    if (q->whole && u->kind == MTI_UNIT_ROOT) return mt_retain(q->whole);
    return shaped(q->whole ? take_gathered(q, u) : gather_alone(q, u, p->products), &q->own.whole);
}

mt_tensor *mti_pass_backward(mti_pass *p, int i)
{
    mti_unit *u = p->unit;
    const mti_unit_param *q = &u->params.at[i];
    mti_units_await_end(u->all);
    if (gathers_as_one(u)) {
        if (!gather(u, p->products, false) || !go_ahead(u->all, u->before, p->products))
            return NULL;
        u->holder = p;
    }
    if (q->whole) return shaped(mt_retain(q->whole), &q->own.whole);
    const mt_dtype dtype = mti_unit_type(q, p->products);
    return shaped(gather_flat(mt_cast(q->own.shard, dtype), dtype, u, NULL), &q->own.whole);
}

void mti_pass_keeps(mti_pass *p)
{
    p->n_kept++;
    p->unit->n_kept++;
}

/* The end of the block's backward ends backward where nothing before the block trains, as with
 * adapters beside the last layers. What was begun for the block before, as PyTorch does, then comes
 * for nothing. */
void mti_pass_drops(mti_pass *p)
{
    mti_unit *u = p->unit;
    const mti_unit *coming = u->all->coming;
    p->n_kept--;
    u->n_kept--;
    if (!p->n_kept && u->holder == p) {
        u->holder = NULL;
        if (!mti_units_keep(u->all)) mti_unit_let_go(u);
    }
    if (!u->n_kept && coming && coming == u->before && !coming->n_kept && !coming->is_awaited)
        mti_units_drop_coming(u->all);
}

/* What a forward that failed, or had no backward, left: the values may be of an earlier step. */
static void start_over(mti_units *all)
{
    mti_units_drop_coming(all);
    for (size_t i = 0; i < all->list.n; i++) {
        mti_unit *u = all->list.at[i];
        u->is_awaited = false;
        mti_unit_drop_resharded(u);
        if (gathers_as_one(u)) mti_unit_let_go(u);
    }
}

/* again: backward follows, which releases them. */
static bool enter_block(mti_unit *u, const mti_pass *p)
{
    mti_units *all = u->all;
    const bool again = mt_recomputing(), is_block = u->kind == MTI_UNIT_BLOCK;
    if (is_block && !u->before && !again && !(all->policy.of_stage && all->policy.stay))
        start_over(all);
    return mti_unit_set_collector(u, p->products) && gather(u, p->products, !again) &&
           go_ahead(all, again ? u->before : u->after, p->products);
}

static bool trains(const mti_unit *u)
{
    size_t i = 0;
    while (i < u->params.n && !mt_requires_grad(u->params.at[i].own.shard)) i++;
    return i < u->params.n;
}

/* False on failure. y: NULL if the forward failed. */
static bool leave_block(mti_unit *u, const mti_pass *p, const mt_tensor *y)
{
    mti_units *all = u->all;
    const bool is_block = u->kind == MTI_UNIT_BLOCK, is_end = is_block && !u->after;
    bool ok = true;
    if (is_end && !all->root) mti_drop_tensor(&all->gathered);
    if (mt_recomputing()) return true;
    const bool follows = y && mt_requires_grad(y) && mt_grad_mode();
    u->is_awaited = follows && u->closing && !p->n_kept && trains(u);
    u->stays = follows && (all->policy.stay || (all->policy.last_stays && is_end && p->n_kept));
    if (!u->stays) {
        ok = !follows || !is_block || cut(u);
        mti_unit_let_go(u);
        return ok;
    }
    u->holder = p->n_kept ? p : NULL;
    if (all->last_gathered == u) all->last_gathered = NULL;
    return true;
}

bool mti_unit_leave(mti_unit *u, const mt_tensor *y)
{
    mti_pass *p = u->running;
    u->running = NULL;
    bool ok = !p || leave_block(u, p, y);
    mti_pass_release(p);
    return ok;
}

bool mti_unit_enter(mti_unit *u)
{
    mti_pass_release(u->running); /* of a forward that failed between two modules */
    u->running = pass_new(u);
    if (u->running && enter_block(u, u->running)) return true;
    mti_unit_leave(u, NULL);
    return false;
}

static mt_tensor *run_inner(const mti_unit *u, mt_module *m, mt_tensor *x)
{
    return u->within.fn ? u->within.fn(m, u->within.user, x) : mti_module_run_inner(m, x);
}

static mt_tensor *run_block(mti_unit *u, mti_pass *p, mt_module *m, mt_tensor *x)
{
    mt_tensor *y = enter_block(u, p) ? run_inner(u, m, x) : NULL;
    if (!leave_block(u, p, y)) mt_set(&y, NULL);
    return y;
}

static mt_tensor *run_unit(mt_module *m, void *user, mt_tensor *x)
{
    mti_unit *u = user;
    mti_pass *p = pass_new(u), *outer = u->running;
    mt_tensor *y = NULL;
    if (!p) return NULL;
    u->running = p;
    if (gathers_as_one(u))
        y = run_block(u, p, m, x);
    else if (mti_unit_set_collector(u, p->products) && gather_root(u, p->products))
        y = run_inner(u, m, x);
    if (u->kind == MTI_UNIT_ROOT) mti_drop_tensor(&u->all->gathered);
    u->running = outer;
    mti_pass_release(p);
    return y;
}

static void release(void *user) { mti_unit_release(user); }

static void append_block(mti_unit *u)
{
    u->before = u->all->last;
    if (u->before) u->before->after = u;
    u->all->last = u;
}

mti_unit *mti_units_add(mti_units *all, mti_unit_kind kind, mt_module *m)
{
    mti_unit *u = mti_calloc(1, sizeof *u);
    if (!u) return NULL;
    *u = (mti_unit){.all = all, .kind = kind, .group = all->group};
    if (!MTI_PUSH(&all->list, u)) {
        mti_free(u);
        return NULL;
    }
    if (kind == MTI_UNIT_BLOCK) append_block(u);
    if (kind == MTI_UNIT_EXPERTS) all->last->experts = u;
    if (kind == MTI_UNIT_ROOT) all->root = u;
    all->gather_again = gather_again;
    if (!m || kind == MTI_UNIT_MODULE) return u;
    u->within = mti_module_take_around(m);
    mti_module_set_around(m, (mti_around){run_unit, mti_unit_retain(u), release});
    return u;
}

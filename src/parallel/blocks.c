/* blocks.c: parameters of ZeRO 3 that are gathered block by block, as PyTorch's fully_shard does:
 * all of a block's with one all-gather, before its forward and before its backward, after which
 * they are let go; and, if wanted, those of the next block in forward, of the one before it in
 * backward, while this block computes (torch/distributed/fsdp/_fully_shard/_fsdp_param_group.py,
 * unshard, wait_for_unshard and _backward_prefetch). */
#include "memtape/autocast.h"
#include "collectives/collectives.h"
#include "parallel/parallel.h"

typedef struct param {
    mt_tensor *piece;
    mt_dtype dtype;  /* of the whole */
    bool is_product; /* of a linear: gathered in 16 bits where autocast multiplies in them */
    mt_tensor *flat; /* all ranks' pieces; NULL: not gathered */
} param;

struct mti_unit {
    mti_units *all; /* whose reference whoever has the block holds */
    size_t nth;
    MTI_VEC(param) params;
    mti_gathering *coming; /* NULL: not on its way */
    bool is_gathered;
    size_t n_kept;          /* saved parameters, of all forwards */
    mt_dtype products;      /* in which those that came, or are coming, were gathered */
    mti_pass *running;      /* whose forward runs; NULL: none */
    const mti_pass *holder; /* with the end of which the parameters are let go */
};

struct mti_units {
    atomic_int refs;
    mt_device *device; /* borrowed: it outlives tensors on it */
    mt_group group;
    mt_gather_unit unit;
    bool keep_last;
    MTI_VEC(mti_unit *) list;
    mti_unit *last_gathered, *coming; /* NULL: none */
};

/* One forward of a block, and what the tape keeps of it. */
struct mti_pass {
    atomic_int refs;
    mti_unit *block;
    mt_dtype products;
    size_t n_kept; /* saved parameters */
};

/* ---- making ---- */

mti_units *mti_units_new(mt_device *device, const mt_group *group, const mt_parallel *parallel)
{
    mti_units *all = mti_calloc(1, sizeof *all);
    if (!all) return NULL;
    atomic_init(&all->refs, 1);
    all->device = device;
    all->group = *group;
    all->unit = parallel->gather;
    all->keep_last = parallel->keep_last;
    return all;
}

static void let_go(mti_unit *b)
{
    for (size_t i = 0; i < b->params.n; i++) {
        mt_release(b->params.at[i].flat);
        b->params.at[i].flat = NULL;
    }
    b->is_gathered = false;
    b->holder = NULL;
    if (b->all->last_gathered == b) b->all->last_gathered = NULL;
}

/* What was begun for nothing. */
static void drop_coming(mti_units *all)
{
    if (!all->coming) return;
    mti_pieces_drop(all->coming->coming);
    all->coming->coming = NULL;
    all->coming = NULL;
}

void mti_units_release(mti_units *all)
{
    if (!all || atomic_fetch_sub(&all->refs, 1) != 1) return;
    drop_coming(all);
    for (size_t i = 0; i < all->list.n; i++) {
        mti_unit *b = all->list.at[i];
        let_go(b);
        for (size_t k = 0; k < b->params.n; k++) mt_release(b->params.at[k].piece);
        mti_free(b->params.at);
        mti_free(b);
    }
    mti_free(all->list.at);
    mti_free(all);
}

int mti_unit_add(mti_unit *b, mt_tensor *piece, mt_dtype dtype, bool is_product)
{
    if (!MTI_PUSH(&b->params, ((param){piece, dtype, is_product, NULL}))) return -1;
    mt_retain(piece);
    return (int)b->params.n - 1;
}

/* ---- gathering ---- */

static mti_gathering *begin(mti_unit *b, mt_dtype products, bool behind)
{
    const mti_units *all = b->all;
    mti_piece *pieces = mti_malloc(b->params.n * sizeof *pieces);
    for (size_t i = 0; pieces && i < b->params.n; i++) {
        const param *p = &b->params.at[i];
        pieces[i] = (mti_piece){p->piece, p->dtype};
        if (p->is_product && p->dtype == MT_F32) pieces[i].dtype = products;
    }
    b->products = products;
    mti_gathering *g =
        pieces ? mti_pieces_begin(all->device, (int)b->params.n, pieces, &all->group, behind)
               : NULL;
    mti_free(pieces);
    return g;
}

static bool finish(mti_unit *b, mti_gathering *g)
{
    mt_tensor **flats = g ? mti_calloc(b->params.n, sizeof *flats) : NULL;
    if (!flats) {
        mti_pieces_drop(g);
        return false;
    }
    bool ok = mti_pieces_end(g, flats);
    for (size_t i = 0; ok && i < b->params.n; i++) b->params.at[i].flat = flats[i];
    mti_free(flats);
    return ok;
}

/* Takes what is on its way to the block. */
static mti_gathering *take_coming(mti_unit *b, mt_dtype products)
{
    mti_gathering *g = b->coming;
    if (g && b->products != products) drop_coming(b->all);
    if (!b->coming) return begin(b, products, false);
    b->coming = NULL;
    b->all->coming = NULL;
    return g;
}

/* Only one block's parameters are there at a time, but for a last block that is kept. */
static bool gather(mti_unit *b, mt_dtype products)
{
    mti_units *all = b->all;
    if (b->is_gathered && b->products == products) return true;
    if (b->is_gathered) let_go(b);
    if (all->last_gathered) let_go(all->last_gathered);
    if (!finish(b, take_coming(b, products))) return false;
    b->is_gathered = true;
    all->last_gathered = b;
    return true;
}

/* Begins to gather the block that comes after b, in forward or in backward. */
static bool go_ahead(const mti_unit *b, mt_dtype products, bool forward)
{
    mti_units *all = b->all;
    size_t next = forward ? b->nth + 1 : b->nth - 1; /* past the end before the first */
    if (all->unit != MT_GATHER_AHEAD || all->coming || next >= all->list.n) return true;
    mti_unit *to = all->list.at[next];
    if (to->is_gathered) return true;
    all->coming = to;
    to->coming = begin(to, products, true);
    if (!to->coming) all->coming = NULL;
    return to->coming != NULL;
}

/* ---- one forward ---- */

static mti_pass *pass_new(mti_unit *b)
{
    mti_pass *p = mti_malloc(sizeof *p);
    if (!p) return NULL;
    *p = (mti_pass){.block = b, .products = MT_F32};
    atomic_init(&p->refs, 1);
    mt_autocast_active(&p->products);
    atomic_fetch_add(&b->all->refs, 1);
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
    mti_units_release(p->block->all);
    mti_free(p);
}

mti_pass *mti_unit_running(const mti_unit *b) { return b->running; }

mt_tensor *mti_pass_flat(mti_pass *p, int i) { return p->block->params.at[i].flat; }

void mti_pass_keeps(mti_pass *p)
{
    p->n_kept++;
    p->block->n_kept++;
}

mt_tensor *mti_pass_gather(mti_pass *p, int i)
{
    if (!gather(p->block, p->products) || !go_ahead(p->block, p->products, false)) return NULL;
    p->block->holder = p;
    return p->block->params.at[i].flat;
}

/* The end of the block's backward ends backward where nothing before the block trains, as with
 * adapters beside the last layers. What was begun for the block before, as PyTorch does, then comes
 * for nothing. */
void mti_pass_drops(mti_pass *p)
{
    mti_unit *b = p->block;
    const mti_unit *coming = b->all->coming;
    p->n_kept--;
    b->n_kept--;
    if (!p->n_kept && b->holder == p) let_go(b);
    if (!b->n_kept && coming && coming->nth + 1 == b->nth && !coming->n_kept) drop_coming(b->all);
}

static bool is_last(const mti_unit *b) { return b->nth + 1 == b->all->list.n; }

/* What a forward that failed left, whose values may be of an earlier step. */
static void start_over(mti_units *all)
{
    drop_coming(all);
    if (all->last_gathered) let_go(all->last_gathered);
}

static mt_tensor *run_block(mt_module *m, void *user, mt_tensor *x)
{
    mti_unit *b = user;
    const bool again = mt_recomputing();
    mti_pass *p = pass_new(b);
    if (!p) return NULL;
    if (b->nth == 0 && !again) start_over(b->all);
    mti_pass *outer = b->running;
    b->running = p;
    mt_tensor *y = gather(b, p->products) && go_ahead(b, p->products, !again)
                       ? mti_module_run_inner(m, x)
                       : NULL;
    b->running = outer;
    if (b->all->keep_last && is_last(b) && y && p->n_kept && !again)
        b->holder = p;
    else if (!again) /* else backward follows */
        let_go(b);
    mti_pass_release(p);
    return y;
}

static void block_release(void *user)
{
    const mti_unit *b = user;
    mti_units_release(b->all);
}

mti_unit *mti_units_add(mti_units *all, mt_module *m)
{
    mti_unit *b = mti_calloc(1, sizeof *b);
    if (!b) return NULL;
    *b = (mti_unit){.all = all, .nth = all->list.n};
    if (!MTI_PUSH(&all->list, b)) {
        mti_free(b);
        return NULL;
    }
    atomic_fetch_add(&all->refs, 1);
    mti_module_set_around(m, (mti_around){run_block, b, block_release});
    return b;
}

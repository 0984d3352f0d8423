/* context_parallel.c: attention of a rank that has a shard of every sequence. Its queries are
 * local; keys and values of all ranks are gathered, used, and let go (Llama 3, 3.3.2). The tape
 * keeps the local shards, and backward gathers them again, as PyTorch's context parallelism does.
 * The gradients of keys and values are scattered over the ranks as sums: all_gather's backward.
 *
 * With a causal mask a rank sees the positions up to the end of its shard: it uses the first of the
 * gathered rows, so the masks of attention's ops, whose last query sees all keys, are right. */
#include "memtape/autocast.h"
#include "memtape/ops.h"
#include "nn/context_parallel.h"
#include "collectives/collectives.h"

struct mti_gathered {
    mt_group group;
    uint64_t whole[2];   /* serials of the gathered keys' and values' storages */
    mt_tensor *shard[2]; /* NULL once it has ended */
    mt_dtype dtype;
};

/* [b,k,s/c,h] -> [b,k,s,h], laid out as [b,s,k,h]: so the values of a product are no copy. */
static mt_tensor *gather(mt_tensor *shard, const mt_group *group)
{
    mt_tensor *y = mt_transpose(shard, 1, 2);
    mt_set(&y, y ? mti_gather_positions(y, 1, group) : NULL);
    mt_set(&y, y ? mt_transpose(y, 1, 2) : NULL);
    return y;
}

/* ---- hooks: keep a shard, gather the whole again ---- */

static mt_status keep_piece(void *user, const mt_save_info *info, mt_tensor *tensor,
                            mt_tensor **kept, void **state)
{
    mti_gathered *g = user;
    (void)info;
    for (int i = 0; i < 2; i++) {
        if (mt_storage_of(tensor).serial != g->whole[i]) continue;
        mt_layout *view = mti_malloc(sizeof *view); /* of the gathered storage */
        if (!view) return mt_last_status();
        *view = mt_layout_of(tensor);
        *kept = mt_retain(g->shard[i]);
        *state = view;
        return MT_OK;
    }
    return MT_OK;
}

static mt_status gather_again(void *user, const mt_save_info *info, mt_tensor **tensor, void *state)
{
    mti_gathered *g = user;
    const mt_layout *view = state;
    (void)info;
    if (!view) return MT_OK;
    MT_AUTO mt_tensor *shard = mt_cast(*tensor, g->dtype);
    MT_AUTO mt_tensor *whole = shard ? gather(shard, &g->group) : NULL;
    mt_tensor *again = whole ? mt_view_as(whole, view) : NULL;
    if (again) *tensor = again;
    return again ? MT_OK : mt_last_status();
}

static void drop_view(void *user, const mt_save_info *info, void *state)
{
    (void)user, (void)info;
    mti_free(state);
}

static void let_pieces_go(mti_gathered *g)
{
    for (int i = 0; i < 2; i++) {
        mt_release(g->shard[i]);
        g->shard[i] = NULL;
    }
}

static void gathered_free(void *user)
{
    let_pieces_go(user);
    mti_free(user);
}

/* ---- around the core of attention ---- */

/* In the type that autocast multiplies in, so that it copies nothing of the whole. */
static bool gather_part(mti_gathered *g, int i, mt_tensor **part)
{
    mt_dtype dtype = mt_dtype_of(*part);
    if (dtype == MT_F32) mt_autocast_active(&dtype);
    if (mt_set(part, mt_cast(*part, dtype)) != MT_OK) return false;
    g->dtype = dtype;
    g->shard[i] = mt_detach(*part);
    mt_set(part, g->shard[i] ? gather(*part, &g->group) : NULL);
    if (*part) g->whole[i] = mt_storage_of(*part).serial;
    return *part != NULL;
}

mti_gathered *mti_gather_begin(const mt_group *group, bool causal, mt_tensor *part[3])
{
    static const mt_saved_hooks hooks = {keep_piece, gather_again, drop_view, gathered_free};
    const int64_t seen = (group->rank + 1) * mt_shape(part[0])[2];
    mti_gathered *g = mti_malloc(sizeof *g);
    if (!g) return NULL;
    *g = (mti_gathered){.group = *group};
    bool ok = gather_part(g, 0, &part[1]) && gather_part(g, 1, &part[2]);
    for (int i = 1; ok && i < 3 && causal && group->rank + 1 < group->ranks; i++)
        ok = mt_set(&part[i], mt_slice(part[i], 2, 0, seen)) == MT_OK;
    if (ok && mt_push_saved_hooks(&hooks, g) == MT_OK) return g;
    gathered_free(g);
    return NULL;
}

bool mti_gather_end(mti_gathered *g)
{
    let_pieces_go(g); /* what is kept of them now, the hooks around decide */
    return mt_pop_saved_hooks() == MT_OK;
}

/* kept.c: parameters of ZeRO 3 that stay gathered from forward to backward, as those of the root do
 * under PyTorch's fully_shard: all are gathered before the root's forward, and all are let go once
 * backward has the gradient of each (torch/distributed/fsdp/_fully_shard/_fsdp_state.py, _lazy_init
 * and _root_post_backward_final_callback). */
#include "memtape/autograd.h"
#include "parallel/parallel.h"

typedef struct entry {
    mt_module *m;     /* borrowed, ... */
    const char *name; /* ... and so is the name */
    mti_gather_fn *gather;
    void *cut;
    mt_tensor *piece; /* borrowed */
    mt_tensor *whole; /* NULL: not gathered */
    int hook;         /* on whole; 0: none */
} entry;

struct mti_kept {
    MTI_VEC(entry) all;
    size_t pending; /* wholes whose gradient is still to come */
};

static void let_go(mti_kept *k)
{
    for (size_t i = 0; i < k->all.n; i++) {
        entry *e = &k->all.at[i];
        if (e->hook) mt_remove_hook(e->whole, e->hook);
        mt_release(e->whole);
        e->whole = NULL, e->hook = 0;
    }
    k->pending = 0;
}

static void kept_free(void *user)
{
    mti_kept *k = user;
    let_go(k);
    mti_free(k->all.at);
    mti_free(k);
}

/* A whole's gradient is complete. */
static mt_tensor *on_gradient(void *user, mt_tensor *gradient)
{
    mti_kept *k = user;
    if (k->pending && !--k->pending) let_go(k);
    return mt_retain(gradient);
}

/* A forward without a tape keeps nothing. */
static bool gather_all(mti_kept *k)
{
    bool ok = true;
    let_go(k); /* of a forward that had no backward */
    for (size_t i = 0; ok && i < k->all.n && mt_grad_mode(); i++) {
        entry *e = &k->all.at[i];
        e->whole = e->gather(e->m, e->name, e->cut);
        ok = e->whole && mt_set_category(e->whole, MT_PARAMETER) == MT_OK &&
             (e->hook = mt_add_grad_hook(e->whole, on_gradient, k)) != 0;
        k->pending += ok;
    }
    if (!ok) let_go(k);
    return ok;
}

static mt_tensor *run_root(mt_module *m, void *user, mt_tensor *x)
{
    return gather_all(user) ? mti_module_run_inner(m, x) : NULL;
}

mti_kept *mti_kept_new(mt_module *root)
{
    mti_kept *k = mti_calloc(1, sizeof *k);
    if (k) mti_module_set_around(root, (mti_around){run_root, k, kept_free});
    return k;
}

bool mti_kept_add(mti_kept *k, mt_module *m, const char *name, mti_gather_fn *gather, void *cut)
{
    mt_tensor *piece = mt_module_param(m, name);
    for (size_t i = 0; i < k->all.n; i++)
        if (k->all.at[i].piece == piece) return true;
    return MTI_PUSH(&k->all, ((entry){m, name, gather, cut, piece, NULL, 0}));
}

mt_tensor *mti_kept_whole(const mti_kept *k, const mt_tensor *piece)
{
    for (size_t i = 0; i < k->all.n; i++)
        if (k->all.at[i].piece == piece) return k->all.at[i].whole;
    return NULL;
}

/* reducer.c: gradients that are summed over the ranks with other data or positions while backward
 * goes on, as PyTorch's DistributedDataParallel does (torch/csrc/distributed/c10d/reducer.cpp):
 * each as soon as the step's last backward has completed it. All ranks run the same graph, so
 * gradients are complete in the same order on all. A gradient is summed in its own memory, so it
 * needs no bucket to be copied to. */
#include "memtape/autograd.h"
#include "collectives/collectives.h"
#include "parallel/parallel.h"

typedef struct entry {
    mti_reducer *all;
    const char *name; /* borrowed, ... */
    mt_tensor *param; /* ... and so is the parameter */
    int hook;
    bool has_begun; /* since the last step */
} entry;

struct mti_reducer {
    mti_collective_queue *queue;
    mti_collective how;
    bool is_last; /* whether the backward that runs completes gradients */
    size_t n;
    entry entries[];
};

static mt_status on_gradient(void *user, mt_tensor *leaf)
{
    entry *e = user;
    if (!e->all->is_last) return MT_OK;
    if (!mti_collective_begin(e->all->queue, mt_grad(leaf), e->all->how)) return mt_last_status();
    e->has_begun = true;
    return MT_OK;
}

/* A tied weight has the gradient of both ends only when backward is done. */
static bool is_wanted(const mt_named_tensor *p, bool tied)
{
    return mt_requires_grad(p->tensor) && !(tied && mti_is_vocabulary(p->name));
}

static bool add_hooks(mti_reducer *r, const mt_named_tensor *list, size_t n, bool tied)
{
    for (size_t i = 0; i < n; i++) {
        if (!is_wanted(&list[i], tied)) continue;
        entry *e = &r->entries[r->n];
        *e = (entry){.all = r, .name = list[i].name, .param = list[i].tensor};
        if (!(e->hook = mt_add_leaf_hook(e->param, on_gradient, e))) return false;
        r->n++;
    }
    return true;
}

mti_reducer *mti_reducer_new(mt_device *device, const mt_group *group, bool scatter,
                             mt_module *model, bool tied)
{
    const mt_named_tensor *list;
    size_t n;
    if (mt_module_params(model, &list, &n) != MT_OK) return NULL;
    mti_reducer *r = mti_calloc(1, sizeof *r + n * sizeof *r->entries);
    if (!r) return NULL;
    r->how = scatter ? MTI_REDUCE_SCATTER : MTI_ALL_REDUCE;
    r->queue = mti_collective_queue_new(device, group);
    if (r->queue && add_hooks(r, list, n, tied)) return r;
    mti_reducer_free(r);
    return NULL;
}

void mti_reducer_free(mti_reducer *r)
{
    if (!r) return;
    if (r->queue) mti_collective_end(r->queue);
    mti_collective_queue_free(r->queue);
    for (size_t i = 0; i < r->n; i++) mt_remove_hook(r->entries[i].param, r->entries[i].hook);
    mti_free(r);
}

bool mti_reducer_start(mti_reducer *r)
{
    for (size_t i = 0; i < r->n; i++) {
        entry *e = &r->entries[i];
        if (e->has_begun && mt_grad(e->param))
            return mti_fail_bool(MT_ERR_STATE,
                                 "stage_backward: the gradient of %s is the sum over all ranks "
                                 "already; need stage_step first, or reduce MT_REDUCE_AFTER",
                                 e->name);
        e->has_begun = false;
    }
    return true;
}

void mti_reducer_set_last(mti_reducer *r, bool is_last) { r->is_last = is_last; }

bool mti_reducer_finish(mti_reducer *r)
{
    r->is_last = false;
    if (!mti_collective_end(r->queue)) return false;
    for (size_t i = 0; i < r->n; i++)
        if (r->entries[i].has_begun && !mt_grad(r->entries[i].param))
            return mti_fail_bool(MT_ERR_STATE,
                                 "stage_backward: the gradient of %s was dropped while the ranks "
                                 "summed it; need the step by stage_step",
                                 r->entries[i].name);
    return true;
}

bool mti_reducer_has(const mti_reducer *r, const mt_tensor *param)
{
    for (size_t i = 0; i < r->n; i++)
        if (r->entries[i].param == param) return r->entries[i].has_begun;
    return false;
}

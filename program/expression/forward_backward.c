/* forward_backward.c: forward and backward of an expression, term by term. */
#include <string.h>
#include "expression/walk.h"

static bool backward(mti_expression_walk *walk, mt_device *device, mt_tensor *y)
{
    MT_AUTO mt_tensor *dy = mt_normal(device, mt_dtype_of(y), mt_rank(y), mt_shape(y), 0, 1);
    const mt_backward_options options = {.gradient = dy};
    walk->again = true;
    bool ok = dy && mt_set_phase("backward") == MT_OK && mt_backward_with(y, &options) == MT_OK;
    mti_expression_end_pending(walk, NULL);
    return ok && !walk->failed;
}

/* Notes where the leaves' gradients are. */
static bool note_leaves(mti_expression_walk *walk, mt_tensor *const *leaves)
{
    bool ok = true;
    for (int i = 0; ok && i < walk->e->n_leaves; i++) {
        const mt_tensor *grad = mt_grad(leaves[i]);
        const char *name = walk->e->leaves[i].name;
        if (grad)
            ok = MTI_PUSH(&walk->gradients,
                          ((mti_expression_gradient){mt_storage_of(grad).serial, name, strlen(name),
                                                     walk->timeline.events.n}));
    }
    return ok;
}

static bool run(mti_expression_walk *walk, mt_device *device, mt_tensor *const *leaves)
{
    for (int i = 0; i < walk->e->n_leaves; i++) walk->storages[i] = mt_storage_of(leaves[i]).serial;
    if (mt_set_phase("forward") != MT_OK || !mti_tape_begin(&walk->tape)) return false;
    MT_AUTO mt_tensor *y = mti_expression_run(walk->e, leaves, walk);
    return mti_tape_end(&walk->tape, y) &&
           (!mt_requires_grad(y) || (backward(walk, device, y) && note_leaves(walk, leaves)));
}

bool mti_expression_walk_of(mti_expression_walk *walk, mt_device *device, const mti_expression *e)
{
    mt_tensor *leaves[MTI_MAX_LEAVES];
    *walk = (mti_expression_walk){.e = e};
    if (!mti_expression_begin_steps(walk) || !mti_timeline_begin(&walk->timeline, device) ||
        !mti_leaves_make(e, device, leaves))
        return false;
    bool ok = run(walk, device, leaves);
    mt_set_phase(NULL);
    ok = mti_timeline_end(&walk->timeline) && ok; /* what is freed now is of no step */
    for (int i = 0; i < e->n_leaves; i++) mt_release(leaves[i]);
    return ok;
}

void mti_expression_walk_free(mti_expression_walk *walk)
{
    mti_timeline_free(&walk->timeline);
    mti_tape_free(&walk->tape);
    mti_free(walk->steps.at);
    mti_free(walk->gradients.at);
    mti_free(walk->hooks);
}

/* steps.c: notes which term ran, forward and backward, and how many events there were then. */
#include "expression/walk.h"

struct mti_expression_hook {
    mti_expression_walk *walk;
    size_t term;
    uint64_t node;
};

bool mti_expression_begin_steps(mti_expression_walk *walk)
{
    walk->hooks = mti_calloc(walk->e->n_terms, sizeof *walk->hooks);
    return walk->hooks != NULL;
}

static void push(mti_expression_walk *walk, const char *phase, size_t term, uint64_t node)
{
    const mti_expression_step step = {phase, term, node, walk->timeline.events.n};
    if (!MTI_PUSH(&walk->steps, step)) walk->failed = true;
}

void mti_expression_end_pending(mti_expression_walk *walk, struct mti_expression_hook *next)
{
    if (walk->pending) push(walk, "backward", walk->pending->term, walk->pending->node);
    walk->pending = next;
}

static mt_tensor *note_gradient(void *user, mt_tensor *grad)
{
    struct mti_expression_hook *h = user;
    mti_expression_end_pending(h->walk, h);
    const mti_expression *e = h->walk->e;
    const mti_term *t = &e->terms[h->term];
    const mti_expression_gradient g = {
        mt_storage_of(grad).serial, e->options.text + (t->name_length ? t->name : t->from),
        t->name_length ? t->name_length : t->to - t->from, h->walk->timeline.events.n};
    if (!MTI_PUSH(&h->walk->gradients, g)) h->walk->failed = true;
    return mt_retain(grad);
}

bool mti_expression_note(mti_expression_walk *walk, size_t term, mt_tensor *value)
{
    const mti_term_kind kind = walk->e->terms[term].kind;
    if (kind == MTI_TERM_LEAF || kind == MTI_TERM_NAME || kind == MTI_TERM_CHECKPOINT) return true;
    const uint64_t node = mt_grad_fn_sequence(value);
    push(walk, walk->again ? "recompute" : "forward", term, walk->again ? 0 : node);
    if (!node || walk->again) return !walk->failed;
    walk->hooks[term] = (struct mti_expression_hook){walk, term, node};
    return mt_add_grad_hook(value, note_gradient, &walk->hooks[term]) && !walk->failed;
}

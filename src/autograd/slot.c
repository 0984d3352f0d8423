/* slot.c: what a saved tensor's slot is, and which slots hold a storage.
 *
 * Each storage has a list of the slots that keep it, so that an op about to overwrite it can name
 * the op whose backward still needs it. */
#include <sched.h>
#include <stdio.h>
#include "autograd/autograd.h"

/* A mark counts only if every wanted gradient that needs the slot has it. */
static uint64_t marks_of(const mti_node *n, int bit)
{
    uint64_t marks = UINT64_MAX;
    for (int i = 0; i < MTI_MAX_KEEP && n->want >> i; i++) {
        uint64_t keep = n->op->keep[i] >> bit;
        if ((n->want >> i & 1) && (keep & 1)) marks &= keep;
    }
    return marks;
}

mt_save_info mti_slot_info(const mti_saved_tensor *s)
{
    const mti_node *n = s->node;
    if (!n) return ((const mt_saved *)s)->info;
    const mti_op *op = n->op;
    int bit = s->bit;
    mt_save_info info = {.op = op->name, .module = n->module, .node = n->sequence, .argument = ""};
    if (bit < 8)
        info.role = MT_SAVE_INPUT, info.index = bit, info.argument = op->in[bit];
    else if (bit < 12)
        info.role = MT_SAVE_OUTPUT, info.index = bit - 8,
        info.argument = mti_out_letter(op, bit - 8);
    else
        info.role = MT_SAVE_AUX, info.index = bit - 12, info.argument = op->aux[bit - 12];
    uint64_t marks = marks_of(n, bit);
    if (marks >> MTI_SIGN_MARK & 1) info.read = MT_READ_SIGN;
    if (marks >> MTI_DRAWN_MARK & 1)
        info.p = n->draw.p, info.seed = n->draw.seed, info.offset = n->draw.offset;
    return info;
}

/* ---- a storage's slots ---- */

/* A spin lock: threads wait only if they save the same tensor, such as a weight, at once. */
static void lock(mti_storage *s)
{
    while (atomic_flag_test_and_set_explicit(&s->busy, memory_order_acquire)) sched_yield();
}

static void unlock(mti_storage *s) { atomic_flag_clear_explicit(&s->busy, memory_order_release); }

void mti_slot_hold(mti_saved_tensor *s)
{
    if (!s->kept) return;
    mti_storage *storage = s->kept->storage;
    lock(storage);
    s->next = storage->holders;
    s->link = &storage->holders;
    if (s->next) s->next->link = &s->next;
    storage->holders = s;
    atomic_fetch_add_explicit(&storage->saved, 1, memory_order_relaxed);
    unlock(storage);
}

void mti_slot_unhold(mti_saved_tensor *s)
{
    if (!s->kept) return;
    mti_storage *storage = s->kept->storage;
    lock(storage);
    if (s->link) { /* read under the lock: a neighbour in the list may change it */
        *s->link = s->next;
        if (s->next) s->next->link = s->link;
        s->link = NULL;
        atomic_fetch_sub_explicit(&storage->saved, 1, memory_order_relaxed);
    }
    unlock(storage);
}

bool mti_check_holders(const mti_op *op, mti_storage *s)
{
    mt_save_info info = {0};
    int n_others = -1;
    lock(s);
    for (const mti_saved_tensor *t = s->holders; t; t = t->next, n_others++)
        if (!t->next) info = mti_slot_info(t); /* the first that saved it */
    unlock(s);
    if (n_others < 0) return true;
    char more[48] = "";
    if (n_others)
        snprintf(more, sizeof more, " (and %d other%s)", n_others, n_others == 1 ? "" : "s");
    static const char *const roles[] = {"input", "output", "auxiliary"};
    return mti_fail_bool(MT_ERR_STATE,
                         "%s: x must not change: the backward of %s%s%s needs it as its %s %s%s "
                         "(use the op that is not in place)",
                         op->name, info.op, *info.module ? " in " : "", info.module,
                         roles[info.role], info.argument, more);
}

/* slot.c: what a saved tensor's slot is, and which slots hold a storage.
 *
 * Each storage has a list of the slots that keep it, so that an op about to overwrite it can name
 * the op whose backward still needs it. */
#include <stdio.h>
#include <string.h>
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

static mt_save_role role_of(int bit)
{
    return bit < MTI_OUT_BIT ? MT_SAVE_INPUT : bit < MTI_AUX_BIT ? MT_SAVE_OUTPUT : MT_SAVE_AUX;
}

static int index_of(int bit)
{
    return bit < MTI_OUT_BIT ? bit : bit < MTI_AUX_BIT ? bit - MTI_OUT_BIT : bit - MTI_AUX_BIT;
}

static const char *letter_of(const mti_op *op, int bit)
{
    int i = index_of(bit);
    return bit < MTI_OUT_BIT ? op->in[i] : bit < MTI_AUX_BIT ? mti_out_letter(op, i) : op->aux[i];
}

mt_save_info mti_slot_info(const mti_saved_tensor *s)
{
    const mti_node *n = s->node;
    if (!n) return ((const mt_saved *)s)->info;
    mt_save_info info = {.op = n->op->name,
                         .argument = letter_of(n->op, s->bit),
                         .index = index_of(s->bit),
                         .role = role_of(s->bit),
                         .module = n->module,
                         .node = n->sequence};
    uint64_t marks = marks_of(n, s->bit);
    if (marks >> MTI_SIGN_MARK & 1) info.read = MT_READ_SIGN;
    if (marks >> MTI_DRAWN_MARK & 1)
        info.p = n->draw.p, info.seed = n->draw.seed, info.offset = n->draw.offset;
    return info;
}

mt_saver mt_saver_of(const mt_save_info *info, const mt_tensor *t)
{
    if (!info) mti_fail(MT_ERR_ARGUMENT, "saver_of: the info is NULL");
    if (!info || !mti_given(t, "saver_of", "the tensor")) return (mt_saver){0};
    mt_saver s = {.module = info->module,
                  .op = info->op,
                  .argument = info->argument,
                  .role = info->role,
                  .node = info->node,
                  .dtype = t->view.dtype,
                  .rank = t->view.rank};
    memcpy(s.shape, t->view.shape, (size_t)s.rank * sizeof *s.shape);
    return s;
}

mt_saver mti_slot_saver(const mti_saved_tensor *s, const mt_tensor *t)
{
    const mti_node *n = s->node;
    if (!n) return mt_saver_of(&((const mt_saved *)s)->info, t);
    mt_saver saver = {.module = n->module,
                      .op = n->op->name,
                      .argument = letter_of(n->op, s->bit),
                      .role = role_of(s->bit),
                      .node = n->sequence,
                      .dtype = t->view.dtype,
                      .rank = t->view.rank};
    for (int d = 0; d < saver.rank; d++) saver.shape[d] = t->view.shape[d];
    return saver;
}

/* ---- a storage's slots ---- */

/* Under the lock; others may read the count. */
static void count_holders(mti_storage *s, int more)
{
    int n = atomic_load_explicit(&s->saved, memory_order_relaxed);
    atomic_store_explicit(&s->saved, n + more, memory_order_relaxed);
}

void mti_slot_hold(mti_saved_tensor *s)
{
    if (!s->kept) return;
    mti_storage *storage = s->kept->storage;
    mti_storage_lock(storage);
    s->next = storage->holders;
    s->link = &storage->holders;
    if (s->next) s->next->link = &s->next;
    storage->holders = s;
    count_holders(storage, 1);
    mti_storage_unlock(storage);
}

void mti_slot_unhold(mti_saved_tensor *s)
{
    if (!s->kept) return;
    mti_storage *storage = s->kept->storage;
    mti_storage_lock(storage);
    if (s->link) { /* read under the lock: a neighbour in the list may change it */
        *s->link = s->next;
        if (s->next) s->next->link = s->link;
        s->link = NULL;
        count_holders(storage, -1);
    }
    mti_storage_unlock(storage);
}

bool mti_check_holders(const mti_op *op, mti_storage *s)
{
    mt_save_info info = {0};
    int n_others = -1;
    mti_storage_lock(s);
    for (const mti_saved_tensor *t = s->holders; t; t = t->next, n_others++)
        if (!t->next) info = mti_slot_info(t); /* the first that saved it */
    mti_storage_unlock(s);
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

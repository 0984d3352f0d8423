/* checkpoint_outputs.c: what ops save of a checkpoint's outputs, given up and made again. */
#include "hooks/checkpoint.h"
#include "memtape/host_copy.h"

/* One saved tensor. */
typedef struct slot {
    mti_discarded *of;
    mt_layout layout; /* in the storage */
} slot;

mt_status mti_outputs_pack(void *user, const mt_save_info *info, mt_tensor *t, mt_tensor **kept,
                           void **state)
{
    mti_frame *f = user;
    const uint64_t serial = mt_storage_of(t).serial;
    int i = 0;
    (void)info;
    while (i < f->n_out && f->out[i].serial != serial) i++;
    if (i == f->n_out) return MT_OK;
    slot *s = mti_malloc(sizeof *s);
    if (!s) return mt_last_status();
    *s = (slot){&f->out[i], mt_layout_of(t)};
    f->out[i].n++;
    *kept = NULL, *state = s;
    return MT_OK;
}

static void forget(mti_discarded *d)
{
    mt_release(d->again);
    d->again = NULL;
}

/* Sets *tensor to the saved view of what was made again; if it was not yet, to NULL. */
mt_status mti_outputs_unpack(mt_tensor **tensor, const void *state)
{
    const slot *s = state;
    if (!s) return MT_OK;
    if (!s->of->again) return *tensor = NULL, MT_OK;
    *tensor = mt_view_as(s->of->again, &s->layout);
    if (*tensor && s->of->unread && !--s->of->unread) forget(s->of);
    return *tensor ? MT_OK : mt_last_status();
}

void mti_outputs_drop(void *user, const mt_save_info *info, void *state)
{
    slot *s = state;
    (void)user, (void)info;
    if (s && !--s->of->n) forget(s->of);
    mti_free(s);
}

bool mti_outputs_note(mti_frame *f, mt_tensor *const *outputs)
{
    f->out = mti_calloc((size_t)f->n_out, sizeof *f->out);
    for (int i = 0; f->out && i < f->n_out; i++)
        f->out[i].serial = mt_storage_of(outputs[i]).serial;
    return f->out != NULL;
}

bool mti_outputs_take(mti_frame *f, mt_tensor *const *outputs)
{
    for (int i = 0; i < f->n_out; i++) {
        mti_discarded *d = &f->out[i];
        if (!d->n || d->again) continue;
        if (!(d->again = mt_detach(outputs[i]))) return false;
        d->unread = d->n;
    }
    return true;
}

void mti_outputs_free(mti_frame *f)
{
    for (int i = 0; f->out && i < f->n_out; i++) mt_release(f->out[i].again);
    mti_free(f->out);
}

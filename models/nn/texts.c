/* texts.c: texts of different lengths side by side, in rows that end with them. */
#include "nn/model.h"
#include "memtape/ops.h"

mt_tensor *mti_text_at(mt_tensor *x, int64_t i, int64_t n)
{
    MT_AUTO mt_tensor *row = mt_slice(x, 0, i, 1);
    return row ? mt_slice(row, 1, mt_shape(x)[1] - n, n) : NULL;
}

/* Puts y [1,n,d] in the place of text i of *all [b,s,d], which the first one makes. */
static bool put(mt_tensor **all, int64_t b, int64_t s, int64_t i, const mt_tensor *y)
{
    const int64_t *shape = mt_shape(y);
    if (!*all) *all = mt_zeros(mt_device_of(y), mt_dtype_of(y), MT_SHAPE(b, s, shape[2]));
    MT_AUTO mt_tensor *place = *all ? mti_text_at(*all, i, shape[1]) : NULL;
    return place && mt_copy(place, y) == MT_OK;
}

/* run(self, what text i has of `in`) */
static mt_tensor *run_text(mt_module *self, mti_run_fn *run, int64_t i, int64_t length, int n_in,
                           mt_tensor *const *in)
{
    mt_tensor *own[3] = {NULL, NULL, NULL}, *y = NULL;
    bool ok = true;
    for (int k = 0; ok && k < n_in; k++) ok = (own[k] = mti_text_at(in[k], i, length)) != NULL;
    if (ok) y = run(self, own);
    for (int k = 0; k < n_in; k++) mt_release(own[k]);
    return y;
}

mt_tensor *mti_each_text(mt_module *self, mti_heads *heads, mti_run_fn *run, int n_in,
                         mt_tensor *const *in)
{
    const mti_texts *texts = heads->texts;
    const int64_t b = mt_shape(in[0])[0], s = mt_shape(in[0])[1];
    mti_rope_tables *tables = heads->tables;
    mt_tensor *all = NULL;
    bool ok = true;
    heads->texts = NULL, heads->tables = NULL; /* which begin where the text begins */
    for (int64_t i = 0; ok && i < b; i++) {
        if (texts->turn_to) texts->turn_to(texts, i, heads);
        MT_AUTO mt_tensor *y = run_text(self, run, i, texts->lengths[i], n_in, in);
        ok = y && put(&all, b, s, i, y);
    }
    heads->texts = texts, heads->tables = tables;
    if (!ok) mt_set(&all, NULL);
    return all;
}

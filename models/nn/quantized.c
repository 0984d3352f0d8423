/* quantized.c: a linear whose frozen weight is kept in 8 or 4 bits.
 *
 * A linear over a dequantised temporary, with a saved-tensor hook so that the tape does not keep
 * it: pack keeps nothing, unpack dequantises again. A separate op could do the same, but the hook
 * uses the public API alone, nests with checkpoints and the ledger, and reuses linear as it is. */
#include <string.h>
#include "memtape/autocast.h"
#include "memtape/ops.h"
#include "nn/quantized.h"

typedef struct weight {
    mt_quant format;
    mt_dtype dtype; /* of the original linear */
    int rank;
    int64_t shape[3];  /* [out,in]; of experts [experts,out,in] */
    mt_tensor *counts; /* of experts' rows, while they run; borrowed */
} weight;

static mt_tensor *dequantize(const weight *w, mt_tensor *codes, mt_dtype dtype)
{
    mt_tensor *t = mt_dequantize(codes, &w->format, dtype, w->rank, w->shape);
    if (!t || mt_set_category(t, MT_TEMPORARY) == MT_OK) return t;
    mt_release(t);
    return NULL;
}

/* ---- the hook around one call ---- */

typedef struct saved_weight {
    weight weight;
    mt_tensor *codes; /* retained */
    mt_dtype dtype;   /* what was packed; autocast may have cast */
    uint64_t version; /* of the codes when it was saved */
} saved_weight;

static mt_status pack(void *user, const mt_save_info *info, mt_tensor *tensor, mt_tensor **kept,
                      void **state)
{
    saved_weight *s = user;
    (void)state;
    if (info->role != MT_SAVE_INPUT || info->index != 1) return MT_OK;
    s->dtype = mt_dtype_of(tensor);
    *kept = NULL;
    return MT_OK;
}

static mt_status unpack(void *user, const mt_save_info *info, mt_tensor **tensor, void *state)
{
    saved_weight *s = user;
    (void)state;
    if (info->role != MT_SAVE_INPUT || info->index != 1) return MT_OK;
    if (mt_storage_of(s->codes).version != s->version)
        return mti_fail(MT_ERR_STATE,
                        "linear backward in %s: the quantised weight was changed in place "
                        "after it was used",
                        info->module);
    *tensor = mt_dequantize(s->codes, &s->weight.format, s->dtype, s->weight.rank, s->weight.shape);
    return *tensor ? MT_OK : mt_last_status();
}

static void destroy(void *user)
{
    saved_weight *s = user;
    mt_release(s->codes);
    mti_free(s);
}

static bool push_hook(const weight *w, mt_tensor *codes)
{
    saved_weight *s = mti_malloc(sizeof *s);
    if (!s) return false;
    *s = (saved_weight){*w, mt_retain(codes), w->dtype, mt_storage_of(codes).version};
    if (mt_push_saved_hooks(&(mt_saved_hooks){pack, unpack, NULL, destroy}, s) == MT_OK)
        return true;
    destroy(s);
    return false;
}

/* ---- the module ---- */

static mt_tensor *forward(mt_module *self, mt_tensor *x)
{
    const weight *w = mt_module_user(self);
    mt_tensor *codes = mt_module_param(self, "weight");
    mt_dtype dtype = w->dtype;
    mt_autocast_active(&dtype);
    MT_AUTO mt_tensor *dense = dequantize(w, codes, dtype);
    if (!dense || !push_hook(w, codes)) return NULL;
    mt_tensor *y = w->rank == 3 ? mt_grouped_linear(x, dense, w->counts)
                                : mt_linear(x, dense, mt_module_param(self, "bias"));
    mt_pop_saved_hooks();
    return y;
}

mt_module *mti_linear_quantized_new(const mt_module *linear, const mt_quant *format)
{
    static const char *const names[] = {"linear_int8", "linear_nf4", "linear_mxfp4"};
    mt_tensor *dense = mt_module_param(linear, "weight"), *bias = mt_module_param(linear, "bias");
    weight *w = mti_malloc(sizeof *w);
    if (!w) return NULL;
    *w = (weight){.format = *format, .dtype = mt_dtype_of(dense), .rank = mt_rank(dense)};
    memcpy(w->shape, mt_shape(dense), (size_t)w->rank * sizeof *w->shape);
    mt_module *m = mt_module_new(names[format->format], forward, w, mti_free);
    bool wanted = mt_requires_grad(bias);
    bool complete = m && mt_module_add_param(m, "weight", mt_quantize(dense, &w->format)) &&
                    (!bias || mt_module_add_param(m, "bias", mt_retain(bias)));
    if (bias) mt_set_requires_grad(bias, wanted); /* add_param had set it */
    if (complete) mti_module_note_codes(m, mt_numel(dense), mt_numel(mt_module_param(m, "weight")));
    return mti_module_complete(m, complete);
}

bool mti_is_linear_quantized(const mt_module *m) { return mti_module_runs(m, forward); }

void mti_linear_quantized_set_counts(mt_module *m, mt_tensor *counts)
{
    ((weight *)mt_module_user(m))->counts = counts;
}

mt_tensor *mti_linear_quantized_weight(const mt_module *m, mt_dtype dtype)
{
    return dequantize(mt_module_user(m), mt_module_param(m, "weight"), dtype);
}

mt_dtype mti_linear_quantized_dtype(const mt_module *m)
{
    return ((const weight *)mt_module_user(m))->dtype;
}

/* forms.c: our own forms, one op each where there is one, and which form a choice names. */
#include "stacks/forms.h"

static mt_tensor *rms_norm_one(mt_tensor *x, mt_tensor *w, double eps)
{
    MT_AUTO mt_tensor *one = mt_add_scalar(w, 1);
    return one ? mt_rms_norm(x, one, eps) : NULL;
}

mti_forms mti_forms_of(const mt_op_choices *c, const mt_forms *own)
{
    mti_forms f = {.gelu_tanh = mt_gelu_tanh,
                   .swiglu = mt_swiglu,
                   .rms_norm = mt_rms_norm,
                   .rms_norm_one = rms_norm_one,
                   .rotate = mti_rotate,
                   .core = {.repeated = c->kv_groups == MT_KV_REPEATED,
                            .masked = c->window_mask == MT_WINDOW_MASK_KEPT,
                            .wide = c->softmax == MT_PRECISION_F32}};
    if (c->gelu_tanh) f.gelu_tanh = mti_transformers_gelu_tanh;
    if (c->swiglu) f.swiglu = mti_transformers_swiglu;
    if (c->rms_norm)
        f.rms_norm = mti_transformers_rms_norm, f.rms_norm_one = mti_transformers_rms_norm_one;
    if (c->rope) f.rotate = mti_transformers_rotate;
    if (own && own->gelu_tanh) f.gelu_tanh = own->gelu_tanh;
    if (own && own->swiglu) f.swiglu = own->swiglu;
    if (own && own->rms_norm) f.rms_norm = own->rms_norm;
    return f;
}

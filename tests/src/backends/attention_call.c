#include <math.h>
#include "attention_call.h"

/* A view [b,a,s,d] of memory [b,s,a,d], the layout of heads after a projection. */
static mti_view heads(mt_dtype dtype, int64_t b, int64_t a, int64_t s, int64_t d)
{
    mti_view v = values_new(dtype, 4, (int64_t[]){b, s, a, d});
    v.shape[1] = a, v.shape[2] = s;
    v.stride[1] = d, v.stride[2] = a * d;
    return v;
}

void attention_call_make_with(attention_call *c, const attention_sizes *z, mt_dtype dtype,
                              mt_dtype lse)
{
    *c = (attention_call){.z = *z, .scale = 1.0 / sqrt((double)z->d), .seed = 42, .offset = 1001};
    c->seed_view = values_i64(c->seed);
    c->offset_view = values_i64(c->offset);
    c->q = heads(dtype, z->b, z->a, z->s, z->d), c->o = heads(dtype, z->b, z->a, z->s, z->d);
    c->k = heads(dtype, z->b, z->a_kv, z->t, z->d), c->v = heads(dtype, z->b, z->a_kv, z->t, z->d);
    c->lse = values_new(lse, 3, (int64_t[]){z->b, z->a, z->s});
    c->d_o = values_new(dtype, 4, (int64_t[]){z->b, z->a, z->s, z->d});
    c->dq = heads(dtype, z->b, z->a, z->s, z->d);
    c->dk = heads(dtype, z->b, z->a_kv, z->t, z->d);
    c->dv = values_new(dtype, 4, (int64_t[]){z->b, z->a_kv, z->t, z->d});
    values_random(&c->q, 1), values_random(&c->k, 2), values_random(&c->v, 3);
    values_random(&c->d_o, 4);
    c->sinks = values_new(dtype, 1, (int64_t[]){z->a}),
    c->d_sinks = values_new(dtype, 1, (int64_t[]){z->a});
    values_random(&c->sinks, 5);
    for (int64_t i = 0; i < mti_view_count(&c->q);
         i++) /* large enough that the running maximum changes */
        values_set(&c->q, i, 4 * values_get(&c->q, i));
}

void attention_call_make(attention_call *c, const attention_sizes *z, mt_dtype dtype)
{
    attention_call_make_with(c, z, dtype, dtype == MT_F64 ? MT_F64 : MT_F32);
}

mti_attention attention_of(attention_call *c, bool with_lse)
{
    return (mti_attention){.q = &c->q,
                           .k = &c->k,
                           .v = &c->v,
                           .o = &c->o,
                           .lse = with_lse ? &c->lse : NULL,
                           .scale = c->scale,
                           .p = c->z.p,
                           .causal = c->z.causal,
                           .window = c->z.window,
                           .seed = c->z.p > 0 ? &c->seed_view : NULL,
                           .offset = c->z.p > 0 ? &c->offset_view : NULL,
                           .sinks = c->z.sinks ? &c->sinks : NULL};
}

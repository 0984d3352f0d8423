/* attention_call.h: the arguments of one call of attention, with random numbers. */
#ifndef MTT_ATTENTION_CALL_H
#define MTT_ATTENTION_CALL_H

#include "values.h"

typedef struct attention_sizes {
    int64_t b, a, a_kv, s, t, d;
    bool causal;
    double p;
    int64_t window;
    bool sinks;
} attention_sizes;

typedef struct attention_call {
    attention_sizes z;
    double scale;
    int64_t seed, offset;
    mti_view seed_view, offset_view;
    mti_view q, k, v, o, lse, d_o, dq, dk, dv, sinks, d_sinks;
} attention_call;

/* The log-sum-exp is f64 if `dtype` is, else f32. The views live until values_free_all. */
void attention_call_make(attention_call *c, const attention_sizes *z, mt_dtype dtype);
/* lse: the dtype of the log-sum-exp. */
void attention_call_make_with(attention_call *c, const attention_sizes *z, mt_dtype dtype,
                              mt_dtype lse);
mti_attention attention_of(attention_call *c, bool with_lse);

#endif

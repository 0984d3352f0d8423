/* chain.c: linears behind one another. */
#include <stdlib.h>
#include "chain.h"

mt_offload *made_offload(mt_offload *o)
{
    if (!o) fail_msg("%s", mt_last_error());
    return o;
}

mt_offload_stats stats_of(mt_offload *o)
{
    mt_offload_stats s;
    mtt_ok(mt_offload_get_stats(o, &s));
    assert_int_equal(s.lowered, s.peak_without - s.peak);
    assert_true(s.copy_s >= 0 && s.wait_s >= 0 && s.hidden >= 0 && s.hidden <= 1);
    return s;
}

int open_without_workspace(void **state)
{
    setenv("CUBLAS_WORKSPACE_CONFIG", ":0:0", 1);
    return mtt_open_device(state);
}

chain open_chain(mt_device *on)
{
    chain c = {on, mtt_made(mtt_random(on, MT_F32, MT_SHAPE(ROWS, WIDTH), 1, -1, 1)), {0}};
    mtt_ok(mt_set_category(c.x, MT_INPUT));
    for (int i = 0; i < LAYERS; i++) {
        c.w[i] = mtt_made(mtt_random(on, MT_F32, MT_SHAPE(WIDTH, WIDTH), 2 + (uint64_t)i, -1, 1));
        mtt_ok(mt_set_category(c.w[i], MT_PARAMETER));
        mtt_ok(mt_set_requires_grad(c.w[i], true));
    }
    return c;
}

void close_chain(chain *c)
{
    mt_release(c->x);
    for (int i = 0; i < LAYERS; i++) mt_release(c->w[i]);
}

mt_tensor *chain_loss(const chain *c)
{
    MT_AUTO mt_tensor *h = mt_retain(c->x);
    for (int i = 0; i < LAYERS; i++) mt_set(&h, mt_linear(h, c->w[i], NULL));
    return mt_sum_all(h);
}

void chain_zero(chain *c)
{
    for (int i = 0; i < LAYERS; i++) mtt_ok(mt_set_grad(c->w[i], NULL));
}

unsigned char *chain_grads(const chain *c)
{
    unsigned char *all = malloc((size_t)LAYERS * D);
    assert_non_null(all);
    for (int i = 0; i < LAYERS; i++) mtt_ok(mt_to_host(mt_grad(c->w[i]), all + i * D, D));
    return all;
}

step chain_step(chain *c, mt_offload *o)
{
    step s = {0};
    mt_mem_region whole, forward;
    for (int i = 0; i < LAYERS; i++) {
        MT_AUTO mt_tensor *zero = mtt_made(mt_zeros(c->device, MT_F32, MT_SHAPE(WIDTH, WIDTH)));
        mtt_ok(mt_set_grad(c->w[i], zero));
    }
    mt_mem_region_begin(&whole, c->device);
    mt_mem_region_begin(&forward, c->device);
    if (o) mtt_ok(mt_offload_begin(o));
    mt_tensor *loss = mtt_made(chain_loss(c));
    if (o) mtt_ok(mt_offload_end(o));
    mt_mem_region_end(&forward);
    mtt_ok(mt_backward(loss));
    if (o) s.stats = stats_of(o);
    mt_release(loss);
    mt_mem_region_end(&whole);
    s.peak = (size_t)whole.delta.peak;
    s.forward_peak = (size_t)forward.delta.peak;
    s.after_forward = (size_t)forward.delta.current;
    s.grads = chain_grads(c);
    chain_zero(c);
    return s;
}

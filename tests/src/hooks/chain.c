/* chain.c: a chain of linears. */
#include <stdlib.h>
#include "base/base.h"
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

mt_status chain_try(const chain *c, mt_offload *o)
{
    mt_status status = mt_offload_begin(o);
    if (status != MT_OK) return status;
    MT_AUTO mt_tensor *loss = chain_loss(c);
    status = loss ? MT_OK : mt_last_status();
    mt_status ended = mt_offload_end(o);
    if (status == MT_OK) status = ended;
    return status == MT_OK ? mt_backward(loss) : status;
}

void chain_check(chain *c, const unsigned char *expected)
{
    unsigned char *grads = chain_grads(c);
    assert_memory_equal(grads, expected, LAYERS * D);
    free(grads);
    chain_zero(c);
}

static mt_status try_new(const chain *c, const mt_offload_options *options)
{
    mt_offload *o = mt_offload_new(c->device, options);
    mt_status status = o ? chain_try(c, o) : mt_last_status();
    mt_offload_free(o);
    return status;
}

uint64_t chain_fail_each(const mt_offload_options *options, uint64_t again)
{
    chain c = open_chain(device);
    step plain = chain_step(&c, NULL);
    size_t before = mtt_allocated(device);
    uint64_t n = 1, n_refused = 0;
    for (bool reached = true; reached; n++) {
        mt_mem_empty_cache(device);
        mti_fail_nth_alloc(n);
        mt_status status = try_new(&c, options);
        reached = mti_alloc_count() >= n;
        mti_fail_nth_alloc(0);
        if (status == MT_OK) {
            chain_check(&c, plain.grads);
        } else {
            n_refused++;
            assert_true(reached);
            assert_int_equal(status, MT_ERR_MEMORY);
            mtt_failed(MT_ERR_MEMORY, "");
        }
        assert_int_equal(mt_last_status(), MT_OK);
        chain_zero(&c);
        assert_int_equal(mtt_allocated(device), before);
        mtt_ok(mt_check_balance(device));
        if (n % again) continue;
        mtt_ok(try_new(&c, options));
        chain_check(&c, plain.grads);
    }
    print_message("%llu allocations failed in turn: %llu clean errors\n",
                  (unsigned long long)(n - 2), (unsigned long long)n_refused);
    free(plain.grads);
    close_chain(&c);
    return n_refused;
}

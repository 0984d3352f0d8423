#include <math.h>
#include "compressed.h"

mt_compress *compressor(unsigned rules)
{
    mt_compress *c =
        mt_compress_new(device, &(mt_compress_options){.rules = rules, .min_bytes = 1});
    assert_non_null(c);
    return c;
}

mt_tensor *leaf(mt_dtype dtype, int rank, const int64_t *shape, uint64_t seed)
{
    mt_tensor *t = mtt_made(mtt_random(device, dtype, rank, shape, seed, -1, 1));
    mtt_ok(mt_set_requires_grad(t, true));
    return t;
}

net open_net(mt_dtype dtype)
{
    net n = {dtype, leaf(dtype, MT_SHAPE(ROWS, WIDTH), 1), leaf(dtype, MT_SHAPE(WIDE, WIDTH), 2),
             leaf(dtype, MT_SHAPE(WIDTH, WIDE), 3)};
    mtt_ok(mt_set_category(n.w1, MT_PARAMETER));
    mtt_ok(mt_set_category(n.w2, MT_PARAMETER));
    return n;
}

void close_net(net *n) { mt_release(n->x), mt_release(n->w1), mt_release(n->w2); }

mt_tensor *mlp(net *n, act_fn *act)
{
    mt_tensor *h = mt_linear(n->x, n->w1, NULL);
    if (h) mt_set(&h, act(h));
    if (h) mt_set(&h, mt_dropout(h, 0.25));
    if (h) mt_set(&h, mt_linear(h, n->w2, NULL));
    if (h) mt_set(&h, mt_mean_all(h));
    return h;
}

outcome run(net *n, net_fn *fn, act_fn *act, mt_compress *c)
{
    outcome o = {.saved = 0};
    mt_tensor *in[3] = {n->x, n->w1, n->w2};
    mt_seed(device, 77);
    mt_ledger *ledger = mt_ledger_new(device);
    mtt_ok(mt_ledger_begin(ledger));
    if (c) mtt_ok(mt_compress_begin(c));
    mt_tensor *loss = mtt_made(fn(n, act));
    if (c) mtt_ok(mt_compress_end(c));
    mtt_ok(mt_ledger_end(ledger));
    if (c) mtt_ok(mt_compress_get_stats(c, &o.stats));
    o.saved = mt_ledger_bytes(ledger);
    mtt_ok(mt_backward(loss));
    mtt_ok(mt_check_balance(device));
    mt_release(loss);
    mt_ledger_free(ledger);
    for (int i = 0; i < 3; i++) {
        o.grad[i] = mtt_made(mt_retain(mt_grad(in[i])));
        mtt_ok(mt_set_grad(in[i], NULL));
    }
    return o;
}

void free_outcome(outcome *o)
{
    for (int i = 0; i < 3; i++) mt_release(o->grad[i]);
}

double worst_error(outcome *got, outcome *exact)
{
    double worst = 0;
    for (int i = 0; i < 3; i++)
        worst = fmax(worst, mt_relative_error(got->grad[i], exact->grad[i]));
    return worst;
}

size_t int8_bytes(size_t n) { return n + 4 * ((n + 127) / 128); }

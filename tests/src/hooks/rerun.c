#include <stdlib.h>
#include "rerun.h"

mt_status fn(void *user, int n_in, mt_tensor *const *in, int n_out, mt_tensor **out)
{
    fn_data *d = user;
    bool twisted = ++d->calls == d->twist_at;
    if (d->calls == d->fail_at) return MT_ERR_IO;
    if (mt_scope_push("fn") != MT_OK) return mt_last_status();
    MT_AUTO mt_tensor *h = NULL;
    MT_AUTO mt_tensor *x = mt_retain(in[0]);
    if (twisted && d->twist == OTHER_SHAPE) mt_set(&x, mt_slice(x, 0, 0, 1));
    if (twisted && d->twist == OTHER_VALUE) mt_set(&x, mt_affine(x, 1, 0.5));
    h = mt_linear(x, d->w, NULL);
    if (twisted && d->twist == OTHER_OP)
        mt_set(&h, mt_silu(h));
    else if (!(twisted && d->twist == FEWER))
        mt_set(&h, mt_gelu(h));
    if (twisted && d->twist == MORE) mt_set(&h, mt_exp(h));
    mt_set(&h, mt_dropout(h, d->p));
    mt_set(&h, mt_linear(h, d->w, NULL));
    if (n_in > 1) mt_set(&h, mt_add(h, in[1]));
    mt_scope_pop();
    out[0] = mt_retain(h);
    if (n_out > 1) out[1] = mt_tanh(in[0]);
    return out[0] && out[n_out - 1] ? MT_OK : mt_last_status();
}

void count_destroy(void *user) { ((fn_data *)user)->destroys++; }

setup set_up(double p)
{
    setup s = {.d = {.p = p}};
    mt_seed(device, 11);
    s.d.w = mtt_made(mtt_random(device, MT_F32, MT_SHAPE(N, N), 1, -1, 1));
    mtt_ok(mt_set_category(s.d.w, MT_PARAMETER));
    mtt_ok(mt_set_requires_grad(s.d.w, true));
    for (int i = 0; i < 2; i++) {
        s.x[i] = mtt_made(mtt_random(device, MT_F32, MT_SHAPE(ROWS, N), 2 + (uint64_t)i, -2, 2));
        mtt_ok(mt_set_requires_grad(s.x[i], true));
    }
    return s;
}

void tear_down(setup *s)
{
    mt_release(s->d.w);
    for (int i = 0; i < 2; i++) {
        mt_release(s->x[i]);
        mt_release(s->out[i]);
    }
    mt_release(s->loss);
}

mt_status forward(setup *s, bool plain, int n_in, int n_out, const mt_checkpoint_options *options)
{
    mt_status status =
        plain ? fn(&s->d, n_in, s->x, n_out, s->out)
              : mt_checkpoint(fn, &s->d, count_destroy, n_in, s->x, n_out, s->out, options);
    if (status != MT_OK) return status;
    s->loss = mt_sum_all(s->out[0]);
    if (n_out > 1) {
        MT_AUTO mt_tensor *other = mt_mean_all(s->out[1]);
        mt_set(&s->loss, mt_add(s->loss, other));
    }
    for (int i = 0; i < n_out; i++) mt_set(&s->out[i], NULL), mt_clear_error();
    return s->loss ? MT_OK : mt_last_status();
}

void assert_same_grads(setup *a, setup *b, int n_in)
{
    assert_true(mtt_same_bits(a->loss, b->loss));
    assert_true(mtt_same_bits(mt_grad(a->d.w), mt_grad(b->d.w)));
    for (int i = 0; i < n_in; i++) assert_true(mtt_same_bits(mt_grad(a->x[i]), mt_grad(b->x[i])));
}

mt_status nested(void *user, int n_in, mt_tensor *const *in, int n_out, mt_tensor **out)
{
    const nest *n = user;
    n->s->d.calls += 1000 * (n->depth == 1);
    const mt_checkpoint_options options = {.check = true};
    nest inner = {n->s, n->depth - 1, 0};
    mt_status status;
    if (!n->depth) return fn(&n->s->d, n_in, in, n_out, out);
    nest *next = malloc(sizeof *next);
    *next = inner;
    status = mt_checkpoint(nested, next, free, n_in, in, n_out, out, &options);
    if (status == MT_OK) status = mt_set(&out[0], mt_gelu(out[0]));
    return status;
}

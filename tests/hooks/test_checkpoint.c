/* Checkpointed functions: the same bits, the memory that is spared, and everything that can go
 * wrong when a function is run again. */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include "mtt.h"

static mt_device *device;

static int open_device(void **state)
{
    (void)state;
    device = mtt_device();
    return device && mt_set_balance_check(device, true) == MT_OK ? 0 : -1;
}

static int close_device(void **state)
{
    (void)state;
    mt_device_release(device);
    return 0;
}

static size_t allocated(void)
{
    mt_mem_stats stats;
    mt_mem_get_stats(device, &stats);
    return stats.allocated.current;
}

static int nothing_left(void **state)
{
    (void)state;
    return allocated() == 0 && mt_last_status() == MT_OK && mt_grad_mode() && !*mt_scope_path() &&
                   mt_pop_saved_hooks() == MT_ERR_STATE &&
                   (mt_clear_error(), mt_pop_op_hooks() == MT_ERR_STATE)
               ? (mt_clear_error(), 0)
               : -1;
}

/* ---- a function: y0 = dropout(gelu(x0 w^T)) w + x1, y1 = tanh(x0), with faults to order ---- */

typedef struct fn_data {
    mt_tensor *w; /* [n,n] */
    double p;
    int calls, destroys;
    int fail_at;  /* fail in this call (1 is forward) */
    int twist_at; /* behave otherwise in this call, as `twist` says */
    enum { NO_TWIST, OTHER_OP, OTHER_SHAPE, FEWER, MORE, OTHER_VALUE } twist;
} fn_data;

static mt_status fn(void *user, int n_in, mt_tensor *const *in, int n_out, mt_tensor **out)
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

static void count_destroy(void *user) { ((fn_data *)user)->destroys++; }

enum { N = 6, ROWS = 5 };

typedef struct setup {
    fn_data d;
    mt_tensor *x[2];
    mt_tensor *out[2];
    mt_tensor *loss;
} setup;

static setup set_up(double p)
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

static void tear_down(setup *s)
{
    mt_release(s->d.w);
    for (int i = 0; i < 2; i++) {
        mt_release(s->x[i]);
        mt_release(s->out[i]);
    }
    mt_release(s->loss);
}

/* Forward, and a loss of all outputs; checkpointed unless options say plain. */
static mt_status forward(setup *s, bool plain, int n_in, int n_out,
                         const mt_checkpoint_options *options)
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

static void assert_same_grads(setup *a, setup *b, int n_in)
{
    assert_true(mtt_same_bits(a->loss, b->loss));
    assert_true(mtt_same_bits(mt_grad(a->d.w), mt_grad(b->d.w)));
    for (int i = 0; i < n_in; i++) assert_true(mtt_same_bits(mt_grad(a->x[i]), mt_grad(b->x[i])));
}

static void gradients_have_the_same_bits(void **state)
{
    (void)state;
    for (int n_in = 1; n_in <= 2; n_in++) {
        for (int n_out = 1; n_out <= 2; n_out++) {
            for (int stop = 0; stop < 2; stop++) {
                setup a = set_up(0.3);
                mtt_ok(forward(&a, true, n_in, n_out, NULL));
                mtt_ok(mt_backward(a.loss));
                setup b = set_up(0.3);
                const mt_checkpoint_options options = {.no_early_stop = stop, .check = true};
                mtt_ok(forward(&b, false, n_in, n_out, &options));
                uint64_t seed[2], offset[2];
                mt_rng_get(device, &seed[0], &offset[0]);
                mtt_ok(mt_backward(b.loss));
                mt_rng_get(device, &seed[1], &offset[1]);
                assert_int_equal(seed[0], seed[1]);
                assert_int_equal(offset[0], offset[1]);
                assert_int_equal(b.d.calls, 2);
                assert_int_equal(b.d.destroys, 1);
                assert_int_equal(mt_last_status(), MT_OK);
                assert_same_grads(&a, &b, n_in);
                tear_down(&a);
                tear_down(&b);
            }
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(gradients_have_the_same_bits, nothing_left),
    };
    return cmocka_run_group_tests(tests, open_device, close_device);
}

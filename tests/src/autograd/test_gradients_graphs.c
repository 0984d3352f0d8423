/* Gradients of given inputs: on random graphs, on a model with checkpoints and an offload, and with
 * each allocation refused in turn. */
#include <stdlib.h>
#include <string.h>
#include "base/base.h"
#include "mtt_fixture.h"

enum { LEAVES = 3, TENSORS = 18, WIDTH = 4, MOST = 5 };

/* A random graph. Every tensor has a hook that records its gradient. Values are whole numbers and
 * products are few, so that every sum is exact. */
typedef struct graph {
    mt_tensor *t[TENSORS], *seen[TENSORS];
    struct note {
        struct graph *g;
        int i;
    } notes[TENSORS];
    bool noting;
    int n_roots;
    mt_tensor *roots[MOST], *ones[MOST];
} graph;

static int draw(uint64_t *state, int n) { return (int)mtt_draw(state, 0, n); }

static mt_tensor *record_grad(void *user, mt_tensor *grad)
{
    const struct note *note = user;
    if (note->g->noting) mt_set(&note->g->seen[note->i], mt_clone(grad));
    return mt_retain(grad);
}

/* Swaps the halves of a, with a node of two outputs. */
static mt_tensor *swap(mt_tensor *a)
{
    mt_tensor *half[2];
    if (mt_split(a, 0, 2, (int64_t[]){WIDTH / 2, WIDTH / 2}, half) != MT_OK) return NULL;
    mt_tensor *swapped = mt_cat(2, (mt_tensor *[]){half[1], half[0]}, 0);
    mt_release(half[0]);
    mt_release(half[1]);
    return swapped;
}

static mt_tensor *grow(uint64_t *state, mt_tensor *a, mt_tensor *b, int *products)
{
    switch (draw(state, 6)) {
    case 0: return mt_sub(a, b);
    case 1: return mt_mul_scalar(a, -2);
    case 2: return mt_relu(a);
    case 3: return swap(a);
    case 4:
        if ((*products)++ < 4) return mt_mul(a, b);
        return mt_add(b, a);
    default: return mt_add(a, b);
    }
}

static void build(graph *g, uint64_t seed)
{
    uint64_t state = seed;
    int products = 0;
    memset(g, 0, sizeof *g);
    for (int i = 0; i < TENSORS; i++) {
        double values[WIDTH];
        for (int j = 0; j < WIDTH; j++) values[j] = draw(&state, 7) - 3;
        mt_tensor *a = i < LEAVES ? NULL : g->t[draw(&state, i)];
        mt_tensor *b = i < LEAVES ? NULL : g->t[draw(&state, i)];
        g->t[i] = mtt_made(a ? grow(&state, a, b, &products)
                             : mtt_from_doubles(device, MT_F64, MT_SHAPE(WIDTH), values));
        if (!a) mtt_ok(mt_set_requires_grad(g->t[i], true));
        g->notes[i] = (struct note){g, i};
        assert_true(mt_add_grad_hook(g->t[i], record_grad, &g->notes[i]));
    }
    g->n_roots = 1 + draw(&state, 3);
    for (int i = 0; i < g->n_roots; i++) {
        g->roots[i] = g->t[TENSORS - 1 - draw(&state, i ? TENSORS : 4)];
        g->ones[i] = mtt_made(mt_full(device, MT_F64, MT_SHAPE(WIDTH), 1));
    }
}

static void release_graph(graph *g)
{
    for (int i = 0; i < TENSORS; i++) mt_release(g->t[i]), mt_release(g->seen[i]);
    for (int i = 0; i < g->n_roots; i++) mt_release(g->ones[i]);
}

static void drop_gradients(graph *g)
{
    for (int i = 0; i < LEAVES; i++) mtt_ok(mt_set_grad(g->t[i], NULL));
}

static mt_status ask_gradients(graph *g, int n, mt_tensor *const *inputs, mt_tensor **out)
{
    return mt_gradients(&(mt_gradients_options){g->n_roots, g->roots, g->ones, n, inputs, true},
                        out);
}

static void given_inputs_have_the_bits_that_hooks_see_in_a_whole_backward(void **state)
{
    (void)state;
    int n_found = 0, n_missing = 0;
    for (uint64_t seed = 1; seed <= (mtt_long() ? 5000 : 300); seed++) {
        graph g;
        uint64_t choice = ~seed;
        build(&g, seed);
        g.noting = true;
        mtt_ok(mt_backward_from(g.n_roots, g.roots, g.ones, true));
        g.noting = false;
        for (int i = 0; i < LEAVES; i++)
            assert_true(!mt_grad(g.t[i]) || mtt_same_bits(mt_grad(g.t[i]), g.seen[i]));
        drop_gradients(&g);
        for (int round = 0; round < 4; round++) {
            int n = 1 + draw(&choice, MOST), which[MOST];
            mt_tensor *inputs[MOST], *out[MOST];
            for (int i = 0; i < n; i++) inputs[i] = g.t[which[i] = draw(&choice, TENSORS)];
            mtt_ok(ask_gradients(&g, n, inputs, out));
            for (int i = 0; i < n; i++) {
                const mt_tensor *seen = g.seen[which[i]];
                assert_true(seen ? mtt_same_bits(out[i], g.seen[which[i]]) : !out[i]);
                n_found += seen != NULL, n_missing += !seen;
                mt_release(out[i]);
            }
            for (int i = 0; i < LEAVES; i++) assert_null(mt_grad(g.t[i]));
        }
        release_graph(&g);
    }
    assert_true(n_found > 500 && n_missing > 100);
}

static void one_backward_from_several_roots_is_the_sum_of_one_from_each(void **state)
{
    (void)state;
    for (uint64_t seed = 1000; seed < 1200; seed++) {
        graph g;
        mt_tensor *together[LEAVES];
        build(&g, seed);
        mtt_ok(mt_backward_from(g.n_roots, g.roots, g.ones, true));
        for (int i = 0; i < LEAVES; i++) together[i] = mt_retain(mt_grad(g.t[i]));
        drop_gradients(&g);
        for (int i = 0; i < g.n_roots; i++)
            mtt_ok(mt_backward_with(g.roots[i], &(mt_backward_options){g.ones[i], true}));
        for (int i = 0; i < LEAVES; i++) {
            assert_int_equal(mt_grad(g.t[i]) != NULL, together[i] != NULL);
            double *a = mtt_doubles(together[i]), *b = mtt_doubles(mt_grad(g.t[i]));
            for (int j = 0; a && j < WIDTH; j++) assert_true(a[j] == b[j]);
            free(a);
            free(b);
            mt_release(together[i]);
        }
        release_graph(&g);
    }
}

/* ---- each allocation refused ---- */

static mt_status refused(graph *g, bool backward, mt_tensor **out)
{
    return backward ? mt_backward_from(g->n_roots, g->roots, g->ones, true)
                    : ask_gradients(g, 4, (mt_tensor *[]){g->t[0], g->t[9], g->t[1], g->t[0]}, out);
}

static void any_allocation_may_fail_and_the_next_backward_is_unaffected(void **state)
{
    (void)state;
    int n_refused = 0;
    for (uint64_t seed = 1; seed <= 6; seed++)
        for (int backward = 0; backward < 2; backward++) {
            bool reached = true;
            for (uint64_t nth = 1; reached; nth = mtt_next_refusal(nth)) {
                graph g;
                mt_tensor *out[4] = {0}, *again[4] = {0};
                build(&g, seed);
                size_t before = mtt_allocated(device);
                mti_fail_nth_alloc(nth);
                mt_status status = refused(&g, backward, out);
                reached = mti_alloc_count() >= nth;
                mti_fail_nth_alloc(0);
                if (status != MT_OK) {
                    n_refused++;
                    mtt_failed(MT_ERR_MEMORY, "");
                    for (int i = 0; i < 4; i++) assert_null(out[i]);
                    if (backward) drop_gradients(&g);
                    assert_int_equal(mtt_allocated(device), before);
                }
                for (int i = 0; i < LEAVES && !backward; i++) assert_null(mt_grad(g.t[i]));
                g.noting = true;
                mtt_ok(refused(&g, backward, again));
                for (int i = 0; i < 4; i++) {
                    if (out[i]) assert_true(mtt_same_bits(out[i], again[i]));
                    mt_release(out[i]);
                    mt_release(again[i]);
                }
                release_graph(&g);
            }
        }
    assert_true(n_refused > 200);
}

/* ---- a model under hooks ---- */

int main(void)
{
    const struct CMUnitTest tests[] = {
        mtt_test(given_inputs_have_the_bits_that_hooks_see_in_a_whole_backward),
        mtt_test(one_backward_from_several_roots_is_the_sum_of_one_from_each),
        mtt_test(any_allocation_may_fail_and_the_next_backward_is_unaffected),
    };
    return cmocka_run_group_tests(tests, mtt_open_device, mtt_close_device);
}

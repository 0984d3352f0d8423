/* Graphs of a hundred thousand nodes, on a stack of 256 KiB. With an argument it is what linear.py
 * counts instructions of. */
#include <pthread.h>
#include <stdlib.h>
#include "mtt_engine.h"

enum { N_NODES = 100000, STACK = 256 * 1024 };

/* A recursion would overflow the stack with a fifth of them, too. */
static int many(void) { return mtt_short_simulation() ? N_NODES / 5 : N_NODES; }

typedef struct deep {
    mt_device *device;
    int n;
    bool backward;  /* run the backward; otherwise only release */
    bool by_inputs; /* with mt_gradients, for x and a tensor in the middle */
    mt_tensor *(*grow)(mt_tensor *x, int n);
    double gradient;
    bool good;
} deep;

/* A chain of n nodes; every tenth saves a tensor. */
static mt_tensor *chain(mt_tensor *x, int n)
{
    mt_tensor *h = mt_add_scalar(x, 0);
    for (int i = 1; i < n && h; i++) mt_set(&h, i % 10 == 0 ? mt_relu(h) : mt_add_scalar(h, 0));
    return h;
}

/* h(i+1) = (h(i) + h(i-1)) / 2: the number of paths doubles from node to node. */
static mt_tensor *ladder(mt_tensor *x, int n)
{
    mt_tensor *a = mt_retain(x), *b = mt_retain(x);
    for (int i = 0; i < n / 2 && b; i++) {
        mt_tensor *sum = mt_add(a, b);
        mt_set(&a, mt_retain(b));
        mt_set(&b, mt_mul_scalar(sum, 0.5));
        mt_release(sum);
    }
    mt_release(a);
    return b;
}

/* h = (x + x + x + ...) / n: every node uses the same leaf. */
static mt_tensor *fan(mt_tensor *x, int n)
{
    mt_tensor *h = mt_retain(x);
    for (int i = 1; i < n && h; i++) mt_set(&h, mt_add(h, x));
    mt_set(&h, mt_mul_scalar(h, 1.0 / n));
    return h;
}

/* Asks for the gradients of x and of a tensor in the middle of two chains. */
static bool ask_gradients(deep *d, mt_tensor *x, mt_tensor *middle, mt_tensor *h)
{
    mt_tensor *inputs[] = {middle, x}, *out[2];
    mt_gradients_options o = {1, &h, NULL, 2, inputs};
    if (mt_gradients(&o, out) != MT_OK) return false;
    d->gradient = mt_item(out[0]) * mt_item(out[1]);
    mt_release(out[0]);
    mt_release(out[1]);
    return true;
}

/* Backward, if it is wanted, and the release of the graph. linear.py counts its instructions, by
 * its name. */
__attribute__((noinline)) static void traverse(deep *d, mt_tensor *x, mt_tensor *middle,
                                               mt_tensor *h)
{
    d->good = d->good && h &&
              (middle ? ask_gradients(d, x, middle, h) : !d->backward || mt_backward(h) == MT_OK);
    mt_release(middle);
    mt_release(h);
}

static void *work(void *argument)
{
    deep *d = argument;
    mt_tensor *x = mt_full(d->device, MT_F64, 0, NULL, 1);
    d->good = mt_set_requires_grad(x, true) == MT_OK;
    mt_tensor *middle = d->by_inputs ? d->grow(x, d->n / 2) : NULL;
    mt_tensor *h = d->grow(middle ? middle : x, middle ? d->n - d->n / 2 : d->n);
    traverse(d, x, middle, h);
    if (d->backward && d->good) d->gradient = mt_item(mt_grad(x));
    mt_release(x);
    return NULL;
}

static void run_on_small_stack(deep *d)
{
    pthread_t thread;
    pthread_attr_t attributes;
    d->device = mtt_device();
    assert_non_null(d->device);
    pthread_attr_init(&attributes);
    assert_int_equal(pthread_attr_setstacksize(&attributes, STACK), 0);
    assert_int_equal(pthread_create(&thread, &attributes, work, d), 0);
    pthread_join(thread, NULL);
    pthread_attr_destroy(&attributes);
    mt_mem_stats stats;
    mt_mem_get_stats(d->device, &stats);
    assert_true(d->good);
    assert_int_equal(stats.allocated.current, 0);
    mt_device_release(d->device);
}

static void backward_through_a_long_chain_does_not_recurse(void **state)
{
    (void)state;
    deep d = {.n = many(), .backward = true, .grow = chain};
    run_on_small_stack(&d);
    assert_true(d.gradient == 1);
}

static void releasing_a_long_chain_does_not_recurse(void **state)
{
    (void)state;
    run_on_small_stack(&(deep){.n = many(), .grow = chain});
}

static void backward_visits_each_node_once_not_each_path(void **state)
{
    (void)state;
    deep d = {.n = many(), .backward = true, .grow = ladder};
    run_on_small_stack(&d);
    assert_true(d.gradient > 1 - 1e-9 && d.gradient < 1 + 1e-9);
    run_on_small_stack(&(deep){.n = many(), .grow = ladder});
}

static void a_leaf_used_by_every_node_sums_all_gradients(void **state)
{
    (void)state;
    deep d = {.n = many(), .backward = true, .grow = fan};
    run_on_small_stack(&d);
    assert_true(d.gradient > 1 - 1e-9 && d.gradient < 1 + 1e-9);
}

static void gradients_of_given_inputs_do_not_recurse_either(void **state)
{
    (void)state;
    mt_tensor *(*const shapes[])(mt_tensor *, int) = {chain, ladder, fan};
    for (int i = 0; i < 3; i++) {
        deep d = {.n = many(), .by_inputs = true, .grow = shapes[i]};
        run_on_small_stack(&d);
        assert_true(d.gradient > 1 - 1e-9 && d.gradient < 1 + 1e-9);
    }
}

/* Each shape, released and traversed backward, with so many nodes, twice and four times as many. */
static int traverse_all(int n)
{
    mt_tensor *(*const shapes[])(mt_tensor *, int) = {chain, ladder, fan};
    for (int i = 0; i < 3; i++)
        for (int backward = 0; backward < 2; backward++)
            for (int times = 1; times <= 4; times *= 2)
                run_on_small_stack(
                    &(deep){.n = n * times, .backward = backward, .grow = shapes[i]});
    return 0;
}

int main(int argc, char **argv)
{
    if (argc > 1) return traverse_all(atoi(argv[1]));
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(backward_through_a_long_chain_does_not_recurse),
        cmocka_unit_test(releasing_a_long_chain_does_not_recurse),
        cmocka_unit_test(backward_visits_each_node_once_not_each_path),
        cmocka_unit_test(a_leaf_used_by_every_node_sums_all_gradients),
        cmocka_unit_test(gradients_of_given_inputs_do_not_recurse_either),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

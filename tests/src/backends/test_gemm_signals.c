/* Signals that a program handles while a product is computed: the heap stays whole, and so do the
 * product's bits. */
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/time.h>
#include "mtt_engine.h"

static atomic_int n_handled;

static void on_alarm(int number)
{
    (void)number;
    atomic_fetch_add(&n_handled, 1);
}

static void every_us(long us)
{
    const struct itimerval timer = {{0, us}, {0, us}};
    assert_int_equal(setitimer(ITIMER_REAL, &timer, NULL), 0);
}

/* Blocks of many sizes come and go between the products, so that a damaged heap is found. */
static void use_heap(int round)
{
    void *blocks[32];
    for (int i = 0; i < 32; i++) blocks[i] = malloc((size_t)(round * 37 + i * i * 97) % 9000 + 1);
    for (int i = 0; i < 32; i++) free(blocks[(i * 13) % 32]);
}

static void a_handled_signal_leaves_a_product_and_the_heap_whole(void **state)
{
    (void)state;
    struct sigaction action = {.sa_handler = on_alarm, .sa_flags = SA_RESTART}, before;
    mt_device *device = mt_device_open("cpu");
    assert_non_null(device);
    mt_tensor *x = mtt_made(mt_normal(device, MT_F32, MT_SHAPE(320, 256), 0, 1));
    mt_tensor *w = mtt_made(mt_normal(device, MT_F32, MT_SHAPE(256, 384), 0, 1));
    mt_tensor *calm = mtt_made(mt_matmul(x, w));
    sigemptyset(&action.sa_mask);
    assert_int_equal(sigaction(SIGALRM, &action, &before), 0);
    every_us(100);
    for (int i = 0; i < 1500; i++) {
        mt_tensor *y = mtt_made(mt_matmul(x, w));
        if (i % 100 == 0) assert_true(mtt_same_bits(y, calm));
        mt_release(y);
        use_heap(i);
    }
    every_us(0);
    sigaction(SIGALRM, &before, NULL);
    assert_true(atomic_load(&n_handled) > 100);
    mt_release(calm), mt_release(w), mt_release(x), mt_device_release(device);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_handled_signal_leaves_a_product_and_the_heap_whole),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* Threads that share a model, a device's settings and its counts, as they are allowed to. The
 * results have the bits of a thread alone; ThreadSanitizer checks that there is no race (`./run
 * test --all`). */
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include "mtt.h"
#include "mtt_fixture.h"

enum { HOSTS = 4, ROUNDS = 20 };

typedef struct worker {
    pthread_t thread;
    mt_module *model;
    mt_tensor *x, *w; /* x: a model's tokens, or the first factor of x w */
    double *values;   /* the last result */
    int64_t n;
    bool good, same; /* no call failed; each round gave the same bits */
    atomic_bool *done;
} worker;

static bool keep_values(worker *w, mt_tensor *y)
{
    double *values = y ? mtt_doubles(y) : NULL;
    if (!values) return false;
    w->n = mt_numel(y);
    if (w->values && memcmp(w->values, values, (size_t)w->n * sizeof *values)) w->same = false;
    free(w->values);
    w->values = values;
    return true;
}

static void start(worker *w, void *(*work)(void *))
{
    assert_int_equal(pthread_create(&w->thread, NULL, work, w), 0);
}

static void finish(worker *w)
{
    assert_int_equal(pthread_join(w->thread, NULL), 0);
    assert_true(w->good && w->same);
}

/* ---- four threads, one model ---- */

static void *run_forwards(void *argument)
{
    worker *w = argument;
    w->good = w->same = true;
    for (int i = 0; i < ROUNDS && w->good; i++) {
        MT_AUTO mt_tensor *y = mt_forward(w->model, w->x);
        w->good = keep_values(w, y) && mt_requires_grad(y); /* its tape keeps the weights */
    }
    return NULL;
}

static void four_threads_run_the_forward_of_one_model(void **state)
{
    (void)state;
    mt_model_config tiny = {.kind = MT_MODEL_GPT,
                            .hidden = 12,
                            .heads = 3,
                            .layers = 2,
                            .vocab = 11,
                            .context = 7,
                            .act = MT_ACT_GELU,
                            .attention = MT_ATTENTION_FLASH,
                            .dtype = MT_F32};
    mt_seed(device, 5);
    mt_module *model = mt_model_new(device, &tiny);
    assert_non_null(model);
    int64_t index[14];
    for (int i = 0; i < 14; i++) index[i] = i * i % 11;
    MT_AUTO mt_tensor *tokens =
        mtt_made(mt_from_data(device, MT_I64, MT_SHAPE(2, 7), index, sizeof index));
    worker alone = {.model = model, .x = tokens}, of[HOSTS];
    run_forwards(&alone);
    assert_true(alone.good && alone.same);
    for (int i = 0; i < HOSTS; i++) {
        of[i] = (worker){.model = model, .x = tokens};
        start(&of[i], run_forwards);
    }
    for (int i = 0; i < HOSTS; i++) {
        finish(&of[i]);
        assert_int_equal(of[i].n, alone.n);
        assert_memory_equal(of[i].values, alone.values, (size_t)alone.n * sizeof *alone.values);
        free(of[i].values);
    }
    free(alone.values);
    mt_module_free(model);
}

/* ---- settings and counts, while others compute ---- */

/* Products whose scratch memory depends on the number of threads. */
static void *multiply(void *argument)
{
    worker *w = argument;
    w->good = w->same = true;
    for (int i = 0; i < ROUNDS / 4 && w->good; i++) {
        MT_AUTO mt_tensor *y = mt_linear(w->x, w->w, NULL);
        MT_AUTO mt_tensor *heads = mt_reshape(y, MT_SHAPE(1, 4, -1, 32));
        MT_AUTO mt_tensor *z = mt_flash_attention(heads, heads, heads, 0, true, 0);
        MT_AUTO mt_tensor *loss = mt_sum_all(z);
        w->good =
            keep_values(w, z) && mt_backward(loss) == MT_OK && mt_set_grad(w->w, NULL) == MT_OK;
    }
    atomic_store(w->done, true);
    return NULL;
}

static void *change_settings(void *argument)
{
    worker *w = argument;
    w->good = w->same = true;
    for (int n = 1; !atomic_load(w->done); n = n % 4 + 1) {
        w->good &= mt_device_set_threads(device, n) == MT_OK;
        int now = mt_device_threads(device);
        mt_mem_stats stats;
        mt_mem_get_stats(device, &stats);
        mt_flops flops = mt_flops_get(device);
        uint64_t seed, offset;
        mt_rng_get(device, &seed, &offset);
        w->good &= now >= 1 && now <= 4 && stats.reserved.current >= stats.allocated.current;
        w->good &= flops.forward < UINT64_MAX && seed == 7;
        mt_mem_reset_peak(device);
        mt_mem_set_capacity(device, (size_t)1 << 40);
    }
    return NULL;
}

static void settings_may_change_while_another_thread_computes(void **state)
{
    (void)state;
    int threads = mt_device_threads(device);
    mt_seed(device, 7);
    atomic_bool done = false;
    worker computes = {.done = &done}, sets = {.done = &done};
    computes.x = mtt_made(mtt_random(device, MT_BF16, MT_SHAPE(256, 128), 1, -1, 1));
    computes.w = mtt_made(mtt_random(device, MT_BF16, MT_SHAPE(128, 128), 2, -1, 1));
    mtt_ok(mt_set_requires_grad(computes.w, true));
    start(&computes, multiply);
    start(&sets, change_settings);
    finish(&computes);
    finish(&sets);
    free(computes.values);
    mt_release(computes.x), mt_release(computes.w);
    mt_mem_set_capacity(device, 0);
    mtt_ok(mt_device_set_threads(device, threads));
}

/* ---- opening and closing devices ---- */

static void *open_and_close(void *argument)
{
    worker *w = argument;
    w->good = w->same = true;
    for (int i = 0; i < ROUNDS && w->good; i++) {
        mt_device *own = mtt_device();
        MT_AUTO mt_tensor *x = own ? mtt_random(own, MT_F32, MT_SHAPE(5), 3, -1, 1) : NULL;
        MT_AUTO mt_tensor *y = mt_mul(x, x);
        w->good = keep_values(w, y);
        mt_device_release(own);
    }
    return NULL;
}

static void threads_open_and_close_devices_at_once(void **state)
{
    (void)state;
    worker of[HOSTS] = {0};
    for (int i = 0; i < HOSTS; i++) start(&of[i], open_and_close);
    for (int i = 0; i < HOSTS; i++) {
        finish(&of[i]);
        assert_memory_equal(of[i].values, of[0].values, 5 * sizeof(double));
    }
    for (int i = 0; i < HOSTS; i++) free(of[i].values);
}

static int open_device(void **state)
{
    int failed = mtt_open_device(state);
    return failed ? failed : mt_set_balance_check(device, false) == MT_OK ? 0 : -1;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        mtt_test(four_threads_run_the_forward_of_one_model),
        mtt_test(settings_may_change_while_another_thread_computes),
        mtt_test(threads_open_and_close_devices_at_once),
    };
    return cmocka_run_group_tests(tests, open_device, mtt_close_device);
}

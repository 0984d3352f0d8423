/* The same seed gives the same bits: in a second run, on any number of threads, and while another
 * thread trains. */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include "trainer.h"

enum { N_STEPS = 4 };

/* Large enough that kernels use several threads. */
static mt_model_config wide(mt_attention_form attention, mt_dtype dtype)
{
    return (mt_model_config){.kind = MT_MODEL_GPT,
                             .hidden = 96,
                             .heads = 3,
                             .layers = 2,
                             .vocab = 501,
                             .context = 7,
                             .act = MT_ACT_GELU,
                             .dropout = 0.2,
                             .attention = attention,
                             .dtype = dtype};
}

typedef struct run {
    mt_model_config config;
    uint64_t seed;
    int threads;
    double loss[N_STEPS];
    unsigned char *weights;
    size_t n_bytes;
    bool good;
} run;

static void *train(void *argument)
{
    run *r = argument;
    trainer t;
    r->good = trainer_open(&t, &r->config, r->seed) &&
              mt_device_set_threads(t.device, r->threads) == MT_OK;
    for (int i = 0; i < N_STEPS && r->good; i++) r->good = trainer_step(&t, &r->loss[i]) == MT_OK;
    if (r->good) r->weights = trainer_weights(&t, &r->n_bytes);
    trainer_close(&t);
    mt_device_release(t.device);
    return NULL;
}

static void assert_same(const run *a, const run *b)
{
    assert_true(a->good && b->good);
    assert_memory_equal(a->loss, b->loss, sizeof a->loss);
    assert_int_equal(a->n_bytes, b->n_bytes);
    assert_memory_equal(a->weights, b->weights, a->n_bytes);
}

static void compare_threads(mt_attention_form attention, mt_dtype dtype)
{
    run first = {.config = wide(attention, dtype), .seed = 3, .threads = 1};
    train(&first);
    assert_true(first.loss[0] > 0 && first.loss[N_STEPS - 1] < first.loss[0]);
    /* the threads of the host compute nothing on a simulated device */
    for (int threads = 1; threads <= (mtt_short_simulation() ? 1 : 3); threads++) {
        run again = {.config = first.config, .seed = 3, .threads = threads};
        train(&again);
        assert_same(&first, &again);
        free(again.weights);
    }
    free(first.weights);
}

static void one_two_and_three_threads_give_the_same_bits(void **state)
{
    (void)state;
    compare_threads(MT_ATTENTION_FLASH, MT_F32);
    compare_threads(MT_ATTENTION_MATH, MT_F32);
    compare_threads(MT_ATTENTION_FLASH, MT_BF16);
}

static void another_seed_gives_other_bits(void **state)
{
    (void)state;
    run a = {.config = wide(MT_ATTENTION_FLASH, MT_F32), .seed = 3, .threads = 1}, b = a;
    b.seed = 4;
    train(&a);
    train(&b);
    assert_true(a.good && b.good);
    assert_memory_not_equal(a.weights, b.weights, a.n_bytes);
    free(a.weights);
    free(b.weights);
}

static void two_threads_training_on_two_devices_do_not_affect_each_other(void **state)
{
    (void)state;
    run alone[2], together[2];
    pthread_t thread[2];
    for (int i = 0; i < 2; i++) {
        alone[i] = (run){.config = wide(MT_ATTENTION_FLASH, MT_F32), .seed = 8, .threads = 1};
        if (i == 1) alone[i].config.attention = MT_ATTENTION_MATH;
        alone[i].seed += (uint64_t)i;
        together[i] = alone[i];
        train(&alone[i]);
    }
    for (int i = 0; i < 2; i++)
        assert_int_equal(pthread_create(&thread[i], NULL, train, &together[i]), 0);
    for (int i = 0; i < 2; i++) pthread_join(thread[i], NULL);
    for (int i = 0; i < 2; i++) {
        assert_same(&alone[i], &together[i]);
        free(alone[i].weights);
        free(together[i].weights);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_two_and_three_threads_give_the_same_bits),
        cmocka_unit_test(another_seed_gives_other_bits),
        cmocka_unit_test(two_threads_training_on_two_devices_do_not_affect_each_other),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

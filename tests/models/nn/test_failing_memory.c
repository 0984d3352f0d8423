/* Every allocation of one training step fails in turn; in the short form, some of them do. */
#include <stdlib.h>
#include <string.h>
#include "base/base.h"
#include "trainer.h"

/* The result of a run in which nothing fails. */
typedef struct outcome {
    double loss[2];
    unsigned char *weights;
    size_t n_bytes;
} outcome;

static uint64_t retries(mt_device *device)
{
    mt_mem_stats stats;
    mt_mem_get_stats(device, &stats);
    return stats.alloc_retries;
}

/* One step under a ledger. */
static mt_status recorded_step(trainer *t, double *loss)
{
    mt_ledger *ledger = mt_ledger_new(t->device);
    mt_status status = ledger ? mt_ledger_begin(ledger) : mt_last_status();
    if (status == MT_OK) {
        status = trainer_step(t, loss);
        mt_status ended = mt_ledger_end(ledger);
        if (status == MT_OK) status = ended;
    }
    mt_ledger_free(ledger);
    return status;
}

static void two_steps(trainer *t, outcome *o, int first)
{
    for (int i = first; i < 2; i++) mtt_ok(recorded_step(t, &o->loss[i]));
    o->weights = trainer_weights(t, &o->n_bytes);
}

/* Returns false if the step made fewer than n allocations. */
static bool fail_nth(uint64_t n, const outcome *expected, bool *refused)
{
    trainer t;
    assert_true(trainer_open(&t, NULL, 5));
    uint64_t seed, offset;
    mt_rng_get(t.device, &seed, &offset);
    size_t before = mtt_allocated(t.device);
    uint64_t retries_before = retries(t.device);

    outcome o = {0};
    mti_fail_nth_alloc(n);
    mt_status status = recorded_step(&t, &o.loss[0]);
    bool reached = mti_alloc_count() >= n;
    mti_fail_nth_alloc(0);

    *refused = status != MT_OK;
    if (!*refused) {
        /* The allocator freed its cache and asked the system again, with success. */
        if (reached) assert_true(retries(t.device) > retries_before);
    } else {
        assert_true(reached);
        assert_int_equal(status, MT_ERR_MEMORY);
        assert_int_equal(mt_last_status(), MT_ERR_MEMORY);
        assert_true(strlen(mt_last_error()) > 0);
        assert_string_equal(mt_scope_path(), "");
        assert_true(mt_grad_mode());
        mt_clear_error();
        mtt_ok(mt_module_zero_grad(t.gpt));
        mt_optimizer_reset(t.adamw);
        assert_int_equal(mtt_allocated(t.device), before);
        mtt_ok(mt_check_balance(t.device));
    }

    mt_rng_set(t.device, seed, offset);
    if (*refused) {
        two_steps(&t, &o, 0);
        assert_memory_equal(o.loss, expected->loss, sizeof o.loss);
        assert_memory_equal(o.weights, expected->weights, expected->n_bytes);
        free(o.weights);
    }
    trainer_close(&t);
    assert_int_equal(mtt_allocated(t.device), 0);
    mt_device_release(t.device);
    return reached;
}

static void any_allocation_may_fail_and_the_next_step_is_unaffected(void **state)
{
    (void)state;
    trainer t;
    outcome expected = {0};
    assert_true(trainer_open(&t, NULL, 5));
    two_steps(&t, &expected, 0);
    trainer_close(&t);
    mt_device_release(t.device);

    uint64_t n = 1, n_failed = 0, n_refused = 0;
    bool refused;
    for (; fail_nth(n, &expected, &refused); n = mtt_next_refusal(n)) {
        n_failed++;
        n_refused += refused;
    }
    free(expected.weights);
    print_message("%llu allocations failed in turn: %llu clean errors, %llu served by a retry\n",
                  (unsigned long long)n_failed, (unsigned long long)n_refused,
                  (unsigned long long)(n_failed - n_refused));
    assert_true(n > 500);
    assert_true(n_refused > (mtt_long() ? 500 : 30));
}

static void any_allocation_may_fail_while_a_model_is_made(void **state)
{
    (void)state;
    uint64_t n = 1, n_failed = 0;
    for (bool reached = true; reached; n = mtt_next_refusal(n)) {
        trainer t;
        mti_fail_nth_alloc(n);
        bool opened = trainer_open(&t, NULL, 5);
        reached = mti_alloc_count() >= n;
        mti_fail_nth_alloc(0);
        n_failed += reached;
        if (!opened) {
            assert_true(reached);
            assert_int_equal(mt_last_status(), MT_ERR_MEMORY);
            mt_clear_error();
        }
        trainer_close(&t);
        if (t.device) assert_int_equal(mtt_allocated(t.device), 0);
        mt_device_release(t.device);
    }
    print_message("%llu allocations of a model failed in turn\n", (unsigned long long)n_failed);
    assert_true(n > 100);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(any_allocation_may_fail_and_the_next_step_is_unaffected),
        cmocka_unit_test(any_allocation_may_fail_while_a_model_is_made),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

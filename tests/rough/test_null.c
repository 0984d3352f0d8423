/* Calls every public function with each of its pointers NULL in turn, and with extreme integers
 * (null_calls.py writes the calls): nothing crashes or overflows, failures are reported, and a NULL
 * from an earlier failure keeps that failure's error. */
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include "base/base.h"
#include "memtape/models/amp.h"
#include "memtape/checkpoint.h"
#include "memtape/compress.h"
#include "memtape/models/model.h"
#include "memtape/offload.h"
#include "mtt.h"
#include "mtt_fixture.h"

typedef struct row {
    const char *function, *argument, *value;
    void (*call)(void);
    bool object; /* the argument is an object that other calls make */
    bool status; /* the function returns a status */
} row;

static struct {
    mt_tensor *t, *output; /* output: of an op of t */
    mt_module *module;
    mt_optimizer *optimizer;
    mt_scaler *scaler;
    mt_ledger *ledger;
    mt_saved *saved;
    mt_offload *offload;
    mt_compress *compress;
    mt_host_copy *host_copy;
    mt_arena *arena;
    mt_checkpoint_report *report;
    mt_model_config config;
    void *places[8];
    mt_tensor *tensors[16]; /* that the call makes */
    /* results of the call */
    mt_status status;
    mt_tensor *made;
    const void *other;
    bool makes; /* the function returns NULL on failure */
} x;

#include "null_calls.inc"

static void set_up(void)
{
    memset(&x, 0, sizeof x);
    x.t = mtt_made(mt_zeros(device, MT_F32, MT_SHAPE(1, 1)));
    mtt_ok(mt_set_requires_grad(x.t, true));
    x.output = mtt_made(mt_mul(x.t, x.t));
    x.module = mt_linear_new(device, MT_F32, 1, 1, false, 1);
    x.optimizer = mt_sgd_new(x.module, &(mt_sgd_options){.lr = 1});
    x.scaler = mt_scaler_new(NULL);
    x.ledger = mt_ledger_new(device);
    x.saved = mt_saved_new(x.t, &(mt_save_info){.op = "test", .argument = "t"});
    x.offload = mt_offload_new(device, NULL);
    x.compress = mt_compress_new(device, NULL);
    x.host_copy = mt_host_copy_out(x.t);
    x.arena = mt_arena_new();
    x.report = mt_checkpoint_report_new();
    mtt_ok(mt_model_preset("tiny", &x.config));
    assert_true(x.module && x.optimizer && x.scaler && x.ledger && x.saved && x.offload);
    assert_true(x.compress && x.host_copy && x.report && x.arena);
}

static void tear_down(void)
{
    mt_checkpoint_report_free(x.report);
    mt_host_copy_free(x.host_copy);
    mt_arena_free(x.arena);
    mt_compress_free(x.compress);
    mt_offload_free(x.offload);
    mt_saved_free(x.saved);
    mt_ledger_free(x.ledger);
    mt_scaler_free(x.scaler);
    mt_optimizer_free(x.optimizer);
    mt_module_free(x.module);
    mt_release(x.output);
    mt_release(x.t);
    assert_int_equal(mtt_allocated(device), 0);
}

static int complaints;
static const row *current; /* the current call, which is named if it crashes */

static void complain(const row *r, const char *what)
{
    print_error("mt_%s: %s %s: %s (%s: \"%s\")\n", r->function + 3, r->argument, r->value, what,
                mt_status_name(mt_last_status()), mt_last_error());
    complaints++;
}

static void call(const row *r)
{
    set_up();
    current = r;
    r->call();
    mt_release(x.made);
    for (size_t i = 0; i < 16; i++) mt_release(x.tensors[i]);
    tear_down();
    current = NULL;
    bool failed = x.makes ? !x.made && !x.other : x.status != MT_OK;
    if (failed && mt_last_status() == MT_OK) complain(r, "failed without an error");
    if (r->status && failed && x.status != mt_last_status()) complain(r, "returned another status");
    if (strstr(mt_last_error(), "(null)")) complain(r, "prints (null)");
}

static void null_is_refused_with_a_message_and_a_chain_of_calls_keeps_its_first_error(void **state)
{
    (void)state;
    int failed = 0;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const row *r = &rows[i];
        char alone[1024];
        mt_clear_error();
        call(r);
        mt_status status = mt_last_status();
        snprintf(alone, sizeof alone, "%s", mt_last_error());
        if (status == MT_OK) continue; /* the value is allowed */
        failed++;
        if (strcmp(r->value, "NULL")) continue;
        if (status != MT_ERR_ARGUMENT && status != MT_ERR_UNSUPPORTED)
            complain(r, "sets another status than MT_ERR_ARGUMENT");
        /* With an uncleared failure: a NULL object keeps it, and any other bad argument replaces
         * it. */
        mti_fail(MT_ERR_MEMORY, "earlier");
        call(r);
        if (r->object && strcmp(mt_last_error(), "earlier"))
            complain(r, "replaces the first error of a chain");
        if (!r->object && strcmp(mt_last_error(), alone))
            complain(r, "does not report its own failure");
    }
    mt_clear_error();
    print_message("%d of %zu calls refused\n", failed, sizeof rows / sizeof *rows);
    assert_int_equal(complaints, 0);
    assert_true(failed > 200);
}

static int nothing_left(void **state)
{
    if (current)
        print_error("mt_%s: %s %s: crashed, or left memory\n", current->function + 3,
                    current->argument, current->value);
    return mtt_nothing_left(state);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(
            null_is_refused_with_a_message_and_a_chain_of_calls_keeps_its_first_error,
            nothing_left),
    };
    return cmocka_run_group_tests(tests, mtt_open_device, mtt_close_device);
}

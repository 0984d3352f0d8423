/* test_audit.c: every op needs each tensor that it keeps, or a reason says why not; it keeps what
 * its row declares, and has the same gradients where it keeps less. */
#include <string.h>
#include "audit.h"
#include "autograd/autograd.h"
#include "collectives/collective_cases.h"
#include "memtape/checkpoint.h"
#include "memtape/compress.h"
#include "mtt.h"
#include "mtt_fixture.h"
#include "ops/ops.h"

static void each_kept_tensor_is_needed_or_a_reason_says_why_not(void **state)
{
    (void)state;
    mti_case c;
    audit_set set;
    int n_kept = 0;
    for (int i = 0; audit_case(&mti_all_cases, i, &c); i++)
        for (unsigned want = 0; (want = audit_next(&c, want));) {
            assert_true(audit_run(&set, &c, device, want));
            for (int j = 0; j < set.n_kept; j++, n_kept++)
                if (audit_is_fault(&set.kept[j]))
                    fail_msg("%s (%s): %s changes the gradients %x by %g; reason: %s", c.op, c.note,
                             set.kept[j].argument, want, set.kept[j].off,
                             set.kept[j].why ? set.kept[j].why : "none");
        }
    assert_true(n_kept > mt_all_ops_count());
}

/* A second tanh, whose row also keeps the input. */
static bool wasteful_forward(mti_call *c)
{
    return c->k->unary(c->ctx, MTI_UNARY_tanh, 0, 0, mti_in(c, 0), mti_out(c, 0));
}
static bool wasteful_backward(mti_call *c)
{
    const mti_view *dx = mti_din(c, 0);
    return dx && c->k->unary_backward(c->ctx, MTI_UNARY_tanh, 0, 0, mti_saved(c, MTI_OUT0),
                                      mti_dout(c), dx);
}
static const mti_op_code wasteful_code = {mti_shape_same, wasteful_forward, wasteful_backward,
                                          MTI_UNARY_COUNT};
static const mti_op wasteful = {.name = "wasteful",
                                .n_in = 1,
                                .keep = {MTI_IN0 | MTI_OUT0},
                                .in = {"x"},
                                .out = {"y"},
                                .code = &wasteful_code};

static mt_tensor *call_wasteful(const mti_case *c, mt_tensor **in)
{
    (void)c;
    mt_tensor *y;
    return mti_apply(&wasteful, NULL, 1, in, 1, &y) ? y : NULL;
}

static void a_tensor_that_no_gradient_needs_is_found(void **state)
{
    (void)state;
    const mti_case c = {.op = "wasteful",
                        .note = "",
                        .call = call_wasteful,
                        .n_in = 1,
                        .in = {MTI_CASE_INPUT(MTI_CASE_ANY, 3, 5)}};
    audit_set set;
    assert_int_equal(audit_next(&c, 0), 1);
    assert_int_equal(audit_next(&c, 1), 0);
    assert_true(audit_run(&set, &c, device, 1));
    assert_int_equal(set.n_kept, 2);
    const audit_kept *x = &set.kept[0], *y = &set.kept[1];
    assert_string_equal(x->argument, "x");
    assert_string_equal(y->argument, "y");
    assert_true(x->off == 0 && audit_is_fault(x));
    assert_true(y->off > 0.01 && !audit_is_fault(y));
    assert_int_equal(y->bytes, 3 * 5 * 4);
}

/* A reason that has outlived its op's slack hides nothing. */
static void a_reason_for_a_tensor_that_is_needed_is_found(void **state)
{
    (void)state;
    audit_kept k = {.off = 0.5, .why = "it was not"};
    assert_true(audit_is_fault(&k));
    k.off = 0;
    assert_false(audit_is_fault(&k));
}

static void every_row_has_a_case(void **state)
{
    (void)state;
    for (int i = 0; i < mt_all_ops_count(); i++) {
        mti_case c;
        int k = 0;
        while (audit_case(&mti_all_cases, k, &c) && strcmp(c.op, mt_all_ops_get(i).name)) k++;
        if (!audit_case(&mti_all_cases, k, &c))
            fail_msg("%s: no case of it is audited", mt_all_ops_get(i).name);
    }
}

/* Backward holds as many while it runs. */
static void no_row_keeps_more_than_a_node_may(void **state)
{
    (void)state;
    for (int i = 0; i < mt_all_ops_count(); i++) {
        const mt_op_info row = mt_all_ops_get(i);
        unsigned slots = 0;
        int n = 0;
        for (int k = 0; k < MTI_MAX_KEEP; k++) slots |= row.keep[k];
        for (; slots; slots &= slots - 1) n++;
        if (n > MTI_MAX_SAVED) fail_msg("%s keeps up to %d tensors", row.name, n);
    }
}

static void each_op_keeps_what_its_row_declares(void **state)
{
    (void)state;
    static const int first_bit[] = {0, 8, 12}; /* of inputs, outputs, auxiliaries */
    mti_case c;
    audit_set set;
    for (int k = 0; audit_case(&mti_all_cases, k, &c); k++)
        for (unsigned want = 0; (want = audit_next(&c, want));) {
            const mt_op_info row = mt_all_ops_get(mt_all_ops_find(c.op));
            unsigned declared = 0, measured = 0;
            assert_true(audit_run(&set, &c, device, want));
            for (int i = 0; i < c.n_in; i++)
                if (want >> i & 1) declared |= row.keep[i];
            declared &= ~(0xffu & ~0u << c.n_in); /* an optional input that is not given */
            for (int i = 0; i < set.n_kept; i++)
                measured |= 1u << (first_bit[set.kept[i].role] + set.kept[i].index);
            if (declared != measured)
                fail_msg("%s: keeps %x, declares %x", c.op, measured, declared);
        }
}

/* ---- the same gradients of what keeps less ---- */

static mt_status call(void *user, int n_in, mt_tensor *const *in, int n_out, mt_tensor **outputs)
{
    (void)n_out;
    mt_tensor *all[MTI_CASE_INPUTS] = {NULL};
    memcpy(all, in, (size_t)n_in * sizeof *in);
    outputs[0] = mti_case_call(user, all);
    return outputs[0] ? MT_OK : mt_last_status();
}

/* Gradients of the case's inputs after a backward: with `packed`, tensors that the rows mark are
 * packed; with `again`, the op is computed again. */
static void run_case(mti_case *of, mt_compress *packed, bool again, mt_tensor **grad)
{
    unsigned all = 0;
    mt_tensor *in[MTI_CASE_INPUTS], *y = NULL;
    for (unsigned next = 0; (next = audit_next(of, next));) all = next;
    mt_seed(device, 8);
    assert_true(audit_inputs(of, device, all, in));
    if (packed) mtt_ok(mt_compress_begin(packed));
    mtt_ok(again ? mt_checkpoint(call, of, NULL, of->n_in, in, 1, &y, NULL)
                 : call(of, of->n_in, in, 1, &y));
    if (packed) mtt_ok(mt_compress_end(packed));
    mtt_ok(audit_backward(y));
    mt_release(y);
    for (int i = 0; i < of->n_in; i++) {
        grad[i] = mt_retain(mt_grad(in[i]));
        mt_release(in[i]);
    }
}

/* Compares the gradients of every op with those of what keeps less: of packed tensors, or without
 * of the op computed again. Returns how many tensors the rule has packed. */
static size_t check_same_gradients(mt_compress *packed, int rule)
{
    mti_case of;
    size_t n = 0;
    for (int k = 0; audit_case(&mti_all_cases, k, &of); k++) {
        mt_tensor *exact[MTI_CASE_INPUTS], *got[MTI_CASE_INPUTS];
        run_case(&of, NULL, false, exact);
        run_case(&of, packed, !packed, got);
        for (int i = 0; i < of.n_in; i++) {
            if (!exact[i] != !got[i] || (got[i] && !mtt_same_bits(exact[i], got[i])))
                fail_msg("%s %s: the gradient of input %d differs", of.op, of.note, i);
            mt_release(exact[i]), mt_release(got[i]);
        }
        mt_compress_stats stats; /* of this op: they begin anew with each */
        if (packed) mtt_ok(mt_compress_get_stats(packed, &stats));
        if (packed) n += stats.by_rule[rule].n;
    }
    return n;
}

/* A wrong mark would change a gradient; a missing mark would change the count. */
static void backward_reads_only_the_signs_the_seed_or_the_bits_that_the_row_marks(void **state)
{
    (void)state;
    static const struct {
        int rule;
        size_t n;
    } marks[] = {{MT_COMPRESS_SIGNS, 4}, /* relu's family */
                 {MT_COMPRESS_MASK_SEED, 1},
                 {MT_COMPRESS_MASK_BITS, 2}}; /* dropout's and where's */
    for (size_t i = 0; i < sizeof marks / sizeof *marks; i++) {
        const mt_compress_options options = {.rules = 1u << marks[i].rule, .min_bytes = 1};
        mt_compress *packed = mt_compress_new(device, &options);
        assert_int_equal(check_same_gradients(packed, marks[i].rule), marks[i].n);
        mt_compress_free(packed);
    }
}

static void every_op_computed_again_has_the_same_gradients(void **state)
{
    (void)state;
    check_same_gradients(NULL, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        mtt_test(each_kept_tensor_is_needed_or_a_reason_says_why_not),
        mtt_test(a_tensor_that_no_gradient_needs_is_found),
        mtt_test(a_reason_for_a_tensor_that_is_needed_is_found),
        mtt_test(every_row_has_a_case),
        mtt_test(no_row_keeps_more_than_a_node_may),
        mtt_test(each_op_keeps_what_its_row_declares),
        mtt_test(backward_reads_only_the_signs_the_seed_or_the_bits_that_the_row_marks),
        mtt_test(every_op_computed_again_has_the_same_gradients),
    };
    return cmocka_run_group_tests(tests, mtt_open_device, mtt_close_device);
}

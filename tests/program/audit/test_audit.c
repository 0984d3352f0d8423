/* test_audit.c: `memtape audit` covers every row of the table, its measurements agree with the
 * rows, and it finds tensors that no gradient needs. */
#include <math.h>
#include <string.h>
#include "mtt.h"
#include "memtape/compress.h"
#include "autograd/autograd.h"
#include "audit/op_audit.h"
#include "memtape/op_table.h"
#include "ops/ops.h"

static mt_device *device;

static const mti_audit_kept *kept(const mti_op_audit *a, const char *argument)
{
    const mti_audit_set *all = &a->sets[a->n_sets - 1];
    for (int i = 0; i < all->n_kept; i++)
        if (!strcmp(all->kept[i].argument, argument)) return &all->kept[i];
    fail_msg("%s keeps no %s", a->of.op, argument);
    return NULL;
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

static void tensors_that_no_gradient_needs_are_found(void **state)
{
    (void)state;
    const mti_case c = {.op = "wasteful",
                        .note = "",
                        .call = call_wasteful,
                        .n_in = 1,
                        .in = {MTI_CASE_INPUT(MTI_CASE_ANY, 3, 5)}};
    mti_op_audit a;
    assert_true(mti_audit_run(&a, &c, device, 1));
    assert_int_equal(a.n_sets, 1);
    assert_int_equal(a.sets[0].n_kept, 2);
    assert_int_equal(a.n_findings, 1);
    assert_false(kept(&a, "x")->needed);
    assert_true(kept(&a, "y")->needed);
    assert_true(kept(&a, "y")->difference > 0.01);
    assert_int_equal(a.sets[0].bytes, 2 * 3 * 5 * 4);
}

static void every_row_of_the_table_has_a_case(void **state)
{
    (void)state;
    for (int i = 0; i < mt_all_ops_count(); i++) {
        bool found = false;
        mti_case c;
        for (int k = 0; mti_audit_case(k, &c); k++)
            found = found || !strcmp(c.op, mt_all_ops_get(i).name);
        if (!found) fail_msg("%s: no case of it is audited", mt_all_ops_get(i).name);
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

static mt_op_info row_of(const char *op) { return mt_all_ops_get(mt_all_ops_find(op)); }

/* For every set of wanted gradients, the op keeps what its row declares. */
static void each_op_keeps_what_its_row_declares(void **state)
{
    (void)state;
    mti_case c;
    for (int k = 0; mti_audit_case(k, &c); k++) {
        mti_op_audit a;
        assert_true(mti_audit_run(&a, &c, device, 3));
        assert_true(a.n_sets > 0);
        mt_op_info row = row_of(a.of.op);
        for (int i = 0; i < a.n_sets; i++) {
            unsigned declared = 0, measured = 0;
            for (int j = 0; j < a.of.n_in; j++)
                if (a.sets[i].want >> j & 1) declared |= row.keep[j];
            declared &= ~(0xffu & ~0u << a.of.n_in); /* an optional input that is not given */
            for (int j = 0; j < a.sets[i].n_kept; j++) {
                const mti_audit_kept *part = &a.sets[i].kept[j];
                static const int first[] = {0, 8,
                                            12}; /* first bit of inputs, outputs, auxiliaries */
                measured |= 1u << (first[part->role] + part->index);
            }
            if (declared != measured)
                fail_msg("%s: keeps %x, declares %x", a.of.op, measured, declared);
        }
    }
}

/* Every op needs all that it keeps, except flash attention: its backward makes all gradients at
 * once, so it also reads what only the other gradients need. One rank, as here, sends nothing, so
 * all_to_all does not need its counts: among more, its gradients show that it does. */
static void only_flash_attention_keeps_more_than_a_gradient_needs(void **state)
{
    (void)state;
    mti_case c;
    for (int k = 0; mti_audit_case(k, &c); k++) {
        mti_op_audit a;
        assert_true(mti_audit_run(&a, &c, device, 5));
        bool flash = !strcmp(a.of.op, "flash_attention");
        if (!flash) {
            assert_int_equal(a.n_findings, !strcmp(a.of.op, "all_to_all") ? 2 : 0);
            continue;
        }
        bool drops = !strcmp(a.of.note, "dropout 0.1");
        assert_true(kept(&a, "q")->needed && kept(&a, "out")->needed && kept(&a, "lse")->needed);
        assert_int_equal(kept(&a, "seed")->needed, drops);
        assert_int_equal(kept(&a, "offset")->needed, drops);
        /* for dv alone, v and out are not needed; for the sinks' q, k and v, with dv's v */
        bool sinks = !strcmp(a.of.note, "sinks");
        assert_int_equal(a.n_findings, drops ? 2 : sinks ? 2 + 3 + 1 + 2 * 15 : 2 + 2 * 7);
    }
}

/* Gradients of the case's inputs after a backward; with `c`, tensors that the rows mark are
 * packed. */
static void run_case(const mti_case *of, mt_compress *c, mt_tensor **grad)
{
    mt_tensor *in[MTI_CASE_INPUTS] = {NULL};
    mt_seed(device, 8);
    for (int i = 0; i < of->n_in; i++) {
        in[i] = mtt_made(mti_audit_input_make(device, &of->in[i], 8));
        if (!of->in[i].below) mtt_ok(mt_set_requires_grad(in[i], true));
    }
    if (c) mtt_ok(mt_compress_begin(c));
    MT_AUTO mt_tensor *y = mtt_made(mti_case_call(of, in));
    if (c) mtt_ok(mt_compress_end(c));
    mtt_ok(mti_audit_backward(y));
    for (int i = 0; i < of->n_in; i++) {
        grad[i] = mt_retain(mt_grad(in[i]));
        mt_release(in[i]);
    }
}

/* A wrong mark would change a gradient; a missing mark would change the count. */
static void backward_reads_only_the_signs_or_the_seed_that_the_row_marks(void **state)
{
    (void)state;
    const unsigned rules = 1u << MT_COMPRESS_SIGNS | 1u << MT_COMPRESS_MASK_SEED;
    uint64_t signs = 0, seeds = 0;
    mti_case of;
    for (int k = 0; mti_audit_case(k, &of); k++) {
        mt_tensor *exact[MTI_CASE_INPUTS], *got[MTI_CASE_INPUTS];
        mt_compress_stats stats;
        mt_compress *c =
            mt_compress_new(device, &(mt_compress_options){.rules = rules, .min_bytes = 1});
        run_case(&of, NULL, exact);
        run_case(&of, c, got);
        for (int i = 0; i < of.n_in; i++) {
            if (!exact[i] != !got[i] || (got[i] && !mtt_same_bits(exact[i], got[i])))
                fail_msg("%s: the gradient of input %d differs", of.op, i);
            mt_release(exact[i]), mt_release(got[i]);
        }
        mtt_ok(mt_compress_get_stats(c, &stats));
        signs += stats.by_rule[MT_COMPRESS_SIGNS].n;
        seeds += stats.by_rule[MT_COMPRESS_MASK_SEED].n;
        mt_compress_free(c);
    }
    assert_int_equal(signs, 4); /* relu's family */
    assert_int_equal(seeds, 1);
}

static void cheaper_ways_are_cheaper(void **state)
{
    (void)state;
    mti_case c;
    for (int k = 0; mti_audit_case(k, &c); k++) {
        mti_op_audit a;
        assert_true(mti_audit_run(&a, &c, device, 7));
        const mti_audit_set *all = &a.sets[a.n_sets - 1];
        for (int i = 0; i < all->n_kept; i++) {
            const mti_audit_kept *part = &all->kept[i];
            const mti_cheaper *way;
            size_t n = 0;
            for (; (way = mti_audit_cheaper(a.of.op, part, n)); n++)
                assert_true(mti_cheaper_bytes(way, part) < part->bytes);
            assert_true(n > 0 || part->parameter || part->bytes == 8);
        }
    }
}

static void a_dropout_mask_could_be_kept_as_bits_or_as_a_seed(void **state)
{
    (void)state;
    mti_case c;
    for (int k = 0; mti_audit_case(k, &c) && strcmp(c.op, "dropout") != 0;) k++;
    mti_op_audit a;
    assert_true(mti_audit_run(&a, &c, device, 1));
    const mti_audit_kept *mask = kept(&a, "mask");
    assert_int_equal(mask->bytes, 32 * 64);
    const mti_cheaper *seed = mti_audit_cheaper("dropout", mask, 0);
    const mti_cheaper *bits = mti_audit_cheaper("dropout", mask, 1);
    assert_true(seed->kind == MTI_CHEAPER_SEED && mti_cheaper_bytes(seed, mask) == 16);
    assert_true(bits->kind == MTI_CHEAPER_BITS && mti_cheaper_bytes(bits, mask) == 32 * 64 / 8);
    assert_null(mti_audit_cheaper("dropout", mask, 2));
}

/* Bits, seeds and recomputing are exact, and take the bytes that the audit predicted. */
static void cheaper_ways_are_exact_and_take_the_predicted_bytes(void **state)
{
    (void)state;
    int n_by_kind[MTI_CHEAPER_COUNT] = {0};
    mti_case c;
    for (int k = 0; mti_audit_case(k, &c); k++) {
        mti_op_audit a;
        assert_true(mti_audit_run(&a, &c, device, 9));
        assert_true(mti_audit_take(&a, device, 9));
        const mti_audit_set *all = &a.sets[a.n_sets - 1];
        for (int i = 0; i < a.n_taken; i++) {
            const mti_audit_taken *t = &a.taken[i];
            n_by_kind[t->kind]++;
            assert_true(t->difference == 0);
            assert_true(t->after < t->before);
            assert_int_equal(t->before, all->bytes);
            if (t->kind == MTI_CHEAPER_BITS) {
                const mti_audit_kept *part = kept(&a, t->argument);
                size_t n = part->bytes / mt_dtype_size(part->dtype);
                assert_int_equal(t->before - t->after, part->bytes - (n + 7) / 8);
            } else if (t->kind == MTI_CHEAPER_SEED) { /* seed and offset have no storage */
                assert_int_equal(t->before - t->after, kept(&a, t->argument)->bytes);
            } else { /* an argument of the op that is not a product stays kept */
                size_t left = 0;
                for (int j = 0; j < a.of.n_in; j++) {
                    size_t n = a.of.in[j].below ? sizeof(int64_t) : 0;
                    for (int d = 0; d < a.of.in[j].rank; d++) n *= (size_t)a.of.in[j].shape[d];
                    left += n;
                }
                assert_int_equal(t->after, left);
            }
        }
    }
    assert_true(n_by_kind[MTI_CHEAPER_BITS] >= 5); /* four ops of relu's family, and dropout */
    assert_int_equal(n_by_kind[MTI_CHEAPER_SEED], 1);
    assert_true(n_by_kind[MTI_CHEAPER_RECOMPUTE] >= 15);
}

static int set_up(void **state)
{
    (void)state;
    device = mtt_device();
    return device ? 0 : -1;
}

static int tear_down(void **state)
{
    (void)state;
    mt_device_release(device);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tensors_that_no_gradient_needs_are_found),
        cmocka_unit_test(every_row_of_the_table_has_a_case),
        cmocka_unit_test(no_row_keeps_more_than_a_node_may),
        cmocka_unit_test(each_op_keeps_what_its_row_declares),
        cmocka_unit_test(only_flash_attention_keeps_more_than_a_gradient_needs),
        cmocka_unit_test(backward_reads_only_the_signs_or_the_seed_that_the_row_marks),
        cmocka_unit_test(cheaper_ways_are_cheaper),
        cmocka_unit_test(a_dropout_mask_could_be_kept_as_bits_or_as_a_seed),
        cmocka_unit_test(cheaper_ways_are_exact_and_take_the_predicted_bytes),
    };
    return cmocka_run_group_tests_name("audit", tests, set_up, tear_down);
}

/* Checkpointed functions: the same bits, the memory that is spared, and everything that can go
 * wrong when a function is run again. */
#include <stdlib.h>
#include <string.h>
#include "base/base.h"
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

/* ---- what is kept ---- */

static void only_the_inputs_are_kept_and_a_ledger_sees_them(void **state)
{
    (void)state;
    setup s = set_up(0.3);
    mt_ledger *ledger = mt_ledger_new(device);
    size_t before = allocated();
    mtt_ok(mt_ledger_begin(ledger));
    mtt_ok(forward(&s, false, 2, 1, NULL));
    mtt_ok(mt_ledger_end(ledger));
    assert_int_equal(mt_ledger_bytes(ledger), 2 * ROWS * N * 4);
    assert_int_equal(mt_ledger_count(ledger), 2);
    for (size_t i = 0; i < 2; i++) {
        mt_ledger_entry e;
        mtt_ok(mt_ledger_get(ledger, i, &e));
        assert_string_equal(e.saver.op, "checkpoint");
        assert_string_equal(e.saver.argument, i ? "x1" : "x0");
    }
    /* The inputs were there; the scalar loss is new. */
    assert_int_equal(allocated() - before, mt_storage_of(s.loss).allocated);
    mtt_ok(mt_backward(s.loss));
    mt_ledger_free(ledger);
    tear_down(&s);
}

static void what_is_made_again_is_given_up_with_its_node(void **state)
{
    (void)state;
    setup s = set_up(0.3);
    mtt_ok(forward(&s, false, 1, 1, NULL));
    size_t before = allocated();
    mtt_ok(mt_backward(s.loss));
    size_t grads = 0;
    for (int i = 0; i < 2; i++) {
        mt_tensor *g = mt_grad(i ? s.d.w : s.x[0]);
        grads += mt_storage_of(g).allocated;
    }
    assert_int_equal(allocated() - before, grads);
    assert_int_equal(s.d.destroys, 1);
    tear_down(&s);
}

static void without_recording_it_is_a_plain_call(void **state)
{
    (void)state;
    setup s = set_up(0.3);
    mt_set_grad_mode(false);
    mtt_ok(mt_checkpoint(fn, &s.d, count_destroy, 1, s.x, 1, s.out, NULL));
    mt_set_grad_mode(true);
    assert_false(mt_requires_grad(s.out[0]));
    assert_int_equal(s.d.destroys, 1);
    tear_down(&s);
}

static void a_result_that_nobody_uses_takes_the_frame_with_it(void **state)
{
    (void)state;
    setup s = set_up(0.3);
    mtt_ok(mt_checkpoint(fn, &s.d, count_destroy, 1, s.x, 1, s.out, NULL));
    assert_int_equal(s.d.destroys, 0);
    mt_release(s.out[0]);
    s.out[0] = NULL;
    assert_int_equal(s.d.destroys, 1);
    tear_down(&s);
}

/* ---- backward twice ---- */

static void a_second_backward_runs_the_function_again(void **state)
{
    (void)state;
    setup a = set_up(0.3), b;
    const mt_backward_options retain = {.retain_graph = true};
    mtt_ok(forward(&a, true, 2, 2, NULL));
    mtt_ok(mt_backward_with(a.loss, &retain));
    mtt_ok(mt_backward(a.loss));
    b = set_up(0.3);
    mtt_ok(forward(&b, false, 2, 2, &(mt_checkpoint_options){.check = true}));
    size_t before = allocated();
    mtt_ok(mt_backward_with(b.loss, &retain));
    assert_int_equal(b.d.calls, 2);
    /* Nothing that was made again stays for the next time. */
    size_t grads = 0;
    for (int i = 0; i < 3; i++) grads += mt_storage_of(mt_grad(i < 2 ? b.x[i] : b.d.w)).allocated;
    assert_int_equal(allocated() - before, grads);
    mtt_ok(mt_backward(b.loss));
    assert_int_equal(b.d.calls, 3);
    assert_int_equal(b.d.destroys, 1);
    assert_same_grads(&a, &b, 2);
    assert_int_equal(mt_backward(b.loss), MT_ERR_STATE);
    mt_clear_error();
    tear_down(&a);
    tear_down(&b);
}

/* One backward for each of two outputs: what the first does not need waits for the second. */
static void two_outputs_may_be_gone_through_one_after_the_other(void **state)
{
    (void)state;
    setup a = set_up(0), b = set_up(0);
    setup *both[2] = {&a, &b};
    for (int k = 0; k < 2; k++) {
        setup *s = both[k];
        if (k)
            mtt_ok(mt_checkpoint(fn, &s->d, NULL, 2, s->x, 2, s->out, NULL));
        else
            mtt_ok(fn(&s->d, 2, s->x, 2, s->out));
        s->loss = mtt_made(mt_sum_all(s->out[1]));
        mtt_ok(mt_backward(s->loss));
        mt_set(&s->loss, mtt_made(mt_sum_all(s->out[0])));
        mtt_ok(mt_backward(s->loss));
    }
    assert_int_equal(b.d.calls, 2);
    assert_same_grads(&a, &b, 2);
    tear_down(&a);
    tear_down(&b);
}

/* ---- differences ---- */

static void a_function_that_does_otherwise_is_found_out(void **state)
{
    (void)state;
    static const struct {
        int twist;
        bool check;
        const char *words[4];
    } cases[] = {
        {OTHER_OP,
         false,
         {"op of silu x in fn", "then 2: gelu x f32 [5,6] in fn", "now  2: silu x"}},
        {OTHER_SHAPE,
         false,
         {"shape of linear x in fn", "then 0: linear x f32 [5,6]", "now  0: linear x f32 [1,6]"}},
        {FEWER, false, {"op of dropout mask in fn", "then 2: gelu x", "now  2: dropout mask"}},
        {MORE, false, {"op of exp y in fn", "then 3: dropout mask", "now  3: exp y f32 [5,6]"}},
        {OTHER_VALUE,
         true,
         {"value of linear x in fn", "then 0: linear x f32", "now  0: linear x f32"}}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        setup s = set_up(0.3);
        s.d.twist_at = 2, s.d.twist = cases[i].twist;
        mtt_ok(forward(&s, false, 1, 1, &(mt_checkpoint_options){.check = cases[i].check}));
        assert_int_equal(mt_backward(s.loss), MT_ERR_STATE);
        mtt_failed(MT_ERR_STATE, "checkpoint", cases[i].words[0], cases[i].words[1],
                   cases[i].words[2]);
        tear_down(&s);
        assert_int_equal(s.d.destroys, 1);
        assert_int_equal(allocated(), 0);
    }
}

static void without_the_check_another_value_passes(void **state)
{
    (void)state;
    setup s = set_up(0);
    s.d.twist_at = 2, s.d.twist = OTHER_VALUE;
    mtt_ok(forward(&s, false, 1, 1, NULL));
    mtt_ok(mt_backward(s.loss));
    tear_down(&s);
}

static void a_function_that_ends_early_is_found_out(void **state)
{
    (void)state;
    setup s = set_up(0);
    s.d.twist_at = 2, s.d.twist = FEWER; /* without dropout the gelu's save is missed at the end */
    mtt_ok(forward(&s, false, 1, 1, NULL));
    assert_int_equal(mt_backward(s.loss), MT_ERR_STATE);
    mtt_failed(MT_ERR_STATE, "running it again saved something else", "forward saved");
    tear_down(&s);
}

static void random_numbers_that_are_not_repeated_are_found_out(void **state)
{
    (void)state;
    setup s = set_up(0.5);
    const mt_checkpoint_options options = {.check = true, .rng_as_it_is = true};
    mtt_ok(forward(&s, false, 1, 1, &options));
    assert_int_equal(mt_backward(s.loss), MT_ERR_STATE);
    mtt_failed(MT_ERR_STATE, "value of dropout mask in fn");
    tear_down(&s);
}

static void a_parameter_changed_before_backward_is_found_out(void **state)
{
    (void)state;
    setup s = set_up(0);
    mtt_ok(forward(&s, false, 1, 1, NULL));
    mtt_ok(mt_fill(s.d.w, 0.5));
    assert_int_equal(mt_backward(s.loss), MT_ERR_STATE);
    mtt_failed(MT_ERR_STATE, "linear backward in fn: w", "changed in place");
    tear_down(&s);
}

static void an_input_changed_before_backward_is_found_out(void **state)
{
    (void)state;
    setup s = set_up(0);
    mtt_ok(forward(&s, false, 2, 1, NULL));
    mtt_ok(mt_fill(s.x[1], 0.5));
    assert_int_equal(mt_backward(s.loss), MT_ERR_STATE);
    mtt_failed(MT_ERR_STATE, "checkpoint backward", "x1", "changed in place");
    tear_down(&s);
}

/* ---- failures ---- */

static void a_function_that_fails_in_forward_leaves_nothing(void **state)
{
    (void)state;
    setup s = set_up(0);
    s.d.fail_at = 1;
    assert_int_equal(mt_checkpoint(fn, &s.d, count_destroy, 1, s.x, 1, s.out,
                                   &(mt_checkpoint_options){.label = "thing"}),
                     MT_ERR_IO);
    mtt_failed(MT_ERR_IO, "checkpoint thing", "its function failed");
    assert_null(s.out[0]);
    assert_int_equal(s.d.destroys, 1);
    tear_down(&s);
}

static void a_function_that_fails_in_backward_only_may_be_tried_again(void **state)
{
    (void)state;
    setup a = set_up(0.3), b;
    mtt_ok(forward(&a, true, 1, 1, NULL));
    mtt_ok(mt_backward(a.loss));
    b = set_up(0.3);
    b.d.fail_at = 2;
    mtt_ok(forward(&b, false, 1, 1, &(mt_checkpoint_options){.label = "thing"}));
    assert_int_equal(mt_backward_with(b.loss, &(mt_backward_options){.retain_graph = true}),
                     MT_ERR_IO);
    mtt_failed(MT_ERR_IO, "checkpoint thing", "when it was run again");
    mtt_ok(mt_backward(b.loss));
    assert_same_grads(&a, &b, 1);
    tear_down(&a);
    tear_down(&b);
}

static mt_status forgets_output(void *user, int n_in, mt_tensor *const *in, int n_out,
                                mt_tensor **out)
{
    (void)user, (void)n_in, (void)in, (void)n_out, (void)out;
    return MT_OK;
}

static void wrong_arguments_are_refused(void **state)
{
    (void)state;
    setup s = set_up(0);
    assert_int_equal(mt_checkpoint(NULL, &s.d, count_destroy, 1, s.x, 1, s.out, NULL),
                     MT_ERR_ARGUMENT);
    mtt_failed(MT_ERR_ARGUMENT, "the function is NULL");
    assert_int_equal(mt_checkpoint(fn, &s.d, count_destroy, 0, s.x, 1, s.out, NULL),
                     MT_ERR_ARGUMENT);
    mtt_failed(MT_ERR_ARGUMENT, "0 inputs, 1 outputs");
    mt_tensor *none = NULL;
    assert_int_equal(mt_checkpoint(fn, &s.d, count_destroy, 1, &none, 1, s.out, NULL),
                     MT_ERR_ARGUMENT);
    mtt_failed(MT_ERR_ARGUMENT, "input 0 is NULL");
    mt_device *other = mtt_device();
    mt_tensor *away[2] = {s.x[0], mt_zeros(other, MT_F32, 0, NULL)};
    assert_int_equal(mt_checkpoint(fn, &s.d, count_destroy, 2, away, 1, s.out, NULL),
                     MT_ERR_ARGUMENT);
    mtt_failed(MT_ERR_ARGUMENT, "input 1 lives on another device");
    mt_release(away[1]);
    mt_device_release(other);
    assert_int_equal(mt_checkpoint(forgets_output, &s.d, count_destroy, 1, s.x, 1, s.out, NULL),
                     MT_ERR_ARGUMENT);
    mtt_failed(MT_ERR_ARGUMENT, "left output 0 NULL");
    assert_int_equal(s.d.destroys, 5);
    tear_down(&s);
}

/* ---- nesting ---- */

typedef struct nest {
    setup *s;
    int depth, calls;
} nest;

/* y = fn(...) inside `depth` checkpoints, each with an op of its own after it */
static mt_status nested(void *user, int n_in, mt_tensor *const *in, int n_out, mt_tensor **out)
{
    const nest *n = user;
    n->s->d.calls += 1000 * (n->depth == 1);
    const mt_checkpoint_options options = {.check = true};
    nest inner = {n->s, n->depth - 1, 0};
    mt_status status;
    if (!n->depth) return fn(&n->s->d, n_in, in, n_out, out);
    nest *next = malloc(sizeof *next);
    *next = inner;
    status = mt_checkpoint(nested, next, free, n_in, in, n_out, out, &options);
    if (status == MT_OK) status = mt_set(&out[0], mt_gelu(out[0]));
    return status;
}

static void checkpoints_nest(void **state)
{
    (void)state;
    setup results[4];
    for (int depth = 0; depth < 4; depth++) {
        setup *s = &results[depth];
        *s = set_up(0.3);
        nest n = {s, depth, 0};
        /* the same ops at each depth */
        mtt_ok(nested(&n, 2, s->x, 1, s->out));
        for (int k = depth; k < 3; k++) mtt_ok(mt_set(&s->out[0], mt_gelu(s->out[0])));
        s->loss = mtt_made(mt_sum_all(s->out[0]));
        mt_release(s->out[0]);
        s->out[0] = NULL;
        mtt_ok(mt_backward(s->loss));
        assert_int_equal(mt_last_status(), MT_OK);
        /* Once in forward, and once for each checkpoint around it. */
        assert_int_equal(s->d.calls % 1000, depth + 1);
        if (depth) assert_same_grads(&results[0], s, 2);
    }
    for (int depth = 0; depth < 4; depth++) tear_down(&results[depth]);
}

/* ---- hooks below and above ---- */

static mt_status halve(void *user, const mt_save_info *info, mt_tensor *t, mt_tensor **kept,
                       void **state)
{
    (void)info, (void)state;
    if (mt_storage_of(t).category == MT_PARAMETER) return MT_OK;
    ++*(int *)user;
    mt_tensor *copy = mt_cast(t, MT_F64);
    if (!copy) return mt_last_status();
    *kept = copy;
    return MT_OK;
}

static mt_status back(void *user, const mt_save_info *info, mt_tensor **t, void *state)
{
    (void)user, (void)info, (void)state;
    if (mt_dtype_of(*t) != MT_F64) return MT_OK;
    mt_tensor *narrow = mt_cast(*t, MT_F32);
    if (!narrow) return mt_last_status();
    *t = narrow;
    return MT_OK;
}

static void inputs_pass_the_hooks_around_the_checkpoint(void **state)
{
    (void)state;
    setup a = set_up(0.3), b;
    int n = 0;
    const mt_saved_hooks hooks = {.pack = halve, .unpack = back};
    mtt_ok(forward(&a, true, 2, 1, NULL));
    mtt_ok(mt_backward(a.loss));
    b = set_up(0.3);
    mtt_ok(mt_push_saved_hooks(&hooks, &n));
    mtt_ok(mt_checkpoint(fn, &b.d, NULL, 2, b.x, 1, b.out, NULL));
    mtt_ok(mt_pop_saved_hooks());
    assert_int_equal(n, 2); /* the two inputs, and nothing of what the ops saved */
    b.loss = mtt_made(mt_sum_all(b.out[0]));
    mt_set_balance_check(device, true);
    mtt_ok(mt_backward(b.loss));
    mtt_ok(mt_check_balance(device));
    assert_same_grads(&a, &b, 2);
    tear_down(&a);
    tear_down(&b);
}

/* ---- flops and phases ---- */

static void flops_of_running_again_are_counted_apart(void **state)
{
    (void)state;
    setup s = set_up(0.3);
    mt_flops_reset(device);
    mtt_ok(forward(&s, false, 1, 1, &(mt_checkpoint_options){.no_early_stop = true}));
    mt_flops there = mt_flops_get(device);
    assert_int_equal(there.forward, 2 * 2 * ROWS * N * N);
    assert_int_equal(there.recompute, 0);
    mtt_ok(mt_backward(s.loss));
    mt_flops back_again = mt_flops_get(device);
    assert_int_equal(back_again.forward, there.forward);
    assert_int_equal(back_again.recompute, there.forward);
    assert_int_equal(back_again.backward, 2 * there.forward);
    tear_down(&s);
}

/* ---- every allocation ---- */

static bool run_with_failure(uint64_t n, mt_tensor *const *expected)
{
    setup s = set_up(0.3);
    uint64_t seed, offset;
    mt_rng_get(device, &seed, &offset);
    size_t before = allocated();
    const mt_checkpoint_options inner = {.check = true};
    nest around = {&s, 2, 0};
    mti_fail_nth_alloc(n);
    mt_status status = mt_checkpoint(nested, &around, NULL, 2, s.x, 1, s.out, &inner);
    if (status == MT_OK) status = (s.loss = mt_sum_all(s.out[0])) ? MT_OK : mt_last_status();
    if (status == MT_OK) status = mt_backward(s.loss);
    bool reached = mti_alloc_count() >= n;
    mti_fail_nth_alloc(0);
    if (status != MT_OK) {
        assert_int_equal(mt_last_status(), MT_ERR_MEMORY);
        mt_clear_error();
        mt_release(s.out[0]);
        mt_release(s.loss);
        s.out[0] = s.loss = NULL;
        for (int i = 0; i < 3; i++) mtt_ok(mt_set_grad(i < 2 ? s.x[i] : s.d.w, NULL));
        assert_int_equal(allocated(), before);
        assert_string_equal(mt_scope_path(), "");
        mtt_ok(mt_check_balance(device));
        mt_rng_set(device, seed, offset);
        around = (nest){&s, 2, 0};
        mtt_ok(mt_checkpoint(nested, &around, NULL, 2, s.x, 1, s.out, &inner));
        s.loss = mtt_made(mt_sum_all(s.out[0]));
        mtt_ok(mt_backward(s.loss));
    }
    for (int i = 0; expected && i < 3; i++)
        assert_true(mtt_same_bits(mt_grad(i < 2 ? s.x[i] : s.d.w), expected[i]));
    tear_down(&s);
    return reached;
}

static void any_allocation_may_fail(void **state)
{
    (void)state;
    setup s = set_up(0.3);
    nest around = {&s, 2, 0};
    mtt_ok(mt_checkpoint(nested, &around, NULL, 2, s.x, 1, s.out, NULL));
    s.loss = mtt_made(mt_sum_all(s.out[0]));
    mtt_ok(mt_backward(s.loss));
    mt_tensor *expected[3] = {mt_grad(s.x[0]), mt_grad(s.x[1]), mt_grad(s.d.w)};
    uint64_t n = 1;
    while (run_with_failure(n, expected)) n++;
    print_message("%llu allocations failed in turn\n", (unsigned long long)n - 1);
    assert_true(n > 200);
    tear_down(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(gradients_have_the_same_bits, nothing_left),
        cmocka_unit_test_teardown(only_the_inputs_are_kept_and_a_ledger_sees_them, nothing_left),
        cmocka_unit_test_teardown(what_is_made_again_is_given_up_with_its_node, nothing_left),
        cmocka_unit_test_teardown(without_recording_it_is_a_plain_call, nothing_left),
        cmocka_unit_test_teardown(a_result_that_nobody_uses_takes_the_frame_with_it, nothing_left),
        cmocka_unit_test_teardown(a_second_backward_runs_the_function_again, nothing_left),
        cmocka_unit_test_teardown(two_outputs_may_be_gone_through_one_after_the_other,
                                  nothing_left),
        cmocka_unit_test_teardown(a_function_that_does_otherwise_is_found_out, nothing_left),
        cmocka_unit_test_teardown(without_the_check_another_value_passes, nothing_left),
        cmocka_unit_test_teardown(a_function_that_ends_early_is_found_out, nothing_left),
        cmocka_unit_test_teardown(random_numbers_that_are_not_repeated_are_found_out, nothing_left),
        cmocka_unit_test_teardown(a_parameter_changed_before_backward_is_found_out, nothing_left),
        cmocka_unit_test_teardown(an_input_changed_before_backward_is_found_out, nothing_left),
        cmocka_unit_test_teardown(a_function_that_fails_in_forward_leaves_nothing, nothing_left),
        cmocka_unit_test_teardown(a_function_that_fails_in_backward_only_may_be_tried_again,
                                  nothing_left),
        cmocka_unit_test_teardown(wrong_arguments_are_refused, nothing_left),
        cmocka_unit_test_teardown(checkpoints_nest, nothing_left),
        cmocka_unit_test_teardown(inputs_pass_the_hooks_around_the_checkpoint, nothing_left),
        cmocka_unit_test_teardown(flops_of_running_again_are_counted_apart, nothing_left),
        cmocka_unit_test_teardown(any_allocation_may_fail, nothing_left),
    };
    return cmocka_run_group_tests(tests, open_device, close_device);
}

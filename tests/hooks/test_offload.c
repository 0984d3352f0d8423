/* Offload to host memory: the same gradients, a lower peak, and a report that is true. */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include "base/base.h"
#include "trainer.h"

static mt_device *device;

static int open_device(void **state)
{
    (void)state;
    /* Products take no workspace: the peaks below are those of tensors alone. */
    setenv("CUBLAS_WORKSPACE_CONFIG", ":0:0", 1);
    device = mtt_device();
    return device && mt_set_balance_check(device, true) == MT_OK ? 0 : -1;
}

static int close_device(void **state)
{
    (void)state;
    mt_device_release(device);
    return 0;
}

static size_t allocated_on(mt_device *d)
{
    mt_mem_stats stats;
    mt_mem_get_stats(d, &stats);
    return stats.allocated.current;
}

static int nothing_left(void **state)
{
    (void)state;
    return allocated_on(device) == 0 && mt_last_status() == MT_OK ? 0 : -1;
}

static mt_offload *made(mt_offload *o)
{
    if (!o) fail_msg("%s", mt_last_error());
    return o;
}

static mt_offload_stats stats_of(mt_offload *o)
{
    mt_offload_stats s;
    mtt_ok(mt_offload_get_stats(o, &s));
    assert_int_equal(s.lowered, s.peak_without - s.peak);
    assert_true(s.copy_s >= 0 && s.wait_s >= 0 && s.hidden >= 0 && s.hidden <= 1);
    return s;
}

/* ---- a chain of linears, [ROWS,WIDTH] each: S bytes of activation, D of weight ---- */

enum { LAYERS = 8, ROWS = 256, WIDTH = 64 };
#define S (ROWS * WIDTH * 4)
#define D (WIDTH * WIDTH * 4)

typedef struct chain {
    mt_tensor *x, *w[LAYERS];
} chain;

static chain open_chain(void)
{
    chain c = {mtt_made(mtt_random(device, MT_F32, MT_SHAPE(ROWS, WIDTH), 1, -1, 1)), {0}};
    mtt_ok(mt_set_category(c.x, MT_INPUT));
    for (int i = 0; i < LAYERS; i++) {
        c.w[i] =
            mtt_made(mtt_random(device, MT_F32, MT_SHAPE(WIDTH, WIDTH), 2 + (uint64_t)i, -1, 1));
        mtt_ok(mt_set_category(c.w[i], MT_PARAMETER));
        mtt_ok(mt_set_requires_grad(c.w[i], true));
    }
    return c;
}

static void close_chain(chain *c)
{
    mt_release(c->x);
    for (int i = 0; i < LAYERS; i++) mt_release(c->w[i]);
}

/* The sum of h_n, h_i = h_{i-1} w_i^T. Each linear saves its input: h_0 is the caller's, and so
 * LAYERS - 1 activations of S bytes are the tape's alone. */
static mt_tensor *chain_loss(const chain *c)
{
    MT_AUTO mt_tensor *h = mt_retain(c->x);
    for (int i = 0; i < LAYERS; i++) mt_set(&h, mt_linear(h, c->w[i], NULL));
    return mtt_made(mt_sum_all(h));
}

static void chain_zero(chain *c)
{
    for (int i = 0; i < LAYERS; i++) mtt_ok(mt_set_grad(c->w[i], NULL));
}

static unsigned char *chain_grads(const chain *c)
{
    unsigned char *all = malloc((size_t)LAYERS * D);
    assert_non_null(all);
    for (int i = 0; i < LAYERS; i++) mtt_ok(mt_to_host(mt_grad(c->w[i]), all + i * D, D));
    return all;
}

typedef struct step {
    size_t peak, forward_peak, after_forward; /* above what there was before */
    mt_offload_stats stats;
    unsigned char *grads;
} step;

/* Forward and backward; every gradient is there already, so that backward only adds to them. */
static step chain_step(chain *c, mt_offload *o)
{
    step s = {0};
    mt_mem_region whole, forward;
    for (int i = 0; i < LAYERS; i++) {
        MT_AUTO mt_tensor *zero = mtt_made(mt_zeros(device, MT_F32, MT_SHAPE(WIDTH, WIDTH)));
        mtt_ok(mt_set_grad(c->w[i], zero));
    }
    mt_mem_region_begin(&whole, device);
    mt_mem_region_begin(&forward, device);
    if (o) mtt_ok(mt_offload_begin(o));
    mt_tensor *loss = chain_loss(c);
    if (o) mtt_ok(mt_offload_end(o));
    mt_mem_region_end(&forward);
    mtt_ok(mt_backward(loss));
    if (o) s.stats = stats_of(o);
    mt_release(loss);
    mt_mem_region_end(&whole);
    s.peak = (size_t)whole.delta.peak;
    s.forward_peak = (size_t)forward.delta.peak;
    s.after_forward = (size_t)forward.delta.current;
    s.grads = chain_grads(c);
    chain_zero(c);
    return s;
}

static void the_peak_of_a_chain_falls_by_the_bytes_that_are_away(void **state)
{
    (void)state;
    chain c = open_chain();
    step plain = chain_step(&c, NULL);
    assert_int_equal(plain.after_forward, (LAYERS - 1) * S + 512); /* and the loss */
    for (int prefetch = -1; prefetch <= 3; prefetch += prefetch < 0 ? 2 : 1)
        for (int in_flight = 1; in_flight <= 3; in_flight++) {
            mt_offload *o = made(mt_offload_new(
                device, &(mt_offload_options){.in_flight = in_flight, .prefetch = prefetch}));
            step s = chain_step(&c, o);
            assert_memory_equal(s.grads, plain.grads, LAYERS * D);
            assert_int_equal(s.after_forward, 512);
            /* A linear's input and output, and those that are still leaving. */
            assert_int_equal(s.forward_peak, (size_t)(in_flight + 2) * S);
            assert_int_equal(s.stats.bytes_out, (LAYERS - 1) * S);
            assert_int_equal(s.stats.bytes_in, (LAYERS - 1) * S);
            assert_int_equal(s.stats.n_out, LAYERS - 1);
            assert_int_equal(s.stats.n_in, LAYERS - 1);
            assert_int_equal(s.stats.saves, 2 * LAYERS - 1); /* x wants no gradient from w_1 */
            assert_int_equal(s.stats.saves_left, LAYERS);    /* x and the weights */
            assert_int_equal(s.stats.bytes_still_held, 0);
            assert_int_equal(s.stats.bytes_away, 0);
            assert_int_equal(s.stats.host_bytes, 0);
            assert_int_equal(s.stats.host_peak, (LAYERS - 1) * S);
            /* At the peak of the backward there are dy, dx, a gradient of D, the two scalars, the
             * linear's input, and those prefetched; or the forward's is higher. */
            size_t back = (size_t)(3 + (prefetch < 0 ? 0 : prefetch)) * S + D + 1024;
            size_t expected = back > s.forward_peak ? back : s.forward_peak;
            assert_int_equal(s.peak, expected);
            assert_int_equal(plain.peak - s.peak, s.stats.lowered);
            assert_int_equal(s.stats.bytes_in_vain, (LAYERS - 1) * S - s.stats.lowered);
            free(s.grads);
            mt_offload_free(o);
        }
    free(plain.grads);
    close_chain(&c);
}

static void a_device_without_data_tells_the_same_peak(void **state)
{
    (void)state;
    mt_device *real = device;
    step s[2];
    for (int i = 0; i < 2; i++) {
        if (i) device = mt_device_open("meta");
        chain c = open_chain();
        mt_offload *o = made(mt_offload_new(device, NULL));
        mt_mem_region r;
        mt_mem_region_begin(&r, device);
        mtt_ok(mt_offload_begin(o));
        MT_AUTO mt_tensor *loss = chain_loss(&c);
        mtt_ok(mt_offload_end(o));
        mtt_ok(mt_backward(loss));
        mt_mem_region_end(&r);
        s[i].peak = (size_t)r.delta.peak;
        s[i].stats = stats_of(o);
        mt_offload_free(o);
        close_chain(&c);
    }
    mt_device_release(device);
    device = real;
    assert_int_equal(s[0].peak, s[1].peak);
    assert_int_equal(s[0].stats.lowered, s[1].stats.lowered);
    assert_int_equal(s[0].stats.host_peak, s[1].stats.host_peak);
    assert_int_equal(s[0].stats.bytes_in, s[1].stats.bytes_in);
    assert_true(s[1].stats.copy_s == 0);
}

/* ---- training ---- */

static unsigned char *train(const mt_offload_options *options, bool whole_step, size_t *n_bytes)
{
    trainer t;
    double loss[3];
    assert_true(trainer_open(&t, NULL, 11));
    mt_offload *o = options ? made(mt_offload_new(t.device, options)) : NULL;
    for (int i = 0; i < 3; i++) {
        if (!whole_step) {
            mtt_ok(mt_module_zero_grad(t.gpt));
            if (o) mtt_ok(mt_offload_begin(o));
            MT_AUTO mt_tensor *h = mt_forward(t.gpt, t.tokens);
            mt_set(&h, mtt_made(mt_cross_entropy(h, t.targets, -100)));
            if (o) mtt_ok(mt_offload_end(o));
            mtt_ok(mt_backward(h));
            mtt_ok(mt_clip_grad_norm(t.gpt, 1, NULL));
            mtt_ok(mt_optimizer_step(t.adamw));
        } else {
            if (o) mtt_ok(mt_offload_begin(o));
            mtt_ok(trainer_step(&t, &loss[i]));
            if (o) mtt_ok(mt_offload_end(o));
        }
        if (o) assert_true(stats_of(o).n_out > 20);
        if (o) assert_int_equal(stats_of(o).host_bytes, 0);
    }
    unsigned char *weights = trainer_weights(&t, n_bytes);
    mt_offload_free(o);
    trainer_close(&t);
    assert_int_equal(allocated_on(t.device), 0);
    mt_device_release(t.device);
    return weights;
}

static void training_with_dropout_has_the_same_bits(void **state)
{
    (void)state;
    size_t n_bytes, n;
    unsigned char *plain = train(NULL, false, &n_bytes);
    for (int i = 0; i < 8; i++) {
        mt_offload_options options = {.min_bytes = 1,
                                      .in_flight = i & 1 ? 1 : 100,
                                      .prefetch = i & 2 ? -1 : 5,
                                      .inputs = i == 4};
        unsigned char *other = train(&options, i & 4, &n);
        assert_int_equal(n, n_bytes);
        assert_memory_equal(plain, other, n_bytes);
        free(other);
    }
    free(plain);
}

/* ---- beside other hooks, other graphs and other threads ---- */

static void a_ledger_outside_sees_what_stayed_and_one_inside_sees_everything(void **state)
{
    (void)state;
    chain c = open_chain();
    mt_ledger *ledger[3];
    mt_offload *o = made(mt_offload_new(device, NULL));
    for (int i = 0; i < 3; i++) { /* alone, outside, inside */
        ledger[i] = mt_ledger_new(device);
        if (i == 2) mtt_ok(mt_offload_begin(o));
        mtt_ok(mt_ledger_begin(ledger[i]));
        if (i == 1) mtt_ok(mt_offload_begin(o));
        MT_AUTO mt_tensor *loss = chain_loss(&c);
        if (i == 1) mtt_ok(mt_offload_end(o));
        mtt_ok(mt_ledger_end(ledger[i]));
        if (i == 2) mtt_ok(mt_offload_end(o));
        mtt_ok(mt_backward(loss));
        chain_zero(&c);
    }
    assert_int_equal(mt_ledger_bytes(ledger[0]), LAYERS * S);
    assert_int_equal(mt_ledger_bytes(ledger[1]), S); /* the input alone */
    assert_int_equal(mt_ledger_bytes(ledger[2]), LAYERS * S);
    for (int i = 0; i < 3; i++) mt_ledger_free(ledger[i]);
    mt_offload_free(o);
    close_chain(&c);
}

static void only_the_innermost_hook_may_end(void **state)
{
    (void)state;
    mt_offload *o = made(mt_offload_new(device, NULL));
    assert_int_equal(mt_offload_end(o), MT_ERR_STATE);
    mtt_failed(MT_ERR_STATE, "offload_end", "innermost");
    mt_ledger *ledger = mt_ledger_new(device);
    mtt_ok(mt_offload_begin(o));
    mtt_ok(mt_ledger_begin(ledger));
    assert_int_equal(mt_offload_end(o), MT_ERR_STATE);
    mtt_failed(MT_ERR_STATE, "offload_end", "innermost");
    mtt_ok(mt_ledger_end(ledger));
    mtt_ok(mt_offload_end(o));
    mt_ledger_free(ledger);
    mt_offload_free(o);
}

static void a_retained_graph_comes_back_twice_and_leaves_in_between(void **state)
{
    (void)state;
    chain c = open_chain();
    step plain = chain_step(&c, NULL);
    mt_offload *o = made(mt_offload_new(device, NULL));
    mtt_ok(mt_offload_begin(o));
    mt_tensor *loss = chain_loss(&c);
    mtt_ok(mt_offload_end(o));
    size_t before = allocated_on(device);
    mtt_ok(mt_backward_with(loss, &(mt_backward_options){.retain_graph = true}));
    unsigned char *grads = chain_grads(&c);
    assert_memory_equal(grads, plain.grads, LAYERS * D);
    free(grads);
    chain_zero(&c);
    assert_int_equal(allocated_on(device), before);
    assert_int_equal(stats_of(o).bytes_away, (LAYERS - 1) * S);
    mtt_ok(mt_backward(loss));
    grads = chain_grads(&c);
    assert_memory_equal(grads, plain.grads, LAYERS * D);
    free(grads);
    mt_offload_stats s = stats_of(o);
    assert_int_equal(s.bytes_out, (LAYERS - 1) * S);
    assert_int_equal(s.bytes_in, 2 * (LAYERS - 1) * S);
    assert_int_equal(s.host_bytes, 0);
    mt_release(loss);
    mt_offload_free(o);
    free(plain.grads);
    close_chain(&c);
}

static void a_graph_outlives_the_handle_and_may_never_run_backward(void **state)
{
    (void)state;
    chain c = open_chain();
    step plain = chain_step(&c, NULL);
    for (int run = 0; run < 2; run++) {
        mt_offload *o = made(mt_offload_new(device, NULL));
        mtt_ok(mt_offload_begin(o));
        mt_tensor *loss = chain_loss(&c);
        mtt_ok(mt_offload_end(o));
        mt_offload_free(o);
        if (run) {
            mtt_ok(mt_backward(loss));
            unsigned char *grads = chain_grads(&c);
            assert_memory_equal(grads, plain.grads, LAYERS * D);
            free(grads);
        }
        mt_release(loss);
    }
    free(plain.grads);
    close_chain(&c);
}

/* h [ROWS,WIDTH] = x w^T; the sum of left half times right half: mul saves two views of h. */
static mt_tensor *halves(const chain *c)
{
    MT_AUTO mt_tensor *h = mtt_made(mt_linear(c->x, c->w[0], NULL));
    MT_AUTO mt_tensor *a = mtt_made(mt_slice(h, 1, 0, WIDTH / 2));
    MT_AUTO mt_tensor *b = mtt_made(mt_slice(h, 1, WIDTH / 2, WIDTH / 2));
    MT_AUTO mt_tensor *y = mtt_made(mt_mul(a, b));
    return mtt_made(mt_sum_all(y));
}

static void views_of_one_storage_share_one_copy(void **state)
{
    (void)state;
    chain c = open_chain();
    MT_AUTO mt_tensor *plain = halves(&c);
    mtt_ok(mt_backward(plain));
    MT_AUTO mt_tensor *expected = mt_retain(mt_grad(c.w[0]));
    chain_zero(&c);
    mt_offload *o = made(mt_offload_new(device, NULL));
    mtt_ok(mt_offload_begin(o));
    MT_AUTO mt_tensor *loss = halves(&c);
    mtt_ok(mt_offload_end(o));
    mtt_ok(mt_backward(loss));
    assert_true(mtt_same_bits(mt_grad(c.w[0]), expected));
    mt_offload_stats s = stats_of(o);
    assert_int_equal(s.n_out, 1);
    assert_int_equal(s.saves_shared, 1);
    assert_int_equal(s.n_in, 1);
    assert_int_equal(s.bytes_in, S);
    mt_offload_free(o);
    close_chain(&c);
}

typedef struct worker {
    chain c;
    mt_offload *offload;
    unsigned char *grads;
} worker;

static void *work(void *arg)
{
    worker *w = arg;
    for (int i = 0; i < 20; i++) {
        if (mt_offload_begin(w->offload) != MT_OK) return NULL;
        mt_tensor *loss = chain_loss(&w->c);
        mt_status status = mt_offload_end(w->offload);
        if (status == MT_OK) status = mt_backward(loss);
        mt_release(loss);
        if (status != MT_OK) return NULL;
        free(w->grads);
        w->grads = chain_grads(&w->c);
        chain_zero(&w->c);
    }
    return w;
}

static void two_threads_may_offload_on_one_device_and_through_one_offload(void **state)
{
    (void)state;
    mtt_ok(mt_set_balance_check(device, false)); /* it looks at what both are in the middle of */
    mt_offload *shared = made(mt_offload_new(device, NULL));
    for (int own = 0; own < 2; own++) {
        worker w[2] = {{.c = open_chain()}, {.c = open_chain()}};
        step plain = chain_step(&w[0].c, NULL);
        pthread_t thread[2];
        for (int i = 0; i < 2; i++) {
            w[i].offload = own ? made(mt_offload_new(device, NULL)) : shared;
            assert_int_equal(pthread_create(&thread[i], NULL, work, &w[i]), 0);
        }
        for (int i = 0; i < 2; i++) {
            void *ok;
            pthread_join(thread[i], &ok);
            assert_non_null(ok);
            assert_memory_equal(w[i].grads, plain.grads, LAYERS * D);
            free(w[i].grads);
            close_chain(&w[i].c);
            if (own) mt_offload_free(w[i].offload);
        }
        free(plain.grads);
    }
    mt_offload_free(shared);
    mtt_ok(mt_set_balance_check(device, true));
}

/* ---- what the report tells ---- */

static void what_somebody_else_holds_was_moved_in_vain(void **state)
{
    (void)state;
    chain c = open_chain();
    step plain = chain_step(&c, NULL);
    mt_offload *o = made(mt_offload_new(device, &(mt_offload_options){.inputs = true}));
    step s = chain_step(&c, o);
    assert_memory_equal(s.grads, plain.grads, LAYERS * D);
    assert_int_equal(s.stats.bytes_out, LAYERS * S);
    assert_int_equal(s.stats.bytes_still_held, S);
    assert_int_equal(plain.peak - s.peak, s.stats.lowered);
    assert_int_equal(s.stats.bytes_in_vain, LAYERS * S - s.stats.lowered);
    mt_offload_free(o);
    free(s.grads);
    free(plain.grads);
    close_chain(&c);
}

static void capacity_and_small_ones_stay_on_the_device(void **state)
{
    (void)state;
    chain c = open_chain();
    mt_offload *o = made(mt_offload_new(device, &(mt_offload_options){.capacity = 3 * S + 5}));
    step s = chain_step(&c, o);
    assert_int_equal(s.stats.n_out, 3);
    assert_int_equal(s.stats.saves_over, LAYERS - 1 - 3);
    assert_int_equal(s.stats.host_peak, 3 * S);
    assert_int_equal(s.after_forward, (LAYERS - 1 - 3) * S + 512);
    free(s.grads);
    mt_offload_free(o);
    o = made(mt_offload_new(device, &(mt_offload_options){.min_bytes = S + 1}));
    s = chain_step(&c, o);
    assert_int_equal(s.stats.n_out, 0);
    assert_int_equal(s.stats.saves_left, 2 * LAYERS - 1);
    assert_true(s.stats.copy_s == 0 && s.stats.hidden == 0);
    free(s.grads);
    mt_offload_free(o);
    close_chain(&c);
}

/* ---- what goes wrong ---- */

static void a_change_in_place_before_it_has_left_is_an_error_and_later_it_is_none(void **state)
{
    (void)state;
    chain c = open_chain();
    for (int late = 0; late < 2; late++) {
        mt_offload *o = made(mt_offload_new(device, NULL));
        mtt_ok(mt_offload_begin(o));
        MT_AUTO mt_tensor *h = mtt_made(mt_linear(c.x, c.w[0], NULL));
        MT_AUTO mt_tensor *y = mtt_made(mt_gelu(h));
        MT_AUTO mt_tensor *loss = mtt_made(mt_sum_all(y));
        MT_AUTO mt_tensor *same = mtt_made(mt_detach(h));
        if (late) mtt_ok(mt_offload_end(o));
        mtt_ok(mt_fill(same, 0));
        if (!late) mtt_ok(mt_offload_end(o));
        mt_status status = mt_backward(loss);
        if (late) {
            mtt_ok(status);
        } else {
            assert_int_equal(status, MT_ERR_STATE);
            mtt_failed(MT_ERR_STATE, "gelu", "changed in place", "version 0 to 1");
        }
        mt_offload_free(o);
    }
    close_chain(&c);
}

static void options_out_of_range_and_null_are_refused(void **state)
{
    (void)state;
    mt_offload_stats s;
    assert_null(mt_offload_new(NULL, NULL));
    mtt_failed(MT_ERR_ARGUMENT, "offload_new", "device");
    assert_null(mt_offload_new(device, &(mt_offload_options){.in_flight = -1}));
    mtt_failed(MT_ERR_ARGUMENT, "in_flight is -1");
    assert_null(mt_offload_new(device, &(mt_offload_options){.prefetch = -2}));
    mtt_failed(MT_ERR_ARGUMENT, "prefetch -2");
    assert_int_equal(mt_offload_begin(NULL), MT_ERR_ARGUMENT);
    mtt_failed(MT_ERR_ARGUMENT, "offload_begin");
    assert_int_equal(mt_offload_end(NULL), MT_ERR_STATE);
    mtt_failed(MT_ERR_STATE, "offload_end");
    assert_int_equal(mt_offload_get_stats(NULL, &s), MT_ERR_ARGUMENT);
    mtt_failed(MT_ERR_ARGUMENT, "offload_get_stats");
    mt_offload_free(NULL);
}

static mt_status try_step(const chain *c)
{
    mt_offload *o = mt_offload_new(device, NULL);
    mt_status status = o ? mt_offload_begin(o) : mt_last_status();
    if (status == MT_OK) {
        MT_AUTO mt_tensor *h = mt_retain(c->x);
        for (int i = 0; i < LAYERS && h; i++) mt_set(&h, mt_linear(h, c->w[i], NULL));
        mt_set(&h, mt_sum_all(h));
        status = h ? MT_OK : mt_last_status();
        mt_status ended = mt_offload_end(o);
        if (status == MT_OK) status = ended;
        if (status == MT_OK) status = mt_backward(h);
    }
    mt_offload_free(o);
    return status;
}

static void any_allocation_may_fail_and_the_next_step_is_as_if_nothing_had_been(void **state)
{
    (void)state;
    chain c = open_chain();
    step plain = chain_step(&c, NULL);
    size_t before = allocated_on(device);
    uint64_t n = 1, n_refused = 0;
    for (bool reached = true; reached; n++) {
        mt_mem_empty_cache(device);
        mti_fail_nth_alloc(n);
        mt_status status = try_step(&c);
        reached = mti_alloc_count() >= n;
        mti_fail_nth_alloc(0);
        if (status != MT_OK) {
            n_refused++;
            assert_true(reached);
            assert_int_equal(status, MT_ERR_MEMORY);
            assert_int_equal(mt_last_status(), MT_ERR_MEMORY);
            mt_clear_error();
        }
        assert_int_equal(mt_last_status(), MT_OK);
        chain_zero(&c);
        assert_int_equal(allocated_on(device), before);
        mtt_ok(mt_check_balance(device));
        mtt_ok(try_step(&c));
        unsigned char *grads = chain_grads(&c);
        assert_memory_equal(grads, plain.grads, LAYERS * D);
        free(grads);
        chain_zero(&c);
    }
    print_message("%llu allocations failed in turn: %llu clean errors\n",
                  (unsigned long long)(n - 2), (unsigned long long)n_refused);
    assert_true(n_refused > 100);
    free(plain.grads);
    close_chain(&c);
}

#define TEST(name) cmocka_unit_test_teardown(name, nothing_left)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(the_peak_of_a_chain_falls_by_the_bytes_that_are_away),
        TEST(a_device_without_data_tells_the_same_peak),
        TEST(training_with_dropout_has_the_same_bits),
        TEST(a_ledger_outside_sees_what_stayed_and_one_inside_sees_everything),
        TEST(only_the_innermost_hook_may_end),
        TEST(a_retained_graph_comes_back_twice_and_leaves_in_between),
        TEST(a_graph_outlives_the_handle_and_may_never_run_backward),
        TEST(views_of_one_storage_share_one_copy),
        TEST(two_threads_may_offload_on_one_device_and_through_one_offload),
        TEST(what_somebody_else_holds_was_moved_in_vain),
        TEST(capacity_and_small_ones_stay_on_the_device),
        TEST(a_change_in_place_before_it_has_left_is_an_error_and_later_it_is_none),
        TEST(options_out_of_range_and_null_are_refused),
        TEST(any_allocation_may_fail_and_the_next_step_is_as_if_nothing_had_been),
    };
    return cmocka_run_group_tests(tests, open_device, close_device);
}

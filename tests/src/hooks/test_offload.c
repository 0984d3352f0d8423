/* Offload to host memory: the same gradients, a lower peak, a correct report. */
#include <pthread.h>
#include <stdlib.h>
#include "chain.h"

static void the_peak_of_a_chain_falls_by_the_offloaded_bytes(void **state)
{
    (void)state;
    chain c = open_chain(device);
    step plain = chain_step(&c, NULL);
    assert_int_equal(plain.after_forward, (LAYERS - 1) * S + 512); /* 512: the loss */
    for (int prefetch = -1; prefetch <= 3; prefetch += prefetch < 0 ? 2 : 1)
        for (int in_flight = 1; in_flight <= 3; in_flight++) {
            mt_offload *o = made_offload(mt_offload_new(
                device, &(mt_offload_options){.in_flight = in_flight, .prefetch = prefetch}));
            step s = chain_step(&c, o);
            assert_memory_equal(s.grads, plain.grads, LAYERS * D);
            assert_int_equal(s.after_forward, 512);
            /* A linear's input and output, and copies in flight. */
            assert_int_equal(s.forward_peak, (size_t)(in_flight + 2) * S);
            assert_int_equal(s.stats.bytes_out, (LAYERS - 1) * S);
            assert_int_equal(s.stats.bytes_in, (LAYERS - 1) * S);
            assert_int_equal(s.stats.n_out, LAYERS - 1);
            assert_int_equal(s.stats.n_in, LAYERS - 1);
            assert_int_equal(s.stats.saves,
                             2 * LAYERS - 1); /* x needs no gradient, so w_1 is not saved */
            assert_int_equal(s.stats.saves_left, LAYERS); /* x and the weights */
            assert_int_equal(s.stats.bytes_still_held, 0);
            assert_int_equal(s.stats.bytes_away, 0);
            assert_int_equal(s.stats.host_bytes, 0);
            assert_int_equal(s.stats.host_peak, (LAYERS - 1) * S);
            /* Backward's peak: dy, dx, a gradient of D bytes, two scalars, the linear's input, and
             * prefetched storages; unless forward's peak is higher. */
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

static void a_device_without_data_reports_the_same_peak(void **state)
{
    (void)state;
    mt_device *real = device;
    step s[2];
    for (int i = 0; i < 2; i++) {
        if (i) device = mt_device_open("meta");
        chain c = open_chain(device);
        mt_offload *o = made_offload(mt_offload_new(device, NULL));
        mt_mem_region r;
        mt_mem_region_begin(&r, device);
        mtt_ok(mt_offload_begin(o));
        MT_AUTO mt_tensor *loss = mtt_made(chain_loss(&c));
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

/* ---- with other hooks, graphs and threads ---- */

static void an_outer_ledger_sees_what_stayed_and_an_inner_one_everything(void **state)
{
    (void)state;
    chain c = open_chain(device);
    mt_ledger *ledger[3];
    mt_offload *o = made_offload(mt_offload_new(device, NULL));
    for (int i = 0; i < 3; i++) { /* a ledger alone, outside, inside */
        ledger[i] = mt_ledger_new(device);
        if (i == 2) mtt_ok(mt_offload_begin(o));
        mtt_ok(mt_ledger_begin(ledger[i]));
        if (i == 1) mtt_ok(mt_offload_begin(o));
        MT_AUTO mt_tensor *loss = mtt_made(chain_loss(&c));
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
    mt_offload *o = made_offload(mt_offload_new(device, NULL));
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

static void a_retained_graph_is_copied_back_twice_and_offloaded_in_between(void **state)
{
    (void)state;
    chain c = open_chain(device);
    step plain = chain_step(&c, NULL);
    mt_offload *o = made_offload(mt_offload_new(device, NULL));
    mtt_ok(mt_offload_begin(o));
    mt_tensor *loss = mtt_made(chain_loss(&c));
    mtt_ok(mt_offload_end(o));
    size_t before = mtt_allocated(device);
    mtt_ok(mt_backward_with(loss, &(mt_backward_options){.retain_graph = true}));
    unsigned char *grads = chain_grads(&c);
    assert_memory_equal(grads, plain.grads, LAYERS * D);
    free(grads);
    chain_zero(&c);
    assert_int_equal(mtt_allocated(device), before);
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

static void a_graph_may_outlive_the_handle_and_never_run_backward(void **state)
{
    (void)state;
    chain c = open_chain(device);
    step plain = chain_step(&c, NULL);
    for (int run = 0; run < 2; run++) {
        mt_offload *o = made_offload(mt_offload_new(device, NULL));
        mtt_ok(mt_offload_begin(o));
        mt_tensor *loss = mtt_made(chain_loss(&c));
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

/* h [ROWS,WIDTH] = x w^T; returns the sum of left half times right half: mul saves two views of
 * h. */
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
    chain c = open_chain(device);
    MT_AUTO mt_tensor *plain = halves(&c);
    mtt_ok(mt_backward(plain));
    MT_AUTO mt_tensor *expected = mt_retain(mt_grad(c.w[0]));
    chain_zero(&c);
    mt_offload *o = made_offload(mt_offload_new(device, NULL));
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
    mtt_ok(
        mt_set_balance_check(device, false)); /* it would read what the other thread is changing */
    mt_offload *shared = made_offload(mt_offload_new(device, NULL));
    for (int own = 0; own < 2; own++) {
        worker w[2] = {{.c = open_chain(device)}, {.c = open_chain(device)}};
        step plain = chain_step(&w[0].c, NULL);
        pthread_t thread[2];
        for (int i = 0; i < 2; i++) {
            w[i].offload = own ? made_offload(mt_offload_new(device, NULL)) : shared;
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

/* ---- the report ---- */

static void the_report_counts_bytes_moved_in_vain_because_others_hold_them(void **state)
{
    (void)state;
    chain c = open_chain(device);
    step plain = chain_step(&c, NULL);
    mt_offload *o = made_offload(mt_offload_new(device, &(mt_offload_options){.inputs = true}));
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

static void small_storages_and_those_beyond_the_capacity_stay_on_the_device(void **state)
{
    (void)state;
    chain c = open_chain(device);
    mt_offload *o =
        made_offload(mt_offload_new(device, &(mt_offload_options){.capacity = 3 * S + 5}));
    step s = chain_step(&c, o);
    assert_int_equal(s.stats.n_out, 3);
    assert_int_equal(s.stats.saves_over, LAYERS - 1 - 3);
    assert_int_equal(s.stats.host_peak, 3 * S);
    assert_int_equal(s.after_forward, (LAYERS - 1 - 3) * S + 512);
    free(s.grads);
    mt_offload_free(o);
    o = made_offload(mt_offload_new(device, &(mt_offload_options){.min_bytes = S + 1}));
    s = chain_step(&c, o);
    assert_int_equal(s.stats.n_out, 0);
    assert_int_equal(s.stats.saves_left, 2 * LAYERS - 1);
    assert_true(s.stats.copy_s == 0 && s.stats.hidden == 0);
    free(s.grads);
    mt_offload_free(o);
    close_chain(&c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        mtt_test(the_peak_of_a_chain_falls_by_the_offloaded_bytes),
        mtt_test(a_device_without_data_reports_the_same_peak),
        mtt_test(an_outer_ledger_sees_what_stayed_and_an_inner_one_everything),
        mtt_test(only_the_innermost_hook_may_end),
        mtt_test(a_retained_graph_is_copied_back_twice_and_offloaded_in_between),
        mtt_test(a_graph_may_outlive_the_handle_and_never_run_backward),
        mtt_test(views_of_one_storage_share_one_copy),
        mtt_test(two_threads_may_offload_on_one_device_and_through_one_offload),
        mtt_test(the_report_counts_bytes_moved_in_vain_because_others_hold_them),
        mtt_test(small_storages_and_those_beyond_the_capacity_stay_on_the_device),
    };
    return cmocka_run_group_tests(tests, open_without_workspace, mtt_close_device);
}

/* The ledger: which storages the tape keeps, their bytes, and when they are freed. */
#include <pthread.h>
#include "mtt_fixture.h"

static mt_ledger *ledger;

static int begin(void **state)
{
    if (mtt_open_device(state)) return -1;
    ledger = mt_ledger_new(device);
    return ledger && mt_ledger_begin(ledger) == MT_OK ? 0 : -1;
}

static int end(void **state)
{
    mt_status status = mt_ledger_end(ledger);
    mt_ledger_free(ledger);
    return mtt_close_device(state) || status != MT_OK;
}

static mt_tensor *made(mt_dtype dtype, int rank, const int64_t *shape, bool grad)
{
    mt_tensor *t = mtt_made(mt_uniform(device, dtype, rank, shape, -1, 1));
    mtt_ok(mt_set_requires_grad(t, grad));
    return t;
}

static mt_ledger_entry entry(size_t i)
{
    mt_ledger_entry e;
    mtt_ok(mt_ledger_get(ledger, i, &e));
    return e;
}

/* ---- what each op keeps, in bytes, for bf16 x [6,10] ---- */

static mt_tensor *exp2_of(mt_tensor *x) { return mt_exp(x); }
static mt_tensor *affine(mt_tensor *x) { return mt_affine(x, 2, 1); }
static mt_tensor *leaky(mt_tensor *x) { return mt_leaky_relu(x, 0.1); }
static mt_tensor *softmax(mt_tensor *x) { return mt_softmax(x, 0.5, false); }
static mt_tensor *plain_norm(mt_tensor *x) { return mt_layer_norm(x, NULL, NULL, 1e-5); }
static mt_tensor *dropout(mt_tensor *x) { return mt_dropout(x, 0.5); }
static mt_tensor *widened(mt_tensor *x) { return mt_cast(x, MT_F32); }
static mt_tensor *transposed(mt_tensor *x) { return mt_transpose(x, 0, 1); }
static mt_tensor *half(mt_tensor *x) { return mt_slice(x, 0, 0, 3); }
static mt_tensor *flat(mt_tensor *x) { return mt_reshape(x, MT_SHAPE(60)); }
static mt_tensor *squared(mt_tensor *x) { return mt_mul(x, x); }
static mt_tensor *doubled(mt_tensor *x) { return mt_add(x, x); }

static void each_op_keeps_what_its_backward_reads_and_no_more(void **state)
{
    (void)state;
    enum { N = 60, X = 2 * N };
    static const struct {
        const char *name;
        mt_tensor *(*fn)(mt_tensor *);
        size_t bytes;
        mt_save_role role;
    } table[] = {
        {"add", doubled, 0, 0},
        {"affine", affine, 0, 0},
        {"mul", squared, X, MT_SAVE_INPUT}, /* one storage, saved twice, counts once */
        {"relu", mt_relu, X, MT_SAVE_OUTPUT},
        {"tanh", mt_tanh, X, MT_SAVE_OUTPUT},
        {"sigmoid", mt_sigmoid, X, MT_SAVE_OUTPUT},
        {"exp", exp2_of, X, MT_SAVE_OUTPUT},
        {"softmax", softmax, X, MT_SAVE_OUTPUT},
        {"log_softmax", mt_log_softmax, X, MT_SAVE_OUTPUT},
        {"gelu", mt_gelu, X, MT_SAVE_INPUT},
        {"gelu_tanh", mt_gelu_tanh, X, MT_SAVE_INPUT},
        {"silu", mt_silu, X, MT_SAVE_INPUT},
        {"leaky_relu", leaky, X, MT_SAVE_INPUT},
        {"layer_norm", plain_norm, X + 6 * (4 + 4), MT_SAVE_INPUT}, /* f32 mean and rstd */
        {"dropout", dropout, N, MT_SAVE_AUX},                       /* one byte per element */
        {"sum", mt_sum_all, 0, 0},
        {"mean", mt_mean_all, 0, 0},
        {"cast", widened, 0, 0},
        {"transpose", transposed, 0, 0},
        {"slice", half, 0, 0},
        {"reshape", flat, 0, 0},
        {"clone", mt_clone, 0, 0},
    };
    MT_AUTO mt_tensor *x = made(MT_BF16, MT_SHAPE(6, 10), true);
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        mt_ledger *own = mt_ledger_new(device);
        assert_non_null(own);
        mtt_ok(mt_ledger_begin(own));
        mt_tensor *y = mtt_made(table[i].fn(x));
        mtt_ok(mt_ledger_end(own));
        if (mt_ledger_bytes(own) != table[i].bytes)
            print_error("%s keeps %zu bytes, not %zu\n", table[i].name, mt_ledger_bytes(own),
                        table[i].bytes);
        assert_int_equal(mt_ledger_bytes(own), table[i].bytes);
        if (table[i].bytes) {
            mt_ledger_entry e;
            mtt_ok(mt_ledger_get(own, 0, &e));
            assert_int_equal(e.saver.role, table[i].role);
            assert_string_equal(e.saver.op, table[i].name);
        }
        mt_ledger_free(own);
        mt_release(y);
    }
}

/* x [8,10], w [6,10], b [6]: the bytes kept for each subset of them that requires grad. */
static void linear_keeps_what_the_wanted_gradients_need(void **state)
{
    (void)state;
    enum { X = 8 * 10 * 4, W = 6 * 10 * 4 };
    for (int wanted = 0; wanted < 8; wanted++) {
        mt_ledger *own = mt_ledger_new(device);
        assert_non_null(own);
        MT_AUTO mt_tensor *x = made(MT_F32, MT_SHAPE(8, 10), wanted & 1);
        MT_AUTO mt_tensor *w = made(MT_F32, MT_SHAPE(6, 10), wanted & 2);
        MT_AUTO mt_tensor *b = made(MT_F32, MT_SHAPE(6), wanted & 4);
        mtt_ok(mt_ledger_begin(own));
        MT_AUTO mt_tensor *y = mtt_made(mt_linear(x, w, b));
        mtt_ok(mt_ledger_end(own));
        size_t expected = (wanted & 1 ? W : 0) + (wanted & 2 ? X : 0);
        assert_int_equal(mt_ledger_bytes(own), expected);
        mt_ledger_free(own);
    }
}

static void with_a_frozen_weight_linear_does_not_keep_its_input(void **state)
{
    (void)state;
    MT_AUTO mt_tensor *x = made(MT_F32, MT_SHAPE(8, 10), true);
    MT_AUTO mt_tensor *w = made(MT_F32, MT_SHAPE(6, 10), false);
    mtt_ok(mt_set_category(w, MT_PARAMETER));
    MT_AUTO mt_tensor *y = mtt_made(mt_linear(x, w, NULL));
    assert_int_equal(mt_ledger_count(ledger), 0);
    assert_int_equal(mt_ledger_bytes(ledger), 0);
}

static void parameters_count_only_if_the_ledger_includes_them(void **state)
{
    (void)state;
    MT_AUTO mt_tensor *x = made(MT_F32, MT_SHAPE(8, 10), true);
    MT_AUTO mt_tensor *w = made(MT_F32, MT_SHAPE(6, 10), true);
    mtt_ok(mt_set_category(w, MT_PARAMETER));
    MT_AUTO mt_tensor *y = mtt_made(mt_linear(x, w, NULL));
    assert_int_equal(mt_ledger_bytes(ledger), 8 * 10 * 4);
    mtt_ok(mt_ledger_count_parameters(ledger, true));
    MT_AUTO mt_tensor *z = mtt_made(mt_linear(x, w, NULL));
    assert_int_equal(mt_ledger_bytes(ledger), (8 + 6) * 10 * 4);
}

static void an_ignored_storage_is_not_counted(void **state)
{
    (void)state;
    MT_AUTO mt_tensor *x = made(MT_F32, MT_SHAPE(10), true);
    mtt_ok(mt_ledger_ignore(ledger, x));
    MT_AUTO mt_tensor *y = mtt_made(mt_gelu(x));
    MT_AUTO mt_tensor *z = mtt_made(mt_relu(x));
    assert_int_equal(mt_ledger_count(ledger), 1);
    assert_string_equal(entry(0).saver.op, "relu");
}

/* ---- each storage counts once ---- */

static void a_storage_saved_three_times_is_counted_once_and_names_all_savers(void **state)
{
    (void)state;
    MT_AUTO mt_tensor *x = made(MT_F32, MT_SHAPE(5, 7), true);
    mtt_ok(mt_scope_push("net"));
    MT_AUTO mt_tensor *a = mtt_made(mt_gelu(x));
    mtt_ok(mt_scope_push("gate"));
    MT_AUTO mt_tensor *b = mtt_made(mt_silu(x));
    mt_scope_pop();
    mt_scope_pop();
    MT_AUTO mt_tensor *part = mtt_made(mt_slice(x, 0, 1, 2));
    MT_AUTO mt_tensor *c = mtt_made(mt_gelu(part));
    assert_int_equal(mt_ledger_count(ledger), 1);
    assert_int_equal(mt_ledger_bytes(ledger), 5 * 7 * 4);
    mt_ledger_entry e = entry(0);
    assert_int_equal(e.n_savers, 3);
    assert_int_equal(e.bytes, 5 * 7 * 4);
    assert_int_equal(e.allocated, 512);
    assert_true(e.storage == mt_storage_of(x).serial);
    assert_string_equal(e.saver.module, "net");
    assert_string_equal(e.saver.op, "gelu");
    assert_string_equal(e.saver.argument, "x");
    assert_int_equal(e.saver.dtype, MT_F32);
    assert_true(e.saver.node == mt_grad_fn_sequence(a));
    mt_saver s;
    mtt_ok(mt_ledger_get_saver(ledger, 0, 1, &s));
    assert_string_equal(s.module, "net.gate");
    assert_string_equal(s.op, "silu");
    mtt_ok(mt_ledger_get_saver(ledger, 0, 2, &s));
    assert_string_equal(s.module, "");
    assert_int_equal(s.rank, 2);
    assert_int_equal(s.shape[0], 2); /* the shape of the view; its whole storage is kept */
    assert_int_not_equal(mt_ledger_get_saver(ledger, 0, 3, &s), MT_OK);
    mt_clear_error();
    assert_int_not_equal(mt_ledger_get(ledger, 1, &e), MT_OK);
    mt_clear_error();
}

static void a_saved_view_costs_its_whole_storage(void **state)
{
    (void)state;
    MT_AUTO mt_tensor *x = made(MT_F32, MT_SHAPE(100, 7), true);
    MT_AUTO mt_tensor *row = mtt_made(mt_slice(x, 0, 3, 1));
    MT_AUTO mt_tensor *y = mtt_made(mt_gelu(row));
    assert_int_equal(mt_ledger_bytes(ledger), 100 * 7 * 4);
    assert_int_equal(mt_ledger_allocated(ledger), 3072);
}

static void a_freed_address_used_again_is_another_storage(void **state)
{
    (void)state;
    uint64_t serial[2];
    for (int i = 0; i < 2; i++) {
        MT_AUTO mt_tensor *x = made(MT_F32, MT_SHAPE(300), true);
        MT_AUTO mt_tensor *y = mtt_made(mt_gelu(x)); /* both times in the same blocks */
        serial[i] = mt_storage_of(x).serial;
        mtt_ok(mt_ledger_end(ledger)); /* what is released before is taken back */
        mt_set(&y, NULL), mt_clear_error();
        mt_set(&x, NULL), mt_clear_error();
        mtt_ok(mt_ledger_begin(ledger));
    }
    assert_true(serial[0] != serial[1]);
    mt_mem_stats stats;
    mt_mem_get_stats(device, &stats);
    assert_int_equal(stats.segments.current, 1);
    assert_int_equal(stats.allocated.peak, 2 * 1536);
    assert_int_equal(mt_ledger_count(ledger), 2);
    assert_int_equal(mt_ledger_bytes(ledger), 2 * 300 * 4);
    assert_int_equal(mt_ledger_live_bytes(ledger), 0);
    assert_true(entry(0).storage == serial[0] && entry(1).storage == serial[1]);
}

static void equal_values_in_two_storages_count_twice(void **state)
{
    (void)state;
    MT_AUTO mt_tensor *x = made(MT_F32, MT_SHAPE(10), true);
    MT_AUTO mt_tensor *y = mtt_made(mt_clone(x));
    MT_AUTO mt_tensor *z = mtt_made(mt_mul(x, y));
    assert_int_equal(mt_ledger_bytes(ledger), 2 * 40);
}

/* ---- when storages are freed ---- */

static void an_entry_names_the_backward_node_after_which_it_was_freed(void **state)
{
    (void)state;
    MT_AUTO mt_tensor *x = made(MT_F32, MT_SHAPE(10), true);
    mtt_ok(mt_scope_push("net"));
    mt_tensor *h = mtt_made(mt_mul_scalar(x, 2));
    mt_set(&h, mtt_made(mt_gelu(h)));
    mt_set(&h, mtt_made(mt_silu(h)));
    mt_scope_pop();
    mt_set(&h, mtt_made(mt_sum_all(h)));
    assert_int_equal(mt_ledger_count(ledger), 2);
    assert_int_equal(mt_ledger_live_bytes(ledger), 80);
    assert_false(entry(0).freed || entry(1).freed);
    mtt_ok(mt_backward(h));
    mt_release(h);
    assert_int_equal(mt_ledger_live_bytes(ledger), 0);
    assert_int_equal(mt_ledger_bytes(ledger), 80); /* freed storages still count as saved */
    assert_true(entry(0).freed && entry(1).freed);
    assert_string_equal(entry(0).freed_after_op, "gelu");
    assert_string_equal(entry(0).freed_after_module, "net");
    assert_string_equal(entry(1).freed_after_op, "silu");
}

/* Two rounds on one ledger, which is begun twice in each: what it says of the second is what it
 * said of the first, and a graph that outlives a reset is of no concern to it. */
static void a_ledger_that_was_reset_records_as_a_new_one_does(void **state)
{
    (void)state;
    MT_AUTO mt_tensor *x = made(MT_F32, MT_SHAPE(30), true);
    MT_AUTO mt_tensor *outlives = mtt_made(mt_exp(x)); /* under the group's ledger */
    mt_ledger *own = mt_ledger_new(device);
    assert_non_null(own);
    mtt_ok(mt_ledger_ignore(own, x));
    mtt_ok(mt_ledger_begin(own));
    mt_set(&outlives, mt_exp(outlives));
    mtt_ok(mt_ledger_end(own));
    assert_int_equal(mt_ledger_count(own), 1);
    for (int round = 0; round < 3; round++) {
        mtt_ok(mt_ledger_reset(own));
        assert_int_equal(mt_ledger_count(own), 0);
        assert_int_equal(mt_ledger_bytes(own), 0);
        assert_int_equal(mt_ledger_live_bytes(own), 0);
        mtt_ok(mt_ledger_begin(own));
        mtt_ok(mt_ledger_begin(own));
        mt_tensor *y = mtt_made(mt_exp(x));
        mtt_ok(mt_ledger_end(own));
        mt_set(&y, mt_mul(y, y));
        mtt_ok(mt_ledger_end(own));
        assert_int_equal(mt_ledger_count(own), 1);
        assert_int_equal(mt_ledger_bytes(own), 30 * 4);
        assert_int_equal(mt_ledger_live_bytes(own), 30 * 4);
        mt_ledger_entry e;
        mtt_ok(mt_ledger_get(own, 0, &e));
        assert_int_equal(e.n_savers, 4); /* exp, told to both begins, and mul's two inputs */
        assert_false(e.freed);
        mt_set(&y, mt_sum_all(y));
        mtt_ok(mt_backward(y));
        mt_release(y);
        mtt_ok(mt_ledger_get(own, 0, &e));
        assert_true(e.freed);
        assert_string_equal(e.freed_after_op, "exp");
        assert_int_equal(mt_ledger_live_bytes(own), 0);
        mtt_ok(mt_set_grad(x, NULL));
        if (round == 1) mt_set(&outlives, mt_clone(x)); /* its slots are freed after a reset */
    }
    mt_ledger_free(own);
    assert_int_equal(mt_ledger_reset(NULL), MT_ERR_ARGUMENT);
    mt_clear_error();
}

static void a_storage_freed_outside_backward_names_no_node(void **state)
{
    (void)state;
    MT_AUTO mt_tensor *x = made(MT_F32, MT_SHAPE(10), true);
    mt_tensor *y = mtt_made(mt_relu(x));
    mtt_ok(mt_ledger_end(ledger));
    mt_release(y);
    assert_true(entry(0).freed);
    assert_string_equal(entry(0).freed_after_op, "");
    mtt_ok(mt_ledger_begin(ledger));
}

/* The tape keeps nothing for a result that nobody can differentiate any more. */
static void what_an_unused_result_saved_is_taken_back(void **state)
{
    (void)state;
    MT_AUTO mt_tensor *x = made(MT_F32, MT_SHAPE(10), true);
    MT_AUTO mt_tensor *w = made(MT_F32, MT_SHAPE(10), true);
    mt_tensor *unused[2] = {mtt_made(mt_mul(x, w)), mtt_made(mt_gelu(w))};
    MT_AUTO mt_tensor *y = mtt_made(mt_gelu(x));
    assert_int_equal(mt_ledger_bytes(ledger), 80);
    for (int i = 0; i < 2; i++) mt_release(unused[i]);
    assert_int_equal(mt_ledger_count(ledger), 1);
    assert_int_equal(mt_ledger_bytes(ledger), 40);
    assert_int_equal(mt_ledger_live_bytes(ledger), 40);
    assert_int_equal(mt_ledger_allocated(ledger), 512);
    assert_int_equal(entry(0).n_savers, 1);
    assert_string_equal(entry(0).saver.op, "gelu");
    MT_AUTO mt_tensor *sum = mtt_made(mt_sum_all(y));
    mtt_ok(mt_backward(sum)); /* what backward frees stays in the record */
    assert_int_equal(mt_ledger_bytes(ledger), 40);
}

static mt_status keep_copy(void *user, const mt_save_info *info, mt_tensor *t, mt_tensor **kept,
                           void **state)
{
    (void)user, (void)info, (void)state;
    *kept = mt_clone(t);
    return *kept ? MT_OK : mt_last_status();
}

/* Also where a hook above or below the ledger keeps a copy, so that the slot does not lead to what
 * the ledger was shown; in a ledger that was begun twice; and not what it was not shown. */
static void what_is_kept_as_a_copy_is_taken_back_too(void **state)
{
    (void)state;
    static const mt_saved_hooks copies = {.pack = keep_copy};
    MT_AUTO mt_tensor *x = made(MT_F32, MT_SHAPE(10), true);
    for (int turn = 0; turn < 4; turn++) {
        bool below = turn & 1;
        mtt_ok(mt_ledger_end(ledger));
        mtt_ok(mt_ledger_reset(ledger));
        mt_tensor *before = mtt_made(mt_gelu(x));
        if (below) mtt_ok(mt_push_saved_hooks(&copies, NULL));
        mtt_ok(mt_ledger_begin(ledger));
        if (turn & 2) mtt_ok(mt_ledger_begin(ledger));
        if (!below) mtt_ok(mt_push_saved_hooks(&copies, NULL));
        mt_tensor *kept = mtt_made(mt_exp(x)), *unused = mtt_made(mt_gelu(x));
        assert_int_equal(mt_ledger_count(ledger), 2);
        mt_release(before);
        assert_int_equal(mt_ledger_count(ledger), 2);
        mt_release(unused);
        assert_int_equal(mt_ledger_count(ledger), 1);
        assert_string_equal(entry(0).saver.op, "exp");
        assert_int_equal(mt_ledger_live_bytes(ledger), 40);
        if (!below) mtt_ok(mt_pop_saved_hooks());
        if (turn & 2) mtt_ok(mt_ledger_end(ledger));
        if (below) {
            mtt_ok(mt_ledger_end(ledger));
            mtt_ok(mt_pop_saved_hooks());
            mtt_ok(mt_ledger_begin(ledger));
        }
        mt_release(kept);
        assert_int_equal(mt_ledger_count(ledger), 0);
    }
}

/* What one backward has read and the next may read was kept, also where the tape goes at last. */
static void what_a_retained_graph_kept_stays_in_the_record(void **state)
{
    (void)state;
    MT_AUTO mt_tensor *x = made(MT_F32, MT_SHAPE(10), true);
    mt_tensor *y = mtt_made(mt_gelu(x));
    mt_set(&y, mtt_made(mt_sum_all(y)));
    mtt_ok(mt_backward_with(y, &(mt_backward_options){.retain_graph = true}));
    mt_release(y);
    assert_int_equal(mt_ledger_bytes(ledger), 40);
}

/* Records and drops an op of its own. */
static mt_tensor *look_at(void *user, mt_tensor *grad)
{
    bool before = mt_set_grad_mode(true);
    mt_release(mtt_made(mt_gelu(user)));
    mt_set_grad_mode(before);
    return mt_retain(grad);
}

static void what_a_hook_of_backward_drops_is_taken_back(void **state)
{
    (void)state;
    MT_AUTO mt_tensor *x = made(MT_F32, MT_SHAPE(10), true);
    MT_AUTO mt_tensor *w = made(MT_F32, MT_SHAPE(50), true);
    MT_AUTO mt_tensor *y = mtt_made(mt_gelu(x));
    assert_true(mt_add_grad_hook(y, look_at, w) > 0);
    MT_AUTO mt_tensor *sum = mtt_made(mt_sum_all(y));
    mtt_ok(mt_backward(sum));
    assert_int_equal(mt_ledger_bytes(ledger), 40);
}

/* A report of what ran out of memory says who kept what then. */
static void what_is_released_after_a_failure_stays_in_the_record(void **state)
{
    (void)state;
    MT_AUTO mt_tensor *x = made(MT_F32, MT_SHAPE(10), true);
    MT_AUTO mt_tensor *y = mtt_made(mt_gelu(x));
    assert_null(mt_matmul(y, x));
    mt_clear_error();
    mt_set(&y, NULL), mt_clear_error();
    assert_int_equal(mt_ledger_bytes(ledger), 40);
}

static void *begin_and_end(void *user)
{
    bool ok = mt_ledger_begin(user) == MT_OK && mt_ledger_end(user) == MT_OK;
    return ok ? user : NULL;
}

/* Each begin has its own count of failures: those of the thread that it watches. */
static void a_ledger_of_two_threads_takes_back_in_each(void **state)
{
    (void)state;
    mt_ledger *shared = mt_ledger_new(device);
    MT_AUTO mt_tensor *x = made(MT_F32, MT_SHAPE(10), true);
    assert_null(mt_matmul(x, x)); /* so this thread has failed more often than the other */
    mt_clear_error();
    mtt_ok(mt_ledger_begin(shared));
    pthread_t other;
    void *done = NULL;
    assert_int_equal(pthread_create(&other, NULL, begin_and_end, shared), 0);
    assert_int_equal(pthread_join(other, &done), 0);
    assert_ptr_equal(done, shared);
    mt_release(mtt_made(mt_gelu(x)));
    assert_int_equal(mt_ledger_bytes(shared), 0);
    mtt_ok(mt_ledger_end(shared));
    mt_ledger_free(shared);
}

/* ---- the reference figures ---- */

static void linear_256_to_250_takes_the_reference_bytes(void **state)
{
    (void)state;
    MT_AUTO mt_tensor *w = made(MT_F32, MT_SHAPE(250, 256), true);
    MT_AUTO mt_tensor *b = made(MT_F32, MT_SHAPE(250), true);
    assert_int_equal(mtt_allocated(device), 257024);
    MT_AUTO mt_tensor *x = made(MT_F32, MT_SHAPE(1, 256), false);
    assert_int_equal(mtt_allocated(device), 258048);
    MT_AUTO mt_tensor *y = mtt_made(mt_linear(x, w, b));
    assert_int_equal(mtt_allocated(device), 259072);
}

static void a_thousand_and_24_floats_take_a_block_of_a_segment(void **state)
{
    (void)state;
    mt_mem_stats stats;
    MT_AUTO mt_tensor *x = mtt_made(mt_zeros(device, MT_F32, MT_SHAPE(1024)));
    mt_mem_get_stats(device, &stats);
    assert_int_equal(stats.allocated.current, 4096);
    assert_int_equal(stats.reserved.current, 2097152);
    mt_set(&x, NULL);
    mt_clear_error();
    mt_mem_get_stats(device, &stats);
    assert_int_equal(stats.allocated.current, 0);
    assert_int_equal(stats.reserved.current, 2097152);
    mt_mem_empty_cache(device);
    mt_mem_get_stats(device, &stats);
    assert_int_equal(stats.reserved.current, 0);
}

static void embedding_and_cross_entropy_keep_indices_and_log_probabilities(void **state)
{
    (void)state;
    int64_t index[6] = {0, 3, 2, 3, 1, 0};
    MT_AUTO mt_tensor *tokens =
        mtt_made(mt_from_data(device, MT_I64, MT_SHAPE(2, 3), index, sizeof index));
    MT_AUTO mt_tensor *w = made(MT_BF16, MT_SHAPE(4, 9), true);
    mtt_ok(mt_set_category(w, MT_PARAMETER));
    MT_AUTO mt_tensor *h = mtt_made(mt_embedding(tokens, w, NULL));
    assert_int_equal(mt_ledger_bytes(ledger), 6 * 8);
    MT_AUTO mt_tensor *targets = mtt_made(mt_clone(tokens));
    MT_AUTO mt_tensor *loss = mtt_made(mt_cross_entropy(h, targets, MT_IGNORE));
    assert_int_equal(mt_ledger_bytes(ledger), 6 * 8 + 6 * 8 + 6 * 9 * 2);
}

static void flash_keeps_q_k_v_out_log_sum_exp_and_the_generator(void **state)
{
    (void)state;
    enum { B = 2, A = 3, S = 5, T = 7, D = 4 };
    for (int dropout = 0; dropout < 2; dropout++) {
        mt_ledger *own = mt_ledger_new(device);
        assert_non_null(own);
        MT_AUTO mt_tensor *q = made(MT_BF16, MT_SHAPE(B, A, S, D), true);
        MT_AUTO mt_tensor *k = made(MT_BF16, MT_SHAPE(B, A, T, D), true);
        MT_AUTO mt_tensor *v = made(MT_BF16, MT_SHAPE(B, A, T, D), true);
        mtt_ok(mt_ledger_begin(own));
        MT_AUTO mt_tensor *y = mtt_made(mt_flash_attention(q, k, v, 0, false, 0.1 * dropout));
        mtt_ok(mt_ledger_end(own));
        assert_int_equal(mt_ledger_bytes(own),
                         2 * (B * A * S * D * 2 + B * A * T * D * 2) + B * A * S * 4 + 16);
        mt_ledger_free(own);
    }
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, begin, end)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(each_op_keeps_what_its_backward_reads_and_no_more),
        TEST(linear_keeps_what_the_wanted_gradients_need),
        TEST(with_a_frozen_weight_linear_does_not_keep_its_input),
        TEST(parameters_count_only_if_the_ledger_includes_them),
        TEST(an_ignored_storage_is_not_counted),
        TEST(a_storage_saved_three_times_is_counted_once_and_names_all_savers),
        TEST(a_saved_view_costs_its_whole_storage),
        TEST(a_freed_address_used_again_is_another_storage),
        TEST(equal_values_in_two_storages_count_twice),
        TEST(an_entry_names_the_backward_node_after_which_it_was_freed),
        TEST(a_ledger_that_was_reset_records_as_a_new_one_does),
        TEST(a_storage_freed_outside_backward_names_no_node),
        TEST(what_an_unused_result_saved_is_taken_back),
        TEST(what_is_kept_as_a_copy_is_taken_back_too),
        TEST(what_a_retained_graph_kept_stays_in_the_record),
        TEST(what_a_hook_of_backward_drops_is_taken_back),
        TEST(what_is_released_after_a_failure_stays_in_the_record),
        TEST(a_ledger_of_two_threads_takes_back_in_each),
        TEST(linear_256_to_250_takes_the_reference_bytes),
        TEST(a_thousand_and_24_floats_take_a_block_of_a_segment),
        TEST(embedding_and_cross_entropy_keep_indices_and_log_probabilities),
        TEST(flash_keeps_q_k_v_out_log_sum_exp_and_the_generator),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* Saved tensors in fewer bytes: which, how many, and what that does to gradients. */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "base/base.h"
#include "memtape/compress.h"
#include "mtt.h"

#define RULE(name) (1u << MT_COMPRESS_##name)

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

static mt_mem_stats stats_now(void)
{
    mt_mem_stats stats;
    mt_mem_get_stats(device, &stats);
    return stats;
}

static int nothing_left(void **state)
{
    (void)state;
    return stats_now().allocated.current == 0 && mt_last_status() == MT_OK ? 0 : -1;
}

static mt_compress *squeezer(unsigned rules)
{
    mt_compress *c =
        mt_compress_new(device, &(mt_compress_options){.rules = rules, .min_bytes = 1});
    assert_non_null(c);
    return c;
}

static mt_tensor *leaf(mt_dtype dtype, int rank, const int64_t *shape, uint64_t seed)
{
    mt_tensor *t = mtt_made(mtt_random(device, dtype, rank, shape, seed, -1, 1));
    mtt_ok(mt_set_requires_grad(t, true));
    return t;
}

/* ---- a function under test: from x to a scalar, with weights of its own ---- */

enum { ROWS = 48, WIDTH = 32, WIDE = 96 };

typedef struct net {
    mt_dtype dtype;
    mt_tensor *x, *w1, *w2;
} net;

static net open_net(mt_dtype dtype)
{
    net n = {dtype, leaf(dtype, MT_SHAPE(ROWS, WIDTH), 1), leaf(dtype, MT_SHAPE(WIDE, WIDTH), 2),
             leaf(dtype, MT_SHAPE(WIDTH, WIDE), 3)};
    mtt_ok(mt_set_category(n.w1, MT_PARAMETER));
    mtt_ok(mt_set_category(n.w2, MT_PARAMETER));
    return n;
}

static void close_net(net *n) { mt_release(n->x), mt_release(n->w1), mt_release(n->w2); }

typedef mt_tensor *act_fn(mt_tensor *x);
typedef mt_tensor *net_fn(net *n, act_fn *act);

static mt_tensor *leaky(mt_tensor *x) { return mt_leaky_relu(x, 0.1); }
static mt_tensor *relu_inplace(mt_tensor *x)
{
    return mt_relu_inplace(x) == MT_OK ? mt_retain(x) : NULL;
}
static mt_tensor *leaky_inplace(mt_tensor *x)
{
    return mt_leaky_relu_inplace(x, 0.1) == MT_OK ? mt_retain(x) : NULL;
}

/* Dropout between the activation and the second product, so that the activation's output is not
 * kept whole by that. */
static mt_tensor *mlp(net *n, act_fn *act)
{
    mt_tensor *h = mt_linear(n->x, n->w1, NULL);
    if (h) mt_set(&h, act(h));
    if (h) mt_set(&h, mt_dropout(h, 0.25));
    if (h) mt_set(&h, mt_linear(h, n->w2, NULL));
    if (h) mt_set(&h, mt_mean_all(h));
    return h;
}

static mt_tensor *direct(net *n, act_fn *act)
{
    mt_tensor *h = mt_linear(n->x, n->w1, NULL);
    if (h) mt_set(&h, act(h));
    if (h) mt_set(&h, mt_linear(h, n->w2, NULL));
    if (h) mt_set(&h, mt_mean_all(h));
    return h;
}

/* Gradients of x, w1, w2; the ledger's bytes, what c packed. */
typedef struct outcome {
    mt_tensor *grad[3];
    size_t saved;
    mt_compress_stats stats;
} outcome;

static outcome run(net *n, net_fn *fn, act_fn *act, mt_compress *c)
{
    outcome o = {.saved = 0};
    mt_tensor *in[3] = {n->x, n->w1, n->w2};
    mt_seed(device, 77);
    mt_ledger *ledger = mt_ledger_new(device);
    mtt_ok(mt_ledger_begin(ledger));
    if (c) mtt_ok(mt_compress_begin(c));
    mt_tensor *loss = mtt_made(fn(n, act));
    if (c) mtt_ok(mt_compress_end(c));
    mtt_ok(mt_ledger_end(ledger));
    if (c) mtt_ok(mt_compress_get_stats(c, &o.stats));
    o.saved = mt_ledger_bytes(ledger);
    mtt_ok(mt_backward(loss));
    mtt_ok(mt_check_balance(device));
    mt_release(loss);
    mt_ledger_free(ledger);
    for (int i = 0; i < 3; i++) {
        o.grad[i] = mtt_made(mt_retain(mt_grad(in[i])));
        mtt_ok(mt_set_grad(in[i], NULL));
    }
    return o;
}

static void forget(outcome *o)
{
    for (int i = 0; i < 3; i++) mt_release(o->grad[i]);
}

static double worst_error(outcome *got, outcome *exact)
{
    double worst = 0;
    for (int i = 0; i < 3; i++)
        worst = fmax(worst, mt_relative_error(got->grad[i], exact->grad[i]));
    return worst;
}

static const size_t hidden = (size_t)ROWS * WIDE, input = (size_t)ROWS * WIDTH;

/* ---- exact rules ---- */

static void check_exact(net_fn *fn, act_fn *act, unsigned rules, size_t lowered_by)
{
    static const mt_dtype floats[] = {MT_F32, MT_BF16, MT_F16, MT_F64};
    for (int t = 0; t < 4; t++) {
        net n = open_net(floats[t]);
        outcome exact = run(&n, fn, act, NULL);
        mt_compress *c = squeezer(rules);
        outcome o = run(&n, fn, act, c);
        for (int i = 0; i < 3; i++) assert_true(mtt_same_bits(o.grad[i], exact.grad[i]));
        assert_true(worst_error(&o, &exact) == 0);
        size_t signs = lowered_by ? hidden * mt_dtype_size(floats[t]) - hidden / 8 : 0;
        size_t mask = rules & RULE(MASK_SEED)   ? hidden
                      : rules & RULE(MASK_BITS) ? hidden - hidden / 8
                                                : 0;
        assert_int_equal(o.saved, exact.saved - signs - mask);
        assert_int_equal(o.stats.in_vain.n, 0);
        forget(&o);
        forget(&exact);
        mt_compress_free(c);
        close_net(&n);
    }
}

static void a_mask_as_bits_or_as_its_seed_gives_the_same_gradient_bits(void **state)
{
    (void)state;
    check_exact(mlp, mt_gelu, RULE(MASK_BITS), 0);
    check_exact(mlp, mt_gelu, RULE(MASK_SEED), 0);
    check_exact(mlp, mt_gelu, RULE(MASK_SEED) | RULE(MASK_BITS), 0);
}

static void signs_give_the_same_gradient_bits_as_what_they_stand_for(void **state)
{
    (void)state;
    check_exact(mlp, mt_relu, RULE(SIGNS), 1);
    check_exact(mlp, relu_inplace, RULE(SIGNS), 1);
    check_exact(mlp, leaky, RULE(SIGNS), 1);
    check_exact(mlp, leaky_inplace, RULE(SIGNS), 1);
    check_exact(mlp, mt_relu, RULE(SIGNS) | RULE(MASK_SEED), 1);
}

static void by_default_the_exact_rules_are_on_and_small_storages_stay(void **state)
{
    (void)state;
    net n = open_net(MT_F32);
    outcome exact = run(&n, mlp, mt_relu, NULL);
    mt_compress *c = mt_compress_new(device, NULL);
    outcome o = run(&n, mlp, mt_relu, c);
    assert_int_equal(o.saved, exact.saved - hidden - (4 * hidden - hidden / 8));
    assert_true(worst_error(&o, &exact) == 0);
    forget(&o);
    mt_compress_free(c);
    c = mt_compress_new(device, &(mt_compress_options){.min_bytes = hidden + 1});
    o = run(&n, mlp, mt_relu, c);
    assert_int_equal(o.saved, exact.saved - (4 * hidden - hidden / 8));
    forget(&o);
    forget(&exact);
    mt_compress_free(c);
    close_net(&n);
}

static void signs_beside_the_whole_tensor_lower_nothing_and_the_report_says_so(void **state)
{
    (void)state;
    net n = open_net(MT_F32);
    outcome exact = run(&n, direct, mt_relu, NULL);
    mt_compress *c = squeezer(RULE(SIGNS));
    outcome o = run(&n, direct, mt_relu, c);
    assert_int_equal(o.saved, exact.saved + hidden / 8);
    assert_int_equal(o.stats.by_rule[MT_COMPRESS_SIGNS].n, 1);
    assert_int_equal(o.stats.in_vain.n, 1);
    assert_int_equal(o.stats.in_vain.bytes_before, 4 * hidden);
    assert_int_equal(o.stats.in_vain.bytes_after, hidden / 8);
    assert_true(worst_error(&o, &exact) == 0);
    forget(&o);
    forget(&exact);
    mt_compress_free(c);
    close_net(&n);
}

/* ---- rules that round ---- */

static size_t int8_bytes(size_t n) { return n + 4 * ((n + 127) / 128); }

static void bf16_and_int8_take_the_bytes_of_their_formulas_and_err_little(void **state)
{
    (void)state;
    net n = open_net(MT_F32);
    outcome exact = run(&n, mlp, mt_gelu, NULL);
    /* x (the caller's, but saved), gelu's input, the mask, the second product's input */
    assert_int_equal(exact.saved, 4 * input + 4 * hidden + hidden + 4 * hidden);
    mt_compress *c = squeezer(RULE(BF16));
    outcome o = run(&n, mlp, mt_gelu, c);
    assert_int_equal(o.saved, 2 * input + 2 * hidden + hidden + 2 * hidden);
    assert_int_equal(o.stats.by_rule[MT_COMPRESS_BF16].n, 3);
    assert_int_equal(o.stats.by_rule[MT_COMPRESS_BF16].bytes_before, 4 * input + 8 * hidden);
    assert_int_equal(o.stats.by_rule[MT_COMPRESS_BF16].bytes_after, 2 * input + 4 * hidden);
    assert_int_equal(o.stats.in_vain.n, 1); /* x is held by this test */
    double error = worst_error(&o, &exact);
    assert_true(error > 0 && error < 0x1p-8);
    forget(&o);
    mt_compress_free(c);
    c = squeezer(RULE(INT8) | RULE(BF16) | RULE(MASK_BITS));
    o = run(&n, mlp, mt_gelu, c);
    assert_int_equal(o.saved, int8_bytes(input) + 2 * int8_bytes(hidden) + hidden / 8);
    error = worst_error(&o, &exact);
    assert_true(error > 0 && error < 0.01);
    forget(&o);
    forget(&exact);
    mt_compress_free(c);
    close_net(&n);
}

static void sixteen_bit_floats_become_int8_and_f64_stays(void **state)
{
    (void)state;
    static const mt_dtype floats[] = {MT_BF16, MT_F16, MT_F64};
    for (int t = 0; t < 3; t++) {
        net n = open_net(floats[t]);
        outcome exact = run(&n, mlp, mt_gelu, NULL);
        mt_compress *c = squeezer(RULE(INT8) | RULE(BF16));
        outcome o = run(&n, mlp, mt_gelu, c);
        if (floats[t] == MT_F64)
            assert_int_equal(o.saved, exact.saved);
        else
            assert_int_equal(o.saved, int8_bytes(input) + 2 * int8_bytes(hidden) + hidden);
        assert_true(worst_error(&o, &exact) < 0.02);
        forget(&o);
        forget(&exact);
        mt_compress_free(c);
        close_net(&n);
    }
}

/* Layer norm keeps x, its weight, mean and rstd; attention its log-sum-exp and generator state. */
static void statistics_parameters_and_whole_numbers_are_left_alone(void **state)
{
    (void)state;
    MT_AUTO mt_tensor *x = leaf(MT_F32, MT_SHAPE(2, 2, 16, 8), 1);
    MT_AUTO mt_tensor *w = leaf(MT_F32, MT_SHAPE(8), 2);
    MT_AUTO mt_tensor *table = leaf(MT_F32, MT_SHAPE(8, 8), 2);
    MT_AUTO mt_tensor *index = mtt_made(mt_zeros(device, MT_I64, MT_SHAPE(600)));
    mtt_ok(mt_set_category(w, MT_PARAMETER));
    mt_compress *c = squeezer(RULE(INT8) | RULE(BF16) | RULE(MASK_BITS) | RULE(MASK_SEED));
    mt_ledger *ledger = mt_ledger_new(device);
    mtt_ok(mt_ledger_begin(ledger));
    mtt_ok(mt_compress_begin(c));
    MT_AUTO mt_tensor *h = mtt_made(mt_layer_norm(x, w, NULL, 1e-5));
    MT_AUTO mt_tensor *y = mtt_made(mt_flash_attention(h, h, h, 0, true, 0.1));
    MT_AUTO mt_tensor *z = mtt_made(mt_embedding(index, table));
    mtt_ok(mt_compress_end(c));
    mtt_ok(mt_ledger_end(ledger));
    size_t n = 2 * 2 * 16 * 8, rows = n / 8;
    /* x, h and out packed; mean, rstd, lse; seed and offset; indices */
    assert_int_equal(mt_ledger_bytes(ledger),
                     3 * int8_bytes(n) + 2 * 4 * rows + 4 * rows + 16 + 8 * 600);
    mt_ledger_free(ledger);
    mt_compress_free(c);
}

/* ---- sharing ---- */

static void views_of_one_storage_are_packed_once_and_come_back_once(void **state)
{
    (void)state;
    MT_AUTO mt_tensor *x = leaf(MT_F32, MT_SHAPE(16, 96), 4);
    mt_tensor *part[3];
    mt_compress *c = squeezer(RULE(BF16));
    mt_tensor *exact = NULL;
    for (int packed = 0; packed < 2; packed++) {
        MT_AUTO mt_tensor *h = mtt_made(mt_mul_scalar(x, 2));
        mtt_ok(mt_split(h, 1, 3, (int64_t[]){32, 32, 32}, part));
        mt_set(&h, NULL);
        mt_clear_error();
        if (packed) mtt_ok(mt_compress_begin(c));
        MT_AUTO mt_tensor *a = mtt_made(mt_mul(part[0], part[1]));
        MT_AUTO mt_tensor *b = mtt_made(mt_mul(a, part[2]));
        for (int i = 0; i < 3; i++) mt_release(part[i]);
        if (packed) {
            mt_compress_stats s;
            mtt_ok(mt_compress_end(c));
            mtt_ok(mt_compress_get_stats(c, &s));
            /* the storage of h once for three views, and a, which this test holds */
            assert_int_equal(s.saves, 4);
            assert_int_equal(s.saves_shared, 2);
            assert_int_equal(s.by_rule[MT_COMPRESS_BF16].n, 2);
            assert_int_equal(s.by_rule[MT_COMPRESS_BF16].bytes_after, 2 * (16 * 96 + 16 * 32));
            assert_int_equal(s.in_vain.n, 1);
            assert_int_equal(s.in_vain.bytes_before, 4 * 16 * 32);
            assert_int_equal(stats_now().by_category[MT_PACKED], 3072 + 1024);
        }
        MT_AUTO mt_tensor *loss = mtt_made(mt_sum_all(b));
        mtt_ok(mt_backward_with(loss, &(mt_backward_options){.retain_graph = true}));
        MT_AUTO mt_tensor *first = mtt_made(mt_clone(mt_grad(x)));
        mtt_ok(mt_set_grad(x, NULL));
        mtt_ok(mt_backward(loss));
        assert_true(mtt_same_bits(first, mt_grad(x)));
        if (packed)
            assert_true(mt_relative_error(first, exact) < 0x1p-7);
        else
            exact = mt_retain(first);
        mtt_ok(mt_set_grad(x, NULL));
    }
    mt_release(exact);
    mt_compress_free(c);
}

static void a_storage_changed_in_place_is_packed_again(void **state)
{
    (void)state;
    MT_AUTO mt_tensor *x = leaf(MT_F32, MT_SHAPE(64), 4);
    MT_AUTO mt_tensor *w = mtt_made(mt_full(device, MT_F32, MT_SHAPE(64), 2));
    mt_compress *c = squeezer(RULE(BF16));
    mtt_ok(mt_compress_begin(c));
    MT_AUTO mt_tensor *a = mtt_made(mt_mul(x, w));
    mtt_ok(mt_fill(w, 3));
    MT_AUTO mt_tensor *b = mtt_made(mt_mul(a, w));
    mtt_ok(mt_compress_end(c));
    MT_AUTO mt_tensor *loss = mtt_made(mt_sum_all(b));
    mtt_ok(mt_backward(loss));
    double *dx = mtt_doubles(mt_grad(x));
    for (int i = 0; i < 64; i++) assert_true(dx[i] == 6);
    free(dx);
    mtt_ok(mt_set_grad(x, NULL));
    mt_compress_free(c);
}

static void a_compressor_may_be_used_again_and_freed_before_its_graph(void **state)
{
    (void)state;
    net n = open_net(MT_F32);
    mt_compress *c = squeezer(RULE(INT8));
    outcome a = run(&n, mlp, mt_gelu, c), b = run(&n, mlp, mt_gelu, c);
    assert_int_equal(a.saved, b.saved);
    assert_int_equal(a.stats.by_rule[MT_COMPRESS_INT8].n, b.stats.by_rule[MT_COMPRESS_INT8].n);
    assert_true(worst_error(&a, &b) == 0);
    mtt_ok(mt_compress_begin(c));
    MT_AUTO mt_tensor *loss = mtt_made(mlp(&n, mt_gelu));
    mtt_ok(mt_compress_end(c));
    mt_compress_free(c);
    mtt_ok(mt_backward(loss));
    forget(&a);
    forget(&b);
    mt_set(&loss, NULL);
    mt_clear_error();
    close_net(&n);
}

/* One step of a GPT with dropout, on attention's weights too; its loss. */
static mt_tensor *gpt_step(mt_module *gpt, mt_tensor *tokens, mt_compress *c, size_t *saved)
{
    mt_ledger *ledger = mt_ledger_new(device);
    mt_seed(device, 5);
    mtt_ok(mt_module_zero_grad(gpt));
    mtt_ok(mt_ledger_begin(ledger));
    if (c) mtt_ok(mt_compress_begin(c));
    MT_AUTO mt_tensor *logits = mtt_made(mt_forward(gpt, tokens));
    MT_AUTO mt_tensor *loss = mtt_made(mt_cross_entropy(logits, tokens, -100));
    if (c) mtt_ok(mt_compress_end(c));
    mtt_ok(mt_ledger_end(ledger));
    mtt_ok(mt_backward(loss));
    *saved = mt_ledger_bytes(ledger);
    mt_ledger_free(ledger);
    return mtt_made(mt_clone(loss));
}

static void a_gpt_with_dropout_learns_the_same_from_seeds(void **state)
{
    (void)state;
    enum { B = 2, S = 16, D = 32, A = 2, LAYERS = 2 };
    mt_model_config config = {.kind = MT_MODEL_GPT,
                              .hidden = D,
                              .heads = A,
                              .layers = LAYERS,
                              .vocab = 20,
                              .context = S,
                              .act = MT_ACT_RELU,
                              .dropout = 0.2,
                              .attention = MT_ATTENTION_MATH};
    mt_module *gpt = mt_model_new(device, &config);
    assert_non_null(gpt);
    int64_t ids[B * S];
    for (int i = 0; i < B * S; i++) ids[i] = i * 7 % 20;
    MT_AUTO mt_tensor *tokens =
        mtt_made(mt_from_data(device, MT_I64, MT_SHAPE(B, S), ids, sizeof ids));
    size_t exact_bytes, packed_bytes, n;
    const mt_named_tensor *list;
    mtt_ok(mt_module_params(gpt, &list, &n));
    mt_tensor **exact = calloc(n, sizeof *exact);
    assert_non_null(exact);
    MT_AUTO mt_tensor *a = gpt_step(gpt, tokens, NULL, &exact_bytes);
    for (size_t i = 0; i < n; i++) exact[i] = mtt_made(mt_clone(mt_grad(list[i].tensor)));
    mt_compress *c = squeezer(RULE(MASK_SEED));
    MT_AUTO mt_tensor *b = gpt_step(gpt, tokens, c, &packed_bytes);
    assert_true(mtt_same_bits(a, b));
    for (size_t i = 0; i < n; i++) {
        assert_true(mtt_same_bits(mt_grad(list[i].tensor), exact[i]));
        mt_release(exact[i]);
    }
    free(exact);
    /* masks: of the weights and of two projections a layer, and of the embeddings */
    assert_int_equal(packed_bytes,
                     exact_bytes - LAYERS * (A * S * S * B + 2 * B * S * D) - B * S * D);
    mt_compress_free(c);
    mt_module_free(gpt);
}

/* ---- the books ---- */

static void a_ledger_inside_sees_what_was_saved_and_one_outside_what_was_packed(void **state)
{
    (void)state;
    net n = open_net(MT_F32);
    outcome exact = run(&n, mlp, mt_gelu, NULL);
    mt_compress *c = squeezer(RULE(INT8) | RULE(MASK_SEED));
    mt_ledger *outside = mt_ledger_new(device), *inside = mt_ledger_new(device);
    mtt_ok(mt_ledger_begin(outside));
    mtt_ok(mt_compress_begin(c));
    mtt_ok(mt_ledger_begin(inside));
    MT_AUTO mt_tensor *loss = mtt_made(mlp(&n, mt_gelu));
    mtt_ok(mt_ledger_end(inside));
    mtt_ok(mt_compress_end(c));
    mtt_ok(mt_ledger_end(outside));
    assert_int_equal(mt_ledger_bytes(inside), exact.saved);
    assert_int_equal(mt_ledger_bytes(outside), int8_bytes(input) + 2 * int8_bytes(hidden));
    size_t packed = 0;
    for (size_t i = 0; i < mt_ledger_count(outside); i++) {
        mt_ledger_entry e;
        mtt_ok(mt_ledger_get(outside, i, &e));
        packed += e.allocated;
    }
    assert_int_equal(stats_now().by_category[MT_PACKED], packed);
    mtt_ok(mt_backward(loss));
    assert_int_equal(stats_now().by_category[MT_PACKED], 0);
    mt_ledger_free(inside);
    mt_ledger_free(outside);
    mt_compress_free(c);
    forget(&exact);
    mt_set(&loss, NULL);
    mt_clear_error();
    close_net(&n);
}

static void what_is_packed_on_meta_is_what_is_packed_here(void **state)
{
    (void)state;
    mt_device *real = device;
    size_t saved[2];
    for (int i = 0; i < 2; i++) {
        if (i) device = mt_device_open("meta");
        assert_non_null(device);
        MT_AUTO mt_tensor *x = mtt_made(mt_empty(device, MT_F32, MT_SHAPE(33, 65)));
        mtt_ok(mt_set_requires_grad(x, true));
        mt_compress *c = squeezer(RULE(INT8) | RULE(MASK_BITS) | RULE(SIGNS));
        mt_ledger *ledger = mt_ledger_new(device);
        mtt_ok(mt_ledger_begin(ledger));
        mtt_ok(mt_compress_begin(c));
        MT_AUTO mt_tensor *a = mtt_made(mt_gelu(x));
        MT_AUTO mt_tensor *b = mtt_made(mt_relu(a));
        MT_AUTO mt_tensor *y = mtt_made(mt_dropout(b, 0.5));
        mtt_ok(mt_compress_end(c));
        mtt_ok(mt_ledger_end(ledger));
        saved[i] = mt_ledger_bytes(ledger);
        MT_AUTO mt_tensor *loss = mtt_made(mt_sum_all(y));
        mtt_ok(mt_backward(loss));
        mt_ledger_free(ledger);
        mt_compress_free(c);
    }
    mt_device_release(device);
    device = real;
    assert_int_equal(saved[0], saved[1]);
    assert_int_equal(saved[0], int8_bytes(33 * 65) + 2 * ((33 * 65 + 7) / 8));
}

/* ---- errors ---- */

static void bad_options_and_a_wrong_order_are_refused(void **state)
{
    (void)state;
    assert_null(mt_compress_new(NULL, NULL));
    mtt_failed(MT_ERR_ARGUMENT, "compress_new", "NULL");
    assert_null(mt_compress_new(device, &(mt_compress_options){.rules = 1u << 9}));
    mtt_failed(MT_ERR_ARGUMENT, "compress_new", "0x200");
    assert_null(mt_compress_new(device, &(mt_compress_options){.block = 100}));
    mtt_failed(MT_ERR_ARGUMENT, "compress_new", "100");
    mt_compress *a = squeezer(RULE(BF16)), *b = squeezer(RULE(BF16));
    assert_int_equal(mt_compress_end(a), MT_ERR_STATE);
    mtt_failed(MT_ERR_STATE, "innermost");
    mtt_ok(mt_compress_begin(a));
    assert_int_equal(mt_compress_begin(a), MT_ERR_STATE);
    mtt_failed(MT_ERR_STATE, "already");
    mtt_ok(mt_compress_begin(b));
    assert_int_equal(mt_compress_end(a), MT_ERR_STATE);
    mtt_failed(MT_ERR_STATE, "innermost");
    mtt_ok(mt_compress_end(b));
    mtt_ok(mt_compress_end(a));
    assert_int_equal(mt_compress_begin(NULL), MT_ERR_ARGUMENT);
    mt_clear_error();
    mt_compress_free(a);
    mt_compress_free(b);
    mt_compress_free(NULL);
}

static void any_allocation_may_fail(void **state)
{
    (void)state;
    net n = open_net(MT_F32);
    mt_tensor *in[3] = {n.x, n.w1, n.w2};
    size_t before = stats_now().allocated.current;
    int refused = 0;
    for (uint64_t k = 1;; k++) {
        mti_fail_nth_alloc(k);
        mt_compress *c = mt_compress_new(
            device, &(mt_compress_options){.rules = RULE(INT8) | RULE(SIGNS) | RULE(MASK_BITS),
                                           .min_bytes = 1});
        bool ok = c && mt_compress_begin(c) == MT_OK, begun = ok;
        mt_tensor *loss = ok ? mlp(&n, mt_relu) : NULL;
        ok = loss && mt_backward(loss) == MT_OK;
        bool reached = mti_alloc_count() >= k;
        mti_fail_nth_alloc(0);
        if (!ok) assert_int_equal(mt_last_status(), MT_ERR_MEMORY);
        refused += !ok;
        mt_clear_error();
        if (begun) mtt_ok(mt_compress_end(c));
        mt_release(loss);
        mt_compress_free(c);
        for (int i = 0; i < 3; i++) mtt_ok(mt_set_grad(in[i], NULL));
        assert_int_equal(stats_now().allocated.current, before);
        mtt_ok(mt_check_balance(device));
        mt_mem_empty_cache(device);
        if (!reached) break;
    }
    assert_true(refused > 50);
    close_net(&n);
}

static void the_relative_error_is_that_of_the_norms(void **state)
{
    (void)state;
    const double a[] = {3, 4}, b[] = {3, 5};
    MT_AUTO mt_tensor *x = mtt_made(mtt_from_doubles(device, MT_F32, MT_SHAPE(2), a));
    MT_AUTO mt_tensor *y = mtt_made(mtt_from_doubles(device, MT_BF16, MT_SHAPE(2), b));
    assert_true(fabs(mt_relative_error(y, x) - 0.2) < 1e-12);
    assert_true(mt_relative_error(x, x) == 0);
    assert_true(isnan(mt_relative_error(x, NULL)));
    mt_clear_error();
}

#define TEST(name) cmocka_unit_test_teardown(name, nothing_left)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(a_mask_as_bits_or_as_its_seed_gives_the_same_gradient_bits),
        TEST(signs_give_the_same_gradient_bits_as_what_they_stand_for),
        TEST(by_default_the_exact_rules_are_on_and_small_storages_stay),
        TEST(signs_beside_the_whole_tensor_lower_nothing_and_the_report_says_so),
        TEST(bf16_and_int8_take_the_bytes_of_their_formulas_and_err_little),
        TEST(sixteen_bit_floats_become_int8_and_f64_stays),
        TEST(statistics_parameters_and_whole_numbers_are_left_alone),
        TEST(views_of_one_storage_are_packed_once_and_come_back_once),
        TEST(a_storage_changed_in_place_is_packed_again),
        TEST(a_compressor_may_be_used_again_and_freed_before_its_graph),
        TEST(a_gpt_with_dropout_learns_the_same_from_seeds),
        TEST(a_ledger_inside_sees_what_was_saved_and_one_outside_what_was_packed),
        TEST(what_is_packed_on_meta_is_what_is_packed_here),
        TEST(bad_options_and_a_wrong_order_are_refused),
        TEST(any_allocation_may_fail),
        TEST(the_relative_error_is_that_of_the_norms),
    };
    return cmocka_run_group_tests(tests, open_device, close_device);
}

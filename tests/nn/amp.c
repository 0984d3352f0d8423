/* Autocast and its cache, tensors in two dtypes, master weights, loss scaling. */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "base/base.h"
#include "mtt.h"

static mt_device *device;

static int open_device(void **state)
{
    (void)state;
    device = mtt_device();
    return device == NULL;
}

static int close_device(void **state)
{
    (void)state;
    mt_mem_stats stats;
    mt_mem_get_stats(device, &stats);
    mt_device_release(device);
    return stats.allocated.current != 0;
}

static size_t in_category(mt_category category)
{
    mt_mem_stats stats;
    mt_mem_get_stats(device, &stats);
    return stats.by_category[category];
}

static mt_tensor *draw(mt_dtype dtype, int rank, const int64_t *shape, uint64_t seed)
{
    return mtt_made(mtt_random(device, dtype, rank, shape, seed, 0.5, 1.5));
}

/* ---- what an op runs in ---- */

typedef mt_tensor *op_fn(mt_tensor *x, mt_tensor *y);

static mt_tensor *linear(mt_tensor *x, mt_tensor *y) { return mt_linear(x, y, NULL); }
static mt_tensor *heads(mt_tensor *x, mt_tensor *y)
{
    MT_AUTO mt_tensor *q = mt_reshape(x, MT_SHAPE(1, 1, 4, 4));
    MT_AUTO mt_tensor *k = mt_reshape(y, MT_SHAPE(1, 1, 4, 4));
    return mt_flash_attention(q, k, k, 0, false, 0);
}
static mt_tensor *norm(mt_tensor *x, mt_tensor *y)
{
    MT_AUTO mt_tensor *row = mt_slice(y, 0, 0, 1);
    MT_AUTO mt_tensor *w = mt_reshape(row, MT_SHAPE(4));
    return mt_layer_norm(x, w, NULL, 1e-5);
}
static mt_tensor *loss(mt_tensor *x, mt_tensor *y)
{
    (void)y;
    MT_AUTO mt_tensor *target = mt_zeros(device, MT_I64, MT_SHAPE(4));
    return mt_cross_entropy(x, target, -100);
}
static mt_tensor *softmax(mt_tensor *x, mt_tensor *y) { return (void)y, mt_softmax(x, 1, false); }
static mt_tensor *log_softmax(mt_tensor *x, mt_tensor *y) { return (void)y, mt_log_softmax(x); }
static mt_tensor *exponential(mt_tensor *x, mt_tensor *y) { return (void)y, mt_exp(x); }
static mt_tensor *logarithm(mt_tensor *x, mt_tensor *y) { return (void)y, mt_log(x); }
static mt_tensor *sum(mt_tensor *x, mt_tensor *y) { return (void)y, mt_sum_all(x); }
static mt_tensor *gelu(mt_tensor *x, mt_tensor *y) { return (void)y, mt_gelu(x); }
static mt_tensor *mean(mt_tensor *x, mt_tensor *y) { return (void)y, mt_mean_all(x); }
static mt_tensor *stack(mt_tensor *x, mt_tensor *y) { return mt_cat(2, (mt_tensor *[]){x, y}, 0); }

static void each_op_runs_in_the_dtype_of_its_class(void **state)
{
    (void)state;
    const struct {
        const char *name;
        op_fn *fn;
        mt_dtype f32_f32, bf16_bf16, bf16_f32, f64_f64; /* what comes out of such inputs */
    } cases[] = {
        {"linear", linear, MT_BF16, MT_BF16, MT_BF16, MT_F64},
        {"matmul", mt_matmul, MT_BF16, MT_BF16, MT_BF16, MT_F64},
        {"flash_attention", heads, MT_BF16, MT_BF16, MT_BF16, MT_F64},
        {"layer_norm", norm, MT_F32, MT_F32, MT_F32, MT_F64},
        {"cross_entropy", loss, MT_F32, MT_F32, MT_F32, MT_F64},
        {"mse", mt_mse, MT_F32, MT_F32, MT_F32, MT_F64},
        {"softmax", softmax, MT_F32, MT_F32, MT_F32, MT_F64},
        {"log_softmax", log_softmax, MT_F32, MT_F32, MT_F32, MT_F64},
        {"exp", exponential, MT_F32, MT_F32, MT_F32, MT_F64},
        {"log", logarithm, MT_F32, MT_F32, MT_F32, MT_F64},
        {"sum", sum, MT_F32, MT_F32, MT_F32, MT_F64},
        {"gelu", gelu, MT_F32, MT_BF16, MT_BF16, MT_F64},
        {"mean", mean, MT_F32, MT_BF16, MT_BF16, MT_F64},
        {"add", mt_add, MT_F32, MT_BF16, MT_F32, MT_F64},
        {"mul", mt_mul, MT_F32, MT_BF16, MT_F32, MT_F64},
        {"cat", stack, MT_F32, MT_BF16, MT_F32, MT_F64},
    };
    MT_AUTO mt_tensor *f32 = draw(MT_F32, MT_SHAPE(4, 4), 1);
    MT_AUTO mt_tensor *bf16 = draw(MT_BF16, MT_SHAPE(4, 4), 2);
    MT_AUTO mt_tensor *f64 = draw(MT_F64, MT_SHAPE(4, 4), 3);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const struct {
            mt_tensor *x, *y;
            mt_dtype want;
        } runs[] = {{f32, f32, cases[i].f32_f32},
                    {bf16, bf16, cases[i].bf16_bf16},
                    {bf16, f32, cases[i].bf16_f32},
                    {f64, f64, cases[i].f64_f64}};
        for (int r = 0; r < 4; r++) {
            mtt_ok(mt_autocast_begin(MT_BF16));
            MT_AUTO mt_tensor *y = mtt_made(cases[i].fn(runs[r].x, runs[r].y));
            mtt_ok(mt_autocast_end());
            if (mt_dtype_of(y) != runs[r].want)
                fail_msg("%s, run %d, gave %s", cases[i].name, r, mt_dtype_name(mt_dtype_of(y)));
        }
    }
    MT_AUTO mt_tensor *f16 = draw(MT_F16, MT_SHAPE(4, 4), 4);
    mtt_ok(mt_autocast_begin(MT_F16));
    MT_AUTO mt_tensor *both = mtt_made(mt_add(f16, bf16));
    mtt_ok(mt_autocast_end());
    assert_int_equal(mt_dtype_of(both), MT_F32);
    assert_null(mt_add(f16, bf16));
    mtt_failed(MT_ERR_ARGUMENT, "add", "cast");
}

/* The table of torch 2.13's autocast for CUDA, for the ops that both have
 * (aten/src/ATen/autocast_mode.h: AT_FORALL_LOWER_PRECISION_FP, AT_FORALL_FP32 and
 * AT_FORALL_FP32_SET_OPT_DTYPE); cross_entropy is its log_softmax and nll_loss. */
static void the_classes_are_those_of_torch_autocast(void **state)
{
    (void)state;
    const char *low[] = {"matmul", "linear", "flash_attention", "linear_cross_entropy"};
    const char *full[] = {"exp",        "log",      "pow", "softmax", "log_softmax",
                          "layer_norm", "rms_norm", "sum", "mse",     "cross_entropy"};
    for (int i = 0; i < mt_op_count(); i++) {
        mt_op_info op = mt_op_get(i);
        const char *want = "widest";
        for (size_t j = 0; j < sizeof low / sizeof *low; j++)
            if (!strcmp(op.name, low[j])) want = "low";
        for (size_t j = 0; j < sizeof full / sizeof *full; j++)
            if (!strcmp(op.name, full[j])) want = "f32";
        if (strcmp(op.autocast, want))
            fail_msg("%s runs in %s; need %s", op.name, op.autocast, want);
    }
}

static void regions_nest_and_can_turn_it_off_within(void **state)
{
    (void)state;
    MT_AUTO mt_tensor *x = draw(MT_F32, MT_SHAPE(4, 4), 1);
    mt_dtype now = MT_I64;
    assert_false(mt_autocast_active(&now));
    mtt_ok(mt_autocast_begin(MT_BF16));
    assert_true(mt_autocast_active(&now));
    assert_int_equal(now, MT_BF16);
    mtt_ok(mt_autocast_begin(MT_F32));
    assert_false(mt_autocast_active(NULL));
    MT_AUTO mt_tensor *off = mtt_made(mt_matmul(x, x));
    mtt_ok(mt_autocast_begin(MT_F16));
    MT_AUTO mt_tensor *f16 = mtt_made(mt_matmul(x, x));
    mtt_ok(mt_autocast_end());
    mtt_ok(mt_autocast_end());
    MT_AUTO mt_tensor *bf16 = mtt_made(mt_matmul(x, x));
    mtt_ok(mt_autocast_end());
    MT_AUTO mt_tensor *out = mtt_made(mt_matmul(x, x));
    assert_int_equal(mt_dtype_of(off), MT_F32);
    assert_int_equal(mt_dtype_of(f16), MT_F16);
    assert_int_equal(mt_dtype_of(bf16), MT_BF16);
    assert_int_equal(mt_dtype_of(out), MT_F32);

    assert_int_equal(mt_autocast_end(), MT_ERR_STATE);
    mtt_failed(MT_ERR_STATE, "no region");
    assert_int_equal(mt_autocast_begin(MT_F64), MT_ERR_ARGUMENT);
    mtt_failed(MT_ERR_ARGUMENT, "f64", "bf16");
    for (int i = 0; i < 16; i++) mtt_ok(mt_autocast_begin(MT_BF16));
    assert_int_equal(mt_autocast_begin(MT_BF16), MT_ERR_STATE);
    mtt_failed(MT_ERR_STATE, "16");
    for (int i = 0; i < 16; i++) mtt_ok(mt_autocast_end());
}

static mt_status sum_in_pack(void *user, const mt_save_info *info, mt_tensor *t, mt_tensor **kept,
                             void **state)
{
    (void)info, (void)kept, (void)state;
    MT_AUTO mt_tensor *y = mt_matmul(t, t);
    *(mt_dtype *)user = mt_dtype_of(y);
    return y ? MT_OK : mt_last_status();
}

static void hooks_run_outside_of_the_region(void **state)
{
    (void)state;
    MT_AUTO mt_tensor *x = draw(MT_F32, MT_SHAPE(4, 4), 1);
    mtt_ok(mt_set_requires_grad(x, true));
    mt_dtype seen = MT_I64;
    mtt_ok(mt_push_saved_hooks(&(mt_saved_hooks){.pack = sum_in_pack}, &seen));
    mtt_ok(mt_autocast_begin(MT_BF16));
    MT_AUTO mt_tensor *y = mtt_made(mt_exp(x));
    assert_true(mt_autocast_active(NULL));
    mtt_ok(mt_autocast_end());
    mtt_ok(mt_pop_saved_hooks());
    assert_int_equal(seen, MT_F32);
}

/* ---- the cache ---- */

static void a_parameter_is_cast_once_in_a_region(void **state)
{
    (void)state;
    MT_AUTO mt_tensor *x = draw(MT_F32, MT_SHAPE(8, 32), 1), *w = draw(MT_F32, MT_SHAPE(32, 32), 2);
    mtt_ok(mt_set_requires_grad(w, true));
    size_t n_bytes, copy = 32 * 32 * 2;
    mtt_ok(mt_autocast_begin(MT_BF16));
    mt_tensor *h = mtt_made(mt_linear(x, w, NULL));
    mtt_ok(mt_set(&h, mt_linear(h, w, NULL)));
    mtt_ok(mt_autocast_begin(MT_BF16));
    mtt_ok(mt_set(&h, mt_linear(h, w, NULL)));
    mtt_ok(mt_autocast_end());
    assert_int_equal(mt_autocast_cached(&n_bytes), 1);
    assert_int_equal(n_bytes, copy);
    assert_int_equal(in_category(MT_CACHE), copy);
    mtt_ok(mt_autocast_end());
    assert_int_equal(mt_autocast_cached(&n_bytes), 0);
    assert_int_equal(n_bytes, 0);
    assert_int_equal(in_category(MT_CACHE), copy); /* the tape needs it for dx of the later two */
    mt_release(h);
    assert_int_equal(in_category(MT_CACHE), 0);

    bool was = mt_set_grad_mode(false);
    mtt_ok(mt_autocast_begin(MT_BF16));
    h = mtt_made(mt_linear(x, w, NULL));
    assert_int_equal(mt_autocast_cached(NULL), 1);
    mt_set_grad_mode(was);
    mtt_ok(mt_set(&h, mt_linear(x, w, NULL))); /* a copy without history is no use here */
    assert_true(mt_requires_grad(h));
    mtt_ok(mt_autocast_end());
    mt_release(h);
    assert_int_equal(in_category(MT_CACHE), 0);
}

static void many_parameters_fit_into_the_cache(void **state)
{
    (void)state;
    enum { MANY = 200 };
    MT_AUTO mt_tensor *x = draw(MT_F32, MT_SHAPE(1, 4), 1);
    mt_tensor *w[MANY];
    for (int i = 0; i < MANY; i++) {
        w[i] = draw(MT_F32, MT_SHAPE(4, 4), (uint64_t)i);
        mtt_ok(mt_set_requires_grad(w[i], true));
    }
    mtt_ok(mt_autocast_begin(MT_F16));
    for (int round = 0; round < 2; round++)
        for (int i = 0; i < MANY; i++) mt_release(mtt_made(mt_linear(x, w[i], NULL)));
    assert_int_equal(mt_autocast_cached(NULL), MANY);
    mtt_ok(mt_autocast_end());
    for (int i = 0; i < MANY; i++) mt_release(w[i]);
}

static void a_parameter_written_within_the_region_is_cast_anew(void **state)
{
    (void)state;
    MT_AUTO mt_tensor *x = mtt_made(mt_full(device, MT_F32, MT_SHAPE(1, 2), 1));
    MT_AUTO mt_tensor *w = mtt_made(mt_full(device, MT_F32, MT_SHAPE(1, 2), 1));
    mtt_ok(mt_set_requires_grad(w, true));
    mtt_ok(mt_autocast_begin(MT_BF16));
    MT_AUTO mt_tensor *before = mtt_made(mt_linear(x, w, NULL));
    mtt_ok(mt_fill(w, 3));
    MT_AUTO mt_tensor *after = mtt_made(mt_linear(x, w, NULL));
    assert_int_equal(mt_autocast_cached(NULL), 1);
    mtt_ok(mt_autocast_end());
    assert_true(mt_item(before) == 2);
    assert_true(mt_item(after) == 6);
}

static void gradients_are_those_of_casts_written_by_hand(void **state)
{
    (void)state;
    MT_AUTO mt_tensor *x = draw(MT_F32, MT_SHAPE(5, 8), 1);
    mt_tensor *grads[2][2];
    for (int by_hand = 0; by_hand < 2; by_hand++) {
        MT_AUTO mt_tensor *w = draw(MT_F32, MT_SHAPE(8, 8), 2), *b = draw(MT_F32, MT_SHAPE(8), 3);
        mtt_ok(mt_set_requires_grad(w, true));
        mtt_ok(mt_set_requires_grad(b, true));
        mt_tensor *h;
        if (by_hand) {
            MT_AUTO mt_tensor *x16 = mt_cast(x, MT_BF16), *w16 = mt_cast(w, MT_BF16);
            MT_AUTO mt_tensor *b16 = mt_cast(b, MT_BF16);
            h = mt_linear(x16, w16, b16);
            mt_set(&h, mt_gelu(h));
            mt_set(&h, mt_linear(h, w16, b16));
            mt_set(&h, mt_cast(h, MT_F32));
            mt_set(&h, mt_softmax(h, 1, false));
        } else {
            mtt_ok(mt_autocast_begin(MT_BF16));
            h = mt_linear(x, w, b);
            mt_set(&h, mt_gelu(h));
            mt_set(&h, mt_linear(h, w, b));
            mt_set(&h, mt_softmax(h, 1, false));
            mtt_ok(mt_autocast_end());
        }
        MT_AUTO mt_tensor *y = mtt_made(mt_mse(h, x));
        mt_release(h);
        mtt_ok(mt_backward(y));
        grads[by_hand][0] = mt_retain(mtt_made(mt_grad(w)));
        grads[by_hand][1] = mt_retain(mtt_made(mt_grad(b)));
    }
    for (int i = 0; i < 2; i++) {
        assert_int_equal(mt_dtype_of(grads[0][i]), MT_F32);
        assert_true(mtt_same_bits(grads[0][i], grads[1][i]));
        mt_release(grads[0][i]), mt_release(grads[1][i]);
    }
}

/* A block keeps 16 tensors as wide as d, per token: 64 bytes d in f32, 32 d in bf16. Under autocast
 * the two norms keep theirs in f32, 36 d, and the tape keeps the four weights' copies for dx, 24
 * d^2 in all: with few tokens more than f32 keeps. */
static void autocast_keeps_half_the_activations_and_a_copy_of_the_weights(void **state)
{
    (void)state;
    enum { D = 32, HEADS = 2, PLAIN, LOW, PURE };
    for (int64_t s = 8; s <= 128; s *= 16) {
        size_t bytes[PURE + 1], td = 2 * (size_t)s * D;
        for (int way = PLAIN; way <= PURE; way++) {
            mt_dtype dtype = way == PURE ? MT_BF16 : MT_F32;
            mt_module *block = mt_block_new(
                device, &(mt_model_config){
                            .hidden = D, .heads = HEADS, .act = MT_ACT_GELU, .dtype = dtype});
            MT_AUTO mt_tensor *x = draw(dtype, MT_SHAPE(2, s, D), 1), *h = NULL;
            mtt_ok(mt_set_requires_grad(x, true));
            mtt_ok(mt_set(&h, mt_mul_scalar(x, 1))); /* an inner layer's: no leaf */
            mt_ledger *ledger = mt_ledger_new(device);
            mtt_ok(mt_ledger_begin(ledger));
            mtt_ok(mt_autocast_begin(way == LOW ? MT_BF16 : MT_F32));
            MT_AUTO mt_tensor *y = mtt_made(mt_forward(block, h));
            mtt_ok(mt_autocast_end());
            mtt_ok(mt_ledger_end(ledger));
            bytes[way] = mt_ledger_bytes(ledger);
            mt_ledger_free(ledger);
            mt_module_free(block);
        }
        size_t small = 2 * (size_t)s * (16 + 4 * HEADS) + 16;
        assert_int_equal(bytes[PLAIN], 64 * td + small);
        assert_int_equal(bytes[LOW], 36 * td + small + 24 * D * D);
        assert_int_equal(bytes[PURE], 32 * td + small);
        assert_int_equal(bytes[LOW] > bytes[PLAIN], s == 8);
    }
}

/* ---- one tensor in two dtypes ---- */

typedef struct pairs {
    int n;
    mt_duplicate last;
} pairs;

static void count_pair(void *user, const mt_duplicate *pair)
{
    pairs *p = user;
    p->n++;
    p->last = *pair;
}

static void tensors_in_two_dtypes_are_pointed_out_while_both_live(void **state)
{
    (void)state;
    MT_AUTO mt_tensor *w = draw(MT_F32, MT_SHAPE(16, 16), 2);
    MT_AUTO mt_tensor *row = mtt_made(mt_slice(w, 0, 0, 1));
    mt_tensor *low = mtt_made(mt_cast(w, MT_BF16));
    MT_AUTO mt_tensor *part = mtt_made(mt_cast(row, MT_BF16)); /* not the whole: no duplicate */
    pairs p = {0};
    mtt_ok(mt_visit_duplicates(device, count_pair, &p));
    assert_int_equal(p.n, 1);
    assert_int_equal(p.last.source, mt_storage_of(w).serial);
    assert_int_equal(p.last.copy, mt_storage_of(low).serial);
    assert_int_equal(p.last.source_dtype, MT_F32);
    assert_int_equal(p.last.copy_dtype, MT_BF16);
    assert_int_equal(p.last.source_bytes, 16 * 16 * 4);
    assert_int_equal(p.last.copy_bytes, 16 * 16 * 2);
    assert_string_equal(p.last.op, "cast");
    mt_release(low);
    p.n = 0;
    mtt_ok(mt_visit_duplicates(device, count_pair, &p));
    assert_int_equal(p.n, 0);
    assert_int_equal(mt_visit_duplicates(NULL, count_pair, &p), MT_ERR_ARGUMENT);
    mtt_failed(MT_ERR_ARGUMENT, "device");
}

/* ---- master weights ---- */

enum { N = 700 };

static mt_tensor *pass(mt_module *self, mt_tensor *x)
{
    (void)self;
    return mt_retain(x);
}

static mt_module *one_param(mt_dtype dtype)
{
    mt_module *m = mt_module_new("m", pass, NULL, NULL);
    MT_AUTO mt_tensor *bf16 = draw(MT_BF16, MT_SHAPE(N / 7, 7), 5); /* exact in bf16 and f32 */
    mtt_made(mt_module_add_param(m, "w", mt_cast(bf16, dtype)));
    return m;
}

typedef enum kind { ADAMW, SGD, SGD_MOMENTUM, N_KINDS } kind;

static mt_optimizer *optimizer(mt_module *m, kind k, bool master)
{
    mt_optimizer *o =
        k == ADAMW ? mt_adamw_new(
                         m, &(mt_adamw_options){.lr = 1e-4, .weight_decay = 0.1, .master = master})
                   : mt_sgd_new(m, &(mt_sgd_options){.lr = 1e-4,
                                                     .momentum = k == SGD ? 0 : 0.9,
                                                     .weight_decay = 0.1,
                                                     .master = master});
    assert_non_null(o);
    return o;
}

/* The same bf16 values as the gradient in the parameter's dtype, times scale. */
static void set_grad(mt_module *m, uint64_t seed, double scale)
{
    mt_tensor *w = mt_module_param(m, "w");
    MT_AUTO mt_tensor *g = mtt_random(device, MT_BF16, MT_SHAPE(N / 7, 7), seed, -1, 1);
    mt_set(&g, mt_mul_scalar(g, scale));
    mt_set(&g, mt_cast(g, mt_dtype_of(w)));
    mtt_ok(mt_set_grad(w, mtt_made(g)));
}

static mt_tensor *master_of(mt_optimizer *o)
{
    mt_optimizer_entry e;
    for (size_t i = 0; i < mt_optimizer_state_count(o); i++) {
        mtt_ok(mt_optimizer_state(o, i, &e));
        if (!strcmp(e.name, "master")) return e.tensor;
    }
    return NULL;
}

static void a_master_takes_the_steps_of_an_f32_parameter_bit_for_bit(void **state)
{
    (void)state;
    for (kind k = ADAMW; k < N_KINDS; k++) {
        mt_module *wide = one_param(MT_F32), *narrow = one_param(MT_BF16);
        mt_optimizer *o32 = optimizer(wide, k, true), *o16 = optimizer(narrow, k, true);
        for (uint64_t step = 0; step < 5; step++) {
            set_grad(wide, step, 1);
            set_grad(narrow, step, 1);
            mtt_ok(mt_optimizer_step(o32));
            mtt_ok(mt_optimizer_step(o16));
        }
        assert_null(master_of(o32)); /* an f32 parameter is its own */
        mt_tensor *master = mtt_made(master_of(o16));
        assert_int_equal(mt_storage_of(master).category, MT_OPTIMIZER);
        assert_true(mtt_same_bits(master, mt_module_param(wide, "w")));
        MT_AUTO mt_tensor *rounded = mtt_made(mt_cast(master, MT_BF16));
        assert_true(mtt_same_bits(rounded, mt_module_param(narrow, "w")));
        pairs p = {0};
        mt_release(rounded), rounded = NULL;
        mtt_ok(mt_visit_duplicates(device, count_pair, &p));
        assert_int_equal(p.n, 1);
        assert_int_equal(p.last.copy_category, MT_OPTIMIZER);
        mt_optimizer_free(o32), mt_optimizer_free(o16);
        mt_module_free(wide), mt_module_free(narrow);
    }
}

static void steps_too_small_for_bf16_add_up_in_the_master_only(void **state)
{
    (void)state;
    double moved[2];
    for (int master = 0; master < 2; master++) {
        mt_module *m = one_param(MT_BF16);
        mt_tensor *w = mt_module_param(m, "w");
        mtt_ok(mt_fill(w, 1));
        mt_optimizer *o = mt_sgd_new(m, &(mt_sgd_options){.lr = 1e-4, .master = master});
        for (int step = 0; step < 100; step++) { /* 1e-4 is a 78th of the gap below 1 */
            MT_AUTO mt_tensor *one = mt_full(device, MT_BF16, MT_SHAPE(N / 7, 7), 1);
            mtt_ok(mt_set_grad(w, one));
            mtt_ok(mt_optimizer_step(o));
        }
        double *at = mtt_doubles(w);
        moved[master] = 1 - at[0];
        free(at);
        mt_optimizer_free(o);
        mt_module_free(m);
    }
    assert_true(moved[0] == 0);
    assert_true(fabs(moved[1] - 0.01) <= 0x1p-9);
}

static void a_parameter_that_others_have_written_makes_its_master_anew(void **state)
{
    (void)state;
    mt_module *m = one_param(MT_F16);
    mt_tensor *w = mt_module_param(m, "w");
    mt_optimizer *o = optimizer(m, SGD, true);
    set_grad(m, 1, 1);
    mtt_ok(mt_optimizer_step(o));
    mtt_ok(mt_fill(w, 2));
    set_grad(m, 1, 0);
    mtt_ok(mt_optimizer_set_lr(o, 0));
    mtt_ok(mt_optimizer_step(o));
    double *at = mtt_doubles(master_of(o));
    for (int i = 0; i < N; i++) assert_true(at[i] == 2);
    free(at);
    mt_optimizer_free(o);
    mt_module_free(m);
}

static void masters_are_saved_and_restored_bit_for_bit(void **state)
{
    (void)state;
    char path[] = "/tmp/mtt-amp-XXXXXX";
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    mt_module *m[2] = {one_param(MT_BF16), one_param(MT_BF16)};
    mt_optimizer *o[2] = {optimizer(m[0], SGD, true), optimizer(m[1], SGD, true)};
    for (uint64_t step = 0; step < 3; step++) {
        set_grad(m[0], step, 1);
        mtt_ok(mt_optimizer_step(o[0]));
    }
    assert_int_equal(mt_optimizer_state_count(o[0]), 1);
    mtt_ok(mt_checkpoint_save(path, m[0], o[0], 3, 0, NULL));
    mt_safetensors *file = mt_safetensors_open(path);
    assert_non_null(file);
    int64_t step = 0;
    mtt_ok(mt_checkpoint_load(file, m[1], o[1], &step));
    mt_safetensors_free(file);
    assert_int_equal(step, 3);
    for (int i = 0; i < 2; i++) {
        set_grad(m[i], 9, 1);
        mtt_ok(mt_optimizer_step(o[i]));
    }
    assert_true(mtt_same_bits(master_of(o[0]), master_of(o[1])));
    assert_true(mtt_same_bits(mt_module_param(m[0], "w"), mt_module_param(m[1], "w")));

    /* An optimizer without masters does not take a file that has them. */
    mt_optimizer *plain = optimizer(m[1], SGD, false);
    file = mt_safetensors_open(path);
    assert_int_equal(mt_checkpoint_load(file, m[1], plain, &step), MT_ERR_ARGUMENT);
    mtt_failed(MT_ERR_ARGUMENT, "state");
    mt_safetensors_free(file);
    mt_optimizer_free(plain);
    for (int i = 0; i < 2; i++) mt_optimizer_free(o[i]), mt_module_free(m[i]);
    unlink(path);
}

/* ---- loss scaling ---- */

static void poison(mt_module *m, double value)
{
    mt_tensor *g = mt_grad(mt_module_param(m, "w"));
    MT_AUTO mt_tensor *last = mtt_made(mt_slice(g, 0, N / 7 - 1, 1));
    mtt_ok(mt_fill(last, value));
}

static void the_scale_grows_after_good_steps_and_backs_off_from_overflows(void **state)
{
    (void)state;
    mt_module *m = one_param(MT_F32);
    mt_optimizer *o = optimizer(m, SGD, false);
    mt_scaler *s = mt_scaler_new(&(mt_scaler_options){.interval = 3});
    /* torch.amp.GradScaler(growth_interval=3) over the same sequence */
    const struct {
        double bad, scale;
    } steps[] = {{0, 65536}, {0, 65536},   {0, 131072},        {INFINITY, 65536},
                 {0, 65536}, {NAN, 32768}, {0, 32768},         {0, 32768},
                 {0, 65536}, {0, 65536},   {-INFINITY, 32768}, {INFINITY, 16384}};
    int64_t skipped = 0;
    for (size_t i = 0; i < sizeof steps / sizeof *steps; i++) {
        MT_AUTO mt_tensor *before = mtt_made(mt_clone(mt_module_param(m, "w")));
        set_grad(m, i, mt_scaler_get(s).scale);
        if (steps[i].bad != 0) poison(m, steps[i].bad);
        bool stepped;
        mtt_ok(mt_scaler_step(s, o, &stepped));
        assert_int_equal(stepped, steps[i].bad == 0);
        assert_int_equal(mtt_same_bits(before, mt_module_param(m, "w")), !stepped);
        skipped += !stepped;
        assert_true(mt_scaler_get(s).scale == steps[i].scale);
        assert_int_equal(mt_scaler_get(s).skipped, skipped);
        assert_int_equal(mt_scaler_get(s).steps, (int64_t)i + 1 - skipped);
    }
    mt_scaler_free(s);
    mt_optimizer_free(o);
    mt_module_free(m);
}

static void a_fixed_scale_stays_and_steps_are_skipped_all_the_same(void **state)
{
    (void)state;
    mt_module *m = one_param(MT_F32);
    mt_optimizer *o = optimizer(m, ADAMW, false);
    mt_scaler *s = mt_scaler_new(&(mt_scaler_options){.scale = 1024, .fixed = true, .interval = 1});
    for (int i = 0; i < 4; i++) {
        set_grad(m, 1, 1024);
        if (i == 2) poison(m, NAN);
        bool stepped;
        mtt_ok(mt_scaler_step(s, o, &stepped));
        assert_int_equal(stepped, i != 2);
        assert_true(mt_scaler_get(s).scale == 1024);
    }
    mt_optimizer_entry e;
    mtt_ok(mt_optimizer_state(o, 0, &e));
    assert_int_equal(e.step, 3); /* a skipped step is none */
    mt_scaler_free(s);
    mt_optimizer_free(o);
    mt_module_free(m);
}

/* Scales are powers of 2, so that f32 forgets them without a trace. */
static void a_scaled_step_is_the_plain_one_bit_for_bit_in_each_way(void **state)
{
    (void)state;
    for (kind k = ADAMW; k < N_KINDS; k++)
        for (int way = 0; way < 4; way++) {
            mt_module *m[2] = {one_param(MT_F32), one_param(MT_F32)};
            mt_optimizer *o[2] = {optimizer(m[0], k, false), optimizer(m[1], k, false)};
            mt_scaler *s = mt_scaler_new(NULL);
            for (uint64_t step = 0; step < 3; step++) {
                double plain_norm = 0, norm = 0;
                set_grad(m[0], step, 1);
                set_grad(m[1], step, 65536);
                if (way == 1 || way == 3) mtt_ok(mt_scaler_unscale(s, o[1]));
                if (way == 1)
                    assert_true(mtt_same_bits(mt_grad(mt_module_param(m[0], "w")),
                                              mt_grad(mt_module_param(m[1], "w"))));
                if (way >= 2) {
                    mtt_ok(mt_clip_grad_norm(m[0], 1e9, &plain_norm));
                    mtt_ok(mt_scaler_clip(s, o[1], 1e9, &norm));
                    assert_true(norm == plain_norm);
                }
                bool stepped;
                mtt_ok(mt_optimizer_step(o[0]));
                mtt_ok(mt_scaler_step(s, o[1], &stepped));
                assert_true(stepped);
            }
            assert_true(mtt_same_bits(mt_module_param(m[0], "w"), mt_module_param(m[1], "w")));
            mt_scaler_free(s);
            for (int i = 0; i < 2; i++) mt_optimizer_free(o[i]), mt_module_free(m[i]);
        }
}

static void clipping_is_of_the_true_gradients(void **state)
{
    (void)state;
    mt_module *m[2] = {one_param(MT_F32), one_param(MT_F32)};
    mt_optimizer *o[2] = {optimizer(m[0], SGD, false), optimizer(m[1], SGD, false)};
    mt_scaler *s = mt_scaler_new(NULL);
    set_grad(m[0], 3, 1);
    set_grad(m[1], 3, 65536);
    mtt_ok(mt_clip_grad_norm(m[0], 0.5, NULL));
    mtt_ok(mt_scaler_clip(s, o[1], 0.5, NULL));
    mtt_ok(mt_optimizer_step(o[0]));
    mtt_ok(mt_scaler_step(s, o[1], NULL));
    double *a = mtt_doubles(mt_module_param(m[0], "w")),
           *b = mtt_doubles(mt_module_param(m[1], "w"));
    for (int i = 0; i < N; i++) assert_true(fabs(a[i] - b[i]) <= 1e-7);
    free(a), free(b);
    assert_int_equal(mt_scaler_clip(s, o[1], 0, NULL), MT_ERR_ARGUMENT);
    mtt_failed(MT_ERR_ARGUMENT, "max_norm");
    mt_scaler_free(s);
    for (int i = 0; i < 2; i++) mt_optimizer_free(o[i]), mt_module_free(m[i]);
}

static void f16_gradients_are_unscaled_in_the_step_and_nowhere_else(void **state)
{
    (void)state;
    mt_module *m = one_param(MT_F16);
    mt_tensor *w = mt_module_param(m, "w");
    mt_optimizer *o = mt_sgd_new(m, &(mt_sgd_options){.lr = 1, .master = true});
    mt_scaler *s = mt_scaler_new(NULL);
    mtt_ok(mt_fill(w, 0));
    MT_AUTO mt_tensor *g = mtt_made(mt_full(device, MT_F16, MT_SHAPE(N / 7, 7), 0x1p-10));
    mtt_ok(mt_set_grad(w, g)); /* truly 2^-26: 0 in f16 */
    assert_int_equal(mt_scaler_unscale(s, o), MT_ERR_ARGUMENT);
    mtt_failed(MT_ERR_ARGUMENT, "f16", "w");
    mtt_ok(mt_scaler_step(s, o, NULL));
    double *at = mtt_doubles(master_of(o));
    for (int i = 0; i < N; i++) assert_true(at[i] == -0x1p-26);
    free(at);
    mt_scaler_free(s);
    mt_optimizer_free(o);
    mt_module_free(m);
}

static void a_scaler_refuses_what_makes_no_sense(void **state)
{
    (void)state;
    const mt_scaler_options bad[] = {
        {.scale = -1}, {.scale = INFINITY}, {.growth = 1}, {.backoff = 1}, {.interval = -1}};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        assert_null(mt_scaler_new(&bad[i]));
        mtt_failed(MT_ERR_ARGUMENT, "scaler", "need");
    }
    mt_scaler *s = mt_scaler_new(NULL);
    mt_module *m = one_param(MT_F32);
    mt_optimizer *o = optimizer(m, SGD, false);
    assert_null(mt_scaler_scale(s, NULL));
    mt_clear_error();
    assert_int_equal(mt_scaler_step(s, NULL, NULL), MT_ERR_ARGUMENT);
    mtt_failed(MT_ERR_ARGUMENT, "optimizer");
    assert_int_equal(mt_scaler_set(s, &(mt_scaler_state){.scale = 0}), MT_ERR_ARGUMENT);
    mtt_failed(MT_ERR_ARGUMENT, "scale");
    mtt_ok(mt_scaler_set(s, &(mt_scaler_state){.scale = 8, .good_steps = 1999, .steps = 1999}));
    set_grad(m, 1, 8);
    mtt_ok(mt_scaler_unscale(s, o));
    assert_int_equal(mt_scaler_unscale(s, o), MT_ERR_STATE);
    mtt_failed(MT_ERR_STATE, "already");
    mtt_ok(mt_scaler_step(s, o, NULL));
    assert_true(mt_scaler_get(s).scale == 16);
    MT_AUTO mt_tensor *half = mtt_made(mt_full(device, MT_F16, 0, NULL, 2));
    MT_AUTO mt_tensor *scaled = mtt_made(mt_scaler_scale(s, half));
    assert_int_equal(mt_dtype_of(scaled), MT_F32);
    assert_true(mt_item(scaled) == 32);
    mt_scaler_free(s);
    mt_optimizer_free(o);
    mt_module_free(m);
}

/* ---- all of it, with allocations that fail ---- */

static mt_status step(mt_module *mlp, mt_tensor *x, mt_optimizer *o, mt_scaler *s)
{
    mt_status status = mt_module_zero_grad(mlp);
    if (status == MT_OK) status = mt_autocast_begin(MT_F16);
    if (status != MT_OK) return status;
    mt_tensor *y = mt_forward(mlp, x);
    mt_set(&y, mt_mse(y, x));
    status = mt_autocast_end();
    mt_set(&y, mt_scaler_scale(s, y));
    if (status == MT_OK) status = mt_backward(y);
    mt_release(y);
    if (status == MT_OK) status = mt_scaler_clip(s, o, 1, NULL);
    return status == MT_OK ? mt_scaler_step(s, o, NULL) : status;
}

static void any_allocation_of_a_scaled_autocast_step_may_fail(void **state)
{
    (void)state;
    MT_AUTO mt_tensor *x = draw(MT_F32, MT_SHAPE(3, 8), 1);
    mt_tensor *expected = NULL;
    uint64_t n_refused = 0;
    bool reached = true;
    for (uint64_t n = 0; reached; n++) { /* n 0: nothing fails */
        mt_seed(device, 3);
        mt_module *mlp = mt_mlp_new(device, &(mt_model_config){.hidden = 8, .ffn = 16});
        mt_optimizer *o = mt_adamw_new(mlp, &(mt_adamw_options){.lr = 0.1});
        mt_scaler *s = mt_scaler_new(&(mt_scaler_options){.scale = 256});
        assert_non_null(s);
        mt_mem_stats before, after;
        mt_mem_get_stats(device, &before);
        mti_fail_nth_alloc(n);
        mt_status status = step(mlp, x, o, s);
        reached = n == 0 || mti_alloc_count() >= n;
        mti_fail_nth_alloc(0);
        if (status != MT_OK) {
            n_refused++;
            assert_int_equal(status, MT_ERR_MEMORY);
            mt_clear_error();
            mtt_ok(mt_module_zero_grad(mlp));
            mt_optimizer_reset(o);
            mt_mem_get_stats(device, &after);
            assert_int_equal(after.allocated.current, before.allocated.current);
            assert_int_equal(mt_autocast_end(), MT_ERR_STATE);
            mt_clear_error();
            mtt_ok(step(mlp, x, o, s));
        }
        mt_tensor *w = mt_module_param(mt_module_child(mlp, "fc"), "weight");
        if (!expected) expected = mtt_made(mt_clone(w)), mt_set(&expected, mt_detach(expected));
        assert_true(mtt_same_bits(expected, w));
        mt_scaler_free(s);
        mt_optimizer_free(o);
        mt_module_free(mlp);
    }
    assert_true(n_refused > 50);
    mt_release(expected);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_op_runs_in_the_dtype_of_its_class),
        cmocka_unit_test(the_classes_are_those_of_torch_autocast),
        cmocka_unit_test(regions_nest_and_can_turn_it_off_within),
        cmocka_unit_test(hooks_run_outside_of_the_region),
        cmocka_unit_test(a_parameter_is_cast_once_in_a_region),
        cmocka_unit_test(many_parameters_fit_into_the_cache),
        cmocka_unit_test(a_parameter_written_within_the_region_is_cast_anew),
        cmocka_unit_test(gradients_are_those_of_casts_written_by_hand),
        cmocka_unit_test(autocast_keeps_half_the_activations_and_a_copy_of_the_weights),
        cmocka_unit_test(tensors_in_two_dtypes_are_pointed_out_while_both_live),
        cmocka_unit_test(a_master_takes_the_steps_of_an_f32_parameter_bit_for_bit),
        cmocka_unit_test(steps_too_small_for_bf16_add_up_in_the_master_only),
        cmocka_unit_test(a_parameter_that_others_have_written_makes_its_master_anew),
        cmocka_unit_test(masters_are_saved_and_restored_bit_for_bit),
        cmocka_unit_test(the_scale_grows_after_good_steps_and_backs_off_from_overflows),
        cmocka_unit_test(a_fixed_scale_stays_and_steps_are_skipped_all_the_same),
        cmocka_unit_test(a_scaled_step_is_the_plain_one_bit_for_bit_in_each_way),
        cmocka_unit_test(clipping_is_of_the_true_gradients),
        cmocka_unit_test(f16_gradients_are_unscaled_in_the_step_and_nowhere_else),
        cmocka_unit_test(a_scaler_refuses_what_makes_no_sense),
        cmocka_unit_test(any_allocation_of_a_scaled_autocast_step_may_fail),
    };
    return cmocka_run_group_tests(tests, open_device, close_device);
}

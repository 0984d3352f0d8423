/* Autocast: the dtype of each op, the regions, and the cache of cast tensors. */
#include <math.h>
#include <string.h>
#include "mtt.h"
#include "mtt_fixture.h"

static mt_tensor *draw(mt_dtype dtype, int rank, const int64_t *shape, uint64_t seed)
{
    return mtt_made(mtt_random(device, dtype, rank, shape, seed, 0.5, 1.5));
}

/* ---- the dtype that an op runs in ---- */

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
    return mt_cross_entropy(x, target, MT_IGNORE);
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
        mt_dtype f32_f32, bf16_bf16, bf16_f32, f64_f64; /* dtype of the result for such inputs */
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

/* The classes of torch 2.13's autocast for CUDA, for the ops that both have
 * (aten/src/ATen/autocast_mode.h: AT_FORALL_LOWER_PRECISION_FP, AT_FORALL_FP32 and
 * AT_FORALL_FP32_SET_OPT_DTYPE); cross_entropy stands for its log_softmax and nll_loss. */
static void the_classes_are_those_of_torch_autocast(void **state)
{
    (void)state;
    const char *low[] = {"matmul", "linear", "flash_attention", "linear_cross_entropy",
                         "linear_cross_entropy_early"};
    const char *full[] = {"exp",           "softplus",          "log",       "pow", "softmax",
                          "log_softmax",   "layer_norm",        "rms_norm",  "sum", "mse",
                          "cross_entropy", "cross_entropy_lse", "reciprocal"};
    for (int i = 0; i < mt_all_ops_count(); i++) {
        mt_op_info op = mt_all_ops_get(i);
        const char *want = "widest";
        for (size_t j = 0; j < sizeof low / sizeof *low; j++)
            if (!strcmp(op.name, low[j])) want = "low";
        for (size_t j = 0; j < sizeof full / sizeof *full; j++)
            if (!strcmp(op.name, full[j])) want = "f32";
        if (strcmp(op.autocast, want))
            fail_msg("%s runs in %s; need %s", op.name, op.autocast, want);
    }
}

static void regions_nest_and_an_inner_one_can_disable_autocast(void **state)
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

static void hooks_run_outside_the_region(void **state)
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
    assert_int_equal(mtt_allocated_as(device, MT_CACHE), copy);
    mtt_ok(mt_autocast_end());
    assert_int_equal(mt_autocast_cached(&n_bytes), 0);
    assert_int_equal(n_bytes, 0);
    assert_int_equal(mtt_allocated_as(device, MT_CACHE),
                     copy); /* the tape keeps it for dx of the later two */
    mt_release(h);
    assert_int_equal(mtt_allocated_as(device, MT_CACHE), 0);

    bool was = mt_set_grad_mode(false);
    mtt_ok(mt_autocast_begin(MT_BF16));
    h = mtt_made(mt_linear(x, w, NULL));
    assert_int_equal(mt_autocast_cached(NULL), 1);
    mt_set_grad_mode(was);
    mtt_ok(
        mt_set(&h, mt_linear(x, w, NULL))); /* a cached copy without history cannot be used here */
    assert_true(mt_requires_grad(h));
    mtt_ok(mt_autocast_end());
    mt_release(h);
    assert_int_equal(mtt_allocated_as(device, MT_CACHE), 0);
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

static void a_parameter_written_within_the_region_is_cast_again(void **state)
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

static void gradients_are_those_of_explicit_casts(void **state)
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

/* A block keeps 16 d values per token: 64 d bytes in f32, 32 d in bf16. Under autocast the two
 * norms keep their inputs in f32, which makes 36 d; and the tape keeps copies of the four weights
 * for dx, 24 d^2 bytes. With few tokens that is more than f32 keeps. */
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
            mtt_ok(mt_set(&h, mt_mul_scalar(x, 1))); /* as in an inner layer: not a leaf */
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        mtt_test(each_op_runs_in_the_dtype_of_its_class),
        mtt_test(the_classes_are_those_of_torch_autocast),
        mtt_test(regions_nest_and_an_inner_one_can_disable_autocast),
        mtt_test(hooks_run_outside_the_region),
        mtt_test(a_parameter_is_cast_once_in_a_region),
        mtt_test(many_parameters_fit_into_the_cache),
        mtt_test(a_parameter_written_within_the_region_is_cast_again),
        mtt_test(gradients_are_those_of_explicit_casts),
        mtt_test(autocast_keeps_half_the_activations_and_a_copy_of_the_weights),
    };
    return cmocka_run_group_tests(tests, mtt_open_device, mtt_close_device);
}

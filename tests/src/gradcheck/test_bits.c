/* Bits that every processor gives: of results that are copied, chosen or rounded once, of draws,
 * casts and codes, and of a training in which nothing is rounded. The digests are constants, so
 * x86 of every level, the sanitizers' build and 64-bit ARM are compared with each other. */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "base/base.h"
#include "gradcheck.h"
#include "mtt.h"
#include "mtt_fixture.h"

static uint64_t with_bits(uint64_t digest, mt_tensor *t)
{
    size_t n_bytes = (size_t)mt_numel(mtt_made(t)) * mt_dtype_size(mt_dtype_of(t));
    char *bytes = malloc(n_bytes + 1);
    assert_non_null(bytes);
    mtt_ok(mt_to_host(t, bytes, n_bytes));
    digest = mti_hash_bytes(digest, bytes, n_bytes);
    free(bytes);
    return digest;
}

static bool is(const char *what, uint64_t digest, uint64_t wanted)
{
    if (digest == wanted) return true;
    print_error("%s: its bits have the digest 0x%016llx, not 0x%016llx\n", what,
                (unsigned long long)digest, (unsigned long long)wanted);
    return false;
}

/* ---- ops ---- */

/* Each result is copied, chosen or rounded once. So is each gradient of the first N_GRADIENTS;
 * those of the others may be sums, in an order that is each processor's own. */
static const char *const promised[] = {
    "permute",   "slice",    "reshape", "split",   "contiguous",   "clone",      "cat",
    "abs",       "clamp",    "relu",    "dropout", "relu_inplace", "leaky_relu", "max",
    "topk",      "expand",   "add",     "sub",     "mul",          "div",        "sqrt",
    "embedding", "dispatch", "where",   "gather",  "reciprocal",
};
enum { N_PROMISED = sizeof promised / sizeof *promised, N_GRADIENTS = 15 };

static void add_call(const grad_case *c, mt_dtype dtype, uint64_t *result, uint64_t *gradients)
{
    double values[MTI_CASE_INPUTS][512], *rows[MTI_CASE_INPUTS];
    mt_tensor *in[MTI_CASE_INPUTS] = {0};
    for (int i = 0; i < MTI_CASE_INPUTS; i++) rows[i] = values[i];
    case_draw(c, 1024, rows);
    for (int i = 0; i < c->of.n_in; i++) {
        const mti_case_input *x = &c->of.in[i];
        in[i] = mtt_from_doubles(device, x->below ? MT_I64 : dtype, x->rank, x->shape, values[i]);
        if (!x->below) mtt_ok(mt_set_requires_grad(in[i], true));
    }
    mt_seed(device, 11);
    MT_AUTO mt_tensor *y = mtt_made(case_call(c, in));
    *result = with_bits(*result, y);
    MT_AUTO mt_tensor *dy = mt_uniform(device, dtype, mt_rank(y), mt_shape(y), -1, 1);
    mtt_ok(mt_backward_from(1, &y, &dy, false));
    for (int i = 0; i < c->of.n_in; i++) {
        if (mt_grad(in[i])) *gradients = with_bits(*gradients, mt_grad(in[i]));
        mt_release(in[i]);
    }
}

static void what_is_rounded_once_has_the_same_bits_everywhere(void **state)
{
    (void)state;
    const grad_case *list;
    uint64_t results[N_PROMISED], gradients[N_PROMISED];
    int n_cases = grad_cases(&list);
    for (int p = 0; p < N_PROMISED; p++) {
        results[p] = gradients[p] = MTI_HASH_BEGIN;
        for (int i = 0; i < n_cases; i++)
            for (mt_dtype t = MT_F32; t <= MT_F16; t++)
                if (!list[i].composed && !strcmp(list[i].of.op, promised[p]))
                    add_call(&list[i], t, &results[p], &gradients[p]);
        assert_true(results[p] != MTI_HASH_BEGIN); /* it has a case */
    }
    bool right = is("the ops' results", mti_hash_bytes(MTI_HASH_BEGIN, results, sizeof results),
                    0x5074d54e5de9fc63);
    right &= is("the ops' gradients",
                mti_hash_bytes(MTI_HASH_BEGIN, gradients, N_GRADIENTS * sizeof *gradients),
                0xa181e96366be87d0);
    for (int p = 0; p < N_PROMISED && !right; p++) /* to compare with another machine's */
        print_error("%s: %016llx %016llx\n", promised[p], (unsigned long long)results[p],
                    (unsigned long long)gradients[p]);
    assert_true(right);
}

/* ---- draws, casts and codes ---- */

static void draws_casts_and_codes_have_the_same_bits_everywhere(void **state)
{
    (void)state;
    uint64_t draws = MTI_HASH_BEGIN, casts = MTI_HASH_BEGIN, codes = MTI_HASH_BEGIN;
    mt_seed(device, 5);
    for (mt_dtype t = MT_F32; t <= MT_F16; t++) {
        MT_AUTO mt_tensor *x = mt_uniform(device, t, MT_SHAPE(1031), 0, 1);
        draws = with_bits(draws, x);
    }
    MT_AUTO mt_tensor *mask = mt_dropout_mask(device, MT_SHAPE(1031), 0.1, 7, 0xfffffffe);
    draws = with_bits(draws, mask);
    /* Some become subnormal, infinite or 0. */
    double values[1031];
    uint64_t seed = 3;
    for (int i = 0; i < 1031; i++) values[i] = ldexp(mtt_draw(&seed, -1, 1), i % 48 - 24);
    MT_AUTO mt_tensor *x = mtt_from_doubles(device, MT_F64, MT_SHAPE(1031), values);
    for (mt_dtype t = 0; t < MT_DTYPE_COUNT; t++) {
        MT_AUTO mt_tensor *y = mt_cast(x, t);
        MT_AUTO mt_tensor *back = mt_cast(y, MT_F32);
        casts = with_bits(with_bits(casts, y), back);
    }
    for (int f = 0; f < 5; f++) {
        const mt_quant format = {(mt_quant_format)(f % 3), 0, f >= 3};
        MT_AUTO mt_tensor *y = mt_quantize(x, &format);
        MT_AUTO mt_tensor *back = mt_dequantize(y, &format, MT_F32, MT_SHAPE(1031));
        codes = with_bits(with_bits(codes, y), back);
    }
    bool right = is("the draws", draws, 0x246eb314305b9395);
    right &= is("the casts", casts, 0x4f44c87426730087);
    right &= is("the codes", codes, 0xefe61b511360d2cd);
    assert_true(right);
}

/* ---- a training ---- */

/* f64 holds all products and sums of two steps, so no order and no fused multiply-add matters. */
static void a_training_without_rounding_has_the_same_bits_everywhere(void **state)
{
    (void)state;
    double values[64];
    uint64_t seed = 9, digest = MTI_HASH_BEGIN;
    mt_module *fc = mt_linear_new(device, MT_F64, 8, 8, true, 0);
    mt_optimizer *sgd = mt_sgd_new(fc, &(mt_sgd_options){.lr = 0.25});
    for (int i = 0; i < 64; i++) values[i] = floor(mtt_draw(&seed, -8, 8)) / 8;
    MT_AUTO mt_tensor *x = mtt_from_doubles(device, MT_F64, MT_SHAPE(8, 8), values);
    mtt_ok(mt_copy_from_host(mt_module_param(fc, "weight"), values, sizeof values));
    for (int step = 0; step < 2; step++) {
        mt_tensor *y = mt_forward(fc, x);
        mt_set(&y, mt_relu(y));
        mt_set(&y, mt_mul(y, y));
        mt_set(&y, mt_mean_all(y));
        digest = with_bits(digest, y);
        mtt_ok(mt_backward(y));
        mtt_ok(mt_optimizer_step(sgd));
        mt_module_zero_grad(fc), mt_release(y);
    }
    digest = with_bits(digest, mt_module_param(fc, "weight"));
    mt_optimizer_free(sgd), mt_module_free(fc);
    assert_true(is("the training", digest, 0x277f5dacefd407fa));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        mtt_test(what_is_rounded_once_has_the_same_bits_everywhere),
        mtt_test(draws_casts_and_codes_have_the_same_bits_everywhere),
        mtt_test(a_training_without_rounding_has_the_same_bits_everywhere),
    };
    return cmocka_run_group_tests(tests, mtt_open_device, mtt_close_device);
}

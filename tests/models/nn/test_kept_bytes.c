/* What small whole models keep for backward, by the formulas of the large reference figures. */
#include "mtt.h"
#include "mtt_fixture.h"

static size_t saved_by(const mt_model_config *config, int64_t b, int64_t s)
{
    mt_module *m = mt_model_new(device, config);
    assert_non_null(m);
    MT_AUTO mt_tensor *x =
        mtt_made(mt_uniform(device, config->dtype, MT_SHAPE(b, s, config->hidden), -1, 1));
    mtt_ok(mt_set_requires_grad(x, true));
    mt_ledger *own = mt_ledger_new(device);
    assert_non_null(own);
    size_t before = mtt_allocated(device);
    mtt_ok(mt_ledger_begin(own));
    MT_AUTO mt_tensor *y = mtt_made(mt_forward(m, x));
    mtt_ok(mt_ledger_end(own));
    size_t bytes = mt_ledger_bytes(own);
    /* Growth = what the tape keeps, rounded to blocks, without x, which existed before, plus the
     * output, which no op saved. */
    assert_int_equal(mtt_allocated(device) - before, mt_ledger_allocated(own) -
                                                         mt_storage_of(x).allocated +
                                                         mt_storage_of(y).allocated);
    mt_ledger_free(own);
    mt_module_free(m);
    return bytes;
}

static void an_mlp_keeps_5bsd_with_relu_and_9bsd_with_gelu(void **state)
{
    (void)state;
    static const int64_t sizes[][3] = {{1, 1, 8}, {2, 5, 12}, {3, 7, 20}, {2, 64, 64}};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        int64_t b = sizes[i][0], s = sizes[i][1], d = sizes[i][2];
        mt_model_config c = {.kind = MT_MODEL_MLP, .hidden = d, .dtype = MT_BF16};
        assert_int_equal(saved_by(&c, b, s), b * s * d * 2 * 5);
        c.act = MT_ACT_GELU;
        assert_int_equal(saved_by(&c, b, s), b * s * d * 2 * 9);
        c.act = MT_ACT_RELU;
        c.inplace = true;
        assert_int_equal(saved_by(&c, b, s), b * s * d * 2 * 5);
    }
}

static void a_flash_block_keeps_10_or_14_bsd_one_per_norm_and_its_named_small_buffers(void **state)
{
    (void)state;
    static const int64_t sizes[][4] = {{1, 1, 8, 1}, {2, 5, 12, 3}, {3, 7, 20, 2}, {2, 64, 64, 2}};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        int64_t b = sizes[i][0], s = sizes[i][1], d = sizes[i][2], a = sizes[i][3];
        for (mt_norm_place norm = 0; norm < MT_NORM_PLACE_COUNT; norm++) {
            /* Two norms more keep what the sublayers give, and their statistics; two of one input
             * keep it once. */
            int64_t norms = norm == MT_NORM_AROUND ? 4 : 2;
            int64_t inputs = norm == MT_NORM_PARALLEL ? 1 : norms;
            mt_model_config c = {.kind = MT_MODEL_BLOCK,
                                 .hidden = d,
                                 .heads = a,
                                 .norm = norm,
                                 .causal = true,
                                 .dtype = MT_BF16};
            int64_t small = b * s * (norms * 2 * 4 + a * 4) + 16;
            assert_int_equal(saved_by(&c, b, s), b * s * d * 2 * (10 + inputs) + small);
            c.act = MT_ACT_GELU;
            assert_int_equal(saved_by(&c, b, s), b * s * d * 2 * (14 + inputs) + small);
        }
    }
}

/* Saved bytes of linear, activation, linear: f32, [8,16], width 64 in the middle. */
static size_t mlp_bytes(mt_act act, bool inplace)
{
    const mt_model_config config = {
        .kind = MT_MODEL_MLP, .hidden = 16, .act = act, .inplace = inplace};
    mt_module *model = mt_model_new(device, &config);
    mt_ledger *ledger = mt_ledger_new(device);
    MT_AUTO mt_tensor *x = mtt_made(mt_normal(device, MT_F32, MT_SHAPE(8, 16), 0, 1));
    mtt_ok(mt_ledger_begin(ledger));
    mt_tensor *y = mtt_made(mt_forward(model, x));
    mtt_ok(mt_ledger_end(ledger));
    size_t n_bytes = mt_ledger_bytes(ledger);
    mt_release(y);
    mt_ledger_free(ledger);
    mt_module_free(model);
    return n_bytes;
}

static void leaky_relu_in_place_saves_one_tensor_and_relu_none(void **state)
{
    (void)state;
    const size_t in = 8 * 16 * 4, middle = 8 * 64 * 4;
    assert_true(mlp_bytes(MT_ACT_LEAKY_RELU, false) == in + 2 * middle);
    assert_true(mlp_bytes(MT_ACT_LEAKY_RELU, true) == in + middle);
    assert_true(mlp_bytes(MT_ACT_RELU, false) == in + middle);
    assert_true(mlp_bytes(MT_ACT_RELU, true) == in + middle);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        mtt_test(an_mlp_keeps_5bsd_with_relu_and_9bsd_with_gelu),
        mtt_test(a_flash_block_keeps_10_or_14_bsd_one_per_norm_and_its_named_small_buffers),
        mtt_test(leaky_relu_in_place_saves_one_tensor_and_relu_none),
    };
    return cmocka_run_group_tests(tests, mtt_open_device, mtt_close_device);
}

/* One rank of several keeps the bytes of Korthikanti et al. 2022 and has the shares that the papers
 * on pipelines and ZeRO give; a single rank is the plain model. */
#include <string.h>
#include "measured_rank.h"

/* ---- table 2 of the paper ---- */

enum { NONE, TENSOR, SEQUENCE, SELECTIVE, BOTH, FULL, N_TECHNIQUES };

static mt_rank_report one_layer(const mt_model_config *c, int technique, int64_t b)
{
    static const char *const checkpoint[] = {"none",      "none",      "none",
                                             "selective", "selective", "full"};
    return mtt_measure_rank(c,
                            (mt_parallel){.tensor = technique == NONE ? 1 : 8,
                                          .sequence = technique == SEQUENCE || technique == BOTH,
                                          .pipeline = c->layers,
                                          .stage = 1,
                                          .microbatches = 1},
                            b, 2048, checkpoint[technique]);
}

static void a_layer_of_175b_keeps_the_published_bytes(void **state)
{
    (void)state;
    static const int64_t bytes[N_TECHNIQUES] = {2868903936, 578813952, 358612992,
                                                327155712,  106954752, 50331648};
    static const char *const texts[N_TECHNIQUES] = {"L(34bsh + 5abs^2)",
                                                    "L(10bsh + 24bsh/t + 5abs^2/t)",
                                                    "L(34bsh/t + 5abs^2/t)",
                                                    "L(10bsh + 24bsh/t)",
                                                    "L(34bsh/t)",
                                                    "L(2bsh)"};
    mt_model_config c = mtt_paper_model("megatron-175b");
    for (int k = 0; k < N_TECHNIQUES; k++) {
        mt_rank_report r = one_layer(&c, k, 1);
        assert_int_equal(r.formula, bytes[k]);
        assert_string_equal(r.text, texts[k]);
    }
}

/* The formulas again, for every model, plus the statistics of two norms. */
static void every_technique_keeps_its_formula_plus_named_rows(void **state)
{
    (void)state;
    static const struct {
        const char *preset;
        int64_t b;
    } models[] = {
        {"megatron-22b", 4}, {"megatron-175b", 1}, {"megatron-530b", 1}, {"megatron-1t", 1}};
    for (size_t i = 0; i < sizeof models / sizeof *models; i++) {
        mt_model_config c = mtt_paper_model(models[i].preset);
        int64_t s = 2048, t = 8, sb = s * models[i].b, sbh = sb * c.hidden;
        int64_t core = 5 * c.heads * s * sb;
        const int64_t expected[N_TECHNIQUES] = {
            34 * sbh + core,       10 * sbh + 24 * sbh / t + core / t,
            (34 * sbh + core) / t, 10 * sbh + 24 * sbh / t,
            34 * sbh / t,          2 * sbh};
        for (int k = 0; k < N_TECHNIQUES; k++) {
            mt_rank_report r = one_layer(&c, k, models[i].b);
            int64_t statistics = k == FULL ? 0 : 16 * sb / (k == SEQUENCE || k == BOTH ? t : 1);
            assert_int_equal(r.formula, expected[k]);
            assert_int_equal(r.saved, expected[k] + statistics);
            assert_int_equal(r.n_rows, k != FULL);
            if (r.n_rows) assert_int_equal(r.rows[0].bytes, statistics);
            assert_int_equal(r.unexplained, 0);
        }
    }
}

/* ---- a single rank ---- */

static mt_tensor *loss_of(mt_device *device, mt_module *m)
{
    int64_t ids[32];
    for (int i = 0; i < 32; i++) ids[i] = i * 7 % 48;
    mt_seed(device, 5);
    MT_AUTO mt_tensor *tokens = mt_from_data(device, MT_I64, MT_SHAPE(2, 16), ids, sizeof ids);
    mt_tensor *y = mt_forward(m, tokens);
    mt_set(&y, mt_cross_entropy(y, tokens, MT_IGNORE));
    return mtt_made(y);
}

static void a_single_rank_is_the_plain_model(void **state)
{
    (void)state;
    for (int i = 0; i < MTT_SMALL_MODELS; i++) {
        mt_device *device = mt_device_open("cpu");
        mt_module *m[2];
        mt_ledger *ledger[2];
        for (int j = 0; j < 2; j++) {
            mt_seed(device, 3);
            m[j] = j ? mt_rank_new(device, &mtt_small_models[i], NULL, 0)
                     : mt_model_new(device, &mtt_small_models[i]);
            ledger[j] = mt_ledger_new(device);
            if (!m[j]) fail_msg("%s", mt_last_error());
            mtt_ok(mt_ledger_begin(ledger[j]));
            mt_tensor *loss = loss_of(device, m[j]);
            mtt_ok(mt_ledger_end(ledger[j]));
            mtt_ok(mt_backward(loss));
            mt_release(loss);
        }
        assert_int_equal(mt_ledger_count(ledger[0]), mt_ledger_count(ledger[1]));
        for (size_t k = 0; k < mt_ledger_count(ledger[0]); k++) {
            mt_ledger_entry a, b;
            mtt_ok(mt_ledger_get(ledger[0], k, &a));
            mtt_ok(mt_ledger_get(ledger[1], k, &b));
            assert_int_equal(a.bytes, b.bytes);
            assert_string_equal(a.saver.module, b.saver.module);
            assert_string_equal(a.saver.op, b.saver.op);
            assert_string_equal(a.saver.argument, b.saver.argument);
        }
        const mt_named_tensor *list[2];
        size_t n[2];
        for (int j = 0; j < 2; j++) mtt_ok(mt_module_params(m[j], &list[j], &n[j]));
        assert_int_equal(n[0], n[1]);
        for (size_t k = 0; k < n[0]; k++) {
            /* a rank calls the bias of a bert's head otherwise */
            bool moved = !strcmp(list[0][k].name, "head.bias");
            const char *name = moved ? "decoder.bias" : list[0][k].name;
            size_t l = 0;
            while (l < n[1] && strcmp(name, list[1][l].name) != 0) l++;
            assert_true(l < n[1]);
            assert_true(mtt_same_bits(mt_grad(list[0][k].tensor), mt_grad(list[1][l].tensor)));
        }
        for (int j = 0; j < 2; j++) mt_module_free(m[j]), mt_ledger_free(ledger[j]);
        mt_device_release(device);
    }
}

/* ---- parameters ---- */

static void the_stages_of_a_pipeline_together_have_the_whole_model(void **state)
{
    (void)state;
    for (int i = 0; i < MTT_SMALL_MODELS; i++) {
        const mt_model_config *c = &mtt_small_models[i];
        bool tied = c->kind == MT_MODEL_LLAMA ? c->tied : !c->untied;
        uint64_t whole, sum = 0;
        mtt_ok(mt_model_config_params(c, &whole));
        assert_int_equal(mtt_measure_rank(c, (mt_parallel){0}, 1, 16, NULL).n_params, whole);
        for (int64_t stage = 0; stage < 2; stage++)
            sum += mtt_measure_rank(c, (mt_parallel){.pipeline = 2, .stage = stage}, 1, 16, NULL)
                       .n_params;
        /* a tied head on the last stage is a copy of the first stage's embedding */
        assert_int_equal(sum, whole + (tied ? 48 * 32 : 0));
    }
}

/* Matrices and column biases are divided; norms, row biases and positions are not. */
static void tensor_parallel_ranks_divide_the_matrices(void **state)
{
    (void)state;
    mt_model_config c = mtt_paper_model("megatron-175b");
    uint64_t h = 12288, l = 96, t = 8, v = 51200, s = 2048;
    mt_rank_report r = mtt_measure_rank(&c, (mt_parallel){.tensor = 8}, 1, 2048, "full");
    assert_int_equal(r.n_params,
                     l * (12 * h * h / t + 7 * h / t + 6 * h) + v * h / t + s * h + 2 * h);
}

static void an_indivisible_vocabulary_is_padded(void **state)
{
    (void)state;
    mt_model_config c = mtt_small_models[1];
    c.vocab = 46;
    mt_device *meta = mt_device_open("meta");
    mt_module *m = mt_rank_new(meta, &c, &(mt_parallel){.tensor = 4}, 0);
    mt_tensor *w = mt_module_param(mt_module_child(m, "wte"), "weight");
    assert_int_equal(mt_shape(w)[0], 12);
    assert_int_equal(mt_shape(mt_module_param(mt_module_child(m, "lm_head"), "weight"))[0], 12);
    mt_module_free(m);
    mt_device_release(meta);
}

/* ---- pipelines ---- */

static void a_stage_holds_one_microbatch_for_itself_and_each_later_stage(void **state)
{
    (void)state;
    const mt_model_config *c = &mtt_small_models[0];
    for (int64_t stage = 0; stage < 4; stage++)
        for (int64_t m = 1; m <= 6; m++) {
            mt_parallel split = {.pipeline = 4, .stage = stage, .microbatches = m};
            mt_rank_report r = mtt_measure_rank(c, split, 2, 16, NULL);
            assert_int_equal(r.in_flight, 4 - stage < m ? 4 - stage : m);
            split.microbatches = 1;
            assert_int_equal(r.saved,
                             (size_t)r.in_flight * mtt_measure_rank(c, split, 2, 16, NULL).saved);
            assert_int_equal(r.unexplained, 0);
        }
}

/* p m + p - 1 parts instead of p m, which is the paper's factor 1 + (p-1)/(p m). */
static void interleaving_keeps_more_by_the_papers_factor(void **state)
{
    (void)state;
    mt_model_config c = mtt_paper_model("megatron-175b");
    mt_parallel plain = {.tensor = 8, .pipeline = 8, .microbatches = 64}, mixed = plain;
    mixed.interleave = 3;
    for (int sequence = 0; sequence < 2; sequence++) {
        plain.sequence = mixed.sequence = sequence;
        mt_rank_report a = mtt_measure_rank(&c, plain, 1, 2048, "selective");
        mt_rank_report b = mtt_measure_rank(&c, mixed, 1, 2048, "selective");
        assert_int_equal(a.in_flight, 8);
        assert_int_equal(b.in_flight, 8 * 3 + 8 - 1);
        assert_int_equal(a.layers, b.layers);
        assert_int_equal(a.n_params, b.n_params);
        assert_int_equal(a.unexplained, 0);
        assert_int_equal(b.unexplained, 0);
        int64_t sbh = 2048 * 12288, layer = sequence ? 34 * sbh / 8 : 13 * sbh;
        int64_t mask = sequence ? sbh / 8 : sbh; /* of the embedding's dropout */
        assert_int_equal(a.formula, 8 * 12 * layer + 8 * mask);
        assert_int_equal(b.formula, 31 * 4 * layer + 15 * mask); /* part 0: 8, and 7 in advance */
    }
}

static void microbatches_beyond_the_first_period_change_nothing(void **state)
{
    (void)state;
    for (int i = 0; i < MTT_SMALL_MODELS; i++)
        for (int64_t v = 1; v <= 2; v++) {
            mt_parallel few = {.pipeline = 2, .interleave = v, .microbatches = 12}, many = few;
            many.microbatches = 200;
            mt_rank_report a = mtt_measure_rank(&mtt_small_models[i], few, 2, 16, NULL);
            mt_rank_report b = mtt_measure_rank(&mtt_small_models[i], many, 2, 16, NULL);
            assert_memory_equal(&a, &b, sizeof a);
        }
}

/* ---- ZeRO ---- */

static void zero_divides_what_its_stage_divides(void **state)
{
    (void)state;
    for (int i = 0; i < MTT_SMALL_MODELS; i++) {
        mt_model_config c = mtt_small_models[i];
        c.dtype = MT_BF16;
        for (int zero = 0; zero <= 3; zero++) {
            mt_parallel split = {.tensor = 2, .sequence = i & 1, .data = 4, .zero = zero};
            mt_rank_report r = mtt_measure_rank(&c, split, 2, 16, "none");
            size_t n = r.n_params; /* every parameter has a multiple of 4 elements */
            assert_int_equal(r.param_bytes, 2 * n / (zero > 2 ? 4 : 1));
            assert_int_equal(r.grad_bytes, 2 * n / (zero > 1 ? 4 : 1));
            assert_int_equal(r.optimizer_bytes, 12 * n / (zero > 0 ? 4 : 1));
            assert_int_equal(r.unexplained, 0);
        }
    }
}

/* Rajbhandari et al. 2020, figure 1: 120, 31.4, 16.6 and 1.9 GB for 7.5 billion parameters on 64
 * ranks. Here a GPT of about that size, scaled to 7.5 billion, in tenths of a GB. */
static void a_model_of_7_5_billion_needs_what_the_zero_paper_says(void **state)
{
    (void)state;
    static const int64_t published[] = {1200, 314, 166, 19};
    mt_model_config c = {.hidden = 4096,
                         .heads = 32,
                         .layers = 36,
                         .vocab = 51200,
                         .context = 512,
                         .act = MT_ACT_GELU,
                         .dtype = MT_BF16};
    for (int zero = 0; zero <= 3; zero++) {
        mt_rank_report r =
            mtt_measure_rank(&c, (mt_parallel){.data = 64, .zero = zero}, 1, 512, "full");
        double bytes = (double)(r.param_bytes + r.grad_bytes + r.optimizer_bytes);
        assert_int_equal((int64_t)(bytes / (double)r.n_params * 75 + 0.5), published[zero]);
    }
}

static void zero_does_not_change_what_is_kept_for_backward(void **state)
{
    (void)state;
    mt_model_config c = mtt_small_models[0];
    c.dtype = MT_BF16;
    mt_parallel split = {.tensor = 2, .data = 3}; /* pieces are padded */
    size_t saved = mtt_measure_rank(&c, split, 2, 16, "none").saved;
    for (split.zero = 1; split.zero <= 3; split.zero++)
        assert_int_equal(mtt_measure_rank(&c, split, 2, 16, "none").saved, saved);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_layer_of_175b_keeps_the_published_bytes),
        cmocka_unit_test(every_technique_keeps_its_formula_plus_named_rows),
        cmocka_unit_test(a_single_rank_is_the_plain_model),
        cmocka_unit_test(the_stages_of_a_pipeline_together_have_the_whole_model),
        cmocka_unit_test(tensor_parallel_ranks_divide_the_matrices),
        cmocka_unit_test(an_indivisible_vocabulary_is_padded),
        cmocka_unit_test(a_stage_holds_one_microbatch_for_itself_and_each_later_stage),
        cmocka_unit_test(interleaving_keeps_more_by_the_papers_factor),
        cmocka_unit_test(microbatches_beyond_the_first_period_change_nothing),
        cmocka_unit_test(zero_divides_what_its_stage_divides),
        cmocka_unit_test(a_model_of_7_5_billion_needs_what_the_zero_paper_says),
        cmocka_unit_test(zero_does_not_change_what_is_kept_for_backward),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

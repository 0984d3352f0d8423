/* An optimizer that steps in backward, over a stage: every combination of a division with what a
 * step does beside it either ends with the weights of the plain step, or is refused by every rank
 * while the weights are what they were. */
#include <stdlib.h>
#include <string.h>
#include "as_ranks.h"

enum { STEPS = 2 };

typedef struct attempt {
    const mt_model_config *config;
    mt_parallel parallel;
    const mt_lora_options *lora;
    double max_norm;
    bool scaled;
    int64_t trained, refused; /* ranks */
} attempt;

/* What one rank has. */
typedef struct rank {
    const attempt *a;
    mt_parallel h;
    mt_device *device;
    mt_stage *stage;
    mt_optimizer *optimizer;
    mt_scaler *scaler;
} rank;

static void open_rank(rank *r, bool in_backward)
{
    const attempt *a = r->a;
    const mt_scaler_options options = {.scale = 1024, .fixed = true};
    r->device = mtt_device();
    MTT_NEED(r->device && mt_device_set_threads(r->device, 1) == MT_OK);
    mt_seed(r->device, 5);
    r->stage = a->lora ? mt_stage_new_lora(r->device, a->config, &r->h, a->lora)
                       : mt_stage_new(r->device, a->config, &r->h);
    MTT_NEED(r->stage);
    r->optimizer = mt_adamw_new(mt_stage_stepped(r->stage), &mtt_adamw);
    MTT_NEED(r->optimizer);
    MTT_NEED(!in_backward || mt_optimizer_step_in_backward(r->optimizer, true) == MT_OK);
    r->scaler = a->scaled ? mt_scaler_new(&options) : NULL;
    MTT_NEED(mt_stage_set_scaler(r->stage, r->scaler) == MT_OK);
}

static void close_rank(rank *r)
{
    mt_scaler_free(r->scaler);
    mt_optimizer_free(r->optimizer);
    mt_stage_free(r->stage);
    mt_device_release(r->device);
}

/* The weights of all parts; the caller frees them. */
static double *weights(const rank *r, size_t *n)
{
    double *all = NULL;
    *n = 0;
    for (int64_t i = 0; mt_stage_part(r->stage, i); i++) {
        const mt_named_tensor *list;
        size_t n_list;
        MTT_NEED(mt_module_params(mt_stage_part(r->stage, i), &list, &n_list) == MT_OK);
        for (size_t k = 0; k < n_list; k++) {
            double *values = mtt_doubles(list[k].tensor);
            size_t more = (size_t)mt_numel(list[k].tensor);
            all = realloc(all, (*n + more) * sizeof *all);
            MTT_NEED(all && values);
            memcpy(all + *n, values, more * sizeof *all);
            free(values);
            *n += more;
        }
    }
    return all;
}

static bool same_weights(const rank *r, const double *expected, size_t n)
{
    size_t n_now;
    double *now = weights(r, &n_now);
    bool same = n_now == n && !memcmp(now, expected, n * sizeof *now);
    free(now);
    return same;
}

/* Random tokens are the same for ranks that share sequences, and others for each microbatch. */
static mt_tensor *ids(const rank *r, int step, int64_t micro)
{
    enum { LENGTH = 4 };
    int64_t values[2 * LENGTH];
    uint64_t seed = (uint64_t)((step * 8 + micro) * 8 + r->h.data_rank * 2 + r->h.context_rank + 1);
    for (int i = 0; i < 2 * LENGTH; i++) values[i] = (int64_t)mtt_draw(&seed, 0, 60);
    return mt_from_data(r->device, MT_I64, MT_SHAPE(2, LENGTH), values, sizeof values);
}

static mt_status step(const rank *r, int nth)
{
    mt_tensor *x[4] = {NULL};
    const int64_t p = r->h.pipeline, n = r->h.microbatches ? r->h.microbatches : p ? p : 1;
    for (int64_t i = 0; i < n; i++) MTT_NEED((x[i] = ids(r, nth, i)));
    mt_status status = mt_stage_backward(r->stage, x, x, NULL);
    if (status == MT_OK) status = mt_stage_step(r->stage, r->optimizer, r->a->max_norm, NULL);
    for (int64_t i = 0; i < n; i++) mt_release(x[i]);
    return status;
}

static void try_rank(mt_comm *world, void *user)
{
    attempt *a = user;
    rank r = {.a = a, .h = a->parallel};
    MTT_NEED(mt_parallel_place(&r.h, world) == MT_OK);
    size_t n;
    open_rank(&r, false);
    double *first = weights(&r, &n);
    for (int i = 0; i < STEPS; i++) MTT_NEED(step(&r, i) == MT_OK);
    double *trained = weights(&r, &n);
    MTT_NEED(memcmp(first, trained, n * sizeof *first) != 0);
    close_rank(&r);
    open_rank(&r, true);
    mt_status status = MT_OK;
    for (int i = 0; status == MT_OK && i < STEPS; i++) status = step(&r, i);
    MTT_NEED(same_weights(&r, status == MT_OK ? trained : first, n));
    if (status != MT_OK)
        mtt_failed(MT_ERR_STATE, "stage_backward", "steps in backward", "mt_stage_step");
    __atomic_fetch_add(status == MT_OK ? &a->trained : &a->refused, 1, __ATOMIC_SEQ_CST);
    close_rank(&r);
    free(first);
    free(trained);
    mt_parallel_close(&r.h);
}

static const mt_parallel splits[] = {
    {0},
    {.microbatches = 2},
    {.data = 2},
    {.data = 2, .reduce = MT_REDUCE_AFTER},
    {.data = 2, .zero = 1},
    {.data = 2, .zero = 1, .reduce = MT_REDUCE_AFTER},
    {.data = 2, .zero = 2},
    {.data = 2, .zero = 3},
    {.data = 2, .zero = 3, .fsdp = MT_FSDP_AHEAD},
    {.context = 2},
    {.context = 2, .reduce = MT_REDUCE_AFTER},
    {.tensor = 2},
    {.tensor = 2, .sequence = true},
    {.pipeline = 2, .microbatches = 1},
    {.pipeline = 2},
    {.pipeline = 2, .interleave = 2, .microbatches = 2},
    {.tensor = 2, .pipeline = 2, .microbatches = 1},
    {.tensor = 2, .data = 2, .reduce = MT_REDUCE_AFTER},
};
enum { SPLITS = sizeof splits / sizeof *splits };

/* Whether the ranks trained; else all have refused. */
static bool try(attempt *a)
{
    const int64_t ranks = mtt_count_ranks(&a->parallel);
    mtt_as_ranks(ranks, try_rank, a);
    assert_true(a->trained == ranks || a->refused == ranks);
    return a->trained == ranks;
}

static void it_has_the_plain_steps_weights_or_is_refused(void **state)
{
    (void)state;
    int n_trained = 0;
    for (int model = 0; model < MTT_MODELS; model++)
        for (int k = 0; k < SPLITS; k++) {
            mt_model_config c = mtt_models[model];
            c.layers = 4;
            attempt a = {.config = &c, .parallel = splits[k]};
            bool trained = try(&a);
            n_trained += trained;
            /* What is always right: one rank; matrices that are cut, and nothing else. */
            if (k == 0 || (k == 11 && model != MTT_LLAMA)) assert_true(trained);
        }
    assert_true(n_trained >= 2 * MTT_MODELS + 2);
}

static void what_needs_all_gradients_is_refused(void **state)
{
    (void)state;
    for (int model = 0; model < MTT_MODELS; model++)
        for (int k = 0; k < SPLITS; k += model % 2 ? 1 : 3) {
            mt_model_config c = mtt_models[model];
            c.layers = 4;
            attempt scaled = {.config = &c, .parallel = splits[k], .scaled = true};
            assert_false(try(&scaled));
        }
}

static void a_norm_is_not_clipped_in_silence(void **state)
{
    (void)state;
    mt_device *device = mtt_device();
    mt_stage *stage = mt_stage_new(device, &mtt_models[MTT_GPT], NULL);
    mt_optimizer *o = mt_adamw_new(mt_stage_stepped(stage), &mtt_adamw);
    MT_AUTO mt_tensor *x = mt_zeros(device, MT_I64, MT_SHAPE(1, 4));
    mtt_ok(mt_optimizer_step_in_backward(o, true));
    mtt_ok(mt_stage_backward(stage, &x, &x, NULL));
    mtt_ok(mt_stage_step(stage, o, 0, NULL));
    mtt_ok(mt_stage_backward(stage, &x, &x, NULL));
    assert_int_equal(mt_stage_step(stage, o, 1, NULL), MT_ERR_STATE);
    mtt_failed(MT_ERR_STATE, "stage_step", "max_norm is 1", "steps in backward");
    mt_optimizer_free(o);
    mt_stage_free(stage);
    mt_device_release(device);
}

/* Adapters: beside some rows of a linear each tensor rank has a part of A's gradient. */
static void adapters_too(void **state)
{
    (void)state;
    static const char *const targets[] = {"*.qkv", "*.proj"};
    const mt_lora_options lora = {.rank = 2, .alpha = 4, .targets = targets, .n_targets = 2};
    for (int k = 0; k < SPLITS; k++) {
        mt_model_config c = mtt_models[MTT_GPT_UNTIED];
        c.layers = 4;
        attempt a = {.config = &c, .parallel = splits[k], .lora = &lora};
        bool trained = try(&a);
        if (k == 0) assert_true(trained);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(it_has_the_plain_steps_weights_or_is_refused),
        cmocka_unit_test(what_needs_all_gradients_is_refused),
        cmocka_unit_test(a_norm_is_not_clipped_in_silence),
        cmocka_unit_test(adapters_too),
    };
    return cmocka_run_group_tests_name("stages in backward", tests, NULL, NULL);
}

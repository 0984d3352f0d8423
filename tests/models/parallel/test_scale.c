/* Ranks with a loss scale: the same steps, but for those of which one rank has a gradient that is
 * not finite; those all ranks skip. */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "as_ranks.h"

static const mt_parallel splits[] = {
    {.data = 2, .microbatches = 2},
    {.tensor = 2},
    {.tensor = 2, .sequence = true, .data = 2, .zero = 1},
    {.data = 2, .zero = 2},
    {.data = 2, .zero = 3},
    {.context = 2},
    {.pipeline = 2, .microbatches = 2},
    {.pipeline = 2, .interleave = 2, .data = 2, .zero = 1, .microbatches = 2}};
enum { SPLITS = sizeof splits / sizeof *splits };

static mt_model_config model(int i)
{
    mt_model_config c = mtt_models[i];
    c.layers = 4;
    return c;
}

/* A power of two changes no bit of what is added, multiplied and divided out. */
static void a_power_of_two_gives_the_bits_of_no_scale(void **state)
{
    (void)state;
    for (int i = 0; i < MTT_MODELS; i++)
        for (int k = 0; k < SPLITS; k++) {
            const mt_model_config c = model(i);
            mtt_training plain = {.config = &c, .parallel = splits[k], .max_norm = 0.5};
            mtt_training scaled = plain;
            scaled.scale = 1024;
            mtt_train(&plain);
            mtt_train(&scaled);
            assert_memory_equal(plain.losses, scaled.losses, sizeof plain.losses);
        }
}

/* ---- steps that are skipped ---- */

typedef struct skipping {
    mt_model_config config;
    mt_parallel parallel;
    int64_t bad; /* the rank with a gradient that is not finite */
} skipping;

/* Puts NaN in one gradient of this rank; false if it has none. */
static bool spoil(mt_module *m)
{
    const mt_named_tensor *list;
    size_t n;
    MTT_NEED(mt_module_params(m, &list, &n) == MT_OK);
    for (size_t i = 0; i < n; i++) {
        mt_tensor *g = mt_grad(list[i].tensor);
        if (!g) continue;
        MT_AUTO mt_tensor *nan = mt_mul_scalar(g, NAN);
        return nan && mt_set_grad(list[i].tensor, nan) == MT_OK;
    }
    return false;
}

/* Of the first parameter that this rank steps. */
static double *values(const mt_stage *stage, int64_t *n)
{
    const mt_named_tensor *list;
    size_t count;
    MTT_NEED(mt_module_params(mt_stage_stepped(stage), &list, &count) == MT_OK && count > 0);
    *n = mt_numel(list[0].tensor);
    return mtt_doubles(list[0].tensor);
}

static void step(mt_stage *stage, mt_optimizer *optimizer, mt_device *device, bool bad)
{
    const int64_t length = MTT_SEQ / 2;
    mt_tensor *x[] = {mt_zeros(device, MT_I64, MT_SHAPE(2, length)), NULL};
    x[1] = x[0];
    MTT_NEED(mt_stage_backward(stage, x, x, NULL) == MT_OK);
    if (bad) MTT_NEED(spoil(mt_stage_part(stage, 0)) || spoil(mt_stage_stepped(stage)));
    MTT_NEED(mt_stage_step(stage, optimizer, 1, NULL) == MT_OK);
    mt_release(x[0]);
}

static void skip_rank(mt_comm *world, void *user)
{
    const skipping *s = user;
    mt_parallel h = s->parallel;
    MTT_NEED(mt_parallel_place(&h, world) == MT_OK);
    mt_device *device = mt_device_open("cpu");
    mt_stage *stage = mt_stage_new(device, &s->config, &h);
    mt_optimizer *optimizer = mt_adamw_new(mt_stage_stepped(stage), &mtt_adamw);
    mt_scaler *scaler = mt_scaler_new(NULL);
    MTT_NEED(optimizer && mt_stage_set_scaler(stage, scaler) == MT_OK);
    int64_t n, rank = mt_comm_group(world).rank;
    for (int k = 0; k < 3; k++) { /* the one between is skipped */
        double *before = values(stage, &n);
        step(stage, optimizer, device, k == 1 && rank == s->bad);
        double *after = values(stage, &n);
        MTT_NEED(!memcmp(before, after, (size_t)n * sizeof *after) == (k == 1));
        free(before), free(after);
    }
    const mt_scaler_state state = mt_scaler_get(scaler);
    MTT_NEED(state.steps == 2 && state.skipped == 1 && state.scale == 32768);
    mt_scaler_free(scaler);
    mt_optimizer_free(optimizer);
    mt_stage_free(stage);
    mt_device_release(device);
    mt_parallel_close(&h);
}

static void what_one_rank_cannot_step_all_skip(void **state)
{
    (void)state;
    for (int k = 0; k < SPLITS; k++) {
        skipping s = {model(MTT_GPT), splits[k], 0};
        int64_t ranks = mtt_count_ranks(&s.parallel);
        for (; s.bad < ranks; s.bad++) mtt_as_ranks(ranks, skip_rank, &s);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_one_rank_cannot_step_all_skip),
        cmocka_unit_test(a_power_of_two_gives_the_bits_of_no_scale),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

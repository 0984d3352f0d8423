/* ranks.c: `memtape plan` of whole models and of ranks of them: formulas and measurements agree,
 * for every configuration in tests/models/nn/configs and for random models. */
#include <dirent.h>
#include <stdio.h>
#include <string.h>
#include "measure/costs.h"
#include "models.h"
#include "nn/model.h"

static const char *configs;

/* The first is no division: one process. */
static const mt_parallel divisions[] = {
    {0},
    {.data = 2},
    {.data = 2, .zero = 3},
    {.pipeline = 2},
    {.pipeline = 2, .stage = 1},
    {.pipeline = 2, .stage = 1, .first_layers = 1},
    {.pipeline = 2, .last_layers = 1},
    {.pipeline = 2, .interleave = 2, .stage = 1, .microbatches = 4},
    {.tensor = 2},
    {.tensor = 2, .sequence = true, .pipeline = 2},
    {.context = 2, .context_rank = 1},
    {.data = 2, .expert = 2},
    {.tensor = 2, .sequence = true, .data = 2, .expert = 2},
    {.tensor = 2, .sequence = true, .expert_tensor = 1, .expert = 2}};
enum { DIVISIONS = sizeof divisions / sizeof *divisions };

static void assert_agrees(const mti_plan_result *p, int division)
{
    for (int i = 0; i < p->n_items; i++)
        if (p->items[i].unexplained)
            fail_msg("%s, division %d: %s are %lld off", p->workload->name, division,
                     p->items[i].formula.name, (long long)p->items[i].unexplained);
}

/* Whether the model can be divided so; if it can, formulas and measurements agree. */
static bool plan(const char *name, const mt_model_config *c, int64_t batch, int64_t seq, int nth,
                 const mti_memory_options *memory)
{
    const mti_plan_options options = {.kv = -1};
    const mti_workload w = {.name = name,
                            .config = *c,
                            .batch = batch,
                            .seq = seq,
                            .optimizer = MTI_OPT_ADAMW,
                            .ranked = nth > 0,
                            .memory = nth && memory ? *memory : (mti_memory_options){0},
                            .parallel = divisions[nth],
                            .device = {.kind = "meta"}};
    mti_plan_result p = {0};
    if (w.ranked && mt_parallel_check(&w.parallel, c) != MT_OK) {
        mt_clear_error();
        return false;
    }
    if (!mti_plan_make(&p, &w, &options))
        fail_msg("%s, division %d: %s", name, nth, mt_last_error());
    assert_agrees(&p, nth);
    mti_plan_free(&p);
    return true;
}

static void every_published_model_agrees_whole_and_divided(void **state)
{
    (void)state;
    int n_models = 0, n_ranks = 0, n_mixtures = 0;
    DIR *folder = opendir(configs);
    assert_non_null(folder);
    for (struct dirent *e; (e = readdir(folder));) {
        char path[512];
        mt_model_config c;
        if (*e->d_name == '.') continue;
        snprintf(path, sizeof path, "%s/%s", configs, e->d_name);
        mtt_ok(mt_model_config_from_hf_file(path, &c, NULL, 0));
        for (int i = 0; i < DIVISIONS; i++) n_ranks += plan(e->d_name, &c, 1, 16, i, NULL);
        n_models++;
        n_mixtures += c.experts > 0;
    }
    closedir(folder);
    assert_true(n_models >= 23);
    assert_true(n_models - n_mixtures >= 23);
    assert_true(n_ranks >= n_models * (DIVISIONS - 5)); /* three divide experts */
}

static void any_model_agrees_whole_and_divided(void **state)
{
    (void)state;
    uint64_t seed = 25;
    int n_ranks = 0;
    for (int i = 0; i < (mtt_long() ? 1000 : 100); i++) {
        char name[24];
        snprintf(name, sizeof name, "random model %d", i);
        mt_model_config c = mtt_draw_model(&seed);
        int64_t batch = mtt_pick(&seed, 1, 4), seq = 2 * mtt_pick(&seed, 1, 16);
        if (seq <= 2 * c.mtp_layers) seq = 6; /* of a shard more than it predicts ahead */
        mti_memory_options memory = {0};
        if (mtt_toss(&seed) && !c.inplace) memory.checkpoint = "ops";
        for (int k = 0; k < DIVISIONS; k++) n_ranks += plan(name, &c, batch, seq, k, &memory);
    }
    assert_true(n_ranks >= 300);
}

/* A rank's one head is no copy of itself; a position of each rank's is gathered to two. */
static void copies_for_each_head_are_those_of_the_rank(void **state)
{
    (void)state;
    mt_model_config c;
    mtt_ok(mt_model_preset("deepseek-tiny", &c));
    c.heads = c.kv_heads = 2, c.hidden = 64, c.ops.kv_groups = MT_KV_REPEATED;
    c.attention = MT_ATTENTION_FLASH;
    for (int i = 0; i < DIVISIONS; i++) plan("two heads of latents", &c, 3, 2, i, NULL);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_published_model_agrees_whole_and_divided),
        cmocka_unit_test(any_model_agrees_whole_and_divided),
        cmocka_unit_test(copies_for_each_head_are_those_of_the_rank),
    };
    assert_int_equal(argc, 2);
    configs = argv[1];
    return cmocka_run_group_tests_name("plan ranks", tests, NULL, NULL);
}

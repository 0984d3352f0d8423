/* The search finds what measuring every set-up finds, and rules out only what does not fit or is
 * slower than another that fits. */
#include <string.h>
#include "base/base.h"
#include "fit/search.h"
#include "mtt.h"

static const mt_model_config model = {.kind = MT_MODEL_LLAMA,
                                      .hidden = 64,
                                      .heads = 4,
                                      .kv_heads = 2,
                                      .layers = 4,
                                      .vocab = 128,
                                      .context = 64,
                                      .dtype = MT_BF16};

/* Where waiting hides behind computing, two set-ups take the same time, but for a sum's rounding.
 */
#define ROUNDING 1e-12

/* Two GPUs in a node, so that some groups span nodes. */
static mt_gpu small_gpu(size_t memory)
{
    return (mt_gpu){.name = "small",
                    .memory = memory,
                    .flops = 1e12,
                    .bandwidth = 1e10,
                    .link = 1e9,
                    .network = 1e8,
                    .host = 1e9,
                    .in_a_node = 2};
}

static mti_workload workload_of(int64_t hidden)
{
    mt_model_config config = model;
    mti_workload w = {.name = "small",
                      .seq = 64,
                      .optimizer = MTI_OPT_ADAMW,
                      .memory = {.master = true},
                      .device.kind = "meta"};
    config.hidden = hidden;
    mtt_ok(mt_model_config_resolve(&config, &w.config));
    return w;
}

static mti_workload workload(void) { return workload_of(model.hidden); }

static const mt_fit_setup *find(const mt_fit_result *r, const mt_fit_setup *s)
{
    for (size_t i = 0; i < r->n; i++) {
        const mt_fit_setup *t = &r->setups[i];
        mt_parallel a = s->parallel, b = t->parallel;
        a.stage = b.stage = 0;
        if (t->microbatch == s->microbatch && a.tensor == b.tensor && a.pipeline == b.pipeline &&
            a.interleave == b.interleave && a.context == b.context && a.data == b.data &&
            a.expert == b.expert && a.zero == b.zero && !strcmp(t->checkpoint, s->checkpoint) &&
            !strcmp(t->offload, s->offload))
            return t;
    }
    return NULL;
}

typedef struct brute {
    double best;
    size_t least[2];                         /* reserved, of two kinds: the nearest, another */
    int64_t n, n_fitting, missing, n_beyond; /* beyond: slower than as many kinds as are shown */
} brute;

/* Measures one; if the search did not, there was a reason. */
static void try(const mti_fit_task *task, const mt_fit_result *r, const mti_policy *policy,
                mt_fit_setup s, brute *b)
{
    mti_fit_measured seen;
    assert_true(mti_fit_measure(task, &s, &seen));
    const mt_fit_setup *found = find(r, &s);
    /* Of one that does not fit, one stage may be enough. */
    const double at_least = mti_fit_least_time(task, &s.parallel, policy->flops, 0);
    if (s.fits && s.time.total < at_least) fail_msg("%g s, at least %g", s.time.total, at_least);
    assert_true(policy->flops >= task->model_flops);
    size_t *least = &b->least[!mti_fit_alike(&s, &r->setups[0])];
    if (!*least || s.reserved < *least) *least = s.reserved;
    b->n++;
    b->missing += !found;
    if (found) {
        assert_int_equal(found->fits, s.fits);
        assert_int_equal(found->peak, s.peak);
        assert_int_equal(found->reserved, s.reserved);
        assert_true(found->time.total == s.time.total);
    }
    if (!s.fits) return;
    b->n_fitting++;
    if (b->best == 0 || s.time.total < b->best) b->best = s.time.total;
    if (found) return;
    bool slower = false; /* than one with the same layout, or than as many kinds as are shown */
    mti_fit_fastest faster = {0};
    for (size_t i = 0; i < r->n_fitting; i++) {
        const mt_parallel *x = &r->setups[i].parallel, *y = &s.parallel;
        if (r->setups[i].time.total < s.time.total) mti_fit_note(&faster, &r->setups[i]);
        slower = slower ||
                 (x->tensor == y->tensor && x->pipeline == y->pipeline &&
                  x->interleave == y->interleave && x->expert == y->expert && x->zero == y->zero &&
                  r->setups[i].time.total <= s.time.total * (1 + ROUNDING));
    }
    b->n_beyond += !slower;
    if (!slower && faster.n < MTI_FIT_FASTEST)
        fail_msg("tp %d pp %d v %d cp %d dp %d ep %d zero %d %s %s %d x %d fits in %g s and was "
                 "ruled out",
                 (int)s.parallel.tensor, (int)s.parallel.pipeline, (int)s.parallel.interleave,
                 (int)s.parallel.context, (int)s.parallel.data, (int)s.parallel.expert,
                 (int)s.parallel.zero, s.checkpoint, s.offload, (int)s.parallel.microbatches,
                 (int)s.microbatch, s.time.total);
}

#define MOST_PIECES 8

static void measure_all(const mti_fit_task *task, const mt_fit_result *r, brute *b)
{
    mti_layouts layouts = {0};
    assert_true(mti_layouts_make(&layouts, task));
    for (size_t k = 0; k < MOST_PIECES * layouts.n; k++) {
        mt_parallel h;
        int64_t c = (int64_t)(k % MOST_PIECES) + 1;
        if (c > mti_layout_most_cut(&layouts.at[k / MOST_PIECES]) ||
            !mti_layout_cut(task, &layouts.at[k / MOST_PIECES], c, &h))
            continue;
        int64_t share = task->batch / h.data;
        for (int64_t m = 1; m <= share; m++) {
            if (share % m || (h.interleave > 1 && share / m % h.pipeline)) continue;
            h.microbatches = share / m;
            for (int p = 0; p < task->n_policies; p++) {
                const mti_policy *policy = &task->policies[p];
                try(task, r, policy,
                    (mt_fit_setup){.parallel = h,
                                   .checkpoint = policy->checkpoint,
                                   .offload = policy->offload ? "cpu" : "none",
                                   .microbatch = m},
                    b);
            }
        }
    }
    mti_free(layouts.at);
}

/* Both kinds that an answer shows are the nearest. */
static void check_nearest(const mt_fit_result *r, const brute *b)
{
    size_t i = 1;
    while (i < r->n && mti_fit_alike(&r->setups[i], &r->setups[0])) i++;
    assert_true(i < r->n);
    assert_int_equal(r->setups[0].reserved, b->least[0]);
    assert_true(b->least[0] <= b->least[1]);
    assert_int_equal(r->setups[i].reserved, b->least[1]);
}

static void the_search_finds_the_best_of_all(void **state)
{
    /* Slow GPUs: most of a step is products, so that much takes longer than the bound. */
    static const struct {
        size_t memory;
        int64_t gpus;
        double flops;
        int64_t experts, rank;
        unsigned fsdp;
        int64_t hidden;
    } cases[] = {{600 << 10, 4, 1e12},
                 {20 << 20, 4, 1e12, .hidden = 1024}, /* the first division is not the nearest */
                 {2 << 20, 4, 1e12},
                 {1 << 30, 4, 1e12},
                 {2 << 20, 8, 1e9},
                 {4 << 20, 4, 1e12, .experts = 4},
                 {3 << 20, 4, 1e12, .experts = 4, .rank = 2},
                 {3 << 20, 4, 1e12, .experts = 4, .fsdp = MT_FSDP_PYTORCH},
                 {6 << 20, 4, 1e12},
                 {4 << 20, 4, 1e12}};
    const size_t n_cases = sizeof cases / sizeof *cases - (mtt_long() ? 0 : 4);
    size_t mixed = 0;
    int64_t beyond = 0;
    (void)state;
    for (size_t i = 0; i < n_cases; i++) {
        mt_gpu gpu = small_gpu(cases[i].memory);
        gpu.flops = cases[i].flops;
        mti_workload w = workload_of(cases[i].hidden ? cases[i].hidden : model.hidden);
        w.config.experts = cases[i].experts, w.config.experts_per_token = cases[i].experts / 2;
        w.memory.lora_rank = cases[i].rank, w.memory.master = !cases[i].rank && !cases[i].fsdp;
        w.parallel.fsdp = cases[i].fsdp;
        const int64_t gpus = cases[i].gpus,
                      batch = mtt_long() && gpus == 4 && !cases[i].experts ? 16 : gpus;
        const mt_fit_options o = {.gpu = &gpu, .gpus = gpus, .batch = batch, .threads = 2};
        mt_fit_result r;
        if (!mti_fit_run(&w, &o, false, 0, NULL, &r)) fail_msg("case %zu: %s", i, mt_last_error());
        mti_fit_task task = {.workload = &w,
                             .options = &o,
                             .gpu = gpu,
                             .gpus = gpus,
                             .batch = batch,
                             .seq = 64,
                             .capacity = gpu.memory,
                             .utilisation = 1,
                             .nearest = r.n_fitting == 0};
        assert_true(mti_fit_measure_model(&task));
        brute b = {0};
        measure_all(&task, &r, &b);
        assert_int_equal(b.n, (int64_t)r.n + r.n_larger + r.n_states + r.n_slower);
        assert_int_equal(b.missing, r.n_larger + r.n_states + r.n_slower);
        assert_true((b.n_fitting > 0) == (r.n_fitting > 0));
        if (r.n_fitting) {
            assert_true(r.setups[0].time.total <= b.best * (1 + ROUNDING));
            assert_true(b.best <= r.setups[0].time.total);
        }
        if (!r.n_fitting) check_nearest(&r, &b);
        if (b.n_fitting == b.n) /* then nothing has to be recomputed or moved */
            for (size_t k = 0; k < r.n; k++)
                assert_true(!strcmp(r.setups[k].checkpoint, "none") &&
                            !strcmp(r.setups[k].offload, "none"));
        mixed += b.n_fitting > 0 && b.n_fitting < b.n;
        beyond += b.n_beyond;
        mt_fit_free(&r);
    }
    assert_true(mixed >= 2);
    assert_true(beyond > 0);
}

/* Of what is left out because as much is in flight as with more sequences, nothing fits. */
static void fewer_sequences_help_only_where_fewer_are_in_flight(void **state)
{
    int fit = 0, not = 0, helped = 0;
    (void)state;
    const size_t step = mtt_long() ? 200 << 10 : 1600 << 10;
    for (size_t memory = 600 << 10; memory <= 2200 << 10; memory += step) {
        mt_gpu gpu = small_gpu(memory);
        mti_workload w = workload();
        mt_fit_options o = {.gpu = &gpu, .gpus = 4, .batch = 16};
        mt_fit_result all, some, every;
        assert_true(mti_fit_run(&w, &o, true, 0, NULL, &all));
        for (o.batch = 8; !all.n_fitting && o.batch >= 1; o.batch /= 2) {
            assert_true(mti_fit_run(&w, &o, true, 16, NULL, &some));
            assert_true(mti_fit_run(&w, &o, true, 0, NULL, &every));
            assert_int_equal(some.n_fitting > 0, every.n_fitting > 0);
            helped += some.n_fitting > 0;
            mt_fit_free(&some), mt_fit_free(&every);
        }
        *(all.n_fitting ? &fit : &not ) += 1;
        mt_fit_free(&all);
    }
    assert_true(fit > 0 && not > 0);
    print_message("fewer sequences helped %d times\n", helped);
}

static void the_result_does_not_depend_on_the_threads(void **state)
{
    mt_gpu gpu = small_gpu(2 << 20);
    mti_workload w = workload();
    mt_fit_result one, four;
    (void)state;
    gpu.flops = 1e9; /* as above: there is a bound */
    assert_true(mti_fit_run(&w, &(mt_fit_options){.gpu = &gpu, .gpus = 8, .batch = 8, .threads = 1},
                            false, 0, NULL, &one));
    assert_true(mti_fit_run(&w, &(mt_fit_options){.gpu = &gpu, .gpus = 8, .batch = 8, .threads = 4},
                            false, 0, NULL, &four));
    assert_int_equal(one.n, four.n);
    assert_int_equal(one.n_profiles, four.n_profiles);
    assert_int_equal(one.n_slower, four.n_slower);
    for (size_t i = 0; i < one.n; i++) {
        assert_int_equal(one.setups[i].reserved, four.setups[i].reserved);
        assert_true(one.setups[i].time.total == four.setups[i].time.total);
    }
    mt_fit_free(&one);
    mt_fit_free(&four);
}

/* A search of another GPU and of another workload beside it, with what the first one measured. */
static void what_is_remembered_changes_no_result(void **state)
{
    mti_workload workloads[] = {workload(), workload()};
    mti_fit_memo *memo = mti_fit_memo_new();
    (void)state;
    assert_non_null(memo);
    workloads[1].memory.lora_rank = 2, workloads[1].memory.master = false;
    for (int i = 0; i < 12; i++) {
        mt_gpu gpu = small_gpu((size_t)1 << (20 + i / 2 % 3));
        mt_fit_result plain, with;
        if (i >= 6) gpu.flops = 1e9; /* another order, and other bounds */
        const mt_fit_options o = {.gpu = &gpu, .gpus = 4, .batch = 4, .threads = 2};
        const mti_workload *w = &workloads[i % 2];
        assert_true(mti_fit_run(w, &o, false, 0, NULL, &plain));
        assert_true(mti_fit_run(w, &o, false, 0, memo, &with));
        assert_int_equal(plain.n, with.n);
        assert_int_equal(plain.n_fitting, with.n_fitting);
        assert_int_equal(plain.n_profiles, with.n_profiles);
        for (size_t k = 0; k < plain.n; k++) {
            assert_int_equal(plain.setups[k].reserved, with.setups[k].reserved);
            assert_int_equal(plain.setups[k].host, with.setups[k].host);
            assert_memory_equal(plain.setups[k].by_category, with.setups[k].by_category,
                                sizeof plain.setups[k].by_category);
            assert_true(plain.setups[k].time.total == with.setups[k].time.total);
        }
        mt_fit_free(&plain), mt_fit_free(&with);
    }
    mti_fit_memo_free(memo);
}

/* With a large vocabulary the last stage, which has the logits, needs more than the first. */
static void the_stage_that_needs_more_counts(void **state)
{
    mt_gpu gpu = small_gpu(1 << 30);
    mti_workload w = workload();
    mt_fit_result r;
    (void)state;
    w.config.vocab = 4096;
    const mt_fit_options o = {.gpu = &gpu, .gpus = 2, .batch = 4, .pipeline = 2, .interleave = 1};
    assert_true(mti_fit_run(&w, &o, false, 0, NULL, &r));
    for (size_t i = 0; i < r.n; i++)
        if (r.setups[i].microbatch == 4) assert_int_equal(r.setups[i].parallel.stage, 1);
    assert_true(r.n > 0);
    mt_fit_free(&r);
}

static void options_leave_only_what_has_them(void **state)
{
    mt_gpu gpu = small_gpu(1 << 30);
    mt_fit_result r;
    (void)state;
    const mt_fit_options o = {.config = &model,
                              .gpu = &gpu,
                              .gpus = 4,
                              .batch = 8,
                              .tensor = 2,
                              .pipeline = 1,
                              .context = 1,
                              .zero_stages = 1u << 2,
                              .checkpoint = "every=2",
                              .offload = "cpu"};
    mtt_ok(mt_fit_search(&o, &r));
    assert_true(r.n > 0);
    for (size_t i = 0; i < r.n; i++) {
        const mt_fit_setup *s = &r.setups[i];
        assert_true(s->parallel.tensor == 2 && s->parallel.pipeline == 1 && s->parallel.data == 2);
        assert_true(s->parallel.zero == 2 && !strcmp(s->checkpoint, "every=2") &&
                    !strcmp(s->offload, "cpu"));
    }
    mt_fit_free(&r);
}

static void bad_options_are_refused(void **state)
{
    mt_gpu gpu = small_gpu(1 << 30);
    mt_model_config mlp = {.kind = MT_MODEL_MLP, .hidden = 8};
    (void)state;
    const mt_fit_options good = {.config = &model, .gpu = &gpu, .gpus = 4};
    mt_fit_options bad[12];
    for (int i = 0; i < 12; i++) bad[i] = good;
    bad[0].config = NULL, bad[1].gpu = NULL, bad[2].gpus = 0, bad[3].batch = -1;
    bad[4].seq = 65, bad[5].config = &mlp, bad[6].optimizer = "adam", bad[7].checkpoint = "all";
    bad[8].offload = "disk", bad[9].kept_aside = 1 << 30, bad[10].utilisation = 1.5;
    bad[11].batch = 3, bad[11].pipeline = 1, bad[11].tensor = 1, bad[11].context = 2;
    for (int i = 0; i < 12; i++) {
        mt_fit_result r;
        mt_status status = mt_fit_search(&bad[i], &r);
        if (status != MT_ERR_ARGUMENT) fail_msg("%d: %d %s", i, status, mt_last_error());
        mt_fit_free(&r);
        mt_clear_error();
    }
    assert_int_equal(mt_fit_search(&good, NULL), MT_ERR_ARGUMENT);
    mt_fit_result r;
    assert_int_equal(mt_fit_search(NULL, &r), MT_ERR_ARGUMENT);
    mt_clear_error();
    mt_fit_free(NULL);
}

/* Whichever allocation fails, the error is told, and a later search is as the first. */
static void a_failed_allocation_is_an_error(void **state)
{
    mt_gpu gpu = small_gpu(1 << 30);
    const mt_fit_options o = {.config = &model,
                              .gpu = &gpu,
                              .gpus = 2,
                              .seq = 8,
                              .pipeline = 1,
                              .checkpoint = "none",
                              .offload = "none",
                              .threads = 2};
    int failed = 0;
    (void)state;
    for (uint64_t n = 1; n < 100000; n += n < 40 ? 1 : mtt_long() ? 97 : 997) {
        mt_fit_result r;
        mti_fail_nth_alloc(n);
        mt_status status = mt_fit_search(&o, &r);
        bool reached = mti_alloc_count() >= n;
        mti_fail_nth_alloc(0);
        mt_fit_free(&r);
        if (!reached) break;
        failed += status == MT_ERR_MEMORY; /* the allocator gives cached memory back and retries */
        if (status != MT_ERR_MEMORY && status != MT_OK)
            fail_msg("request %d: status %d", (int)n, status);
        mt_clear_error();
    }
    assert_true(failed > 40);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_search_finds_the_best_of_all),
        cmocka_unit_test(fewer_sequences_help_only_where_fewer_are_in_flight),
        cmocka_unit_test(the_result_does_not_depend_on_the_threads),
        cmocka_unit_test(what_is_remembered_changes_no_result),
        cmocka_unit_test(the_stage_that_needs_more_counts),
        cmocka_unit_test(options_leave_only_what_has_them),
        cmocka_unit_test(bad_options_are_refused),
        cmocka_unit_test(a_failed_allocation_is_an_error),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

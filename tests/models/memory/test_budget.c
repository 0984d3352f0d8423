/* Budgets: plans fit, cost least, and run as predicted. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "memory/budget.h"
#include "workload.h"

static mt_budget *budget_of(workload *w)
{
    mt_budget *b = mt_budget_new(workload_run, w);
    if (!b) fail_msg("%s", mt_last_error());
    return b;
}

static mt_budget_figures solve(mt_budget *b, size_t n_bytes)
{
    const mt_budget_plan *plan;
    mtt_ok(mt_budget_solve(b, n_bytes, &plan));
    return mt_budget_plan_figures(plan);
}

/* Budget k of n equal steps, from the least possible peak to the peak without checkpoints. */
static size_t budget_at(mt_budget *b, int k, int n)
{
    const mt_budget_plan *ends[2];
    int n_ends;
    mtt_ok(mt_budget_front(b, 2, ends, &n_ends));
    size_t least = mt_budget_plan_figures(ends[0]).peak, most = (size_t)b->plain_peak;
    return least + (most - least) * (size_t)k / (size_t)n;
}

/* ---- the search, over numbers alone ---- */

typedef struct table {
    mti_budget_table t;
    mti_budget_options at[5];
} table;

static int64_t draw(uint64_t *seed, int64_t below)
{
    return (int64_t)mtt_draw(seed, 0, (double)below);
}

/* Layers that all differ, and groups of layers. Half of the tables have few values, for ties. */
static void draw_table(table *x, uint64_t *seed)
{
    memset(x, 0, sizeof *x);
    x->t = (mti_budget_table){.layers = 1 + draw(seed, 5), .at = x->at};
    x->t.head = draw(seed, 60);
    x->t.rest = draw(seed, 40);
    int64_t values = draw(seed, 2) ? 6 : 1000;
    for (int64_t i = 0; i < x->t.layers; i++) {
        int64_t n = 1 + draw(seed, 5);
        for (int64_t k = 0; k < n; k++) {
            mti_budget_option o = {.n = k ? 1 + draw(seed, x->t.layers - i) : 1,
                                   .kept = draw(seed, values),
                                   .flops = (uint64_t)draw(seed, values),
                                   .remade = (uint64_t)draw(seed, values)};
            o.forward = o.kept + draw(seed, 9);
            o.backward = o.kept + draw(seed, 40) + 3 * i;
            assert_true(MTI_PUSH(&x->at[i], o));
        }
    }
}

typedef struct best {
    bool found;
    uint64_t flops, remade;
    int64_t peak;
} best;

static int64_t larger(int64_t a, int64_t b) { return a > b ? a : b; }

static void try_all(const mti_budget_table *t, int64_t i, int64_t n_bytes, int64_t kept, best way,
                    best *out)
{
    if (i == t->layers) {
        way.peak = larger(larger(way.peak, t->rest), kept + t->head);
        bool better =
            !out->found || way.flops < out->flops ||
            (way.flops == out->flops &&
             (way.remade < out->remade || (way.remade == out->remade && way.peak < out->peak)));
        way.found = true;
        if (way.peak <= n_bytes && better) *out = way;
        return;
    }
    for (size_t k = 0; k < t->at[i].n; k++) {
        const mti_budget_option *o = &t->at[i].at[k];
        best next = {.flops = way.flops + o->flops,
                     .remade = way.remade + o->remade,
                     .peak = larger(way.peak, kept + larger(o->forward, o->backward))};
        try_all(t, i + o->n, n_bytes, kept + o->kept, next, out);
    }
}

static void assert_same_answer(const mti_budget_table *t, int64_t n_bytes)
{
    best expected = {.found = false};
    mti_budget_answer a;
    bool found;
    try_all(t, 0, n_bytes, 0, (best){.found = false}, &expected);
    mti_budget_search s = {.table = t};
    assert_true(mti_budget_next(&s, n_bytes, &a, &found));
    mti_budget_search_end(&s);
    assert_int_equal(found, expected.found);
    if (found) {
        assert_int_equal(a.flops, expected.flops);
        assert_int_equal(a.remade, expected.remade);
        assert_int_equal(a.peak, expected.peak);
    }
    mti_free(a.path.at);
}

static void the_search_finds_what_trying_all_ways_finds(void **state)
{
    (void)state;
    uint64_t seed = 1;
    for (int i = 0; i < 600; i++) {
        table x;
        draw_table(&x, &seed);
        for (int k = 0; k < 12; k++) assert_same_answer(&x.t, 5 + draw(&seed, 40 + 200 * (k % 3)));
        best all = {.found = false};
        int64_t least;
        try_all(&x.t, 0, INT64_MAX, 0, (best){.found = false}, &all);
        assert_true(all.found);
        assert_true(mti_budget_least(&x.t, &least));
        assert_same_answer(&x.t, least);
        best below = {.found = false};
        try_all(&x.t, 0, least - 1, 0, (best){.found = false}, &below);
        assert_false(below.found);
        for (int64_t k = 0; k < x.t.layers; k++) mti_free(x.at[k].at);
    }
}

/* Twice the layers have 2.8 times as many options (lengths of groups rise with the root), and
 * fronts twice as wide; nothing else grows, whether a budget is refused, tight or ample. */
static void the_work_grows_with_the_layers_and_no_faster_than_its_options(void **state)
{
    (void)state;
    int64_t tried = 0, n_simulations = 0;
    for (int64_t layers = 8; layers <= 64; layers *= 2) {
        workload w = workload_gpt(layers);
        mt_budget *b = budget_of(&w);
        const mt_budget_plan *none;
        int64_t n_options = 0;
        for (int64_t i = 0; i < layers; i++) n_options += (int64_t)b->table.at[i].n;
        assert_int_equal(mt_budget_solve(b, 1, &none), MT_ERR_MEMORY);
        mt_clear_error();
        assert_true(b->search.n_tried <= n_options * layers);
        for (int k = 1; k < 8; k++) solve(b, budget_at(b, k, 8));
        print_message("%lld layers: %lld ways tried, %d simulations\n", (long long)layers,
                      (long long)b->search.n_tried, b->n_simulations);
        if (tried) assert_true(b->search.n_tried <= 8 * tried);
        assert_true(b->search.n_tried <= 30 * layers * layers * layers);
        if (tried) assert_true(b->n_simulations <= n_simulations + 20);
        tried = b->search.n_tried;
        n_simulations = b->n_simulations;
        mt_budget_free(b);
    }
}

/* ---- every plan of small models is simulated ---- */

typedef struct tried {
    size_t peak;
    uint64_t flops;
} tried;

typedef struct trial {
    mt_budget *b;
    mt_budget_plan *plan;
    MTI_VEC(tried) all;
} trial;

static void simulate(trial *x)
{
    mti_budget_watch watch = {0};
    assert_true(mti_budget_simulate(x->b, x->plan, &watch, NULL));
    mt_budget_figures f = x->plan->figures;
    assert_true(MTI_PUSH(&x->all, ((tried){f.peak, f.flops.recompute})));
}

static void simulate_from(trial *x, int64_t at);

static void simulate_with(trial *x, int64_t at, int64_t n, mti_budget_form form, unsigned keeps)
{
    size_t count = x->plan->n;
    mti_budget_plan_add(x->plan, (mti_budget_segment){at, n, {form, keeps}});
    simulate_from(x, at + n);
    x->plan->n = count;
}

/* Tries each layer in each form, and each group of layers with each set of kept products. */
static void simulate_from(trial *x, int64_t at)
{
    int64_t layers = x->b->table.layers;
    if (at == layers) {
        simulate(x);
        return;
    }
    simulate_with(x, at, 1, MTI_BUDGET_PLAIN, 0);
    if (x->b->has_core) simulate_with(x, at, 1, MTI_BUDGET_CORE, 0);
    for (int64_t n = 1; n <= layers - at; n++)
        for (unsigned keeps = 0; keeps < 1u << x->b->n_products; keeps++)
            simulate_with(x, at, n, MTI_BUDGET_WHOLE, keeps);
}

static void compare_with_all(workload *w)
{
    trial x = {.b = budget_of(w)};
    x.plan = mti_budget_plan_new(x.b, x.b->table.layers);
    assert_non_null(x.plan);
    simulate_from(&x, 0);
    for (int k = 0; k <= 40; k++) {
        size_t n_bytes = budget_at(x.b, k, 40);
        uint64_t least = UINT64_MAX;
        for (size_t i = 0; i < x.all.n; i++)
            if (x.all.at[i].peak <= n_bytes && x.all.at[i].flops < least) least = x.all.at[i].flops;
        assert_int_equal(solve(x.b, n_bytes).flops.recompute, least);
    }
    const mt_budget_plan *none;
    size_t below = budget_at(x.b, 0, 1) - 1;
    for (size_t i = 0; i < x.all.n; i++) assert_true(x.all.at[i].peak > below);
    assert_int_equal(mt_budget_solve(x.b, below, &none), MT_ERR_MEMORY);
    mtt_failed(MT_ERR_MEMORY, "too few", "need");
    print_message("%zu plans\n", x.all.n);
    mti_budget_plan_free(x.plan);
    mti_free(x.all.at);
    mt_budget_free(x.b);
}

static void no_plan_of_a_few_layers_is_better(void **state)
{
    (void)state;
    for (int form = 0; form < MT_ATTENTION_FORM_COUNT; form++) {
        workload w = workload_gpt(2);
        w.config.attention = (mt_attention_form)form;
        compare_with_all(&w);
    }
    workload frozen = workload_gpt(2);
    frozen.frozen = 1;
    compare_with_all(&frozen);
    workload post = workload_gpt(2);
    post.config.norm = MT_NORM_POST;
    post.n_steps = 2;
    compare_with_all(&post);
    if (!mtt_long()) return; /* three layers have fifty times as many plans as two */
    workload three = workload_gpt(3);
    compare_with_all(&three);
}

/* ---- sums and simulations ---- */

static workload drawn_workload(uint64_t *seed)
{
    static const mt_model_kind kinds[] = {MT_MODEL_GPT, MT_MODEL_BERT, MT_MODEL_LLAMA};
    workload w = workload_gpt(1 + draw(seed, 6));
    w.config.kind = kinds[draw(seed, 3)];
    w.config.attention = (mt_attention_form)draw(seed, MT_ATTENTION_FORM_COUNT);
    w.config.dtype = draw(seed, 2) ? MT_F32 : MT_BF16;
    w.config.act = (mt_act)draw(seed, MT_ACT_COUNT);
    w.config.dropout = draw(seed, 2) ? 0.1 : 0;
    w.config.untied = draw(seed, 2) && w.config.kind != MT_MODEL_BERT;
    if (w.config.kind == MT_MODEL_GPT) w.config.norm = (mt_norm_place)draw(seed, 2);
    w.config.vocab = 31 + 500 * draw(seed, 3);
    w.n_steps = (int)draw(seed, 3);
    w.frozen = draw(seed, 3) ? 0 : draw(seed, w.config.layers);
    w.scratch = draw(seed, 2) ? "cpu" : NULL;
    return w;
}

static void the_sums_of_the_search_are_what_the_simulation_measures(void **state)
{
    (void)state;
    uint64_t seed = 20;
    int n_plans = 0, n_models = mtt_long() ? 60 : 15;
    for (int i = 0; i < n_models; i++) {
        workload w = drawn_workload(&seed);
        mt_budget *b = budget_of(&w);
        const mt_budget_plan *plans[12];
        int n;
        mtt_ok(mt_budget_front(b, 12, plans, &n));
        for (int k = 0; k < n; k++, n_plans++) {
            mt_budget_figures f = mt_budget_plan_figures(plans[k]);
            assert_int_equal(f.rounded_peak, f.expected_peak);
            assert_int_equal(f.flops.recompute, f.expected_recompute);
        }
        mt_budget_free(b);
    }
    print_message("%d plans of %d models, seed 20\n", n_plans, n_models);
}

/* Tensors above 1 MiB, whose blocks have rests: these do not add up, and yet they count. */
static void rests_of_blocks_count_towards_a_budget(void **state)
{
    (void)state;
    workload w = workload_gpt(5);
    w.config.hidden = 384, w.config.vocab = 1100, w.config.context = w.seq = 301, w.n_steps = 2;
    mt_budget *b = budget_of(&w);
    const mt_budget_plan *plans[20], *none;
    int n, with_rests = 0;
    mtt_ok(mt_budget_front(b, 20, plans, &n));
    size_t least = SIZE_MAX;
    for (int k = 0; k < n; k++) {
        mt_budget_figures f = mt_budget_plan_figures(plans[k]);
        outcome out = workload_outcome(&w, "meta", plans[k]);
        assert_int_equal(f.peak, out.peak);
        assert_int_equal(f.rounded_peak, f.expected_peak);
        assert_true(f.rounded_peak <= f.peak && f.peak <= f.reserved);
        with_rests += f.rounded_peak < f.peak;
        if (f.peak < least) least = f.peak;
        assert_int_equal(solve(b, f.peak).flops.recompute, f.flops.recompute);
    }
    print_message("%d plans, %d with rests\n", n, with_rests);
    assert_true(n > 4 && with_rests > 2);
    assert_int_equal(least, b->least);
    assert_int_equal(mt_budget_solve(b, least - 1, &none), MT_ERR_MEMORY);
    mt_clear_error();
    mt_budget_free(b);
}

static void a_larger_budget_never_costs_more_arithmetic_and_is_never_exceeded(void **state)
{
    (void)state;
    for (int64_t layers = 1; layers <= 12; layers += 11) {
        workload w = workload_gpt(layers);
        mt_budget *b = budget_of(&w);
        uint64_t flops = UINT64_MAX;
        for (int k = 0; k <= 200; k++) {
            size_t n_bytes = budget_at(b, k, 190);
            mt_budget_figures f = solve(b, n_bytes);
            assert_true(f.peak <= n_bytes && f.flops.recompute <= flops);
            flops = f.flops.recompute;
        }
        assert_int_equal(flops, 0);
        mt_budget_free(b);
    }
}

/* A workload with an extra tensor whose size depends on the number of checkpoints: no sum over
 * layers predicts its peak. */
static mt_status run_with_extra(void *user, mt_device *device, const mt_budget_plan *plan)
{
    int64_t n = 0;
    for (size_t i = 0; i < plan->n; i++) n += plan->segments[i].choice.form != MTI_BUDGET_PLAIN;
    mt_tensor *extra = mt_zeros(device, MT_U8, MT_SHAPE(1 + 3000 * (n % 3)));
    mt_status status = workload_run(user, device, plan);
    mt_release(extra);
    return status;
}

static void a_plan_that_exceeds_the_budget_when_simulated_is_not_returned(void **state)
{
    (void)state;
    workload w = workload_gpt(6);
    mt_budget *b = mt_budget_new(run_with_extra, &w);
    assert_non_null(b);
    uint64_t flops = UINT64_MAX;
    int n_wrong = 0;
    for (int k = 0; k <= 100; k++) {
        size_t n_bytes = budget_at(b, k, 95);
        mt_budget_figures f = solve(b, n_bytes);
        assert_true(f.peak <= n_bytes && f.flops.recompute <= flops);
        n_wrong += f.rounded_peak != f.expected_peak;
        flops = f.flops.recompute;
    }
    assert_true(n_wrong > 0);
    mt_budget_free(b);
}

static void no_preset_beats_a_plan(void **state)
{
    (void)state;
    static const char *const presets[] = {"none",    "full",    "selective",
                                          "every=2", "every=3", "sqrt"};
    for (int form = 0; form < MT_ATTENTION_FORM_COUNT; form++) {
        workload w = workload_gpt(9);
        w.config.attention = (mt_attention_form)form;
        mt_budget *b = budget_of(&w);
        for (size_t i = 0; i < sizeof presets / sizeof *presets; i++) {
            workload preset = w;
            preset.preset = presets[i];
            outcome out = workload_outcome(&preset, "meta", NULL);
            mt_budget_figures f = solve(b, out.peak);
            assert_true(f.flops.recompute <= out.flops.recompute);
        }
        mt_budget_free(b);
    }
}

/* ---- on the CPU ---- */

static void run_front(workload *w)
{
    mt_budget *b = budget_of(w);
    const mt_budget_plan *plans[7];
    int n;
    mtt_ok(mt_budget_front(b, 7, plans, &n));
    assert_true(n > 2);
    print_message("%s, %s attention, %s, %lld layers, d=24 b=2 s=40, %d steps of AdamW\n",
                  mt_model_kind_name(w->config.kind), mt_attention_form_name(w->config.attention),
                  mt_dtype_name(w->config.dtype), (long long)w->config.layers, w->n_steps);
    outcome plain = workload_outcome(w, "cpu", plans[n - 1]);
    assert_int_equal(plain.flops.recompute, 0);
    for (int i = 0; i < n; i++) {
        mt_budget_figures f = mt_budget_plan_figures(plans[i]);
        outcome out = workload_outcome(w, "cpu", plans[i]);
        assert_int_equal(out.peak, f.peak);
        assert_int_equal(out.flops.recompute, f.flops.recompute);
        assert_int_equal(out.n_bytes, plain.n_bytes);
        assert_memory_equal(out.bytes, plain.bytes, plain.n_bytes);
        print_message("  %9zu predicted %9zu measured %9llu FLOP again, same bits\n", f.peak,
                      out.peak, (unsigned long long)out.flops.recompute);
        outcome_free(&out);
    }
    outcome_free(&plain);
    mt_budget_free(b);
}

static void a_run_on_the_cpu_peaks_as_predicted_and_has_the_same_gradients(void **state)
{
    (void)state;
    static const mt_model_kind kinds[] = {MT_MODEL_GPT, MT_MODEL_BERT, MT_MODEL_LLAMA};
    for (int k = 0; k < 3; k++)
        for (int form = 0; form < MT_ATTENTION_FORM_COUNT; form++) {
            workload w = workload_gpt(4);
            w.config.kind = kinds[k];
            w.config.attention = (mt_attention_form)form;
            w.config.dtype = form ? MT_F32 : MT_BF16;
            w.scratch = "cpu";
            run_front(&w);
        }
}

static void three_steps_of_adamw_peak_as_predicted_and_end_with_the_same_weights(void **state)
{
    (void)state;
    workload w = workload_gpt(5);
    w.scratch = "cpu";
    w.n_steps = 3;
    run_front(&w);
}

/* ---- reading and refusing ---- */

static void a_plan_can_be_read(void **state)
{
    (void)state;
    workload w = workload_gpt(6);
    mt_budget *b = budget_of(&w);
    for (int k = 0; k <= 5; k++) {
        const mt_budget_plan *plan;
        mtt_ok(mt_budget_solve(b, budget_at(b, k, 5), &plan));
        int64_t at = 0;
        for (size_t i = 0; i < mt_budget_plan_count(plan); i++) {
            mt_budget_part part;
            char keeps[256];
            mtt_ok(mt_budget_plan_get(plan, i, &part, keeps, sizeof keeps));
            assert_int_equal(part.from, at);
            assert_true(part.n > 0 && (!part.group || part.n % part.group == 0));
            if (!part.group) assert_string_equal(keeps, "");
            at += part.n;
        }
        assert_int_equal(at, 6);
    }
    const mt_budget_plan *plain;
    mt_budget_part part;
    mtt_ok(mt_budget_solve(b, SIZE_MAX, &plain));
    assert_int_equal(mt_budget_plan_count(plain), 1);
    assert_int_equal(mt_budget_plan_get(plain, 1, &part, NULL, 0), MT_ERR_ARGUMENT);
    mtt_failed(MT_ERR_ARGUMENT, "part 1 of 1");
    mt_budget_free(b);
}

static mt_status run_nothing(void *user, mt_device *device, const mt_budget_plan *plan)
{
    (void)user, (void)device, (void)plan;
    return MT_OK;
}

static mt_status run_into_failure(void *user, mt_device *device, const mt_budget_plan *plan)
{
    (void)user, (void)device, (void)plan;
    return MT_ERR_STATE;
}

static void workloads_that_cannot_be_planned_are_refused(void **state)
{
    (void)state;
    assert_null(mt_budget_new(NULL, NULL));
    mtt_failed(MT_ERR_ARGUMENT, "workload is NULL");
    assert_null(mt_budget_new(run_nothing, NULL));
    mtt_failed(MT_ERR_ARGUMENT, "no layers");
    assert_null(mt_budget_new(run_into_failure, NULL));
    mtt_failed(MT_ERR_STATE, "workload failed");
    mt_budget_free(NULL);
}

static void every_failing_allocation_is_reported_and_cleaned_up(void **state)
{
    (void)state;
    workload w = workload_gpt(2);
    mti_fail_nth_alloc(0);
    mt_budget *b = budget_of(&w);
    const mt_budget_plan *plan;
    size_t n_bytes = budget_at(b, 1, 2);
    mtt_ok(mt_budget_solve(b, n_bytes, &plan));
    uint64_t n_allocs = mti_alloc_count();
    mt_budget_free(b);
    for (uint64_t n = 1; n < n_allocs; n += 1 + n_allocs / (mtt_long() ? 400 : 100)) {
        mti_fail_nth_alloc(n);
        b = mt_budget_new(workload_run, &w);
        mt_status status = b ? mt_budget_solve(b, n_bytes, &plan) : mt_last_status();
        mti_fail_nth_alloc(0);
        if (status != MT_OK) mtt_failed(MT_ERR_MEMORY, "");
        mt_budget_free(b);
        assert_int_equal(mt_last_status(), MT_OK);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_search_finds_what_trying_all_ways_finds),
        cmocka_unit_test(the_work_grows_with_the_layers_and_no_faster_than_its_options),
        cmocka_unit_test(no_plan_of_a_few_layers_is_better),
        cmocka_unit_test(the_sums_of_the_search_are_what_the_simulation_measures),
        cmocka_unit_test(rests_of_blocks_count_towards_a_budget),
        cmocka_unit_test(a_larger_budget_never_costs_more_arithmetic_and_is_never_exceeded),
        cmocka_unit_test(a_plan_that_exceeds_the_budget_when_simulated_is_not_returned),
        cmocka_unit_test(no_preset_beats_a_plan),
        cmocka_unit_test(a_run_on_the_cpu_peaks_as_predicted_and_has_the_same_gradients),
        cmocka_unit_test(three_steps_of_adamw_peak_as_predicted_and_end_with_the_same_weights),
        cmocka_unit_test(a_plan_can_be_read),
        cmocka_unit_test(workloads_that_cannot_be_planned_are_refused),
        cmocka_unit_test(every_failing_allocation_is_reported_and_cleaned_up),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

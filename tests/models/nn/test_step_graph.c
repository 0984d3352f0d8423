/* Step graphs: losses, weights and books of a run are the same bits with and without; whatever
 * cannot be captured is launched, and said. */
#include "mtt.h"
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/base.h"
#include "../../src/backends_cuda/double.h"
#include "memtape/all.h"

enum { BATCH = 2, SEQ = 8, STEPS = 12, MOST_PARTS = 3, GRAPHS = 2 };

typedef struct setup {
    const char *name;
    mt_attention_form attention;
    const char *checkpoint;
    bool amp, scaler, clip;
    int parts;      /* batches of a step */
    bool unread;    /* nobody waits for one batch before the next is queued */
    int short_from; /* steps from here to STEPS - 4 have one sequence less; 0: none */
    bool expands;   /* the allocator's segments */
} setup;

static const setup setups[] = {
    {"flash", MT_ATTENTION_FLASH, NULL, false, false, false, 1, false, 0},
    {"math, clipped", MT_ATTENTION_MATH, NULL, false, false, true, 1, false, 0},
    {"checkpoints", MT_ATTENTION_FLASH, "full", false, false, false, 1, false, 0},
    {"selective checkpoints", MT_ATTENTION_MATH, "selective", false, false, false, 1, false, 0},
    {"amp and a loss scale", MT_ATTENTION_FLASH, NULL, true, true, false, 1, false, 0},
    {"two batches a step", MT_ATTENTION_FLASH, NULL, false, false, false, 2, false, 0},
    {"all at once", MT_ATTENTION_FLASH, "full", true, true, true, 2, false, 0},
    {"another shape", MT_ATTENTION_FLASH, NULL, false, false, false, 1, false, 5},
    {"three batches that nobody waits for", MT_ATTENTION_FLASH, NULL, false, false, false, 3, true,
     0},
    {"expandable segments", MT_ATTENTION_FLASH, NULL, false, false, false, 1, false, 0, true},
};

enum { N_SETUPS = sizeof setups / sizeof *setups };

typedef struct run {
    const setup *setup;
    mt_device *device;
    mt_module *model;
    mt_optimizer *optimizer;
    mt_scaler *scaler;
    mt_step_graph *graph[GRAPHS]; /* of a step's first batch, and of the others; or NULL */
    int64_t batch;
    bool reads; /* the function reads the loss, which a capture refuses */
    enum { NOBODY, ITSELF, ANOTHER_THREAD } empties; /* the cache, within the function */
    mt_tensor *leak;
    double losses[STEPS * MOST_PARTS];
    mt_mem_stats after[STEPS];
} run;

static void check(mt_status status)
{
    if (status != MT_OK) fail_msg("%s", mt_last_error());
}

static void *empty_cache(void *device)
{
    mt_mem_empty_cache(device);
    return NULL;
}

static mt_tensor *batch_step(void *user, const mt_step_input *in)
{
    run *r = user;
    int64_t shape[] = {r->batch, SEQ};
    pthread_t thread;
    if (r->setup->amp && mt_autocast_begin(MT_BF16) != MT_OK) return NULL;
    mt_tensor *x = mt_from_data(r->device, MT_I64, 2, shape, in[0].data, in[0].n_bytes);
    mt_tensor *y = mt_from_data(r->device, MT_I64, 2, shape, in[1].data, in[1].n_bytes);
    mt_tensor *loss = mt_model_forward_loss(r->model, x, y);
    mt_release(x), mt_release(y);
    if (r->setup->amp && mt_autocast_end() != MT_OK) mt_set(&loss, NULL);
    if (!loss) return NULL;
    mt_tensor *scaled = r->scaler ? mt_scaler_scale(r->scaler, loss) : mt_retain(loss);
    bool ok = scaled && mt_backward(scaled) == MT_OK;
    mt_release(scaled);
    if (ok && r->reads) ok = mt_item(loss) == mt_item(loss);
    if (ok && r->empties == ITSELF) empty_cache(r->device);
    if (ok && r->empties == ANOTHER_THREAD)
        ok = !pthread_create(&thread, NULL, empty_cache, r->device) && !pthread_join(thread, NULL);
    if (!ok) mt_set(&loss, NULL);
    return loss;
}

static mt_tensor *run_batch(run *r, int step, int part)
{
    int64_t ids[2][BATCH * SEQ];
    for (int i = 0; i < BATCH * SEQ; i++) {
        ids[0][i] = (step * 7 + part * 3 + i * i) % 31;
        ids[1][i] = (ids[0][i] * 5 + i) % 31;
    }
    size_t n_bytes = (size_t)r->batch * SEQ * sizeof(int64_t);
    mt_step_input in[] = {{ids[0], n_bytes}, {ids[1], n_bytes}};
    double scale = r->scaler ? mt_scaler_get(r->scaler).scale : 1;
    mt_step_graph *g = r->graph[part > 0];
    return g ? mt_step_graph_run(g, batch_step, r, scale, 2, in) : batch_step(r, in);
}

/* False: a call failed. */
static bool run_step(run *r, int step)
{
    const setup *s = r->setup;
    r->batch = s->short_from && step >= s->short_from && step < STEPS - 4 ? BATCH - 1 : BATCH;
    for (int part = 0; part < s->parts; part++) {
        mt_tensor *loss = run_batch(r, step, part);
        if (!loss) return false;
        if (!s->unread) r->losses[step * MOST_PARTS + part] = mt_item(loss);
        mt_release(loss);
    }
    mt_optimizer_set_lr(r->optimizer, mt_cosine_lr(step, 3, STEPS, 1e-2, 1e-3));
    bool ok;
    if (r->scaler)
        ok = (!s->clip || mt_scaler_clip(r->scaler, r->optimizer, 0.5, NULL) == MT_OK) &&
             mt_scaler_step(r->scaler, r->optimizer, NULL) == MT_OK;
    else
        ok = (!s->clip || mt_clip_grad_norm(r->model, 0.5, NULL) == MT_OK) &&
             mt_optimizer_step(r->optimizer) == MT_OK;
    ok = ok && mt_module_zero_grad(r->model) == MT_OK;
    mt_mem_get_stats(r->device, &r->after[step]);
    return ok;
}

static bool open_run(run *r, const setup *s, bool with_graph)
{
    const mt_model_config config = {.kind = MT_MODEL_GPT,
                                    .hidden = 16,
                                    .heads = 2,
                                    .layers = 2,
                                    .vocab = 31,
                                    .context = SEQ,
                                    .dropout = 0.2,
                                    .attention = s->attention,
                                    .dtype = MT_F32};
    *r = (run){.setup = s, .device = mt_device_open(getenv("MTT_DEVICE"))};
    if (!r->device) return false;
    if (s->expands && mt_mem_set_expandable(r->device, &(mt_expandable){0}) != MT_OK) return false;
    mt_seed(r->device, 11);
    r->model = mt_model_new(r->device, &config);
    if (!r->model || (s->checkpoint && mt_model_checkpoint(r->model, s->checkpoint) != MT_OK))
        return false;
    r->optimizer = mt_adamw_new(r->model, &(mt_adamw_options){.lr = 1e-2, .weight_decay = 0.1});
    if (s->scaler) r->scaler = mt_scaler_new(&(mt_scaler_options){.scale = 1024, .interval = 5});
    for (int i = 0; with_graph && i < s->parts && i < GRAPHS; i++)
        if (!(r->graph[i] = mt_step_graph_new(r->model))) return false;
    return r->optimizer && (!s->scaler || r->scaler);
}

static void close_run(run *r)
{
    for (int i = 0; i < GRAPHS; i++) mt_step_graph_free(r->graph[i]);
    mt_release(r->leak);
    mt_scaler_free(r->scaler);
    mt_optimizer_free(r->optimizer);
    mt_module_free(r->model);
    mt_device_release(r->device);
}

static void same_weights(const run *a, const run *b)
{
    const mt_named_tensor *of_a, *of_b;
    size_t n_a, n_b;
    check(mt_module_params(a->model, &of_a, &n_a));
    check(mt_module_params(b->model, &of_b, &n_b));
    assert_int_equal(n_a, n_b);
    for (size_t i = 0; i < n_a; i++) {
        size_t n_bytes = mt_storage_of(of_a[i].tensor).bytes;
        void *x = malloc(n_bytes), *y = malloc(n_bytes);
        check(mt_to_host(of_a[i].tensor, x, n_bytes));
        check(mt_to_host(of_b[i].tensor, y, n_bytes));
        if (memcmp(x, y, n_bytes)) fail_msg("%s: %s differs", a->setup->name, of_a[i].name);
        free(x), free(y);
    }
}

/* A capture asks for a step's memory once more, so totals may differ; levels and peaks may not. */
static void same_books(const run *a, const run *b, int step)
{
    const mt_mem_stats *x = &a->after[step], *y = &b->after[step];
#define SAME(figure)                                                                               \
    if (x->figure != y->figure)                                                                    \
    fail_msg("%s, step %d: " #figure " %zu, %zu", a->setup->name, step, (size_t)x->figure,         \
             (size_t)y->figure)
    SAME(allocated.current);
    SAME(allocated.peak);
    SAME(requested.current);
    SAME(requested.peak);
    SAME(active.peak);
    SAME(reserved.current);
    SAME(reserved.peak);
    SAME(blocks.current);
    SAME(blocks.peak);
    SAME(inactive_split.current);
#undef SAME
    assert_memory_equal(x->by_category, y->by_category, sizeof x->by_category);
    assert_memory_equal(x->at_peak, y->at_peak, sizeof x->at_peak);
}

/* In the short form of two tests, with kernels at once and with late ones, each has half of the
 * setups. */
static bool is_left_out(size_t k)
{
    return !mtt_long() && !setups[k].unread && k % 2 != (getenv("CUDASIM_LATE") != NULL);
}

static void a_run_has_the_same_bits_and_books_with_and_without(void **state)
{
    (void)state;
    for (size_t k = 0; k < N_SETUPS; k++) {
        if (is_left_out(k)) continue;
        run plain, graph;
        const setup *s = &setups[k];
        if (!open_run(&plain, s, false) || !open_run(&graph, s, true))
            fail_msg("%s: %s", s->name, mt_last_error());
        for (int step = 0; step < STEPS; step++) {
            if (!run_step(&plain, step) || !run_step(&graph, step))
                fail_msg("%s, step %d: %s", s->name, step, mt_last_error());
            same_books(&plain, &graph, step);
        }
        assert_memory_equal(plain.losses, graph.losses, sizeof plain.losses);
        same_weights(&plain, &graph);
        mt_flops a = mt_flops_get(plain.device), b = mt_flops_get(graph.device);
        assert_memory_equal(&a, &b, sizeof a);
        for (int i = 0; i < s->parts && i < GRAPHS; i++) {
            mt_step_graph_stats stats = mt_step_graph_get(graph.graph[i]);
            print_message("%s: %lld launched, %lld captured, %lld replayed, %lld nodes; %s\n",
                          s->name, (long long)stats.launched, (long long)stats.captured,
                          (long long)stats.replayed, (long long)stats.nodes, stats.why);
            int calls = i == 0 ? STEPS : STEPS * (s->parts - 1);
            assert_int_equal(stats.launched + stats.replayed, calls);
            assert_true(stats.replayed >= 3 && stats.nodes > 50);
            assert_true(stats.captured == (s->scaler       ? 2
                                           : s->short_from ? 2
                                                           : 1) ||
                        stats.captured == 3);
        }
        close_run(&plain);
        close_run(&graph);
    }
}

/* ---- what is launched instead, and why ---- */

static void observe(void *user, const mt_mem_event *event) { (void)user, (void)event; }

static const char *why_of(const run *r)
{
    static mt_step_graph_stats stats;
    stats = mt_step_graph_get(r->graph[0]);
    return stats.why;
}

static void steps(run *r, int from, int to)
{
    for (int step = from; step < to; step++)
        if (!run_step(r, step)) fail_msg("step %d: %s", step, mt_last_error());
}

static void what_cannot_be_captured_is_launched_and_said(void **state)
{
    (void)state;
    run r;
    assert_true(open_run(&r, &setups[0], true));
    r.reads = true;
    steps(&r, 0, 6);
    assert_non_null(strstr(why_of(&r), "cannot be captured"));
    assert_int_equal(mt_step_graph_get(r.graph[0]).launched, 6);
    assert_int_equal(mt_last_status(), MT_OK);
    close_run(&r);

    assert_true(open_run(&r, &setups[0], true));
    steps(&r, 0, 4);
    assert_int_equal(mt_step_graph_get(r.graph[0]).replayed, 2);
    int id = mt_mem_add_observer(r.device, observe, NULL);
    steps(&r, 4, 5);
    assert_string_equal(why_of(&r), "memory is being observed");
    mt_mem_remove_observer(r.device, id);
    steps(&r, 5, 6);
    assert_int_equal(mt_step_graph_get(r.graph[0]).replayed, 3);
    /* memory that the graph uses is another's now */
    r.leak = mt_zeros(r.device, MT_F32, MT_SHAPE(100));
    steps(&r, 6, 7);
    assert_non_null(strstr(why_of(&r), "memory it used"));
    assert_int_equal(mt_step_graph_get(r.graph[0]).replayed, 3);
    steps(&r, 7, 10); /* it is captured again beside the tensor */
    assert_int_equal(mt_step_graph_get(r.graph[0]).captured, 2);
    mt_mem_empty_cache(r.device);
    steps(&r, 10, 12);
    close_run(&r);
}

/* With late kernels a wait runs what it waits for. The third replay of a graph waits for the copy
 * of the first one's inputs alone, which is behind the step's first batch. */
static void replays_run_ahead_of_the_device(void **state)
{
    (void)state;
    run r;
    assert_true(open_run(&r, &setups[8], true));
    steps(&r, 0, 4);
    int64_t nodes = mt_step_graph_get(r.graph[0]).nodes;
    int64_t replayed = mt_step_graph_get(r.graph[1]).replayed;
    check(mt_device_sync(r.device));
    uint64_t before = mtt_double_kernels();
    for (int part = 0; part < 4; part++) {
        mt_tensor *loss = run_batch(&r, 4, part);
        if (!loss) fail_msg("%s", mt_last_error());
        mt_release(loss);
        if (getenv("CUDASIM_LATE"))
            assert_in_range(mtt_double_kernels() - before, 0, part < 3 ? 0 : nodes);
    }
    assert_int_equal(mt_step_graph_get(r.graph[1]).replayed, replayed + 3);
    close_run(&r);
}

/* To free memory is no part of a graph, and to wait for the whole device ends any capture. */
static void cache_may_be_emptied_beside_a_capture(void **state)
{
    (void)state;
    for (int i = 0; i < 4; i++) {
        run r;
        if (!open_run(&r, &setups[i < 2 ? 0 : N_SETUPS - 1], true)) fail_msg("%s", mt_last_error());
        steps(&r, 0, 2); /* launched */
        r.empties = i % 2 ? ANOTHER_THREAD : ITSELF;
        steps(&r, 2, 3);
        r.empties = NOBODY;
        steps(&r, 3, 6);
        mt_step_graph_stats stats = mt_step_graph_get(r.graph[0]);
        if (!stats.captured) fail_msg("%d: %s", i, stats.why);
        assert_int_equal(mt_last_status(), MT_OK);
        close_run(&r);
    }
}

static void cpu_has_no_graphs(void **state)
{
    (void)state;
    mt_device *cpu = mt_device_open("cpu");
    mt_module *linear = mt_linear_new(cpu, MT_F32, 2, 2, true, 0);
    assert_null(mt_step_graph_new(linear));
    assert_int_equal(mt_last_status(), MT_ERR_UNSUPPORTED);
    mt_clear_error();
    mt_module_free(linear);
    mt_device_release(cpu);
}

/* ---- refusals ---- */

/* In the short form each of the two tests refuses half as often. */
static uint64_t next_refusal(uint64_t nth)
{
    uint64_t next = mtt_next_refusal(nth);
    return mtt_long() ? next : mtt_next_refusal(next);
}

static void refused_memory_is_an_error_or_a_launch_and_nothing_leaks(void **state)
{
    (void)state;
    run plain;
    assert_true(open_run(&plain, &setups[0], false));
    steps(&plain, 0, 4);
    bool reached = true;
    const uint64_t first = !mtt_long() && getenv("CUDASIM_LATE") ? 2 : 1;
    for (uint64_t nth = first; reached; nth = next_refusal(nth)) {
        run r;
        assert_true(open_run(&r, &setups[0], true));
        steps(&r, 0, 2);
        mt_mem_stats before = r.after[1], now;
        mti_fail_nth_alloc(nth);
        bool ok = run_step(&r, 2); /* captures, then replays */
        reached = mti_alloc_count() >= nth;
        mti_fail_nth_alloc(0);
        if (!ok) {
            assert_int_equal(mt_last_status(), MT_ERR_MEMORY);
            mt_clear_error();
            check(mt_module_zero_grad(r.model));
        }
        mt_mem_get_stats(r.device, &now);
        assert_int_equal(now.allocated.current, before.allocated.current);
        if (ok)
            assert_memory_equal(&r.losses[2 * MOST_PARTS], &plain.losses[2 * MOST_PARTS],
                                sizeof(double));
        if (ok) {
            steps(&r, 3, 4);
            assert_memory_equal(&r.losses[3 * MOST_PARTS], &plain.losses[3 * MOST_PARTS],
                                sizeof(double));
        }
        close_run(&r);
    }
    close_run(&plain);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_run_has_the_same_bits_and_books_with_and_without),
        cmocka_unit_test(what_cannot_be_captured_is_launched_and_said),
        cmocka_unit_test(replays_run_ahead_of_the_device),
        cmocka_unit_test(cache_may_be_emptied_beside_a_capture),
        cmocka_unit_test(cpu_has_no_graphs),
        cmocka_unit_test(refused_memory_is_an_error_or_a_launch_and_nothing_leaks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

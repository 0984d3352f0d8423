/* A checkpoint is the same file whoever writes it: what one process wrote comes back to the byte
 * from ranks that divide the model in any way, and they go on from it as it would. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "as_ranks.h"
#include "base/base.h"
#include "base/philox.h"
#include "memtape/models/io.h"

enum { BATCH = 4, SEQ = 8, SEED = 5 };

static const mt_model_config models[] = {
    {.hidden = 32, .heads = 4, .layers = 2, .vocab = 61, .context = 8, .dropout = 0.1},
    {.hidden = 32, .heads = 4, .layers = 1, .vocab = 61, .context = 8, .untied = true},
    {.kind = MT_MODEL_LLAMA,
     .hidden = 32,
     .heads = 8,
     .kv_heads = 4,
     .layers = 2,
     .vocab = 61,
     .context = 8,
     .ffn = 48},
    {.kind = MT_MODEL_BERT, .hidden = 32, .heads = 4, .layers = 1, .vocab = 61, .context = 8},
    {.hidden = 32, .heads = 4, .layers = 1, .vocab = 61, .context = 8, .dtype = MT_BF16},
};
static const char *const names[] = {"gpt", "gpt, untied", "llama", "bert", "gpt in bf16"};
/* 5 data ranks: pieces are padded, and some are empty. */
static const mt_parallel layouts[] = {
    {.tensor = 1},
    {.tensor = 2},
    {.tensor = 4, .sequence = true},
    {.data = 4},
    {.data = 4, .zero = 1},
    {.data = 5, .zero = 2},
    {.data = 5, .zero = 3},
    {.data = 4, .zero = 3, .replicas = 2},
    {.tensor = 2, .sequence = true, .data = 2, .zero = 1},
    {.tensor = 2, .data = 3, .zero = 3},
    {.context = 2, .data = 2, .zero = 1},
    {.tensor = 2, .context = 2, .zero = 3},
};
#define N(list) (sizeof(list) / sizeof *(list))

/* ---- files ---- */

static char folder[64];

static const char *in_folder(const char *name)
{
    static char path[2][128];
    static int turn;
    turn = !turn;
    snprintf(path[turn], sizeof path[turn], "%s/%s", folder, name);
    return path[turn];
}

static int make_folder(void **state)
{
    (void)state;
    snprintf(folder, sizeof folder, "/tmp/mtt-files-%ld", (long)getpid());
    return mkdir(folder, 0700);
}

static int remove_folder(void **state)
{
    (void)state;
    unlink(in_folder("one")), unlink(in_folder("two"));
    return rmdir(folder);
}

/* ---- training ---- */

static const mt_key_value pairs[] = {{"run", "a test"}};

static mt_tensor *ids(mt_device *device, int step, int64_t from, int64_t n, bool target)
{
    int64_t values[5 * BATCH * SEQ];
    for (int64_t i = 0; i < n * SEQ; i++)
        values[i] = mti_philox(77, (uint64_t)(step * 1000 + from * SEQ + i)).v[target] % 61;
    return mt_from_data(device, MT_I64, MT_SHAPE(n, SEQ), values,
                        (size_t)(n * SEQ) * sizeof *values);
}

static mt_adamw_options adamw(const mt_model_config *c)
{
    return (mt_adamw_options){.lr = 1e-2,
                              .decay_matrices_only = true,
                              .weight_decay = 0.1,
                              .master = c->dtype == MT_BF16};
}

/* What one process writes after some steps. */
static void write_alone(const mt_model_config *c, int steps, const char *path)
{
    const mt_adamw_options options = adamw(c);
    mt_device *device = mt_device_open("cpu");
    mt_seed(device, SEED);
    mt_module *model = mt_model_new(device, c);
    mt_optimizer *optimizer = mt_adamw_new(model, &options);
    for (int step = 0; step < steps; step++) {
        mt_tensor *x = ids(device, step, 0, BATCH, false),
                  *target = ids(device, step, 0, BATCH, true);
        mt_tensor *loss = mt_model_forward_loss(model, x, target);
        mtt_ok(mt_backward(mtt_made(loss)));
        mtt_ok(mt_optimizer_step(optimizer));
        mtt_ok(mt_module_zero_grad(model));
        mt_release(x), mt_release(target), mt_release(loss);
    }
    mtt_ok(mt_checkpoint_save(path, model, optimizer, steps, 1, pairs));
    mt_optimizer_free(optimizer);
    mt_module_free(model);
    mt_device_release(device);
}

/* One rank. */
typedef struct rank {
    mt_parallel h;
    mt_device *device;
    mt_stage *stage;
    mt_optimizer *optimizer;
} rank;

static void begin(rank *r, mt_comm *world, const mt_model_config *c, const mt_parallel *h)
{
    const mt_adamw_options options = adamw(c);
    mt_model_config own = *c;
    if (h->context > 1) own.dropout = 0; /* masks are refused; no file says them */
    r->h = *h;
    r->device = mt_device_open("cpu");
    MTT_NEED(mt_parallel_place(&r->h, world) == MT_OK);
    MTT_NEED(r->device && mt_device_set_threads(r->device, 1) == MT_OK);
    mt_seed(r->device, SEED + 1); /* what is loaded replaces it */
    MTT_NEED((r->stage = mt_stage_new(r->device, &own, &r->h)));
    MTT_NEED((r->optimizer = mt_adamw_new(mt_stage_stepped(r->stage), &options)));
}

static void end(rank *r)
{
    mt_optimizer_free(r->optimizer);
    mt_stage_free(r->stage);
    mt_device_release(r->device);
    mt_parallel_close(&r->h);
}

static void load(rank *r, const char *path, int64_t wanted)
{
    int64_t step = -1;
    mt_safetensors *file = mt_safetensors_open(path);
    MTT_NEED(file && mt_stage_load(file, r->stage, r->optimizer, &step) == MT_OK);
    MTT_NEED(step == wanted);
    mt_safetensors_free(file);
}

static void train(rank *r, int from, int to)
{
    for (int step = from; step < to; step++) {
        int64_t rows = 2;
        mt_tensor *x = ids(r->device, step, r->h.data_rank * rows, rows, false);
        mt_tensor *target = ids(r->device, step, r->h.data_rank * rows, rows, true);
        if (r->h.context > 1) {
            int64_t length = SEQ / r->h.context, from_position = r->h.context_rank * length;
            mt_set(&x, mt_slice(x, 1, from_position, length));
            mt_set(&target, mt_slice(target, 1, from_position, length));
            mt_set(&x, mt_contiguous(x));
            mt_set(&target, mt_contiguous(target));
        }
        MTT_NEED(mt_stage_backward(r->stage, &x, &target, NULL) == MT_OK);
        MTT_NEED(mt_stage_step(r->stage, r->optimizer, 1, NULL) == MT_OK);
        mt_release(x), mt_release(target);
    }
}

typedef struct passed {
    const mt_model_config *config;
    mt_parallel layout;
    char from[128], to[128];
    int first, middle, last; /* steps */
} passed;

static void run_ranks(passed *p, mtt_ranked_fn *fn)
{
    mtt_as_ranks(mtt_count_ranks(&p->layout), fn, p);
}

/* ---- the same bytes ---- */

static void pass_on(mt_comm *world, void *user)
{
    passed *p = user;
    rank r;
    begin(&r, world, p->config, &p->layout);
    load(&r, p->from, p->first);
    MTT_NEED(mt_stage_save(p->to, r.stage, r.optimizer, world, p->first, 1, pairs) == MT_OK);
    end(&r);
}

static void a_file_comes_back_from_any_ranks_to_the_byte(void **state)
{
    (void)state;
    for (size_t i = 0; i < N(models); i++)
        for (int steps = 0; steps <= 2; steps += 2) {
            passed p = {.config = &models[i], .first = steps};
            snprintf(p.from, sizeof p.from, "%s", in_folder("one"));
            snprintf(p.to, sizeof p.to, "%s", in_folder("two"));
            write_alone(&models[i], steps, p.from);
            for (size_t k = 0; k < N(layouts); k++) {
                if (!mtt_is_taken(i + (size_t)steps / 2, k)) continue;
                p.layout = layouts[k];
                unlink(p.to);
                run_ranks(&p, pass_on);
                bool same = mtt_same_files(p.from, p.to);
                if (!same) print_message("%s, layout %zu, %d steps\n", names[i], k, steps);
                assert_true(same);
            }
        }
}

/* Ranks have some of the experts each, of each expert some columns, or pieces of both. */
static void a_file_comes_back_from_ranks_that_divide_experts(void **state)
{
    (void)state;
    static const mt_model_config mixture = {.kind = MT_MODEL_LLAMA,
                                            .hidden = 32,
                                            .heads = 4,
                                            .layers = 1,
                                            .vocab = 61,
                                            .context = 8,
                                            .ffn = 12,
                                            .experts = 6,
                                            .experts_per_token = 2};
    static const mt_parallel divisions[] = {
        {.tensor = 2},
        {.data = 2, .expert = 2},
        {.data = 6, .expert = 3, .zero = 1},
        {.data = 4, .expert = 2, .zero = 2},
        {.tensor = 2, .data = 4, .expert = 2, .zero = 3},
        {.tensor = 2, .sequence = true, .expert_tensor = 1, .data = 3, .expert = 6},
        {.tensor = 2, .sequence = true, .expert_tensor = 1, .data = 3, .expert = 2, .zero = 1},
        {.data = 4, .context = 2, .expert = 2, .zero = 3, .replicas = 2}};
    passed p = {.config = &mixture, .first = 2};
    snprintf(p.from, sizeof p.from, "%s", in_folder("one"));
    snprintf(p.to, sizeof p.to, "%s", in_folder("two"));
    write_alone(&mixture, p.first, p.from);
    for (size_t k = 0; k < N(divisions); k++) {
        p.layout = divisions[k];
        unlink(p.to);
        run_ranks(&p, pass_on);
        if (!mtt_same_files(p.from, p.to)) fail_msg("division %zu", k);
    }
}

/* Stages have some layers each, and both ends a tied embedding. */
static void a_file_comes_back_from_stages_to_the_byte(void **state)
{
    (void)state;
    static const mt_parallel stages[] = {
        {.pipeline = 2},
        {.pipeline = 2, .interleave = 2},
        {.pipeline = 4, .data = 2, .zero = 2},
        {.tensor = 2, .pipeline = 2, .data = 2, .zero = 3},
    };
    for (size_t i = 0; i < N(models); i++) {
        mt_model_config c = models[i];
        c.layers = 4;
        passed p = {.config = &c, .first = 2};
        snprintf(p.from, sizeof p.from, "%s", in_folder("one"));
        snprintf(p.to, sizeof p.to, "%s", in_folder("two"));
        write_alone(&c, p.first, p.from);
        for (size_t k = 0; k < N(stages); k++) {
            if (!mtt_is_taken(i, k)) continue;
            p.layout = stages[k];
            unlink(p.to);
            run_ranks(&p, pass_on);
            bool same = mtt_same_files(p.from, p.to);
            if (!same) print_message("%s, stages %zu\n", names[i], k);
            assert_true(same);
        }
    }
}

/* ---- going on ---- */

static void train_on(mt_comm *world, void *user)
{
    passed *p = user;
    rank r;
    begin(&r, world, p->config, &p->layout);
    if (p->first) load(&r, p->from, p->first);
    train(&r, p->first, p->last);
    MTT_NEED(mt_stage_save(p->to, r.stage, r.optimizer, world, p->last, 0, NULL) == MT_OK);
    end(&r);
}

static void the_same_ranks_go_on_bit_for_bit(void **state)
{
    (void)state;
    for (size_t i = 0; i < N(models); i++)
        for (size_t k = 0; k < N(layouts); k++) {
            if (!mtt_is_taken(i, k)) continue;
            passed p = {.config = &models[i], .layout = layouts[k], .last = 2};
            snprintf(p.to, sizeof p.to, "%s", in_folder("one"));
            run_ranks(&p, train_on);
            memcpy(p.from, p.to, sizeof p.from);
            p.first = 2, p.last = 4; /* in place: read, then replaced */
            run_ranks(&p, train_on);
            snprintf(p.to, sizeof p.to, "%s", in_folder("two"));
            p.first = 0;
            run_ranks(&p, train_on);
            assert_true(mtt_same_files(in_folder("one"), in_folder("two")));
        }
}

static void weights_alone(mt_comm *world, void *user)
{
    passed *p = user;
    rank r;
    begin(&r, world, p->config, &p->layout);
    mt_safetensors *file = mt_safetensors_open(p->from);
    MTT_NEED(file && mt_stage_load_weights(file, r.stage) == MT_OK);
    mt_safetensors_free(file);
    MTT_NEED(mt_stage_save(p->to, r.stage, NULL, world, 0, 0, NULL) == MT_OK);
    end(&r);
}

static void a_file_of_weights_alone_is_read_by_ranks(void **state)
{
    (void)state;
    passed p = {.config = &models[2], .layout = layouts[8]};
    snprintf(p.from, sizeof p.from, "%s", in_folder("one"));
    snprintf(p.to, sizeof p.to, "%s", in_folder("two"));
    write_alone(&models[2], 1, p.from);
    run_ranks(&p, weights_alone);
    mt_device *device = mt_device_open("cpu");
    mt_safetensors *a = mt_safetensors_open(p.from), *b = mt_safetensors_open(p.to);
    assert_true(mt_safetensors_count(b) > 10);
    for (size_t i = 0; i < mt_safetensors_count(b); i++) {
        mt_safetensors_entry e;
        mtt_ok(mt_safetensors_get(b, i, &e));
        MT_AUTO mt_tensor *x = mt_safetensors_read(a, e.name, device);
        MT_AUTO mt_tensor *y = mt_safetensors_read(b, e.name, device);
        char first[8192], second[8192];
        assert_in_range(e.bytes, 1, sizeof first);
        mtt_ok(mt_to_host(mtt_made(x), first, e.bytes));
        mtt_ok(mt_to_host(mtt_made(y), second, e.bytes));
        assert_memory_equal(first, second, e.bytes);
    }
    mt_safetensors_free(a), mt_safetensors_free(b);
    mt_device_release(device);
}

/* ---- what fails ---- */

/* All ranks have the error of the one that cannot write, and none waits. */
static void save_nowhere(mt_comm *world, void *user)
{
    const passed *p = user;
    rank r;
    begin(&r, world, p->config, &p->layout);
    MTT_NEED(mt_stage_save("/nowhere/x", r.stage, r.optimizer, world, 0, 0, NULL) == MT_ERR_IO);
    MTT_NEED(strstr(mt_last_error(), "rank 0 of 4") && strstr(mt_last_error(), "/nowhere/x"));
    mt_clear_error();
    const mt_key_value taken[] = {{"memtape.step", "1"}};
    const mt_group all = mt_comm_group(world);
    /* One rank alone has bad metadata. */
    MTT_NEED(mt_stage_save(p->to, r.stage, r.optimizer, world, 0, all.rank == 2, taken) ==
             MT_ERR_ARGUMENT);
    MTT_NEED(strstr(mt_last_error(), "rank 2 of 4") && strstr(mt_last_error(), "memtape.step"));
    mt_clear_error();
    end(&r);
}

static void a_rank_that_cannot_save_tells_all(void **state)
{
    (void)state;
    passed p = {.config = &models[0], .layout = {.tensor = 2, .data = 2, .zero = 1}};
    snprintf(p.to, sizeof p.to, "%s", in_folder("two"));
    write_alone(&models[0], 0, p.to);
    write_alone(&models[0], 0, in_folder("one"));
    run_ranks(&p, save_nowhere);
    assert_true(mtt_same_files(in_folder("one"), in_folder("two"))); /* what was there is whole */
}

static void bad_calls_are_refused(void **state)
{
    (void)state;
    const mt_adamw_options narrow = {.moments = MT_MOMENTS_8BIT};
    mt_device *device = mt_device_open("cpu");
    mt_stage *stage = mt_stage_new(device, &models[1], NULL);
    mt_optimizer *optimizer = mt_adamw_new(mt_stage_stepped(stage), &narrow);
    assert_int_equal(mt_stage_save(in_folder("one"), stage, optimizer, NULL, 0, 0, NULL),
                     MT_ERR_UNSUPPORTED);
    mtt_failed(MT_ERR_UNSUPPORTED, "moments in codes", "MT_MOMENTS_WIDE");
    const mt_adafactor_options factored = {.lr = 1e-2};
    mt_optimizer *means = mt_adafactor_new(mt_stage_stepped(stage), &factored);
    assert_int_equal(mt_stage_save(in_folder("one"), stage, means, NULL, 0, 0, NULL),
                     MT_ERR_UNSUPPORTED);
    mtt_failed(MT_ERR_UNSUPPORTED, "adafactor keeps means");
    mt_optimizer_free(means);
    assert_int_equal(mt_stage_save(NULL, stage, NULL, NULL, 0, 0, NULL), MT_ERR_ARGUMENT);
    mtt_failed(MT_ERR_ARGUMENT, "the path is NULL");
    assert_int_equal(mt_stage_save(in_folder("one"), stage, NULL, NULL, -1, 0, NULL),
                     MT_ERR_ARGUMENT);
    mtt_failed(MT_ERR_ARGUMENT, "step -1");
    write_alone(&models[0], 1, in_folder("one"));
    mt_safetensors *file = mt_safetensors_open(in_folder("one"));
    assert_int_equal(mt_stage_load(file, stage, NULL, NULL), MT_ERR_ARGUMENT);
    mtt_failed(MT_ERR_ARGUMENT, "does not fit the model", "lm_head");
    assert_int_equal(mt_stage_load(file, stage, optimizer, NULL), MT_ERR_UNSUPPORTED);
    mtt_failed(MT_ERR_UNSUPPORTED, "moments in codes", "MT_MOMENTS_WIDE");
    assert_int_equal(mt_stage_load_weights(file, stage), MT_ERR_ARGUMENT);
    mtt_failed(MT_ERR_ARGUMENT, "lm_head");
    mt_safetensors_free(file);
    mt_optimizer_free(optimizer);
    mt_stage_free(stage);
    mt_model_config delayed = models[1];
    delayed.ops.linear = MT_LINEAR_TE_DELAYED;
    stage = mt_stage_new(device, &delayed, NULL);
    assert_int_equal(mt_stage_save(in_folder("two"), stage, NULL, NULL, 0, 0, NULL),
                     MT_ERR_UNSUPPORTED);
    mtt_failed(MT_ERR_UNSUPPORTED, "stage_save", "te-delayed", "te-current");
    file = mt_safetensors_open(in_folder("one"));
    assert_int_equal(mt_stage_load(file, stage, NULL, NULL), MT_ERR_UNSUPPORTED);
    mtt_failed(MT_ERR_UNSUPPORTED, "stage_load", "te-delayed", "te-current");
    mt_safetensors_free(file);
    mt_stage_free(stage);
    const mt_parallel two = {.tensor = 2};
    mt_device *meta = mt_device_open("meta");
    stage = mt_stage_new(meta, &models[1], &two);
    assert_int_equal(mt_stage_save(in_folder("two"), stage, NULL, NULL, 0, 0, NULL),
                     MT_ERR_ARGUMENT);
    mtt_failed(MT_ERR_ARGUMENT, "has 1 ranks", "need all 2");
    mt_stage_free(stage);
    mt_device_release(meta);
    mt_device_release(device);
}

static void every_refused_request_for_memory_is_reported(void **state)
{
    (void)state;
    const mt_adamw_options options = adamw(&models[0]);
    write_alone(&models[0], 1, in_folder("one"));
    write_alone(&models[0], 0, in_folder("two"));
    mt_device *device = mt_device_open("cpu");
    mt_stage *stage = mt_stage_new(device, &models[0], NULL);
    mt_optimizer *optimizer = mt_adamw_new(mt_stage_stepped(stage), &options);
    bool done = false;
    for (uint64_t n = 1; !done; n = mtt_next_refusal(n)) {
        mti_fail_nth_alloc(n);
        mt_safetensors *file = mt_safetensors_open(in_folder("one"));
        bool ok = file && mt_stage_load(file, stage, optimizer, NULL) == MT_OK &&
                  mt_stage_save(in_folder("two"), stage, optimizer, NULL, 1, 1, pairs) == MT_OK;
        done = ok && mti_alloc_count() < n;
        mti_fail_nth_alloc(0);
        assert_int_equal(mt_last_status(), ok ? MT_OK : MT_ERR_MEMORY);
        mt_clear_error();
        mt_safetensors_free(file);
    }
    assert_true(mtt_same_files(in_folder("one"), in_folder("two")));
    mt_optimizer_free(optimizer);
    mt_stage_free(stage);
    mt_device_release(device);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_file_comes_back_from_any_ranks_to_the_byte),
        cmocka_unit_test(a_file_comes_back_from_stages_to_the_byte),
        cmocka_unit_test(a_file_comes_back_from_ranks_that_divide_experts),
        cmocka_unit_test(the_same_ranks_go_on_bit_for_bit),
        cmocka_unit_test(a_file_of_weights_alone_is_read_by_ranks),
        cmocka_unit_test(a_rank_that_cannot_save_tells_all),
        cmocka_unit_test(bad_calls_are_refused),
        cmocka_unit_test(every_refused_request_for_memory_is_reported),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}

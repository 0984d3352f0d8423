/* A run that is saved, stopped and resumed ends with the bits of an uninterrupted run. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "base/base.h"
#include "optim/optimizers.h"
#include "planted.h"

typedef struct run {
    mt_device *device;
    mt_module *model;
    mt_optimizer *optimizer;
} run;

/* An optimizer of the table, or AdamW and linears that keep the largest values of earlier steps. */
#define ADAMW_DELAYED MTI_OPTIMIZERS

/* So wide that the optimizer stores its state in its own way: large matrices in 8 bits, larger ones
 * in host memory. */
static int64_t width_for(const mti_optimizer_row *row)
{
    return row->paged ? 162 : row->moments >= MT_MOMENTS_8BIT ? 48 : 12;
}

static run start(mti_optimizer_choice k, mt_dtype dtype, uint64_t seed)
{
    run r = {.device = mt_device_open("cpu")};
    const mti_optimizer_choice optimizer = k == ADAMW_DELAYED ? MTI_OPT_ADAMW : k;
    mt_seed(r.device, seed);
    mt_model_config c = {.hidden = width_for(mti_optimizer_row_of(optimizer)),
                         .heads = 3,
                         .layers = 2,
                         .vocab = 11,
                         .context = 7,
                         .act = MT_ACT_GELU,
                         .dropout = 0.2,
                         .ops.linear = k == ADAMW_DELAYED && dtype != MT_F64 ? MT_LINEAR_TE_DELAYED
                                                                             : MT_LINEAR_NATIVE,
                         .dtype = dtype};
    r.model = mt_model_new(r.device, &c);
    assert_non_null(r.model);
    r.optimizer = mti_optimizer_make(optimizer, r.model, 1e-2, 0.1, false);
    assert_non_null(r.optimizer);
    return r;
}

static void stop(run *r)
{
    mt_optimizer_free(r->optimizer);
    mt_module_free(r->model);
    mt_device_release(r->device);
}

static void train(run *r, int64_t from, int64_t to)
{
    for (int64_t step = from; step < to; step++) {
        int64_t index[2 * 7], target[2 * 7];
        uint64_t draw = (uint64_t)step;
        for (int i = 0; i < 14; i++) {
            index[i] = (int64_t)mtt_draw(&draw, 0, 11);
            target[i] = (int64_t)mtt_draw(&draw, 0, 11);
        }
        MT_AUTO mt_tensor *x = mt_from_data(r->device, MT_I64, MT_SHAPE(2, 7), index, sizeof index);
        MT_AUTO mt_tensor *y =
            mt_from_data(r->device, MT_I64, MT_SHAPE(2, 7), target, sizeof target);
        mtt_ok(mt_module_zero_grad(r->model));
        mtt_ok(mt_optimizer_set_lr(r->optimizer, mt_cosine_lr(step, 2, 8, 1e-2, 1e-3)));
        MT_AUTO mt_tensor *h = mtt_made(mt_forward(r->model, x));
        mtt_ok(mt_set(&h, mt_cross_entropy(h, y, MT_IGNORE)));
        mtt_ok(mt_backward(h));
        mtt_ok(mt_clip_grad_norm(r->model, 1, NULL));
        mtt_ok(mt_optimizer_step(r->optimizer));
    }
}

static bool same_weights(run *a, run *b)
{
    const mt_named_tensor *list[2];
    size_t n[2];
    mtt_ok(mt_module_params(a->model, &list[0], &n[0]));
    mtt_ok(mt_module_params(b->model, &list[1], &n[1]));
    assert_int_equal(n[0], n[1]);
    for (size_t i = 0; i < n[0]; i++)
        if (!mtt_same_bits(list[0][i].tensor, list[1][i].tensor)) return false;
    return true;
}

static void assert_same_state(run *a, run *b)
{
    size_t n = mt_optimizer_state_count(a->optimizer);
    assert_int_equal(mt_optimizer_state_count(b->optimizer), n);
    for (size_t i = 0; i < n; i++) {
        mt_optimizer_entry x, y;
        mtt_ok(mt_optimizer_state(a->optimizer, i, &x));
        mtt_ok(mt_optimizer_state(b->optimizer, i, &y));
        assert_string_equal(x.param, y.param);
        assert_string_equal(x.name, y.name);
        assert_int_equal(x.step, y.step);
        assert_true(mtt_same_bits(x.tensor, y.tensor));
    }
}

static void a_resumed_run_continues_bit_for_bit(void **state)
{
    (void)state;
    const mt_dtype dtypes[] = {MT_F32, MT_BF16, MT_F64};
    for (mti_optimizer_choice k = MTI_OPT_NONE + 1; k <= ADAMW_DELAYED; k++)
        for (int d = 0; d < 3; d++) {
            if (!mtt_case((size_t)k + (size_t)d)) continue;
            const char *path = planted_path("run.safetensors");
            run whole = start(k, dtypes[d], 1);
            train(&whole, 0, 6);

            run first = start(k, dtypes[d], 1);
            train(&first, 0, 3);
            mt_key_value extra = {"data.position", "42"};
            mtt_ok(mt_checkpoint_save(path, first.model, first.optimizer, 3, 1, &extra));
            train(&first, 3, 4); /* saving changes nothing, and the file is of an earlier step */
            stop(&first);

            run second = start(k, dtypes[d], 999);
            assert_false(same_weights(&second, &whole));
            mt_safetensors *f = mt_safetensors_open(path);
            assert_non_null(f);
            assert_string_equal(mt_safetensors_metadata(f, "data.position"), "42");
            int64_t step = -1;
            mtt_ok(mt_checkpoint_load(f, second.model, second.optimizer, &step));
            mt_safetensors_free(f);
            assert_int_equal(step, 3);
            train(&second, step, 6);
            assert_true(same_weights(&second, &whole));
            assert_same_state(&second, &whole);
            uint64_t rng[4];
            mt_rng_get(second.device, &rng[0], &rng[1]);
            mt_rng_get(whole.device, &rng[2], &rng[3]);
            assert_int_equal(rng[0], rng[2]);
            assert_int_equal(rng[1], rng[3]);
            stop(&second);
            stop(&whole);
            unlink(path);
        }
}

static void a_saved_run_without_the_generator_would_not_continue(void **state)
{
    (void)state;
    const char *path = planted_path("run.safetensors");
    run whole = start(MTI_OPT_ADAMW, MT_F32, 1), other = start(MTI_OPT_ADAMW, MT_F32, 1);
    train(&whole, 0, 2);
    mtt_ok(mt_checkpoint_save(path, whole.model, whole.optimizer, 2, 0, NULL));
    mt_safetensors *f = mt_safetensors_open(path);
    mtt_ok(mt_checkpoint_load(f, other.model, other.optimizer, NULL));
    mt_safetensors_free(f);
    mt_seed(other.device, 7); /* a planted fault: dropout draws other masks */
    train(&whole, 2, 3);
    train(&other, 2, 3);
    assert_false(same_weights(&whole, &other));
    stop(&whole);
    stop(&other);
    unlink(path);
}

static void loading_forgets_state_that_the_file_does_not_have(void **state)
{
    (void)state;
    const char *path = planted_path("run.safetensors");
    run whole = start(MTI_OPT_ADAMW, MT_F32, 1), back = start(MTI_OPT_ADAMW, MT_F32, 1);
    mtt_ok(mt_checkpoint_save(path, back.model, back.optimizer, 0, 0, NULL));
    train(&back, 0, 2);
    mt_safetensors *f = mt_safetensors_open(path);
    mtt_ok(mt_checkpoint_load(f, back.model, back.optimizer, NULL));
    mt_safetensors_free(f);
    assert_int_equal(mt_optimizer_state_count(back.optimizer), 0);
    train(&whole, 0, 2);
    train(&back, 0, 2);
    assert_true(same_weights(&whole, &back));
    stop(&whole);
    stop(&back);
    unlink(path);
}

static void weights_load_from_a_checkpoint_as_from_any_file(void **state)
{
    (void)state;
    const char *path = planted_path("run.safetensors");
    run a = start(MTI_OPT_ADAMW, MT_F32, 1), b = start(MTI_OPT_ADAMW, MT_F32, 2);
    train(&a, 0, 1);
    mtt_ok(mt_checkpoint_save(path, a.model, a.optimizer, 1, 0, NULL));
    mt_safetensors *f = mt_safetensors_open(path);
    mtt_ok(mt_safetensors_load_module(f, b.model));
    assert_true(same_weights(&a, &b));
    mt_safetensors_free(f);
    stop(&a);
    stop(&b);
    unlink(path);
}

/* What modules keep comes along, and a file of weights may lack it: then it stays as it is. */
static void weights_load_with_what_modules_keep_and_without(void **state)
{
    (void)state;
    const char *path = planted_path("run.safetensors");
    run a = start(ADAMW_DELAYED, MT_F32, 1), b = start(ADAMW_DELAYED, MT_F32, 2);
    train(&a, 0, 2);
    for (int with = 0; with < 2; with++) {
        mtt_ok(with ? mt_checkpoint_save(path, a.model, NULL, 1, 0, NULL)
                    : mt_safetensors_save_module(path, a.model, 0, NULL));
        mt_safetensors *f = mt_safetensors_open(path);
        mtt_ok(mt_safetensors_load_module(f, b.model));
        mt_safetensors_free(f);
        assert_true(same_weights(&a, &b));
        mt_rng_set(a.device, 1, 2), mt_rng_set(b.device, 1, 2);
        double loss[2];
        for (int i = 0; i < 2; i++) {
            run *r = i ? &b : &a;
            mt_module_set_training(r->model, false);
            MT_AUTO mt_tensor *x = mt_from_data(r->device, MT_I64, MT_SHAPE(1, 2),
                                                (const int64_t[]){3, 4}, 2 * sizeof(int64_t));
            MT_AUTO mt_tensor *y = mt_forward(r->model, x);
            MT_AUTO mt_tensor *sum = mt_sum_all(y);
            loss[i] = mt_item(sum);
        }
        assert_true((loss[0] == loss[1]) == with);
    }
    stop(&a);
    stop(&b);
    unlink(path);
}

static void a_file_that_does_not_fit_changes_nothing(void **state)
{
    (void)state;
    const char *path = planted_path("run.safetensors");
    run adamw = start(MTI_OPT_ADAMW, MT_F32, 1), sgd = start(MTI_OPT_SGD_MOMENTUM, MT_F32, 2),
        same = start(MTI_OPT_SGD_MOMENTUM, MT_F32, 2);
    train(&adamw, 0, 1);
    mtt_ok(mt_checkpoint_save(path, adamw.model, adamw.optimizer, 1, 0, NULL));
    mt_safetensors *f = mt_safetensors_open(path);
    int64_t step = 77;
    mt_checkpoint_load(f, sgd.model, sgd.optimizer, &step);
    mtt_failed(MT_ERR_ARGUMENT, "\"adamw\"", "\"sgd\"");
    mt_module *other = mt_model_new(
        sgd.device, &(mt_model_config){.hidden = 12, .vocab = 11, .context = 7, .dtype = MT_F32});
    mt_checkpoint_load(f, other, NULL, &step);
    mtt_failed(MT_ERR_ARGUMENT, "superfluous");
    mt_safetensors_free(f);

    /* what modules keep belongs to the model, with an optimizer and without */
    for (int i = 0; i < 4; i++) {
        run has = start(i % 2 ? MTI_OPT_ADAMW : ADAMW_DELAYED, MT_F32, 1),
            wants = start(i % 2 ? ADAMW_DELAYED : MTI_OPT_ADAMW, MT_F32, 2);
        mtt_ok(mt_checkpoint_save(path, has.model, has.optimizer, 1, 0, NULL));
        f = mt_safetensors_open(path);
        mt_checkpoint_load(f, wants.model, i < 2 ? wants.optimizer : NULL, &step);
        if (i % 2)
            mtt_failed(MT_ERR_ARGUMENT, "run.safetensors", "lacks", "keeps from step to step");
        else
            mtt_failed(MT_ERR_ARGUMENT, "16 tensors", "keeps from step to step", "need 0");
        mt_safetensors_free(f);
        stop(&has), stop(&wants);
    }

    /* a file of weights alone is not a checkpoint */
    mtt_ok(mt_safetensors_save_module(path, adamw.model, 0, NULL));
    f = mt_safetensors_open(path);
    mt_checkpoint_load(f, sgd.model, sgd.optimizer, &step);
    mtt_failed(MT_ERR_FORMAT, "run.safetensors", "memtape.step");
    mt_safetensors_free(f);

    assert_int_equal(step, 77);
    assert_true(same_weights(&sgd, &same));
    assert_int_equal(mt_optimizer_state_count(sgd.optimizer), 0);
    mt_module_free(other);
    stop(&adamw);
    stop(&sgd);
    stop(&same);
    unlink(path);
}

static void state_of_other_bits_is_refused(void **state)
{
    (void)state;
    for (int pair = 0; pair < 4; pair++) {
        const char *path = planted_path("run.safetensors");
        mti_optimizer_choice few = pair % 2 ? MTI_OPT_ADAMW_16BIT : MTI_OPT_ADAMW_8BIT;
        run saved = start(few, MT_BF16, 1), other = start(few, MT_BF16, 2);
        run *wide = pair < 2 ? &saved : &other;
        mt_optimizer_free(wide->optimizer);
        wide->optimizer = mt_adamw_new(wide->model, &(mt_adamw_options){.lr = 1e-2});
        int64_t step = 77;
        train(&saved, 0, 1);
        mtt_ok(mt_checkpoint_save(path, saved.model, saved.optimizer, 1, 0, NULL));
        mt_safetensors *f = mt_safetensors_open(path);
        mt_checkpoint_load(f, other.model, other.optimizer, &step);
        mtt_failed(MT_ERR_ARGUMENT, "the optimizer state \"m\"", "another shape or dtype");
        mt_safetensors_free(f);
        assert_int_equal(step, 77);
        assert_int_equal(mt_optimizer_state_count(other.optimizer), 0);
        stop(&saved), stop(&other);
        unlink(path);
    }
}

static void the_caller_cannot_use_the_librarys_keys(void **state)
{
    (void)state;
    const char *path = planted_path("run.safetensors");
    run r = start(MTI_OPT_SGD, MT_F32, 1);
    mt_key_value extra = {"memtape.step", "9"};
    mt_checkpoint_save(path, r.model, NULL, 0, 1, &extra);
    mtt_failed(MT_ERR_ARGUMENT, "memtape.step");
    assert_int_not_equal(access(path, F_OK), 0);
    stop(&r);
}

/* Replaces a text in the file's metadata or header by another of the same length. */
static void damage(const char *path, const char *from, const char *to)
{
    size_t n;
    unsigned char *bytes = planted_read(path, &n);
    char *at = memmem(bytes, n, from, strlen(from));
    assert_non_null(at);
    assert_int_equal(strlen(from), strlen(to));
    memcpy(at, to, strlen(to));
    planted_bytes(path, bytes, n);
    free(bytes);
}

static void a_damaged_checkpoint_is_refused(void **state)
{
    (void)state;
    const struct {
        const char *from, *to;
        mt_status status;
        const char *fault;
    } faults[] = {
        {"\"memtape.step\":\"1\"", "\"memtape.step\":\"x\"", MT_ERR_FORMAT, "memtape.step"},
        {"\"memtape.step\":\"1\"", "\"memtape.step\":\"-\"", MT_ERR_FORMAT, "memtape.step"},
        {"memtape.rng.offset", "memtape.rng.0ffset", MT_ERR_FORMAT, "memtape.rng.offset"},
        {"memtape.steps", "memtape.stepz", MT_ERR_FORMAT, "memtape.steps"},
        {"wte.weight\\\":1", "wte.weight\\\":0", MT_ERR_FORMAT, "not a number >= 1"},
        {"wte.weight\\\":1", "wtf.weight\\\":1", MT_ERR_ARGUMENT, "no such parameter"},
        {"\"optimizer.m.wte.weight", "\"optimizer.x.wte.weight", MT_ERR_ARGUMENT, "missing"},
        {"\"optimizer.m.wte.weight", "\"optimizes.m.wte.weight", MT_ERR_ARGUMENT, "superfluous"},
        {"{\\\"wte.weight\\\":1,", "{                 ", MT_ERR_ARGUMENT, "optimizer state"},
        {"mlp.fc.largest_forward", "mlp.fc.largest_forwarx", MT_ERR_ARGUMENT,
         "lacks \"h.0.mlp.fc.largest_forward\""},
        {"\"memtape.state.h.0", "\"memtape.stata.h.0", MT_ERR_ARGUMENT, "superfluous"},
        {"[1024,3]", "[3,1024]", MT_ERR_ARGUMENT, "is f32 [3,1024]; need f32 [1024,3]"},
    };
    const char *path = planted_path("run.safetensors");
    run r = start(ADAMW_DELAYED, MT_F32, 1), other = start(ADAMW_DELAYED, MT_F32, 2),
        same = start(ADAMW_DELAYED, MT_F32, 2);
    train(&r, 0, 1);
    for (size_t i = 0; i < sizeof faults / sizeof faults[0]; i++) {
        mtt_ok(mt_checkpoint_save(path, r.model, r.optimizer, 1, 0, NULL));
        damage(path, faults[i].from, faults[i].to);
        mt_safetensors *f = mt_safetensors_open(path);
        assert_non_null(f);
        assert_int_equal(mt_checkpoint_load(f, other.model, other.optimizer, NULL),
                         faults[i].status);
        mtt_failed(faults[i].status, "run.safetensors", faults[i].fault);
        mt_safetensors_free(f);
    }
    assert_true(same_weights(&other, &same));
    stop(&r);
    stop(&other);
    stop(&same);
    unlink(path);
}

static size_t allocated(const mt_device *device)
{
    mt_mem_stats stats;
    mt_mem_get_stats(device, &stats);
    return stats.allocated.current;
}

static void any_allocation_may_fail_while_saving_and_loading(void **state)
{
    (void)state;
    const char *path = planted_path("run.safetensors");
    run r = start(ADAMW_DELAYED, MT_F32, 1);
    train(&r, 0, 1);
    mtt_ok(mt_checkpoint_save(path, r.model, r.optimizer, 1, 0, NULL));
    size_t n_good, n_bytes, before = allocated(r.device);
    unsigned char *good = planted_read(path, &n_good);
    uint64_t n = 1;
    for (bool failed = true; failed; n++) {
        mti_fail_nth_alloc(n);
        failed = mt_checkpoint_save(path, r.model, r.optimizer, 1, 0, NULL) != MT_OK;
        mti_fail_nth_alloc(0);
        if (failed) mtt_failed(MT_ERR_MEMORY, "");
        unsigned char *bytes = planted_read(path, &n_bytes);
        assert_int_equal(n_bytes, n_good);
        assert_memory_equal(bytes, good, n_good);
        free(bytes);
        assert_int_equal(allocated(r.device), before);
    }
    assert_true(n > 100);
    free(good);

    uint64_t saves = n;
    for (n = 1;; n++) {
        run other = start(ADAMW_DELAYED, MT_F32, 2);
        mti_fail_nth_alloc(n);
        mt_safetensors *f = mt_safetensors_open(path);
        bool failed = !f || mt_checkpoint_load(f, other.model, other.optimizer, NULL) != MT_OK;
        bool reached = mti_alloc_count() >= n;
        mt_safetensors_free(f);
        mti_fail_nth_alloc(0);
        if (failed) mtt_failed(MT_ERR_MEMORY, "");
        if (!failed) assert_true(same_weights(&r, &other));
        stop(&other);
        if (!reached) break;
    }
    print_message("%llu allocations of saving, %llu of loading failed in turn\n",
                  (unsigned long long)(saves - 2), (unsigned long long)(n - 1));
    assert_true(n > 100);
    stop(&r);
    unlink(path);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_resumed_run_continues_bit_for_bit),
        cmocka_unit_test(a_saved_run_without_the_generator_would_not_continue),
        cmocka_unit_test(loading_forgets_state_that_the_file_does_not_have),
        cmocka_unit_test(weights_load_from_a_checkpoint_as_from_any_file),
        cmocka_unit_test(weights_load_with_what_modules_keep_and_without),
        cmocka_unit_test(a_file_that_does_not_fit_changes_nothing),
        cmocka_unit_test(state_of_other_bits_is_refused),
        cmocka_unit_test(the_caller_cannot_use_the_librarys_keys),
        cmocka_unit_test(a_damaged_checkpoint_is_refused),
        cmocka_unit_test(any_allocation_may_fail_while_saving_and_loading),
    };
    return cmocka_run_group_tests(tests, NULL, planted_end);
}

/* An optimizer that steps within backward: the same bits as one that steps after it, and at most
 * one gradient at a time. */
#include <stdlib.h>
#include <string.h>
#include "memtape/models/amp.h"
#include "memtape/models/model.h"
#include "memtape/ops.h"
#include "memtape/models/optimizer.h"
#include "optim/optimizers.h"
#include "mtt.h"
#include "mtt_fixture.h"

enum { STEPS = 3, TOKENS = 6 };

typedef struct run {
    mt_module *model;
    mt_optimizer *optimizer;
    size_t most; /* bytes of gradients at any instant */
} run;

/* Follows the bytes of category gradient. */
typedef struct meter {
    size_t now, most;
} meter;

static void note(void *user, const mt_mem_event *e)
{
    meter *m = user;
    bool is = e->category == MT_GRADIENT, was = e->was == MT_GRADIENT;
    if (e->kind == MT_MEM_ALLOC && is) m->now += e->allocated;
    if (e->kind == MT_MEM_FREE && is) m->now -= e->allocated;
    if (e->kind == MT_MEM_RECATEGORY) m->now += (is - was) * e->allocated;
    if (m->now > m->most) m->most = m->now;
}

static mt_module *make_model(mt_dtype dtype, const char *checkpoint)
{
    mt_model_config c = {.kind = MT_MODEL_GPT, /* its head is the embedding */
                         .hidden = 48,         /* 8 bits are for large matrices */
                         .heads = 2,
                         .layers = 2,
                         .vocab = 13,
                         .context = TOKENS,
                         .dtype = dtype};
    mt_seed(device, 5);
    mt_module *model = mt_model_new(device, &c);
    assert_non_null(model);
    if (checkpoint) mtt_ok(mt_model_checkpoint(model, checkpoint));
    return model;
}

static mt_tensor *loss_of(mt_module *model, int64_t step)
{
    int64_t at[TOKENS], next[TOKENS];
    for (int64_t i = 0; i < TOKENS; i++) at[i] = (3 * i + step) % 13, next[i] = (5 * i + step) % 13;
    MT_AUTO mt_tensor *x = mt_from_data(device, MT_I64, MT_SHAPE(1, TOKENS), at, sizeof at);
    MT_AUTO mt_tensor *y = mt_from_data(device, MT_I64, MT_SHAPE(1, TOKENS), next, sizeof next);
    MT_AUTO mt_tensor *logits = mtt_made(mt_forward(model, x));
    return mtt_made(mt_cross_entropy(logits, y, MT_IGNORE));
}

static run train(mt_dtype dtype, const char *checkpoint, mti_optimizer_choice optimizer,
                 bool in_backward)
{
    run r = {.model = make_model(dtype, checkpoint)};
    r.optimizer = mti_optimizer_make(optimizer, r.model, 1e-2, 0.1, dtype == MT_BF16);
    assert_non_null(r.optimizer);
    if (in_backward) mtt_ok(mt_optimizer_step_in_backward(r.optimizer, true));
    meter gradients = {0};
    int observer = mt_mem_add_observer(device, note, &gradients);
    for (int64_t step = 0; step < STEPS; step++) {
        mt_tensor *loss = loss_of(r.model, step);
        mtt_ok(mt_backward(loss));
        mt_release(loss);
        mtt_ok(mt_optimizer_step(r.optimizer));
        mtt_ok(mt_module_zero_grad(r.model));
    }
    mt_mem_remove_observer(device, observer);
    r.most = gradients.most;
    return r;
}

static void stop(run *r)
{
    mt_optimizer_free(r->optimizer);
    mt_module_free(r->model);
}

static void assert_same_weights(const run *a, const run *b)
{
    const mt_named_tensor *x, *y;
    size_t n, m;
    mtt_ok(mt_module_params(a->model, &x, &n));
    mtt_ok(mt_module_params(b->model, &y, &m));
    assert_int_equal(n, m);
    for (size_t i = 0; i < n; i++) {
        double *p = mtt_doubles(x[i].tensor), *q = mtt_doubles(y[i].tensor);
        assert_memory_equal(p, q, (size_t)mt_numel(x[i].tensor) * sizeof *p);
        free(p), free(q);
    }
}

/* Rounded up to a block. */
static size_t bytes_of(const mt_tensor *t) { return mt_storage_of(t).allocated; }

/* CUDA has no moments in 4 bits, and keeps no state in host memory. */
static bool runs_here(mti_optimizer_choice k)
{
    const mti_optimizer_row *row = mti_optimizer_row_of(k);
    return !strcmp(mt_device_kind(device), "cpu") ||
           (row->moments != MT_MOMENTS_TORCHAO_4BIT && !row->paged && !row->host);
}

static void the_bits_are_those_of_a_step_after_backward(void **state)
{
    (void)state;
    const bool few = mtt_short_simulation();
    static const char *const checkpoints[] = {NULL, "full"};
    static const mt_dtype dtypes[] = {MT_F32, MT_BF16};
    for (mti_optimizer_choice k = MTI_OPT_NONE + 1; k < MTI_OPTIMIZERS; k += few ? 2 : 1)
        for (int c = 0; c < 2 && runs_here(k); c++)
            for (int d = 0; d < 2; d++) {
                run after = train(dtypes[d], checkpoints[c], k, false);
                run within = train(dtypes[d], checkpoints[c], k, true);
                assert_same_weights(&after, &within);
                stop(&after), stop(&within);
            }
}

/* The embedding, which is the head too, waits for its second gradient; others go one by one, two at
 * once where an op has a weight and a bias. */
static void few_gradients_are_there_at_once(void **state)
{
    (void)state;
    run after = train(MT_F32, NULL, MTI_OPT_ADAMW, false),
        within = train(MT_F32, NULL, MTI_OPT_ADAMW, true);
    const mt_named_tensor *list;
    size_t n, all = 0, largest = 0, tied = 0;
    mtt_ok(mt_module_params(within.model, &list, &n));
    for (size_t i = 0; i < n; i++) {
        assert_null(mt_grad(list[i].tensor));
        size_t bytes = bytes_of(list[i].tensor);
        all += bytes;
        if (strstr(list[i].name, "wte"))
            tied = bytes;
        else if (bytes > largest)
            largest = bytes;
    }
    assert_true(tied > 0);
    assert_int_equal(after.most, all);
    assert_true(within.most <= tied + largest);
    stop(&after), stop(&within);
}

/* A product that two or three checkpoints run, of a frozen x or one that learns: stepped once. */
static void a_parameter_of_several_checkpoints_is_stepped_once(void **state)
{
    (void)state;
    for (int i = 0; i < 8; i++) {
        mt_tensor *after[2] = {NULL, NULL};
        for (int in_backward = 0; in_backward < 2; in_backward++) {
            mt_seed(device, 3);
            MT_AUTO mt_tensor *x = mtt_made(mt_normal(device, MT_F64, MT_SHAPE(5, 6), 0, 1));
            mtt_ok(mt_set_requires_grad(x, i & 1));
            mt_module *m = mt_linear_new(device, MT_F64, 6, 6, true, 1);
            assert_non_null(m);
            mt_optimizer *o = mt_sgd_new(m, &(mt_sgd_options){.lr = 0.1, .momentum = 0.9});
            if (i & 4) mtt_ok(mt_module_set_checkpoint(m, &(mt_checkpoint_options){.check = true}));
            mtt_ok(mt_optimizer_step_in_backward(o, in_backward));
            for (int step = 0; step < 3; step++) {
                MT_AUTO mt_tensor *y = mtt_made(mt_forward(m, x));
                for (int k = 0; k < 1 + (i >> 1 & 1); k++) {
                    mt_set(&y, mt_tanh(y));
                    mt_set(&y, mtt_made(mt_forward(m, y)));
                }
                mt_set(&y, mtt_made(mt_sum_all(y)));
                mtt_ok(mt_backward(y));
                mtt_ok(mt_optimizer_step(o)); /* nothing is left for it if it stepped before */
                mtt_ok(mt_module_zero_grad(m));
            }
            mt_optimizer_entry e;
            mtt_ok(mt_optimizer_state(o, 0, &e));
            assert_int_equal(e.step, 3);
            after[in_backward] = mtt_made(mt_clone(mt_module_param(m, "weight")));
            mt_optimizer_free(o);
            mt_module_free(m);
        }
        assert_true(mtt_same_bits(after[0], after[1]));
        mt_release(after[0]), mt_release(after[1]);
    }
}

static void a_scaler_refuses_it(void **state)
{
    (void)state;
    mt_module *model = make_model(MT_F32, NULL);
    mt_optimizer *o = mti_optimizer_make(MTI_OPT_ADAMW, model, 1e-2, 0.1, true);
    mt_scaler *scaler = mt_scaler_new(NULL);
    mtt_ok(mt_optimizer_step_in_backward(o, true));
    assert_int_equal(mt_scaler_step(scaler, o, NULL), MT_ERR_STATE);
    mtt_failed(MT_ERR_STATE, "scaler_step", "steps in backward");
    mtt_ok(mt_optimizer_step_in_backward(o, false));
    mtt_ok(mt_scaler_step(scaler, o, NULL));
    mt_scaler_free(scaler);
    mt_optimizer_free(o);
    mt_module_free(model);
}

/* Off again, a backward leaves its gradients. Frozen parameters are passed over. */
static void it_can_be_turned_off(void **state)
{
    (void)state;
    mt_module *model = make_model(MT_F32, NULL);
    mtt_ok(mt_module_freeze(mt_module_child(model, "ln_f"), true));
    mt_optimizer *o = mti_optimizer_make(MTI_OPT_ADAMW, model, 1e-2, 0.1, true);
    mtt_ok(mt_optimizer_step_in_backward(o, true));
    mtt_ok(mt_optimizer_step_in_backward(o, true));
    mtt_ok(mt_optimizer_step_in_backward(o, false));
    MT_AUTO mt_tensor *loss = loss_of(model, 0);
    mtt_ok(mt_backward(loss));
    assert_int_equal(mt_optimizer_state_count(o), 0);
    assert_non_null(mt_grad(mt_module_param(mt_module_child(model, "wte"), "weight")));
    assert_null(mt_grad(mt_module_param(mt_module_child(model, "ln_f"), "weight")));
    mt_optimizer_free(o);
    mt_module_free(model);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        mtt_test(the_bits_are_those_of_a_step_after_backward),
        mtt_test(few_gradients_are_there_at_once),
        mtt_test(a_parameter_of_several_checkpoints_is_stepped_once),
        mtt_test(a_scaler_refuses_it),
        mtt_test(it_can_be_turned_off),
    };
    return cmocka_run_group_tests_name("step in backward", tests, mtt_open_device,
                                       mtt_close_device);
}

/* Two host threads on one device get the bits that each gets alone: for every row of the op table,
 * forward and backward, and for whole steps. Under cudasim their launches alternate
 * (CUDASIM_TURNS), which finds state that the kernels of two calls share. */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include "../src/gradcheck/gradcheck.h"
#include "mtt.h"
#include "mtt_fixture.h"

enum { HOSTS = 2, STEPS = 3 };

/* Runs `work` on two threads. Only the main thread may use cmocka's checks, so `work` returns its
 * result. */
static void run_together(void *(*work)(void *), void *first, void *second)
{
    void *of[HOSTS] = {first, second};
    pthread_t thread[HOSTS];
    for (int i = 0; i < HOSTS; i++)
        assert_int_equal(pthread_create(&thread[i], NULL, work, of[i]), 0);
    for (int i = 0; i < HOSTS; i++) assert_int_equal(pthread_join(thread[i], NULL), 0);
}

/* ---- every row of the table ---- */

typedef struct op_run {
    const grad_case *c;
    mt_dtype dtype;
    uint64_t seed; /* seed of the values */
    bool good;
    double *results[1 + CASE_INPUTS]; /* the output, then the gradients */
    int64_t n[1 + CASE_INPUTS];
    char error[200];
} op_run;

static mt_tensor *make_input(const op_run *r, int i)
{
    const mti_case_input *in = &r->c->of.in[i];
    int64_t n = case_count(in);
    uint64_t state = r->seed + (uint64_t)i;
    if (!in->below)
        return mtt_random(device, r->dtype, in->rank, in->shape, state, in->low, in->high);
    int64_t index[64];
    for (int64_t j = 0; j < n; j++) index[j] = (int64_t)mtt_draw(&state, 0, (double)in->below);
    return mt_from_data(device, MT_I64, in->rank, in->shape, index, (size_t)n * sizeof *index);
}

static bool keep_result(op_run *r, int i, mt_tensor *t)
{
    r->results[i] = t ? mtt_doubles(t) : NULL;
    r->n[i] = t ? mt_numel(t) : 0;
    return !t || r->results[i];
}

static void *run_op(void *argument)
{
    op_run *r = argument;
    mt_tensor *in[CASE_INPUTS] = {0};
    r->good = true;
    for (int i = 0; i < r->c->of.n_in && r->good; i++) {
        in[i] = make_input(r, i);
        r->good = in[i] && (r->c->of.in[i].below || mt_set_requires_grad(in[i], true) == MT_OK);
    }
    mt_tensor *out = r->good ? case_call(r->c, in) : NULL;
    if (out) {
        MT_AUTO mt_tensor *weights = mtt_random(device, mt_dtype_of(out), mt_rank(out),
                                                mt_shape(out), r->seed + 9, 0.5, 1.5);
        mt_backward_options options = {.gradient = weights};
        r->good = weights && mt_backward_with(out, &options) == MT_OK;
    }
    r->good = r->good && out && keep_result(r, 0, out);
    for (int i = 0; i < r->c->of.n_in && r->good; i++)
        r->good = keep_result(r, 1 + i, mt_grad(in[i]));
    if (!r->good) strncpy(r->error, mt_last_error(), sizeof r->error - 1);
    mt_clear_error();
    mt_release(out);
    for (int i = 0; i < r->c->of.n_in; i++) mt_release(in[i]);
    return NULL;
}

static bool same_results(const op_run *a, const op_run *b)
{
    for (int i = 0; i <= CASE_INPUTS; i++)
        if (a->n[i] != b->n[i] ||
            (a->n[i] && memcmp(a->results[i], b->results[i], (size_t)a->n[i] * sizeof(double))))
            return false;
    return a->good && b->good;
}

static void free_results(op_run *r)
{
    for (int i = 0; i <= CASE_INPUTS; i++) free(r->results[i]);
}

/* Whether the case draws random numbers: two threads share the device's generator, in any order. */
static bool draws_random_numbers(const grad_case *c)
{
    return strstr(c->of.note, "dropout") || !strcmp(c->of.op, "dropout");
}

static void each_row_of_the_table_gives_the_same_bits_as_alone(void **state)
{
    (void)state;
    static const mt_dtype dtypes[] = {MT_F32, MT_F64, MT_BF16};
    bool few = mtt_short_simulation(); /* one dtype in turn */
    int n_compared = 0, n_wrong = 0, n_skipped = 0;
    const grad_case *list;
    int n_cases = grad_all_cases(&list);
    for (int i = 0; i < n_cases; i++)
        for (int d = 0; d < 3; d++) {
            if (few && d != i % 3) continue;
            if (draws_random_numbers(&list[i])) {
                n_skipped++;
                continue;
            }
            op_run alone[HOSTS] = {0}, beside[HOSTS] = {0};
            for (int h = 0; h < HOSTS; h++) {
                alone[h] = (op_run){&list[i], dtypes[d], 100 + 10 * (uint64_t)h, .good = false};
                beside[h] = alone[h];
                run_op(&alone[h]);
            }
            run_together(run_op, &beside[0], &beside[1]);
            for (int h = 0; h < HOSTS; h++) {
                /* a dtype that the row refuses alone is refused here, too */
                bool same = alone[h].good ? same_results(&alone[h], &beside[h]) : !beside[h].good;
                if (!same)
                    print_error("%s, %s, %s: other bits while another thread runs: %s\n",
                                list[i].of.op, list[i].of.note, mt_dtype_name(dtypes[d]),
                                beside[h].error);
                n_wrong += !same;
                n_compared += alone[h].good;
                free_results(&alone[h]), free_results(&beside[h]);
            }
        }
    print_message("one device: %d pairs of runs compared, %d wrong, %d draw random numbers\n",
                  n_compared, n_wrong, n_skipped);
    assert_int_equal(n_wrong, 0);
    assert_true(n_compared > (few ? 1 : 4) * n_cases);
}

/* ---- whole steps: the loss, its gradient, their norm, the optimizer ---- */

typedef struct training {
    mt_module *gpt;
    mt_optimizer *adamw;
    mt_tensor *tokens, *targets;
    double loss[STEPS], norm[STEPS];
    bool good;
} training;

static training training_new(mt_device *on, uint64_t seed)
{
    mt_model_config tiny = {.kind = MT_MODEL_GPT,
                            .hidden = 12,
                            .heads = 3,
                            .layers = 1,
                            .vocab = 11,
                            .context = 7,
                            .act = MT_ACT_GELU,
                            .attention = MT_ATTENTION_FLASH,
                            .dtype = MT_F32};
    mt_seed(on, seed);
    training t = {.gpt = mt_model_new(on, &tiny)};
    t.adamw = mt_adamw_new(t.gpt, &(mt_adamw_options){.lr = 1e-2, .weight_decay = 0.1});
    int64_t index[2][14];
    for (int i = 0; i < 2 * 14; i++) index[i / 14][i % 14] = (int64_t)mtt_draw(&seed, 0, 11);
    t.tokens = mt_from_data(on, MT_I64, MT_SHAPE(2, 7), index[0], sizeof *index);
    t.targets = mt_from_data(on, MT_I64, MT_SHAPE(2, 7), index[1], sizeof *index);
    assert_true(t.gpt && t.adamw && t.tokens && t.targets);
    return t;
}

static void training_free(training *t)
{
    mt_optimizer_free(t->adamw);
    mt_module_free(t->gpt);
    mt_release(t->tokens), mt_release(t->targets);
}

static void *train(void *argument)
{
    training *t = argument;
    t->good = true;
    for (int i = 0; i < STEPS && t->good; i++) {
        mt_tensor *h = mt_module_zero_grad(t->gpt) == MT_OK ? mt_forward(t->gpt, t->tokens) : NULL;
        mt_set(&h, mt_cross_entropy(h, t->targets, MT_IGNORE));
        t->good = mt_backward(h) == MT_OK && mt_clip_grad_norm(t->gpt, 1, &t->norm[i]) == MT_OK &&
                  mt_optimizer_step(t->adamw) == MT_OK;
        t->loss[i] = t->good ? mt_item(h) : 0;
        mt_release(h);
    }
    return NULL;
}

static void assert_same_training(const training *a, const training *b)
{
    assert_true(a->good && b->good);
    assert_memory_equal(a->loss, b->loss, sizeof a->loss);
    assert_memory_equal(a->norm, b->norm, sizeof a->norm);
    const mt_named_tensor *of_a, *of_b;
    size_t n, n_b;
    mtt_ok(mt_module_params(a->gpt, &of_a, &n));
    mtt_ok(mt_module_params(b->gpt, &of_b, &n_b));
    assert_int_equal(n, n_b);
    for (size_t i = 0; i < n; i++) assert_true(mtt_same_bits(of_a[i].tensor, of_b[i].tensor));
}

static void train_two(mt_device *const *on)
{
    training alone[HOSTS], beside[HOSTS];
    for (int h = 0; h < HOSTS; h++) {
        alone[h] = training_new(on[h], 3 + (uint64_t)h),
        beside[h] = training_new(on[h], 3 + (uint64_t)h);
        train(&alone[h]);
    }
    run_together(train, &beside[0], &beside[1]);
    for (int h = 0; h < HOSTS; h++) {
        assert_same_training(&alone[h], &beside[h]);
        training_free(&alone[h]), training_free(&beside[h]);
    }
}

static void two_threads_training_on_one_device_do_not_affect_each_other(void **state)
{
    (void)state;
    for (int again = 0; again < 3; again++) train_two((mt_device *[]){device, device});
}

static void two_threads_training_on_two_devices_do_not_affect_each_other(void **state)
{
    (void)state;
    mt_device *other = mtt_device();
    train_two((mt_device *[]){device, other});
    mt_device_release(other);
}

/* ---- an error that a kernel finds ---- */

static void *sync_device(void *argument)
{
    *(mt_status *)argument = mt_device_sync(device);
    mt_clear_error();
    return NULL;
}

/* Kernels run asynchronously, so the next thread that waits gets the error; only one of two does.
 */
static void a_bad_index_is_reported_to_one_of_two_waiting_threads(void **state)
{
    (void)state;
    if (!strcmp(mt_device_kind(device), "cpu")) skip(); /* the call itself reports it */
    MT_AUTO mt_tensor *table = mtt_made(mtt_random(device, MT_F32, MT_SHAPE(4, 3), 1, -1, 1));
    for (int64_t bad = 4; bad < 14; bad++) {
        MT_AUTO mt_tensor *index =
            mtt_made(mt_from_data(device, MT_I64, MT_SHAPE(2), (int64_t[]){bad, 1}, 16));
        MT_AUTO mt_tensor *rows = mtt_made(mt_embedding(index, table, NULL));
        mt_status status[HOSTS];
        run_together(sync_device, &status[0], &status[1]);
        assert_int_equal((status[0] != MT_OK) + (status[1] != MT_OK), 1);
        assert_int_equal(status[0] + status[1], MT_ERR_ARGUMENT);
        mtt_ok(mt_device_sync(device));
    }
}

/* Without the balance check: it reads the whole device, which another thread is changing here. */
static int open_device(void **state)
{
    int failed = mtt_open_device(state);
    return failed ? failed : mt_set_balance_check(device, false) == MT_OK ? 0 : -1;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        mtt_test(each_row_of_the_table_gives_the_same_bits_as_alone),
        mtt_test(two_threads_training_on_one_device_do_not_affect_each_other),
        mtt_test(two_threads_training_on_two_devices_do_not_affect_each_other),
        mtt_test(a_bad_index_is_reported_to_one_of_two_waiting_threads),
    };
    return cmocka_run_group_tests(tests, open_device, mtt_close_device);
}

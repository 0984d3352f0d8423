/* Hooks on saved tensors: order, nesting, what they may keep, failures. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "mtt_fixture.h"

/* A hook that logs its calls ("pA " for pack of A), and fails or returns another tensor if told
 * to. */
typedef enum swap { LEAVE, COPY, HOST, WRONG_SHAPE, WRONG_DTYPE, NOTHING } swap;
typedef struct probe {
    char name;
    char *log;
    swap swap;
    bool pack_fails, unpack_fails;
    int packs, unpacks, drops, destroys;
    double first_seen; /* first element of the tensor that pack got */
    mt_save_info info;
    float host[64];
} probe;

static void log_call(probe *p, char what)
{
    if (p->log) sprintf(p->log + strlen(p->log), "%c%c ", what, p->name);
}

static double first(mt_tensor *t)
{
    double *values = mtt_doubles(t);
    double value = values ? values[0] : -1;
    free(values);
    return value;
}

static mt_status pack(void *user, const mt_save_info *info, mt_tensor *tensor, mt_tensor **kept,
                      void **state)
{
    probe *p = user;
    log_call(p, 'p');
    if (p->pack_fails) return MT_ERR_IO;
    p->packs++;
    p->info = *info;
    p->first_seen = first(*kept);
    (void)tensor;
    if (p->swap == COPY) {
        mt_tensor *copy = mt_mul_scalar(*kept, 2);
        if (!copy) return mt_last_status();
        *kept = copy;
    }
    if (p->swap == HOST || p->swap == WRONG_SHAPE || p->swap == WRONG_DTYPE || p->swap == NOTHING) {
        mt_status status = mt_to_host(*kept, p->host, (size_t)mt_numel(*kept) * sizeof(float));
        if (status != MT_OK) return status;
        *kept = NULL;
    }
    *state = p;
    return MT_OK;
}

static mt_status unpack(void *user, const mt_save_info *info, mt_tensor **tensor, void *state)
{
    probe *p = user;
    (void)info;
    log_call(p, 'u');
    if (p->unpack_fails) return MT_ERR_IO;
    if (state != p) return MT_ERR_INTERNAL;
    p->unpacks++;
    if (p->swap == COPY) *tensor = mt_mul_scalar(*tensor, 0.5);
    if (p->swap == HOST) *tensor = mt_from_data(device, MT_F32, MT_SHAPE(4), p->host, 16);
    if (p->swap == WRONG_SHAPE) *tensor = mt_from_data(device, MT_F32, MT_SHAPE(2, 2), p->host, 16);
    if (p->swap == WRONG_DTYPE) *tensor = mt_zeros(device, MT_F64, MT_SHAPE(4));
    return *tensor || p->swap == NOTHING ? MT_OK : mt_last_status();
}

static void drop(void *user, const mt_save_info *info, void *state)
{
    probe *p = user;
    (void)info;
    log_call(p, 'd');
    p->drops += state == p;
}

static void destroy(void *user) { ((probe *)user)->destroys++; }

static void push(probe *p)
{
    mtt_ok(mt_push_saved_hooks(&(mt_saved_hooks){pack, unpack, drop, destroy}, p));
}

/* x [4] = 1 2 3 4; relu(x) saves only its result. */
static mt_tensor *leaf(void) { return mtt_leaf(4, (float[]){1, 2, 3, 4}); }

static mt_status backward_of_ones(mt_tensor *y, bool retain)
{
    MT_AUTO mt_tensor *ones = mtt_made(mt_full(device, MT_F32, mt_rank(y), mt_shape(y), 1));
    return mt_backward_with(y, &(mt_backward_options){.gradient = ones, .retain_graph = retain});
}

static void the_innermost_hook_packs_first_and_unpacks_last(void **state)
{
    (void)state;
    char log[200] = "";
    probe a = {.name = 'A', .log = log}, b = {.name = 'B', .log = log};
    MT_AUTO mt_tensor *x = leaf();
    push(&a);
    push(&b);
    MT_AUTO mt_tensor *y = mtt_made(mt_relu(x));
    assert_string_equal(log, "pB pA ");
    mtt_ok(mt_pop_saved_hooks());
    mtt_ok(mt_pop_saved_hooks());
    mtt_ok(backward_of_ones(y, false));
    assert_non_null(strstr(log, "pB pA uA uB "));
    assert_int_equal(a.drops, 1);
    assert_int_equal(b.drops, 1);
}

static void a_hook_gets_op_argument_role_and_module(void **state)
{
    (void)state;
    probe a = {.name = 'A'};
    MT_AUTO mt_tensor *x = leaf();
    push(&a);
    mtt_ok(mt_scope_push("net"));
    mtt_ok(mt_scope_push("act"));
    MT_AUTO mt_tensor *y = mtt_made(mt_gelu(x));
    mt_scope_pop();
    mt_scope_pop();
    assert_string_equal(a.info.op, "gelu");
    assert_string_equal(a.info.argument, "x");
    assert_int_equal(a.info.role, MT_SAVE_INPUT);
    assert_int_equal(a.info.index, 0);
    assert_string_equal(a.info.module, "net.act");
    assert_true(a.info.node == mt_grad_fn_sequence(y));
    mt_set(&y, mtt_made(mt_relu(x)));
    assert_string_equal(a.info.op, "relu");
    assert_int_equal(a.info.role, MT_SAVE_OUTPUT);
    assert_string_equal(a.info.module, "");
    mtt_ok(mt_pop_saved_hooks());
}

static void an_outer_hook_gets_what_the_inner_one_returned(void **state)
{
    (void)state;
    probe outer = {.name = 'A'}, inner = {.name = 'B', .swap = COPY};
    MT_AUTO mt_tensor *x = leaf();
    push(&outer);
    push(&inner);
    MT_AUTO mt_tensor *y = mtt_made(mt_gelu(x));
    mtt_ok(mt_pop_saved_hooks());
    mtt_ok(mt_pop_saved_hooks());
    assert_true(inner.first_seen == 1 && outer.first_seen == 2);
    MT_AUTO mt_tensor *plain = leaf();
    MT_AUTO mt_tensor *z = mtt_made(mt_gelu(plain));
    mtt_ok(backward_of_ones(y, false));
    mtt_ok(backward_of_ones(z, false));
    assert_true(mtt_same_bits(mt_grad(x), mt_grad(plain)));
}

static void a_hook_may_keep_its_own_bytes_and_then_no_outer_hook_runs(void **state)
{
    (void)state;
    probe outer = {.name = 'A'}, inner = {.name = 'B', .swap = HOST};
    MT_AUTO mt_tensor *x = leaf();
    push(&outer);
    push(&inner);
    MT_AUTO mt_tensor *y = mtt_made(mt_gelu(x));
    mtt_ok(mt_pop_saved_hooks());
    mtt_ok(mt_pop_saved_hooks());
    assert_int_equal(outer.packs, 0);
    MT_AUTO mt_tensor *plain = leaf();
    MT_AUTO mt_tensor *z = mtt_made(mt_gelu(plain));
    mtt_ok(backward_of_ones(y, false));
    mtt_ok(backward_of_ones(z, false));
    assert_true(mtt_same_bits(mt_grad(x), mt_grad(plain)));
    assert_int_equal(inner.drops, 1);
    assert_int_equal(outer.drops, 0);
}

static void a_tensor_that_a_hook_offloads_leaves_the_device(void **state)
{
    (void)state;
    probe p = {.name = 'A', .swap = HOST};
    MT_AUTO mt_tensor *x = leaf();
    MT_AUTO mt_tensor *h = mtt_made(mt_add_scalar(x, 0));
    push(&p);
    MT_AUTO mt_tensor *y = mtt_made(mt_gelu(h));
    mtt_ok(mt_pop_saved_hooks());
    mt_mem_stats before, after;
    mt_mem_get_stats(device, &before);
    mt_set(&h, NULL);
    mt_clear_error();
    mt_mem_get_stats(device, &after);
    assert_int_equal(before.allocated.current - after.allocated.current, 512);
    mtt_ok(backward_of_ones(y, false));
}

static void a_retained_graph_unpacks_again_and_drops_once(void **state)
{
    (void)state;
    probe p = {.name = 'A', .swap = COPY};
    MT_AUTO mt_tensor *x = leaf();
    push(&p);
    mt_tensor *y = mtt_made(mt_gelu(x));
    mtt_ok(mt_pop_saved_hooks());
    assert_int_equal(p.destroys, 0);
    mtt_ok(backward_of_ones(y, true));
    mtt_ok(backward_of_ones(y, true));
    assert_int_equal(p.unpacks, 2);
    assert_int_equal(p.drops, 0);
    mtt_ok(backward_of_ones(y, false));
    assert_int_equal(p.unpacks, 3);
    assert_int_equal(p.drops, 1);
    assert_int_equal(p.destroys, 1);
    mt_release(y);
    assert_int_equal(p.drops, 1);
    assert_int_equal(p.destroys, 1);
}

static void a_graph_that_never_runs_backward_also_drops(void **state)
{
    (void)state;
    probe p = {.name = 'A', .swap = COPY};
    MT_AUTO mt_tensor *x = leaf();
    push(&p);
    mt_release(mtt_made(mt_gelu(x)));
    assert_int_equal(p.packs, 1);
    assert_int_equal(p.drops, 1);
    assert_int_equal(p.destroys, 0);
    mtt_ok(mt_pop_saved_hooks());
    assert_int_equal(p.destroys, 1);
}

static void a_failing_pack_fails_the_op_and_drops_what_was_packed(void **state)
{
    (void)state;
    probe outer = {.name = 'A', .pack_fails = true}, inner = {.name = 'B', .swap = COPY};
    MT_AUTO mt_tensor *x = leaf();
    push(&outer);
    push(&inner);
    assert_null(mt_gelu(x));
    assert_int_equal(mt_last_status(), MT_ERR_IO);
    mt_clear_error();
    assert_int_equal(inner.packs, 1);
    assert_int_equal(inner.drops, 1);
    assert_int_equal(outer.drops, 0);
    outer.pack_fails = false;
    MT_AUTO mt_tensor *y = mtt_made(mt_gelu(x));
    mtt_ok(mt_pop_saved_hooks());
    mtt_ok(mt_pop_saved_hooks());
    mtt_ok(backward_of_ones(y, false));
    assert_int_equal(inner.drops, 2);
    assert_int_equal(outer.drops, 1);
}

static void a_failing_unpack_fails_the_backward_which_may_be_tried_again(void **state)
{
    (void)state;
    probe p = {.name = 'A', .unpack_fails = true};
    MT_AUTO mt_tensor *x = leaf();
    push(&p);
    MT_AUTO mt_tensor *y = mtt_made(mt_gelu(x));
    mtt_ok(mt_pop_saved_hooks());
    assert_int_equal(backward_of_ones(y, false), MT_ERR_IO);
    mt_clear_error();
    assert_null(mt_grad(x));
    assert_int_equal(p.drops, 0);
    p.unpack_fails = false;
    mtt_ok(backward_of_ones(y, false));
    assert_non_null(mt_grad(x));
    assert_int_equal(p.drops, 1);
}

static void wrong_unpack(swap how, const char *word)
{
    probe p = {.name = 'A', .swap = how};
    MT_AUTO mt_tensor *x = leaf();
    push(&p);
    MT_AUTO mt_tensor *y = mtt_made(mt_gelu(x));
    mtt_ok(mt_pop_saved_hooks());
    assert_int_not_equal(backward_of_ones(y, false), MT_OK);
    assert_null(mt_grad(x));
    mtt_failed(mt_last_status(), "gelu", word);
}

static void unpacking_another_shape_or_dtype_or_nothing_is_an_error(void **state)
{
    (void)state;
    wrong_unpack(WRONG_SHAPE, "[2,2]");
    wrong_unpack(WRONG_DTYPE, "f64");
    wrong_unpack(NOTHING, "x");
}

static void ops_in_a_hook_are_not_recorded_and_run_no_hooks(void **state)
{
    (void)state;
    probe p = {.name = 'A', .swap = COPY};
    MT_AUTO mt_tensor *x = leaf();
    push(&p);
    MT_AUTO mt_tensor *y = mtt_made(mt_exp(x));
    mtt_ok(mt_pop_saved_hooks());
    assert_int_equal(p.packs, 1); /* no hook ran for its own mul_scalar */
    assert_true(mt_requires_grad(y));
}

static void without_grad_nothing_is_saved_and_no_hook_runs(void **state)
{
    (void)state;
    probe p = {.name = 'A'};
    MT_AUTO mt_tensor *x = leaf();
    push(&p);
    bool was = mt_set_grad_mode(false);
    mt_release(mtt_made(mt_gelu(x)));
    mt_set_grad_mode(was);
    mtt_ok(mt_pop_saved_hooks());
    assert_int_equal(p.packs, 0);
}

static void popping_an_empty_stack_is_an_error(void **state)
{
    (void)state;
    assert_int_equal(mt_pop_saved_hooks(), MT_ERR_STATE);
    mt_clear_error();
}

static void *gelu_elsewhere(void *x) { return mt_gelu(x); }

static void hooks_belong_to_the_thread_that_pushed_them(void **state)
{
    (void)state;
    probe p = {.name = 'A'};
    MT_AUTO mt_tensor *x = leaf();
    push(&p);
    pthread_t thread;
    void *y;
    assert_int_equal(pthread_create(&thread, NULL, gelu_elsewhere, x), 0);
    pthread_join(thread, &y);
    mtt_ok(mt_pop_saved_hooks());
    assert_int_equal(p.packs, 0);
    mt_release(mtt_made(y));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        mtt_test(the_innermost_hook_packs_first_and_unpacks_last),
        mtt_test(a_hook_gets_op_argument_role_and_module),
        mtt_test(an_outer_hook_gets_what_the_inner_one_returned),
        mtt_test(a_hook_may_keep_its_own_bytes_and_then_no_outer_hook_runs),
        mtt_test(a_tensor_that_a_hook_offloads_leaves_the_device),
        mtt_test(a_retained_graph_unpacks_again_and_drops_once),
        mtt_test(a_graph_that_never_runs_backward_also_drops),
        mtt_test(a_failing_pack_fails_the_op_and_drops_what_was_packed),
        mtt_test(a_failing_unpack_fails_the_backward_which_may_be_tried_again),
        mtt_test(unpacking_another_shape_or_dtype_or_nothing_is_an_error),
        mtt_test(ops_in_a_hook_are_not_recorded_and_run_no_hooks),
        mtt_test(without_grad_nothing_is_saved_and_no_hook_runs),
        mtt_test(popping_an_empty_stack_is_an_error),
        mtt_test(hooks_belong_to_the_thread_that_pushed_them),
    };
    return cmocka_run_group_tests(tests, mtt_open_device, mtt_close_device);
}

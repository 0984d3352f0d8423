/* Hooks that remove or add hooks, release tensors or run a backward while they run.
 * AddressSanitizer shows if a hook is used after it was freed. */
#include <stdlib.h>
#include <string.h>
#include "mtt_fixture.h"

static mt_tensor *leaf(void) { return mtt_leaf(4, (float[]){1, 2, 3, 4}); }

static mt_status backward(mt_tensor *y, bool retain)
{
    MT_AUTO mt_tensor *ones = mtt_made(mt_full(device, MT_F32, mt_rank(y), mt_shape(y), 1));
    return mt_backward_with(y, &(mt_backward_options){.gradient = ones, .retain_graph = retain});
}

static void expect_grad(const mt_tensor *x, double value)
{
    double *grad = mtt_doubles(mtt_made(mt_grad(x)));
    for (int i = 0; i < 4; i++) assert_float_equal(grad[i], value, 0);
    free(grad);
}

/* ---- hooks on gradients ---- */

/* A hook of `t`. On its `act_at`-th call it removes the hooks in `remove`, adds `add` and releases
 * *release. */
typedef struct probe {
    mt_tensor *t;
    int calls, handle, act_at;
    struct probe *remove[4], *add;
    mt_tensor **release;
    mt_tensor *again; /* also runs a backward from here */
    mt_status again_status;
    bool leaf_hook;
} probe;

static mt_tensor *on_grad(void *user, mt_tensor *grad);
static mt_status on_leaf(void *user, mt_tensor *t);

static void add(probe *p)
{
    p->handle =
        p->leaf_hook ? mt_add_leaf_hook(p->t, on_leaf, p) : mt_add_grad_hook(p->t, on_grad, p);
    assert_int_not_equal(p->handle, 0);
}

static void change_hooks(probe *p)
{
    if (++p->calls != (p->act_at ? p->act_at : 1)) return;
    for (int i = 0; i < 4 && p->remove[i]; i++)
        mtt_ok(mt_remove_hook(p->remove[i]->t, p->remove[i]->handle));
    if (p->add) add(p->add);
    if (p->release) {
        mt_release(*p->release);
        *p->release = NULL;
    }
    if (p->again) p->again_status = backward(p->again, true);
}

static mt_tensor *on_grad(void *user, mt_tensor *grad)
{
    change_hooks(user);
    return mt_mul_scalar(grad, 2);
}

static mt_status on_leaf(void *user, mt_tensor *t)
{
    change_hooks(user);
    return mt_numel(t) == 4 ? MT_OK : MT_ERR_INTERNAL; /* the tensor is still alive */
}

enum { ON_LEAF, ON_NODE, AFTER_LEAF, PLACES };

/* y = exp(h), h = 0 x, so dy/dh = 1; hooks on x or on h. */
typedef struct graph {
    mt_tensor *x, *h, *y;
} graph;

static graph build(void)
{
    graph g = {.x = leaf()};
    g.h = mtt_made(mt_mul_scalar(g.x, 0));
    g.y = mtt_made(mt_exp(g.h));
    return g;
}

static void release_graph(graph *g)
{
    mt_release(g->x);
    mt_release(g->h);
    mt_release(g->y);
}

static probe hook_at(const graph *g, int place)
{
    return (probe){.t = place == ON_NODE ? g->h : g->x, .leaf_hook = place == AFTER_LEAF};
}

static void a_hook_may_remove_itself(void **state)
{
    (void)state;
    for (int place = 0; place < PLACES; place++)
        for (int n = 1; n <= 3; n++) /* alone, first, in the middle and last */
            for (int which = 0; which < n; which++) {
                graph g = build();
                probe p[3] = {hook_at(&g, place), hook_at(&g, place), hook_at(&g, place)};
                for (int i = 0; i < n; i++) add(&p[i]);
                p[which].remove[0] = &p[which];
                mtt_ok(backward(g.y, true));
                mtt_ok(backward(g.y, true));
                for (int i = 0; i < n; i++) assert_int_equal(p[i].calls, i == which ? 1 : 2);
                assert_int_equal(mt_remove_hook(p[which].t, p[which].handle), MT_ERR_ARGUMENT);
                mtt_failed(MT_ERR_ARGUMENT, "remove_hook");
                release_graph(&g);
            }
}

static void a_hook_may_remove_the_others(void **state)
{
    (void)state;
    for (int place = 0; place < PLACES; place++)
        for (int remover = 0; remover < 3; remover++) {
            graph g = build();
            probe p[3] = {hook_at(&g, place), hook_at(&g, place), hook_at(&g, place)};
            for (int i = 0; i < 3; i++) add(&p[i]);
            for (int i = 0, k = 0; i < 3; i++)
                if (i != remover) p[remover].remove[k++] = &p[i];
            mtt_ok(backward(g.y, true));
            mtt_ok(backward(g.y, false));
            for (int i = 0; i < 3; i++)
                assert_int_equal(p[i].calls, i == remover ? 2 : i < remover ? 1 : 0);
            release_graph(&g);
        }
}

static void a_hook_that_is_added_while_one_runs_is_called_from_the_next_backward_on(void **state)
{
    (void)state;
    for (int from = 0; from < PLACES; from++)
        for (int to = 0; to < PLACES; to++) {
            graph g = build();
            probe p = hook_at(&g, from), q = hook_at(&g, to);
            p.add = &q;
            add(&p);
            mtt_ok(backward(g.y, true));
            assert_int_equal(q.calls, 0);
            mtt_ok(backward(g.y, false));
            assert_int_equal(p.calls, 2);
            assert_int_equal(q.calls, 1);
            release_graph(&g);
        }
}

static void a_hook_may_replace_itself_each_time(void **state)
{
    (void)state;
    for (int place = 0; place < PLACES; place++) {
        graph g = build();
        probe p = hook_at(&g, place), q = hook_at(&g, place), r = hook_at(&g, place);
        p.remove[0] = &p, p.add = &q;
        q.remove[0] = &q, q.add = &r;
        add(&p);
        for (int i = 0; i < 4; i++) mtt_ok(backward(g.y, true));
        assert_int_equal(p.calls, 1);
        assert_int_equal(q.calls, 1);
        assert_int_equal(r.calls, 2);
        /* A handle is never another hook's. */
        assert_int_not_equal(p.handle, q.handle);
        assert_int_not_equal(q.handle, r.handle);
        assert_int_not_equal(p.handle, r.handle);
        release_graph(&g);
    }
}

/* Hooks see the sum over all uses of the leaf, even if hooks are removed or added meanwhile. */
static void no_use_of_a_leaf_is_lost_when_its_hooks_change_during_backward(void **state)
{
    (void)state;
    for (int added = 0; added < 2; added++) {
        MT_AUTO mt_tensor *x = leaf();
        MT_AUTO mt_tensor *h = mtt_made(mt_mul_scalar(x, 1)); /* reached after x's other use */
        MT_AUTO mt_tensor *y = mtt_made(mt_add(h, x));
        probe on_x = {.t = x}, on_h = {.t = h};
        if (added)
            on_h.add = &on_x;
        else
            on_h.remove[0] = &on_x, add(&on_x);
        add(&on_h);
        mtt_ok(backward(y, false));
        assert_int_equal(on_x.calls, 0);
        expect_grad(x, 3); /* 2 through h, whose hook doubles it, and 1 */
    }
}

static void a_hook_may_release_its_tensor(void **state)
{
    (void)state;
    for (int place = 0; place < PLACES; place++)
        for (int all = 0; all < 2; all++) {
            graph g = build();
            probe p = hook_at(&g, place), q = hook_at(&g, place), second = hook_at(&g, place);
            add(&p);
            add(&q);
            add(&second);
            p.release = place == ON_NODE ? &g.h : &g.x;
            q.release = all ? &g.y : NULL;
            mt_tensor *y = g.y;
            mtt_ok(backward(y, false));
            assert_int_equal(p.calls, 1);
            assert_int_equal(q.calls,
                             place == AFTER_LEAF ? 0 : 1); /* hooks of a freed leaf do not run */
            assert_int_equal(second.calls, place == AFTER_LEAF ? 0 : 1);
            release_graph(&g);
        }
}

static void a_hook_may_run_another_backward_but_not_through_its_own_op(void **state)
{
    (void)state;
    graph g = build();
    probe p = hook_at(&g, ON_NODE);
    MT_AUTO mt_tensor *z = mtt_made(mt_mul_scalar(g.x, 5));
    p.again = z;
    add(&p);
    mtt_ok(backward(g.y, true));
    mtt_ok(p.again_status);
    expect_grad(g.x, 5); /* h = 0 x adds nothing */
    p.again = g.y, p.act_at = 2;
    mtt_ok(backward(g.y, true));
    assert_int_equal(p.again_status, MT_ERR_STATE);
    mtt_failed(MT_ERR_STATE, "affine", "hook");
    mtt_ok(backward(g.y, false));
    release_graph(&g);
}

/* ---- hooks on saved tensors and on ops ---- */

typedef enum when { PACK, UNPACK, BEFORE, AFTER, WHENS } when;
typedef enum change { POP, POP_TWICE, PUSH, PUSH_POP, BELOW, CHANGES } change;
typedef struct probed_hook {
    when when;
    change change;
    bool ops;
    int done, destroyed;
    mt_status status;
} probed_hook;

static void destroy(void *user) { ((probed_hook *)user)->destroyed++; }

static mt_status push_one(bool ops, void *user)
{
    return ops ? mt_push_op_hooks(&(mt_op_hooks){.destroy = destroy}, user)
               : mt_push_saved_hooks(&(mt_saved_hooks){.destroy = destroy}, user);
}

static mt_status pop_one(bool ops) { return ops ? mt_pop_op_hooks() : mt_pop_saved_hooks(); }

static mt_status change_stack(probed_hook *m, when now)
{
    if (now != m->when) return MT_OK;
    m->done++;
    switch (m->change) {
    case POP: return m->status = pop_one(m->ops);
    case POP_TWICE: m->status = pop_one(m->ops); return pop_one(m->ops);
    case PUSH: return m->status = push_one(m->ops, m);
    case PUSH_POP:
        m->status = push_one(m->ops, m);
        return m->status == MT_OK ? m->status = pop_one(m->ops) : m->status;
    case BELOW:
    default: {
        void *place = mt_step_below_saved_hooks(m);
        m->status = pop_one(m->ops);
        mt_step_back_to_saved_hooks(place);
        return m->status;
    }
    }
}

static mt_status pack(void *user, const mt_save_info *info, mt_tensor *t, mt_tensor **kept,
                      void **s)
{
    (void)info, (void)t, (void)kept, (void)s;
    return change_stack(user, PACK);
}

static mt_status unpack(void *user, const mt_save_info *info, mt_tensor **t, void *s)
{
    (void)info, (void)t, (void)s;
    return change_stack(user, UNPACK);
}

static mt_status before(void *user, const mt_op_call *call, mt_op_result *supply, bool *supplied)
{
    (void)call, (void)supply, (void)supplied;
    return change_stack(user, BEFORE);
}

static mt_status after(void *user, const mt_op_call *call, const mt_op_result *result)
{
    (void)call, (void)result;
    return change_stack(user, AFTER);
}

static void pop_all(bool ops)
{
    while (pop_one(ops) == MT_OK) continue;
    mtt_failed(MT_ERR_STATE, "the stack is empty");
}

/* At each moment, a hook tries each change of each stack, alone and with other hooks. */
static void a_stack_of_hooks_stays_intact_while_its_hooks_run(void **state)
{
    (void)state;
    for (int i = 0; i < WHENS * CHANGES * 2 * 3; i++) {
        probed_hook m = {.when = (when)(i % WHENS),
                         .change = (change)(i / WHENS % CHANGES),
                         .ops = i / WHENS / CHANGES % 2};
        int around = i / WHENS / CHANGES / 2; /* 0: alone; 1: below another; 2: above another */
        probed_hook other = {.when = WHENS};
        MT_AUTO mt_tensor *x = leaf();
        if (around == 2) mtt_ok(push_one(false, &other)), mtt_ok(push_one(true, &other));
        mtt_ok(mt_push_saved_hooks(&(mt_saved_hooks){pack, unpack, NULL, destroy}, &m));
        mtt_ok(mt_push_op_hooks(&(mt_op_hooks){before, after, NULL}, &m));
        if (around == 1) mtt_ok(push_one(false, &other)), mtt_ok(push_one(true, &other));
        MT_AUTO mt_tensor *y = mt_exp(x);
        mt_status status = y ? backward(y, false) : mt_last_status();
        assert_int_equal(m.done > 0, true);
        /* A hook on saved tensors cannot change the stack of such hooks; the same for ops. */
        bool own = m.ops == (m.when == BEFORE || m.when == AFTER);
        bool pops = m.change == POP || m.change == POP_TWICE || m.change == BELOW;
        if (own && pops) {
            assert_int_equal(m.status, MT_ERR_STATE);
            assert_int_equal(status, MT_ERR_STATE);
            assert_int_equal(m.destroyed + other.destroyed, 0);
            mtt_failed(MT_ERR_STATE, m.change == BELOW ? "pop" : "within a hook");
        }
        mt_clear_error();
        pop_all(false);
        pop_all(true);
        if (status == MT_OK) {
            assert_int_equal(m.status, MT_OK);
            double *grad = mtt_doubles(mt_grad(x)), *value = mtt_doubles(y);
            assert_memory_equal(grad, value, 4 * sizeof *grad);
            free(grad);
            free(value);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        mtt_test(a_hook_may_remove_itself),
        mtt_test(a_hook_may_remove_the_others),
        mtt_test(a_hook_that_is_added_while_one_runs_is_called_from_the_next_backward_on),
        mtt_test(a_hook_may_replace_itself_each_time),
        mtt_test(no_use_of_a_leaf_is_lost_when_its_hooks_change_during_backward),
        mtt_test(a_hook_may_release_its_tensor),
        mtt_test(a_hook_may_run_another_backward_but_not_through_its_own_op),
        mtt_test(a_stack_of_hooks_stays_intact_while_its_hooks_run),
    };
    return cmocka_run_group_tests(tests, mtt_open_device, mtt_close_device);
}

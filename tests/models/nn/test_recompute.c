/* mt_model_recompute: every choice of modules, in every family and with every place of the norms,
 * leaves no hook and gives the gradients the bits that they have without. */
#include <stdio.h>
#include <string.h>
#include "base/base.h"
#include "memtape/ops.h"
#include "mtt.h"
#include "mtt_fixture.h"

enum { B = 2, S = 5, D = 12, V = 11, ALL = 127 };

#define SMALL  .hidden = D, .heads = 2, .layers = 2, .vocab = V, .context = S, .dropout = 0.1
#define LATENT .kv_rank = 6, .head_dim = 8, .rope_dim = 4, .value_dim = 6
#define MIXED  .ffn = 16, .experts = 4, .experts_per_token = 2

static const mt_model_config families[] = {
    {SMALL},
    {SMALL, .attention = MT_ATTENTION_MATH, .act = MT_ACT_RELU, .inplace = true},
    {SMALL, LATENT},
    {SMALL, LATENT, .q_rank = 5, .attention = MT_ATTENTION_MATH},
    {SMALL, MIXED},
    {SMALL, MIXED, .act = MT_ACT_RELU, .inplace = true},
    {SMALL, .mtp_layers = 1},
    {SMALL, .kind = MT_MODEL_BERT},
    {SMALL, .kind = MT_MODEL_LLAMA, .kv_heads = 1},
    {SMALL, .kind = MT_MODEL_LLAMA, .ops.rope = MT_OP_UNFUSED, .joint_products = true},
    {SMALL, .kind = MT_MODEL_LLAMA, LATENT, MIXED, .shared_experts = 1, .dense_layers = 1,
     .dense_ffn = 20, .router = MT_ROUTER_SIGMOID},
    {SMALL, .kind = MT_MODEL_LLAMA, LATENT, MIXED, .ops.expert_form = MT_EXPERTS_LOOP,
     .balance_loss = 0.1},
    {SMALL, .kind = MT_MODEL_LLAMA, MIXED, .ops.expert_form = MT_EXPERTS_MEGATRON,
     .expert_capacity = 1, .mtp_layers = 1},
    {.kind = MT_MODEL_BLOCK, .hidden = D, .heads = 2, .dropout = 0.1, .rope_theta = 100, LATENT},
    {.kind = MT_MODEL_BLOCK, .hidden = D, .heads = 2, MIXED, .mlp = MT_MLP_SWIGLU},
    {.kind = MT_MODEL_ATTENTION, .hidden = D, .heads = 2, .rope_theta = 100, LATENT},
    {.kind = MT_MODEL_MLP, .hidden = D},
};
#define N(array) (sizeof(array) / sizeof *(array))

static bool is_whole(const mt_model_config *c)
{
    return c->kind == MT_MODEL_GPT || c->kind == MT_MODEL_BERT || c->kind == MT_MODEL_LLAMA;
}

/* A loss of m; of what is no whole model x has other readers, too, as within a block. */
static mt_tensor *loss_of(mt_module *m, const mt_model_config *c, mt_tensor *x, mt_tensor *target)
{
    if (is_whole(c)) return mt_model_forward_loss(m, x, target);
    MT_AUTO mt_tensor *twice = mtt_made(mt_mul_scalar(x, 2));
    mt_tensor *y = mt_forward(m, twice);
    mt_set(&y, mt_add(y, twice));
    mt_set(&y, mt_gelu(y));
    mt_set(&y, mt_sum_all(y));
    return y;
}

/* What the thread has on its stacks must be nothing. */
static void assert_no_hooks(const char *what)
{
    const bool hooks = mt_pop_saved_hooks() == MT_OK, op_hooks = mt_pop_op_hooks() == MT_OK;
    if (hooks || op_hooks || *mt_scope_path() || !mt_grad_mode())
        fail_msg("%s: left on the thread:%s%s %s%s", what, hooks ? " a hook" : "",
                 op_hooks ? " a hook on ops" : "", mt_scope_path(),
                 mt_grad_mode() ? "" : " the grad mode off");
    mt_clear_error();
}

typedef struct made {
    mt_module *model;
    mt_tensor *x, *target, *loss;
} made;

static void end(made *r)
{
    mt_release(r->x), mt_release(r->target), mt_release(r->loss);
    mt_module_free(r->model);
}

/* Larger weights than a new model's, so that no gradient is lost in the rounding of another. */
static void enlarge(mt_module *m)
{
    const mt_named_tensor *list;
    size_t n;
    const bool grad = mt_set_grad_mode(false);
    mtt_ok(mt_module_params(m, &list, &n));
    for (size_t i = 0; i < n; i++) {
        MT_AUTO mt_tensor *larger = mtt_made(mt_mul_scalar(list[i].tensor, 8));
        if (mt_rank(larger) > 1) mtt_ok(mt_copy(list[i].tensor, larger));
    }
    mt_set_grad_mode(grad);
}

/* Whether the choice is refused, as it has to be: it reads what an activation in place changes. */
static bool is_refused(const mt_model_config *c, unsigned modules)
{
    if (!c->inplace || !c->experts || !(modules & MT_RECOMPUTE_MOE_ACT)) return false;
    mt_module *m = mt_model_new(device, c);
    assert_int_equal(mt_model_recompute(m, modules, NULL), MT_ERR_ARGUMENT);
    mtt_failed(MT_ERR_ARGUMENT, "moe_act", "in place");
    mt_module_free(m);
    return true;
}

/* A forward and a backward of a new model under that choice. */
static made run(const mt_model_config *c, unsigned modules, const char *what)
{
    made r = {0};
    int64_t ids[2][B * S];
    uint64_t draw = 5;
    for (int i = 0; i < B * S; i++)
        for (int k = 0; k < 2; k++) ids[k][i] = (int64_t)mtt_draw(&draw, 0, V);
    mt_seed(device, 7);
    r.model = mt_model_new(device, c);
    if (!r.model) fail_msg("%s: %s", what, mt_last_error());
    if (is_whole(c)) {
        r.x = mt_from_data(device, MT_I64, MT_SHAPE(B, S), ids[0], sizeof ids[0]);
        r.target = mt_from_data(device, MT_I64, MT_SHAPE(B, S), ids[1], sizeof ids[1]);
    } else {
        r.x = mt_normal(device, c->dtype, MT_SHAPE(B, S, D), 0, 1);
        mtt_ok(mt_set_requires_grad(r.x, true));
    }
    enlarge(r.model);
    mtt_ok(mt_model_recompute(r.model, modules, NULL));
    r.loss = loss_of(r.model, c, r.x, r.target);
    if (!r.loss) fail_msg("%s: %s", what, mt_last_error());
    assert_no_hooks(what);
    if (mt_backward(r.loss) != MT_OK) fail_msg("%s: backward: %s", what, mt_last_error());
    assert_no_hooks(what);
    return r;
}

static void assert_same_gradients(made *a, made *b, const char *what)
{
    const mt_named_tensor *list[2];
    size_t n[2];
    mtt_ok(mt_module_params(a->model, &list[0], &n[0]));
    mtt_ok(mt_module_params(b->model, &list[1], &n[1]));
    if (!mtt_same_bits(a->loss, b->loss)) fail_msg("%s: another loss", what);
    for (size_t i = 0; i < n[0]; i++) {
        mt_tensor *d[2] = {mt_grad(list[0][i].tensor), mt_grad(list[1][i].tensor)};
        if (!d[0] != !d[1] || (d[0] && !mtt_same_bits(d[0], d[1])))
            fail_msg("%s: the gradient of %s has other bits", what, list[0][i].name);
    }
    if (!a->target && !mtt_same_bits(mt_grad(a->x), mt_grad(b->x)))
        fail_msg("%s: the gradient of x has other bits", what);
}

/* All choices in f32, and each module by itself in f64 and bf16; of several modules in turns, the
 * nth model others than the next. */
static void try_choices(const mt_model_config *c, const char *name, size_t nth)
{
    made plain = run(c, 0, name);
    for (unsigned modules = 1; modules <= ALL; modules++) {
        char what[200];
        const bool several = modules & (modules - 1) && modules != ALL;
        if (several && (c->dtype != MT_F32 || !mtt_case(nth + modules))) continue;
        snprintf(what, sizeof what, "%s, modules %u", name, modules);
        if (is_refused(c, modules)) continue;
        made again = run(c, modules, what);
        assert_same_gradients(&plain, &again, what);
        end(&again);
    }
    end(&plain);
}

static void no_choice_changes_a_bit(void **state)
{
    (void)state;
    const mt_dtype dtypes[] = {MT_F32, MT_F64, MT_BF16};
    size_t n = 0;
    for (size_t i = 0; i < N(families); i++)
        for (int norm = 0; norm < MT_NORM_PLACE_COUNT; norm++)
            for (size_t d = 0; d < N(dtypes); d++) {
                mt_model_config c = families[i];
                char name[120];
                c.norm = (mt_norm_place)norm, c.dtype = dtypes[d];
                snprintf(name, sizeof name, "family %zu, a %s with norms %s, %s", i,
                         mt_model_kind_name(c.kind), mt_norm_place_name(c.norm),
                         mt_dtype_name(c.dtype));
                if (mt_model_config_check(&c) != MT_OK) {
                    mt_clear_error();
                    continue;
                }
                try_choices(&c, name, n++);
            }
    assert_true(n > 100);
}

/* ---- which call counts ---- */

/* What tells a model what to run again. */
typedef struct told {
    const char *preset; /* NULL: modules, or layers if there are some */
    unsigned modules;
    int64_t layers; /* from the first one on, as one checkpoint; -1: these run plainly */
} told;

static const told calls[] = {
    {.preset = "none"},
    {.preset = "full"},
    {.preset = "selective"},
    {.preset = "ops"},
    {.preset = "every=2"},
    {.modules = 0},
    {.modules = MT_RECOMPUTE_CORE_ATTN},
    {.modules = MT_RECOMPUTE_MOE_ACT},
    {.modules = MT_RECOMPUTE_LAYERNORM},
    {.modules = MT_RECOMPUTE_MLA_UP_PROJ},
    {.modules = MT_RECOMPUTE_MLP | MT_RECOMPUTE_SHARED_EXPERTS},
    {.modules = MT_RECOMPUTE_MOE},
    {.modules = ALL},
    {.layers = 2},
    {.layers = -1},
};

static void tell(mt_module *m, const told *t)
{
    static const mt_checkpoint_options zero;
    if (t->preset)
        mtt_ok(mt_model_checkpoint(m, t->preset));
    else if (t->layers)
        mtt_ok(mt_model_checkpoint_layers(m, 0, 2, t->layers > 0 ? &zero : NULL));
    else
        mtt_ok(mt_model_recompute(m, t->modules, NULL));
}

/* Bytes that a forward keeps, and FLOPs that its backward runs again. */
typedef struct cost {
    size_t bytes;
    uint64_t again;
} cost;

static cost cost_of(mt_module *m)
{
    mt_seed(device, 4);
    MT_AUTO mt_tensor *x = mtt_made(mt_zeros(device, MT_I64, MT_SHAPE(B, S)));
    mt_ledger *ledger = mt_ledger_new(device);
    mtt_ok(mt_ledger_begin(ledger));
    MT_AUTO mt_tensor *y = mtt_made(mt_model_forward_loss(m, x, x));
    mtt_ok(mt_ledger_end(ledger));
    cost c = {.bytes = mt_ledger_bytes(ledger)};
    mt_ledger_free(ledger);
    mt_flops_reset(device);
    mtt_ok(mt_backward(y));
    c.again = mt_flops_get(device).recompute;
    mtt_ok(mt_module_zero_grad(m));
    assert_no_hooks("cost");
    return c;
}

static void the_last_call_says_what_runs_again(void **state)
{
    (void)state;
    int n_other = 0;
    for (size_t i = 0; i < N(families); i++) {
        const mt_model_config *c = &families[i];
        if (!is_whole(c) || c->inplace) continue;
        mt_seed(device, 3); /* rows that experts drop depend on the weights */
        mt_module *m = mt_model_new(device, c);
        cost alone[N(calls)];
        for (size_t k = 0; k < N(calls); k++) {
            mt_seed(device, 3);
            mt_module *fresh = mt_model_new(device, c);
            tell(fresh, &calls[k]);
            alone[k] = cost_of(fresh);
            n_other += alone[k].bytes != alone[0].bytes;
            mt_module_free(fresh);
        }
        for (size_t a = 0; a < N(calls); a++)
            for (size_t b = 0; b < N(calls); b++) {
                if (calls[b].layers && c->mtp_layers) continue; /* these are no layers of it */
                if (!mtt_case(i + a + b)) continue;
                tell(m, &calls[a]), tell(m, &calls[b]);
                const cost now = cost_of(m);
                if (now.bytes != alone[b].bytes || now.again != alone[b].again)
                    fail_msg("family %zu: call %zu after call %zu: %zu bytes, %llu FLOPs again; "
                             "by itself %zu, %llu",
                             i, b, a, now.bytes, (unsigned long long)now.again, alone[b].bytes,
                             (unsigned long long)alone[b].again);
            }
        mt_module_free(m);
    }
    assert_true(n_other > 50);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        mtt_test(no_choice_changes_a_bit),
        mtt_test(the_last_call_says_what_runs_again),
    };
    return cmocka_run_group_tests(tests, mtt_open_device, mtt_close_device);
}

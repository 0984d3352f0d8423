/* Every call that changes how a model runs, on every family, with options that fit it and options
 * that do not: either it works, and then gradients keep their bits, or it fails with a text. The
 * thread is left as it was: no hook, no scope, the grad mode on. */
#include <stdio.h>
#include <string.h>
#include "base/base.h"
#include "memtape/ops.h"
#include "mtt.h"
#include "mtt_fixture.h"

enum { B = 2, S = 16, D = 32, V = 32 };

#define SMALL  .hidden = D, .heads = 2, .layers = 2, .vocab = V, .context = S, .dropout = 0.1
#define LATENT .kv_rank = 16, .head_dim = 16, .rope_dim = 8, .value_dim = 16
#define MIXED  .ffn = 32, .experts = 4, .experts_per_token = 2

static const mt_model_config families[] = {
    {SMALL},
    {SMALL, .act = MT_ACT_RELU, .inplace = true, .attention = MT_ATTENTION_MATH},
    {SMALL, LATENT},
    {SMALL, MIXED, .act = MT_ACT_RELU, .inplace = true},
    {SMALL, .mtp_layers = 1, .untied = true},
    {SMALL, .kind = MT_MODEL_BERT},
    {SMALL, .kind = MT_MODEL_BERT, .pooled = true},
    {SMALL, .kind = MT_MODEL_LLAMA, .kv_heads = 1},
    {SMALL, .kind = MT_MODEL_LLAMA, .ops.rope = MT_OP_UNFUSED, .joint_products = true},
    {SMALL, .kind = MT_MODEL_LLAMA, LATENT, MIXED, .shared_experts = 1, .dense_layers = 1,
     .dense_ffn = 32, .router = MT_ROUTER_SIGMOID},
    {SMALL, .kind = MT_MODEL_LLAMA, MIXED, .ops.expert_form = MT_EXPERTS_LOOP, .balance_loss = 0.1},
    {SMALL, .kind = MT_MODEL_LLAMA, LATENT, .ops.rope = MT_OP_UNFUSED},
    {.kind = MT_MODEL_BLOCK, .hidden = D, .heads = 2, .rope_theta = 100},
    {.kind = MT_MODEL_ATTENTION, .hidden = D, .heads = 2},
    {.kind = MT_MODEL_MLP, .hidden = D, .act = MT_ACT_RELU, .inplace = true},
    {.kind = MT_MODEL_LINEAR, .hidden = D, .ffn = D},
};
#define N(array) (sizeof(array) / sizeof *(array))

static bool is_whole(const mt_model_config *c)
{
    return c->kind == MT_MODEL_GPT || c->kind == MT_MODEL_BERT || c->kind == MT_MODEL_LLAMA;
}

/* ---- the thread ---- */

static void assert_clean(const char *what)
{
    char error[200];
    snprintf(error, sizeof error, "%s", mt_last_error());
    const bool hooks = mt_pop_saved_hooks() == MT_OK, op_hooks = mt_pop_op_hooks() == MT_OK;
    if (hooks || op_hooks || *mt_scope_path() || !mt_grad_mode())
        fail_msg("%s: left on the thread:%s%s %s%s (%s)", what, hooks ? " a hook" : "",
                 op_hooks ? " a hook on ops" : "", mt_scope_path(),
                 mt_grad_mode() ? "" : " the grad mode off", error);
    mt_clear_error();
}

/* ---- calls ---- */

static mt_policy keep_all(void *user, const mt_op_call *call)
{
    (void)user, (void)call;
    return MT_MUST_SAVE;
}

static const mt_checkpoint_options options[] = {
    {0},
    {.discard_outputs = true},
    {.policy = mt_policy_ops},
    {.policy = keep_all},
    {.check = true, .no_early_stop = true},
};

typedef enum form { PRESET, LAYERS, MODULES, QUANTIZE, ADAPT, N_FORMS } form;

typedef struct call {
    form form;
    const char *preset;
    unsigned modules;
    size_t options; /* which */
} call;

/* The ith of all calls; false: there are fewer. */
static bool call_at(size_t i, call *out)
{
    static const char *const presets[] = {"none", "full", "selective", "ops", "every=2", "sqrt"};
    const size_t counts[N_FORMS] = {N(presets) * N(options), N(options), 8 * N(options), 3, 4};
    *out = (call){0};
    while (out->form < N_FORMS && i >= counts[out->form]) i -= counts[out->form++];
    if (out->form == N_FORMS) return false;
    out->options = i % N(options);
    if (out->form == PRESET) out->preset = presets[i / N(options)];
    out->modules = i / N(options) < 7 ? 1u << i / N(options) : 127;
    return true;
}

static mt_status make(mt_module *m, const call *c, char *what, size_t size)
{
    const mt_quant quants[] = {
        {MT_QUANT_NF4, 64, false}, {MT_QUANT_INT8, 0, false}, {MT_QUANT_NF4, 64, true}};
    const mt_checkpoint_options *o = &options[c->options];
    const char *const some[] = {"*proj*"}, *const experts[] = {"*.experts_*"};
    const mt_lora_options lora[] = {
        {.rank = 2},
        {.rank = 2, .base = MT_LORA_NF4},
        {.rank = 2, .n_targets = 1, .targets = some},
        {.rank = 2, .n_targets = 1, .targets = experts, .on_weights = true}};
    switch (c->form) {
    case PRESET:
        snprintf(what, size, "checkpoint %s, options %zu", c->preset, c->options);
        return mt_model_checkpoint_with(m, c->preset, o);
    case LAYERS:
        snprintf(what, size, "layers, options %zu", c->options);
        return mt_model_checkpoint_layers(m, 1, 1, o);
    case MODULES:
        snprintf(what, size, "recompute %u, options %zu", c->modules, c->options);
        return mt_model_recompute(m, c->modules, o);
    case QUANTIZE:
        snprintf(what, size, "quantize %zu", c->options);
        return mt_model_quantize(m, &quants[c->options]);
    case ADAPT:
        snprintf(what, size, "adapters %zu", c->options);
        return mt_lora_add(m, &lora[c->options], NULL);
    case N_FORMS: break;
    }
    return MT_ERR_INTERNAL;
}

/* ---- runs ---- */

typedef struct made {
    mt_module *model;
    mt_tensor *x, *target, *loss;
} made;

static void end(made *r)
{
    mt_release(r->x), mt_release(r->target), mt_release(r->loss);
    mt_module_free(r->model);
    *r = (made){0};
}

static made begin(const mt_model_config *c)
{
    made r = {0};
    int64_t ids[2][B * S];
    uint64_t draw = 5;
    for (int i = 0; i < B * S; i++)
        for (int k = 0; k < 2; k++) ids[k][i] = (int64_t)mtt_draw(&draw, 0, V);
    mt_seed(device, 7);
    r.model = mt_model_new(device, c);
    assert_non_null(r.model);
    if (is_whole(c)) {
        r.x = mt_from_data(device, MT_I64, MT_SHAPE(B, S), ids[0], sizeof ids[0]);
        if (!c->pooled)
            r.target = mt_from_data(device, MT_I64, MT_SHAPE(B, S), ids[1], sizeof ids[1]);
    } else {
        r.x = mt_normal(device, c->dtype, MT_SHAPE(B, S, D), 0, 1);
        mtt_ok(mt_set_requires_grad(r.x, true));
    }
    mt_seed(device, 8);
    return r;
}

static mt_tensor *loss_of(const made *r)
{
    if (r->target) return mt_model_forward_loss(r->model, r->x, r->target);
    mt_tensor *y = mt_forward(r->model, r->x);
    mt_set(&y, y ? mt_gelu(y) : NULL);
    mt_set(&y, y ? mt_sum_all(y) : NULL);
    return y;
}

/* Whether a forward and a backward succeed; if not there must be a text. */
static bool run(made *r, const char *what)
{
    r->loss = loss_of(r);
    bool ok = r->loss != NULL;
    if (!ok && !*mt_last_error()) fail_msg("%s: forward failed without a text", what);
    assert_clean(what);
    if (ok && mt_requires_grad(r->loss)) ok = mt_backward(r->loss) == MT_OK;
    if (r->loss && !ok && !*mt_last_error()) fail_msg("%s: backward failed without a text", what);
    assert_clean(what);
    return ok;
}

/* Generation and evaluation, which leave the model in training. */
static void generate(made *r, const mt_model_config *c, const char *what)
{
    const bool grad = mt_set_grad_mode(false);
    mt_module_set_training(r->model, false);
    mt_release(loss_of(r));
    mt_module_set_training(r->model, true);
    mt_set_grad_mode(grad);
    assert_clean(what);
    if (c->kind != MT_MODEL_GPT && c->kind != MT_MODEL_LLAMA) return;
    mt_kv_cache *cache = mt_kv_cache_new(r->model, MT_KV_GROWING, B, S);
    MT_AUTO mt_tensor *y = cache ? mt_next_logits(r->model, cache, r->x) : NULL;
    if (!y && !*mt_last_error()) fail_msg("%s: generation failed without a text", what);
    assert_true(mt_module_training(r->model));
    mt_kv_cache_free(cache);
    assert_clean(what);
}

static void assert_same(made *a, made *b, const char *what)
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
}

/* A policy keeps what an activation in place changes; the policy's words decide, op by op. */
static bool is_kept_in_place(const mt_model_config *c, const call *at)
{
    return c->inplace &&
           (options[at->options].policy || (at->preset && !strcmp(at->preset, "ops")));
}

/* *n[0] calls refused, *n[1] runs that failed, *n[2] that worked */
static void try_calls(const mt_model_config *c, const char *name, int n[3])
{
    call at;
    made plain = begin(c);
    if (!run(&plain, name)) fail_msg("%s does not run", name);
    for (size_t i = 0; call_at(i, &at); i++) {
        char what[300], told[100] = "";
        made r = begin(c);
        const uint64_t failures = mti_failures();
        const bool taken = make(r.model, &at, told, sizeof told) == MT_OK;
        snprintf(what, sizeof what, "%s, %s", name, told);
        if (taken == mti_failed_since(failures)) fail_msg("%s: status and error differ", what);
        assert_clean(what);
        mt_seed(device, 8);
        const bool ok = run(&r, what);
        n[!taken ? 0 : ok ? 2 : 1]++;
        if (taken && !ok && !is_kept_in_place(c, &at))
            fail_msg("%s: taken, and then the model does not run", what);
        if (!taken && !ok) fail_msg("%s: refused, and then the model does not run", what);
        if (ok && at.form < QUANTIZE) assert_same(&plain, &r, what);
        generate(&r, c, what);
        end(&r);
    }
    end(&plain);
}

static void a_call_works_or_fails_and_leaves_the_thread_as_it_was(void **state)
{
    (void)state;
    const mt_linear_form linears[] = {MT_LINEAR_NATIVE, MT_LINEAR_TORCHAO_FLOAT8,
                                      MT_LINEAR_TE_CURRENT};
    int n[3] = {0};
    size_t nth = 0;
    for (size_t i = 0; i < N(families); i++)
        for (int norm = 0; norm < MT_NORM_PLACE_COUNT; norm++)
            for (size_t l = 0; l < N(linears); l++) {
                mt_model_config c = families[i];
                char name[120];
                c.norm = (mt_norm_place)norm, c.ops.linear = linears[l];
                snprintf(name, sizeof name, "family %zu, a %s with norms %s, linears %d", i,
                         mt_model_kind_name(c.kind), mt_norm_place_name(c.norm), (int)linears[l]);
                /* Each family as it is; of other norms and linears a quarter. */
                if (mt_model_config_check(&c) == MT_OK && (l == 0 || norm < 1 || mtt_long()) &&
                    ((l == 0 && norm == 0) || mtt_turn(nth++)))
                    try_calls(&c, name, n);
                mt_clear_error();
            }
    print_message("%d calls refused, %d runs failed, %d worked\n", n[0], n[1], n[2]);
    assert_true(n[2] > 500);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        mtt_test(a_call_works_or_fails_and_leaves_the_thread_as_it_was),
    };
    return cmocka_run_group_tests(tests, mtt_open_device, mtt_close_device);
}

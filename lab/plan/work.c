/* work.c: FLOPs and time. */
#include <stdio.h>
#include <string.h>
#include "nn/model.h"
#include "plan/plan.h"

/* A matrix of n elements takes 2 n operations a token forward, and 4 n backward: a product for its
 * gradient, one for its input's. Recomputing whole layers takes another 2 n. */

/* Parameters that are matrices of products. */
static int64_t multiplied(const mti_dims *s)
{
    const mt_model_config *c = &s->config;
    int64_t h = c->hidden, layers = mti_sum_layers(s, mti_block_matrices);
    int64_t head = mti_has_head(c) ? c->vocab * h : 0;
    const int64_t dense = c->kind == MT_MODEL_BERT && !c->pooled ? h * h : 0;
    return layers + head + dense + mti_dims_ahead(s) * 2 * h * h;
}

/* The matrix of a pooler, which a sequence meets once. */
static int64_t pooler_of(const mt_model_config *c) { return c->pooled ? c->hidden * c->hidden : 0; }

/* Layers whose queries see a window, and how many keys fewer these see: not in math attention,
 * which masks what it has computed. */
static int64_t windowed(const mti_dims *s, int64_t *fewer)
{
    const bool flash = s->config.attention == MT_ATTENTION_FLASH;
    *fewer = s->config.window < s->seq ? s->seq - s->config.window : 0;
    return flash && *fewer ? mti_dims_windows(s) : 0;
}

/* The joint width of the heads' values. */
static int64_t values_of(const mti_dims *s)
{
    return s->config.kv_rank ? s->config.heads * s->config.value_dim : s->q;
}

/* Attention's two products of [s,dim] and [dim,s] for each head and layer, b s s q multiply-adds
 * each; positions behind a causal mask are computed and counted, too, but those outside of a window
 * are not. */
static int64_t attention_pair(const mti_dims *s)
{
    int64_t fewer, n = windowed(s, &fewer);
    if (!mti_attends(s->config.kind)) return 0;
    return 2 * s->tokens * (s->q + values_of(s)) * (mti_dims_layers(s) * s->seq - n * fewer);
}

/* The first of them. */
static int64_t scores_of(const mti_dims *s)
{
    return attention_pair(s) / (s->q + values_of(s)) * s->q;
}

static bool is_ops(const mti_dims *s)
{
    const char *preset = mti_dims_checkpoint(s);
    return preset && !strcmp(preset, "ops");
}

/* The modules of mt_recompute that it belongs to. */
static unsigned modules_of(const mti_dims *s, mti_product product)
{
    switch (product) {
    case MTI_PRODUCT_Q: return s->config.kv_rank ? MT_RECOMPUTE_MLA_UP_PROJ : 0;
    case MTI_PRODUCT_Q_B:
    case MTI_PRODUCT_KV_B: return MT_RECOMPUTE_MLA_UP_PROJ;
    case MTI_PRODUCT_WIDEN:
    case MTI_PRODUCT_GATE_UP:
    case MTI_PRODUCT_DOWN: return MT_RECOMPUTE_MLP;
    case MTI_PRODUCT_ROUTER:
    case MTI_PRODUCT_EXPERT_FIRST:
    case MTI_PRODUCT_EXPERT_DOWN: return MT_RECOMPUTE_MOE;
    case MTI_PRODUCT_SHARED:
    case MTI_PRODUCT_SHARED_DOWN: return MT_RECOMPUTE_MOE | MT_RECOMPUTE_SHARED_EXPERTS;
    default: return 0;
    }
}

/* Elements that "ops", or modules that are made again, multiply again in a layer. */
static int64_t made_again(const mti_dims *s)
{
    const bool ops = is_ops(s);
    mti_product products[MTI_PRODUCTS];
    int64_t again = 0;
    int n = mti_layer_products(&s->config, products);
    for (int i = 0; i < n; i++) {
        int64_t taken;
        mti_product_copies(&s->config, products[i], &taken);
        if (ops ? !mti_product_is_kept(&s->config, products, i)
                : modules_of(s, products[i]) & mti_dims_again(s))
            again += taken * (int64_t)mti_product_size(&s->config, s->q, s->k, products[i]);
    }
    return again;
}

/* What "ops" makes again: every second product, and math attention's scores; and what modules do.
 */
static bool add_again_rows(mt_plan_formula *out, const mti_dims *s)
{
    const bool ops = is_ops(s), math = ops && s->config.attention == MT_ATTENTION_MATH;
    if (!ops && !mti_dims_again(s)) return true;
    return mti_add_row(out, 2 * s->tokens * mti_sum_layers(s, made_again), "%s, recomputed",
                       ops ? "every second product" : "the modules' products") &&
           mti_add_row(out, math ? scores_of(s) : 0, "attention's scores, recomputed, 2Lbqs^2");
}

static bool add_rows(mt_plan_formula *out, const mti_dims *s, int64_t each, int64_t counted)
{
    const mt_model_config *c = &s->config;
    bool whole = mti_is_whole(c->kind), recomputed = each == 8;
    const bool selective = mti_dims_again(s) & MT_RECOMPUTE_CORE_ATTN;
    int64_t table = c->untied || c->pooled ? c->vocab * c->hidden : 0, pair = attention_pair(s);
    const int64_t pooler = pooler_of(c);
    int64_t vectors = counted - table - pooler - multiplied(s), fewer;
    const char *of_all = windowed(s, &fewer) ? " times the keys seen" : "^2";
    int64_t head = multiplied(s) - mti_sum_layers(s, mti_block_matrices);
    const int64_t rows = mti_rows_of_experts(c, s->tokens) - s->tokens * c->experts_per_token;
    const int64_t matrices = c->mlp == MT_MLP_PLAIN ? 2 : 3, own = mti_dims_dense(s);
    const int64_t unbounded =
        c->experts ? matrices * rows * c->hidden * c->ffn * (mti_dims_layers(s) - own) : 0;
    const int64_t ahead = mti_dims_ahead(s) * c->vocab * c->hidden;
    const int64_t joined = mti_dims_ahead(s) * 2 * c->hidden * c->hidden;
    return mti_add_row(out, -each * s->tokens * vectors,
                       "biases, norms and positions: added or scaled, not multiplied") &&
           mti_add_row(out, -each * s->tokens * table,
                       "the embedding: looked up, not multiplied") &&
           mti_add_row(out, (6 * s->batch - each * s->tokens) * pooler,
                       "the pooler, which multiplies a row of each sequence") &&
           mti_add_row(out, recomputed && whole ? -2 * s->tokens * head : 0,
                       "the head, which is not recomputed") &&
           mti_add_row(out, (each + (mti_dims_again(s) & MT_RECOMPUTE_MOE ? 2 : 0)) * unbounded,
                       "experts' rows that a bound drops, or that fill them up to it") &&
           mti_add_row(out, 6 * s->tokens * ahead, "the head, again for each prediction ahead") &&
           mti_add_row(
               out,
               whole && c->ops.loss == MT_LOSS_FUSED ? 2 * s->tokens * (head - joined + ahead) : 0,
               "the fused loss: the head's product once more in backward, 2bshv") &&
           mti_add_row(out, 3 * pair, "attention's scores and weighted sums, 12Lbqs%s", of_all) &&
           mti_add_row(out, c->attention == MT_ATTENTION_FLASH ? scores_of(s) : 0,
                       "flash attention's scores, once more in backward, 2Lbqs%s", of_all) &&
           mti_add_row(out, recomputed || selective ? pair : 0, "recomputed attention, 4Lbqs%s",
                       of_all) &&
           add_again_rows(out, s);
}

/* ---- forward, component by component ---- */

typedef struct components {
    mt_plan_component at[MT_PLAN_MAX_COMPONENTS];
    int n;
} components;

/* `text` in h where the textbook's dimensions hold, otherwise `own`. */
static void add_component(components *c, const char *name, bool textbook, const char *text,
                          const char *own, int64_t times, int64_t each)
{
    mt_plan_component *it = &c->at[c->n++];
    *it = (mt_plan_component){.name = name, .times = times, .each = each};
    snprintf(it->text, sizeof it->text, "%s", textbook ? text : own);
}

static components components_of(const mti_dims *s)
{
    const mt_model_config *m = &s->config;
    int64_t h = m->hidden, f = m->ffn, v = m->vocab, t = s->tokens, layers = mti_dims_layers(s);
    bool gated = m->mlp != MT_MLP_PLAIN, usual = s->q == h, plain = usual && s->k == h;
    components c = {.n = 0};
    int64_t fewer, windows = windowed(s, &fewer);
    const int64_t dense = mti_dims_dense(s), o = values_of(s);
    if (mti_attends(m->kind) && m->kv_rank) {
        const int64_t of_q = m->q_rank ? m->q_rank * (h + s->q) : h * s->q;
        const int64_t of_kv = h * (m->kv_rank + m->rope_dim) + m->kv_rank * mti_latent_width(m);
        add_component(&c, "q, k and v by latents", true, "2bs(hc + cq + h(r + p) + rw)", "", layers,
                      2 * t * (of_q + of_kv));
        add_component(&c, "attention's scores and weighted sums", true, "2bs^2(q + o)", "",
                      layers - windows, 2 * t * s->seq * (s->q + o));
        if (windows)
            add_component(&c, "the same in a sliding window", true, "2bsw(q + o)", "", windows,
                          2 * t * m->window * (s->q + o));
        add_component(&c, "attention's projection", true, "2bsoh", "", layers, 2 * t * o * h);
    } else if (mti_attends(m->kind)) {
        add_component(&c, "q, k and v", plain, "6bsh^2", "2bsh(q + 2k)", layers,
                      2 * t * h * (s->q + 2 * s->k));
        add_component(&c, "attention's scores and weighted sums", usual, "4bs^2h", "4bs^2q",
                      layers - windows, 4 * t * s->seq * s->q);
        if (windows)
            add_component(&c, "the same in a sliding window", usual, "4bswh", "4bswq", windows,
                          4 * t * m->window * s->q);
        add_component(&c, "attention's projection", usual, "2bsh^2", "2bsqh", layers,
                      2 * t * s->q * h);
    }
    if (mti_feeds(m->kind) && m->experts) {
        add_component(&c, "the router", true, "2bshE", "", layers - dense, 2 * t * h * m->experts);
        add_component(&c, "the experts, n for each token", gated, "6bsnhf", "4bsnhf",
                      layers - dense, (gated ? 6 : 4) * mti_rows_of_experts(m, t) * h * f);
        if (m->shared_experts)
            add_component(&c, "the shared experts", true, "6bshx", "", layers - dense,
                          6 * t * h * m->shared_experts * f);
        if (dense)
            add_component(&c, "the MLP of layers without experts", true, "6bshD", "", dense,
                          6 * t * h * m->dense_ffn);
    } else if (mti_feeds(m->kind))
        add_component(&c, "the MLP", f == 4 * h && !gated, "16bsh^2", gated ? "6bshf" : "4bshf",
                      layers, (gated ? 6 : 4) * t * h * f);
    if (m->kind == MT_MODEL_LINEAR)
        add_component(&c, "the product", true, "2bshf", "", 1, 2 * t * h * f);
    if (m->pooled)
        add_component(&c, "the pooler", true, "2bh^2", "", 1, 2 * s->batch * h * h);
    else if (m->kind == MT_MODEL_BERT)
        add_component(&c, "the head's dense layer", true, "2bsh^2", "", 1, 2 * t * h * h);
    const int64_t ahead = mti_dims_ahead(s);
    if (ahead)
        add_component(&c, "what predictions ahead begin with", true, "4bsh^2", "", ahead,
                      4 * t * h * h);
    if (mti_has_head(m)) add_component(&c, "the head", true, "2bshv", "", 1 + ahead, 2 * t * h * v);
    return c;
}

static int64_t sum_of(const components *c)
{
    int64_t sum = 0;
    for (int i = 0; i < c->n; i++) sum += c->at[i].times * c->at[i].each;
    return sum;
}

static int64_t dense_of(const mti_dims *s)
{
    const int64_t rows = s->config.pooled ? s->batch : s->tokens;
    return s->config.kind == MT_MODEL_BERT ? 2 * rows * s->config.hidden * s->config.hidden : 0;
}

/* The textbook's head is one product. */
static int64_t forward_flops(const mti_dims *s)
{
    components c = components_of(s);
    return sum_of(&c) - dense_of(s);
}

mt_status mt_plan_forward_flops(const mt_plan_run *run, mt_plan_formula *out,
                                mt_plan_component *parts, int *n)
{
    static const char *const texts[MT_MODEL_KIND_COUNT] = {
        [MT_MODEL_BLOCK] = "24bsh^2 + 4bs^2h",
        [MT_MODEL_ATTENTION] = "8bsh^2 + 4bs^2h",
        [MT_MODEL_MLP] = "16bsh^2",
        [MT_MODEL_LINEAR] = "2bshf",
    };
    mti_dims s;
    mti_memory_options memory;
    if (!mti_run_dims(&s, &memory, run, out)) return mt_last_status();
    s.memory = NULL; /* it changes nothing forward */
    *out = (mt_plan_formula){.name = "flops forward",
                             .unit = "FLOP",
                             .source = "Narayanan et al. 2021, appendix: 2 for each element of a "
                                       "matrix and token, 4bs^2h for attention's scores"};
    bool whole = mti_is_whole(s.config.kind);
    snprintf(out->text, sizeof out->text, "%s",
             mti_has_head(&s.config) ? "L(24bsh^2 + 4bs^2h) + 2bshv"
             : whole                 ? "L(24bsh^2 + 4bs^2h)"
                                     : texts[s.config.kind]);
    int64_t head = whole && mti_loss_row_of(s.config.ops.loss)->early
                       ? (1 + mti_dims_ahead(&s)) * 4 * s.tokens * s.config.hidden * s.config.vocab
                       : 0;
    components c = components_of(&s);
    if (head)
        add_component(&c, "the head's gradients, made in forward", true, "4bshv", "", 1, head);
    for (int i = 0; parts && i < c.n; i++) parts[i] = c.at[i];
    if (parts) *n = c.n;
    bool ok =
        mti_derive_formula(out, &s, forward_flops) &&
        mti_add_row(out, dense_of(&s), "%s",
                    s.config.pooled ? "the pooler, 2bh^2" : "the head's dense layer, 2bsh^2") &&
        mti_add_row(out, head, "the head's gradients, made in forward, 4bshv");
    return ok ? MT_OK : mt_last_status();
}

/* ---- a whole step ---- */

mt_status mt_plan_flops(const mt_plan_run *run, mt_plan_formula *out)
{
    mti_dims s;
    mti_memory_options memory;
    mt_plan_formula count;
    if (!mti_run_dims(&s, &memory, run, out) || mt_plan_parameters(run, &count) != MT_OK)
        return mt_last_status();
    const char *preset = mti_dims_checkpoint(&s);
    bool whole = preset && strcmp(preset, "selective") != 0 && strcmp(preset, "ops") != 0;
    int64_t each = whole ? 8 : 6;
    int64_t n = run->parameters ? run->parameters : count.expected;
    *out = (mt_plan_formula){
        .name = "flops",
        .unit = "FLOP",
        .source = each == 8 ? "Narayanan et al. 2021, 5.1: 2 forward, 4 backward, 2 recomputed"
                            : "Kaplan et al. 2020, 2.1: 2 forward, 4 backward"};
    if ((double)n * 8 * (double)s.tokens > 9e18)
        return mti_fail(MT_ERR_ARGUMENT,
                        "plan: %lld parameters, %lld tokens: more than can be "
                        "counted in 63 bits",
                        (long long)n, (long long)s.tokens);
    out->value = out->expected = each * n * s.tokens;
    snprintf(out->text, sizeof out->text, "%lldNbs", (long long)each);
    bool ok = mti_add_row(out, each * s.tokens * (count.expected - n),
                          "parameters that the rounded N leaves out") &&
              add_rows(out, &s, each, count.expected);
    return ok ? MT_OK : mt_last_status();
}

double mt_plan_seconds(double flops, int64_t devices, double rate, double utilisation)
{
    return flops / ((double)devices * rate * utilisation);
}

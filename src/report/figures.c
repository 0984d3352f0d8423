/* figures.c: what several reports show, as text and as JSON. */
#include <assert.h>
#include <stdarg.h>
#include <string.h>
#include "nn/model.h"
#include "report/figures.h"

/* A line that is put together piece by piece. */
typedef struct line {
    char text[800];
    size_t n;
} line;

static MT_PRINTF(2, 3) void add(line *l, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    int n = mti_vformat(l->text + l->n, sizeof l->text - l->n, fmt, args);
    va_end(args);
    l->n += (size_t)n;
    assert(l->n < sizeof l->text); /* names and numbers: of limited length */
}

/* Those choices of ops that differ from the defaults. */
static void add_choices(line *l, const mt_op_choices *ops)
{
    if (ops->swiglu) add(l, ", unfused swiglu");
    if (ops->rms_norm) add(l, ", unfused RMS norms");
    if (ops->gelu_tanh) add(l, ", unfused gelu_tanh");
    if (ops->rope) add(l, ", unfused rope");
    if (ops->softmax) add(l, ", softmax in f32");
    if (ops->kv_groups) add(l, ", keys and values repeated");
    static const char *const losses[] = {"",
                                         ", loss in f32",
                                         ", fused loss",
                                         ", loss that keeps logits",
                                         ", chunked loss",
                                         ", unfused loss"};
    add(l, "%s", losses[ops->loss]);
}

/* What few models have. */
static void add_rare(line *l, const mt_model_config *c)
{
    const char *before = "  with ";
    if (c->qk_norm) add(l, "%snorms of q and k", before), before = ", ";
    if (c->joint_products) add(l, "%sjoint products", before), before = ", ";
    if (c->attention_cap > 0)
        add(l, "%sscores capped at %g", before, c->attention_cap), before = ", ";
    if (c->logit_cap > 0) add(l, "%slogits capped at %g", before, c->logit_cap);
}

/* "gpt2  b=2 sequences of s=32 tokens, width h=768, ...": each letter as formulas have it. */
static void print_sizes(const mti_workload *w, const mt_model_config *c, FILE *out,
                        const mti_style *style)
{
    bool whole = mti_is_whole(c->kind), attends = mti_attends(c->kind);
    const char *layers = w->ranked ? "" : "L="; /* a rank's L is its layers in flight */
    const char *name = w->preset ? w->preset : mt_model_kind_name(c->kind);
    line l = {.n = 0};
    add(&l, "%s  b=%lld sequence%s of s=%lld token%s, width h=%lld", name, (long long)w->batch,
        w->batch == 1 ? "" : "s", (long long)w->seq, w->seq == 1 ? "" : "s", (long long)c->hidden);
    if (attends) add(&l, ", a=%lld head%s", (long long)c->heads, c->heads == 1 ? "" : "s");
    if (attends && c->kv_heads != c->heads)
        add(&l, " (%lld of keys and values)", (long long)c->kv_heads);
    if (whole)
        add(&l, ", %s%lld layer%s, vocabulary v=%lld", layers, (long long)c->layers,
            c->layers == 1 ? "" : "s", (long long)c->vocab);
    if (c->kind != MT_MODEL_ATTENTION)
        add(&l, ", %s f=%lld", c->kind == MT_MODEL_LINEAR ? "output" : "MLP", (long long)c->ffn);
    mti_print_headed(out, style, MTI_BOLD, l.text, strlen(name));
}

void mti_print_model(const mti_workload *w, const mt_device *device, FILE *out,
                     const mti_style *style)
{
    mt_model_config resolved = w->config;
    mt_model_config_resolve(&w->config, &resolved); /* checked when the options were read */
    const mt_model_config *c = &resolved;
    bool swiglu = c->mlp == MT_MLP_SWIGLU, attends = mti_attends(c->kind);
    bool norms = mti_is_whole(c->kind) || c->kind == MT_MODEL_BLOCK;
    const char *before = "";
    line l = {.n = 0}, rare = {.n = 0};
    print_sizes(w, c, out, style);
    if (mti_feeds(c->kind)) {
        add(&l, "%s%s%s", c->mlp == MT_MLP_GATED ? "gated " : "",
            swiglu ? mt_mlp_kind_name(c->mlp) : mt_act_name(c->act), c->inplace ? " in place" : "");
        before = ", ";
    }
    if (c->has_out_act) add(&l, ", %s of the output", mt_act_name(c->out_act));
    if (attends) {
        add(&l, "%s%s%s attention", before, c->causal ? "causal " : "",
            mt_attention_form_name(c->attention));
        before = ", ";
    }
    if (norms)
        add(&l, ", %s-norm%s", mt_norm_place_name(c->norm),
            c->norm_kind == MT_NORM_LAYER ? ""
            : c->norm_kind == MT_NORM_RMS ? " (RMS)"
                                          : " (RMS, 1 + w)");
    if (c->dropout > 0) add(&l, ", dropout %g", c->dropout);
    add_choices(&l, w->recipe ? &w->own_ops : &c->ops);
    add_rare(&rare, c);
    if (rare.n) { /* on a line of its own, which the rest goes on */
        mti_print_line(out, style, l.text);
        l = rare;
    }
    int threads = mt_device_threads(device);
    add(&l, "%s%s on %s", *before ? "; " : "", mt_dtype_name(c->dtype), mt_device_kind(device));
    if (mt_device_has_data(device)) add(&l, ", %d thread%s", threads, threads == 1 ? "" : "s");
    if (w->optimizer != MTI_OPT_NONE) add(&l, ", optimizer %s", mti_optimizer_name(w->optimizer));
    mti_print_line(out, style, l.text);
    if (!w->recipe) return;
    line recipe = {.n = 0};
    add(&recipe, "recipe %s: %s", w->recipe,
        *w->recipe_options ? w->recipe_options : "no option differs");
    mti_print_line(out, style, recipe.text);
}

void mti_equation_row(mti_table *t, const char *sign, int64_t bytes, const char *text)
{
    mti_table_cell(t, "%s", sign);
    mti_table_bytes(t, bytes);
    mti_table_cell(t, "%s", text);
}

void mti_residual_row(mti_table *t, int64_t bytes, const char *text, const char *alarm)
{
    mti_table_ink(t, bytes ? MTI_BAD : MTI_GOOD);
    mti_table_cell(t, " ");
    mti_table_bytes(t, bytes);
    mti_table_cell(t, "%s%s", text, bytes ? alarm : "");
}

bool mti_print_categories(const size_t bytes[MT_CATEGORY_COUNT], FILE *out, const mti_style *style)
{
    size_t sum = 0;
    for (int c = 0; c < MT_CATEGORY_COUNT; c++) sum += bytes[c];
    mti_table *t = mti_table_new("lrr", NULL);
    for (int c = 0; c < MT_CATEGORY_COUNT; c++) {
        if (!bytes[c]) continue;
        mti_table_cell(t, "%s", mt_category_name((mt_category)c));
        mti_table_bytes(t, (int64_t)bytes[c]);
        mti_table_cell(t, "%.1f %%", 100.0 * (double)bytes[c] / (double)sum);
    }
    mti_table_rule(t);
    mti_table_ink(t, MTI_BOLD);
    mti_table_cell(t, "allocated");
    mti_table_bytes(t, (int64_t)sum);
    mti_table_skip(t, 1);
    return mti_table_finish(t, out, style);
}

/* ---- as JSON ---- */

/* Each choice of ops; null where the model does not have it. */
static json_t *ops_json(const mt_model_config *c)
{
    const mt_op_choices *ops = &c->ops;
    bool feeds = mti_feeds(c->kind), gated = feeds && c->mlp == MT_MLP_SWIGLU;
    bool rms = mti_attends(c->kind) && mti_feeds(c->kind) && c->norm_kind != MT_NORM_LAYER;
    bool tanh = feeds && !gated && c->act == MT_ACT_GELU_TANH;
    bool math = mti_attends(c->kind) && c->attention == MT_ATTENTION_MATH;
    bool grouped = mti_attends(c->kind) && mti_repeats_heads(c);
    const char *const *forms = mti_op_forms.names, *const *types = mti_op_precisions.names;
    json_t *j = json_object();
    mti_json_put_text(j, "swiglu", gated ? forms[ops->swiglu] : NULL);
    mti_json_put_text(j, "rms_norm", rms ? forms[ops->rms_norm] : NULL);
    mti_json_put_text(j, "gelu_tanh", tanh ? forms[ops->gelu_tanh] : NULL);
    mti_json_put_text(j, "rope", c->rope_theta > 0 ? forms[ops->rope] : NULL);
    mti_json_put_text(j, "softmax", math ? types[ops->softmax] : NULL);
    mti_json_put_text(j, "kv_groups", grouped ? mti_kv_groupings.names[ops->kv_groups] : NULL);
    mti_json_put_text(j, "loss", mti_is_whole(c->kind) ? mti_loss_forms.names[ops->loss] : NULL);
    return j;
}

json_t *mti_model_json(const mti_workload *w)
{
    mt_model_config resolved = w->config;
    mt_model_config_resolve(&w->config, &resolved); /* checked when the options were read */
    const mt_model_config *c = &resolved;
    bool acts = mti_feeds(c->kind) && c->mlp != MT_MLP_SWIGLU;
    bool whole = mti_is_whole(c->kind), attends = mti_attends(c->kind);
    bool feeds = mti_feeds(c->kind), norms = whole || c->kind == MT_MODEL_BLOCK;
    json_t *j = json_object();
    mti_json_put_text(j, "kind", mt_model_kind_name(c->kind));
    mti_json_put_text(j, "preset", w->preset);
    mti_json_put_int(j, "batch", (uint64_t)w->batch);
    mti_json_put_int(j, "seq", (uint64_t)w->seq);
    mti_json_put_int(j, "hidden", (uint64_t)c->hidden);
    mti_json_put(j, "heads", attends ? json_integer(c->heads) : json_null());
    mti_json_put(j, "kv_heads", attends ? json_integer(c->kv_heads) : json_null());
    mti_json_put(j, "layers", whole ? json_integer(c->layers) : json_null());
    mti_json_put(j, "vocab", whole ? json_integer(c->vocab) : json_null());
    mti_json_put(j, "context", whole ? json_integer(c->context) : json_null());
    mti_json_put(j, "ffn", c->kind != MT_MODEL_ATTENTION ? json_integer(c->ffn) : json_null());
    mti_json_put_text(j, "mlp", feeds ? mt_mlp_kind_name(c->mlp) : NULL);
    mti_json_put_text(j, "act", acts ? mt_act_name(c->act) : NULL);
    mti_json_put_text(j, "out_act", c->has_out_act ? mt_act_name(c->out_act) : NULL);
    mti_json_put(j, "inplace", acts ? json_boolean(c->inplace) : json_null());
    mti_json_put_text(j, "norm", norms ? mt_norm_place_name(c->norm) : NULL);
    mti_json_put_text(j, "norm_kind", norms ? mt_norm_kind_name(c->norm_kind) : NULL);
    if (c->qk_norm) mti_json_put_text(j, "qk_norm", mt_qk_norm_name(c->qk_norm));
    if (c->joint_products) mti_json_put(j, "joint_products", json_true());
    if (c->attention_cap > 0) mti_json_put(j, "attention_cap", json_real(c->attention_cap));
    if (c->logit_cap > 0) mti_json_put(j, "logit_cap", json_real(c->logit_cap));
    if (c->position_offset) mti_json_put_int(j, "position_offset", (uint64_t)c->position_offset);
    if (c->window) mti_json_put_int(j, "window", (uint64_t)c->window);
    mti_json_put(j, "dropout", json_real(c->dropout));
    mti_json_put_text(j, "attention", attends ? mt_attention_form_name(c->attention) : NULL);
    mti_json_put(j, "causal", attends ? json_boolean(c->causal) : json_null());
    mti_json_put_text(j, "dtype", mt_dtype_name(c->dtype));
    mti_json_put(j, "ops", ops_json(c));
    mti_json_put_text(j, "recipe", w->recipe);
    mti_json_put_text(j, "recipe_options", w->recipe ? w->recipe_options : NULL);
    mti_json_put_text(j, "optimizer", mti_optimizer_name(w->optimizer));
    mti_json_put_int(j, "seed", w->seed);
    return j;
}

json_t *mti_params_json(uint64_t n_params, size_t n_bytes)
{
    return json_pack("{s:I,s:I}", "count", (json_int_t)n_params, "bytes", (json_int_t)n_bytes);
}

json_t *mti_categories_json(const size_t bytes[MT_CATEGORY_COUNT])
{
    json_t *j = json_object();
    for (int c = 0; c < MT_CATEGORY_COUNT; c++)
        mti_json_put_int(j, mt_category_name((mt_category)c), bytes[c]);
    return j;
}

json_t *mti_steady_json(const mti_steady *s)
{
    return json_pack("{s:I,s:I,s:I,s:I,s:o}", "requested", (json_int_t)s->requested, "peak",
                     (json_int_t)s->peak, "active", (json_int_t)s->peak, "reserved",
                     (json_int_t)s->reserved, "by_category", mti_categories_json(s->by_category));
}

json_t *mti_flops_json(const mt_flops *flops)
{
    return json_pack("{s:I,s:I,s:I}", "forward", (json_int_t)flops->forward, "backward",
                     (json_int_t)flops->backward, "recompute", (json_int_t)flops->recompute);
}

json_t *mti_formula_json(const mti_formula *f)
{
    if (!f->known) return json_null();
    json_t *j = json_object(), *terms = json_array(), *residual = json_array();
    mti_json_put(j, "bytes", json_integer(f->bytes));
    mti_json_put_text(j, "text", f->text);
    for (int i = 0; i < f->n_terms; i++)
        mti_json_push(terms, json_pack("{s:s,s:s,s:I}", "text", f->terms[i].text, "what",
                                       f->terms[i].what, "bytes", (json_int_t)f->terms[i].bytes));
    mti_json_put(j, "terms", terms);
    for (int i = 0; i < f->n_residual; i++)
        mti_json_push(residual, json_pack("{s:s,s:I}", "term", f->residual[i].text, "bytes",
                                          (json_int_t)f->residual[i].bytes));
    mti_json_put(j, "residual", residual);
    mti_json_put(j, "unexplained", json_integer(f->unexplained));
    return j;
}

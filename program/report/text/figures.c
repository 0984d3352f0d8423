/* figures.c: what several reports show, as text and as JSON. */
#include <assert.h>
#include <stdarg.h>
#include <string.h>
#include "nn/model.h"
#include "parallel/parallel.h"
#include "stacks/forms.h"
#include "report/sections.h"
#include "report/results.h"

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

/* Adds the choices of ops that differ from the defaults. */
static void add_choices(line *l, const mt_op_choices *ops)
{
    if (ops->swiglu) add(l, ", unfused swiglu");
    if (ops->rms_norm) add(l, ", unfused RMS norms");
    if (ops->gelu_tanh) add(l, ", unfused gelu_tanh");
    if (ops->rope) add(l, ", unfused rope");
    if (ops->softmax) add(l, ", softmax in f32");
    if (ops->kv_groups) add(l, ", keys and values repeated");
    if (ops->window_mask) add(l, ", masks of windows kept");
    if (ops->loss) add(l, ", %s", mti_loss_row_of(ops->loss)->words);
    if (ops->expert_form)
        add(l, ", experts as %s", mti_choice_name(&mti_expert_forms, (int)ops->expert_form));
    if (ops->linear) add(l, ", linears %s", mti_choice_name(&mti_linear_forms, (int)ops->linear));
}

void mti_stack_text(char *buf, size_t n, const mti_workload *w)
{
    mt_model_config c = w->config;
    mt_model_config_resolve(&w->config, &c);
    const struct {
        bool there;
        mt_op_form form;
        const char *name;
    } ops[] = {{c.norm_kind != MT_NORM_LAYER, c.ops.rms_norm, "RMS norms"},
               {mti_is_whole(c.kind) && !mti_learns_positions(&c), c.ops.rope, "rope"},
               {c.mlp == MT_MLP_SWIGLU, c.ops.swiglu, "swiglu"},
               {c.act == MT_ACT_GELU_TANH && mti_feeds(c.kind), c.ops.gelu_tanh, "gelu_tanh"}};
    line l = {.n = 0};
    add(&l, "%s attention", mt_attention_form_name(c.attention));
    for (size_t i = 0; i < sizeof ops / sizeof *ops; i++)
        if (ops[i].there) add(&l, ", %sfused %s", ops[i].form ? "un" : "", ops[i].name);
    add(&l, ", %s", mti_loss_row_of(c.ops.loss)->words);
    if (c.ops.linear)
        add(&l, ", linears %s", mti_choice_name(&mti_linear_forms, (int)c.ops.linear));
    snprintf(buf, n, "%s", l.text);
}

/* What few models have. */
static void add_rare(line *l, const mt_model_config *c)
{
    const char *before = "  with ";
    if (c->qk_norm) add(l, "%snorms of q and k", before), before = ", ";
    if (c->joint_products) add(l, "%sjoint products", before), before = ", ";
    const int64_t local = c->window > 0 ? mti_local_layers(c, 0, c->layers) : 0;
    if (c->window > 0) add(l, "%swindows of %lld", before, (long long)c->window), before = ", ";
    if (mti_is_whole(c->kind) && 0 < local && local < c->layers)
        add(l, " in %lld layer%s", (long long)local, local == 1 ? "" : "s");
    if (c->kind == MT_MODEL_GPT && c->untied) add(l, "%san untied head", before), before = ", ";
    if (c->attention_cap > 0)
        add(l, "%sscores capped at %g", before, c->attention_cap), before = ", ";
    if (c->logit_cap > 0) add(l, "%slogits capped at %g", before, c->logit_cap);
}

/* "gpt2  b=2 sequences of s=32 tokens, width h=768, ...": each letter as formulas have it. */
static void print_sizes(const mti_workload *w, const mt_model_config *c, const mti_sheet *to)
{
    bool whole = mti_is_whole(c->kind), attends = mti_attends(c->kind);
    const char *layers = w->ranked ? "" : "L="; /* a rank's L is its layers in flight */
    const char *name = w->preset ? w->preset : mt_model_kind_name(c->kind);
    char ahead[48];
    line l = {.n = 0};
    snprintf(ahead, sizeof ahead, " (%lld of predictions ahead)", (long long)c->mtp_layers);
    add(&l, "%s  b=%lld sequence%s of s=%lld token%s, width h=%lld", name, (long long)w->batch,
        w->batch == 1 ? "" : "s", (long long)w->seq, w->seq == 1 ? "" : "s", (long long)c->hidden);
    if (attends) add(&l, ", a=%lld head%s", (long long)c->heads, c->heads == 1 ? "" : "s");
    if (attends && c->kv_heads != c->heads)
        add(&l, " (%lld of keys and values)", (long long)c->kv_heads);
    if (whole)
        add(&l, ", %s%lld layer%s%s, vocabulary v=%lld", layers,
            (long long)(c->layers + c->mtp_layers), c->layers + c->mtp_layers == 1 ? "" : "s",
            c->mtp_layers ? ahead : "", (long long)c->vocab);
    if (c->pooled) add(&l, ", a pooler in place of the head");
    if (c->kind != MT_MODEL_ATTENTION)
        add(&l, ", %s f=%lld", c->kind == MT_MODEL_LINEAR ? "output" : "MLP", (long long)c->ffn);
    if (c->experts)
        add(&l, ", %lld experts, %lld for each token", (long long)c->experts,
            (long long)c->experts_per_token);
    if (c->shared_experts) add(&l, " and %lld for all", (long long)c->shared_experts);
    if (c->dense_layers)
        add(&l, ", none in the first %lld (f=%lld)", (long long)c->dense_layers,
            (long long)c->dense_ffn);
    if (c->kv_rank) add(&l, ", latents r=%lld of keys and values", (long long)c->kv_rank);
    if (c->q_rank) add(&l, ", c=%lld of queries", (long long)c->q_rank);
    mti_print_headed(to, MTI_BOLD, l.text, strlen(name));
}

void mti_print_model(const mti_workload *w, const mt_device *device, const mti_sheet *to)
{
    mt_model_config resolved = w->config;
    mt_model_config_resolve(&w->config, &resolved); /* checked when the options were read */
    const mt_model_config *c = &resolved;
    bool swiglu = c->mlp == MT_MLP_SWIGLU || c->mlp == MT_MLP_CLAMPED,
         attends = mti_attends(c->kind);
    bool norms = mti_is_whole(c->kind) || c->kind == MT_MODEL_BLOCK;
    const char *before = "";
    line l = {.n = 0}, rare = {.n = 0};
    print_sizes(w, c, to);
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
    add_choices(&l, *w->recipe ? &w->own_ops : &c->ops);
    add_rare(&rare, c);
    if (rare.n) { /* on a line of its own, which the rest goes on */
        mti_print_line(to, "%s", l.text);
        l = rare;
    }
    int threads = mt_device_threads(device);
    add(&l, "%s%s on %s", *before ? "; " : "", mt_dtype_name(c->dtype), mt_device_kind(device));
    if (mt_device_has_data(device)) add(&l, ", %d thread%s", threads, threads == 1 ? "" : "s");
    if (w->optimizer != MTI_OPT_NONE)
        add(&l, w->memory.master ? ", %s and f32 masters" : ", optimizer %s",
            mti_optimizer_name(w->optimizer));
    mti_print_line(to, "%s", l.text);
    if (*w->recipe) {
        line recipe = {.n = 0};
        add(&recipe, "recipe %s: %s", w->recipe,
            *w->recipe_options ? w->recipe_options : "no option differs");
        mti_print_line(to, "%s", recipe.text);
    }
    mti_print_usual_rank(w, to);
}

void mti_print_usual_rank(const mti_workload *w, const mti_sheet *to)
{
    if (w->usual_rank)
        mti_print_line(to, "adapters of rank %lld, the default of --qlora",
                       (long long)w->memory.lora_rank);
}

uint64_t mti_left_out_bytes(const mti_workload *w)
{
    uint64_t n = 0;
    for (int i = 0; i < w->n_left_out; i++) n += w->left_out[i].bytes;
    return n;
}

void mti_print_left_out(const mti_workload *w, const mti_sheet *to)
{
    for (int i = 0; i < w->n_left_out; i++) {
        const mti_left_out *l = &w->left_out[i];
        char text[200];
        mti_format(text, sizeof text, "Not counted: %s%s%s.", l->what, l->bytes ? ", about " : "",
                   l->bytes ? MTI_BYTES(l->bytes) : "");
        mti_print_wrapped(to, 0, text);
    }
}

/* ---- which rank, and what stays with it ---- */

void mti_print_place(const mti_workload *w, const mti_sheet *to)
{
    const mt_parallel h = mti_filled_in(&w->parallel);
    if (!w->ranked) return;
    const mti_shard_policy policy = mti_shard_policy_of(&h);
    static const char *const gathered[] = {"", ", gathered by block", ", gathered ahead"};
    line l = {.n = 0};
    add(&l, "rank %lld", (long long)w->rank);
    const size_t head = l.n;
    add(&l, "  stage %lld of %lld, 1 of %lld that share each layer%s, ", (long long)h.stage,
        (long long)h.pipeline, (long long)h.tensor, h.sequence ? " and the sequence" : "");
    if (h.context > 1)
        add(&l, "shard %lld of %lld of each sequence, ", (long long)h.context_rank,
            (long long)h.context);
    add(&l, "%lld with other data%s%s%s", (long long)h.data,
        policy.f32_shards ? ", f32 shards" : "", policy.f32_reduce ? " and sums" : "",
        gathered[policy.gather]);
    if (h.expert > 1)
        add(&l, ", 1 of %lld that divide %sexperts", (long long)h.expert,
            mti_folds_experts(&h) ? "whole " : "");
    if (h.replicas > 1) add(&l, ", %lld replicas of all shards", (long long)h.replicas);
    mti_print_headed(to, MTI_BOLD, l.text, head);
}

void mti_print_rank(const mti_workload *w, const mti_measurement *m, const mti_sheet *to)
{
    if (!w->ranked) return;
    mti_print_place(w, to);
    mti_print(to->out, "%lld layers, %lld part%s of the model in flight\n", (long long)m->layers,
              (long long)m->in_flight, m->in_flight == 1 ? "" : "s");
}

bool mti_print_states(const mti_workload *w, const mti_measurement *m, const mti_sheet *to)
{
    if (!w->ranked) return true;
    mti_heading(to, "From step to step, ZeRO stage %lld", (long long)w->parallel.zero);
    mti_table *t = mti_table_new("rl", NULL);
    const struct {
        size_t bytes;
        const char *what;
    } rows[] = {{m->param_bytes - m->param_host, "parameters"},
                {m->grad_bytes, "gradients"},
                {m->optimizer_bytes, "state of the optimizer"}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        mti_table_bytes(t, (int64_t)rows[i].bytes);
        mti_table_cell(t, "%s%s", rows[i].what,
                       i == 2 && w->memory.master ? ", with master copies" : "");
    }
    return mti_table_finish(t, to);
}

/* ---- rows and tables ---- */

void mti_equation_row(mti_table *t, const char *sign, int64_t bytes, const char *fmt, ...)
{
    line text = {.n = 0};
    va_list args;
    va_start(args, fmt);
    mti_vformat(text.text, sizeof text.text, fmt, args);
    va_end(args);
    mti_table_cells(t, "%s|%s|%s", sign, MTI_THOUSANDS(bytes), text.text);
}

void mti_residual_row(mti_table *t, int64_t bytes, const char *text, const char *alarm)
{
    mti_table_ink(t, bytes ? MTI_BAD : MTI_GOOD);
    mti_equation_row(t, " ", bytes, "%s%s", text, bytes ? alarm : "");
}

bool mti_print_categories(const size_t bytes[MT_CATEGORY_COUNT], const mti_sheet *to)
{
    size_t sum = 0;
    for (int c = 0; c < MT_CATEGORY_COUNT; c++) sum += bytes[c];
    mti_table *t = mti_table_new("lrr", NULL);
    for (int c = 0; c < MT_CATEGORY_COUNT; c++) {
        if (!bytes[c]) continue;
        mti_table_cells(t, "%s|%s|%.1f %%", mt_category_name((mt_category)c),
                        MTI_THOUSANDS(bytes[c]), 100.0 * (double)bytes[c] / (double)sum);
    }
    mti_table_rule(t);
    mti_table_ink(t, MTI_BOLD);
    mti_table_cells(t, "allocated|%s|", MTI_THOUSANDS(sum));
    return mti_table_finish(t, to);
}

/* shape.c: a model's dimensions, and the way from the textbook's transformer to it. */
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "nn/model.h"
#include "plan/plan.h"

/* Products of dimensions stay countable: 34 L b s h and the like are below 2^63. */
#define MOST 9.0e18

static bool countable(const mti_shape *s)
{
    const mt_model_config *c = &s->config;
    double t = (double)s->batch * (double)s->seq, layers = (double)mti_shape_layers(s);
    double h = (double)c->hidden, f = (double)c->ffn, q = (double)s->q, v = (double)c->vocab;
    double kept = 64 * layers * t * (h + f + q + (double)c->heads * (double)s->seq) + 32 * t * v;
    double matrices = layers * (3 * h * f + 4 * h * (q + h)) + 2 * v * h;
    double work = 8 * matrices * t + 32 * layers * t * (double)s->seq * q;
    return (kept < MOST && work < MOST) ||
           mti_fail_bool(MT_ERR_ARGUMENT,
                         "plan: %lld x %lld tokens of this model are more than can be counted "
                         "in 63 bits",
                         (long long)s->batch, (long long)s->seq);
}

bool mti_shape_make(mti_shape *s, const mt_model_config *config, int64_t batch, int64_t seq,
                    const mti_memory_options *how)
{
    *s = (mti_shape){.batch = batch, .seq = seq, .how = how};
    if (mt_model_config_resolve(config, &s->config) != MT_OK) return false;
    if (batch < 1 || seq < 1)
        return mti_fail_bool(MT_ERR_ARGUMENT, "plan: batch %lld, seq %lld; need at least 1 of each",
                             (long long)batch, (long long)seq);
    s->q = s->config.heads * s->config.head_dim;
    s->k = s->config.kv_heads * s->config.head_dim;
    if (!countable(s)) return false;
    s->tokens = batch * seq;
    return true;
}

const char *mti_shape_checkpoint(const mti_shape *s) { return s->how ? s->how->checkpoint : NULL; }

int64_t mti_shape_layers(const mti_shape *s)
{
    return mti_is_whole(s->config.kind) ? s->config.layers : 1;
}

int64_t mti_shape_group(const mti_shape *s)
{
    const char *text = mti_shape_checkpoint(s);
    mti_preset preset;
    if (!text || !mti_is_whole(s->config.kind) || !mti_preset_parse(text, &preset)) return 1;
    return mti_preset_group(&preset, s->config.layers);
}

bool mti_run_shape(mti_shape *s, mti_memory_options *how, const mt_plan_run *run,
                   mt_plan_formula *out)
{
    if (!run || !out)
        return mti_fail_bool(MT_ERR_ARGUMENT, "plan: the %s is NULL", run ? "result" : "run");
    *out = (mt_plan_formula){0};
    mti_preset preset = {MTI_PRESET_NONE};
    if (run->checkpoint && !mti_preset_parse(run->checkpoint, &preset))
        return mti_fail_bool(MT_ERR_ARGUMENT,
                             "plan: checkpoint: unknown \"%.40s\"; choose none, full, selective, "
                             "every=K or sqrt",
                             run->checkpoint);
    if (run->parameters < 0 || run->parameters > 1000000000000000)
        return mti_fail_bool(MT_ERR_ARGUMENT, "plan: %lld parameters; need 0 to 10^15",
                             (long long)run->parameters);
    *how =
        (mti_memory_options){.checkpoint = preset.form == MTI_PRESET_NONE ? NULL : run->checkpoint};
    return mti_shape_make(s, run->config, run->batch, run->seq, how);
}

/* ---- from the textbook's shape to another, choice by choice ---- */

/* What Korthikanti et al. 2022 and 12h^2 + 13h assume. */
static mti_shape textbook(const mti_shape *s)
{
    mti_shape t = *s;
    mt_model_config *c = &t.config;
    t.how = NULL;
    t.q = t.k = c->hidden;
    c->ffn = 4 * c->hidden;
    c->mlp = MT_MLP_PLAIN;
    c->act = MT_ACT_GELU;
    c->inplace = c->no_bias = c->qkv_bias = false;
    c->norm = MT_NORM_PRE;
    c->norm_kind = MT_NORM_LAYER;
    c->rope_theta = 0;
    c->attention = MT_ATTENTION_MATH;
    c->dropout = 0.1;
    c->dtype = MT_BF16;
    return t;
}

typedef struct choice {
    const char *text;
    void (*take)(mti_shape *at, const mti_shape *to);
} choice;

static void take_q(mti_shape *at, const mti_shape *to)
{
    at->k += to->q - at->q;
    at->q = to->q;
}
static void take_k(mti_shape *at, const mti_shape *to) { at->k = to->k; }
static void take_ffn(mti_shape *at, const mti_shape *to) { at->config.ffn = to->config.ffn; }
static void take_mlp(mti_shape *at, const mti_shape *to) { at->config.mlp = to->config.mlp; }
static void take_act(mti_shape *at, const mti_shape *to)
{
    at->config.act = to->config.act;
    at->config.inplace = to->config.inplace;
}
static void take_norm_kind(mti_shape *at, const mti_shape *to)
{
    at->config.norm_kind = to->config.norm_kind;
}
static void take_bias(mti_shape *at, const mti_shape *to)
{
    at->config.no_bias = to->config.no_bias;
    at->config.qkv_bias = to->config.qkv_bias;
}
static void take_norm(mti_shape *at, const mti_shape *to) { at->config.norm = to->config.norm; }
static void take_rope(mti_shape *at, const mti_shape *to)
{
    at->config.rope_theta = to->config.rope_theta;
}
static void take_attention(mti_shape *at, const mti_shape *to)
{
    at->config.attention = to->config.attention;
}
static void take_dropout(mti_shape *at, const mti_shape *to)
{
    at->config.dropout = to->config.dropout;
}
static void take_dtype(mti_shape *at, const mti_shape *to) { at->config.dtype = to->config.dtype; }
static void take_how(mti_shape *at, const mti_shape *to) { at->how = to->how; }

static const choice choices[] = {
    {"heads whose joint width is not h", take_q},
    {"grouped-query attention: fewer heads of keys and values", take_k},
    {"an MLP that is not 4h wide", take_ffn},
    {"swiglu: a gate beside the MLP's first product", take_mlp},
    {"an activation other than GELU: one that knows its slope by its output shares it", take_act},
    {"RMS norms: neither bias nor mean", take_norm_kind},
    {"no biases, or only those of q, k and v", take_bias},
    {"norms after the sums", take_norm},
    {"rotary positions: q, k and v apart", take_rope},
    {"flash attention: no b a s s of weights, masks and dropped weights", take_attention},
    {"no dropout: no masks, and no weights that it changed", take_dropout},
    {"floats of another size than 2 bytes", take_dtype},
    {"checkpoints: what they hold, less what they make again", take_how},
};

bool mti_add_row(mt_plan_formula *formula, int64_t amount, const char *fmt, ...)
{
    if (!amount) return true;
    if (formula->n_rows == MT_PLAN_MAX_ROWS)
        return mti_fail_bool(MT_ERR_INTERNAL, "plan: more than %d rows of %s", MT_PLAN_MAX_ROWS,
                             formula->name);
    mt_plan_row *row = &formula->rows[formula->n_rows++];
    row->amount = amount;
    va_list args;
    va_start(args, fmt);
    vsnprintf(row->text, sizeof row->text, fmt, args);
    va_end(args);
    formula->expected += amount;
    return true;
}

bool mti_walk(mt_plan_formula *formula, const mti_shape *s, mti_cost_fn *cost)
{
    mti_shape at = textbook(s);
    int64_t before = cost(&at);
    formula->value = formula->expected = before;
    for (size_t i = 0; i < sizeof choices / sizeof *choices; i++) {
        choices[i].take(&at, s);
        int64_t now = cost(&at);
        if (!mti_add_row(formula, now - before, "%s", choices[i].text)) return false;
        before = now;
    }
    return true;
}

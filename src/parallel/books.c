/* books.c: what a rank keeps for backward, by formula, and what the formula leaves out.
 *
 * Korthikanti et al. 2022, table 2: bytes a layer with 2-byte floats, separate softmax and dropout.
 *   tensor parallelism                        sbh(10 + 24/t + 5as/(ht))
 *   with sequence parallelism                 sbh(34/t + 5as/(ht))
 *   selective recomputation                   the same without 5as/(ht)
 *   full recomputation                        2sbh
 * Recomputation but for some ops' results (mt_policy_ops) is not in the paper.
 * With context parallelism s is the rank's part of the sequence, and the weights of attention have
 * a column for each key that its queries see. The 10 are the inputs of two norms and of two
 * products, and two dropout masks: not split by tensor parallelism. The 24 are q, k and v, the
 * merged heads, and the MLP's input and output of its activation. */
#include <stdio.h>
#include <string.h>
#include "nn/model.h"
#include "parallel/parallel.h"

typedef struct terms {       /* bytes of one token of one layer */
    int64_t between, inside; /* split by sequence parallelism alone; split among the ranks */
    int64_t core;            /* one token's attention weights: split among the ranks */
    int64_t whole;           /* split among none */
} terms;

static bool keeps_its_output(const mt_model_config *c)
{
    return c->act == MT_ACT_RELU || c->act == MT_ACT_TANH || c->act == MT_ACT_SIGMOID ||
           (c->act == MT_ACT_LEAKY_RELU && c->inplace);
}

/* Bytes that a norm keeps of an element: its input; unfused: that in f32, and its quotient. */
static int64_t norm_input(const mt_model_config *c)
{
    int64_t e = (int64_t)mt_dtype_size(c->dtype);
    int64_t f32 = e == 2 ? 4 : e;
    if (c->norm_kind == MT_NORM_LAYER || c->ops.rms_norm == MT_OP_FUSED) return e;
    return f32 + (c->norm_kind == MT_NORM_RMS_ONE ? f32 : e);
}

/* Of a rank's layer under mt_policy_ops: its input, and what is kept besides. */
static terms terms_of_ops(const mti_share *s)
{
    const mt_model_config *c = &s->whole;
    const int64_t e = (int64_t)mt_dtype_size(c->dtype);
    const int64_t q = c->heads * c->head_dim, k = c->kv_heads * c->head_dim;
    mti_product products[MTI_PRODUCTS];
    terms t = {.between = c->hidden * e, .inside = q * e};
    mt_model_config block = *c;
    block.kind = MT_MODEL_BLOCK;
    int n = mti_layer_products(&block, products);
    for (int i = 0; i < n; i += 2) switch (products[i]) {
        case MTI_PRODUCT_QKV: t.inside += (q + 2 * k) * e; break;
        case MTI_PRODUCT_Q: t.inside += q * e; break;
        case MTI_PRODUCT_KV: t.inside += k * e; break;
        case MTI_PRODUCT_WIDEN: t.inside += c->ffn * e; break;
        case MTI_PRODUCT_GATE_UP: t.inside += 2 * c->ffn * e; break;
        default: t.whole += c->hidden * e; /* summed over the ranks afterwards */
        }
    if (s->parallel.sequence && s->parallel.tensor > 1)
        t.between += 2 * c->hidden * e; /* both sums' parts */
    return t;
}

static terms terms_of(const mti_share *s, const mti_flight *f)
{
    const mt_model_config *c = &s->whole;
    const int64_t seen = mti_pieces_seen(s);
    int64_t e = (int64_t)mt_dtype_size(c->dtype), drop = c->dropout > 0;
    int64_t q = c->heads * c->head_dim, k = c->kv_heads * c->head_dim;
    const mt_op_choices *ops = &c->ops;
    int64_t f32 = e == 2 ? 4 : e, wide = keeps_its_output(c) ? 1 : 2;
    if (c->act == MT_ACT_GELU_TANH && ops->gelu_tanh == MT_OP_UNFUSED) wide = 5;
    if (c->mlp == MT_MLP_SWIGLU) wide = ops->swiglu == MT_OP_UNFUSED ? 4 : 3;
    if (c->mlp == MT_MLP_GATED) wide += 2; /* up, and its product with the gate */
    bool core = c->attention == MT_ATTENTION_MATH && strcmp(f->checkpoint, "selective") != 0;
    bool repeated = core && ops->kv_groups == MT_KV_REPEATED && k < q;
    int64_t kv = !repeated ? 2 * k : (c->rope_theta > 0 ? 0 : 2 * k) + 2 * q * seen;
    bool cast = e == 2 && ops->softmax == MT_PRECISION_F32;
    int64_t weights = (cast ? f32 : e) + (drop ? 1 + e : cast ? e : 0);
    if (!strcmp(f->checkpoint, "full")) return (terms){.between = c->hidden * e};
    bool turned = c->joint_products && c->rope_theta > 0 && strcmp(f->checkpoint, "selective") != 0;
    int64_t besides = c->qk_norm ? (q + k) * norm_input(c) : turned ? (q + k) * e : 0;
    int64_t n_norms = c->norm == MT_NORM_AROUND ? 4 : 2;
    if (repeated && turned) besides = 0; /* nothing keeps the product's result */
    if (c->attention_cap > 0) weights += e;
    return (terms){.between = c->hidden * (n_norms * norm_input(c) + 2 * e + 2 * drop),
                   .inside = (2 * q + kv + wide * c->ffn) * e + besides,
                   .core = core ? c->heads * f->seq * seen * weights : 0};
}

/* ---- as text ---- */

static bool is_the_papers(const mt_model_config *c)
{
    return mt_dtype_size(c->dtype) == 2 && c->dropout > 0 && c->attention == MT_ATTENTION_MATH &&
           c->kv_heads * c->head_dim == c->hidden && c->heads * c->head_dim == c->hidden &&
           c->norm != MT_NORM_AROUND && c->attention_cap == 0 && c->mlp == MT_MLP_PLAIN &&
           c->ffn == 4 * c->hidden && !keeps_its_output(c);
}

static void write_layer(char *text, size_t n, const mti_share *s, const mti_flight *f,
                        const terms *x)
{
    bool selective = !strcmp(f->checkpoint, "selective"), cut = s->parallel.sequence;
    if (!strcmp(f->checkpoint, "full") && mt_dtype_size(s->whole.dtype) == 2)
        snprintf(text, n, cut ? "2sbh/t" : "2sbh");
    else if (!strcmp(f->checkpoint, "ops"))
        snprintf(text, n, "sb(%lld%s + %lld/t + %lld)", (long long)x->between, cut ? "/t" : "",
                 (long long)x->inside, (long long)x->whole);
    else if (!is_the_papers(&s->whole) || s->parallel.context > 1)
        snprintf(text, n, "sb(%lld%s + %lld/t%s)", (long long)x->between, cut ? "/t" : "",
                 (long long)(x->inside + x->core),
                 x->core ? ", weights of attention included" : "");
    else if (s->parallel.tensor == 1)
        snprintf(text, n, selective ? "34sbh" : "sbh(34 + 5as/h)");
    else if (cut)
        snprintf(text, n, selective ? "34sbh/t" : "sbh(34 + 5as/h)/t");
    else
        snprintf(text, n, selective ? "sbh(10 + 24/t)" : "sbh(10 + 24/t + 5as/(ht))");
}

static void write_text(mt_rank_report *out, const mti_share *s, const mti_flight *f, const terms *x)
{
    char layer[96], *at = out->text;
    const char *over = s->parallel.sequence ? "/t" : "";
    size_t n = sizeof out->text;
    write_layer(layer, sizeof layer, s, f, x);
    size_t used = (size_t)snprintf(at, n, "%lld x %s", (long long)f->layers, layer);
    if (f->first && s->whole.dropout > 0)
        used += (size_t)snprintf(at + used, n - used, " + %lld x sbh%s", (long long)f->first, over);
    if (f->last)
        snprintf(at + used, n - used, " + %lld x (%dsbh%s + 4sbv/t)", (long long)f->last,
                 (int)(mt_dtype_size(s->whole.dtype) +
                       (s->whole.norm != MT_NORM_POST ? norm_input(&s->whole) : 0)),
                 over);
}

/* ---- what the formula leaves out ---- */

static const char *left_out(const mt_saver *saver)
{
    bool aux = saver->role == MT_SAVE_AUX, ids = saver->dtype == MT_I64;
    if (!strcmp(saver->op, "layer_norm") && aux) return "layer norms: mean and rstd of each row";
    if (!strcmp(saver->op, "rms_norm") && !strcmp(saver->argument, "w"))
        return "RMS norms: 1 + weight";
    if (!strcmp(saver->op, "tanh") && strstr(saver->module, "logit_cap"))
        return "the logits' soft capping: their tanh";
    if (!strcmp(saver->op, "rms_norm") && aux) return "RMS norms: rstd of each row";
    if (!strcmp(saver->op, "mul") && saver->rank == 1) return "RMS norms: 1 + weight";
    if (!strcmp(saver->op, "mul") && saver->rank == 2)
        return "rotary positions: tables of cosines and sines";
    if (!strcmp(saver->op, "sqrt")) return "RMS norms: root mean square of each row";
    if (!strcmp(saver->op, "flash_attention") && aux)
        return ids ? "flash attention: RNG state (seed, offset)"
                   : "flash attention: log-sum-exp of each row";
    if (!strcmp(saver->op, "embedding") && ids) return "embedding: token indices";
    bool lse = !strcmp(saver->op, "cross_entropy_lse");
    if ((lse || !strcmp(saver->op, "cross_entropy")) && ids) return "cross-entropy: targets";
    if (lse && aux) return "cross-entropy: log-sum-exp of each row";
    return NULL;
}

static bool add_row(mt_rank_report *out, const char *what, int64_t bytes)
{
    for (int i = 0; i < out->n_rows; i++)
        if (!strcmp(out->rows[i].what, what)) {
            out->rows[i].bytes += bytes;
            return true;
        }
    if (!bytes) return true;
    if (out->n_rows == MT_RANK_ROWS)
        return mti_fail_bool(MT_ERR_INTERNAL, "rank: more kinds of rows than %d", MT_RANK_ROWS);
    out->rows[out->n_rows++] = (mt_rank_row){what, bytes};
    return true;
}

static bool add_entry(mt_rank_report *out, const mt_ledger_entry *e)
{
    const mt_saver *saver = &e->saver;
    const char *what = left_out(saver);
    if (what) return add_row(out, what, (int64_t)e->bytes);
    bool logp = !strcmp(saver->op, "cross_entropy") && saver->role == MT_SAVE_AUX;
    bool logits = !strcmp(saver->op, "cross_entropy_lse") && saver->role == MT_SAVE_INPUT;
    if (!logp && !logits) return true;
    int64_t counted = (int64_t)(e->bytes / mt_dtype_size(saver->dtype) * sizeof(float));
    return add_row(out,
                   logits ? "logits in the model's dtype; the formula has 4 bytes each"
                          : "log-probabilities in the model's dtype; the formula has 4 bytes each",
                   (int64_t)e->bytes - counted);
}

bool mti_rank_explain(const mti_share *s, const mti_flight *f, const mt_ledger *ledger,
                      mt_rank_report *out)
{
    const mt_model_config *c = &s->whole;
    int64_t tokens = f->batch * f->seq, t = s->parallel.tensor, w = s->parallel.sequence ? t : 1;
    int64_t e = (int64_t)mt_dtype_size(c->dtype), drop = c->dropout > 0;
    terms x = terms_of(s, f);
    int64_t last = c->norm != MT_NORM_POST ? norm_input(c) : 0; /* the last norm's */
    if (!strcmp(f->checkpoint, "ops")) x = terms_of_ops(s);
    int64_t ends = c->hidden * (last + e);
    out->formula =
        f->layers * (tokens * x.between / w + tokens * (x.inside + x.core) / t + tokens * x.whole) +
        f->first * drop * tokens * c->hidden / w +
        f->last * (tokens * ends / w + tokens * c->vocab / t * (int64_t)sizeof(float));
    write_text(out, s, f, &x);
    for (size_t i = 0; i < mt_ledger_count(ledger); i++) {
        mt_ledger_entry entry;
        if (mt_ledger_get(ledger, i, &entry) != MT_OK) return false;
        if (!add_entry(out, &entry)) return false;
    }
    out->unexplained = (int64_t)out->saved - out->formula;
    for (int i = 0; i < out->n_rows; i++) out->unexplained -= out->rows[i].bytes;
    return true;
}

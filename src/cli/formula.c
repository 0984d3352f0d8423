/* formula.c: terms of the closed formula, and the ledger's entries that stand beside it. */
#include <stdio.h>
#include <string.h>
#include "cli/formula.h"
#include "base/base.h"

/* Bytes per unit of each product of letters. */
typedef struct weights {
    int64_t bsh, bsf, abss, bsv;
} weights;

/* ---- terms, each with what it stands for; e: bytes of an element ---- */

static void add_attention(weights *w, const mt_model_config *c, int64_t e)
{
    w->bsh += e;                     /* input of the qkv product */
    w->bsh += 3 * e;                 /* q, k, v */
    w->bsh += e;                     /* input of the projection: the heads' outputs, merged */
    if (c->dropout > 0) w->bsh += 1; /* mask after the projection */
    if (c->attention == MT_ATTENTION_FLASH) return;
    w->abss += e;                         /* softmax keeps its output */
    if (c->dropout > 0) w->abss += 1 + e; /* its mask; the product with v keeps what is left */
}

/* Those that can compute their derivative from the output share it with the next product. */
static bool act_keeps_output(const mt_model_config *c)
{
    return c->act == MT_ACT_RELU || c->act == MT_ACT_TANH || c->act == MT_ACT_SIGMOID ||
           (c->act == MT_ACT_LEAKY_RELU && c->inplace);
}

static void add_mlp(weights *w, const mt_model_config *c, int64_t e)
{
    w->bsh += e;                           /* input of the first product */
    if (!act_keeps_output(c)) w->bsf += e; /* input of the activation */
    w->bsf += e;                           /* input of the second product */
    if (c->dropout > 0) w->bsh += 1;       /* mask */
}

static void add_layer(weights *w, const mt_model_config *c, int64_t e)
{
    bool block = c->kind == MT_MODEL_BLOCK || c->kind == MT_MODEL_GPT;
    if (block || c->kind == MT_MODEL_ATTENTION) add_attention(w, c, e);
    if (block || c->kind == MT_MODEL_MLP) add_mlp(w, c, e);
    if (block) w->bsh += 2 * e; /* inputs of the two layer norms */
}

/* Around a gpt's blocks. */
static void add_ends(weights *w, const mt_model_config *c, int64_t e)
{
    if (c->dropout > 0) w->bsh += 1;         /* mask on the embeddings */
    if (c->norm == MT_NORM_PRE) w->bsh += e; /* input of the last layer norm */
    w->bsh += e;                             /* input of the head */
    w->bsv += e;                             /* log-probabilities */
}

/* ---- text and value ---- */

static void append(char *text, size_t size, int64_t weight, const char *letters)
{
    size_t n = strlen(text);
    bool first = n == 0 || text[n - 1] == '(';
    if (weight)
        snprintf(text + n, size - n, "%s%lld%s", first ? "" : " + ", (long long)weight, letters);
}

static void write_weights(char *text, size_t size, weights w)
{
    append(text, size, w.bsh, "bsh");
    append(text, size, w.bsf, "bsf");
    append(text, size, w.abss, "abs^2");
    append(text, size, w.bsv, "bsv");
}

static int64_t value_of(weights w, const mt_model_config *c, int64_t b, int64_t s)
{
    int64_t f = c->ffn ? c->ffn : 4 * c->hidden;
    return b * s * (w.bsh * c->hidden + w.bsf * f + w.abss * c->heads * s + w.bsv * c->vocab);
}

/* f is four times h unless said otherwise, and then the formula does without the letter. */
static weights folded(weights w, const mt_model_config *c)
{
    if (c->ffn && c->ffn != 4 * c->hidden) return w;
    w.bsh += 4 * w.bsf;
    w.bsf = 0;
    return w;
}

/* ---- what the formula leaves out, found in the ledger by op and argument ---- */

static const char *left_out(const mt_saver *saver)
{
    const char *op = saver->op, *arg = saver->argument;
    bool aux = saver->role == MT_SAVE_AUX, ids = saver->dtype == MT_I64;
    if (!strcmp(op, "layer_norm") && aux) return "layer norms: mean and rstd of each row";
    if (!strcmp(op, "flash_attention") && aux)
        return ids ? "flash attention: RNG state (seed, offset)"
                   : "flash attention: log-sum-exp of each row";
    if (!strcmp(op, "embedding") && ids) return "embeddings: token and position indices";
    if (!strcmp(op, "cross_entropy") && ids && !strcmp(arg, "target"))
        return "cross-entropy: targets";
    return NULL;
}

static bool add_residual(mti_formula *f, const char *text, int64_t bytes)
{
    for (int i = 0; i < f->n_residual; i++) {
        if (strcmp(f->residual[i].text, text)) continue;
        f->residual[i].bytes += bytes;
        return true;
    }
    if (f->n_residual == MTI_MAX_TERMS) return false;
    f->residual[f->n_residual++] = (mti_term){text, bytes};
    return true;
}

static bool name_entries(mti_formula *f, const mt_model_config *c, const mt_ledger *ledger)
{
    for (size_t i = 0; i < mt_ledger_count(ledger); i++) {
        mt_ledger_entry e;
        if (mt_ledger_get(ledger, i, &e) != MT_OK) return false;
        const char *text = left_out(&e.saver);
        size_t size = mt_dtype_size(e.saver.dtype), assumed = mt_dtype_size(c->dtype);
        if (text) {
            if (!add_residual(f, text, (int64_t)e.bytes)) return false;
        } else if (mt_dtype_is_float(e.saver.dtype) && size != assumed) {
            int64_t extra = (int64_t)(e.bytes - e.bytes / size * assumed);
            if (!add_residual(f, "kept in a wider type than the formula's", extra)) return false;
        }
    }
    return true;
}

bool mti_formula_make(mti_formula *f, const mt_model_config *config, int64_t batch, int64_t seq,
                      const mt_ledger *ledger)
{
    *f = (mti_formula){0};
    int64_t e = (int64_t)mt_dtype_size(config->dtype);
    bool gpt = config->kind == MT_MODEL_GPT;
    weights layer = {0}, ends = {0};
    add_layer(&layer, config, e);
    if (gpt) add_ends(&ends, config, e);
    layer = folded(layer, config);
    f->bytes = value_of(layer, config, batch, seq) * (gpt && config->layers ? config->layers : 1) +
               value_of(ends, config, batch, seq);
    if (gpt) snprintf(f->text, sizeof f->text, "L(");
    write_weights(f->text, sizeof f->text, layer);
    if (gpt) strcat(f->text, ")");
    write_weights(f->text, sizeof f->text, ends);
    if (!name_entries(f, config, ledger)) return false;
    f->unexplained = (int64_t)mt_ledger_bytes(ledger) - f->bytes;
    for (int i = 0; i < f->n_residual; i++) f->unexplained -= f->residual[i].bytes;
    return true;
}

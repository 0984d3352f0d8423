/* formula.c: terms of the closed formula, and the ledger's entries that stand beside it. */
#include <stdio.h>
#include <string.h>
#include "cli/formula.h"
#include "base/base.h"

/* The products of letters there are. */
typedef enum letters { BSH, BSF, ABSS, BSV, N_LETTERS } letters;

typedef struct builder {
    mti_formula *f;
    const mt_model_config *c;
    int64_t value[N_LETTERS]; /* of each product */
    int64_t sum[N_LETTERS];   /* weights so far */
    bool in_layers;           /* of a gpt: what is added now is kept in each of them */
} builder;

static const char *const spelling[N_LETTERS] = {"bsh", "bsf", "abs^2", "bsv"};

/* "12bsh", and "bsh" for 1 */
static void write_term(char *to, size_t size, const char *before, int64_t weight,
                       const char *layers, letters product)
{
    if (weight == 1)
        snprintf(to, size, "%s%s%s", before, layers, spelling[product]);
    else
        snprintf(to, size, "%s%lld%s%s", before, (long long)weight, layers, spelling[product]);
}

/* `weight` bytes for each of the product's elements, in every repeated layer. */
static void add(builder *b, letters product, int64_t weight, const char *what)
{
    int64_t layers = b->in_layers && b->c->layers ? b->c->layers : 1;
    mti_formula_term *term = &b->f->terms[b->f->n_terms++];
    *term = (mti_formula_term){.what = what, .bytes = weight * b->value[product] * layers};
    b->f->bytes += term->bytes;
    /* f is four times h unless said otherwise, and then the formula does without the letter. */
    if (product == BSF && (!b->c->ffn || b->c->ffn == 4 * b->c->hidden)) {
        product = BSH;
        weight *= 4;
    }
    b->sum[product] += weight;
    write_term(term->text, sizeof term->text, "", weight, b->in_layers ? "L" : "", product);
}

/* ---- what is kept, term by term; e: bytes of an element ---- */

static void add_attention(builder *b, int64_t e)
{
    bool drop = b->c->dropout > 0, math = b->c->attention == MT_ATTENTION_MATH;
    add(b, BSH, e, "input of the qkv product");
    add(b, BSH, 3 * e, "q, k and v");
    if (math) add(b, ABSS, e, "attention weights: softmax keeps its output");
    if (math && drop) add(b, ABSS, 1, "mask of the attention weights' dropout");
    if (math && drop) add(b, ABSS, e, "what dropout left of them, for the product with v");
    add(b, BSH, e,
        math ? "merged heads: input of the projection"
             : "merged heads: flash keeps its output, the projection its input");
    if (drop) add(b, BSH, 1, "mask of the dropout after the projection");
}

/* Those that can tell their slope from the output share it with the next product. */
static bool act_keeps_output(const mt_model_config *c)
{
    return c->act == MT_ACT_RELU || c->act == MT_ACT_TANH || c->act == MT_ACT_SIGMOID ||
           (c->act == MT_ACT_LEAKY_RELU && c->inplace);
}

static void add_mlp(builder *b, int64_t e)
{
    add(b, BSH, e, "input of the MLP's first product");
    if (act_keeps_output(b->c)) {
        add(b, BSF, e, "output of the activation: input of the second product, too");
    } else {
        add(b, BSF, e, "input of the activation");
        add(b, BSF, e, "input of the MLP's second product");
    }
    if (b->c->dropout > 0) add(b, BSH, 1, "mask of the dropout after the MLP");
}

static void add_layer(builder *b, int64_t e)
{
    mt_model_kind kind = b->c->kind;
    bool block = kind == MT_MODEL_BLOCK || kind == MT_MODEL_GPT;
    if (block) add(b, BSH, 2 * e, "inputs of the two layer norms");
    if (block || kind == MT_MODEL_ATTENTION) add_attention(b, e);
    if (block || kind == MT_MODEL_MLP) add_mlp(b, e);
}

/* Around a gpt's blocks. */
static void add_ends(builder *b, int64_t e)
{
    if (b->c->dropout > 0) add(b, BSH, 1, "mask of the dropout on the embeddings");
    if (b->c->norm == MT_NORM_PRE) add(b, BSH, e, "input of the last layer norm");
    add(b, BSH, e, "input of the head");
    add(b, BSV, e, "log-probabilities, for the loss");
}

/* ---- the formula as text ---- */

/* Appends the sums, which start anew. */
static void write_sums(builder *b)
{
    char *text = b->f->text;
    const size_t size = sizeof b->f->text;
    for (int p = 0; p < N_LETTERS; p++) {
        size_t n = strlen(text);
        bool first = n == 0 || text[n - 1] == '(';
        if (b->sum[p])
            write_term(text + n, size - n, first ? "" : " + ", b->sum[p], "", (letters)p);
        b->sum[p] = 0;
    }
}

static void build(builder *b)
{
    const mt_model_config *c = b->c;
    bool gpt = c->kind == MT_MODEL_GPT;
    int64_t e = (int64_t)mt_dtype_size(c->dtype);
    b->in_layers = gpt;
    add_layer(b, e);
    if (gpt) strcpy(b->f->text, "L(");
    write_sums(b);
    if (!gpt) return;
    strcat(b->f->text, ")");
    b->in_layers = false;
    add_ends(b, e);
    write_sums(b);
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
    if (f->n_residual == MTI_MAX_RESIDUALS) return false;
    f->residual[f->n_residual++] = (mti_residual){text, bytes};
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
    int64_t tokens = batch * seq, h = config->hidden, ffn = config->ffn ? config->ffn : 4 * h;
    *f = (mti_formula){0};
    builder b = {.f = f,
                 .c = config,
                 .value = {[BSH] = tokens * h,
                           [BSF] = tokens * ffn,
                           [ABSS] = config->heads * tokens * seq,
                           [BSV] = tokens * config->vocab}};
    build(&b);
    if (!name_entries(f, config, ledger)) return false;
    f->unexplained = (int64_t)mt_ledger_bytes(ledger) - f->bytes;
    for (int i = 0; i < f->n_residual; i++) f->unexplained -= f->residual[i].bytes;
    return true;
}

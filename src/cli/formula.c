/* formula.c: terms of the closed formula, and the ledger's entries that stand beside it. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/base.h"
#include "cli/formula.h"
#include "memtape/ops.h"
#include "nn/model.h"
#include "nn/model.h"

/* The products of letters there are. */
typedef enum letters { BSH, BSQ, BSK, BSF, ABSS, BSV, N_LETTERS } letters;

typedef struct builder {
    mti_formula *f;
    const mt_model_config *c;
    const mti_spending *how;
    int64_t e;                /* bytes of an element */
    int64_t value[N_LETTERS]; /* of each product */
    double sum[N_LETTERS];    /* weights so far */
    int64_t times;            /* what is added now is kept so often */
    const char *letter;       /* that stands for `times` */
} builder;

static const char *const spelling[N_LETTERS] = {"bsh", "bsq", "bsk", "bsf", "abs^2", "bsv"};

/* "12bsh", and "bsh" for 1 */
static void write_term(char *to, size_t size, const char *before, double weight, const char *layers,
                       letters product)
{
    if (weight == 1)
        snprintf(to, size, "%s%s%s", before, layers, spelling[product]);
    else
        snprintf(to, size, "%s%g%s%s", before, weight, layers, spelling[product]);
}

/* ---- one storage that is kept ---- */

typedef enum nature { FLOATS, INPUT, STATISTICS, MASK, SIGNED } nature;

#define SMALL 4096 /* bytes under which neither offload nor compression takes a storage */

/* Bytes an element as the hooks leave it, times `elements`, into *bytes; the nominal weight back.
 */
static double kept_as(const builder *b, nature of, int64_t elements, int64_t *bytes)
{
    int64_t size = of == MASK ? 1 : b->e;
    unsigned rules = b->how ? b->how->compress : 0;
    bool offload = b->how && b->how->offload;
    *bytes = elements * size;
    if (*bytes < SMALL) return (double)size;
    if (offload && of != INPUT) return *bytes = 0, 0;
    if (of == STATISTICS) return (double)size;
    if (of == MASK) {
        if (rules & 1u << MT_COMPRESS_MASK_SEED) return *bytes = 0, 0;
        if (!(rules & 1u << MT_COMPRESS_MASK_BITS)) return 1;
        *bytes = (elements + 7) / 8;
        return 0.125;
    }
    if (of == SIGNED && rules & 1u << MT_COMPRESS_SIGNS) {
        *bytes = (elements + 7) / 8;
        return 0.125;
    }
    if (rules & 1u << MT_COMPRESS_INT8 && b->e <= 4) {
        *bytes = (int64_t)mt_quantized_bytes(&(mt_quant){.format = MT_QUANT_INT8}, elements);
        return 1 + 4.0 / 128;
    }
    if (rules & 1u << MT_COMPRESS_BF16 && b->e == 4) {
        *bytes = elements * 2;
        return 2;
    }
    return (double)size;
}

/* q, k and f are h or a multiple of it in the usual model, and then the formula does without them.
 */
static letters spelt(const builder *b, letters product, double *weight)
{
    int64_t times = b->value[BSH] ? b->value[product] / b->value[BSH] : 0;
    bool plain = (product == BSQ || product == BSK) && times == 1;
    bool fourfold = product == BSF && times == 4;
    if (!(plain || fourfold) || times * b->value[BSH] != b->value[product]) return product;
    *weight *= (double)times;
    return BSH;
}

static mti_formula_term *add_term(builder *b, int64_t bytes, const char *what)
{
    mti_formula_term *term = &b->f->terms[b->f->n_terms++];
    *term = (mti_formula_term){.what = what, .bytes = bytes * b->times};
    b->f->bytes += term->bytes;
    return term;
}

/* A storage of the product's elements. */
static void add(builder *b, letters product, nature of, const char *what)
{
    int64_t bytes;
    double weight = kept_as(b, of, b->value[product], &bytes);
    if (bytes == 0) return;
    mti_formula_term *term = add_term(b, bytes, what);
    product = spelt(b, product, &weight);
    b->sum[product] += weight;
    write_term(term->text, sizeof term->text, "", weight, b->letter, product);
}

/* Queries, keys and values side by side in one storage. */
static void add_qkv(builder *b, const char *what)
{
    int64_t bytes;
    double each = kept_as(b, FLOATS, b->value[BSQ] + 2 * b->value[BSK], &bytes);
    if (bytes == 0) return;
    mti_formula_term *term = add_term(b, bytes, what);
    double q = each, k = 2 * each;
    letters of_q = spelt(b, BSQ, &q), of_k = spelt(b, BSK, &k);
    b->sum[of_q] += q;
    b->sum[of_k] += k;
    if (of_q == of_k)
        write_term(term->text, sizeof term->text, "", q + k, b->letter, of_q);
    else
        snprintf(term->text, sizeof term->text, "%g%s(%s + 2%s)", each, b->letter, spelling[of_q],
                 spelling[of_k]);
}

/* ---- what is kept, term by term ---- */

static bool preset_is(const builder *b, const char *preset)
{
    return b->how && b->how->checkpoint && !strcmp(b->how->checkpoint, preset);
}

static void add_attention(builder *b, nature input)
{
    bool drop = b->c->dropout > 0, math = b->c->attention == MT_ATTENTION_MATH;
    bool core = !preset_is(b, "selective"), rope = b->c->rope_theta > 0;
    add(b, BSH, input, rope ? "input of the q, k and v products" : "input of the qkv product");
    if (!rope) add_qkv(b, core ? "q, k and v" : "q, k and v: input of the checkpoint");
    if (rope) add(b, BSQ, FLOATS, "q, turned");
    if (rope) add(b, BSK, FLOATS, "k, turned");
    if (rope) add(b, BSK, FLOATS, "v");
    if (math && core) add(b, ABSS, FLOATS, "attention weights: softmax keeps its output");
    if (math && core && drop) add(b, ABSS, MASK, "mask of the attention weights' dropout");
    if (math && core && drop)
        add(b, ABSS, FLOATS, "what dropout left of them, for the product with v");
    add(b, BSQ, FLOATS,
        math || !core ? "merged heads: input of the projection"
                      : "merged heads: flash keeps its output, the projection its input");
    if (drop) add(b, BSH, MASK, "mask of the dropout after the projection");
}

/* Those that can tell their slope from the output share it with the next product. */
static bool keeps_output(mt_act act, bool inplace)
{
    return act == MT_ACT_RELU || act == MT_ACT_TANH || act == MT_ACT_SIGMOID ||
           (act == MT_ACT_LEAKY_RELU && inplace);
}

/* The activation between two ops, of which the second keeps its output. */
static void add_activation(builder *b, letters product, bool inplace, const char *input,
                           const char *output)
{
    bool signs = b->how && b->how->compress & 1u << MT_COMPRESS_SIGNS;
    bool kinked = b->c->act == MT_ACT_RELU || b->c->act == MT_ACT_LEAKY_RELU;
    if (!keeps_output(b->c->act, inplace))
        add(b, product, kinked ? SIGNED : FLOATS, input);
    else if (signs && kinked)
        add(b, product, SIGNED, "signs of an activation's output, for nothing");
    add(b, product, FLOATS, output);
}

static void add_mlp(builder *b, nature input)
{
    bool shared = keeps_output(b->c->act, b->c->inplace);
    add(b, BSH, input, "input of the MLP's first product");
    if (b->c->mlp == MT_MLP_SWIGLU) {
        add(b, BSF, FLOATS, "gate");
        add(b, BSF, FLOATS, "up");
        add(b, BSF, FLOATS, "silu(gate) up: input of the MLP's last product");
    } else {
        add_activation(b, BSF, b->c->inplace, "input of the activation",
                       shared ? "output of the activation: input of the second product, too"
                              : "input of the MLP's second product");
    }
    if (b->c->dropout > 0) add(b, BSH, MASK, "mask of the dropout after the MLP");
}

static void add_layer(builder *b)
{
    mt_model_kind kind = b->c->kind;
    bool block = kind != MT_MODEL_ATTENTION && kind != MT_MODEL_MLP;
    /* The first op of a part keeps what the caller gave. */
    nature first = mti_is_whole(kind) ? FLOATS : INPUT;
    bool pre = b->c->norm == MT_NORM_PRE;
    if (block) add(b, BSH, pre ? first : FLOATS, "input of the first norm");
    if (block) add(b, BSH, FLOATS, "input of the second norm");
    if (kind != MT_MODEL_MLP) add_attention(b, block && pre ? FLOATS : first);
    if (kind != MT_MODEL_ATTENTION) add_mlp(b, block ? FLOATS : first);
}

/* Layers, one by one or in groups of which each keeps its input alone. */
static void add_layers(builder *b)
{
    const char *preset = b->how ? b->how->checkpoint : NULL;
    int64_t layers = b->c->layers ? b->c->layers : 1, group = 1;
    bool whole = mti_is_whole(b->c->kind);
    b->times = whole ? layers : 1;
    b->letter = whole ? "L" : "";
    if (!preset || preset_is(b, "selective")) {
        add_layer(b);
        return;
    }
    if (preset_is(b, "sqrt")) group = (int64_t)round(sqrt((double)layers));
    if (!strncmp(preset, "every=", 6)) group = strtol(preset + 6, NULL, 10);
    if (whole && group > 1) {
        b->times = (layers + group - 1) / group;
        b->letter = "N";
        b->f->n_groups = b->times;
    }
    add(b, BSH, whole ? FLOATS : INPUT,
        whole && group > 1 ? "input of each group of blocks" : "input of each checkpoint");
}

/* Around a whole model's blocks. */
static void add_ends(builder *b)
{
    bool bert = b->c->kind == MT_MODEL_BERT;
    if (bert) add(b, BSH, FLOATS, "input of the embeddings' norm");
    if (b->c->dropout > 0) add(b, BSH, MASK, "mask of the dropout on the embeddings");
    if (bert) add(b, BSH, FLOATS, "input of the head's first product");
    if (bert) /* never in place there */
        add_activation(b, BSH, false, "input of the head's activation", "input of the head's norm");
    if (b->c->norm == MT_NORM_PRE) add(b, BSH, FLOATS, "input of the last norm");
    add(b, BSH, FLOATS, "input of the head");
    add(b, BSV, STATISTICS, "log-probabilities, for the loss");
}

/* ---- the formula as text ---- */

/* Appends the sums, which start anew; within "L(...)" for `layers`. */
static void write_sums(builder *b, const char *layers)
{
    char *text = b->f->text, sums[96] = "";
    for (int p = 0; p < N_LETTERS; p++) {
        size_t n = strlen(sums);
        if (b->sum[p] > 0)
            write_term(sums + n, sizeof sums - n, n ? " + " : "", b->sum[p], "", (letters)p);
        b->sum[p] = 0;
    }
    size_t n = strlen(text);
    if (!*sums) return;
    snprintf(text + n, sizeof b->f->text - n, *layers ? "%s%s(%s)" : "%s%s%s", n ? " + " : "",
             layers, sums);
}

static void build(builder *b)
{
    add_layers(b);
    write_sums(b, b->letter);
    if (mti_is_whole(b->c->kind)) {
        b->times = 1;
        b->letter = "";
        add_ends(b);
        write_sums(b, "");
    }
    if (!*b->f->text) strcpy(b->f->text, "0");
}

/* What the terms above know of. */
static bool formula_exists(const mt_model_config *c, const mti_spending *how)
{
    if (!how) return true;
    const unsigned rules = how->compress, floats = 1u << MT_COMPRESS_INT8 | 1u << MT_COMPRESS_BF16;
    bool mixed = (rules & floats) && (rules & 1u << MT_COMPRESS_SIGNS);
    bool turned = how->checkpoint && !strcmp(how->checkpoint, "selective") && c->rope_theta > 0;
    return !how->amp && !how->lora_rank && !mixed && !turned && !(how->offload && rules);
}

/* ---- what the formula leaves out, found in the ledger by op and argument ---- */

static const char *left_out(const mt_saver *saver)
{
    const char *op = saver->op, *arg = saver->argument;
    bool aux = saver->role == MT_SAVE_AUX, ids = saver->dtype == MT_I64;
    if (!strcmp(op, "layer_norm") && aux) return "layer norms: mean and rstd of each row";
    if (!strcmp(op, "rms_norm") && aux) return "RMS norms: rstd of each row";
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

static bool name_entries(builder *b, const mt_ledger *ledger)
{
    mti_formula *f = b->f;
    bool packed = b->how && b->how->compress;
    for (size_t i = 0; i < mt_ledger_count(ledger); i++) {
        mt_ledger_entry e;
        if (mt_ledger_get(ledger, i, &e) != MT_OK) return false;
        const char *text = left_out(&e.saver);
        size_t size = mt_dtype_size(e.saver.dtype), assumed = (size_t)b->e;
        bool wide = mt_dtype_is_float(e.saver.dtype) && size != assumed;
        if (packed && e.saver.role != MT_SAVE_AUX) wide = false; /* narrow on purpose */
        if (text) {
            if (!add_residual(f, text, (int64_t)e.bytes)) return false;
        } else if (wide) {
            int64_t extra = (int64_t)(e.bytes - e.bytes / size * assumed);
            if (!add_residual(f, "kept in a wider type than the formula's", extra)) return false;
        }
    }
    return true;
}

bool mti_formula_make(mti_formula *f, const mt_model_config *config, int64_t batch, int64_t seq,
                      const mti_spending *how, const mt_ledger *ledger)
{
    mt_model_config c;
    if (mt_model_config_resolve(config, &c) != MT_OK) return false;
    int64_t tokens = batch * seq, kv = c.kv_heads ? c.kv_heads : c.heads;
    int64_t dim = c.head_dim ? c.head_dim : c.hidden / c.heads;
    *f = (mti_formula){.known = formula_exists(&c, how)};
    if (!f->known) return true;
    builder b = {.f = f,
                 .c = &c,
                 .how = how,
                 .e = (int64_t)mt_dtype_size(c.dtype),
                 .value = {[BSH] = tokens * c.hidden,
                           [BSQ] = tokens * c.heads * dim,
                           [BSK] = tokens * kv * dim,
                           [BSF] = tokens * c.ffn,
                           [ABSS] = c.heads * tokens * seq,
                           [BSV] = tokens * c.vocab}};
    build(&b);
    if (!name_entries(&b, ledger)) return false;
    f->unexplained = (int64_t)mt_ledger_bytes(ledger) - f->bytes;
    for (int i = 0; i < f->n_residual; i++) f->unexplained -= f->residual[i].bytes;
    return true;
}

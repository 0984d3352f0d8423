/* terms.c: the terms of the formula of what is kept. */
#include <stdio.h>
#include <string.h>
#include "plan/builder.h"

const char *mti_spelling(const builder *b, letters product)
{
    /* By itself; divided among t ranks. */
    static const char *const spellings[N_LETTERS][2] = {[BSH] = {"bsh", "bsh/t"},
                                                        [BSH_T] = {"bsh", "bsh/t"},
                                                        [BSH_WHOLE] = {"bsh", "bsh"},
                                                        [BSQ] = {"bsq", "bsq/t"},
                                                        [BSK] = {"bsk", "bsk/t"},
                                                        [BSF] = {"bsf", "bsf/t"},
                                                        [ABSS] = {"abs^2", "abs^2/t"},
                                                        [BSV] = {"bsv", "bsv/t"},
                                                        [BSNH] = {"bsnh", "bsnh"},
                                                        [BSO] = {"bso", "bso/t"},
                                                        [BSC] = {"bsc", "bsc/t"},
                                                        [BSR] = {"bsr", "bsr/t"},
                                                        [BSRP] = {"bs(r + p)", "bs(r + p)/t"},
                                                        [BSW] = {"bsw", "bsw/t"},
                                                        [BSX] = {"bsx", "bsx/t"}};
    const mti_rank_dims *rank = b->s->rank;
    const bool of_shard = product == BSH || (product >= BSC && product <= BSRP);
    const bool cut = rank && (of_shard ? rank->sequence : rank->tensor) > 1;
    if (product == BSF && b->c->experts) return cut ? "bsnf/t" : "bsnf";
    if (product == BSNH && rank && rank->folds > 1) return "bsnh/t";
    if (product == ABSS && rank && rank->context > 1) return cut ? "absu/t" : "absu";
    return spellings[product][cut];
}

void mti_write_term(const builder *b, char *to, size_t size, const char *before, double weight,
                    const char *layers, letters product)
{
    if (weight == 1)
        snprintf(to, size, "%s%s%s", before, layers, mti_spelling(b, product));
    else
        mti_format(to, size, "%s%g%s%s", before, weight, layers, mti_spelling(b, product));
}

static double kept_of(const builder *b, nature of, int64_t elements, int64_t *bytes)
{
    int64_t size = of == MASK ? 1 : b->e;
    unsigned rules = b->memory ? b->memory->compress : 0;
    bool offload = b->memory && b->memory->offload;
    *bytes = of == NOT_KEPT ? 0 : elements * size;
    if (of == NOT_KEPT) return 0;
    if (*bytes < MTI_SMALL && of == SIGNS) return *bytes = 0, 0;
    if (*bytes < MTI_SMALL) return (double)size;
    if (offload && of != INPUT) return *bytes = 0, 0;
    if (of == STATISTICS) return (double)size;
    if (of == MASK) {
        bool in_parts = b->s->rank && b->s->rank->masks_in_parts;
        if (rules & 1u << MT_COMPRESS_MASK_SEED && !in_parts) return *bytes = 0, 0;
        if (!(rules & 1u << MT_COMPRESS_MASK_BITS)) return 1;
        *bytes = (elements + 7) / 8;
        return 0.125;
    }
    if ((of == SIGNED || of == SIGNS) && rules & 1u << MT_COMPRESS_SIGNS) {
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

double mti_kept_as(const builder *b, nature of, int64_t elements, int64_t *bytes)
{
    const int64_t n = b->c->experts, rows = b->value[BSNH] / b->c->hidden;
    int64_t sum = 0, part;
    if (!b->by_expert) return kept_of(b, of, elements, bytes);
    for (int64_t i = 0; i < n; i++, sum += part) /* as mti_routing_counts has them if balanced */
        kept_of(b, of, elements / rows * (rows / n + (i < rows % n)), &part);
    *bytes = sum;
    return (double)sum / (double)elements;
}

letters mti_in_terms_of_h(const builder *b, letters product, double *weight)
{
    letters h = b->s->rank && b->s->rank->sequence < b->s->rank->tensor ? BSH_T : BSH;
    int64_t times = b->value[h] ? b->value[product] / b->value[h] : 0;
    bool plain = (product == BSQ || product == BSK) && times == 1;
    bool fourfold = product == BSF && times == 4 && !b->c->experts;
    if (!(plain || fourfold) || times * b->value[h] != b->value[product]) return product;
    *weight *= (double)times;
    return h;
}

mti_formula_term *mti_add_term(builder *b, int64_t bytes, const char *what)
{
    mti_formula_term *term = &b->f->terms[b->f->n_terms++];
    *term = (mti_formula_term){.what = what, .bytes = bytes * b->times};
    b->f->bytes += term->bytes;
    return term;
}

void mti_add_sum(builder *b, int64_t bytes, double weight, letters product, const char *what)
{
    mti_formula_term *term = mti_add_term(b, bytes, what);
    product = mti_in_terms_of_h(b, product, &weight);
    b->sum[product] += weight;
    mti_write_term(b, term->text, sizeof term->text, "", weight, b->letter, product);
}

void mti_keep_several(builder *b, int64_t n, letters product, nature of, const char *what)
{
    int64_t bytes;
    double weight = mti_kept_as(b, of, n * b->value[product], &bytes) * (double)n;
    if (bytes) mti_add_sum(b, bytes, weight, product, what);
}

void mti_keep(builder *b, letters product, nature of, const char *what)
{
    mti_keep_several(b, 1, product, of, what);
}

void mti_keep_wide(builder *b, letters product, nature of, const char *what)
{
    int64_t e = b->e;
    if (e == 2) b->e = 4;
    mti_keep(b, product, of, what);
    b->e = e;
}

void mti_keep_beside(builder *b, const char *text, int64_t bytes, bool held)
{
    mti_formula *f = b->f;
    int i = 0;
    if (b->memory && b->memory->offload && !held && bytes >= MTI_SMALL) return;
    while (i < f->n_residual && strcmp(f->residual[i].text, text)) i++;
    if (i == f->n_residual) f->residual[f->n_residual++] = (mti_residual){.text = text};
    f->residual[i].bytes += bytes * b->times;
}

int64_t mti_statistic_size(const builder *b) { return b->c->dtype == MT_F64 ? 8 : 4; }

void mti_keep_floats(builder *b, const char *text, int64_t n, int64_t size)
{
    int64_t bytes, e = b->e;
    b->e = size;
    mti_kept_as(b, FLOATS, n, &bytes);
    b->e = e;
    if (bytes) mti_keep_beside(b, text, bytes, true); /* offload has had its part */
}

/* The logits of each chunk of the sequence are a storage: a small one stays as it is. */
void mti_keep_chunks(builder *b)
{
    const int64_t s = b->s->seq, n = s < MTI_LOSS_CHUNKS ? s : MTI_LOSS_CHUNKS;
    int64_t sum = 0, bytes;
    for (int64_t i = 0; i < n; i++, sum += bytes) {
        const int64_t rows = b->s->batch * (s / n + (i < s % n));
        mti_kept_as(b, FLOATS, b->value[BSV] / b->s->tokens * rows, &bytes);
        mti_keep_beside(b, "cross-entropy: log-sum-exp of each row", rows * mti_statistic_size(b),
                        false);
    }
    if (sum) mti_add_sum(b, sum, (double)sum / (double)b->value[BSV], BSV, "logits, for the loss");
    if (b->s->rank && b->s->rank->sequence > 1) /* chunks are cut from what is gathered */
        mti_keep_beside(b, "chunked loss: the head's input on other ranks",
                        (b->s->tokens * b->c->hidden - b->value[BSH]) * (int64_t)b->e, false);
}

/* ---- activations ---- */

bool mti_keeps_output(mt_act act, bool inplace)
{
    return act == MT_ACT_RELU || act == MT_ACT_TANH || act == MT_ACT_SIGMOID ||
           (act == MT_ACT_LEAKY_RELU && inplace);
}

bool mti_is_kinked(mt_act act) { return act == MT_ACT_RELU || act == MT_ACT_LEAKY_RELU; }

void mti_keep_gelu_parts(builder *b, letters product)
{
    if (b->c->act != MT_ACT_GELU_TANH || b->c->ops.gelu_tanh == MT_OP_FUSED) return;
    mti_keep(b, product, FLOATS, "tanh of the activation");
    mti_keep(b, product, FLOATS, "1 + tanh, for its product with x/2");
    mti_keep(b, product, FLOATS, "x/2, for its product with 1 + tanh");
}

void mti_keep_activation(builder *b, letters product, bool inplace, const char *input,
                         const char *output)
{
    bool signs = b->memory && b->memory->compress & 1u << MT_COMPRESS_SIGNS;
    bool kinked = mti_is_kinked(b->c->act);
    mti_keep_gelu_parts(b, product);
    if (!mti_keeps_output(b->c->act, inplace))
        mti_keep(b, product, kinked ? SIGNED : FLOATS, input);
    else if (signs && kinked)
        mti_keep(b, product, SIGNS, "signs of an activation's output, for nothing");
    mti_keep(b, product, FLOATS, output);
}

/* builder.h: how the formula of what is kept is put together: terms.c makes its terms, for
 * expert_terms.c and activations.c. */
#ifndef MTI_PLAN_BUILDER_H
#define MTI_PLAN_BUILDER_H

#include "nn/model.h"
#include "plan/plan.h"

/* The products of dimensions in the formulas. BSH_T: what is as wide as h, but cut among ranks that
 * do not cut the sequence. BSH_WHOLE: what each of those that cut it has whole. BSNH: the rows of
 * experts, of which each token has n. BSO: values of all heads, where they have a width of their
 * own. Of latent attention BSC: latents of queries; BSR, BSRP: of keys and values, without and with
 * the turned part of keys; BSW: what is made of those. BSX: the shared experts. */
typedef enum letters {
    BSH,
    BSH_T,
    BSH_WHOLE,
    BSQ,
    BSK,
    BSF,
    ABSS,
    BSV,
    BSNH,
    BSO,
    BSC,
    BSR,
    BSRP,
    BSW,
    BSX,
    N_LETTERS
} letters;

typedef struct builder {
    mti_formula *f;
    const mti_dims *s;
    const mt_model_config *c;
    const mti_memory_options *memory;
    int64_t e;                /* bytes of an element */
    int64_t value[N_LETTERS]; /* of each product */
    double sum[N_LETTERS];    /* weights so far */
    int64_t times;            /* how often each added term is kept */
    const char *letter;       /* stands for `times` */
    bool by_expert;           /* each has a storage: they run one after the other */
} builder;

/* Whether backward makes that module again. */
static inline bool mti_again(const builder *b, mt_recompute module)
{
    return mti_dims_again(b->s) & module;
}

/* What a storage is to offload and compression. */
typedef enum nature {
    FLOATS,
    INPUT,
    STATISTICS,
    MASK,
    SIGNED,
    SIGNS, /* of SIGNED, beside it */
    NOT_KEPT
} nature;

#define MTI_SMALL 4096 /* bytes under which neither offload nor compression takes a storage */

/* "bsh"; "bsh/t" for what t ranks share. */
const char *mti_spelling(const builder *b, letters product);
/* Writes "12bsh", or "bsh" for weight 1. */
void mti_write_term(const builder *b, char *to, size_t size, const char *before, double weight,
                    const char *layers, letters product);
/* *bytes: what is kept of `elements` after offload and compression; returns the weight of an
 * element. */
double mti_kept_as(const builder *b, nature of, int64_t elements, int64_t *bytes);
/* In the usual model q, k and f are multiples of h; then the formula is written in h. */
letters mti_in_terms_of_h(const builder *b, letters product, double *weight);
mti_formula_term *mti_add_term(builder *b, int64_t bytes, const char *what);
/* So many bytes: weight times the product. */
void mti_add_sum(builder *b, int64_t bytes, double weight, letters product, const char *what);
/* Adds a storage of the product's elements; of n times as many; of a tensor that is f32 where the
 * model has 2-byte floats. */
void mti_keep_wide(builder *b, letters product, nature of, const char *what);
void mti_keep(builder *b, letters product, nature of, const char *what);
void mti_keep_several(builder *b, int64_t n, letters product, nature of, const char *what);
/* Adds a small storage that the formula leaves out; `held` by the caller, so offload leaves it. */
void mti_keep_beside(builder *b, const char *text, int64_t bytes, bool held);
/* The same for n floats of this many bytes that are no auxiliaries: compression takes them, too. */
void mti_keep_floats(builder *b, const char *text, int64_t n, int64_t size);
/* Statistics are in f32, those of f64 in f64. */
int64_t mti_statistic_size(const builder *b);
/* The logits of a loss in chunks. */
void mti_keep_chunks(builder *b);
/* Whether an activation's slope follows from its output: then it keeps that, which the next product
 * keeps, too; whether it is told by signs alone. */
bool mti_keeps_output(mt_act act, bool inplace);
bool mti_is_kinked(mt_act act);
/* What an unfused gelu_tanh keeps besides its input. */
void mti_keep_gelu_parts(builder *b, letters product);
/* An activation before an op that keeps the activation's output. */
void mti_keep_activation(builder *b, letters product, bool inplace, const char *input,
                         const char *output);
/* What a mixture of experts keeps, in an MLP's place. */
void mti_keep_experts(builder *b, nature input);
/* What the loss of their balance keeps. */
void mti_keep_balance(builder *b);

/* What layers with a window keep for a mask; the weights of math attention with sinks. */
void mti_keep_window_masks(builder *b);
void mti_keep_sink_weights(builder *b);

#endif

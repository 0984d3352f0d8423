/* plan.h: what a model costs, by closed formulas, before it is made.
 *
 * Each answer is a formula from the literature with its value, and signed rows that lead from it to
 * what memtape's model does to the byte: where this model is not the textbook's, and what the
 * formula leaves out. So `expected` is what a measurement on the meta device has to give; if they
 * differ, one of them is wrong. `memtape plan` prints both.
 *
 * Letters: b batch, s sequence, h hidden, a heads, L layers, v vocabulary, N parameters. */
#ifndef MEMTAPE_PLAN_H
#define MEMTAPE_PLAN_H

#include "memtape/models/model.h"

MT_C_BEGIN

/* What is to be run. */
typedef struct mt_plan_run {
    const mt_model_config *config; /* borrowed */
    int64_t batch, seq;
    const char *checkpoint; /* as mt_model_checkpoint takes it; NULL: none */
    unsigned recompute;     /* as mt_model_recompute takes it; 0: none */
    int64_t parameters;     /* N, as a paper rounds it; 0: counted */
} mt_plan_run;

/* What leads from a formula's value towards the model's. */
typedef struct mt_plan_row {
    int64_t amount; /* may be negative, never 0 */
    char text[112]; /* what adds or takes it */
} mt_plan_row;

/* Rows of a formula at most. */
#define MT_PLAN_MAX_ROWS 96

/* A formula of all that a rank of a large mixture keeps has 300 characters. */
#define MT_PLAN_TEXT 640

/* One formula. Plain data; amounts are in `unit`. */
typedef struct mt_plan_formula {
    const char *name;        /* "activations" */
    const char *unit;        /* "bytes", "parameters", "FLOP" */
    char text[MT_PLAN_TEXT]; /* "L(34bsh + 5abs^2) + 2bsh" */
    const char *source;      /* the paper */
    int64_t value;
    int n_rows;
    mt_plan_row rows[MT_PLAN_MAX_ROWS];
    int64_t expected; /* value and all rows */
} mt_plan_formula;

/* All fail with MT_ERR_ARGUMENT for a config or a run that makes no sense, or whose figures are
 * beyond 2^63. */

/* L(12h^2 + 13h) + vh for a whole model, 12h^2 + 13h for a block, 4h^2 + 4h for an attention,
 * 8h^2 + 5h for an MLP; expected: the elements of all parameters. */
MT_API mt_status mt_plan_parameters(const mt_plan_run *run, mt_plan_formula *out);
/* The rule of thumb 12Lh^2, and its error. Whole models and blocks. */
MT_API mt_status mt_plan_parameters_in_brief(const mt_plan_run *run, mt_plan_formula *out);
/* L(34bsh + 5abs^2) + 2bsh, in 2-byte floats; expected: the bytes of the ledger after forward. */
MT_API mt_status mt_plan_activations(const mt_plan_run *run, mt_plan_formula *out);
/* 6 N b s, with recomputation of whole layers 8 N b s; expected: the operations that the ops of one
 * step count as they run, a multiply-add being 2. */
MT_API mt_status mt_plan_flops(const mt_plan_run *run, mt_plan_formula *out);
/* One kind of product. */
typedef struct mt_plan_component {
    const char *name; /* "q, k and v" */
    char text[32];    /* "6bsh^2" */
    int64_t times;    /* how many there are: L in the layers */
    int64_t each;     /* FLOP of one, forward */
} mt_plan_component;

/* Kinds of products at most. */
#define MT_PLAN_MAX_COMPONENTS 12

/* A forward pass: L(24bsh^2 + 4bs^2h) + 2bshv; expected: the operations that the ops of one
 * count. components[MT_PLAN_MAX_COMPONENTS] (may be NULL, with *n) sum to it. */
MT_API mt_status mt_plan_forward_flops(const mt_plan_run *run, mt_plan_formula *out,
                                       mt_plan_component *components, int *n);
/* 4 b L h (s + n) in 2-byte floats: keys and values of every position; expected: bytes of an
 * mt_kv_cache of MT_KV_PREALLOCATED. gpt and llama. */
MT_API mt_status mt_plan_kv_cache(const mt_plan_run *run, int64_t new_tokens, mt_plan_formula *out);

/* ---- what training takes for each parameter, before any activation ---- */

/* A way to train, and its bytes for each parameter. */
typedef struct mt_plan_regime {
    const char *name;    /* "mixed precision, AdamW" */
    const char *options; /* of `memtape plan`, to measure it; NULL: there are none */
    double parameter, gradient, optimizer; /* bytes for each parameter */
    const char *source;
} mt_plan_regime;

/* NULL past the last. */
MT_API const mt_plan_regime *mt_plan_regime_at(size_t i);
/* What is kept for 16-bit parameters depends on the two flags. */
typedef struct mt_plan_training {
    /* A name of --optimizer, such as "sgd" (plain: keeps nothing) or "adamw-16bit" (m and v of
     * 16-bit parameters in 16 bits). What an optimizer keeps beside so much for each element comes
     * on top: mt_moment_bytes of "adamw-8bit", mt_adafactor_bytes of "adafactor". NULL: "none" */
    const char *optimizer;
    bool master;        /* f32 copies of them */
    bool f32_gradients; /* gradients in f32 */
} mt_plan_training;
/* expected: requested bytes of parameters, gradients and optimizer state after a step. training:
 * NULL for all zero. */
MT_API mt_status mt_plan_states(const mt_plan_run *run, const mt_plan_training *training,
                                mt_plan_formula *out);

/* ---- time ---- */

/* Seconds for that many operations on `devices` of `rate` FLOP/s each, of which `utilisation`, in
 * (0,1], is reached.   (Narayanan et al. 2021, 5.1: 8 N T / (n X)) */
MT_API double mt_plan_seconds(double flops, int64_t devices, double rate, double utilisation);

MT_C_END
#endif

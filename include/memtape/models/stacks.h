/* stacks.h: what a model computes as another library computes it, or your own code does, and so
 * what it keeps: mt_model_config.ops and mt_model_config.forms. */
#ifndef MEMTAPE_STACKS_H
#define MEMTAPE_STACKS_H

#include "memtape/tensor.h"

MT_C_BEGIN

/* Some functions can be one op or a composition of several, which keeps more; some can run in f32
 * within a model of 2-byte floats. Zero is what keeps least. The values agree except for rounding.
 * What Transformers' code does, and so what it keeps: docs/parity-transformers.md. */
typedef enum mt_op_form { MT_OP_FUSED, MT_OP_UNFUSED, MT_OP_FORM_COUNT } mt_op_form;
/* In which type an op runs. */
typedef enum mt_op_precision {
    MT_PRECISION_NATIVE, /* the tensor's own type */
    MT_PRECISION_F32,    /* cast to f32 before; no effect on f32 and f64 */
    MT_PRECISION_COUNT
} mt_op_precision;
/* Heads of queries that share keys and values. */
typedef enum mt_kv_groups {
    MT_KV_SHARED,   /* each head of keys is read in place by all heads of its group */
    MT_KV_REPEATED, /* copied for every head of its group, as a batched product of PyTorch wants it;
                       of one head of one sequence a view */
    MT_KV_GROUPS_COUNT
} mt_kv_groups;
/* A sliding window of flash attention. */
typedef enum mt_window_mask {
    MT_WINDOW_MASK_NONE, /* the kernels know what is in it */
    MT_WINDOW_MASK_KEPT, /* a mask [b,1,s,t] for each layer, which is kept; then fewer heads of keys
                            are copied for each head: PyTorch's scaled_dot_product_attention */
} mt_window_mask;
/* The cross-entropy. */
typedef enum mt_loss_form {
    MT_LOSS_NATIVE,  /* of the logits as they are */
    MT_LOSS_F32,     /* of the logits cast to f32; no effect on f32 and f64 */
    MT_LOSS_FUSED,   /* mt_linear_cross_entropy: some rows of logits at a time */
    MT_LOSS_LSE,     /* keeps the logits, not log-probabilities (mt_cross_entropy_options) */
    MT_LOSS_CHUNKED, /* as LSE, of 8 parts of the sequence: one gradient of all logits is there */
    MT_LOSS_UNFUSED, /* of the logits in f32 by log_softmax, gather and a mean, as PyTorch does */
    /* mt_linear_cross_entropy_with's early form. With v classes, width h and N rows, TORCH takes
     * next_pow2(ceil(N / ceil(v / h))) / 2 of them at a time, with logits in f32, as PyTorch 2.13's
     * F.linear_cross_entropy with LinearCrossEntropyOptions() does on CUDA; LIGER twice as many,
     * with logits in the model's type. */
    MT_LOSS_TORCH,
    MT_LOSS_LIGER,
    /* As UNFUSED, with what its callers hold, too. SHIFTED: while it is made, the head's input and
     * a copy of the logits in f32, as in Transformers 4.46 to 4.48. HELD: the logits, until the
     * next ones are there, as in a training loop whose `outputs` live on. */
    MT_LOSS_SHIFTED,
    MT_LOSS_HELD,
    MT_LOSS_FORM_COUNT
} mt_loss_form;
/* In what the layers' linears multiply, and what of their inputs is kept: docs/low-precision.md. */
typedef enum mt_linear_form {
    MT_LINEAR_NATIVE,         /* in the model's type */
    MT_LINEAR_TORCHAO_FLOAT8, /* one scale a tensor; keeps x and the weight as they are */
    MT_LINEAR_TORCHAO_MXFP8,  /* a scale for 32 values; the same */
    MT_LINEAR_TORCHAO_NVFP4,  /* 4 bits, a scale for 16; keeps codes of x and of the weight */
    MT_LINEAR_TE_DELAYED,     /* Transformer Engine: keeps codes of x, and two of the weight; */
    MT_LINEAR_TE_CURRENT,     /* scales of the 1024 steps before, of this tensor, */
    MT_LINEAR_TE_MXFP8,       /* of 32 values, */
    MT_LINEAR_TE_BLOCKWISE,   /* of 128 values, and of 128 by 128 of the weight, */
    MT_LINEAR_TE_NVFP4,       /* of 16, in 4 bits */
    MT_LINEAR_FORM_COUNT
} mt_linear_form;
/* In which order the experts of a mixture run, and so what is kept: docs/recipes.md. */
typedef enum mt_expert_form {
    MT_EXPERTS_GROUPED,           /* rows sorted by expert, as Transformers' grouped_mm does */
    MT_EXPERTS_LOOP,              /* an expert after the other, as its "eager" does */
    MT_EXPERTS_TORCHTITAN,        /* sorted rows, their outputs weighted in f32 */
    MT_EXPERTS_TORCHTITAN_BEFORE, /* sorted rows, weighted in f32 before the experts: another
                                     function, that of torchtitan's score_before_experts */
    MT_EXPERTS_MEGATRON,          /* sorted rows, weighted in the activation */
    MT_EXPERTS_FORM_COUNT
} mt_expert_form;
/* These choices, for a model. */
typedef struct mt_op_choices {
    mt_op_form swiglu;       /* unfused: silu, then a product, which also keeps silu(gate) */
    mt_op_form rms_norm;     /* unfused: x cast to f32, mean of squares, root, quotient, cast back,
                                product with the weight, which also keeps the normalised rows */
    mt_op_form gelu_tanh;    /* unfused: power, tanh, sums and products, which keep four tensors */
    mt_op_form rope;         /* unfused: products with tables of cosines and sines [s,h], which are
                                kept; a forward of a whole model makes them once */
    mt_op_precision softmax; /* math attention: scores cast to f32, weights cast back */
    mt_kv_groups kv_groups;  /* attention with fewer heads of keys than heads; joint_products */
    mt_loss_form loss;       /* whole models: the head's product and the cross-entropy; those that
                                are one op not of a bert, whose logits have biases, nor with
                                logit_cap */
    mt_linear_form linear;   /* of layers, not of heads */
    mt_window_mask window_mask; /* llama with flash attention and a window */
    mt_expert_form expert_form;
} mt_op_choices;

/* Your own code for single functions of a model. Each borrows its inputs and returns a new tensor;
 * what it keeps is what its ops keep. NULL: as mt_op_choices has it. */
typedef struct mt_forms {
    mt_tensor *(*swiglu)(mt_tensor *gate, mt_tensor *up); /* silu(gate) up; of experts, too */
    mt_tensor *(*rms_norm)(mt_tensor *x, mt_tensor *weight, double eps); /* of MT_NORM_RMS */
    mt_tensor *(*gelu_tanh)(mt_tensor *x);
} mt_forms;

MT_C_END
#endif

/* lora.h: fine-tune a few low-rank matrices beside frozen weights (Hu et al. 2021, LoRA).
 *
 *     y = x W^T + b + (alpha / r) (x A^T) B^T         W [out,in] frozen, A [r,in], B [out,r]
 *
 * B starts at zero, so y is the model's at first. Gradients and optimizer state exist for A and B
 * alone. The frozen linear keeps no input; A's does, for dA, and keeps x A^T [..,r] for dB: so
 * LoRA saves on weights, and on activations only where a linear has no adapter.
 *
 *     const char *targets[] = {"*.qkv", "*.proj"};
 *     mt_lora_add(gpt, &(mt_lora_options){.rank = 8, .alpha = 16, .n_targets = 2,
 *                                         .targets = targets}, NULL);
 *     mt_optimizer *adamw = mt_adamw_new(gpt, ...);       state for the adapters only
 *     ... train ...
 *     mt_lora_save("adapter.safetensors", gpt);
 *     mt_lora_merge(gpt); */
#ifndef MEMTAPE_LORA_H
#define MEMTAPE_LORA_H

#include "memtape/models/model.h"

MT_C_BEGIN

/* How the weights of the linears below m are kept, whether they get adapters or not. The head stays
 * in the model's dtype, and so do experts without adapters: as in bitsandbytes and torchtune, which
 * pack every nn.Linear but the head. */
typedef enum mt_lora_base {
    MT_LORA_KEEP,       /* in the model's dtype */
    MT_LORA_NF4,        /* 4 bits and an f32 scale per 64 values: 0.5625 byte each (QLoRA) */
    MT_LORA_NF4_DOUBLE, /* the scales in 8 bits, too: about 0.516 byte each */
    MT_LORA_INT8,       /* 8 bits, and a scale in 8 bits per 256 values: about 1.004 bytes each */
    MT_LORA_BASE_COUNT
} mt_lora_base;

/* Which linears get adapters, and what they are like. */
typedef struct mt_lora_options {
    int64_t rank;
    double alpha;   /* 0: rank, that is a factor of 1 */
    double dropout; /* on A's input, in training; p in [0,1) */
    /* Patterns of paths from m, as fnmatch's: "*.qkv", "h.?.mlp.*". "*.fc" fits a child "fc" of m
     * itself, too. n_targets 0: every linear below m. */
    size_t n_targets;
    const char *const *targets;
    mt_lora_base base;
    /* A and B of 16-bit linears are f32, as PEFT has them. x is cast for A, which keeps the copy,
     * and the sum is made in f32 and cast back. Where linears are wider it changes nothing. */
    bool f32_adapters;
    /* Adapters of experts add to the weights, as PEFT's target_parameters: W + (alpha / r) B A is
     * made whole, and kept for backward beside W. Without dropout, and W stays in the model's dtype
     * whatever base is. */
    bool on_weights;
    /* On a device without data mt_lora_model_new makes m as if a file had the codes. No weight that
     * is kept in codes is there in the model's dtype, and adapters are made last. */
    bool from_codes;
} mt_lora_options;

/* Linears of a mixture of experts are, too, the experts' two products, "experts_gate_up" and
 * "experts_down": A is [experts,r,in], B [experts,out,r], and each runs as one grouped product. Of
 * experts of expert_form loop they keep their base, and do not add to the weights.
 *
 * Freezes m except for adapters, and puts a module "lora" in the place of each linear that a target
 * fits, with children base_layer (the linear), lora_A (uniform in +-1/sqrt(in), as PEFT draws it)
 * and lora_B (zero), in the linear's dtype or in f32. m itself must not be the linear, and adapters
 * get no adapters. A pattern that fits nothing is an error. *n_added (may be NULL) counts them. On
 * failure m is as before.
 *
 * NF4, int8: the weight becomes u8 [bytes] (mt_quantize), which is dequantised into the linear's
 * dtype for each use, in forward and again in backward, and let go. m needs no bytes for what was
 * there.
 */
MT_API mt_status mt_lora_add(mt_module *m, const mt_lora_options *options, size_t *n_added);

/* mt_model_new and mt_lora_add in one, bit for bit, except for memory: each layer gets its
 * adapters, and gives up its weights to NF4, as soon as it is made. So at no time is more than one
 * layer (or the head) there in the model's dtype beside what stays. The caller's; NULL on failure.
 */
MT_API mt_module *mt_lora_model_new(mt_device *device, const mt_model_config *config,
                                    const mt_lora_options *options);

/* W += (alpha / r) B A, summed in f32 (f64 for f64) and rounded once to the linear's dtype, and the
 * linear is back in its place, still frozen (mt_module_freeze). What was NF4, with an
 * adapter or without, becomes its dequantised values in the dtype the linear had. On failure the
 * modules merged so far stay merged and the others as they are: the model computes the same. */
MT_API mt_status mt_lora_merge(mt_module *m);

/* The adapters alone, named as PEFT names them:
 * base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight and .lora_B.weight (of modules
 * that Transformers has no name for, and outside of whole models: base_model.model.<path>);
 * metadata lora.rank, lora.alpha, lora.dropout, lora.targets (paths, by commas). They must have one
 * rank, alpha and dropout. path: a file; or a folder, or what ends with a slash and becomes one:
 * then as PEFT has it, with adapter_config.json and adapter_model.safetensors. */
MT_API mt_status mt_lora_save(const char *path, mt_module *m);
/* Into m's adapters, which must be the file's in names and shapes (any floating dtype); their alpha
 * becomes the file's, if it tells. If m has none they are added first, as the file describes them.
 * path: a file, or PEFT's folder. On failure m is as before, except for being frozen. */
MT_API mt_status mt_lora_load(const char *path, mt_module *m);

MT_C_END
#endif

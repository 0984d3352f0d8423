/* memory_options.h: what a training step is told to do for its memory. */
#ifndef MTI_MEMORY_OPTIONS_H
#define MTI_MEMORY_OPTIONS_H

#include "memtape/compress.h"
#include "memtape/models/budget.h"
#include "nn/lora.h"

typedef enum mti_offload_choice {
    MTI_OFFLOAD_NONE,
    MTI_OFFLOAD_CPU,
    MTI_OFFLOAD_DISK
} mti_offload_choice;

typedef enum mti_codes { MTI_CODES_NF4, MTI_CODES_INT8 } mti_codes;
extern const mti_choice mti_codes_names; /* "nf4", "int8" */

typedef struct mti_memory_options {
    const char *checkpoint;       /* a preset of mt_model_checkpoint; NULL: none */
    const mt_budget_plan *budget; /* instead of `checkpoint`; NULL: none */
    unsigned recompute;           /* bits of mt_recompute */
    mti_offload_choice offload;
    unsigned offload_modules; /* bits of mti_offload_module; 0: all that is kept */
    unsigned compress;        /* bits of mt_compress_rule */
    bool amp;
    mt_dtype amp_dtype;
    double loss_scale;  /* 0: none; negative: dynamic */
    bool master;        /* f32 copies of 16-bit parameters, in the optimizer */
    bool f32_gradients; /* of 16-bit parameters */
    bool step_in_backward;
    int64_t lora_rank; /* 0: none */
    mti_lora_targets lora_targets;
    double lora_dropout;  /* of what adapters get */
    bool f32_adapters;    /* of a 16-bit model */
    bool lora_on_weights; /* adapters of experts, as mt_lora_options has them */
    bool qlora;           /* the frozen weights of linears, but the head's, in codes ... */
    mti_codes codes;      /* ... of this form ... */
    bool qlora_double;    /* ... of NF4 with scales in 8 bits ... */
    bool codes_file;      /* ... which a file has: on meta, of a whole model */
} mti_memory_options;

#endif

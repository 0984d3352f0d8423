/* optimizer.h: steps over the parameters of a module, and what goes with them. */
#ifndef MEMTAPE_OPTIMIZER_H
#define MEMTAPE_OPTIMIZER_H

#include "memtape/models/module.h"

MT_C_BEGIN

/* Steps a module's parameters, and holds the state for that. */
typedef struct mt_optimizer mt_optimizer;

/* SGD with momentum and weight decay. */
typedef struct mt_sgd_options {
    double lr;
    double momentum; /* 0: none, and no state */
    double weight_decay;
    bool master; /* 16-bit parameters are stepped in an f32 copy and rounded from it */
} mt_sgd_options;

/* How AdamW stores m and v. Its arithmetic is in f32 (f64 for f64) in any case. */
typedef enum mt_moments {
    MT_MOMENTS_WIDE, /* f32 (f64 for f64) */
    /* Moments of 16-bit parameters in their dtype, rounded to nearest after each step, as
     * torch.optim.AdamW keeps them. In bf16 v cannot shrink: 0.999 v rounds to v. */
    MT_MOMENTS_NARROW,
    /* For parameters of at least MT_MOMENTS_8BIT_LEAST elements, but f64: a byte each, and an f32
     * scale for each 256 (Dettmers et al. 2022, "8-bit optimizers via block-wise quantization"; the
     * codes of bitsandbytes' AdamW8bit). The state is a u8 tensor of one dimension: n codes, padded
     * to a multiple of 4, then the scales. */
    MT_MOMENTS_8BIT,
    /* Moments of f32 and bf16 parameters in bf16, as DeepSeek-V3 has them beside f32 parameters
     * (torchtitan: fused_opt_states_bf16). Of others as MT_MOMENTS_WIDE. */
    MT_MOMENTS_BF16,
    /* torchao's AdamW8bit, AdamWFp8 (e4m3) and AdamW4bit (Li et al. 2023): as MT_MOMENTS_8BIT, but
     * of parameters whose elements are a multiple of the block alone, 256 or, in 4 bits, 128;
     * others as MT_MOMENTS_NARROW. Of 8 and 4 bits a table of 256 and of 16 values in f32 lies
     * behind the scales. A step holds what torchao's compiled one holds: of one parameter at a time
     * both moments in f32, the parameter in f32 if it has 16 bits, and the codes of one moment. 4
     * bits are refused on CUDA at the first step. */
    MT_MOMENTS_TORCHAO_8BIT,
    MT_MOMENTS_TORCHAO_FP8,
    MT_MOMENTS_TORCHAO_4BIT
} mt_moments;
/* Elements of a parameter from which on moments are in 8 and 4 bits. */
#define MT_MOMENTS_8BIT_LEAST 4096
/* Bytes of m, and of v, for a parameter of that dtype with n elements; 0 and an error where n is
 * below 0 or the bytes too many for an int64_t. */
MT_API int64_t mt_moment_bytes(mt_moments moments, mt_dtype dtype, int64_t n);

/* What AdamW's step holds beside its state, as the forms of torch.optim.AdamW on CUDA do. The bits
 * are the same. */
typedef enum mt_adamw_form {
    MT_ADAMW_FUSED, /* nothing: fused=True */
    /* The usual one without it since PyTorch 2.0: of every parameter a tensor like the second
     * moment, its root. */
    MT_ADAMW_FOREACH,
    /* foreach=False, and the usual one before: two such tensors, of a parameter at a time. */
    MT_ADAMW_LOOP
} mt_adamw_form;

/* AdamW. */
typedef struct mt_adamw_options {
    double lr;
    double beta1; /* 0: 0.9 */
    double beta2; /* 0: 0.999 */
    double eps;   /* 0: 1e-8 */
    double weight_decay;
    bool decay_matrices_only; /* not biases, norms and other parameters of rank < 2 */
    bool master;              /* as for sgd */
    mt_moments moments;
    /* As bitsandbytes' paged optimizers: moments of parameters of at least MT_PAGED_LEAST elements
     * lie in host memory, which CUDA would page in for the step; of moments in 8 bits their scales
     * stay on the device, as tensors "m_scales" and "v_scales". Refused on CUDA at the first step.
     */
    bool paged;
    mt_adamw_form form; /* refused with moments in 8 bits, unless fused */
    /* As DeepSpeed's ZeRO-Offload with DeepSpeedCPUAdam: all state lies in host memory, and so does
     * each gradient once it is complete. Refused on CUDA, as paged is, and beside it. */
    bool host;
} mt_adamw_options;
#define MT_PAGED_LEAST 100000

/* torch.optim.Adafactor (Shazeer and Stern 2018): of a matrix [.., r, c] the second moment is kept
 * as the means of its rows and of its columns, [.., r, 1] and [.., 1, c]; of a vector as a whole.
 */
typedef struct mt_adafactor_options {
    double lr;          /* a bound on the relative step, min(lr, 1 / sqrt(step)) */
    double beta2_decay; /* 0: -0.8; the moments' weight of the newest squares is step^beta2_decay */
    double eps1;        /* 0: the epsilon of the parameter's dtype, or of its master's */
    double eps2;        /* 0: 1e-3; the least size of a parameter that its step is a share of */
    double clip;        /* 0: 1; an update of a larger root mean square is scaled down to it */
    double weight_decay;
    bool decay_matrices_only; /* as for adamw */
    bool master;              /* as for sgd */
} mt_adafactor_options;
/* Bytes of the moments for a parameter: f32 (f64) ones; of 16 bits, unless there is a master, in
 * their own dtype, as torch.optim.Adafactor keeps them. 0 and an error for no shape of a tensor. */
MT_API int64_t mt_adafactor_bytes(mt_dtype dtype, int rank, const int64_t *shape, bool master);

/* Lion (Chen et al. 2023, "Symbolic discovery of optimization algorithms", algorithm 2): a step is
 * the sign of beta1 m + (1 - beta1) g, decoupled weight decay beside it; m, the only state, is then
 * beta2 m + (1 - beta2) g. Every weight moves by lr, so the paper's lr is a third to a tenth of
 * AdamW's, and its weight_decay as many times larger. */
typedef struct mt_lion_options {
    double lr;
    double beta1; /* 0: 0.9 */
    double beta2; /* 0: 0.99 */
    double weight_decay;
    bool decay_matrices_only; /* as for adamw */
    bool master;              /* as for sgd */
} mt_lion_options;

/* By what Muon's learning rate is multiplied for a matrix [r, c]. */
typedef enum mt_muon_adjust {
    MT_MUON_ORIGINAL,       /* sqrt(max(1, r / c)) */
    MT_MUON_MATCH_RMS_ADAMW /* 0.2 sqrt(max(r, c)): lr and weight_decay may be AdamW's */
} mt_muon_adjust;

/* torch.optim.Muon for the matrices but those of embeddings and of "lm_head": Nesterov's momentum,
 * made orthogonal by five steps of Newton and Schulz in bf16; of parameters [experts, out, in],
 * which torch's refuses, each expert's matrix by itself. AdamW for all else. State is in the
 * parameters' types, or in f32 beside masters: one tensor for a matrix, two for others. Beside a
 * matrix of n elements of e bytes, k the fewer of its rows and columns, its step takes e n + 4 n +
 * 4 k k bytes for a while. */
typedef struct mt_muon_options {
    double lr;
    double momentum; /* 0: 0.95 */
    double weight_decay;
    mt_muon_adjust adjust;
    double adamw_lr; /* at first; its ratio to lr is kept. 0: lr */
    double beta1;    /* as for adamw, and so on */
    double beta2;
    double eps;
    bool decay_matrices_only;
    bool master; /* as for sgd */
} mt_muon_options;

/* Over the parameters the module has now, which are retained. The figures are torch.optim's; Lion's
 * the paper's. */
MT_API mt_optimizer *mt_sgd_new(mt_module *m, const mt_sgd_options *options);
MT_API mt_optimizer *mt_adamw_new(mt_module *m, const mt_adamw_options *options);
/* These refuse what ZeRO has cut into shards: those have no rows and columns. */
MT_API mt_optimizer *mt_adafactor_new(mt_module *m, const mt_adafactor_options *options);
MT_API mt_optimizer *mt_muon_new(mt_module *m, const mt_muon_options *options);
MT_API mt_optimizer *mt_lion_new(mt_module *m, const mt_lion_options *options);
/* One by the name that `memtape train --optimizer` takes, "lion" or "adamw-8bit", with that row's
 * figures (models/optim/optimizers.def); lr 0: the row's. */
MT_API mt_optimizer *mt_optimizer_new(const char *name, mt_module *m, double lr,
                                      double weight_decay, bool master);
MT_API void mt_optimizer_free(mt_optimizer *optimizer);
/* "sgd", "adamw", "adafactor", "muon", "lion" */
MT_API const char *mt_optimizer_kind(const mt_optimizer *optimizer);
/* One step for every parameter that requires grad and has one. State is made at a parameter's
 * first step: tensors of its shape, f32 (f64 for f64; but see mt_moments and
 * mt_adafactor_options), category MT_OPTIMIZER.
 * On failure no parameter has changed. The master of a parameter that somebody else has written
 * since the last step is made from it anew (Micikevicius et al. 2018, "Mixed precision training").
 */
MT_API mt_status mt_optimizer_step(mt_optimizer *optimizer);
/* on: each backward steps a parameter as soon as its gradient is complete and drops the gradient,
 * so that no two gradients need be there at once; same bits as a step after it. Then every backward
 * is a step, there is no joint norm to clip, a scaler refuses the optimizer, and a backward that
 * fails has stepped some parameters. A parameter with several uses is stepped once, after the last
 * of them, checkpoints' among them. mt_stage_backward refuses such an optimizer, before
 * anything has stepped, where gradients are not complete by then. mt_optimizer_step steps what did
 * not require grad when this was called. Off again before the module is freed, or with the
 * optimizer. (PyTorch: register_post_accumulate_grad_hook) */
MT_API mt_status mt_optimizer_step_in_backward(mt_optimizer *optimizer, bool on);
MT_API double mt_optimizer_lr(const mt_optimizer *optimizer); /* learning rate of the next step */
MT_API mt_status mt_optimizer_set_lr(mt_optimizer *optimizer,
                                     double lr); /* from the next step on */

/* State tensors as they are now; the tensor is borrowed. */
typedef struct mt_optimizer_entry {
    const char *param; /* "h.0.mlp.fc.weight" */
    const char *name;  /* "m", "v", "momentum", "row_var", "col_var", "variance", "master" */
    mt_tensor *tensor;
    int64_t step; /* steps this parameter has made */
} mt_optimizer_entry;
MT_API size_t mt_optimizer_state_count(const mt_optimizer *optimizer);
MT_API mt_status mt_optimizer_state(const mt_optimizer *optimizer, size_t i,
                                    mt_optimizer_entry *out);
/* Put one back: the values are copied. */
MT_API mt_status mt_optimizer_restore(mt_optimizer *optimizer, const mt_optimizer_entry *entry);
/* Forget all state, as before the first step. */
MT_API void mt_optimizer_reset(mt_optimizer *optimizer);

/* Scales all gradients of m by min(1, max_norm / (norm + 1e-6)), norm being their joint 2-norm.
 * *norm (may be NULL) is the norm before.   (torch.nn.utils.clip_grad_norm_) */
MT_API mt_status mt_clip_grad_norm(mt_module *m, double max_norm, double *norm);

/* Learning rate of step 0, 1, ...: linear from max/warmup to max over the first `warmup` steps,
 * then half a cosine from max down to min at step `total`, and min from there on. */
MT_API double mt_cosine_lr(int64_t step, int64_t warmup, int64_t total, double max, double min);

MT_C_END
#endif

/* module.h: modules, which are forward functions with named parameters and named children, and the
 * parts that models are made of. They are built on the public headers alone, so a module of your
 * own can do all that ours can. */
#ifndef MEMTAPE_MODULE_H
#define MEMTAPE_MODULE_H

#include "memtape/checkpoint.h"

MT_C_BEGIN

/* A forward function with named parameters and named children. */
typedef struct mt_module mt_module;

/* x is borrowed, the result is the caller's. */
typedef mt_tensor *mt_forward_fn(mt_module *self, mt_tensor *x);

/* kind: "linear", "mlp", ...; it is also the module's name until a parent gives it another.
 * user is taken over, on failure too: destroy(user) is called when the module is freed (may
 * be NULL). A new module is in training mode. */
MT_API mt_module *mt_module_new(const char *kind, mt_forward_fn *forward, void *user,
                                void (*destroy)(void *user));
/* Children and the module's hold on its parameters go too; not for a child. NULL is allowed. */
MT_API void mt_module_free(mt_module *m);

/* param is taken over, on failure too (as mt_set does), and becomes a leaf of category
 * MT_PARAMETER that requires grad. Returns it borrowed; NULL on failure, and for param NULL. */
MT_API mt_tensor *mt_module_add_param(mt_module *m, const char *name, mt_tensor *param);
/* child is taken over, on failure too, and takes the name, which may have dots ("h.3"). Names of
 * parameters and children of one module differ. Returns it borrowed; NULL on failure. */
MT_API mt_module *mt_module_add_child(mt_module *m, const char *name, mt_module *child);
/* Replaces the child of that name by `child`, which is taken over, on failure too. Returns the old
 * one, which the caller then owns; NULL on failure. */
MT_API mt_module *mt_module_swap_child(mt_module *m, const char *name, mt_module *child);

/* What mt_module_new, or a parent, was given; valid as long as the module. */
MT_API const char *mt_module_kind(const mt_module *m);
MT_API const char *mt_module_name(const mt_module *m);
MT_API void *mt_module_user(const mt_module *m);
/* The module's own parameter or child, borrowed; NULL if there is none, which is no error. */
MT_API mt_tensor *mt_module_param(const mt_module *m, const char *name);
MT_API mt_module *mt_module_child(const mt_module *m, const char *name);
/* Children in order of adding; NULL past the last. */
MT_API mt_module *mt_module_child_at(const mt_module *m, size_t i);
/* By path from m: "h.3.mlp"; "" is m itself. NULL if there is none. */
MT_API mt_module *mt_module_find(mt_module *m, const char *path);

/* Calls the forward function inside the scope of the module's name, so that records made there
 * read "gpt.h.3.mlp.act". NULL in, NULL out. */
MT_API mt_tensor *mt_forward(mt_module *m, mt_tensor *x);
/* mt_forward of the child of that name; an error if there is none. */
MT_API mt_tensor *mt_forward_child(mt_module *m, const char *name, mt_tensor *x);

/* Sets the mode of m and everything under it. Dropout acts in training only. */
MT_API void mt_module_set_training(mt_module *m, bool training);
MT_API bool mt_module_training(const mt_module *m);

/* From now on mt_forward of m runs as a checkpoint (checkpoint.h), and m must live until backward.
 * options are copied, and may be all zero; NULL: no checkpoint. */
MT_API mt_status mt_module_set_checkpoint(mt_module *m, const mt_checkpoint_options *options);

/* A tensor and its path. */
typedef struct mt_named_tensor {
    const char *name;
    mt_tensor *tensor;
} mt_named_tensor;

/* Every parameter of m and under it with its path from m ("h.3.mlp.fc.weight"), a module's own
 * before its children's, in order of adding; one that appears twice, under its first path. *list is
 * borrowed and valid until something is added or swapped under m, or m is freed. The first call
 * makes it: several threads may ask at once only after that. */
MT_API mt_status mt_module_params(mt_module *m, const mt_named_tensor **list, size_t *n);
/* Values and bytes of all of them: a weight in 4 or 8 bits has as many values as it was made from.
 */
MT_API mt_status mt_module_size(mt_module *m, uint64_t *n_elements, uint64_t *n_bytes);
MT_API mt_status mt_module_zero_grad(mt_module *m); /* drops the gradients */
/* mt_set_grad_dtype for each parameter of a floating dtype; f32 for 16-bit parameters is what the
 * optimizers take beside the parameter's own. */
MT_API mt_status mt_module_set_grad_dtype(mt_module *m, mt_dtype dtype);
/* frozen: parameters of m and under it do not require grad, and lose the gradient they had. */
MT_API mt_status mt_module_freeze(mt_module *m, bool frozen);

/* ---- ready-made parts; weights and biases are parameters "weight", "bias" ---- */

/* The activations. */
typedef enum mt_act {
    MT_ACT_RELU,
    MT_ACT_LEAKY_RELU, /* slope 0.01 */
    MT_ACT_GELU,
    MT_ACT_GELU_TANH,
    MT_ACT_SILU,
    MT_ACT_TANH,
    MT_ACT_SIGMOID,
    MT_ACT_COUNT
} mt_act;
/* "relu", "gelu_tanh", ...; parsing fails with a text that lists the good names. */
MT_API const char *mt_act_name(mt_act act);
MT_API mt_status mt_act_parse(const char *name, mt_act *out);

/* x [..,in] -> [..,out]. Weight [out,in] is normal(0, std), std 0: 1/sqrt(in); bias zero. */
MT_API mt_module *mt_linear_new(mt_device *device, mt_dtype dtype, int64_t in, int64_t out,
                                bool bias, double std);
/* Over the last dimension, n wide; weight ones, bias zero. eps 0: 1e-5. */
MT_API mt_module *mt_layer_norm_new(mt_device *device, mt_dtype dtype, int64_t n, bool bias,
                                    double eps);
/* Over dimension 1, n channels, of x [b,n] or [b,n,..] (mt_batch_norm): weight ones, bias zero. Its
 * running_mean (zeros) and running_var (ones), [n] in f32 (f64 for f64), are tensors of the module
 * that want no gradient: saved with it, not trained. In training mode the batch's statistics are
 * used and the running ones moved, else the running ones. momentum 0: 0.1, as in PyTorch; eps 0:
 * 1e-5. */
MT_API mt_module *mt_batch_norm_new(mt_device *device, mt_dtype dtype, int64_t n, double momentum,
                                    double eps);
/* x / sqrt(mean(x^2) + eps) over the last dimension, n wide; weight ones. eps 0: 1e-6. */
MT_API mt_module *mt_rms_norm_new(mt_device *device, mt_dtype dtype, int64_t n, double eps);
/* i64 [..] -> [..,n]. Weight [rows,n] is normal(0, std), std 0: 1. */
MT_API mt_module *mt_embedding_new(mt_device *device, mt_dtype dtype, int64_t rows, int64_t n,
                                   double std);
/* inplace: relu and leaky_relu only; the input's storage becomes the output's. */
MT_API mt_module *mt_activation_new(mt_act act, bool inplace);
MT_API mt_module *mt_dropout_new(double p); /* of probability p, in training */

MT_C_END
#endif

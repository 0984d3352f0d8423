/* nn.h: what the files of this room share. */
#ifndef MTI_NN_H
#define MTI_NN_H

#include "base/base.h"
#include "memtape/model.h"
#include "memtape/optimizer.h"

/* m if `complete`, that is if all its parts could be made; otherwise m is freed: NULL. */
mt_module *mti_module_complete(mt_module *m, bool complete);
/* Whether m is there and was made with this forward function: so its user data are known. */
bool mti_module_runs(const mt_module *m, mt_forward_fn *forward);
/* The same of the function that frees its user data. */
bool mti_module_owns(const mt_module *m, void (*destroy)(void *user));

/* x w^T with that weight [out,in], which is taken over. NULL in, NULL out. */
mt_module *mti_linear_of(mt_tensor *weight);

/* ---- what goes on around a module's forward, within its scope and its checkpoint ---- */

/* fn calls mti_module_run_inner, or makes the result otherwise. */
typedef struct mti_around {
    mt_tensor *(*fn)(mt_module *m, void *user, mt_tensor *x);
    void *user;
    void (*destroy)(void *user); /* with the module's end; may be NULL */
} mti_around;
void mti_module_set_around(mt_module *m, mti_around around); /* in the place of what there was */
mt_tensor *mti_module_run_inner(mt_module *m, mt_tensor *x);
/* `other` in the place of the parameter of that name, which is returned; references stay with whom
 * they are. To be put back before anybody lists m's parameters, or done before anybody has. */
mt_tensor *mti_module_lend_param(mt_module *m, const char *name, mt_tensor *other);

/* "h.3" and "mlp": "h.3.mlp", the caller's to mti_free; no dot after a prefix "". */
char *mti_join(const char *prefix, const char *name);

/* ---- modules that run as checkpoints ---- */

/* What m was told; NULL: nothing. *group (may be NULL): m is a layer and begins a group of so many
 * that run as one; 0: m itself is the checkpoint. */
const mt_checkpoint_options *mti_module_checkpoint(const mt_module *m, int64_t *group);
/* options NULL: nothing any more. */
bool mti_module_set_group(mt_module *m, int64_t group, const mt_checkpoint_options *options);
/* A forward of several inputs; they are borrowed. */
typedef mt_tensor *mti_run_fn(mt_module *m, mt_tensor *const *in);
/* run(m, in), as a checkpoint if m was told so. */
mt_tensor *mti_run_module(mt_module *m, mti_run_fn *run, int n_in, mt_tensor *const *in);

/* The name of state tensor k of that parameter; NULL past the last. */
const char *mti_optimizer_state_name(mt_optimizer *optimizer, const char *path, int k);
/* Borrowed; NULL if the optimizer has no such parameter. */
mt_tensor *mti_optimizer_param(mt_optimizer *optimizer, const char *path);
/* *out = sum of squares of the gradients that the next step would take, in f64. */
bool mti_optimizer_squares(mt_optimizer *optimizer, double *out);
/* Those gradients times factor, in place; refused for f16. */
bool mti_optimizer_scale_grads(mt_optimizer *optimizer, double factor);
/* mt_optimizer_step as if every gradient were times factor (> 0); nothing is written to them. */
bool mti_optimizer_step_scaled(mt_optimizer *optimizer, double factor);
/* What the state of a parameter is kept in: f32, f64 for f64. */
mt_dtype mti_optimizer_state_dtype(const mt_tensor *param);

#endif

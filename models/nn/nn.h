/* nn.h: what the files of this room share. */
#ifndef MTI_NN_H
#define MTI_NN_H

#include "base/base.h"
#include "memtape/models/model.h"

/* Returns m if `complete`, that is if all its parts could be made; else frees it and returns NULL.
 */
mt_module *mti_module_complete(mt_module *m, bool complete);
/* Whether m is not NULL and has this forward function, so that the type of its user data is known.
 */
bool mti_module_runs(const mt_module *m, mt_forward_fn *forward);
/* The same for the function that frees its user data. */
bool mti_module_owns(const mt_module *m, void (*destroy)(void *user));

/* A linear without bias over weight [out,in], which is taken over. NULL in, NULL out. */
mt_module *mti_linear_of(mt_tensor *weight);
/* The same of experts, weight [experts,out,in]: kind "grouped_linear". It runs inside of a mixture,
 * which tells it, and what is put in its place, how many rows each expert has. */
mt_module *mti_grouped_linear_of(mt_tensor *weight);

/* ---- a function around a module's forward, inside its scope and its checkpoint ---- */

/* fn calls mti_module_run_inner, or makes the result itself. */
typedef struct mti_around {
    mt_tensor *(*fn)(mt_module *m, void *user, mt_tensor *x);
    void *user;
    void (*destroy)(void *user); /* when the module is freed; may be NULL */
} mti_around;
void mti_module_set_around(mt_module *m, mti_around around); /* replaces an earlier one */
/* What is around m, which is the caller's now; none is left. */
mti_around mti_module_take_around(mt_module *m);
mt_tensor *mti_module_run_inner(mt_module *m, mt_tensor *x);
/* mt_forward_child, around's function included, with `run` and `user` in place of the child's own
 * forward and user. */
mt_tensor *mti_forward_child_as(mt_module *m, const char *name, mt_forward_fn *run, void *user,
                                mt_tensor *x);
/* Replaces the parameter of that name by `other` and returns it; no reference changes hands. Undo
 * it before m's parameters are listed. */
mt_tensor *mti_module_lend_param(mt_module *m, const char *name, mt_tensor *other);
/* The same for good: later lists have `other`. */
mt_tensor *mti_module_swap_param(mt_module *m, const char *name, mt_tensor *other);

/* Gives m's tensors, which are on a device without data, memory on this one: parameters unfilled,
 * what modules keep from step to step zero, as it begins. After a failure m can only be freed. */
bool mti_module_materialize(mt_module *m, mt_device *device);
/* The same without its children's. */
bool mti_module_materialize_own(mt_module *m, mt_device *device);

/* Tells mt_module_size that m's tensors stand for so many values in fewer elements. */
void mti_module_note_codes(mt_module *m, int64_t values, int64_t elements);

/* A tensor of the module that is saved and loaded as parameters are, and is none: it has no
 * gradient and no optimizer, and is not counted. Takes value over. */
mt_tensor *mti_module_add_buffer(mt_module *m, const char *name, mt_tensor *value);
bool mti_is_buffer(const mt_tensor *t); /* of those in the list of parameters */
/* A tensor that training changes from step to step and that no list of weights has: a checkpoint
 * has it, a file of weights may lack it, and evaluation must not write it. Takes value over, on
 * failure too; returns it borrowed. */
mt_tensor *mti_module_add_state(mt_module *m, const char *name, mt_tensor *value);
/* Those of m and under it, with `prefix` before their paths. Free in any case. */
typedef struct mti_state_list {
    MTI_VEC(mt_named_tensor) list; /* names allocated, tensors borrowed */
} mti_state_list;
bool mti_state_list_make(mt_module *m, const char *prefix, mti_state_list *out);
void mti_state_list_free(mti_state_list *states);

/* The forward of modules that only hold parameters or others. */
mt_tensor *mti_no_forward(mt_module *m, mt_tensor *x);
/* m's parameters are flat shards of their matrices. */
void mti_module_mark_shards(mt_module *m);
bool mti_module_in_shards(const mt_module *m);

/* "h.3" and "mlp" to "h.3.mlp", to be freed with mti_free; no dot after an empty prefix. */
char *mti_join(const char *prefix, const char *name);

/* ---- modules that run as checkpoints ---- */

/* The options if m runs as a checkpoint, else NULL. *group (may be NULL): how many layers from m on
 * are one checkpoint; 0: m itself is one. */
const mt_checkpoint_options *mti_module_checkpoint(const mt_module *m, int64_t *group);
/* options NULL: m is no longer a checkpoint. */
bool mti_module_set_group(mt_module *m, int64_t group, const mt_checkpoint_options *options);
/* A forward with several inputs, which are borrowed. */
typedef mt_tensor *mti_run_fn(mt_module *m, mt_tensor *const *in);
/* One checkpoint around a module, or around several of its layers. */
typedef struct mti_module_frame {
    mt_module *m;
    mti_run_fn *run; /* NULL: runs layers from .. to - 1 of m, which take x over */
    mt_tensor *(*layers)(mt_module *m, mt_tensor *x, int64_t from, int64_t to);
    int64_t from, to;
} mti_module_frame;
mt_tensor *mti_run_frame(mti_module_frame frame, int n_in, mt_tensor *const *in,
                         const mt_checkpoint_options *options);
/* run(m, in), as a checkpoint if m is one. */
mt_tensor *mti_run_module(mt_module *m, mti_run_fn *run, int n_in, mt_tensor *const *in);

#endif

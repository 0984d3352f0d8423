/* optim.h: what the files of optimizers share: rules.c has the rules, optimizers.c what is made of
 * them, optim.c parameters and state, optim_step.c the step. */
#ifndef MTI_OPTIM_OPTIM_H
#define MTI_OPTIM_OPTIM_H

#include "memtape/ops.h"
#include "nn/nn.h"
#include "optim/optimizers.h"
#include "tensor/tensor.h"

/* A step of one parameter x by its gradient g, both f32 or f64, without recording: replaces x and
 * its state tensors, all in that type, by new ones. p->step is 1 at the first; state is 0 then. */
typedef bool mti_opt_tensors(const mti_opt_params *p, double decay, mt_tensor *g, mt_tensor **x,
                             mt_tensor **state);

/* A new tensor, a x + b y */
static inline mt_tensor *mti_mixed(double a, mt_tensor *x, double b, mt_tensor *y)
{
    MT_AUTO mt_tensor *ax = mt_mul_scalar(x, a), *by = mt_mul_scalar(y, b);
    return mt_add(ax, by);
}

typedef struct mti_opt_rule {
    const char *name;
    const char *state[MTI_MAX_STATE]; /* names of the state tensors; NULL: no more */
    const char *whole; /* of a matrix the state is its rows' and its columns', and of a vector this;
                          NULL: all state has the parameter's shape */
    mti_opt_tensors *tensors; /* NULL: there is only the kernel ... */
    bool (*step)(mt_device *device, const mti_opt_params *p, int n, const mti_opt_item *items);
    /* ... which steps all parameters at once; NULL: there is none */
    const struct mti_opt_rule *others; /* has the state of what is no hidden matrix; NULL: this has
                                          that of all */
    int n_state;                       /* of each that this is `others` for */
} mti_opt_rule;
mti_opt_tensors mti_muon_tensors;
bool mti_muon_step(mt_device *device, const mti_opt_params *p, int n, const mti_opt_item *items);

/* ---- rules.c ---- */
#define RULE(id, ...) extern const mti_opt_rule mti_rule_##id;
#define OPTIMIZER(...)
#include "optim/optimizers.def"
#undef OPTIMIZER
#undef RULE
/* Steps the parameters whose next step is `step` by the rule. */
bool mti_optimizer_step_by_rule(const mt_optimizer *o, int64_t step);

typedef struct mti_opt_slot {
    char *path;
    const char *module;              /* the path, interned, for the ledger */
    const mti_opt_rule *rule;        /* the optimizer's, or that for others */
    mt_tensor *param;                /* retained */
    mt_tensor *state[MTI_MAX_STATE]; /* NULL before the first step */
    mt_tensor *master;               /* f32 copy of a 16-bit parameter; NULL if not wanted */
    uint64_t version;                /* of the parameter, when the master was last equal to it */
    int64_t step;                    /* steps made */
    mt_tensor *grad;                 /* contiguous; set during a step if the parameter takes part */
    mt_tensor *roots[2];             /* during a step, of the forms that have them */
    mt_optimizer *owner;             /* set with ... */
    int hook;                        /* ... the hook that steps it in backward; 0: none */
    int moves;                       /* the hook that moves its gradient to host memory; 0: none */
} mti_opt_slot;

struct mt_optimizer {
    const mti_opt_rule *rule;
    int n_state; /* tensors per parameter, without the master */
    bool master;
    mt_moments moments;
    bool paged, host;
    mt_adamw_form form;
    bool by_rule;      /* in tensors, though there is a kernel */
    int64_t sub_group; /* as mti_optimizer_set_sub_group ... */
    bool drops;        /* ... says */
    mti_opt_params params;
    double weight_decay;
    bool decay_matrices_only;
    bool in_backward;
    mt_device *device; /* of all parameters; NULL if there are none */
    size_t n_slots;
    mti_opt_slot *slots;
    mti_opt_item *items; /* [n_slots] */
};

/* Makes all state that a parameter lacks; on failure at its first step it has none. */
bool mti_optimizer_make_state(const mt_optimizer *o, mti_opt_slot *s);
/* The codes in which large parameters' moments are stored; WIDE: none. */
mti_moments mti_moment_codes(mt_moments asked);
static inline bool mti_moments_torchao(mt_moments asked)
{
    return asked >= MT_MOMENTS_TORCHAO_8BIT;
}
/* The rule of a parameter of the model whose embeddings were noted. */
const mti_opt_rule *mti_optimizer_rule(const mt_optimizer *o, const mti_hashmap *embeddings,
                                       const mt_named_tensor *param);
/* A parameter with this view: whether its state is factored, and not of its shape; how its moments
 * are stored. A slot that has its parameter and rule: how many moments there are; shape, strides
 * and dtype of its state tensor k, of which the last is its master. */
bool mti_optimizer_factors(const mt_optimizer *o, const mti_view *param);
mti_moments mti_optimizer_moments(const mt_optimizer *o, const mti_view *param);
int mti_optimizer_n_moments(const mt_optimizer *o, const mti_opt_slot *s);
mti_view mti_optimizer_spec(const mt_optimizer *o, const mti_opt_slot *s, int k);
/* Whether it lies in host memory. */
bool mti_optimizer_pages(const mt_optimizer *o, const mti_opt_slot *s, int k);
/* Whether 0 <= value < below; else the error names it. */
bool mti_optimizer_in_range(const char *caller, const char *field, double value, double below);

/* An optimizer of the same kind and options over the parameters of m, without state. */
mt_optimizer *mti_optimizer_like(const mt_optimizer *o, mt_module *m);
/* NULL if there is no parameter of this name. */
mti_opt_slot *mti_optimizer_slot(mt_optimizer *o, const char *path);
/* Its state tensor k, borrowed: as many as it has names, once its state is made. */
mt_tensor *mti_optimizer_state_tensor(const mt_optimizer *o, mti_opt_slot *s, int k);

/* The name of the parameter's state tensor k; NULL past the last. */
const char *mti_optimizer_state_name(mt_optimizer *optimizer, const char *path, int k);
/* Its shape, strides and dtype. */
mti_view mti_optimizer_state_spec(mt_optimizer *optimizer, const char *path, int k);

#endif

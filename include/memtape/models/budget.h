/* budget.h: finds the checkpoints with which a training step fits a number of bytes, and which
 * recompute least.
 *
 *     mt_budget *b = mt_budget_new(run, user);
 *     const mt_budget_plan *plan;
 *     if (mt_budget_solve(b, 40ull << 30, &plan) == MT_OK) mt_budget_apply(plan, model, NULL);
 *
 * Choices of a plan: each layer of a gpt, bert or llama runs plainly, or has the core of its
 * attention as a checkpoint (Korthikanti et al. 2022), or is a checkpoint that keeps the results of
 * any set of its matrix products and recomputes the rest; and consecutive layers may be one
 * checkpoint. Peaks are those of the caching allocator in a simulation of the whole step on the
 * meta device: the plan that is returned has been run there, so its peak is measured, not
 * estimated. */
#ifndef MEMTAPE_BUDGET_H
#define MEMTAPE_BUDGET_H

#include "memtape/counters.h"
#include "memtape/models/model.h"

MT_C_BEGIN

typedef struct mt_budget mt_budget; /* what was measured of one workload */
/* What to keep and what to compute again, found for a budget. */
typedef struct mt_budget_plan mt_budget_plan;

/* The workload: called for each simulation with a new meta device. Sets it up (scratch,
 * workspace), makes the model, calls mt_budget_apply(plan, model, ...), runs a training step, or
 * several where an optimizer's state comes with the first, and frees everything. It says
 * mt_set_phase("backward") before each backward and another phase after it. Same calls each time;
 * one model, and one forward for each backward. */
typedef mt_status mt_budget_run_fn(void *user, mt_device *device, const mt_budget_plan *plan);

/* Measures each choice of each layer, which takes some dozens of simulations. NULL on failure. user
 * is borrowed and lives as long as the result, which is the caller's to free, plans and all. */
MT_API mt_budget *mt_budget_new(mt_budget_run_fn *run, void *user);
MT_API void mt_budget_free(mt_budget *b);

/* The plan with the fewest recomputed FLOPs (of equal ones, the fewest recomputed bytes) whose
 * simulated peak of allocated bytes is at most n_bytes. More bytes never give more FLOPs.
 * MT_ERR_MEMORY if none fits; it names the least that does. *plan is borrowed from b.
 *
 * The search adds up measured bytes layer by layer, which is exact where nothing but the layers'
 * own choices decides what is alive when, except for the rests of blocks (memory.h); the simulation
 * decides, and if the peak is too high there the next plans in order of FLOPs are tried. */
MT_API mt_status mt_budget_solve(mt_budget *b, size_t n_bytes, const mt_budget_plan **plan);
/* The answers to at most n budgets (n >= 2), evenly spaced from the least possible peak to that
 * without checkpoints, each of them once: plans[0] spends the fewest bytes. plans has room for n.
 */
MT_API mt_status mt_budget_front(mt_budget *b, int n, const mt_budget_plan **plans, int *n_found);

/* Which of m's layers run as checkpoints from now on. options: of each checkpoint, without a
 * policy; NULL for all zero. The plan (its budget, that is) lives as long as graphs of m. */
MT_API mt_status mt_budget_apply(const mt_budget_plan *plan, mt_module *m,
                                 const mt_checkpoint_options *options);

/* What a plan takes. */
typedef struct mt_budget_figures {
    size_t peak, reserved; /* highest allocated and reserved bytes of the simulation */
    size_t rounded_peak;   /* highest requested bytes, each request up to a multiple of 512 */
    size_t expected_peak;  /* the same by the search */
    mt_flops flops;        /* counted in the simulation */
    uint64_t expected_recompute;
    size_t remade_bytes; /* of results recomputed in a step */
} mt_budget_figures;
MT_API mt_budget_figures mt_budget_plan_figures(const mt_budget_plan *plan);
/* How many simulations b has run so far. */
MT_API int mt_budget_simulations(const mt_budget *b);

/* A run of layers that do the same. */
typedef struct mt_budget_part {
    int64_t from, n; /* layers */
    int64_t group;   /* so many of them are one checkpoint; 0: they are none */
    bool core;       /* group 0: the core of attention is a checkpoint */
} mt_budget_part;
MT_API size_t mt_budget_plan_count(const mt_budget_plan *plan);
/* keeps (may be NULL): what a checkpoint keeps, "attn.qkv linear, attn.heads flash_attention",
 * cut at n_bytes. */
MT_API mt_status mt_budget_plan_get(const mt_budget_plan *plan, size_t i, mt_budget_part *out,
                                    char *keeps, size_t n_bytes);

MT_C_END
#endif

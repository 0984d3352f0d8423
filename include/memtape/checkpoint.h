/* checkpoint.h: activation checkpointing. A function keeps only its inputs in forward; its saved
 * tensors are recomputed when backward asks for the first of them.
 *
 *     mt_checkpoint(block, user, NULL, 1, &x, 1, &y, NULL);
 *
 * Chen et al. 2016; torch.utils.checkpoint(use_reentrant=False). Built on hooks on saved tensors:
 * backward is not entered again, checkpoints nest, gradients have the bits they have without. What
 * is recomputed is freed as soon as its node has used it. Parameters that ops save stay saved:
 * they exist anyway, and a change of one between forward and backward is still found. */
#ifndef MEMTAPE_CHECKPOINT_H
#define MEMTAPE_CHECKPOINT_H

#include "memtape/hooks.h"

MT_C_BEGIN

/* inputs [n_in] are borrowed; outputs [n_out] become new references. It is called once in forward
 * and again in backward, then with inputs without history, and must call the same ops each time and
 * do nothing else that must not happen twice, such as adding hooks to leaves.
 * Once the last tensor that is needed has been recomputed its next op fails, without a visible
 * error: it must pass NULL on as any chain of ops does, and release what it made. */
typedef mt_status mt_checkpoint_fn(void *user, int n_in, mt_tensor *const *inputs, int n_out,
                                   mt_tensor **outputs);

/* What is done with the results of one call of an op. If they are kept its kernel is not run again.
 */
typedef enum mt_policy {
    MT_PREFER_RECOMPUTE,
    MT_PREFER_SAVE,
    MT_MUST_RECOMPUTE,
    MT_MUST_SAVE,
    MT_OFFLOAD, /* must save, and options.away takes it */
    MT_POLICY_COUNT
} mt_policy;
MT_API const char *mt_policy_name(mt_policy policy); /* "prefer recompute", ... */

/* Asked once the op has run, so call->flops is known, and again in backward with the same call: it
 * must give the same answer, or backward fails. Among nested checkpoints a must beats a prefer, of
 * prefers the innermost counts, and two different musts are an error. */
typedef mt_policy mt_policy_fn(void *user, const mt_op_call *call);

/* A policy, user NULL: must save what attention and reduce_scatter make, and every second linear
 * from the first one on; of math attention's two matmuls the second. (torchtitan's selective
 * activation checkpoints by op: docs/recipes.md.) A kept result must not be changed in place.
 * call NULL: an error, and MT_POLICY_COUNT. */
MT_API mt_policy mt_policy_ops(void *user, const mt_op_call *call);

/* The segments of a forward, noted one by one. */
typedef struct mt_checkpoint_report mt_checkpoint_report;

/* All zero is a good choice. */
typedef struct mt_checkpoint_options {
    const char *label;    /* for errors and reports; NULL: the scope's path; copied */
    mt_policy_fn *policy; /* NULL: everything is recomputed */
    void *policy_user;    /* must live as long as the graph */
    /* Hooks that take what MT_OFFLOAD keeps (mt_offload_hooks() and an mt_offload, say) before
     * those on the stack see it; NULL: there are only those. Their user must live as long as the
     * graph; destroy is not called. */
    const mt_saved_hooks *away;
    void *away_user;
    bool check;         /* compare a digest of each recomputed tensor with the original's */
    bool no_early_stop; /* run the function to its end in backward */
    bool rng_as_it_is;  /* for tests: do not repeat the random numbers of forward */
    /* Outputs go, too (Megatron's CheckpointWithoutOutput): a hook is left on the stack, under
     * which an op that saves an output keeps nothing, and backward makes it again. Run what reads
     * the outputs, then call mt_pop_saved_hooks. A failed call leaves no hook. */
    bool discard_outputs;
    mt_checkpoint_report *report; /* gets a line for each forward; NULL: none. Must live until
                                   * the forward is over */
} mt_checkpoint_options;

/* Runs fn(user, inputs) and keeps what it takes to run it again: the inputs (mt_saved, so a ledger
 * sees them and an offload takes them), the default generator's state, scope and modes; nothing if
 * its ops save nothing, as where no gradient is wanted. user is taken over: destroy(user) is called
 * once, with the graph's end, on failure too; destroy may be NULL. All inputs live on one device,
 * n_in >= 1. Outputs are the caller's. Without recording it is a plain call. options: NULL for all
 * zero; copied.
 *
 * In backward, number, op, argument, module, shape and dtype of what is saved again are compared
 * with forward's; a difference fails the backward with a text that names the first one and what
 * was saved around it then and now. A second backward (retain_graph) runs fn again. */
MT_API mt_status mt_checkpoint(mt_checkpoint_fn *fn, void *user, void (*destroy)(void *user),
                               int n_in, mt_tensor *const *inputs, int n_out, mt_tensor **outputs,
                               const mt_checkpoint_options *options);

/* ---- a report: one segment for each checkpoint that ran in forward ---- */

/* Bytes are those of distinct storages, whole, parameters left out. */
typedef struct mt_checkpoint_segment {
    const char *label;
    int depth;           /* 0: in no other that reports here */
    size_t input_bytes;  /* kept between checkpoints: its inputs */
    size_t policy_bytes; /* kept by its policy */
    size_t inside_bytes; /* saved by its ops and not kept */
    size_t n_inside;     /* tensors saved by its ops */
} mt_checkpoint_segment;

/* An empty report, the caller's to free; cleared it is empty again. get gives segment i of count.
 */
MT_API mt_checkpoint_report *mt_checkpoint_report_new(void);
MT_API void mt_checkpoint_report_free(mt_checkpoint_report *report);
MT_API void mt_checkpoint_report_clear(mt_checkpoint_report *report);
MT_API size_t mt_checkpoint_report_count(const mt_checkpoint_report *report);
MT_API mt_status mt_checkpoint_report_get(const mt_checkpoint_report *report, size_t i,
                                          mt_checkpoint_segment *out);
/* Distinct storages that all outermost segments keep as inputs, and the most one gives up inside:
 * after forward the first is held, and at the peak of backward the second is back too. */
MT_API void mt_checkpoint_report_totals(const mt_checkpoint_report *report, size_t *between,
                                        size_t *inside);
/* Warnings about granularity, one per line, as text into buf (cut at n_bytes); returns the
 * number of lines: segments that keep as inputs no less than they give up, and more kept between
 * checkpoints than comes back inside one, so that larger segments would lower the peak. */
MT_API int mt_checkpoint_lint(const mt_checkpoint_report *report, char *buf, size_t n_bytes);

MT_C_END
#endif

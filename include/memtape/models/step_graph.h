/* step_graph.h: forward and backward of a training step, captured once and replayed.
 *
 * A small model's step is hundreds of launches, and a GPU waits for the host between them. A step
 * graph runs a function that makes its tensors from the inputs, computes a loss and calls
 * mt_backward. The first calls launch as ever. Then one call is captured (CUDA graphs), and later
 * ones replay it: the function is not called, one launch does the device's work, with the inputs
 * and random draws of that call.
 *
 * The books of a replayed step are those of the captured one: the allocator repeats its requests,
 * so every figure of mt_mem_stats moves as if the function had run, and `reserved` stays. The
 * replay is used only if they lead to the same addresses. A changed shape, variant, hook, observer
 * of memory, or tensor kept elsewhere means that the step is launched, and is said in the
 * statistics. */
#ifndef MEMTAPE_STEP_GRAPH_H
#define MEMTAPE_STEP_GRAPH_H

#include "memtape/models/module.h"

MT_C_BEGIN

/* Inputs of a step at most. */
#define MT_STEP_INPUTS 4

/* Bytes that the function uploads (mt_from_data), each once, in this order. */
typedef struct mt_step_input {
    const void *data;
    size_t n_bytes;
} mt_step_input;

/* What a replay leaves out must not matter: the function's only results are the loss, which it
 * returns for the caller to release, and gradients of the model's parameters. It reads no values.
 */
typedef mt_tensor *mt_step_fn(void *user, const mt_step_input *inputs);

/* What a step graph has done. */
typedef struct mt_step_graph_stats {
    int64_t launched, captured, replayed; /* calls that launched, captures, calls that replayed */
    int64_t nodes;                        /* kernels, products and copies of the last capture */
    char why[256]; /* the last call that launched for another reason than that it came early; "" */
} mt_step_graph_stats;

/* Forward and backward of a batch, as a device captured them. */
typedef struct mt_step_graph mt_step_graph;

/* For a model, which must live longer, on a device whose launches can be captured: cuda; else
 * MT_ERR_UNSUPPORTED. The caller frees it once, before the device is released. */
MT_API mt_step_graph *mt_step_graph_new(mt_module *model);
MT_API void mt_step_graph_free(mt_step_graph *graph);
/* Runs fn(user, inputs), or replays it. variant: whatever number of the host's goes into the
 * function's arithmetic, such as a loss scale; another one is captured anew. The loss of a replay
 * has no history. NULL: the function failed. */
MT_API mt_tensor *mt_step_graph_run(mt_step_graph *graph, mt_step_fn *fn, void *user,
                                    double variant, int n_inputs, const mt_step_input *inputs);
MT_API mt_step_graph_stats mt_step_graph_get(const mt_step_graph *graph); /* so far */

MT_C_END
#endif

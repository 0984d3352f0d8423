/* plan.h: what the files of this room share with the program.
 *
 * Letters: b batch, s sequence, h hidden, f ffn, a heads, q their joint width, k that of the heads
 * of keys, v vocabulary, L layers, t = b s tokens. */
#ifndef MTI_PLAN_H
#define MTI_PLAN_H

#include "base/base.h"
#include "memtape/models/parallel.h"
#include "memtape/lab/plan.h"
#include "memory/memory_options.h"
#include "nn/model.h"
#include "workload/workload.h"

/* ---- a model's dimensions, and what else its costs depend on ---- */

/* One rank of several: how many ranks its tensors are cut among, and how many forwards are in
 * flight at most. */
typedef struct mti_rank_dims {
    int64_t tensor;      /* t: ranks that share each layer */
    int64_t sequence;    /* t if they share the sequence between products, too; else 1 */
    int64_t context;     /* c: ranks that share every sequence */
    int64_t expert;      /* e: ranks that divide each layer's experts */
    int64_t folds;       /* of t, how many have other tokens for their experts: 1 or t */
    int64_t seen;        /* shards of a sequence whose keys this rank's queries see */
    int64_t layers;      /* of all forwards through a part of the model that are in flight */
    int64_t groups;      /* of layers in one checkpoint, summed over the forwards */
    int64_t dense;       /* layers without experts, summed over the forwards */
    int64_t first, last; /* forwards through the part with the embeddings; with the head */
    int64_t local;       /* layers with a window, summed over the forwards */
    int64_t dense_local; /* of these without experts */
    int64_t thetas;      /* rotary angles of the layers, summed over the forwards */
    bool masks_in_parts; /* a dropout's mask is a shard of one process's, so its seed is not enough
                          */
} mti_rank_dims;

/* config is resolved. While mti_derive_formula goes from the textbook to it, q, k and ffn differ
 * from it. `memory` may be NULL: no options. */
typedef struct mti_dims {
    mt_model_config config;
    int64_t batch, seq, tokens;
    int64_t q, k;
    const mti_memory_options *memory;
    const mti_rank_dims *rank; /* NULL: there is one rank */
} mti_dims;

bool mti_dims_make(mti_dims *s, const mt_model_config *config, int64_t batch, int64_t seq,
                   const mti_memory_options *memory);
/* Fills *r and turns *s from the whole model's dimensions into the rank's: its shard of a sequence.
 */
bool mti_rank_dims_make(mti_rank_dims *r, mti_dims *s, const mt_parallel *parallel);
/* The dimensions of a run, which it checks; they borrow *memory, which is set from it. *out is
 * cleared. */
bool mti_run_dims(mti_dims *s, mti_memory_options *memory, const mt_plan_run *run,
                  mt_plan_formula *out);
/* What layers make again besides checkpoints of whole blocks: a set of mt_recompute. */
unsigned mti_dims_again(const mti_dims *s);
/* The checkpoint preset; NULL: none. */
const char *mti_dims_checkpoint(const mti_dims *s);
/* Checkpoints of groups of layers, if the preset groups them, of all forwards in flight. */
int64_t mti_dims_groups(const mti_dims *s);
/* Blocks that are kept: a whole model's layers, else 1; for a rank, those in flight. */
int64_t mti_dims_layers(const mti_dims *s);
/* Those among them that predict ahead. */
int64_t mti_dims_ahead(const mti_dims *s);
/* Layers of these with a window. */
int64_t mti_dims_windows(const mti_dims *s);
/* Those among them without experts, where others have some. */
int64_t mti_dims_dense_windows(const mti_dims *s);
/* How many of them have no experts, of a model whose others do. */
int64_t mti_dims_dense(const mti_dims *s);
/* The sum of fn over the layers. */
typedef int64_t mti_cost_fn(const mti_dims *s);
int64_t mti_sum_layers(const mti_dims *s, mti_cost_fn *fn);
/* Pairs of tables of an unfused rope that the forwards in flight keep. */
int64_t mti_dims_thetas(const mti_dims *s);

/* Sets formula->value to the cost of the textbook's transformer, and adds a row for every choice in
 * which `s` differs from it, with what that adds or takes; together they are cost(s). */
bool mti_derive_formula(mt_plan_formula *formula, const mti_dims *s, mti_cost_fn *cost);
/* Adds a row unless its amount is 0. False if there is no room. */
bool mti_add_row(mt_plan_formula *formula, int64_t amount, const char *fmt, ...) MT_PRINTF(3, 4);

/* ---- parameters ---- */

/* Elements of the matrices of one block (an attention, an MLP). */
int64_t mti_block_matrices(const mti_dims *s);

/* ---- what a forward pass keeps, term by term ----
 *
 * For 2-byte floats with GELU, dropout and attention whose every intermediate is kept, a block
 * comes to the 34bsh + 5abs^2 of Korthikanti et al. 2022, "Reducing Activation Recomputation in
 * Large Transformer Models"; other choices take terms away, other element sizes change their
 * weight. Checkpoints keep their inputs, offload keeps what it does not take, compression keeps
 * fewer bytes an element. */

/* One thing that is kept, as a product of dimensions. */
typedef struct mti_formula_term {
    char text[32];    /* "12bsh"; in every layer of a gpt: "12Lbsh" */
    const char *what; /* "q, k and v" */
    int64_t bytes;
} mti_formula_term;

/* A small buffer that the formula leaves out. */
typedef struct mti_residual {
    const char *text;
    int64_t bytes;
} mti_residual;

#define MTI_MAX_TERMS     128
#define MTI_MAX_RESIDUALS 48 /* more than there are texts */

typedef struct mti_formula {
    bool known;       /* false: there is no formula for these choices, and the rest is 0 */
    int64_t n_groups; /* N, where layers are checkpointed in groups; else 0 */
    /* A rank's, else 0: layers in flight L, forwards through the embeddings E and through the head
     * H. */
    int64_t n_layers, n_first, n_last;
    int64_t n_ahead;         /* P, predictions ahead; H is so many more */
    int64_t n_keys;          /* keys that a rank's queries see; else 0 */
    char text[MT_PLAN_TEXT]; /* "34bsh + 5abs^2" */
    int64_t bytes;
    int n_terms, n_layer_terms;            /* the first n_layer_terms are the layers' */
    mti_formula_term terms[MTI_MAX_TERMS]; /* they sum to `bytes` */
    int n_residual;
    mti_residual residual[MTI_MAX_RESIDUALS];
    int64_t unexplained; /* measured - bytes - residual: 0, or formula and ledger disagree */
} mti_formula;

/* measured: the ledger's bytes after forward. parallel: NULL unless it is one rank of several. */
bool mti_formula_make(mti_formula *f, const mt_model_config *config, int64_t batch, int64_t seq,
                      const mti_memory_options *memory, const mt_parallel *parallel,
                      size_t measured);
/* The same for one rank: its parameters before ZeRO cuts them, and what it keeps. */
bool mti_plan_rank_parameters(mt_plan_formula *out, const mt_model_config *config,
                              const mt_parallel *parallel);
bool mti_plan_rank_activations(mt_plan_formula *out, const mt_model_config *config,
                               const mt_parallel *parallel, int64_t batch, int64_t seq,
                               const mti_memory_options *memory);
/* Makes the formula of a workload. There is none where a rank may have more rows, or fewer, than
 * balanced routing gives it, where experts drop rows that nobody knows, or where what becomes of
 * one expert's rows depends on their number. */
bool mti_routed_formula(mti_formula *f, const mti_workload *w, bool has_data, size_t measured);
/* Builds the terms alone. */
void mti_formula_build(mti_formula *f, const mti_dims *s);

#endif

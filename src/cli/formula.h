/* formula.h: the closed formula for what a forward pass keeps, beside what the ledger found.
 *
 * Letters: b batch, s sequence, h hidden, f ffn, a heads, q their joint width, k that of the heads
 * of keys, v vocabulary, L layers. For 2-byte floats with GELU, dropout and attention whose every
 * intermediate is kept, a block comes to the 34bsh + 5abs^2 of Korthikanti et al. 2022, "Reducing
 * Activation Recomputation in Large Transformer Models"; other choices take terms away, other
 * element sizes change their weight. Checkpoints leave their inputs, offload what it does not take,
 * compression fewer bytes an element. */
#ifndef MTI_CLI_FORMULA_H
#define MTI_CLI_FORMULA_H

#include "cli/options.h"
#include "memtape/autograd.h"

/* One product of letters, for one thing that is kept. */
typedef struct mti_formula_term {
    char text[32];    /* "12bsh"; in every layer of a gpt: "12Lbsh" */
    const char *what; /* "q, k and v" */
    int64_t bytes;
} mti_formula_term;

/* Something kept that the formula leaves out, with the bytes of the ledger's entries of it. */
typedef struct mti_residual {
    const char *text;
    int64_t bytes;
} mti_residual;

#define MTI_MAX_TERMS     32
#define MTI_MAX_RESIDUALS 10

typedef struct mti_formula {
    bool known;       /* false: nobody has worked it out for these choices, and the rest is 0 */
    int64_t n_groups; /* N, where layers are checkpointed in groups; else 0 */
    char text[160];   /* "34bsh + 5abs^2" */
    int64_t bytes;
    int n_terms;
    mti_formula_term terms[MTI_MAX_TERMS]; /* they sum to `bytes` */
    int n_residual;
    mti_residual residual[MTI_MAX_RESIDUALS];
    int64_t unexplained; /* measured - bytes - residual: 0, or formula and ledger disagree */
} mti_formula;

bool mti_formula_make(mti_formula *f, const mt_model_config *config, int64_t batch, int64_t seq,
                      const mti_spending *how, const mt_ledger *ledger);

#endif

/* cheaper.c: which calls are audited, and cheaper ways to what they keep. */
#include <string.h>
#include "audit/op_audit.h"

#define COUNT(a) (sizeof(a) / sizeof *(a))

/* 32 rows of 64, unless the op wants other inputs. */
static const mti_case_sizes sizes = {
    [MTI_SIZE_M] = 32, [MTI_SIZE_N] = 64, [MTI_SIZE_K] = 48, [MTI_SIZE_V] = 48,
    [MTI_SIZE_B] = 2,  [MTI_SIZE_A] = 2,  [MTI_SIZE_S] = 8,  [MTI_SIZE_D] = 64,
};

/* Counts the audited cases of ops.def that stand before those of `op`. */
static int n_before(const char *op)
{
    int n = 0;
    mti_case c;
    while (mti_case_get(&mti_op_cases, MTI_CASE_AUDIT, n, sizes, &c) && strcmp(c.op, op) != 0) n++;
    return n;
}

/* Lists the collectives between what computes and what rearranges. */
bool mti_audit_case(int nth, mti_case *out)
{
    const int first = n_before("permute");
    const int n = mti_case_count(&mti_collective_cases, MTI_CASE_AUDIT);
    if (nth >= first && nth < first + n)
        return mti_case_get(&mti_collective_cases, MTI_CASE_AUDIT, nth - first, sizes, out);
    return mti_case_get(&mti_op_cases, MTI_CASE_AUDIT, nth < first ? nth : nth - n, sizes, out);
}

static const mti_cheaper ways[] = {
    {"relu", "y", MTI_CHEAPER_BITS, "one bit an element: y > 0"},
    {"relu_inplace", "y", MTI_CHEAPER_BITS, "one bit an element: y > 0"},
    {"leaky_relu", "x", MTI_CHEAPER_OUTPUT, "y has the sign of x: leaky_relu_inplace keeps y"},
    {"leaky_relu", "x", MTI_CHEAPER_BITS, "one bit an element: x > 0"},
    {"leaky_relu_inplace", "y", MTI_CHEAPER_BITS, "one bit an element: y > 0"},
    {"dropout", "mask", MTI_CHEAPER_SEED, "drawn again from seed and offset"},
    {"dropout", "mask", MTI_CHEAPER_BITS, "one bit an element instead of one byte"},
    {"layer_norm", "mean", MTI_CHEAPER_RECOMPUTE, "the mean of x, which is kept"},
    {"layer_norm", "rstd", MTI_CHEAPER_RECOMPUTE, "from x, which is kept"},
    {"layer_norm", "x", MTI_CHEAPER_OUTPUT,
     "x = (y - b) / (w rstd) + mean where no w is 0; to rounding only"},
    {"batch_norm", "mean", MTI_CHEAPER_RECOMPUTE, "the mean of x, which is kept"},
    {"batch_norm", "rstd", MTI_CHEAPER_RECOMPUTE, "from x, which is kept"},
    {"batch_norm", "x", MTI_CHEAPER_OUTPUT,
     "x = (y - b) / (w rstd) + mean where no w is 0; to rounding only"},
    {"rms_norm", "rstd", MTI_CHEAPER_RECOMPUTE, "from x, which is kept"},
    {"rms_norm", "x", MTI_CHEAPER_OUTPUT, "x = y / (w rstd) where no w is 0; to rounding only"},
    {"exp", "y", MTI_CHEAPER_RECOMPUTE, "exp of x, if x is kept anyway"},
    {"log", "x", MTI_CHEAPER_OUTPUT, "x = exp y; to rounding only"},
    {"softmax", "y", MTI_CHEAPER_RECOMPUTE, "from x and each row's log-sum-exp, as flash does"},
    {"log_softmax", "y", MTI_CHEAPER_RECOMPUTE, "from x and each row's log-sum-exp"},
    {"cross_entropy", "logp", MTI_CHEAPER_RECOMPUTE,
     "from the hidden state, chunk by chunk, fused with the output product"},
    {"cross_entropy", "target", MTI_CHEAPER_HALF, "i32 instead of i64"},
    {"cross_entropy_lse", "logits", MTI_CHEAPER_RECOMPUTE,
     "from the hidden state, chunk by chunk, fused with the output product"},
    {"cross_entropy_lse", "lse", MTI_CHEAPER_RECOMPUTE, "from the logits, which are kept"},
    {"cross_entropy_lse", "target", MTI_CHEAPER_HALF, "i32 instead of i64"},
    {"linear_cross_entropy", "lse", MTI_CHEAPER_RECOMPUTE, "from x and w, one more product"},
    {"linear_cross_entropy", "target", MTI_CHEAPER_HALF, "i32 instead of i64"},
    {"max", "index", MTI_CHEAPER_HALF, "i32 instead of i64"},
    {"gather", "index", MTI_CHEAPER_HALF, "i32 instead of i64"},
    {"topk", "index", MTI_CHEAPER_HALF, "i32 instead of i64"},
    {"dispatch", "rows", MTI_CHEAPER_HALF, "i32 instead of i64"},
    {"combine", "index", MTI_CHEAPER_HALF, "i32 instead of i64"},
    {"grouped_linear", "counts", MTI_CHEAPER_RECOMPUTE, "from the groups that the router chose"},
    {"all_to_all", "sent", MTI_CHEAPER_HALF, "i16 where no expert has more than 32,767 rows"},
    {"all_to_all", "received", MTI_CHEAPER_HALF, "i16 where no expert has more than 32,767 rows"},
    {"where", "mask", MTI_CHEAPER_BITS, "one bit an element instead of one byte"},
    {"embedding", "index", MTI_CHEAPER_HALF, "i32 instead of i64"},
    {"mse", "x", MTI_CHEAPER_HALF, "x - y, one tensor for the two"},
    {"mse", "y", MTI_CHEAPER_HALF, "x - y, one tensor for the two"},
    {"flash_attention", "lse", MTI_CHEAPER_RECOMPUTE, "from q and k, one more product"},
    {"flash_attention", "out", MTI_CHEAPER_RECOMPUTE, "the forward pass again"},
    {NULL, NULL, MTI_CHEAPER_RECOMPUTE, "the op that made it"},
};

const mti_cheaper *mti_audit_cheaper(const char *op, const mti_audit_kept *kept, size_t nth)
{
    if (kept->parameter) return NULL; /* there anyway */
    bool any = false;
    for (size_t i = 0; i < COUNT(ways); i++) {
        const mti_cheaper *w = &ways[i];
        bool fits = w->op ? !strcmp(w->op, op) && !strcmp(w->argument, kept->argument)
                          : !any && mt_dtype_is_float(kept->dtype);
        any = any || fits;
        if (fits && nth-- == 0) return w;
    }
    return NULL;
}

const char *mti_cheaper_name(mti_cheaper_kind kind)
{
    static const char *const names[MTI_CHEAPER_COUNT] = {
        [MTI_CHEAPER_OUTPUT] = "output",       [MTI_CHEAPER_BITS] = "bits",
        [MTI_CHEAPER_SEED] = "seed",           [MTI_CHEAPER_HALF] = "half",
        [MTI_CHEAPER_RECOMPUTE] = "recompute",
    };
    return names[kind];
}

size_t mti_cheaper_bytes(const mti_cheaper *way, const mti_audit_kept *kept)
{
    size_t n = kept->bytes / mt_dtype_size(kept->dtype);
    switch (way->kind) {
    case MTI_CHEAPER_BITS: return (n + 7) / 8;
    case MTI_CHEAPER_SEED: return 2 * sizeof(int64_t);
    case MTI_CHEAPER_HALF: return kept->bytes / 2;
    case MTI_CHEAPER_OUTPUT:
    case MTI_CHEAPER_RECOMPUTE:
    default: return 0;
    }
}

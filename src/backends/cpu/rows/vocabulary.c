/* vocabulary.c: embedding and loss of a vocabulary that ranks share. */
#include <math.h>
#include "backends/cpu/rows/rows.h"

/* ---- embedding ---- */

size_t mti_cpu_own_rows_scratch(mti_ctx *ctx, const mti_view *index)
{
    (void)ctx;
    return (size_t)mti_view_count(index) * sizeof(int64_t);
}

bool mti_cpu_own_rows(mti_ctx *ctx, int64_t first, int64_t rows, int64_t all, const mti_view *index,
                      const mti_view *own)
{
    (void)ctx;
    const int64_t *from = index->data;
    int64_t *to = own->data;
    for (int64_t i = 0, n = mti_view_count(index); i < n; i++) {
        if (from[i] < 0 || from[i] >= all)
            return mti_fault_report(&(mti_fault){MTI_FAULT_INDEX, i, from[i], all, 0});
        bool here = from[i] >= first && from[i] < first + rows;
        to[i] = here ? from[i] - first : MTI_NO_ROW;
    }
    return true;
}

/* ---- loss ---- */

#define ROWS_AT_ONCE 2048

size_t mti_cpu_shared_entropy_scratch(mti_ctx *ctx, int64_t rows, size_t row_bytes)
{
    (void)ctx;
    return sizeof(double) + (size_t)(rows < ROWS_AT_ONCE ? rows : ROWS_AT_ONCE) * row_bytes;
}

bool mti_cpu_own_targets(mti_ctx *ctx, int64_t first, int64_t columns, int64_t ignore,
                         const mti_view *target, const mti_view *own)
{
    (void)ctx;
    const int64_t *from = target->data;
    int64_t *to = own->data;
    for (int64_t i = 0, n = mti_view_count(target); i < n; i++) {
        bool here = from[i] >= first && from[i] < first + columns;
        to[i] = from[i] == ignore ? MTI_IGNORED : here ? from[i] - first : MTI_ELSEWHERE;
    }
    return true;
}

static double number(const mti_view *v, int64_t i)
{
    double value;
    mti_cpu_read_wide(v, i, &value, 1);
    return value;
}

/* In the order of the ranks, and of the rows. */
bool mti_cpu_join_entropy(mti_ctx *ctx, int64_t ignore, int64_t width, const mti_view *target,
                          const mti_view *parts, const mti_view *lse, const mti_view *sum)
{
    (void)ctx;
    const int64_t *targets = target->data;
    int64_t n = mti_view_count(lse), ranks = n ? mti_view_count(parts) / (2 * n) : 0;
    for (int64_t i = 0; i < n; i++) {
        double top = -INFINITY, total = 0;
        for (int64_t r = 0; r < ranks; r++) top = fmax(top, number(parts, 2 * r * n + i));
        for (int64_t r = 0; r < ranks; r++) total += exp(number(parts, 2 * r * n + i) - top);
        double of_all = top + log(total);
        mti_cpu_write_wide(lse, i, &of_all, 1);
        int64_t t = targets[i], owner = t / width;
        if (t == ignore || t < 0 || owner >= ranks) continue;
        double logit = number(parts, 2 * owner * n + i) - number(parts, (2 * owner + 1) * n + i);
        *(double *)sum->data += of_all - logit;
    }
    return true;
}

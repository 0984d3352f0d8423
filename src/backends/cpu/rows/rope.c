/* rope.c: rotary positions. The angles of a position are computed once per group of heads. */
#include "backends/cpu/rows/rows.h"

#define MAX_PAIRS   256   /* per row at a time */
#define TABLE_BYTES 16384 /* of cosines, and again of sines: they fit in the L1 cache */
/* A work item is this many positions of this many heads, which share the angles. */
#define POSITIONS 64
#define HEADS     32

typedef struct rope_job {
    const mti_view *x, *y; /* [b,a,s,d] */
    int64_t heads, groups; /* over all batches */
    int64_t half, start;   /* d / 2; the position of row 0 */
    const mti_rope *rope;
    bool inverse, past; /* past: y goes past the caches */
} rope_job;

#define ROPE_TURN(T, y_low, y_high)                                                                \
    {                                                                                              \
        T a = low[j], b = high[j];                                                                 \
        (y_low) = a * c[j] - b * s[j];                                                             \
        (y_high) = b * c[j] + a * s[j];                                                            \
    }

#define MTI_TYPED "backends/cpu/rows/rope.inc"
#include "backends/cpu/typed.inc"

bool mti_cpu_rope(mti_ctx *ctx, const mti_rope *rope, int64_t start, bool inverse,
                  const mti_view *x, const mti_view *y)
{
    int64_t s = x->shape[2], d = x->shape[3], heads = x->shape[0] * x->shape[1];
    rope_job job = {.x = x,
                    .y = y,
                    .heads = heads,
                    .groups = (heads + HEADS - 1) / HEADS,
                    .half = d / 2,
                    .start = start,
                    .rope = rope,
                    .inverse = inverse,
                    .past = mti_cpu_is_past(y) && d / 2 % MTI_LINE == 0};
    int64_t items = job.groups * ((s + POSITIONS - 1) / POSITIONS);
    if (items == 0 || d == 0) return true;
    bool wide = x->dtype == MT_F64;
    int64_t cost = s * d * (2 * heads + (wide ? 40 : 8) * job.groups) / items;
    mti_cpu_parallel(ctx, items, mti_cpu_chunk(items, cost), wide ? rope_items_f64 : rope_items_f32,
                     &job);
    return true;
}

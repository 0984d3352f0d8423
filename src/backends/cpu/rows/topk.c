/* topk.c: the k largest of each row, and numbers sorted. The row of the index serves as a heap of
 * the best k so far, with the worst at its root; removing the root repeatedly leaves them sorted.
 */
#include "backends/cpu/cpu.h"

typedef struct topk_job {
    const mti_view *x, *values, *index;
} topk_job;

/* A row of x, read as integers that order as its values do (mti_order_key). */
typedef struct keys {
    const char *data;
    int64_t step; /* bytes */
    size_t size;
    uint64_t sign, infinity; /* bit patterns of the dtype */
} keys;

static keys keys_of(const mti_view *x, int64_t row)
{
    static const uint64_t infinity[] = {[MT_F32] = 0x7f800000u,
                                        [MT_F64] = 0x7ff0000000000000u,
                                        [MT_BF16] = 0x7f80u,
                                        [MT_F16] = 0x7c00u};
    size_t size = mt_dtype_size(x->dtype);
    return (keys){.data = (const char *)x->data + mti_cpu_row_offset(x, row) * (int64_t)size,
                  .step = x->stride[x->rank - 1] * (int64_t)size,
                  .size = size,
                  .sign = (uint64_t)1 << (8 * size - 1),
                  .infinity = infinity[x->dtype]};
}

MTI_INLINE uint64_t key_at(const keys *k, int64_t i)
{
    uint64_t bits = 0;
    const char *from = k->data + i * k->step;
    switch (k->size) {
    case 2: memcpy(&bits, from, 2); break;
    case 4: memcpy(&bits, from, 4); break;
    default: memcpy(&bits, from, 8); break;
    }
    return mti_order_key(bits, k->sign, k->infinity);
}

/* Whether element i ranks after element j. */
static bool ranks_after(const keys *k, int64_t i, int64_t j)
{
    uint64_t a = key_at(k, i), b = key_at(k, j);
    return a != b ? a < b : i > j;
}

static void sift_down(const keys *k, int64_t *heap, int64_t hole, int64_t n)
{
    int64_t moving = heap[hole];
    for (int64_t child; (child = 2 * hole + 1) < n; hole = child) {
        if (child + 1 < n && ranks_after(k, heap[child + 1], heap[child])) child++;
        if (!ranks_after(k, heap[child], moving)) break;
        heap[hole] = heap[child];
    }
    heap[hole] = moving;
}

static void choose(const keys *k, int64_t n, int64_t *heap, int64_t n_heap)
{
    for (int64_t i = 0; i < n_heap; i++) heap[i] = i;
    for (int64_t i = n_heap / 2; i-- > 0;) sift_down(k, heap, i, n_heap);
    uint64_t worst = key_at(k, heap[0]);
    for (int64_t i = n_heap; i < n; i++) {
        if (key_at(k, i) <= worst) continue; /* among equals the first wins */
        heap[0] = i;
        sift_down(k, heap, 0, n_heap);
        worst = key_at(k, heap[0]);
    }
    for (int64_t size = n_heap - 1; size > 0; size--) {
        int64_t next = heap[0];
        heap[0] = heap[size], heap[size] = next;
        sift_down(k, heap, 0, size);
    }
}

static void topk_chunk(const void *arg, int64_t begin, int64_t end)
{
    const topk_job *job = arg;
    int last = job->x->rank - 1;
    int64_t n_best = job->index->shape[last];
    for (int64_t r = begin; r < end; r++) {
        keys k = keys_of(job->x, r);
        int64_t *index = (int64_t *)job->index->data + r * n_best;
        char *values = (char *)job->values->data + (size_t)(r * n_best) * k.size;
        choose(&k, job->x->shape[last], index, n_best);
        for (int64_t j = 0; j < n_best; j++)
            memcpy(values + (size_t)j * k.size, k.data + index[j] * k.step, k.size);
    }
}

size_t mti_cpu_topk_scratch(mti_ctx *ctx, const mti_view *x, const mti_view *values)
{
    (void)ctx, (void)x, (void)values;
    return 0;
}

bool mti_cpu_topk(mti_ctx *ctx, const mti_view *x, const mti_view *values, const mti_view *index,
                  void *scratch)
{
    (void)scratch;
    if (mti_view_count(index) == 0) return true;
    topk_job job = {x, values, index};
    int64_t rows = mti_cpu_row_count(x), n = x->shape[x->rank - 1];
    mti_cpu_parallel(ctx, rows, mti_cpu_chunk(rows, 4 * n), topk_chunk, &job);
    return true;
}

bool mti_cpu_sort_groups(mti_ctx *ctx, int64_t each, const mti_view *index, const mti_view *rows,
                         const mti_view *order, const mti_view *inverse, const mti_view *counts)
{
    const int64_t n = index->shape[0], groups = counts->shape[0], *group = index->data;
    int64_t *row = rows->data, *place = order->data, *back = inverse->data;
    int32_t *count = counts->data, end = 0;
    mti_cpu_fill(ctx, counts, 0);
    for (int64_t i = 0; i < n; i++) {
        if (group[i] < 0 || group[i] >= groups)
            return mti_fault_report(&(mti_fault){MTI_FAULT_GROUP, i, group[i], groups, 0});
        count[group[i]]++;
    }
    for (int64_t g = 0; g < groups; g++) end = count[g] += end; /* for now, where each ends */
    for (int64_t i = n; i-- > 0;) {
        int32_t j = --count[group[i]];
        place[j] = i, row[j] = i / each, back[i] = j;
    }
    for (int64_t g = 0; g < groups; g++) /* now, where each begins */
        count[g] = (g + 1 < groups ? count[g + 1] : (int32_t)n) - count[g];
    return true;
}

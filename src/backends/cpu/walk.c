/* walk.c: iterates over several strided views together; and the driver of all
 * element-wise kernels, which turns any layout and any float type into calls
 * on contiguous f32 or f64. */
#include "backends/cpu/cpu.h"

static bool mergeable(const mti_walk *w, int d)
{
    for (int k = 0; k < w->n_operands; k++)
        if (w->stride[k][d] != w->stride[k][d + 1] * w->shape[d + 1]) return false;
    return true;
}

/* Insertion sort, stable: dimensions that tie keep their order. */
static void sort_by_first_operand(mti_walk *w)
{
    for (int i = 1; i < w->rank; i++)
        for (int d = i; d > 0 && llabs(w->stride[0][d - 1]) < llabs(w->stride[0][d]); d--) {
            int64_t t = w->shape[d];
            w->shape[d] = w->shape[d - 1], w->shape[d - 1] = t;
            for (int k = 0; k < w->n_operands; k++) {
                t = w->stride[k][d];
                w->stride[k][d] = w->stride[k][d - 1], w->stride[k][d - 1] = t;
            }
        }
}

static void merge_dimensions(mti_walk *w)
{
    int output = 0;
    for (int d = 1; d < w->rank; d++) {
        /* output and d are now neighbours: store d at output + 1, then test and merge them */
        w->shape[output + 1] = w->shape[d];
        for (int k = 0; k < w->n_operands; k++) w->stride[k][output + 1] = w->stride[k][d];
        if (!mergeable(w, output)) {
            output++;
            continue;
        }
        w->shape[output] *= w->shape[output + 1];
        for (int k = 0; k < w->n_operands; k++) w->stride[k][output] = w->stride[k][output + 1];
    }
    w->rank = output + 1;
}

void mti_walk_init(mti_walk *w, int n_operands, const mti_view *const *views, bool row_major)
{
    w->n_operands = n_operands;
    w->rank = 0;
    w->count = 1;
    for (int k = 0; k < n_operands; k++) {
        w->data[k] = views[k]->data;
        w->dtype[k] = views[k]->dtype;
    }
    for (int d = 0; d < views[0]->rank; d++) {
        int64_t size = views[0]->shape[d];
        w->count *= size;
        if (size == 1) continue;
        w->shape[w->rank] = size;
        for (int k = 0; k < n_operands; k++) w->stride[k][w->rank] = views[k]->stride[d];
        w->rank++;
    }
    if (w->rank == 0) { /* a scalar: one row with one element */
        w->rank = 1;
        w->shape[0] = 1;
        for (int k = 0; k < n_operands; k++) w->stride[k][0] = 1;
    }
    if (!row_major) sort_by_first_operand(w);
    merge_dimensions(w);
}

void mti_walk_seek(const mti_walk *w, int64_t i, int64_t index[MT_MAX_RANK])
{
    for (int d = w->rank - 1; d > 0; d--) {
        index[d] = i % w->shape[d];
        i /= w->shape[d];
    }
    index[0] = i;
}

void mti_walk_advance(const mti_walk *w, int64_t by, int64_t index[MT_MAX_RANK])
{
    int d = w->rank - 1;
    index[d] += by;
    for (; d > 0 && index[d] == w->shape[d]; d--) {
        index[d] = 0;
        index[d - 1]++;
    }
}

int64_t mti_walk_offset(const mti_walk *w, int operand, const int64_t index[MT_MAX_RANK])
{
    int64_t offset = 0;
    for (int d = 0; d < w->rank; d++) offset += index[d] * w->stride[operand][d];
    return offset;
}

int64_t mti_cpu_row_count(const mti_view *v)
{
    int64_t n = 1;
    for (int d = 0; d < v->rank - 1; d++) n *= v->shape[d];
    return n;
}

int64_t mti_cpu_row_offset(const mti_view *v, int64_t row)
{
    return mti_cpu_offset(v->rank - 1, v->shape, v->stride, row);
}

/* ---- the element-wise driver ---- */

/* Rows of at least this length are processed one by one; shorter ones are gathered first. */
#define LONG_ROW 64

typedef struct map_job {
    mti_walk walk;
    mti_cpu_run_fn *run;
    const void *op;
    int outputs;
    bool flat;   /* every operand contiguous */
    bool native; /* no operand is a narrow float */
    bool past;   /* the outputs go past the caches */
} map_job;

#define MOVE_ELEMENTS(T)                                                                           \
    for (int64_t i = 0; i < n; i++) ((T *)dst)[i * dst_step] = ((const T *)src)[i * src_step]

void mti_cpu_move(size_t size, void *dst, int64_t dst_step, const void *src, int64_t src_step,
                  int64_t n)
{
    if (src_step == 1 && dst_step == 1) {
        memcpy(dst, src, (size_t)n * size);
        return;
    }
    switch (size) {
    case 1: MOVE_ELEMENTS(uint8_t); break;
    case 2: MOVE_ELEMENTS(uint16_t); break;
    case 4: MOVE_ELEMENTS(uint32_t); break;
    default: MOVE_ELEMENTS(uint64_t); break;
    }
}

/* Moves n elements of operand k, from the index on, between the view and a packed buffer. */
static void move_packed(const mti_walk *w, int k, const int64_t *from, int64_t n, char *packed,
                        bool into_view)
{
    int64_t index[MT_MAX_RANK], last = w->rank - 1, step = w->stride[k][last];
    size_t size = mti_dtype_size(w->dtype[k]);
    memcpy(index, from, sizeof index);
    while (n > 0) {
        int64_t left = w->shape[last] - index[last], m = left < n ? left : n;
        char *at = w->data[k] + mti_walk_offset(w, k, index) * (int64_t)size;
        if (into_view)
            mti_cpu_move(size, at, step, packed, 1, m);
        else
            mti_cpu_move(size, packed, 1, at, step, m);
        packed += m * (int64_t)size;
        n -= m;
        mti_walk_advance(w, m, index);
    }
}

/* One run of at most MTI_CPU_RUN elements (any number if every operand is used directly).
 * direct[k] is operand k's address, or NULL if it must be packed. */
static void map_run(const map_job *job, const int64_t *index, char *const *direct, int64_t first,
                    int64_t n)
{
    const mti_walk *w = &job->walk;
    /* padded: at a power of two apart, loads would wait for stores at equal page offsets */
    uint64_t buffer[MTI_CPU_MAX_OPERANDS][MTI_CPU_RUN + 40];
    uint16_t packed[MTI_CPU_RUN];
    void *p[MTI_CPU_MAX_OPERANDS];
    for (int k = 0; k < w->n_operands; k++) {
        bool narrow = mti_cpu_is_narrow(w->dtype[k]);
        p[k] = direct[k] && !narrow ? (void *)direct[k] : (void *)buffer[k];
        if (k < job->outputs || p[k] == direct[k]) continue;
        char *raw = narrow ? (char *)packed : (char *)buffer[k];
        if (!direct[k]) move_packed(w, k, index, n, raw, false);
        if (narrow) mti_cpu_load_f32(w->dtype[k], direct[k] ? direct[k] : raw, p[k], n);
    }
    job->run(job->op, p, (mti_cpu_span){first, job->past}, n);
    for (int k = 0; k < job->outputs; k++) {
        if (p[k] == direct[k]) continue;
        bool narrow = mti_cpu_is_narrow(w->dtype[k]);
        char *raw = narrow ? (char *)packed : (char *)buffer[k];
        if (narrow) mti_cpu_store_f32(w->dtype[k], p[k], direct[k] ? direct[k] : raw, n);
        if (!direct[k]) move_packed(w, k, index, n, raw, true);
    }
}

static void map_flat(const map_job *job, int64_t begin, int64_t end)
{
    const mti_walk *w = &job->walk;
    int64_t most = job->native ? end - begin : MTI_CPU_RUN;
    for (int64_t i = begin; i < end; i += most) {
        char *direct[MTI_CPU_MAX_OPERANDS];
        for (int k = 0; k < w->n_operands; k++)
            direct[k] = w->data[k] + i * (int64_t)mti_dtype_size(w->dtype[k]);
        map_run(job, NULL, direct, i, end - i < most ? end - i : most);
    }
}

static void map_chunk(const void *arg, int64_t begin, int64_t end)
{
    const map_job *job = arg;
    if (job->flat) {
        map_flat(job, begin, end);
        return;
    }
    const mti_walk *w = &job->walk;
    int64_t index[MT_MAX_RANK] = {0}, last = w->rank - 1, row = w->shape[last];
    bool unit_rows = true; /* can long rows be used without packing? */
    for (int k = 0; k < w->n_operands; k++) unit_rows = unit_rows && w->stride[k][last] == 1;
    mti_walk_seek(w, begin, index);
    for (int64_t i = begin, n; i < end; i += n) {
        int64_t most = unit_rows && job->native && row >= LONG_ROW ? end - i : MTI_CPU_RUN;
        n = end - i < most ? end - i : most;
        if (row >= LONG_ROW && n > row - index[last]) n = row - index[last];
        char *direct[MTI_CPU_MAX_OPERANDS];
        for (int k = 0; k < w->n_operands; k++) {
            bool here = w->stride[k][last] == 1 && n <= row - index[last];
            direct[k] = here ? w->data[k] + mti_walk_offset(w, k, index) *
                                                (int64_t)mti_dtype_size(w->dtype[k])
                             : NULL;
        }
        map_run(job, index, direct, i, n);
        if (n <= row - index[last])
            mti_walk_advance(w, n, index);
        else
            mti_walk_seek(w, i + n, index);
    }
}

void mti_cpu_map(mti_ctx *ctx, int n_operands, const mti_view *const *views, int outputs,
                 bool row_major, int64_t cost, mti_cpu_run_fn *run, const void *op)
{
    map_job job;
    mti_walk_init(&job.walk, n_operands, views, row_major);
    job.run = run;
    job.op = op;
    job.outputs = outputs;
    job.flat = job.walk.rank == 1;
    job.native = true;
    for (int k = 0; k < n_operands; k++) {
        job.flat = job.flat && job.walk.stride[k][0] == 1;
        job.native = job.native && !mti_cpu_is_narrow(job.walk.dtype[k]);
    }
    job.past = job.flat && job.native;
    for (int k = 0; k < outputs; k++) job.past = job.past && mti_cpu_is_past(views[k]);
    int64_t chunk = mti_cpu_chunk(job.walk.count, cost);
    if (job.past) chunk = (chunk + MTI_LINE - 1) / MTI_LINE * MTI_LINE;
    mti_cpu_parallel(ctx, job.walk.count, chunk, map_chunk, &job);
}

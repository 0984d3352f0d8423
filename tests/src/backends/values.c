#include <stdarg.h>
#include <setjmp.h>
#include <stddef.h>
#include <cmocka.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include "base/philox.h"
#include "backends/cpu/cpu.h"
#include "values.h"

#define FOREIGN (-77.0)
#define MOST    4096

static struct {
    void *at;
    size_t n_bytes;
} buffers[MOST];
static int n_buffers;

mti_ctx *values_open(int threads)
{
    mti_ctx *ctx;
    assert_true(mtt_backend(&ctx)->set_threads(ctx, threads));
    return ctx;
}

/* On the CPU a guard after the scratch has room for three more workers, so that a write beyond the
 * end does no harm before it is found. Only the guard's beginning is checked. */
#define GUARD_CHECKED ((size_t)4096)
#define DIRTY         ((size_t)64 << 10)

static size_t guard(size_t n_bytes)
{
#ifdef __SANITIZE_ADDRESS__
    return (void)n_bytes, 0;
#else
    return mtt_is_heap() ? 3 * n_bytes : GUARD_CHECKED;
#endif
}

static size_t checked_bytes(size_t n_bytes)
{
    return guard(n_bytes) < GUARD_CHECKED ? guard(n_bytes) : GUARD_CHECKED;
}

/* Pages that are not checked are never touched. */
static char *map_scratch(size_t n)
{
#ifndef __SANITIZE_ADDRESS__
    if (mtt_is_heap()) {
        char *scratch =
            mmap(NULL, n ? n : 1, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        assert_true(scratch != MAP_FAILED);
        return scratch;
    }
#endif
    return mtt_memory_dirty(n);
}

static void unmap_scratch(char *scratch, size_t n)
{
#ifndef __SANITIZE_ADDRESS__
    if (mtt_is_heap()) {
        munmap(scratch, n ? n : 1);
        return;
    }
#endif
    (void)n;
    mtt_memory_free(scratch);
}

char *values_scratch(size_t n_bytes)
{
    char *scratch = map_scratch(n_bytes + guard(n_bytes));
    memset(scratch, 0x99, n_bytes < DIRTY ? n_bytes : DIRTY); /* scratch may hold any bytes */
    memset(scratch + n_bytes, 0x77, checked_bytes(n_bytes));
    return scratch;
}
void values_scratch_free(char *scratch, size_t n_bytes)
{
    for (size_t i = 0; i < checked_bytes(n_bytes); i++)
        assert_int_equal(scratch[n_bytes + i], 0x77);
    unmap_scratch(scratch, n_bytes + guard(n_bytes));
}

static void set_at(const mti_view *v, int64_t at, double value)
{
    float f = (float)value;
    if (v->dtype == MT_F64)
        ((double *)v->data)[at] = value;
    else
        mti_cpu_store_f32(v->dtype, &f, (char *)v->data + at * (int64_t)mt_dtype_size(v->dtype), 1);
}

static double get_at(const mti_view *v, int64_t at)
{
    float f;
    if (v->dtype == MT_F64) return ((const double *)v->data)[at];
    mti_cpu_load_f32(v->dtype, (const char *)v->data + at * (int64_t)mt_dtype_size(v->dtype), &f,
                     1);
    return (double)f;
}

static int64_t place(const mti_view *v, int64_t i)
{
    int64_t at = 0;
    for (int d = v->rank - 1; d >= 0; d--) at += i % v->shape[d] * v->stride[d], i /= v->shape[d];
    return at;
}

/* Where an element is, for all elements in row-major order. */
typedef struct walk {
    int64_t at, index[MT_MAX_RANK];
} walk;

static void step(const mti_view *v, walk *w)
{
    for (int d = v->rank - 1; d >= 0; d--) {
        w->at += v->stride[d];
        if (++w->index[d] < v->shape[d]) return;
        w->at -= v->stride[d] * v->shape[d];
        w->index[d] = 0;
    }
}

mti_view values_new_laid_out(mt_dtype dtype, int rank, const int64_t *shape, bool transposed,
                             int64_t pad)
{
    mti_view v = {.dtype = dtype, .rank = rank};
    int64_t n = 1;
    for (int i = 0; i < rank; i++) {
        int d =
            rank - 1 -
            i; /* from the innermost dimension outwards; the last two are swapped if transposed */
        if (transposed && i < 2) d = rank - 2 + i;
        v.shape[d] = shape[d];
        v.stride[d] = n;
        n *= shape[d];
        if (i == 0) n += pad;
    }
    size_t n_bytes = ((size_t)n + 1) * mt_dtype_size(dtype);
    if (n_buffers == MOST) abort();
    v.data = mtt_memory(n_bytes);
    buffers[n_buffers].at = v.data;
    buffers[n_buffers++].n_bytes = n_bytes;
    for (int64_t i = 0; i <= n; i++) set_at(&v, i, FOREIGN);
    return v;
}

mti_view values_new(mt_dtype dtype, int rank, const int64_t *shape)
{
    return values_new_laid_out(dtype, rank, shape, false, 0);
}

mti_view values_i64(int64_t value)
{
    mti_view v = {.data = mtt_memory(sizeof value), .dtype = MT_I64};
    if (n_buffers == MOST) abort();
    buffers[n_buffers].at = v.data;
    buffers[n_buffers++].n_bytes = sizeof value;
    memcpy(v.data, &value, sizeof value);
    return v;
}

void values_free_all(void)
{
    while (n_buffers > 0) mtt_memory_free(buffers[--n_buffers].at);
}

double values_get(const mti_view *v, int64_t i) { return get_at(v, place(v, i)); }
void values_set(const mti_view *v, int64_t i, double value) { set_at(v, place(v, i), value); }

double *values_all(const mti_view *v)
{
    int64_t n = mti_view_count(v);
    double *x = calloc((size_t)n + 1, sizeof *x);
    assert_non_null(x);
    walk w = {0};
    for (int64_t i = 0; i < n; i++, step(v, &w)) x[i] = get_at(v, w.at);
    return x;
}

void values_fill(const mti_view *v, double value)
{
    int64_t n = mti_view_count(v);
    walk w = {0};
    for (int64_t i = 0; i < n; i++, step(v, &w)) set_at(v, w.at, value);
}

void values_random(const mti_view *v, uint64_t seed)
{
    int64_t n = mti_view_count(v);
    walk w = {0};
    for (int64_t i = 0; i < n; i++, step(v, &w)) {
        mti_u32x4 u = mti_philox(seed, (uint64_t)i);
        double high = mti_u32_to_unit(u.v[0]), low = mti_u32_to_unit(u.v[1]);
        set_at(v, w.at, 2.0 * (high + 0x1p-24 * low) - 1.0);
    }
}

size_t values_bytes(const mti_view *v)
{
    for (int i = 0; i < n_buffers; i++)
        if (buffers[i].at == v->data) return buffers[i].n_bytes;
    abort();
}

bool values_same_bits(const mti_view *a, const mti_view *b)
{
    return values_bytes(a) == values_bytes(b) && memcmp(a->data, b->data, values_bytes(a)) == 0;
}

bool values_surroundings_untouched(const mti_view *v)
{
    size_t n = values_bytes(v) / mt_dtype_size(v->dtype);
    char *own = calloc(n, 1);
    bool untouched = own != NULL;
    walk w = {0};
    for (int64_t i = mti_view_count(v); untouched && i > 0; i--, step(v, &w)) own[w.at] = 1;
    for (size_t i = 0; untouched && i < n; i++)
        untouched = own[i] || get_at(v, (int64_t)i) == FOREIGN;
    free(own);
    return untouched;
}

double values_rounding(mt_dtype dtype)
{
    switch (dtype) {
    case MT_F64: return 0x1p-53;
    case MT_F32: return 0x1p-24;
    case MT_F16: return 0x1p-11;
    default: return 0x1p-8; /* bf16 */
    }
}

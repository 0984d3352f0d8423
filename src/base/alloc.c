/* alloc.c: all host memory is requested here; a counter can make a request fail. */
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include "base/base.h"

/* Counting starts with the first mti_fail_nth_alloc: other programs pay one load per request
 * and share no cache line between threads. */
static atomic_bool counting;
static atomic_uint_fast64_t seen, fail_at;
static void (*_Atomic watch)(uint64_t nth);

void mti_watch_allocs(void (*told)(uint64_t nth)) { watch = told; }

void mti_fail_nth_alloc(uint64_t n)
{
    if (n == 0) watch = NULL;
    atomic_store(&fail_at, n);
    atomic_store(&seen, 0);
    atomic_store(&counting, true);
}

uint64_t mti_alloc_count(void) { return atomic_load(&seen); }

bool mti_alloc_should_fail(void)
{
    if (!atomic_load_explicit(&counting, memory_order_relaxed)) return false;
    uint64_t nth = atomic_fetch_add(&seen, 1) + 1;
    void (*told)(uint64_t) = watch;
    if (told) told(nth);
    return nth == atomic_load(&fail_at);
}

void *mti_alloc_refused(size_t n_bytes)
{
    char text[32];
    return mti_fail_null(MT_ERR_MEMORY, "host memory: %zu bytes (%s) refused", n_bytes,
                         mti_bytes_text(text, sizeof text, n_bytes));
}

void *mti_malloc(size_t n_bytes)
{
    void *p = mti_alloc_should_fail() ? NULL : malloc(n_bytes ? n_bytes : 1);
    return p ? p : mti_alloc_refused(n_bytes);
}

void *mti_calloc(size_t count, size_t size)
{
    size_t n_bytes;
    if (!mti_mul_size(count, size, &n_bytes))
        return mti_fail_null(MT_ERR_MEMORY, "host memory: %zu times %zu bytes overflow", count,
                             size);
    void *p = mti_alloc_should_fail() ? NULL : calloc(1, n_bytes ? n_bytes : 1);
    return p ? p : mti_alloc_refused(n_bytes);
}

void *mti_realloc(void *p, size_t n_bytes)
{
    void *q = mti_alloc_should_fail() ? NULL : realloc(p, n_bytes ? n_bytes : 1);
    return q ? q : mti_alloc_refused(n_bytes);
}

char *mti_strdup(const char *s)
{
    size_t n = strlen(s) + 1;
    char *copy = mti_malloc(n);
    if (copy) memcpy(copy, s, n);
    return copy;
}

void mti_free(void *p) { free(p); }

bool mti_grow(void **at, size_t *cap, size_t item_size)
{
    size_t n = *cap ? *cap : 4, n_bytes;
    if (!mti_mul_size(n, 2, &n) || !mti_mul_size(n, item_size, &n_bytes))
        return mti_fail_bool(MT_ERR_MEMORY, "host memory: an array of %zu items cannot grow", *cap);
    void *p = mti_realloc(*at, n_bytes);
    if (!p) return false;
    *at = p;
    *cap = n;
    return true;
}

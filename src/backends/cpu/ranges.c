/* ranges.c: addresses of the process that get memory in granules, for expandable segments. */
#include "backends/cpu/cpu.h"
#if defined(__linux__)
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#define HUGE_PAGE ((size_t)2 << 20)

static size_t page(mti_ctx *ctx)
{
    (void)ctx;
    return (size_t)sysconf(_SC_PAGESIZE);
}

/* Where the process's addresses are limited, an eighth of them: everything else needs some, too. */
static size_t total(mti_ctx *ctx)
{
    struct rlimit limit;
    size_t memory = (size_t)sysconf(_SC_PHYS_PAGES) * page(ctx);
    if (getrlimit(RLIMIT_AS, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY &&
        limit.rlim_cur / 8 < memory)
        return (size_t)limit.rlim_cur / 8;
    return memory;
}

static char *map_nothing(void *at, size_t n_bytes, int flags)
{
    void *p = mmap(at, n_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | flags, -1, 0);
    return p == MAP_FAILED ? NULL : p;
}

/* Addresses without access take no memory and are not charged for. */
static void *reserve(mti_ctx *ctx, size_t n_bytes)
{
    (void)ctx;
    size_t padded;
    if (mti_alloc_should_fail() || !mti_add_size(n_bytes, HUGE_PAGE, &padded)) return NULL;
    char *p = map_nothing(NULL, padded, 0);
    if (!p) return NULL;
    size_t before = (HUGE_PAGE - (uintptr_t)p % HUGE_PAGE) % HUGE_PAGE;
    if (before) munmap(p, before);
    if (before < HUGE_PAGE) munmap(p + before + n_bytes, HUGE_PAGE - before);
    return p + before;
}

static void release(mti_ctx *ctx, void *p, size_t n_bytes)
{
    (void)ctx;
    munmap(p, n_bytes);
}

/* Huge pages, as for segments of their own, wherever 2 MiB have memory when they are first touched.
 */
static bool map(mti_ctx *ctx, void *p, size_t n_bytes, size_t granule)
{
    (void)ctx, (void)granule;
    if (mti_alloc_should_fail() || mprotect(p, n_bytes, PROT_READ | PROT_WRITE) != 0) return false;
    madvise(p, n_bytes, MADV_HUGEPAGE);
    return true;
}

static bool unmap(mti_ctx *ctx, void *p, size_t n_bytes, size_t granule)
{
    (void)ctx, (void)granule;
    return map_nothing(p, n_bytes, MAP_FIXED) != NULL;
}

const mti_ranges mti_cpu_ranges = {page, total, reserve, release, map, unmap};
#endif

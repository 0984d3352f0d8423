/* Preloaded into a whole program: the REFUSE_AT-th request for memory after the start of main
 * fails. Requests of the loader and of the libraries' set-up before main are not counted. With
 * REFUSE_COUNT=FILE the number of requests is written there when the program exits.
 *
 * What OpenBLAS takes from malloc is counted, but never refused: its AVX-512 kernels for small
 * products (sgemm_small_kernel_nn_skylakex.c and dgemm's) write to such a buffer without looking,
 * and no caller can prevent that. */
/* mmap and mmap64 by their own names. */
#undef _FILE_OFFSET_BITS
#include <dlfcn.h>
#include <errno.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

void *__libc_malloc(size_t n);
void *__libc_calloc(size_t count, size_t size);
void *__libc_realloc(void *p, size_t n);
void *__libc_memalign(size_t alignment, size_t n);

static atomic_bool counting;
static atomic_ulong seen;
static unsigned long refuse_at;

static int is_the_one(void)
{
    if (!atomic_load(&counting)) return 0;
    return atomic_fetch_add(&seen, 1) + 1 == refuse_at;
}

static int is_from_openblas(const void *caller)
{
    Dl_info library;
    return dladdr(caller, &library) && library.dli_fname &&
           strstr(library.dli_fname, "/libopenblas") != NULL;
}

static int refused(const void *caller)
{
    if (!is_the_one() || is_from_openblas(caller)) return 0;
    errno = ENOMEM;
    return 1;
}
#define REFUSED refused(__builtin_return_address(0))

/* The loader must find these before the C library's functions. */
#pragma GCC visibility push(default)

void *malloc(size_t n) { return REFUSED ? NULL : __libc_malloc(n); }
void *calloc(size_t count, size_t size) { return REFUSED ? NULL : __libc_calloc(count, size); }
void *realloc(void *p, size_t n) { return REFUSED ? NULL : __libc_realloc(p, n); }
void *memalign(size_t alignment, size_t n)
{
    return REFUSED ? NULL : __libc_memalign(alignment, n);
}
void *aligned_alloc(size_t alignment, size_t n) { return memalign(alignment, n); }
int posix_memalign(void **p, size_t alignment, size_t n)
{
    void *made = memalign(alignment, n);
    if (!made) return ENOMEM;
    *p = made;
    return 0;
}
void *mmap(void *at, size_t n, int protection, int flags, int file, off_t offset)
{
    if (is_the_one()) {
        errno = ENOMEM;
        return MAP_FAILED;
    }
    return (void *)syscall(SYS_mmap, at, n, protection, flags, file, offset);
}

void *mmap64(void *at, size_t n, int protection, int flags, int file, off64_t offset)
{
    return mmap(at, n, protection, flags, file, (off_t)offset);
}

#pragma GCC visibility pop

static void write_count(void)
{
    atomic_store(&counting, 0);
    const char *path = getenv("REFUSE_COUNT");
    FILE *file = path ? fopen(path, "w") : NULL;
    if (!file) return;
    fprintf(file, "%lu\n", atomic_load(&seen));
    fclose(file);
}

typedef int main_fn(int argc, char **argv, char **environment);
static main_fn *real_main;

static int counted_main(int argc, char **argv, char **environment)
{
    const char *at = getenv("REFUSE_AT");
    refuse_at = at ? strtoul(at, NULL, 10) : 0;
    if (getenv("REFUSE_COUNT")) atexit(write_count);
    atomic_store(&counting, 1);
    return real_main(argc, argv, environment);
}

__attribute__((visibility("default"))) int __libc_start_main(main_fn *begin, int argc, char **argv,
                                                             void (*init)(void), void (*end)(void),
                                                             void (*loader_end)(void), void *stack)
{
    int (*next)(main_fn *, int, char **, void (*)(void), void (*)(void), void (*)(void), void *);
    *(void **)&next = dlsym(RTLD_NEXT, "__libc_start_main");
    real_main = begin;
    return next(counted_main, argc, argv, init, end, loader_end, stack);
}

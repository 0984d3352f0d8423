/* posix.c: the system below musl, for a module in a browser: one thread, files that the page hands
 * in, and what is written goes to the page. Every other system call fails with ENOSYS, so that the
 * program refuses with its own words. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <time.h>
#include "pthread_impl.h"
#include "syscall.h"

#define IMPORT(name) __attribute__((import_module("page"), import_name(#name)))

/* The page's functions; addresses are below 4 GiB. */
IMPORT(args) int page_args(uint32_t at, uint32_t most); /* words, each with a zero byte */
IMPORT(open) int page_open(uint32_t path, uint32_t n, int writes); /* a descriptor, or below 0 */
IMPORT(size) int page_size(uint32_t path, uint32_t n);             /* of a file, or below 0 */
IMPORT(read) int page_read(int fd, uint32_t at, uint32_t n);
IMPORT(write) int page_write(int fd, uint32_t at, uint32_t n);
IMPORT(length) int page_length(int fd); /* of an open file, or below 0 */
IMPORT(seek) void page_seek(int fd, uint32_t to);
IMPORT(columns) int page_columns(void);         /* of the terminal that output is; 0: it is none */
IMPORT(interrupted) int page_interrupted(void); /* once, as if by Ctrl-C */
IMPORT(now) double page_now(void);              /* milliseconds */
IMPORT(exit) _Noreturn void page_exit(int status);

static uint32_t address(const void *p) { return (uint32_t)(uintptr_t)p; }

struct pthread mt_page_thread = {.locale = &__libc.global_locale};

/* ---- memory ---- */

#define PAGE_BYTES 65536
#define HEADER     16 /* before each block: its class */
#define CLASSES    128

static struct {
    char *at, *end;       /* never used yet */
    void *freed[CLASSES]; /* lists by class: a run's module ends with it, so nothing is merged */
} heap;

/* Four sizes for each power of two, from 16 bytes. */
static size_t size_of_class(unsigned i) { return (size_t)(4 + i % 4) << (i / 4 + 2); }

static unsigned class_of(size_t n)
{
    if (n <= 16) return 0;
    unsigned power = 63 - (unsigned)__builtin_clzl(n), i = (power - 4) * 4;
    while (size_of_class(i) < n) i++;
    return i;
}

static void *fresh(size_t n)
{
    extern char __heap_base;
    if (!heap.at) {
        heap.at = (char *)(((uintptr_t)&__heap_base + HEADER - 1) & ~(uintptr_t)(HEADER - 1));
        heap.end = (char *)(__builtin_wasm_memory_size(0) * PAGE_BYTES);
    }
    if (n > (size_t)(heap.end - heap.at)) {
        size_t lack = n - (size_t)(heap.end - heap.at), pages = lack / PAGE_BYTES + 16;
        if (__builtin_wasm_memory_grow(0, pages) == (size_t)-1) return NULL;
        heap.end += pages * PAGE_BYTES;
    }
    char *p = heap.at;
    heap.at += n;
    return p;
}

void *malloc(size_t n)
{
    unsigned i = class_of(n);
    if (n >> 32) return NULL; /* more than a module can have */
    void **p = heap.freed[i];
    if (p) {
        heap.freed[i] = *p;
        return p;
    }
    size_t *header = fresh(HEADER + ((size_of_class(i) + HEADER - 1) & ~(size_t)(HEADER - 1)));
    if (!header) return NULL;
    *header = i;
    return header + HEADER / sizeof *header;
}

void free(void *p)
{
    if (!p) return;
    unsigned i = (unsigned)((size_t *)p)[-2];
    *(void **)p = heap.freed[i];
    heap.freed[i] = p;
}

void *calloc(size_t count, size_t size)
{
    size_t n;
    void *p = __builtin_mul_overflow(count, size, &n) ? NULL : malloc(n);
    return p ? memset(p, 0, n) : NULL;
}

void *realloc(void *p, size_t n)
{
    size_t had = p ? size_of_class((unsigned)((size_t *)p)[-2]) : 0;
    if (p && n <= had) return p;
    void *q = malloc(n);
    if (p && q) memcpy(q, p, had), free(p);
    return q;
}

/* An aligned address inside a block, with the class before it once more: never given back. */
void *aligned_alloc(size_t alignment, size_t n)
{
    uintptr_t p = (uintptr_t)malloc(n + alignment);
    if (!p) return NULL;
    uintptr_t at = (p + alignment - 1) & ~(alignment - 1);
    if (at != p) ((size_t *)at)[-2] = class_of(n) ? class_of(n) - 1 : 0;
    return (void *)at;
}

void *__libc_malloc(size_t n) { return malloc(n); }
void *__libc_calloc(size_t count, size_t size) { return calloc(count, size); }
void __libc_free(void *p) { free(p); }

/* ---- system calls ---- */

/* What is under /dev is written in place; the page collects it. */
static int is_device(const char *path) { return !strncmp(path, "/dev/", 5); }

static long stat_path(const char *path, struct stat *st)
{
    int n = is_device(path) ? 0 : page_size(address(path), (uint32_t)strlen(path));
    if (n < 0) return -ENOENT;
    *st = (struct stat){.st_mode = is_device(path) ? S_IFCHR : S_IFREG, .st_size = n};
    return 0;
}

/* Whether a file is there to be read; of what is to be written, opening it says so. */
static long may_use(const char *path, int mode)
{
    struct stat st;
    return mode & W_OK ? 0 : stat_path(path, &st);
}

static long open_path(const char *path, int flags)
{
    int writes = (flags & O_ACCMODE) != O_RDONLY;
    if (writes && !is_device(path)) return -EROFS;
    int fd = page_open(address(path), (uint32_t)strlen(path), writes);
    return fd < 0 ? -ENOENT : fd;
}

static long each(int (*call)(int, uint32_t, uint32_t), int fd, const struct iovec *v, long n)
{
    long sum = 0;
    for (long i = 0; i < n; i++) {
        if (v[i].iov_len == 0) continue;
        int done = call(fd, address(v[i].iov_base), (uint32_t)v[i].iov_len);
        if (done < 0) return -EBADF;
        sum += done;
        if ((size_t)done < v[i].iov_len) break;
    }
    return sum;
}

static long tell_time(struct timespec *t)
{
    double ms = page_now();
    t->tv_sec = (time_t)(ms / 1e3);
    t->tv_nsec = (long)((ms - (double)t->tv_sec * 1e3) * 1e6);
    return 0;
}

/* A program that asks for the time, as each step of training does, may be interrupted. */
static void (*on_interrupt)(int);

static long read_at(int fd, void *p, size_t n, long from)
{
    page_seek(fd, (uint32_t)from);
    return each(page_read, fd, &(struct iovec){p, n}, 1);
}

/* The handler is what a kernel's struct begins with. */
static long set_handler(int number, void (*const *handler)(int), void (**before)(int))
{
    if (before) *before = SIG_DFL;
    if (handler && number == SIGINT) on_interrupt = *handler;
    return 0;
}

static long tell_size(int fd, struct winsize *size)
{
    if (fd != 1 || !page_columns()) return -ENOTTY;
    *size = (struct winsize){.ws_col = (unsigned short)page_columns(), .ws_row = 24};
    return 0;
}

long mt_page_call(long n, long a, long b, long c, long d)
{
    if (n == SYS_clock_gettime && on_interrupt && page_interrupted()) on_interrupt(SIGINT);
    switch (n) {
    case SYS_write: return each(page_write, (int)a, &(struct iovec){(void *)b, (size_t)c}, 1);
    case SYS_writev: return each(page_write, (int)a, (const struct iovec *)b, c);
    case SYS_read: return each(page_read, (int)a, &(struct iovec){(void *)b, (size_t)c}, 1);
    case SYS_readv: return each(page_read, (int)a, (const struct iovec *)b, c);
    case SYS_pread64: return read_at((int)a, (void *)b, (size_t)c, d);
    case SYS_rt_sigaction: return set_handler((int)a, (void (*const *)(int))b, (void (**)(int))c);
    case SYS_openat: return open_path((const char *)b, (int)c);
    case SYS_clock_gettime: return tell_time((struct timespec *)b);
    case SYS_exit_group: page_exit((int)a);
    /* Whether there is room for a buffer of OpenBLAS, which products.c does not need. */
    case SYS_mmap: return c == (PROT_READ | PROT_WRITE) ? PAGE_BYTES : -ENOSYS;
    case SYS_faccessat: return may_use((const char *)b, (int)c);
    /* No file is a link, and all are in one folder. */
    case SYS_readlinkat: return -EINVAL;
    case SYS_getcwd:
        return (size_t)b < sizeof "/" ? -ERANGE : (strcpy((char *)a, "/"), (long)sizeof "/");
    case SYS_munmap:
    case SYS_close:
    case SYS_fcntl:
    case SYS_fsync: return 0;
    case SYS_getpid: return 1;
    case SYS_lseek: return -ESPIPE;
    case SYS_ioctl: return b == TIOCGWINSZ ? tell_size((int)a, (struct winsize *)c) : -ENOTTY;
    default: return -ENOSYS;
    }
}

int stat(const char *restrict path, struct stat *restrict st)
{
    return (int)__syscall_ret((unsigned long)stat_path(path, st));
}

int lstat(const char *restrict path, struct stat *restrict st) { return stat(path, st); }

int fstat(int fd, struct stat *st)
{
    int n = page_length(fd);
    *st = (struct stat){.st_mode = n < 0 ? S_IFCHR : S_IFREG, .st_size = n < 0 ? 0 : n};
    return 0;
}

/* No locale but C has a file. */
const unsigned char *__map_file(const char *path, size_t *n) { return NULL; }

/* ---- one thread ---- */

int pthread_mutex_init(pthread_mutex_t *restrict m, const pthread_mutexattr_t *restrict a)
{
    return 0;
}
int pthread_mutex_destroy(pthread_mutex_t *m) { return 0; }
int pthread_mutex_lock(pthread_mutex_t *m) { return 0; }
int pthread_mutex_unlock(pthread_mutex_t *m) { return 0; }
int pthread_cond_init(pthread_cond_t *restrict c, const pthread_condattr_t *restrict a)
{
    return 0;
}
int pthread_cond_destroy(pthread_cond_t *c) { return 0; }
int pthread_cond_signal(pthread_cond_t *c) { return 0; }
int pthread_cond_broadcast(pthread_cond_t *c) { return 0; }
int pthread_cond_wait(pthread_cond_t *restrict c, pthread_mutex_t *restrict m) { __builtin_trap(); }
int pthread_attr_init(pthread_attr_t *a) { return 0; }
int pthread_attr_destroy(pthread_attr_t *a) { return 0; }
int pthread_attr_setstacksize(pthread_attr_t *a, size_t n) { return 0; }
int pthread_create(pthread_t *restrict t, const pthread_attr_t *restrict a, void *(*fn)(void *),
                   void *restrict user)
{
    return EAGAIN;
}
int pthread_join(pthread_t t, void **result) { return ESRCH; }
pthread_t pthread_self(void) { return &mt_page_thread; }

/* ---- the program ---- */

int mt_page_run(int argc, char **argv);

__attribute__((export_name("run"))) int run(void)
{
    static char words[1 << 16], *argv[1024];
    int n = page_args(address(words), sizeof words - 1), argc = 0;
    for (int at = 0; at < n && argc < 1023; at += (int)strlen(words + at) + 1)
        argv[argc++] = words + at;
    if (page_columns()) putenv("TERM=page");
    int status = mt_page_run(argc, argv);
    fflush(NULL);
    return status;
}

/* ---- other processes, and modules ---- */

pid_t fork(void)
{
    errno = ENOSYS;
    return -1;
}

void *dlopen(const char *path, int how) { return NULL; }
void *dlsym(void *restrict module, const char *restrict name) { return NULL; }
char *dlerror(void) { return "a page has no modules"; }
int dladdr(const void *at, void *info) { return 0; }

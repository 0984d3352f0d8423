/* Preloaded: the FAIL_AT-th request for memory within argp_parse fails. */
#include <argp.h>
#include <dlfcn.h>
#include <errno.h>
#include <stdlib.h>

void *__libc_malloc(size_t n);
void *__libc_calloc(size_t count, size_t size);
void *__libc_realloc(void *p, size_t n);

static long left; /* 0: none fails */

static int fails(void)
{
    if (left == 0 || --left > 0) return 0;
    errno = ENOMEM;
    return 1;
}

void *malloc(size_t n) { return fails() ? NULL : __libc_malloc(n); }
void *calloc(size_t count, size_t size) { return fails() ? NULL : __libc_calloc(count, size); }
void *realloc(void *p, size_t n) { return fails() ? NULL : __libc_realloc(p, n); }

error_t argp_parse(const struct argp *argp, int argc, char **argv, unsigned flags, int *index,
                   void *input)
{
    error_t (*real)(const struct argp *, int, char **, unsigned, int *, void *);
    *(void **)&real = dlsym(RTLD_NEXT, "argp_parse");
    const char *at = getenv("FAIL_AT");
    left = at ? atol(at) : 0;
    error_t status = real(argp, argc, argv, flags, index, input);
    left = 0;
    return status;
}

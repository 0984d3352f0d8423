/* loaded_module.c: a module's side of loaded_module.h: the functions of base that its kernels call,
 * forwarded to the program that loaded it. Every module is linked with this file. */
#include <stdio.h>
#include "backends/loaded_module.h"

/* Set on loading. Host threads that open a device at the same time all store the same pointer. */
static _Atomic(const mti_host *) host;

const mti_backend *mti_module_entry(const mti_host *from)
{
    if (from->n_host != sizeof(mti_host) || from->n_backend != sizeof(mti_backend)) return NULL;
    host = from;
    return &mti_module_backend;
}

mt_status mti_fail(mt_status status, const char *fmt, ...)
{
    char text[1024];
    va_list arguments;
    va_start(arguments, fmt);
    mti_vformat(text, sizeof text, fmt, arguments);
    va_end(arguments);
    return host->fail(status, text);
}

void *mti_malloc(size_t n_bytes) { return host->malloc(n_bytes); }
void *mti_calloc(size_t count, size_t size) { return host->calloc(count, size); }
void *mti_realloc(void *p, size_t n_bytes) { return host->realloc(p, n_bytes); }
void mti_free(void *p) { host->free(p); }
bool mti_alloc_should_fail(void) { return host->alloc_should_fail(); }

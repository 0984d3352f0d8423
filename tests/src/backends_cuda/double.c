#include "double.h"
#include <dlfcn.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

mtt_double_fn mtt_double(const char *name)
{
    const char *kind = getenv("MTT_DEVICE"), *module = getenv("MEMTAPE_CUDASIM_MODULE");
    void *loaded = kind && !strcmp(kind, "cuda") ? NULL
                   : module                      ? dlopen(module, RTLD_NOW | RTLD_NOLOAD)
                                                 : NULL;
    if (!loaded) return NULL;
    mtt_double_fn fn = NULL;
    void *found = dlsym(loaded, name);
    memcpy(&fn, &found, sizeof fn);
    dlclose(loaded);
    return fn;
}

static uint64_t counts(bool of_threads)
{
    uint64_t n_launches = 0, n_threads = 0;
    mtt_double_fn fn = mtt_double("cudasim_counts");
    if (fn) ((void (*)(uint64_t *, uint64_t *))fn)(&n_launches, &n_threads);
    return of_threads ? n_threads : n_launches;
}

uint64_t mtt_double_kernels(void) { return counts(false); }
uint64_t mtt_double_threads(void) { return counts(true); }

uint64_t mtt_double_waits(void)
{
    mtt_double_fn fn = mtt_double("cudasim_waits");
    return fn ? ((uint64_t(*)(void))fn)() : 0;
}

long mtt_double_products(bool with_sums)
{
    mtt_double_fn fn = mtt_double("cudasim_products");
    return fn ? ((long (*)(bool))fn)(with_sums) : -1;
}

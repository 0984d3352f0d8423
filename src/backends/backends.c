/* backends.c: the list of backends: those built in, then those in a file of their own. */
#include <string.h>
#include "backends/backend.h"
#include "backends/loaded_module.h"

static const mti_backend *const backends[] = {&mti_cpu_backend, &mti_meta_backend};

const mti_backend *mti_backend_find(const char *kind)
{
    size_t n = sizeof backends / sizeof *backends;
    for (size_t i = 0; kind && i < n; i++)
        if (!strcmp(backends[i]->kind, kind)) return backends[i];
    return mti_module_load(kind);
}

/* load.c: finds and loads a backend's module. It is never unloaded: its code may have threads and
 * exit handlers. */
#include <ctype.h>
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "backends/loaded_module.h"

#define MAX_KIND 32

static mt_status fail(mt_status status, const char *text) { return mti_fail(status, "%s", text); }

static const mti_host host = {
    .n_host = sizeof(mti_host),
    .n_backend = sizeof(mti_backend),
    .fail = fail,
    .malloc = mti_malloc,
    .calloc = mti_calloc,
    .realloc = mti_realloc,
    .free = mti_free,
    .alloc_should_fail = mti_alloc_should_fail,
};

/* Lower-case letters and digits only, so that a kind cannot change the path it becomes part of. */
static bool is_name(const char *kind)
{
    size_t n = kind ? strspn(kind, "abcdefghijklmnopqrstuvwxyz0123456789") : 0;
    return n > 0 && n < MAX_KIND && !kind[n];
}

static bool readable(const char *folder, size_t n_folder, const char *rest, const char *kind,
                     char path[MTI_MODULE_PATH])
{
    int n = snprintf(path, MTI_MODULE_PATH, "%.*s%s/libmemtape-%s.so", (int)n_folder, folder, rest,
                     kind);
    return n > 0 && n < MTI_MODULE_PATH && access(path, R_OK) == 0;
}

bool mti_module_find(const char *kind, char path[MTI_MODULE_PATH])
{
    if (!is_name(kind)) return false;
    char variable[MAX_KIND + 32];
    snprintf(variable, sizeof variable, "MEMTAPE_%s_MODULE", kind);
    for (char *c = variable; *c; c++) *c = (char)toupper((unsigned char)*c);
    const char *named = getenv(variable);
    if (named) return snprintf(path, MTI_MODULE_PATH, "%s", named) < MTI_MODULE_PATH;

    char self[MTI_MODULE_PATH];
    Dl_info info;
    /* For the program it gives the name that it was called by, which may lack the folder. */
    bool found = dladdr((const void *)&host, &info) && info.dli_fname &&
                 strchr(info.dli_fname, '/') && realpath(info.dli_fname, self);
    const char *slash = found || realpath("/proc/self/exe", self) ? strrchr(self, '/') : NULL;
    static const char *const near[] = {"", "/..", "/../lib", ("/../" MTI_LIBDIR)};
    for (size_t i = 0; slash && i < sizeof near / sizeof *near; i++)
        if (readable(self, (size_t)(slash - self), near[i], kind, path)) return true;
    return readable(MTI_MODULE_DIR, strlen(MTI_MODULE_DIR), "", kind, path);
}

const char *mti_module_folder(void) { return MTI_MODULE_DIR; }

const mti_backend *mti_module_load(const char *kind)
{
    char path[MTI_MODULE_PATH];
    if (!kind) return mti_fail_null(MT_ERR_ARGUMENT, "device_open: the kind is NULL");
    if (!mti_module_find(kind, path))
        return mti_fail_null(MT_ERR_UNSUPPORTED,
                             "device \"%.40s\": not built in (those are: cpu, meta), and no module "
                             "libmemtape-%s.so beside the program or in %s",
                             kind, is_name(kind) ? kind : "KIND", MTI_MODULE_DIR);
    void *module = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!module) return mti_fail_null(MT_ERR_UNSUPPORTED, "device \"%s\": %s", kind, dlerror());
    mti_module_entry_fn *entry;
    *(void **)&entry = dlsym(module, MTI_MODULE_ENTRY);
    const mti_backend *backend = entry ? entry(&host) : NULL;
    if (backend && !strcmp(backend->kind, kind)) return backend;
    return mti_fail_null(MT_ERR_UNSUPPORTED,
                         "device \"%s\": %s was not built for this version of memtape", kind, path);
}

/* library.cu: finds NVIDIA's libraries, which are opened at run time. */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "backends/cuda/device/library.h"

/* The folders in MEMTAPE_CUDA_LIBS may be a Python's site-packages. */
static void *open_from_folders(const char *folders, const char *name)
{
    static const char *const below[] = {"", "/nvidia/cu13/lib", "/nvidia/cublas/lib",
                                        "/nvidia/nccl/lib"};
    while (folders && *folders) {
        int n = (int)strcspn(folders, ":");
        for (size_t i = 0; n && i < sizeof below / sizeof *below; i++) {
            char path[4096];
            int length = snprintf(path, sizeof path, "%.*s%s/%s", n, folders, below[i], name);
            void *library = length < (int)sizeof path ? dlopen(path, RTLD_NOW | RTLD_LOCAL) : NULL;
            if (library) return library;
        }
        folders += n + (folders[n] == ':');
    }
    return NULL;
}

void *mti_cuda_find_library(const char *name)
{
    void *library = open_from_folders(getenv("MEMTAPE_CUDA_LIBS"), name);
    if (!library) library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
    return library ? library : open_from_folders("/usr/local/cuda/lib64", name);
}

/* loaded_module.h: a backend in a separate shared library, loaded on first use.
 *
 * Backend KIND is libmemtape-KIND.so, which exports one function. So one build of the library and
 * the program serves machines with and without the device, and links none of its libraries. The
 * module calls back through a table, since it cannot know which file contains the engine. */
#ifndef MTI_LOADED_MODULE_H
#define MTI_LOADED_MODULE_H

#include "backends/backend.h"

typedef struct mti_host {
    size_t n_host, n_backend; /* sizes of this table and of mti_backend: both sides must agree */
    mt_status (*fail)(mt_status status, const char *text);
    void *(*malloc)(size_t n_bytes);
    void *(*calloc)(size_t count, size_t size);
    void *(*realloc)(void *p, size_t n_bytes);
    void (*free)(void *p);
    bool (*alloc_should_fail)(void);
} mti_host;

/* Every module defines this table; loaded_module.c, linked into each module, returns it. */
extern const mti_backend mti_module_backend;

/* NULL if the table sizes differ: the module belongs to another version. */
typedef const mti_backend *mti_module_entry_fn(const mti_host *host);
#define MTI_MODULE_ENTRY "mti_module_entry"
MT_API const mti_backend *mti_module_entry(const mti_host *host);

#define MTI_MODULE_PATH 4096
/* The path in MEMTAPE_KIND_MODULE, if set; else libmemtape-KIND.so beside the program or library
 * that contains this code, in the folder above, its lib/ or its libdir, or in the folder of
 * installed modules. False, without an error, if there is none. */
bool mti_module_find(const char *kind, char path[MTI_MODULE_PATH]);
const char *mti_module_folder(void); /* of installed modules */

/* On failure: NULL, and an error that lists where it looked for the module. */
const mti_backend *mti_module_load(const char *kind);

#endif

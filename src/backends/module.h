/* module.h: a backend in a file of its own, loaded when it is first asked for.
 *
 * Backend KIND is libmemtape-KIND.so, which exports one function. So the library and the program
 * are one binary for machines with and without the device, and need not link what it needs. The
 * module asks back through a table, since it cannot know which file has the engine in it. */
#ifndef MTI_MODULE_H
#define MTI_MODULE_H

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

/* What the module has to define; module.c, which is linked into every module, hands it out. */
extern const mti_backend mti_module_backend;

/* NULL if the module was built for other tables. */
typedef const mti_backend *mti_module_entry_fn(const mti_host *host);
#define MTI_MODULE_ENTRY "mti_module_entry"
MT_API const mti_backend *mti_module_entry(const mti_host *host);

/* NULL and an error that says where the module was sought. */
const mti_backend *mti_module_load(const char *kind);

#endif

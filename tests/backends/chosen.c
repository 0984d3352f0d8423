#include <stdarg.h>
#include <setjmp.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdlib.h>
#include <string.h>
#include "chosen.h"

#define HEADER 64 /* holds the size and keeps the alignment */

static const mti_backend *real;
static mti_backend waiting;
static mti_ctx *memory; /* a context for page-locked memory; NULL: memory comes from the heap */

#define KERNEL(name, parameters, arguments)                                                        \
    static bool waiting_##name(mti_ctx *ctx, MTI_UNWRAP parameters)                                \
    {                                                                                              \
        return real->name(ctx, MTI_UNWRAP arguments) && real->sync(ctx);                           \
    }
#define SCRATCH(name, parameters, arguments)
#include "backends/kernels.def"

static void choose(void)
{
    const char *kind = getenv("MTT_DEVICE");
    real = mti_backend_find(kind ? kind : "cpu");
    assert_non_null(real);
    waiting = *real;
    if ((real->traits & MTI_HOST_MEMORY) && !getenv("MTT_WAITING")) return;
    memory = real->open();
    assert_non_null(memory);
#define KERNEL(name, parameters, arguments) waiting.name = waiting_##name;
#define SCRATCH(name, parameters, arguments)
#include "backends/kernels.def"
}

const mti_backend *mtt_chosen(void)
{
    if (!real) choose();
    return &waiting;
}

const mti_backend *mtt_backend(mti_ctx **ctx)
{
    const mti_backend *backend = mtt_chosen();
    *ctx = backend->open();
    assert_non_null(*ctx);
    return backend;
}

bool mtt_is_heap(void) { return mtt_chosen() && !memory; }

void *mtt_memory(size_t n_bytes)
{
    char *block;
    if (mtt_is_heap()) {
        block = calloc(n_bytes ? n_bytes : 1, 1);
        assert_non_null(block);
        return block;
    }
    n_bytes += HEADER;
    block = real->host_alloc(memory, n_bytes);
    assert_non_null(block);
    memset(block, 0, n_bytes);
    memcpy(block, &n_bytes, sizeof n_bytes);
    return block + HEADER;
}

void mtt_memory_free(void *p)
{
    if (!p || mtt_is_heap()) {
        free(p);
        return;
    }
    char *block = (char *)p - HEADER;
    size_t n_bytes;
    memcpy(&n_bytes, block, sizeof n_bytes);
    real->host_free(memory, block, n_bytes);
}

#include <stdarg.h>
#include <setjmp.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include "memtape/status.h"
#include "chosen.h"

#define HEADER 256 /* holds the size and keeps the alignment that a product asks of its scratch */

static const mti_backend *real;
static mti_backend waiting;
static mti_ctx *shared; /* of a device, or for page-locked memory */
static bool heap;       /* where views are; or in page-locked memory */

#define KERNEL(name, parameters, arguments)                                                        \
    static bool waiting_##name(mti_ctx *ctx, MTI_UNWRAP parameters)                                \
    {                                                                                              \
        return real->name(ctx, MTI_UNWRAP arguments) && real->sync(ctx);                           \
    }
#define SCRATCH(name, parameters, arguments)
#include "backends/kernels.def"

/* Opening a device takes a GPU a second; its tests share one context. */
static mti_ctx *lend(void) { return shared; }
static void take_back(mti_ctx *ctx) { assert_true(ctx == shared && real->sync(ctx)); }

static void choose(void)
{
    const char *kind = getenv("MTT_DEVICE");
    real = mti_backend_find(kind ? kind : "cpu");
    assert_non_null(real);
    waiting = *real;
    heap = (real->traits & MTI_HOST_MEMORY) && !getenv("MTT_WAITING");
    bool device = strcmp(real->kind, "cpu") != 0;
    if (device || !heap) {
        shared = real->open();
        assert_non_null(shared);
    }
    if (device) waiting.open = lend, waiting.close = take_back;
    if (heap) return;
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

bool mtt_is_heap(void) { return mtt_chosen() && heap; }

void mtt_did_at(bool ok, const char *call, const char *file, int line)
{
    if (!ok) print_error("%s: %s\n", call, mt_last_error());
    _assert_true(ok, call, file, line);
}

/* ---- page-locked memory ----
 * Locking pages takes a GPU's driver long, so blocks are cut from few large ones and come again: by
 * size, in powers of two. With AddressSanitizer each is one of its own, so that it finds a kernel
 * of the simulator that leaves it. */

#ifdef __SANITIZE_ADDRESS__
#define LARGE ((size_t)1)
#else
#define LARGE ((size_t)16 << 20)
#endif

typedef struct block {
    size_t n_bytes;
    struct block *next; /* of the free ones of this size */
} block;

static struct {
    pthread_mutex_t lock;
    block *free[64];
    char *at; /* of the large block in use */
    size_t n_left;
} arena = {.lock = PTHREAD_MUTEX_INITIALIZER};

static block *cut(size_t n_bytes)
{
    if (n_bytes >= LARGE) return real->host_alloc(shared, n_bytes);
    if (n_bytes > arena.n_left) {
        arena.at = real->host_alloc(shared, LARGE);
        arena.n_left = arena.at ? LARGE : 0;
    }
    if (n_bytes > arena.n_left) return NULL;
    arena.n_left -= n_bytes;
    return (block *)(void *)(arena.at + arena.n_left);
}

static int size_class(size_t n_bytes)
{
    int k = 9;
    while ((size_t)1 << k < n_bytes) k++;
    return k;
}

void *mtt_memory_dirty(size_t n_bytes)
{
    if (mtt_is_heap()) {
        void *p = malloc(n_bytes ? n_bytes : 1);
        assert_non_null(p);
        return p;
    }
    n_bytes += HEADER;
    int k = size_class(n_bytes);
    if (LARGE) n_bytes = (size_t)1 << k;
    pthread_mutex_lock(&arena.lock);
    block *b = arena.free[k];
    if (b)
        arena.free[k] = b->next;
    else
        b = cut(n_bytes);
    pthread_mutex_unlock(&arena.lock);
    assert_non_null(b);
    b->n_bytes = n_bytes;
    return (char *)b + HEADER;
}

void *mtt_memory(size_t n_bytes) { return memset(mtt_memory_dirty(n_bytes), 0, n_bytes); }

void mtt_memory_free(void *p)
{
    if (!p || mtt_is_heap()) {
        free(p);
        return;
    }
    block *b = (block *)(void *)((char *)p - HEADER);
    if (!LARGE) {
        real->host_free(shared, b, b->n_bytes);
        return;
    }
    int k = size_class(b->n_bytes);
    pthread_mutex_lock(&arena.lock);
    b->next = arena.free[k];
    arena.free[k] = b;
    pthread_mutex_unlock(&arena.lock);
}

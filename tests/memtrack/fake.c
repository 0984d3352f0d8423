/* fake.c: imaginary addresses; freeing one that was never handed out fails the test. */
#include "fake.h"

#define MIDDLE ((uintptr_t)1 << 46)

void mtt_fake_init(mti_ctx *fake, size_t capacity)
{
    memset(fake, 0, sizeof *fake);
    fake->capacity = capacity;
    fake->up = fake->down = MIDDLE;
}

static void *fake_alloc(mti_ctx *fake, size_t n_bytes)
{
    fake->n_asked++;
    if (mti_alloc_should_fail() || n_bytes > fake->capacity - fake->held) return NULL;
    uintptr_t at = fake->up;
    if (fake->n_given++ % 2)
        at = fake->down -= n_bytes;
    else
        fake->up += n_bytes;
    assert_in_range(fake->n, 0, sizeof fake->out / sizeof *fake->out - 1);
    fake->out[fake->n].p = (void *)at;
    fake->out[fake->n++].n_bytes = n_bytes;
    fake->held += n_bytes;
    return (void *)at;
}

static void fake_free(mti_ctx *fake, void *p, size_t n_bytes)
{
    size_t i = 0;
    while (i < fake->n && fake->out[i].p != p) i++;
    assert_true(i < fake->n && fake->out[i].n_bytes == n_bytes);
    fake->out[i] = fake->out[--fake->n];
    fake->held -= n_bytes;
}

const mti_backend mtt_fake_backend = {.kind = "fake", .alloc = fake_alloc, .free = fake_free};

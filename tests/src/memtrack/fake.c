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

/* ---- granules ---- */

static size_t fake_page(mti_ctx *fake)
{
    (void)fake;
    return 4096;
}

static size_t fake_total(mti_ctx *fake) { return fake->capacity; }

static void *fake_reserve(mti_ctx *fake, size_t n_bytes)
{
    if (mti_alloc_should_fail()) return NULL;
    uintptr_t at = fake->up;
    fake->up += n_bytes;
    fake->n_ranges++;
    return (void *)at;
}

static void fake_release(mti_ctx *fake, void *p, size_t n_bytes)
{
    for (size_t i = 0; i < fake->n_granules; i++)
        assert_false(fake->granule[i] - (uintptr_t)p < n_bytes);
    fake->n_ranges--;
}

static bool fake_map(mti_ctx *fake, void *p, size_t n_bytes, size_t granule)
{
    fake->n_asked++;
    assert_true(n_bytes && n_bytes % granule == 0);
    if (mti_alloc_should_fail() || n_bytes > fake->capacity - fake->held) return false;
    for (size_t at = 0; at < n_bytes; at += granule) {
        for (size_t i = 0; i < fake->n_granules; i++)
            assert_int_not_equal(fake->granule[i], (uintptr_t)p + at);
        assert_in_range(fake->n_granules, 0, sizeof fake->granule / sizeof *fake->granule - 1);
        fake->granule[fake->n_granules++] = (uintptr_t)p + at;
    }
    fake->held += n_bytes;
    return true;
}

static bool fake_unmap(mti_ctx *fake, void *p, size_t n_bytes, size_t granule)
{
    assert_true(n_bytes && n_bytes % granule == 0);
    for (size_t at = 0; at < n_bytes; at += granule) {
        size_t i = 0;
        while (i < fake->n_granules && fake->granule[i] != (uintptr_t)p + at) i++;
        assert_true(i < fake->n_granules);
        fake->granule[i] = fake->granule[--fake->n_granules];
    }
    fake->held -= n_bytes;
    return true;
}

static const mti_ranges fake_ranges = {fake_page,    fake_total, fake_reserve,
                                       fake_release, fake_map,   fake_unmap};

const mti_backend mtt_fake_backend = {
    .kind = "fake", .alloc = fake_alloc, .free = fake_free, .ranges = &fake_ranges};

uint64_t mtt_draw(uint64_t *x)
{
    *x = *x * 6364136223846793005u + 1442695040888963407u;
    return *x >> 32;
}

size_t mtt_draw_size(uint64_t *x, int max_log2)
{
    size_t top = (size_t)1 << mtt_draw(x) % (uint64_t)(max_log2 + 1);
    size_t n = top + (size_t)mtt_draw(x) % top;
    return mtt_draw(x) % 4 == 0 ? top : n > 64 * MIB ? 64 * MIB : n;
}

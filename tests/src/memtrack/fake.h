/* fake.h: a backend without memory. It hands out imaginary addresses, alternately above and below
 * the middle of the address space, and keeps a list of them; and of granules that have memory. */
#ifndef MTT_FAKE_H
#define MTT_FAKE_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>
#include "memtrack/memtrack.h"

#define KIB ((size_t)1 << 10)
#define MIB ((size_t)1 << 20)

struct mti_ctx {
    size_t capacity; /* requests beyond it are refused */
    size_t held, n;  /* bytes and segments handed out now */
    size_t n_asked, n_given;
    uintptr_t up, down;
    struct {
        void *p;
        size_t n_bytes;
    } out[8192];
    size_t n_ranges, n_granules;
    uintptr_t granule[16384]; /* that have memory */
};

extern const mti_backend mtt_fake_backend;
void mtt_fake_init(mti_ctx *fake, size_t capacity);

uint64_t mtt_draw(uint64_t *x);
/* 1 byte to 2^max_log2 bytes, at most 64 MiB; every power of two is equally likely. */
size_t mtt_draw_size(uint64_t *x, int max_log2);

#endif

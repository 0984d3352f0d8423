/* fake.h: a backend without memory. It hands out imaginary addresses, alternately above and below
 * the middle of the address space, and keeps a list of them. */
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
};

extern const mti_backend mtt_fake_backend;
void mtt_fake_init(mti_ctx *fake, size_t capacity);

#endif

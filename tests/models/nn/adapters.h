/* adapters.h: a small MLP with adapters, for the tests of adapters. */
#ifndef ADAPTERS_H
#define ADAPTERS_H

#include "mtt.h"
#include "mtt_fixture.h"

enum { D = 64, F = 128, TOKENS = 6, R = 4 };

mt_module *mlp(mt_dtype dtype);    /* fc [F,D], gelu, proj [D,F]: the same values each time */
mt_tensor *tokens(mt_dtype dtype); /* [TOKENS,D] */
/* Adds adapters of rank R; their number must be `want`. */
void add(mt_module *m, mt_lora_base base, size_t want);
mt_tensor *weight(mt_module *m, const char *path); /* of the module at `path`; borrowed */
/* Gives B values, as training would: a new B is zero. */
void fill_b(mt_module *m, const char *path, uint64_t seed);
/* Forward, backward, and a step of `o` if it is not NULL. */
mt_status step(mt_module *m, mt_tensor *x, mt_optimizer *o);

#endif

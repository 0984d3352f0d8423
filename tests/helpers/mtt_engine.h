/* mtt_engine.h: helpers that tests share; they need the engine alone. */
#ifndef MTT_ENGINE_H
#define MTT_ENGINE_H

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include "memtape/memtape.h"

/* The device under test: the one that MTT_DEVICE names, "cpu" if it is not set. */
mt_device *mtt_device(void);
/* Bytes allocated on the device: all, and those of one category. */
size_t mtt_allocated(const mt_device *device);
size_t mtt_allocated_as(const mt_device *device, mt_category category);

/* Whether tests run in their long form, as in `./run test --all`: MTT_LONG=1 in the environment. */
bool mtt_long(void);
/* Whether the nth case runs: every fourth does, beginning with MTT_QUARTER of the environment, so
 * that four commits run all (tests/verified.py). Without it, and on another device than the CPU,
 * all run. */
bool mtt_turn(size_t nth);
/* The same for cases that every other run of the tests takes, CI's among them: MTT_CASES of the
 * environment, which `./run test` sets where nothing else was asked for. The long form takes all.
 */
bool mtt_case(size_t nth);
/* Whether this is the short form on the simulator, which takes a hundred times as long as the CPU:
 * then tests take some of their cases, and the long form takes all. */
bool mtt_short_simulation(void);
/* For tests that refuse one request for memory after another: the request to refuse after the nth.
 * The long form tries all, or those that are planned; the short form tries the first 32 and then
 * every 29th. */
uint64_t mtt_next_refusal(uint64_t nth);
/* Plans the refusals of the long form, for a run of one thread that makes the same requests each
 * time: of those that the same calls lead to the first, the second and the last, because what is
 * freed after the others is the same. `run` makes it after mti_fail_nth_alloc(UINT64_MAX), and ends
 * with mti_fail_nth_alloc(0); it does so in a process of its own. Then mtt_next_refusal follows the
 * plan, and at its end gives a number that no request has. */
void mtt_plan_refusals(void (*run)(void *), void *arg);

/* A random number in [lo, hi); the same state gives the same number on every machine. */
double mtt_draw(uint64_t *state, double lo, double hi);

/* Values drawn from `seed`, as a tensor of any floating dtype. */
mt_tensor *mtt_random(mt_device *device, mt_dtype dtype, int rank, const int64_t *shape,
                      uint64_t seed, double lo, double hi);
mt_tensor *mtt_from_doubles(mt_device *device, mt_dtype dtype, int rank, const int64_t *shape,
                            const double *values);

/* The layout of a tensor in its storage. */
typedef enum mtt_layout {
    MTT_DENSE,    /* row-major */
    MTT_REVERSED, /* dimensions stored in the opposite order, as after a transpose */
    MTT_SLICED,   /* the middle of a tensor whose last dimension is 2 longer */
    MTT_LAYOUT_COUNT
} mtt_layout;
const char *mtt_layout_name(mtt_layout layout);
/* A leaf with this layout and these values. */
mt_tensor *mtt_laid_out(mt_device *device, mt_dtype dtype, int rank, const int64_t *shape,
                        const double *values, mtt_layout layout);

/* The elements in row-major order as doubles, for any dtype; the caller frees them. */
double *mtt_doubles(mt_tensor *t);
/* Equal shape, dtype and bits. */
bool mtt_same_bits(mt_tensor *a, mt_tensor *b);

/* The path of a new empty file in TMPDIR or the system's temporary folder; the test unlinks it. */
enum { MTT_PATH = 256 };
void mtt_temporary_file(char path[MTT_PATH]);

/* Fails the running test with the engine's message if `t` is NULL; returns `t`. */
#define mtt_made(t) mtt_made_at((t), #t, __FILE__, __LINE__)
mt_tensor *mtt_made_at(mt_tensor *t, const char *what, const char *file, int line);
#define mtt_ok(status) mtt_ok_at((status), #status, __FILE__, __LINE__)
void mtt_ok_at(mt_status status, const char *what, const char *file, int line);
/* Asserts that the last error has this status and a text with each of the words; clears it. */
#define mtt_failed(status, ...)                                                                    \
    mtt_failed_at((status), (const char *const[]){__VA_ARGS__, NULL}, __FILE__, __LINE__)
void mtt_failed_at(mt_status status, const char *const *words, const char *file, int line);

#endif

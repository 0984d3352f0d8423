/* A steady training step asks the system for no host memory: malloc and its kin are counted here,
 * by the library that calls them, in the third to fifth steps. */
#include <dlfcn.h>
#include <malloc.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include "trainer.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define COUNTS 0 /* sanitizers have a malloc of their own, and free objects go back to it */
#else
#define COUNTS 1
#endif

enum { MOST_CALLERS = 4096 };
static atomic_bool counting;
static atomic_size_t n_callers;
static const void *callers[MOST_CALLERS];

#if COUNTS
void *__libc_malloc(size_t n);
void *__libc_calloc(size_t count, size_t size);
void *__libc_realloc(void *p, size_t n);
void *__libc_memalign(size_t alignment, size_t n);
void __libc_free(void *p);

static void note(const void *caller)
{
    if (!atomic_load_explicit(&counting, memory_order_relaxed)) return;
    size_t i = atomic_fetch_add(&n_callers, 1);
    if (i < MOST_CALLERS) callers[i] = caller;
}
#define NOTE note(__builtin_return_address(0))

/* The loader finds these before the C library's functions. */
#pragma GCC visibility push(default)
void *malloc(size_t n) { return NOTE, __libc_malloc(n); }
void *calloc(size_t count, size_t size) { return NOTE, __libc_calloc(count, size); }
void *realloc(void *p, size_t n) { return NOTE, __libc_realloc(p, n); }
void *memalign(size_t alignment, size_t n) { return NOTE, __libc_memalign(alignment, n); }
void *aligned_alloc(size_t alignment, size_t n) { return NOTE, __libc_memalign(alignment, n); }
void free(void *p)
{
    if (p) NOTE;
    __libc_free(p);
}
#pragma GCC visibility pop
#endif

/* OpenBLAS's AVX-512 kernels for small products take a buffer from malloc in each call, and give it
 * back (sgemm_small_kernel_nn_skylakex.c); no caller can prevent that. */
static bool is_openblas(const void *caller)
{
    Dl_info of;
    return dladdr(caller, &of) && of.dli_fname && strstr(of.dli_fname, "/libopenblas");
}

/* Heap calls of the noted ones that are not OpenBLAS's; the first of them is printed. */
static size_t calls_of_ours(void)
{
    size_t n = 0, all = atomic_load(&n_callers);
    assert_true(all <= MOST_CALLERS);
    for (size_t i = 0; i < all; i++) {
        Dl_info of = {0};
        if (is_openblas(callers[i])) continue;
        if (!n++ && dladdr(callers[i], &of))
            print_error("a heap call from %s, %s\n", of.dli_fname ? of.dli_fname : "?",
                        of.dli_sname ? of.dli_sname : "?");
    }
    return n;
}

static void one_step(trainer *t, mt_ledger *ledger)
{
    double loss;
    if (ledger) mtt_ok(mt_ledger_begin(ledger));
    mtt_ok(trainer_step(t, &loss));
    if (!ledger) return;
    mtt_ok(mt_ledger_end(ledger));
    assert_true(mt_ledger_bytes(ledger) > 0);
    mtt_ok(mt_ledger_reset(ledger));
}

static size_t calls_in_steady_steps(mt_dtype dtype, int threads, bool recorded)
{
    trainer t;
    mt_model_config c = {.kind = MT_MODEL_GPT,
                         .dtype = dtype,
                         .layers = 2,
                         .hidden = 64,
                         .heads = 4,
                         .vocab = 256,
                         .context = 32,
                         .dropout = 0.1};
    assert_true(trainer_open(&t, &c, 5));
    mtt_ok(mt_device_set_threads(t.device, threads));
    mt_ledger *ledger = recorded ? mt_ledger_new(t.device) : NULL;
    assert_true(ledger || !recorded);
    for (int i = 0; i < 2; i++) one_step(&t, ledger);
    atomic_store(&n_callers, 0);
    atomic_store(&counting, true);
    for (int i = 0; i < 3; i++) one_step(&t, ledger);
    atomic_store(&counting, false);
    size_t n = calls_of_ours();
    mt_ledger_free(ledger);
    trainer_close(&t);
    mt_device_release(t.device);
    return n;
}

static void a_steady_step_makes_no_heap_call(void **state)
{
    (void)state;
    if (!COUNTS) skip();
    for (int recorded = 0; recorded < 2; recorded++)
        for (int threads = 1; threads < 3; threads++) {
            assert_int_equal(calls_in_steady_steps(MT_F32, threads, recorded), 0);
            assert_int_equal(calls_in_steady_steps(MT_BF16, threads, recorded), 0);
        }
}

/* Shows that the count counts: a new ledger has to ask for its memory. */
static void a_heap_call_is_counted(void **state)
{
    (void)state;
    if (!COUNTS) skip();
    mt_device *device = mtt_device();
    atomic_store(&n_callers, 0);
    atomic_store(&counting, true);
    mt_ledger *ledger = mt_ledger_new(device);
    mt_ledger_free(ledger);
    atomic_store(&counting, false);
    assert_non_null(ledger);
    assert_true(atomic_load(&n_callers) >= 4);
    mt_device_release(device);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(a_steady_step_makes_no_heap_call),
                                       cmocka_unit_test(a_heap_call_is_counted)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* What oneDNN asks of the system for its copies of a product's operands may be refused: the product
 * then fails, and the next one does not. */
#include <dlfcn.h>
#include <errno.h>
#include <stdatomic.h>
#include "backends/cpu/products/gemm.h"
#include "mtt_engine.h"

void *__libc_memalign(size_t alignment, size_t n);

static atomic_bool refusing;
static atomic_int n_refused;

static bool is_onednn(const void *caller)
{
    Dl_info of;
    return dladdr(caller, &of) && of.dli_fname && strstr(of.dli_fname, "/libdnnl");
}

/* The loader finds it before the C library's. */
#pragma GCC visibility push(default)
int posix_memalign(void **p, size_t alignment, size_t n)
{
    if (atomic_load(&refusing) && is_onednn(__builtin_return_address(0))) {
        atomic_fetch_add(&n_refused, 1);
        return ENOMEM;
    }
    *p = __libc_memalign(alignment, n);
    return *p ? 0 : ENOMEM;
}
#pragma GCC visibility pop

static void refused_memory_fails_a_product(mt_dtype dtype)
{
    mt_device *device = mt_device_open("cpu");
    mt_tensor *x = mt_normal(device, dtype, MT_SHAPE(400, 300), 0, 1);
    mt_tensor *w = mt_normal(device, dtype, MT_SHAPE(300, 200), 0, 1);
    mt_tensor *before = mt_matmul(x, w);
    assert_non_null(before);
    for (int threads = 1; threads < 3; threads++) {
        mtt_ok(mt_device_set_threads(device, threads));
        atomic_store(&n_refused, 0);
        atomic_store(&refusing, true);
        mt_tensor *none = mt_matmul(x, w);
        atomic_store(&refusing, false);
        assert_true(atomic_load(&n_refused) > 0);
        assert_null(none);
        mtt_failed(MT_ERR_MEMORY, "cpu out of memory: oneDNN", "[400,300] and [300,200]");
        mt_tensor *after = mt_matmul(x, w);
        assert_true(mtt_same_bits(before, after));
        mt_release(after);
    }
    mt_release(before);
    mt_release(w);
    mt_release(x);
    mt_device_release(device);
}

static void a_refused_copy_fails_the_product_alone(void **state)
{
    (void)state;
    if (mti_gemm_choose(MT_F32, MTI_GEMM_NN, 400, 200, 300).library != MTI_ONEDNN) skip();
    refused_memory_fails_a_product(MT_F32);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(a_refused_copy_fails_the_product_alone)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

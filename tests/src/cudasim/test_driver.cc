/* The double of the driver's virtual memory: it refuses what the driver does. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include "backends/cuda/device/driver.h"
#include "cudasim/memory.h"
extern "C" {
#include <cmocka.h>
}

static constexpr size_t granule = (size_t)2 << 20;
static cu_functions call;
static const cu_kind kind = {CU_PINNED, 0, {CU_ON_DEVICE, 0}, nullptr, {0}};
static const cu_access access_of = {{CU_ON_DEVICE, 0}, CU_READ_WRITE};

static int load(void **)
{
#define LOAD(member, name, parameters)                                                             \
    {                                                                                              \
        void *found = cudasim_driver(#name);                                                       \
        assert_non_null(found);                                                                    \
        memcpy(&call.member, &found, sizeof found);                                                \
    }
    CU_FUNCTIONS(LOAD)
#undef LOAD
    assert_null(cudasim_driver("cuMemNothing"));
    return 0;
}

static void mapped_memory_lives_without_its_handle_and_goes_as_it_came(void **)
{
    cu_address at;
    cu_memory a, b;
    assert_int_equal(call.reserve(&at, 4 * granule, 0, 0, 0), CU_OK);
    assert_int_equal(call.create(&a, granule, &kind, 0), CU_OK);
    assert_int_equal(call.create(&b, granule, &kind, 0), CU_OK);
    assert_int_equal(call.map(at, granule, 0, a, 0), CU_OK);
    assert_int_equal(call.map(at + granule, granule, 0, b, 0), CU_OK);
    assert_int_equal(call.drop(a), CU_OK);
    assert_int_equal(call.drop(b), CU_OK);
    assert_int_equal(call.set_access(at, 2 * granule, &access_of, 1), CU_OK);
    {
        cudasim::access open;
        unsigned char *p = (unsigned char *)at;
        assert_int_equal(p[0] & p[2 * granule - 1], 0xff); /* it is not cleared */
        p[0] = 1;
    }
    assert_int_not_equal(call.unmap(at, 2 * granule), CU_OK); /* two mappings */
    assert_int_not_equal(call.release(at, 4 * granule), CU_OK);
    assert_int_equal(call.unmap(at, granule), CU_OK);
    assert_int_not_equal(call.unmap(at, granule), CU_OK);
    assert_int_equal(call.unmap(at + granule, granule), CU_OK);
    assert_int_equal(call.release(at, 4 * granule), CU_OK);
}

static void what_does_not_fit_is_refused(void **)
{
    cu_address at;
    cu_memory a, all;
    assert_int_not_equal(call.reserve(&at, granule / 2, 0, 0, 0), CU_OK);
    assert_int_not_equal(call.create(&a, granule + 1, &kind, 0), CU_OK);
    assert_int_equal(call.reserve(&at, 2 * granule, 0, 0, 0), CU_OK);
    assert_int_equal(call.create(&a, granule, &kind, 0), CU_OK);
    assert_int_not_equal(call.map(at, 2 * granule, 0, a, 0), CU_OK); /* larger than the memory */
    assert_int_not_equal(call.map(at + granule / 2, granule, 0, a, 0), CU_OK);
    assert_int_not_equal(call.map(at + 2 * granule, granule, 0, a, 0), CU_OK); /* beyond its end */
    assert_int_equal(call.map(at, granule, 0, a, 0), CU_OK);
    assert_int_not_equal(call.map(at, granule, 0, a, 0), CU_OK); /* twice at one place */
    assert_int_not_equal(call.set_access(at, 2 * granule, &access_of, 1), CU_OK);
    assert_int_not_equal(call.create(&all, (size_t)4 << 30, &kind, 0), CU_OK); /* 4 GiB in all */
    assert_int_equal(call.drop(a), CU_OK);
    assert_int_not_equal(call.drop(a), CU_OK);
    assert_int_equal(call.unmap(at, granule), CU_OK);
    assert_int_equal(call.create(&all, (size_t)4 << 30, &kind, 0), CU_OK);
    assert_int_equal(call.drop(all), CU_OK);
    assert_int_equal(call.release(at, 2 * granule), CU_OK);
}

int main()
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(mapped_memory_lives_without_its_handle_and_goes_as_it_came),
        cmocka_unit_test(what_does_not_fit_is_refused),
    };
    return cmocka_run_group_tests(tests, load, NULL);
}

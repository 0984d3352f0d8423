/* The table's defaults for kernels that a backend does not have. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>
#include "backends/reference.h"

static void a_missing_kernel_is_refused_by_name(void **state)
{
    (void)state;
    assert_false(mti_missing_rope(NULL, NULL, 0, false, NULL, NULL));
    assert_int_equal(mt_last_status(), MT_ERR_UNSUPPORTED);
    assert_non_null(strstr(mt_last_error(), "\"rope\""));
    assert_int_equal(mti_missing_sum_scratch(NULL, NULL, NULL), 0);
    mt_clear_error();
}

static void a_default_kernel_computes_what_the_cpu_does(void **state)
{
    (void)state;
    float x[5] = {-2, -1, 0, 1, 2}, y[5], want[5];
    mti_view in = {.data = x, .dtype = MT_F32, .rank = 1, .shape = {5}, .stride = {1}};
    mti_view out = in, expected = in;
    out.data = y, expected.data = want;
    mti_ctx *cpu = mti_cpu_backend.open();
    assert_non_null(cpu);
    assert_true(mti_cpu_backend.log_softmax(cpu, &in, &expected));
    assert_true(mti_reference_log_softmax(NULL, &in, &out));
    assert_memory_equal(y, want, sizeof y);
    mti_cpu_backend.close(cpu);
}

/* naive.c's table: its own dozen kernels, and defaults for the rest. */
static void a_backend_of_a_dozen_kernels_has_the_whole_table(void **state)
{
    (void)state;
    const mti_backend *naive = mti_backend_find("naive");
    assert_non_null(naive);
    int n = 0;
#define KERNEL(name, parameters, arguments)  assert_non_null(naive->name), n++;
#define SCRATCH(name, parameters, arguments) assert_non_null(naive->name), n++;
#include "backends/kernels.def"
    print_message("%d kernels\n", n);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_missing_kernel_is_refused_by_name),
        cmocka_unit_test(a_default_kernel_computes_what_the_cpu_does),
        cmocka_unit_test(a_backend_of_a_dozen_kernels_has_the_whole_table),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

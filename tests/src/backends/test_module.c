/* Backends in modules: the errors for a missing module and for a file that is not one. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>
#include "backends/backend.h"

static void refused(const char *kind, const char *word)
{
    assert_null(mti_backend_find(kind));
    assert_int_equal(mt_last_status(), MT_ERR_UNSUPPORTED);
    if (!strstr(mt_last_error(), word)) fail_msg("\"%s\" lacks \"%s\"", mt_last_error(), word);
    mt_clear_error();
}

static void an_unknown_kind_is_refused_with_the_known_ones(void **state)
{
    (void)state;
    refused("abacus", "libmemtape-abacus.so");
    refused("abacus", "not built in (those are: cpu, meta)");
    refused("", "not built in");
    assert_null(mti_backend_find(NULL));
    assert_int_equal(mt_last_status(), MT_ERR_ARGUMENT);
    assert_non_null(strstr(mt_last_error(), "the kind is NULL"));
    mt_clear_error();
}

static void a_kind_is_never_a_path(void **state)
{
    (void)state;
    refused("../cpu", "libmemtape-KIND.so");
    refused("a/b", "libmemtape-KIND.so");
    refused("an-overlong-name", "libmemtape-KIND.so");
    refused("anoverlongnamethatnobodywouldgivetoadevice", "libmemtape-KIND.so");
}

static void a_file_that_is_not_a_module_is_refused(void **state)
{
    (void)state;
    setenv("MEMTAPE_ABSENT_MODULE", "/nonexistent/file.so", 1);
    refused("absent", "/nonexistent/file.so");
    setenv("MEMTAPE_TEXT_MODULE", "/etc/passwd", 1);
    refused("text", "/etc/passwd");
    setenv("MEMTAPE_MATHS_MODULE", "libm.so.6", 1); /* a library, but not one of ours */
    refused("maths", "was not built for this version");
}

static void cuda_opens_or_says_what_is_missing(void **state)
{
    (void)state;
    const mti_backend *cuda = mti_backend_find("cuda");
    mti_ctx *ctx = cuda ? cuda->open() : NULL;
    if (ctx) {
        assert_true(cuda->sync(ctx));
        assert_true(cuda->room(ctx) > 0 && cuda->room(ctx) < SIZE_MAX);
        cuda->close(ctx);
        return;
    }
    assert_int_equal(mt_last_status(), MT_ERR_UNSUPPORTED);
    assert_non_null(strstr(mt_last_error(), "device \"cuda\": "));
    print_message("%s\n", mt_last_error());
    mt_clear_error();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_unknown_kind_is_refused_with_the_known_ones),
        cmocka_unit_test(a_kind_is_never_a_path),
        cmocka_unit_test(a_file_that_is_not_a_module_is_refused),
        cmocka_unit_test(cuda_opens_or_says_what_is_missing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

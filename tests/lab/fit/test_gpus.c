/* The table of GPUs, and files that extend it. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "memtape/lab/fit.h"
#include "mtt.h"

static char path[] = "/tmp/memtape-gpus-XXXXXX";

static void write_file(const char *text)
{
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fputs(text, f);
    assert_int_equal(fclose(f), 0);
}

static void every_known_gpu_is_found_and_complete(void **state)
{
    (void)state;
    size_t n = 0;
    for (const mt_gpu *g; (g = mt_gpu_at(n)); n++) {
        mt_gpu found;
        mtt_ok(mt_gpu_find(g->name, &found));
        assert_memory_equal(&found, g, sizeof found);
        assert_true(g->memory && g->flops > 0 && g->bandwidth > 0 && g->link > 0 &&
                    g->network > 0 && g->host > 0 && g->in_a_node && g->host_memory && *g->source);
    }
    assert_int_equal(n, 42);
}

static void an_unknown_gpu_is_refused_with_a_suggestion(void **state)
{
    mt_gpu g;
    (void)state;
    assert_int_equal(mt_gpu_find("h101", &g), MT_ERR_ARGUMENT);
    assert_non_null(strstr(mt_last_error(), "did you mean h100?"));
    assert_int_equal(mt_gpu_find(NULL, &g), MT_ERR_ARGUMENT);
    assert_int_equal(mt_gpu_find("h100", NULL), MT_ERR_ARGUMENT);
    mt_clear_error();
}

static void a_file_overrides_fields_and_adds_gpus(void **state)
{
    mt_gpu g, h100;
    (void)state;
    mtt_ok(mt_gpu_find("h100", &h100));
    write_file("{\"h100\": {\"memory\": \"94GiB\", \"bandwidth\": 3.9e12},"
               " \"mine\": {\"memory\": 1000, \"flops\": 1, \"bandwidth\": 2, \"link\": 3,"
               " \"network\": 4, \"host\": 5, \"in_a_node\": 6, \"source\": \"a page\","
               " \"host_memory\": \"1GiB\", \"f16_only\": true}}");
    mtt_ok(mt_gpu_find_in(path, "h100", &g));
    assert_int_equal(g.memory, (size_t)94 << 30);
    assert_true(g.bandwidth == 3.9e12 && g.flops == h100.flops && g.link == h100.link);
    mtt_ok(mt_gpu_find_in(path, "mine", &g));
    assert_true(g.memory == 1000 && g.flops == 1 && g.bandwidth == 2 && g.link == 3 &&
                g.network == 4 && g.host == 5 && g.in_a_node == 6);
    assert_string_equal(g.source, "a page");
    assert_true(g.host_memory == (size_t)1 << 30 && g.f16_only);
    mtt_ok(mt_gpu_find_in(path, "h200", &g)); /* not in the file */
    assert_string_equal(g.name, "h200");
}

static void bad_files_are_refused(void **state)
{
    static const char *const bad[][2] = {
        {"", "not JSON"},
        {"[1]", "not an object of GPUs"},
        {"{\"mine\": 1}", "not an object"},
        {"{\"mine\": {\"memory\": 5}}", "in_a_node"},
        {"{\"mine\": {\"memory\": 5, \"in_a_node\": 8}}", "flops"},
        {"{\"mine\": {\"memory\": 0}}", "bytes above 0"},
        {"{\"mine\": {\"memory\": -5}}", "bytes above 0"},
        {"{\"mine\": {\"memory\": \"lots\"}}", "bytes above 0"},
        {"{\"mine\": {\"flops\": 0}}", "a number above 0"},
        {"{\"mine\": {\"flops\": \"1e15\"}}", "a number above 0"},
        {"{\"mine\": {\"in_a_node\": 0}}", "whole number"},
        {"{\"mine\": {\"in_a_node\": 1.5}}", "whole number"},
        {"{\"mine\": {\"source\": 1}}", "a string"},
        {"{\"mine\": {\"host_memory\": \"much\"}}", "\"host_memory\" is not bytes above 0"},
        {"{\"mine\": {\"f16_only\": 1}}", "true or false"},
        {"{\"mine\": {\"flop\": 1}}", "unknown \"flop\""},
        {"{\"mine\": {}, \"mine\": {}}", "not JSON"},
        {"{\"other\": {}}", "unknown \"mine\""},
    };
    mt_gpu g;
    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        write_file(bad[i][0]);
        assert_int_not_equal(mt_gpu_find_in(path, "mine", &g), MT_OK);
        if (!strstr(mt_last_error(), bad[i][1])) fail_msg("%s: %s", bad[i][0], mt_last_error());
        mt_clear_error();
    }
    assert_int_equal(mt_gpu_find_in("/nowhere/gpus", "mine", &g), MT_ERR_IO);
    mt_clear_error();
}

static int make_file(void **state)
{
    int fd = mkstemp(path);
    (void)state;
    return fd < 0 ? -1 : close(fd);
}

static int remove_file(void **state)
{
    (void)state;
    return unlink(path);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_known_gpu_is_found_and_complete),
        cmocka_unit_test(an_unknown_gpu_is_refused_with_a_suggestion),
        cmocka_unit_test(a_file_overrides_fields_and_adds_gpus),
        cmocka_unit_test(bad_files_are_refused),
    };
    return cmocka_run_group_tests(tests, make_file, remove_file);
}

/* A report's events as PyTorch's snapshot: what is refused, where memory runs out, and every
 * allocation failing. Its content: tests/python/test_torch_report.py. */
#include <string.h>
#include <unistd.h>
#include "files/files.h"
#include "memtape/report.h"
#include "mtt.h"
#include "files/json_text.h"

/* Two blocks of 3 MiB, of which one has a stream of its own. */
static const char report[] =
    "{\"schema\": \"memtape.profile/1\", \"steady\": {\"event\": 0}, \"timeline\": ["
    "{\"kind\": \"alloc\", \"storage\": 1, \"bytes\": 3145728, \"op\": \"a\"},"
    "{\"kind\": \"alloc\", \"storage\": 2, \"bytes\": 3145728, \"op\": \"b\", \"stream\": \"x\"},"
    "{\"kind\": \"free\", \"storage\": 1, \"bytes\": 3145728}]}";

static void write_text(const char *path, const char *text)
{
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    assert_true(fputs(text, f) >= 0);
    assert_int_equal(fclose(f), 0);
}

/* How often the snapshot at `path` has the text; it is removed. */
static int times_in(const char *path, const char *text)
{
    size_t n;
    char *content = mti_file_read(path, 1 << 20, &n);
    assert_non_null(content);
    int times = 0;
    for (size_t i = 0; i + strlen(text) <= n; i++)
        times += !memcmp(content + i, text, strlen(text));
    mti_free(content);
    unlink(path);
    return times;
}

static void a_capacity_ends_it_where_memory_runs_out(void **state)
{
    (void)state;
    char from[MTT_PATH], to[MTT_PATH];
    mtt_temporary_file(from);
    mtt_temporary_file(to);
    write_text(from, report);
    static const struct {
        size_t capacity;
        int ooms;
    } runs[] = {{0, 0}, {40u << 20, 0}, {39u << 20, 1}, {1, 1}};
    for (size_t i = 0; i < sizeof runs / sizeof *runs; i++) {
        mtt_ok(mt_report_write_snapshot(from, runs[i].capacity, to));
        if (times_in(to, "oom") != runs[i].ooms) fail_msg("capacity %zu", runs[i].capacity);
    }
    unlink(from);
}

static void what_is_no_report_is_refused_and_leaves_no_file(void **state)
{
    (void)state;
    char from[MTT_PATH], to[MTT_PATH];
    mtt_temporary_file(from);
    mtt_temporary_file(to);
    unlink(to);
    write_text(from, "{\"schema\": \"memtape.profile/1\"}");
    mtt_failed(mt_report_write_snapshot(from, 0, to), "lists no events of a training step");
    write_text(from, "[");
    mtt_failed(mt_report_write_snapshot(from, 0, to), "line 1");
    unlink(from);
    mtt_failed(mt_report_write_snapshot(from, 0, to), from);
    mtt_failed(mt_report_write_snapshot(NULL, 0, to), "report is NULL");
    mtt_failed(mt_report_write_snapshot(from, 0, NULL), "path is NULL");
    assert_int_equal(access(to, F_OK), -1);
}

static void each_allocation_may_fail(void **state)
{
    (void)state;
    char from[MTT_PATH], to[MTT_PATH];
    mtt_temporary_file(from);
    mtt_temporary_file(to);
    unlink(to);
    write_text(from, report);
    uint64_t n = 0;
    for (mt_status status = MT_ERR_MEMORY; status != MT_OK;) {
        mti_fail_nth_alloc(++n);
        status = mt_report_write_snapshot(from, 1u << 30, to);
        mti_fail_nth_alloc(0);
        if (status == MT_OK) break;
        if (status != MT_ERR_MEMORY) fail_msg("allocation %d: %s", (int)n, mt_last_error());
        assert_int_equal(access(to, F_OK), -1);
    }
    assert_true(n > 10);
    assert_int_equal(times_in(to, "oom"), 0);
    unlink(from);
}

int main(void)
{
    json_set_alloc_funcs(mti_json_malloc, mti_free);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_capacity_ends_it_where_memory_runs_out),
        cmocka_unit_test(what_is_no_report_is_refused_and_leaves_no_file),
        cmocka_unit_test(each_allocation_may_fail),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* A page of a report as JSON text: what is refused, what lies in it, and every allocation failing.
 */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "files/files.h"
#include "memtape/report.h"
#include "mtt.h"
#include "files/json_text.h"

static const char report[] =
    "{\"schema\": \"memtape.profile/1\", \"device\": \"<b>\", \"saved\": [1]}";

static char *page_of(const char *title)
{
    char path[MTT_PATH];
    size_t n;
    mtt_temporary_file(path);
    mtt_ok(mt_report_write_html(title, report, path));
    char *text = mti_file_read(path, 1 << 20, &n);
    unlink(path);
    assert_non_null(text);
    return text;
}

static void the_page_holds_the_report_and_its_title(void **state)
{
    (void)state;
    char *page = page_of("a <b>");
    assert_non_null(strstr(page, "<title>a &lt;b&gt;</title>"));
    assert_non_null(strstr(page, "\"device\": \"\\u003cb>\""));
    mti_free(page);
}

static void what_is_no_report_is_refused_and_leaves_no_file(void **state)
{
    (void)state;
    static const struct {
        const char *text, *said;
    } bad[] = {
        {"", "line 1"},
        {"{\"schema\": 1,", "line 1"},
        {"[]", "schema is missing"},
        {"{\"schema\": 1}", "schema is missing"},
        {"{\"schema\": \"memtape.fit/1\"}", "schema memtape.fit/1; accepted: memtape.profile/1"},
        {"{\"schema\": \"memtape.ranks/1\"}", "schema memtape.ranks/1"},
        {"{\"schema\": \"memtape.plan/1\", \"schema\": \"memtape.plan/1\"}", "duplicate"}};
    char path[MTT_PATH];
    mtt_temporary_file(path);
    unlink(path);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        mt_status status = mt_report_write_html("x", bad[i].text, path);
        mtt_failed(status, bad[i].said);
        assert_int_equal(status, MT_ERR_FORMAT);
        assert_int_equal(access(path, F_OK), -1);
    }
    mtt_failed(mt_report_write_html("x", report, "/no/such/folder"), "/no/such/folder");
}

static void each_allocation_may_fail(void **state)
{
    (void)state;
    char path[MTT_PATH];
    char *expected = page_of("x");
    mtt_temporary_file(path);
    unlink(path);
    uint64_t n = 0;
    for (mt_status status = MT_ERR_MEMORY; status != MT_OK;) {
        mti_fail_nth_alloc(++n);
        status = mt_report_write_html("x", report, path);
        mti_fail_nth_alloc(0);
        if (status == MT_OK) break;
        if (status != MT_ERR_MEMORY) fail_msg("allocation %d: %s", (int)n, mt_last_error());
        assert_int_equal(access(path, F_OK), -1);
    }
    assert_true(n > 10);
    size_t length;
    char *text = mti_file_read(path, 1 << 20, &length);
    unlink(path);
    assert_string_equal(text, expected);
    mti_free(text);
    mti_free(expected);
}

int main(void)
{
    json_set_alloc_funcs(mti_json_malloc, mti_free);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_page_holds_the_report_and_its_title),
        cmocka_unit_test(what_is_no_report_is_refused_and_leaves_no_file),
        cmocka_unit_test(each_allocation_may_fail),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* html_json.c: the page of a report that exists as JSON text, by this program or by another one. */
#include <string.h>
#include "memtape/report.h"
#include "report/page.h"

/* Whether page/main.js has a page for it. */
static bool has_page(const char *schema)
{
    static const char *const schemas[] = {"memtape.profile/1", "memtape.sweep/1", "memtape.ranks/1",
                                          "memtape.plan/1"};
    for (size_t i = 0; i < sizeof schemas / sizeof *schemas; i++)
        if (!strcmp(schema, schemas[i])) return true;
    return false;
}

static json_t *read_report(const char *text)
{
    json_error_t error;
    uint64_t failures = mti_failures(); /* the parser may run out of memory */
    json_t *report = mti_json_read(text, strlen(text), &error);
    if (!report) {
        mti_fail_around(failures, MT_ERR_FORMAT, "report_write_html: line %d, column %d: %s",
                        error.line, error.column, error.text);
        return NULL;
    }
    /* The parser leaves a character out where its buffer cannot grow, and goes on. */
    if (mti_failed_since(failures)) {
        json_decref(report);
        return NULL;
    }
    const char *schema = json_string_value(json_object_get(report, "schema"));
    if (schema && has_page(schema)) return report;
    mti_fail(MT_ERR_FORMAT,
             "report_write_html: schema %s; accepted: memtape.profile/1, memtape.sweep/1, "
             "memtape.ranks/1, memtape.plan/1",
             schema ? schema : "is missing");
    json_decref(report);
    return NULL;
}

mt_status mt_report_write_html(const char *title, const char *report, const char *path)
{
    if (!title || !report || !path)
        return mti_fail(MT_ERR_ARGUMENT, "report_write_html: the %s is NULL",
                        !title    ? "title"
                        : !report ? "report"
                                  : "path");
    json_t *read = read_report(report);
    return read ? mti_html_write(title, read, json_null(), path) : mt_last_status();
}

/* html.c: the page with its title and its data filled in, of a result or of a report as JSON text.
 */
#include <string.h>
#include "report/page.h"
#include "report/pictures.h"
#include "memtape/report.h"

/* Within a script element `<` could end it. */
static void put_json(FILE *out, const char *text) { mti_json_print(out, text, "<"); }

static void put_part(FILE *out, mti_page_part part)
{
    fwrite(mti_page[part].at, 1, mti_page[part].n, out);
}

static void put_page(FILE *out, const char *title, const char *report, const char *more)
{
    put_part(out, MTI_PAGE_TO_TITLE);
    mti_put_markup(out, title);
    put_part(out, MTI_PAGE_TO_REPORT);
    put_json(out, report);
    put_part(out, MTI_PAGE_TO_MORE);
    put_json(out, more);
    put_part(out, MTI_PAGE_TO_END);
}

mt_status mti_html_write(const char *title, json_t *report, json_t *more, const char *path)
{
    char *report_text = mti_json_complete(report, JSON_INDENT(2)),
         *more_text = mti_json_complete(more, JSON_COMPACT | JSON_ENCODE_ANY);
    json_decref(report);
    json_decref(more);
    mti_file *file = report_text && more_text ? mti_file_create(path) : NULL;
    FILE *out = file ? mti_file_stream(file) : NULL;
    if (out) put_page(out, title, report_text, more_text);
    mti_free(report_text);
    mti_free(more_text);
    return mti_finish_file(file, out);
}

bool mti_write_object(mti_describe *describe, const void *object, const char *json,
                      const char *html, const char *what, const char *name)
{
    char title[128];
    json_t *j = json || html ? mti_json_of(describe, object) : NULL;
    snprintf(title, sizeof title, "%s %s", what, name);
    bool ok = (!json || mti_json_write(json_incref(j), json) == MT_OK) &&
              (!html || mti_html_write(title, json_incref(j), json_null(), html) == MT_OK);
    json_decref(j);
    return ok;
}

/* ---- of JSON text, by this program or by another one ---- */

/* Whether page/main.js has a page for it. */
static bool has_page(const char *schema)
{
    static const char *const schemas[] = {"memtape.profile/1", "memtape.sweep/1", "memtape.plan/1"};
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
             "memtape.plan/1",
             schema ? schema : "is missing");
    json_decref(report);
    return NULL;
}

json_t *mti_page_words(void)
{
    json_t *more = json_object(), *growth = json_array();
    mti_json_put_text(more, "schema", "memtape.page/1");
#define PART(member, sign, words, ...)                                                             \
    mti_json_push(growth, json_pack("[s,s,s]", #member, #sign, words));
#include "measure/growth.def"
#undef PART
    mti_json_put(more, "growth", growth);
    return more;
}

mt_status mt_report_write_html(const char *title, const char *report, const char *path)
{
    if (!title || !report || !path)
        return mti_fail(MT_ERR_ARGUMENT, "report_write_html: the %s is NULL",
                        !title    ? "title"
                        : !report ? "report"
                                  : "path");
    json_t *read = read_report(report);
    return read ? mti_html_write(title, read, mti_page_words(), path) : mt_last_status();
}

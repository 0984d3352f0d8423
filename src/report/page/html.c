/* html.c: the page with its title and its data filled in. */
#include "report/page.h"
#include "report/pictures.h"

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

/* page.h: a report as one HTML file that needs nothing beside it: the page (page/), and in it the
 * JSON that --json writes. docs/report.md describes it. */
#ifndef MTI_PAGE_H
#define MTI_PAGE_H

#include "measure/profile.h"
#include "report/json.h"

/* `report` is what --json writes; `more` is what the page shows beyond that, and may be null as
 * JSON. Both are taken over. Written whole or not at all. */
mt_status mti_html_write(const char *title, json_t *report, json_t *more, const char *path);

/* An object as JSON and as a page without `more`, each where there is a path; the page's title is
 * "sweep of" and "gpt2". */
bool mti_write_object(mti_describe *describe, const void *object, const char *json,
                      const char *html, const char *what, const char *name);

/* The words that a page has beside the keys of any result. */
json_t *mti_page_words(void);
/* The page of a profile: report is its object, or that of a step that ran out of memory. */
mt_status mti_html_write_profile(const mti_profile_result *p, const char *title, json_t *report,
                                 const char *path);

/* ---- the files of page/ as one text, made at build time by page/join.py, and cut where the title
 * and the data go ---- */

typedef enum mti_page_part {
    MTI_PAGE_TO_TITLE,
    MTI_PAGE_TO_REPORT,
    MTI_PAGE_TO_MORE,
    MTI_PAGE_TO_END,
    MTI_PAGE_PARTS
} mti_page_part;

typedef struct mti_page_text {
    const unsigned char *at; /* UTF-8, without a zero byte at its end */
    size_t n;
} mti_page_text;

extern const mti_page_text mti_page[MTI_PAGE_PARTS];

#endif

/* page.h: the files of page/ as one text, made at build time by page/join.py, and cut where the
 * title and the data go. */
#ifndef MTI_PAGE_H
#define MTI_PAGE_H

#include <stddef.h>

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

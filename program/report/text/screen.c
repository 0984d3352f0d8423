/* screen.c: the details of a report that fit on what its answer leaves of a screen. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include "report/terminal.h"

#define KEPT_FREE 1 /* lines: for the note at the end */

void mti_screen_begin(mti_screen *s, const mti_sheet *to, bool all)
{
    *s = (mti_screen){.to = to, .all = all, .left = to->height - KEPT_FREE};
}

const mti_sheet *mti_screen_open(mti_screen *s)
{
    s->text = NULL;
    s->section = *s->to;
    s->section.out = open_memstream(&s->text, &s->n);
    if (s->section.out) return &s->section;
    return mti_fail_null(MT_ERR_MEMORY, "report: no memory for its text: %s", strerror(errno));
}

/* Lines that the text takes; one that is wider than the screen goes on in the next. Colours take
 * no room. */
static int lines_of(const char *text, int width)
{
    int lines = 0, column = 0;
    const unsigned char *at = (const unsigned char *)text, *end = at + strlen(text);
    while (at < end) {
        size_t length = 1;
        if (*at == '\x1b') {
            length = strcspn((const char *)at, "m") + 1;
        } else if (*at == '\n') {
            lines += 1 + (column ? (column - 1) / width : 0);
            column = 0;
        } else {
            mti_next_char(at, end, &length);
            column++;
        }
        at += length < (size_t)(end - at) ? length : (size_t)(end - at);
    }
    return lines;
}

bool mti_screen_close(mti_screen *s, bool ok, bool needed)
{
    FILE *section = s->section.out;
    bool written = section && !ferror(section);
    bool closed = section && fclose(section) == 0;
    bool made = written && closed && s->text; /* NULL: no memory at the end */
    if (section && !made) mti_fail(MT_ERR_MEMORY, "report: no memory for its text");
    s->section.out = NULL;
    if (made && ok) {
        int lines = lines_of(s->text, s->to->width);
        bool shown = s->all || needed || lines <= s->left;
        if (shown) fwrite(s->text, 1, s->n, s->to->out);
        s->left -= shown ? lines : 0;
        s->less = s->less || !shown;
    }
    free(s->text); /* of open_memstream */
    s->text = NULL;
    return made && ok;
}

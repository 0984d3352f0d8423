/* names_in_text.c: names in the text of an expression, and places in it. */
#include <ctype.h>
#include <string.h>
#include "expression/expression.h"

size_t mti_name_length(const char *text)
{
    size_t n = 0;
    if (isdigit((unsigned char)*text)) return 0;
    while (text[n] == '_' || isalnum((unsigned char)text[n])) n++;
    return n;
}

#define SHOWN 72 /* characters of the text, around the place */

bool mti_point_at(const char *option, const char *text, size_t at, const char *fmt, ...)
{
    char message[800], shown[SHOWN + 1];
    va_list args;
    va_start(args, fmt);
    mti_vformat(message, sizeof message, fmt, args);
    va_end(args);
    size_t from = at > SHOWN * 2 / 3 ? at - SHOWN * 2 / 3 : 0;
    snprintf(shown, sizeof shown, "%s", text + from);
    for (char *c = shown; *c; c++) /* a column for each, so that the caret stands below its place */
        if (isspace((unsigned char)*c))
            *c = ' ';
        else if (!isprint((unsigned char)*c))
            *c = '?';
    return mti_fail_bool(MT_ERR_ARGUMENT, "--%s: %s\n  %s\n  %*s^", option, message, shown,
                         (int)(at - from), "");
}

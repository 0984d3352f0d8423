/* print.c: text that may quote files, names and options, without what a terminal would obey. */
#include <string.h>
#include "base/base.h"

/* Text without anything to hide goes out in one call, so that lines of several ranks stay whole. */
void mti_print_bytes(FILE *out, const void *bytes, size_t n_bytes)
{
    const unsigned char *s = bytes, *end = s + n_bytes, *written = s;
    while (s < end) {
        size_t length;
        uint32_t c = mti_next_char(s, end, &length);
        if (mti_is_control(c)) {
            fwrite(written, 1, (size_t)(s - written), out);
            fputc('?', out);
            written = s + length;
        }
        s += length;
    }
    fwrite(written, 1, (size_t)(end - written), out);
}

int mti_vprint(FILE *out, const char *fmt, va_list args)
{
    char most[4096], *text = most;
    va_list again;
    va_copy(again, args);
    int n = mti_vformat(most, sizeof most, fmt, again);
    va_end(again);
    if (n >= (int)sizeof most && (text = mti_malloc((size_t)n + 1)))
        mti_vformat(text, (size_t)n + 1, fmt, args);
    bool ok = n >= 0 && text;
    if (ok) mti_print_bytes(out, text, strlen(text));
    if (text != most) mti_free(text);
    return ok && !ferror(out) ? n : -1;
}

int mti_print(FILE *out, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    int n = mti_vprint(out, fmt, args);
    va_end(args);
    return n;
}

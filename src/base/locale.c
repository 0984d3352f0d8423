/* locale.c: numbers with a decimal point, whatever locale the user of the library has set
 * (tests/repository/printing.sh finds those that are written or read elsewhere). */
#include <locale.h>
#include <stdlib.h>
#include <string.h>
#include "base/base.h"
#ifdef __APPLE__
#include <xlocale.h>
#endif

/* The C library has one object for all of "C": nothing is allocated or to be freed. */
void *mti_point_begin(void) { return uselocale(newlocale(LC_ALL_MASK, "C", (locale_t)0)); }

void mti_point_end(void *before) { uselocale(before); }

int mti_vformat(char *buf, size_t n, const char *fmt, va_list args)
{
    void *before = mti_point_begin();
    int length = vsnprintf(buf, n, fmt, args);
    mti_point_end(before);
    return length;
}

int mti_format(char *buf, size_t n, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    int length = mti_vformat(buf, n, fmt, args);
    va_end(args);
    return length;
}

void mti_append(char *buf, size_t n, const char *fmt, ...)
{
    const size_t length = strlen(buf);
    va_list args;
    va_start(args, fmt);
    mti_vformat(buf + length, n - length, fmt, args);
    va_end(args);
}

double mti_strtod(const char *text, char **end)
{
    void *before = mti_point_begin();
    double value = strtod(text, end);
    mti_point_end(before);
    return value;
}

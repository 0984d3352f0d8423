/* locale.c: numbers with a decimal point, whatever locale the user of the library has set
 * (tests/repository/printing.sh finds those that are written or read elsewhere). */
#include <locale.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include "base/base.h"
#ifdef __APPLE__
#include <xlocale.h>
#endif

/* Kept, as macOS makes a new object each time. Two threads may make it at first. */
void *mti_point_begin(void)
{
    static _Atomic(locale_t) kept;
    if (!atomic_load(&kept)) atomic_store(&kept, newlocale(LC_ALL_MASK, "C", (locale_t)0));
    return uselocale(atomic_load(&kept));
}

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

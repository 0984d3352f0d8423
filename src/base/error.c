/* error.c: the first failure of each thread, and the names of what can go wrong. Texts quote files,
 * whose bytes a terminal must not obey. */
#include <stdarg.h>
#include <stdio.h>
#include "base/base.h"

#define ERROR_TEXT 1024 /* a longer message is cut */

static _Thread_local struct {
    mt_status status;
    char text[ERROR_TEXT];
} first;

static void record(mt_status status, const char *fmt, va_list args)
{
    if (first.status != MT_OK) return;
    first.status = status;
    vsnprintf(first.text, sizeof first.text, fmt, args);
    mti_make_printable(first.text);
}

mt_status mti_fail(mt_status status, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    record(status, fmt, args);
    va_end(args);
    return status;
}

bool mti_fail_bool(mt_status status, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    record(status, fmt, args);
    va_end(args);
    return false;
}

void *mti_fail_null(mt_status status, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    record(status, fmt, args);
    va_end(args);
    return NULL;
}

mt_status mt_last_status(void) { return first.status; }

const char *mt_last_error(void) { return first.text; }

void mt_clear_error(void)
{
    first.status = MT_OK;
    first.text[0] = '\0';
}

const char *mt_status_name(mt_status status)
{
    switch (status) {
    case MT_OK: return "ok";
    case MT_ERR_ARGUMENT: return "bad argument";
    case MT_ERR_MEMORY: return "out of memory";
    case MT_ERR_STATE: return "wrong state";
    case MT_ERR_IO: return "input/output error";
    case MT_ERR_FORMAT: return "bad format";
    case MT_ERR_UNSUPPORTED: return "not supported";
    case MT_ERR_INTERNAL: return "internal error";
    }
    return "unknown status";
}

/* error.c: the last failure of each thread, and the names of the statuses. Texts may quote
 * files, so control characters are replaced. */
#include <stdio.h>
#include <string.h>
#include "base/base.h"

static _Thread_local mti_error last;

static void record(mt_status status, const char *fmt, va_list args)
{
    char text[sizeof last.text]; /* the arguments may point into last.text */
    mti_vformat(text, sizeof text, fmt, args);
    mti_make_printable(text);
    memcpy(last.text, text, strlen(text) + 1);
    last.status = status;
    last.count++;
}

mt_status mti_fail(mt_status status, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    record(status, fmt, args);
    va_end(args);
    return status;
}

/* ---- failures within failures ---- */

uint64_t mti_failures(void) { return last.count; }

bool mti_failed_since(uint64_t failures) { return last.count != failures && last.status != MT_OK; }

mt_status mti_fail_around(uint64_t failures, mt_status status, const char *fmt, ...)
{
    if (mti_failed_since(failures)) return last.status;
    va_list args;
    va_start(args, fmt);
    record(status, fmt, args);
    va_end(args);
    return status;
}

bool mti_given(const void *object, const char *who, const char *what)
{
    if (!object && last.status == MT_OK) mti_fail(MT_ERR_ARGUMENT, "%s: %s is NULL", who, what);
    return object != NULL;
}

void mti_error_get(mti_error *e) { *e = last; }
void mti_error_set(const mti_error *e) { last = *e; }

/* ---- what callers ask ---- */

mt_status mt_last_status(void) { return last.status; }

const char *mt_last_error(void) { return last.text; }

void mt_clear_error(void)
{
    last.status = MT_OK;
    last.text[0] = '\0';
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

/* status.h: errors and how they are reported.
 *
 * Functions that make something return NULL on failure; the others return an mt_status. A failing
 * call sets this thread's status and text; a successful one leaves both as they are. Two rules make
 * the text name the cause:
 * - If a call fails because a call inside it failed (an op in a hook, a hook in mt_backward), the
 *   inner one's status and text stay.
 * - NULL in gives NULL out and keeps the text, because an earlier call failed to make the object.
 *   So a chain of calls is checked once, at its end, and the text names its first failure. A NULL
 *   is a separate error only if nothing has failed since the last clear.
 * Nothing in the library prints, exits or jumps. */
#ifndef MEMTAPE_STATUS_H
#define MEMTAPE_STATUS_H

/* Around the declarations of a header: C's, for C++, too. */
#ifdef __cplusplus
#define MT_C_BEGIN extern "C" {
#define MT_C_END   }
#else
#define MT_C_BEGIN
#define MT_C_END
#endif

#if defined(__GNUC__)
/* What the shared library exports. */
#define MT_API __attribute__((visibility("default")))
/* A function with a format like printf's. */
#define MT_PRINTF(fmt, args) __attribute__((format(printf, fmt, args)))
#else
#define MT_API
#define MT_PRINTF(fmt, args)
#endif

MT_C_BEGIN

/* Whether a call did what it was asked to, and if not, what kind of reason there is. */
typedef enum mt_status {
    MT_OK = 0,
    MT_ERR_ARGUMENT,    /* a bad argument: shape, dtype, range, NULL */
    MT_ERR_MEMORY,      /* host or device memory ran out */
    MT_ERR_STATE,       /* a wrong state: freed graph, changed saved tensor, closed file */
    MT_ERR_IO,          /* the operating system refused a file */
    MT_ERR_FORMAT,      /* a file or text that is damaged or has an unknown form */
    MT_ERR_UNSUPPORTED, /* this device or build cannot do it */
    MT_ERR_INTERNAL     /* the memory statistics do not add up: a bug in memtape */
} mt_status;

/* Status of this thread's last failure; MT_OK if there was none since the last clear. */
MT_API mt_status mt_last_status(void);
/* Its text ("rms_norm: in0 is [3,5], ..."); "" if none. Valid until the next
 * failure or clear. */
MT_API const char *mt_last_error(void);
MT_API void mt_clear_error(void); /* status MT_OK, text "" */
/* "ok", "bad argument", "out of memory", ... Never NULL. */
MT_API const char *mt_status_name(mt_status status);

MT_C_END
#endif

/* temporary.h: makes the temporary file beside a target, for file.c; removes those of dead
 * processes. */
#ifndef MTI_TEMPORARY_H
#define MTI_TEMPORARY_H

#include <sys/types.h>
#include "base/base.h"

/* Opens a new file "<target>.tmp-<boot>-<pid>-<i>" for writing and locks it until it is closed.
 * The caller mti_frees *name. On failure -1 and errno; if out of memory, *name is NULL and an error
 * is recorded. */
int mti_temporary_open(const char *target, mode_t mode, char **name);
/* Removes the files of dead processes in the target's folder; skips unreadable ones. */
void mti_temporary_clean(const char *target);

#endif

/* temporary.h: the temporary file beside a target, made for file.c; those of dead processes are
 * removed. */
#ifndef MTI_TEMPORARY_H
#define MTI_TEMPORARY_H

#include <sys/types.h>
#include "base/base.h"

/* Opens a new file "<target>.tmp-<boot>-<pid>-<i>" for writing and locks it until it is closed.
 * *name: the caller's to mti_free. -1 otherwise: errno, or an error of its own and *name NULL where
 * memory ran out. */
int mti_temporary_open(const char *target, mode_t mode, char **name);
/* Removes the files of dead processes in the target's folder; what cannot be looked at stays. */
void mti_temporary_clean(const char *target);

#endif

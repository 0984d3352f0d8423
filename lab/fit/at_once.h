/* at_once.h: several measurements at a time, each on its own devices. */
#ifndef MTI_FIT_AT_ONCE_H
#define MTI_FIT_AT_ONCE_H

#include "base/base.h"

/* Calls work(user) in this thread and in others, and waits for them: in `most` at once, 0 for one
 * a processor, but in no more than there are tasks. Threads that could not be started are not
 * needed, so `work` must take tasks until none is left. False if memory is refused. */
bool mti_work_at_once(int64_t tasks, int64_t most, void *(*work)(void *user), void *user);

#endif

/* at_once.h: several measurements at a time, each on its own devices. */
#ifndef MTI_FIT_AT_ONCE_H
#define MTI_FIT_AT_ONCE_H

#include "base/base.h"

/* n tasks, in as many threads as there are processors or, if `most` is not 0, in no more. */
typedef struct mti_tasks {
    size_t n;
    int64_t most;
    bool (*work)(void *user, size_t i); /* does task i; false, with an error, if it fails */
    /* Called after each that succeeds, by one thread at a time; n_done have ended. False: no more
     * are begun. May be NULL. */
    bool (*done)(void *user, size_t n_done, size_t i);
    void *user;
} mti_tasks;

/* Begins the tasks in their order, the calling thread among those that work, and waits for all.
 * After a failure no more are begun; the first one's error is the caller's. */
bool mti_work_at_once(const mti_tasks *tasks);

#endif

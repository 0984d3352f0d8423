/* at_once.c: threads that take tasks until none is left. */
#include <pthread.h>
#include <unistd.h>
#include "fit/at_once.h"

#define STACK ((size_t)4 << 20) /* whatever the limit on the main stack is */

/* Starts up to n threads; returns how many there are. */
static int64_t start(pthread_t *threads, int64_t n, void *(*work)(void *), void *user)
{
    pthread_attr_t attributes;
    int64_t started = 0;
    if (pthread_attr_init(&attributes) != 0) return 0;
    if (pthread_attr_setstacksize(&attributes, STACK) == 0)
        while (started < n && !pthread_create(&threads[started], &attributes, work, user))
            started++;
    pthread_attr_destroy(&attributes);
    return started;
}

bool mti_work_at_once(int64_t tasks, int64_t most, void *(*work)(void *user), void *user)
{
    if (most <= 0) most = sysconf(_SC_NPROCESSORS_ONLN);
    const int64_t others = (most < tasks ? most : tasks) - 1;
    pthread_t *threads = others > 0 ? mti_calloc((size_t)others, sizeof *threads) : NULL;
    if (others > 0 && !threads) return false;
    const int64_t started = start(threads, others, work, user);
    work(user);
    for (int64_t i = 0; i < started; i++) pthread_join(threads[i], NULL);
    mti_free(threads);
    return true;
}

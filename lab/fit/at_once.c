/* at_once.c: threads that take tasks until none is left. */
#include <pthread.h>
#include <unistd.h>
#include "fit/at_once.h"

#define STACK ((size_t)4 << 20) /* whatever the limit on the main stack is */

typedef struct pool {
    const mti_tasks *tasks;
    pthread_mutex_t lock; /* of all below, and of `done` */
    size_t next, n_done;
    bool stop, failed;
    mti_error error; /* the first failure, if `failed` */
} pool;

static bool take_next(pool *p, size_t *i)
{
    pthread_mutex_lock(&p->lock);
    bool any = !p->stop && p->next < p->tasks->n;
    if (any) *i = p->next++;
    pthread_mutex_unlock(&p->lock);
    return any;
}

static void end_one(pool *p, size_t i, bool ok)
{
    const mti_tasks *t = p->tasks;
    pthread_mutex_lock(&p->lock);
    p->n_done++;
    if (!ok && !p->failed) {
        p->failed = true;
        mti_error_get(&p->error);
    }
    if (!ok || (t->done && !t->done(t->user, p->n_done, i))) p->stop = true;
    pthread_mutex_unlock(&p->lock);
}

static void *work(void *pool_)
{
    pool *p = pool_;
    for (size_t i; take_next(p, &i);) end_one(p, i, p->tasks->work(p->tasks->user, i));
    return NULL;
}

/* Starts up to n threads; returns how many there are. Those that could not be started are not
 * needed. */
static int64_t start(pthread_t *threads, int64_t n, pool *p)
{
    pthread_attr_t attributes;
    int64_t started = 0;
    if (pthread_attr_init(&attributes) != 0) return 0;
    if (pthread_attr_setstacksize(&attributes, STACK) == 0)
        while (started < n && !pthread_create(&threads[started], &attributes, work, p)) started++;
    pthread_attr_destroy(&attributes);
    return started;
}

bool mti_work_at_once(const mti_tasks *tasks)
{
    pool p = {.tasks = tasks, .lock = PTHREAD_MUTEX_INITIALIZER};
    const int64_t n = (int64_t)tasks->n,
                  most = tasks->most > 0 ? tasks->most : sysconf(_SC_NPROCESSORS_ONLN),
                  others = (most < n ? most : n) - 1;
    pthread_t *threads = others > 0 ? mti_calloc((size_t)others, sizeof *threads) : NULL;
    if (others > 0 && !threads) return false;
    const int64_t started = start(threads, others, &p);
    work(&p);
    for (int64_t i = 0; i < started; i++) pthread_join(threads[i], NULL);
    mti_free(threads);
    pthread_mutex_destroy(&p.lock);
    if (p.failed) mti_error_set(&p.error);
    return !p.failed;
}

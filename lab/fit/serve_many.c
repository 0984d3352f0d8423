/* serve_many.c: the most sequences for several lengths and forms, several at a time. */
#include <pthread.h>
#include "fit/serve.h"
#include "fit/at_once.h"

typedef struct many {
    const mt_serve_options *options;
    size_t n, capacity;
    mt_serve_need *most;
    void (*done)(void *user, size_t n_done, size_t i);
    void *user;
    pthread_mutex_t lock; /* of all below, and of `done` */
    size_t next, n_done;
    bool failed;
    mti_error error; /* the first failure, if `failed` */
} many;

static bool take_next(many *m, size_t *i)
{
    pthread_mutex_lock(&m->lock);
    bool any = !m->failed && m->next < m->n;
    if (any) *i = m->next++;
    pthread_mutex_unlock(&m->lock);
    return any;
}

static void end_one(many *m, size_t i, bool ok)
{
    pthread_mutex_lock(&m->lock);
    m->n_done++;
    if (!ok && !m->failed) {
        m->failed = true;
        mti_error_get(&m->error);
    }
    if (ok && m->done) m->done(m->user, m->n_done, i);
    pthread_mutex_unlock(&m->lock);
}

static void *work(void *user)
{
    many *m = user;
    for (size_t i; take_next(m, &i);)
        end_one(m, i, mt_serve_most(&m->options[i], m->capacity, &m->most[i]) == MT_OK);
    return NULL;
}

/* Each of them may take gigabytes of host memory for the blocks of a paged cache. */
static int64_t most_threads(const mt_serve_options *options, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (options[i].cache == MT_KV_PAGED) return 1;
    return 0;
}

bool mti_serve_most_of_many(const mt_serve_options *options, size_t n, size_t capacity,
                            mt_serve_need *most, void (*done)(void *user, size_t n_done, size_t i),
                            void *user)
{
    many m = {.options = options,
              .n = n,
              .capacity = capacity,
              .most = most,
              .done = done,
              .user = user,
              .lock = PTHREAD_MUTEX_INITIALIZER};
    bool ok = mti_work_at_once((int64_t)n, most_threads(options, n), work, &m);
    pthread_mutex_destroy(&m.lock);
    if (m.failed) mti_error_set(&m.error);
    return ok && !m.failed;
}

/* stream.c: the streams of a pool, and the scopes of threads that request in them. */
#include <string.h>
#include "memtrack/pool.h"

static _Thread_local mt_stream_scope *innermost; /* of this thread; NULL: there is none */

mti_stream *mti_stream_of_scope(mti_pool *pool)
{
    const mt_stream_scope *s = innermost;
    while (s && s->pool != pool) s = s->outer;
    return pool->streams[s ? s->stream : 0];
}

/* The number of the stream of that name, which is made if there is none; -1 on failure. */
static int find_locked(mti_pool *pool, const char *name)
{
    int n = 0;
    while (n < pool->n_streams && strcmp(pool->streams[n]->name, name) != 0) n++;
    if (n < pool->n_streams) return n;
    if (n == MT_MAX_STREAMS)
        return mti_fail(
                   MT_ERR_ARGUMENT,
                   "mem_stream_begin: \"%s\" would be stream %d of this device; need at most %d",
                   name, n + 1, MT_MAX_STREAMS),
               -1;
    const char *interned = mti_intern(name);
    mti_stream *stream = interned ? mti_calloc(1, sizeof *stream) : NULL;
    if (!stream) return -1;
    stream->name = interned;
    stream->number = n;
    pool->streams[n] = stream;
    return pool->n_streams++;
}

bool mti_pool_stream_begin(mti_pool *pool, mt_stream_scope *scope, const char *name)
{
    pthread_mutex_lock(&pool->lock);
    int n = find_locked(pool, name);
    pthread_mutex_unlock(&pool->lock);
    if (n < 0) return false;
    *scope = (mt_stream_scope){pool, n, innermost};
    innermost = scope;
    return true;
}

void mti_stream_end(mt_stream_scope *scope)
{
    mt_stream_scope **at = &innermost;
    while (*at && *at != scope) at = &(*at)->outer;
    if (*at) *at = scope->outer;
}

int mti_pool_get_streams(mti_pool *pool, mt_stream_stats out[MT_MAX_STREAMS])
{
    pthread_mutex_lock(&pool->lock);
    int n = pool->n_streams;
    for (int i = 0; i < n; i++) {
        const mti_stream *s = pool->streams[i];
        out[i] = (mt_stream_stats){s->name, s->reserved, s->reserved - s->fit.n_bytes};
    }
    pthread_mutex_unlock(&pool->lock);
    return n;
}

/* trace.c: records requests to a pool, with recording.c, and repeats them. */
#include "memtrack/pool.h"

/* A sum over the places and sizes of all live blocks. */
static uint64_t digest(const mti_pool *pool)
{
    uint64_t sum = 0;
    for (size_t i = 0; i < pool->segments.n; i++)
        for (const mti_cell *c = pool->segments.at[i].first; c; c = c->right) {
            uint64_t x = (uint64_t)(uintptr_t)c->block.ptr ^ (uint64_t)c->block.size << 48;
            x = (x ^ x >> 31) * 0x9e3779b97f4a7c15u + c->block.size;
            if (c->live) sum += (x ^ x >> 29) * 0xbf58476d1ce4e5b9u;
        }
    return sum;
}

mti_trace *mti_trace_begin(mti_pool *pool)
{
    mti_trace *t = mti_calloc(1, sizeof *t);
    if (!t) return NULL;
    t->pool = pool;
    t->thread = pthread_self();
    pthread_mutex_lock(&pool->lock);
    bool first = !pool->trace;
    if (first) pool->trace = t;
    t->beside = digest(pool);
    pthread_mutex_unlock(&pool->lock);
    if (first) return t;
    mti_trace_free(t);
    return mti_fail_null(MT_ERR_STATE, "the device's allocator is being recorded already");
}

const char *mti_trace_end(mti_trace *t)
{
    pthread_mutex_lock(&t->pool->lock);
    t->pool->trace = NULL;
    for (size_t i = 0; i < t->blocks.n; i++) {
        mti_traced *b = &t->blocks.at[i];
        if (!b->now) continue;
        ((mti_cell *)b->now)->traced = 0;
        b->now = NULL;
        if (!MTI_PUSH(&t->survivors, (uint32_t)i))
            mti_trace_spoil(t, "there is no memory to list what it left");
    }
    pthread_mutex_unlock(&t->pool->lock);
    return t->why_not;
}

void mti_trace_free(mti_trace *t)
{
    if (!t) return;
    mti_free(t->requests.at);
    mti_free(t->blocks.at);
    mti_free(t->survivors.at);
    mti_free(t);
}

/* ---- repeating ---- */

size_t mti_trace_survivors(const mti_trace *t) { return t->survivors.n; }

const void *mti_trace_survivor(const mti_trace *t, size_t i)
{
    return t->blocks.at[t->survivors.at[i]].ptr;
}

static void give(mti_pool *pool, mti_traced *b)
{
    mti_pool_free_locked(pool, b->now, b->n_bytes);
    b->now = NULL;
}

static bool repeat_request(mti_trace *t, const mti_request *r)
{
    mti_traced *b = &t->blocks.at[r->block];
    switch (r->act) {
    case MTI_TAKE:
        b->now = mti_pool_alloc_locked(t->pool, r->stream, b->n_bytes, r->category);
        return b->now && b->now->ptr == b->ptr;
    case MTI_GIVE: give(t->pool, b); return true;
    default: mti_pool_recategorise_locked(t->pool, b->now, r->category); return true;
    }
}

/* Runs what uses every block of the trace, those that have been given back, too. */
static bool run_with_all(mti_trace *t, bool (*run)(void *user), void *user)
{
    mti_traced *b = t->blocks.at, *end = b + t->blocks.n;
    for (mti_traced *at = b; at < end; at++)
        mti_pool_let_touch_locked(t->pool, at->ptr, at->n_bytes, true);
    bool ok = run(user);
    for (mti_traced *at = b; at < end; at++)
        if (!at->now) mti_pool_let_touch_locked(t->pool, at->ptr, at->n_bytes, false);
    for (mti_traced *at = b; at < end; at++) /* some lie where others were */
        if (at->now) mti_pool_let_touch_locked(t->pool, at->ptr, at->n_bytes, true);
    return ok;
}

bool mti_trace_repeat(mti_trace *t, bool (*run)(void *user), void *user, mti_block **blocks)
{
    mti_pool *pool = t->pool;
    pthread_mutex_lock(&pool->lock);
    bool ok = !pool->trace && digest(pool) == t->beside;
    pool->may_not_grow = true;
    for (size_t i = 0; ok && i < t->requests.n; i++) ok = repeat_request(t, &t->requests.at[i]);
    ok = ok && run_with_all(t, run, user);
    for (size_t i = 0; i < t->survivors.n; i++) {
        mti_traced *b = &t->blocks.at[t->survivors.at[i]];
        blocks[i] = ok ? b->now : NULL;
        if (ok) b->now = NULL;
    }
    for (size_t i = 0; !ok && i < t->blocks.n; i++)
        if (t->blocks.at[i].now) give(pool, &t->blocks.at[i]);
    pool->may_not_grow = false;
    pthread_mutex_unlock(&pool->lock);
    return ok;
}

bool mti_pool_is_observed(mti_pool *pool)
{
    pthread_mutex_lock(&pool->lock);
    bool observed = pool->observers.n > 0 || pool->n_open_books > 0;
    pthread_mutex_unlock(&pool->lock);
    return observed;
}

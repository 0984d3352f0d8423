/* transfer.c: copies beside compute: one thread of the device does them in order. */
#include <pthread.h>
#include <signal.h>
#include <string.h>
#include "backends/cpu/cpu.h"

#define QUEUE 64 /* most unfinished copies; copy_begin waits for a free slot */

typedef struct copy {
    void *dst;
    const void *src;
    size_t n_bytes;
} copy;

struct mti_cpu_copies {
    pthread_mutex_t lock;
    pthread_cond_t begun, finished; /* signalled for each copy */
    pthread_t thread;
    bool running, stop;
    uint64_t n_begun, n_finished; /* the last ticket of each */
    copy queue[QUEUE];            /* ticket i at i % QUEUE */
    mti_copy_times times;
};

mti_cpu_copies *mti_cpu_copies_new(void)
{
    mti_cpu_copies *c = mti_calloc(1, sizeof *c);
    if (!c) return NULL;
    pthread_mutex_init(&c->lock, NULL);
    pthread_cond_init(&c->begun, NULL);
    pthread_cond_init(&c->finished, NULL);
    return c;
}

void mti_cpu_copies_free(mti_cpu_copies *c)
{
    if (!c) return;
    if (c->running) {
        pthread_mutex_lock(&c->lock);
        c->stop = true;
        pthread_cond_signal(&c->begun);
        pthread_mutex_unlock(&c->lock);
        pthread_join(c->thread, NULL);
    }
    pthread_cond_destroy(&c->finished);
    pthread_cond_destroy(&c->begun);
    pthread_mutex_destroy(&c->lock);
    mti_free(c);
}

static void *work(void *arg)
{
    mti_cpu_copies *c = arg;
    pthread_mutex_lock(&c->lock);
    for (;;) {
        while (c->n_finished == c->n_begun && !c->stop) pthread_cond_wait(&c->begun, &c->lock);
        if (c->n_finished == c->n_begun) break; /* all queued copies are finished first */
        copy next = c->queue[(c->n_finished + 1) % QUEUE];
        pthread_mutex_unlock(&c->lock);
        double start = mti_now();
        memcpy(next.dst, next.src, next.n_bytes);
        double took = mti_now() - start;
        pthread_mutex_lock(&c->lock);
        c->times.copy_s += took;
        c->n_finished++;
        pthread_cond_broadcast(&c->finished);
    }
    pthread_mutex_unlock(&c->lock);
    return NULL;
}

/* Called at the first copy, as most devices make none. The thread blocks all signals. */
static bool start(mti_cpu_copies *c)
{
    if (c->running) return true;
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int error = pthread_create(&c->thread, NULL, work, c);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    c->running = !error;
    return c->running ||
           mti_fail_bool(MT_ERR_MEMORY, "cpu: cannot start the copy thread: %s", strerror(error));
}

bool mti_cpu_copy_begin(mti_ctx *ctx, mti_direction direction, void *dst, const void *src,
                        size_t n_bytes, uint64_t *ticket)
{
    (void)direction; /* both sides are host memory */
    mti_cpu_copies *c = ctx->copies;
    pthread_mutex_lock(&c->lock);
    bool ok = start(c);
    if (ok) {
        while (c->n_begun - c->n_finished == QUEUE) pthread_cond_wait(&c->finished, &c->lock);
        *ticket = ++c->n_begun;
        c->queue[*ticket % QUEUE] = (copy){dst, src, n_bytes};
        pthread_cond_signal(&c->begun);
    }
    pthread_mutex_unlock(&c->lock);
    return ok;
}

bool mti_cpu_copy_finish(mti_ctx *ctx, uint64_t ticket)
{
    mti_cpu_copies *c = ctx->copies;
    pthread_mutex_lock(&c->lock);
    while (c->n_finished < ticket) pthread_cond_wait(&c->finished, &c->lock);
    pthread_mutex_unlock(&c->lock);
    return true;
}

/* On the CPU, compute runs on the calling thread, so that thread waits. */
bool mti_cpu_copy_wait(mti_ctx *ctx, uint64_t ticket)
{
    double start = mti_now();
    mti_cpu_copy_finish(ctx, ticket);
    double waited = mti_now() - start;
    pthread_mutex_lock(&ctx->copies->lock);
    ctx->copies->times.wait_s += waited;
    pthread_mutex_unlock(&ctx->copies->lock);
    return true;
}

bool mti_cpu_copy_times(mti_ctx *ctx, mti_copy_times *out)
{
    mti_cpu_copies *c = ctx->copies;
    pthread_mutex_lock(&c->lock);
    while (c->n_finished < c->n_begun) pthread_cond_wait(&c->finished, &c->lock);
    *out = c->times;
    pthread_mutex_unlock(&c->lock);
    return true;
}

/* ---- between ranks ---- */

#define PIECE ((size_t)64 * 1024)

size_t mti_cpu_exchange_scratch(mti_ctx *ctx, int64_t pieces)
{
    (void)ctx;
    return (size_t)pieces * PIECE;
}

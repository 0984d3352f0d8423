/* behind.c: exchanges that go on while the rank computes: a thread makes them in the order in which
 * they were begun, which is the same on all ranks, through an end of its own. */
#include <pthread.h>
#include <signal.h>
#include <string.h>
#include "comm/comm.h"

struct mti_job {
    mti_job *next;
    double took;
    bool done, ok;
    char error[MTI_COMM_ERROR];
    mti_span spans[]; /* [2 ranks]: out, in */
};

struct mti_behind {
    const mti_comm_kind *kind;
    mti_comm_end end;
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t begun, done;
    mti_job *first, *last; /* begun and not done */
    bool stop;
};

static void *work(void *behind)
{
    mti_behind *b = behind;
    pthread_mutex_lock(&b->lock);
    for (;;) {
        while (!b->first && !b->stop) pthread_cond_wait(&b->begun, &b->lock);
        mti_job *job = b->first;
        if (!job) break;
        pthread_mutex_unlock(&b->lock);
        double began = mti_now();
        const mti_span *out = job->spans, *in = out + b->end.ranks;
        bool ok = b->kind->exchange(&b->end, out, in, job->error);
        double took = mti_now() - began;
        pthread_mutex_lock(&b->lock);
        job->took = took, job->ok = ok, job->done = true;
        b->first = job->next;
        pthread_cond_broadcast(&b->done);
    }
    pthread_mutex_unlock(&b->lock);
    return NULL;
}

/* The thread blocks all signals, which are for the program's own threads. */
static bool start(mti_behind *b)
{
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int error = pthread_create(&b->thread, NULL, work, b);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return !error ||
           mti_fail_bool(MT_ERR_UNSUPPORTED, "rank %lld of %lld: no thread to exchange in: %s",
                         (long long)b->end.rank, (long long)b->end.ranks, strerror(error));
}

static void behind_free(mti_behind *b)
{
    pthread_cond_destroy(&b->begun);
    pthread_cond_destroy(&b->done);
    pthread_mutex_destroy(&b->lock);
    mti_free(b);
}

bool mti_comm_go_behind(mt_comm *comm)
{
    char error[MTI_COMM_ERROR] = "";
    if (comm->behind) return true;
    if (!comm->kind->aside)
        return mti_fail_bool(MT_ERR_UNSUPPORTED, "ranks over %s cannot exchange while they compute",
                             comm->kind->kind);
    mti_behind *b = mti_calloc(1, sizeof *b);
    if (!b) return false;
    b->kind = comm->kind;
    pthread_mutex_init(&b->lock, NULL);
    pthread_cond_init(&b->begun, NULL);
    pthread_cond_init(&b->done, NULL);
    bool made = comm->kind->aside(&comm->end, &b->end, error);
    if (!made)
        mti_fail(MT_ERR_UNSUPPORTED, "rank %lld of %lld: %s", (long long)comm->end.rank,
                 (long long)comm->end.ranks, error);
    if (made && start(b)) {
        comm->behind = b;
        return true;
    }
    if (made) comm->kind->close(&b->end, false);
    behind_free(b);
    return false;
}

mti_job *mti_comm_begin(mt_comm *comm)
{
    size_t ranks = (size_t)comm->end.ranks, own = (size_t)comm->end.rank;
    if (!mti_comm_go_behind(comm)) return NULL;
    mti_behind *b = comm->behind;
    mti_job *job = mti_calloc(1, sizeof *job + 2 * ranks * sizeof *job->spans);
    if (!job) return NULL;
    memcpy(job->spans, comm->out, ranks * sizeof *job->spans);
    memcpy(job->spans + ranks, comm->in, ranks * sizeof *job->spans);
    for (size_t r = 0; r < ranks; r++)
        if (r != own) comm->sent += comm->out[r].n_bytes;
    pthread_mutex_lock(&b->lock);
    if (b->first)
        b->last->next = job;
    else
        b->first = job;
    b->last = job;
    pthread_cond_signal(&b->begun);
    pthread_mutex_unlock(&b->lock);
    return job;
}

bool mti_comm_finish(mt_comm *comm, mti_job *job)
{
    mti_behind *b = comm->behind;
    double began = mti_now();
    pthread_mutex_lock(&b->lock);
    while (!job->done) pthread_cond_wait(&b->done, &b->lock);
    pthread_mutex_unlock(&b->lock);
    double waited = mti_now() - began;
    comm->seconds += waited;
    if (job->took > waited) comm->hidden += job->took - waited;
    bool ok =
        job->ok || mti_fail_bool(MT_ERR_UNSUPPORTED, "rank %lld of %lld: %s",
                                 (long long)comm->end.rank, (long long)comm->end.ranks, job->error);
    mti_free(job);
    return ok;
}

void mti_behind_close(mti_behind *b)
{
    if (!b) return;
    if (b->kind->interrupt) b->kind->interrupt(&b->end);
    pthread_mutex_lock(&b->lock);
    b->stop = true;
    pthread_cond_signal(&b->begun);
    pthread_mutex_unlock(&b->lock);
    pthread_join(b->thread, NULL);
    b->kind->close(&b->end, false);
    behind_free(b);
}

/* async.c: exchanges that go on while the rank computes: a thread makes them in the order in which
 * they were begun, which is the same on all ranks, through its own comm. */
#include <pthread.h>
#include <signal.h>
#include <string.h>
#include "comm/comm.h"

struct mti_job {
    mti_job *next;
    mti_behind_fn *run; /* NULL: exchanges the spans */
    void *user;
    double took;   /* in exchanges */
    uint64_t sent; /* by run */
    bool done, ok;
    mti_error error;
    mti_span spans[]; /* [2 ranks]: out, in */
};

struct mti_behind {
    mt_comm comm; /* of the same ranks; end.state NULL: there is none */
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t begun, done;
    mti_job *first, *last; /* begun and not done */
    bool stop;
};

static bool exchange_spans(const mti_job *job, mt_comm *comm)
{
    char error[MTI_COMM_ERROR] = "";
    const mti_span *out = job->spans, *in = out + comm->end.ranks;
    double began = mti_now();
    bool ok = comm->kind->exchange(&comm->end, out, in, error);
    return mti_comm_count_time(comm, began, ok, error);
}

/* In the thread, whose failures are its own. */
static void run_job(mti_job *job, mt_comm *comm)
{
    double seconds = comm->seconds;
    uint64_t sent = comm->sent;
    job->ok = job->run ? job->run(job->user, comm) : exchange_spans(job, comm);
    if (!job->ok) mti_error_get(&job->error);
    job->took = comm->seconds - seconds;
    job->sent = comm->sent - sent;
}

static void *work(void *behind)
{
    mti_behind *b = behind;
    pthread_mutex_lock(&b->lock);
    for (;;) {
        while (!b->first && !b->stop) pthread_cond_wait(&b->begun, &b->lock);
        mti_job *job = b->first;
        if (!job) break;
        pthread_mutex_unlock(&b->lock);
        run_job(job, &b->comm);
        pthread_mutex_lock(&b->lock);
        job->done = true;
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
                         (long long)b->comm.end.rank, (long long)b->comm.end.ranks,
                         strerror(error));
}

static void behind_free(mti_behind *b)
{
    if (b->comm.end.state) b->comm.kind->close(&b->comm.end, false);
    mti_free(b->comm.out);
    mti_free(b->comm.in);
    pthread_cond_destroy(&b->begun);
    pthread_cond_destroy(&b->done);
    pthread_mutex_destroy(&b->lock);
    mti_free(b);
}

/* *part: a comm of the same ranks. */
static bool part_from(const mt_comm *comm, mt_comm *part)
{
    char error[MTI_COMM_ERROR] = "";
    size_t ranks = (size_t)comm->end.ranks;
    mti_comm_end end;
    part->kind = comm->kind;
    part->out = mti_calloc(ranks, sizeof *part->out);
    part->in = mti_calloc(ranks, sizeof *part->in);
    if (!comm->kind->aside)
        return mti_fail_bool(MT_ERR_UNSUPPORTED, "ranks over %s cannot exchange while they compute",
                             comm->kind->kind);
    if (!part->out || !part->in) return false;
    if (!comm->kind->aside(&comm->end, &end, error))
        return mti_fail_bool(MT_ERR_UNSUPPORTED, "rank %lld of %lld: %s", (long long)comm->end.rank,
                             (long long)comm->end.ranks, error);
    part->end = end;
    return true;
}

bool mti_comm_go_behind(mt_comm *comm)
{
    if (comm->behind) return true;
    mti_behind *b = mti_calloc(1, sizeof *b);
    if (!b) return false;
    pthread_mutex_init(&b->lock, NULL);
    pthread_cond_init(&b->begun, NULL);
    pthread_cond_init(&b->done, NULL);
    if (part_from(comm, &b->comm) && start(b)) {
        comm->behind = b;
        return true;
    }
    behind_free(b);
    return false;
}

static void append(mti_behind *b, mti_job *job)
{
    pthread_mutex_lock(&b->lock);
    if (b->first)
        b->last->next = job;
    else
        b->first = job;
    b->last = job;
    pthread_cond_signal(&b->begun);
    pthread_mutex_unlock(&b->lock);
}

mti_job *mti_comm_begin(mt_comm *comm)
{
    size_t ranks = (size_t)comm->end.ranks, own = (size_t)comm->end.rank;
    if (!mti_comm_go_behind(comm)) return NULL;
    mti_job *job = mti_calloc(1, sizeof *job + 2 * ranks * sizeof *job->spans);
    if (!job) return NULL;
    memcpy(job->spans, comm->out, ranks * sizeof *job->spans);
    memcpy(job->spans + ranks, comm->in, ranks * sizeof *job->spans);
    for (size_t r = 0; r < ranks; r++)
        if (r != own) comm->sent += comm->out[r].n_bytes;
    append(comm->behind, job);
    return job;
}

mti_job *mti_comm_begin_run(mt_comm *comm, mti_behind_fn *run, void *user)
{
    mti_job *job = mti_comm_go_behind(comm) ? mti_calloc(1, sizeof *job) : NULL;
    if (!job) return NULL;
    job->run = run, job->user = user;
    append(comm->behind, job);
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
    comm->sent += job->sent;
    bool ok = job->ok || mti_fail_bool(job->error.status, "%s", job->error.text);
    mti_free(job);
    return ok;
}

void mti_behind_close(mti_behind *b)
{
    if (!b) return;
    if (b->comm.kind->interrupt) b->comm.kind->interrupt(&b->comm.end);
    pthread_mutex_lock(&b->lock);
    b->stop = true;
    pthread_cond_signal(&b->begun);
    pthread_mutex_unlock(&b->lock);
    pthread_join(b->thread, NULL);
    behind_free(b);
}

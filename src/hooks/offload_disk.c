/* offload_disk.c: a file without a name, and a thread that copies between it and host memory, in
 * order of submission. However the process ends, no file remains. */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>
#include "hooks/offload.h"

struct mti_disk {
    char *directory;
    int file;
    uint64_t reserved; /* bytes of the file that are allocated */
    mti_disk_io io;
    pthread_mutex_t lock;
    pthread_cond_t submitted, done;
    pthread_t thread;
    bool running, stop;
    mti_disk_job *first, *last;
    mt_copy_times times;
};

/* ---- the file ---- */

#ifdef __APPLE__
#define O_TMPFILE 0 /* a directory is then refused, as elsewhere by a file system without it */

static int fallocate(int file, int mode, off_t at, off_t n_bytes)
{
    fstore_t store = {F_ALLOCATEALL, F_PEOFPOSMODE, 0, n_bytes, 0};
    (void)mode;
    if (fcntl(file, F_PREALLOCATE, &store) == -1 && errno != ENOTSUP) return -1;
    return ftruncate(file, at + n_bytes);
}
#endif

static int open_nameless(const char *directory)
{
    char path[4096];
    int file = open(directory, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
    if (file >= 0 || (errno != EOPNOTSUPP && errno != EISDIR && errno != EINVAL)) return file;
    /* Without O_TMPFILE: a name that is removed at once. */
    int n = snprintf(path, sizeof path, "%s/memtape-XXXXXX", directory);
    if (n < 0 || (size_t)n >= sizeof path) return errno = ENAMETOOLONG, -1;
    file = mkostemp(path, O_CLOEXEC);
    if (file >= 0) unlink(path);
    return file;
}

static bool refused(const mti_disk *d, const char *op, size_t asked, uint64_t n_bytes, int error)
{
    char text[32], whole[32];
    return mti_fail_bool(MT_ERR_IO, "%s: offload to %s: no room for %zu bytes (%s; %s in all): %s",
                         op, d->directory, asked, mti_bytes_text(text, sizeof text, asked),
                         mti_bytes_text(whole, sizeof whole, n_bytes), strerror(error));
}

bool mti_disk_reserve(mti_disk *d, uint64_t n_bytes, const char *op, size_t asked)
{
    struct rlimit limit;
    if (n_bytes <= d->reserved) return true;
    if (n_bytes > INT64_MAX) return refused(d, op, asked, n_bytes, EFBIG);
    /* Exceeding the limit would raise a signal. */
    if (getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY &&
        n_bytes > limit.rlim_cur)
        return refused(d, op, asked, n_bytes, EFBIG);
    off_t from = (off_t)d->reserved;
    int error;
    do {
        error = d->io.fallocate(d->file, 0, from, (off_t)n_bytes - from) ? errno : 0;
    } while (error == EINTR);
    /* If the file system cannot reserve, the write may fail instead. */
    if (error && error != EOPNOTSUPP) return refused(d, op, asked, n_bytes, error);
    d->reserved = n_bytes;
    return true;
}

/* ---- the thread ---- */

static int transfer(const mti_disk *d, const mti_disk_job *job)
{
    uint64_t failures = mti_failures();
    char *p = mt_host_copy_bytes(job->copy);
    if (!p) return mti_failed_since(failures) ? EIO : 0; /* 0: no data at all */
    uint64_t offset = job->offset;
    for (size_t remaining = job->n_bytes; remaining;) {
        ssize_t n = job->write ? d->io.pwrite(d->file, p, remaining, (off_t)offset)
                               : d->io.pread(d->file, p, remaining, (off_t)offset);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return errno;
        if (n == 0) return job->write ? ENOSPC : EIO;
        p += n, offset += (uint64_t)n, remaining -= (size_t)n;
    }
    return 0;
}

static void *work(void *arg)
{
    mti_disk *d = arg;
    pthread_mutex_lock(&d->lock);
    for (;;) {
        while (!d->first && !d->stop) pthread_cond_wait(&d->submitted, &d->lock);
        mti_disk_job *job = d->first;
        if (!job) break;
        pthread_mutex_unlock(&d->lock);
        double start = mti_now();
        int error = transfer(d, job);
        double took = mti_now() - start;
        pthread_mutex_lock(&d->lock);
        d->times.copy_s += took;
        d->first = job->next;
        if (!d->first) d->last = NULL;
        job->error = error;
        job->done = true;
        pthread_cond_broadcast(&d->done);
    }
    pthread_mutex_unlock(&d->lock);
    return NULL;
}

/* The thread blocks all signals, which are for the program's own threads. */
static int start(mti_disk *d)
{
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int error = pthread_create(&d->thread, NULL, work, d);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    d->running = !error;
    return error;
}

mti_disk *mti_disk_open(const char *directory)
{
    mti_disk *d = mti_calloc(1, sizeof *d);
    if (!d) return NULL;
    d->io = (mti_disk_io){pwrite, pread, fallocate};
    pthread_mutex_init(&d->lock, NULL);
    pthread_cond_init(&d->submitted, NULL);
    pthread_cond_init(&d->done, NULL);
    d->file = -1;
    d->directory = mti_strdup(directory);
    if (d->directory) {
        d->file = open_nameless(directory);
        int error = d->file < 0 ? errno : start(d);
        if (!error) return d;
        mti_fail(MT_ERR_IO, "offload to %s: no file there: %s", directory, strerror(error));
    }
    mti_disk_close(d);
    return NULL;
}

void mti_disk_close(mti_disk *d)
{
    if (!d) return;
    if (d->running) {
        pthread_mutex_lock(&d->lock);
        d->stop = true;
        pthread_cond_signal(&d->submitted);
        pthread_mutex_unlock(&d->lock);
        pthread_join(d->thread, NULL);
    }
    if (d->file >= 0) close(d->file);
    pthread_cond_destroy(&d->done);
    pthread_cond_destroy(&d->submitted);
    pthread_mutex_destroy(&d->lock);
    mti_free(d->directory);
    mti_free(d);
}

void mti_disk_set_io(mti_disk *d, const mti_disk_io *io) { d->io = *io; }

void mti_disk_submit(mti_disk *d, mti_disk_job *job)
{
    job->next = NULL;
    job->submitted = true;
    job->done = false;
    job->error = 0;
    pthread_mutex_lock(&d->lock);
    if (d->last)
        d->last->next = job;
    else
        d->first = job;
    d->last = job;
    pthread_cond_signal(&d->submitted);
    pthread_mutex_unlock(&d->lock);
}

bool mti_disk_finish(mti_disk *d, mti_disk_job *job)
{
    if (!job->submitted) return true;
    double start = mti_now();
    pthread_mutex_lock(&d->lock);
    while (!job->done) pthread_cond_wait(&d->done, &d->lock);
    d->times.wait_s += mti_now() - start;
    pthread_mutex_unlock(&d->lock);
    job->submitted = false;
    return job->error == 0;
}

mt_status mti_disk_failed(const mti_disk *d, const mti_disk_job *job, const char *op)
{
    char text[32];
    return mti_fail(MT_ERR_IO, "%s: offload to %s: %zu bytes (%s) could not be %s: %s", op,
                    d->directory, job->n_bytes, mti_bytes_text(text, sizeof text, job->n_bytes),
                    job->write ? "written" : "read", strerror(job->error));
}

mt_copy_times mti_disk_times(mti_disk *d)
{
    pthread_mutex_lock(&d->lock);
    while (d->first) pthread_cond_wait(&d->done, &d->lock);
    mt_copy_times times = d->times;
    pthread_mutex_unlock(&d->lock);
    return times;
}

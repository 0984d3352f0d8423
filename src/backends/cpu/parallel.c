/* parallel.c: a kernel's chunks on the context's threads.
 *
 * The calling thread and its helpers each have a range of pieces, runs of consecutive chunks. Who
 * is done with its own takes pieces of the others'. So the caller never waits for a helper that has
 * not begun, only for pieces that are being computed: beside other work a kernel becomes as slow as
 * on fewer threads, where a team that starts and ends together (OpenMP's, PyTorch's) waits for
 * whichever thread the system runs last. Which thread runs a chunk changes no bit of it.
 *
 * A helper claims a piece by a compare-and-swap of the range's word, and while it holds one the job
 * cannot end: one that comes late reads nothing that is gone. The word has the job's number, so
 * that helpers of an earlier, larger team take no part. A thread that waits spins for a moment,
 * then sleeps. */
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <string.h>
#include "backends/cpu/cpu.h"

#define SPINS     2000 /* 20 to 100 us: kernels of small models follow each other faster */
#define PIECES    8    /* of a member of the team: what a stopped thread holds up is one of them */
#define MOST      1024 /* threads */
#define STACK     ((size_t)2 << 20) /* kernels keep tiles of up to 36 KiB there, OpenBLAS more */
#define NO_JOB    ((uint64_t)0)
#define STOP      UINT64_MAX
#define TEAM_BITS 16

/* ---- a thread that waits for a word to change ---- */

typedef struct member {
    _Alignas(64) atomic_uint_least64_t range; /* job << 32 | next << 16 | end, of pieces */
    pthread_mutex_t lock;
    pthread_cond_t woken;
    atomic_bool asleep;
    mti_cpu_team *team;
    int index;
    pthread_t thread; /* not the caller's, which is member 0 */
} member;

struct mti_cpu_team {
    atomic_flag busy;           /* a host thread has it */
    atomic_uint_least64_t job;  /* its number << TEAM_BITS | members */
    atomic_uint_least64_t left; /* pieces that are not finished */
    int spins, n;               /* n members have started */
    member *members[MOST];
    mti_cpu_range_fn *fn; /* of the job; constant while a piece is left */
    const void *arg;
    int64_t items, chunk, chunks, pieces;
};

static inline void relax(void)
{
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("isb");
#endif
}

static void wait_while(member *m, atomic_uint_least64_t *word, uint64_t value)
{
    for (int i = m->team->spins; i > 0; i--) {
        if (atomic_load_explicit(word, memory_order_acquire) != value) return;
        relax();
    }
    pthread_mutex_lock(&m->lock);
    atomic_store(&m->asleep, true);
    while (atomic_load(word) == value) pthread_cond_wait(&m->woken, &m->lock);
    atomic_store(&m->asleep, false);
    pthread_mutex_unlock(&m->lock);
}

/* After the word that m may wait for was stored. */
static void wake(member *m)
{
    if (!atomic_load(&m->asleep)) return;
    pthread_mutex_lock(&m->lock);
    pthread_cond_signal(&m->woken);
    pthread_mutex_unlock(&m->lock);
}

/* ---- a job ---- */

/* One call of fn per chunk, so that a kernel may number its partial results by begin / chunk. */
static void run_chunks(int64_t from, int64_t to, int64_t n, int64_t chunk, mti_cpu_range_fn *fn,
                       const void *arg)
{
    for (int64_t i = from; i < to; i++) {
        int64_t begin = i * chunk;
        fn(arg, begin, n - begin < chunk ? n : begin + chunk);
    }
#if defined(__SSE2__)
    _mm_sfence(); /* stores past the caches come before what other threads are told */
#endif
}

/* The next piece of a range, or -1: none is left, or the range is of another job. */
static int64_t claim(atomic_uint_least64_t *range, uint64_t job)
{
    uint64_t now = atomic_load_explicit(range, memory_order_relaxed);
    do {
        if (now >> 32 != (job >> TEAM_BITS & UINT32_MAX) || (now >> 16 & 0xffff) >= (now & 0xffff))
            return -1;
    } while (!atomic_compare_exchange_weak_explicit(range, &now, now + (1 << 16),
                                                    memory_order_acq_rel, memory_order_relaxed));
    return (int64_t)(now >> 16 & 0xffff);
}

static void take_part(mti_cpu_team *t, int self, uint64_t job)
{
    const int n = (int)(job & ((1 << TEAM_BITS) - 1));
    for (int i = 0; i < n; i++) {
        atomic_uint_least64_t *range = &t->members[(self + i) % n]->range;
        for (int64_t piece; (piece = claim(range, job)) >= 0;) {
            run_chunks(t->chunks * piece / t->pieces, t->chunks * (piece + 1) / t->pieces, t->items,
                       t->chunk, t->fn, t->arg);
            if (atomic_fetch_sub(&t->left, 1) == 1 && self) wake(t->members[0]);
        }
    }
}

static void *help(void *user)
{
    member *self = user;
    mti_cpu_team *t = self->team;
    for (uint64_t job = NO_JOB; job != STOP; job = atomic_load(&t->job)) {
        if (self->index < (int)(job & ((1 << TEAM_BITS) - 1))) take_part(t, self->index, job);
        wait_while(self, &t->job, job);
    }
    return NULL;
}

/* ---- the team ---- */

static member *add_member(mti_cpu_team *t)
{
    member *m = aligned_alloc(_Alignof(member), sizeof *m);
    if (!m) return NULL;
    memset(m, 0, sizeof *m);
    m->team = t;
    m->index = t->n;
    pthread_mutex_init(&m->lock, NULL);
    pthread_cond_init(&m->woken, NULL);
    return t->members[t->n] = m;
}

static void free_member(member *m)
{
    if (!m) return;
    pthread_cond_destroy(&m->woken);
    pthread_mutex_destroy(&m->lock);
    free(m);
}

mti_cpu_team *mti_cpu_team_new(void)
{
    const char *policy = getenv("OMP_WAIT_POLICY");
    mti_cpu_team *t = mti_calloc(1, sizeof *t);
    if (!t) return NULL;
    atomic_flag_clear(&t->busy);
    t->spins = policy && !strcmp(policy, "passive") ? 0 : SPINS;
    if (add_member(t)) t->n = 1;
    if (t->n) return t;
    mti_free(t);
    return NULL;
}

static void publish(mti_cpu_team *t, uint64_t job, int n)
{
    atomic_store(&t->job, job);
    for (int i = 1; i < n; i++) wake(t->members[i]);
}

void mti_cpu_team_free(mti_cpu_team *t)
{
    if (!t) return;
    publish(t, STOP, t->n);
    for (int i = 1; i < t->n; i++) pthread_join(t->members[i]->thread, NULL);
    for (int i = 0; i < t->n; i++) free_member(t->members[i]);
    mti_free(t);
}

/* Starts helpers until the team has n members, or as many as the system allows. They block all
 * signals: those are for the program's own threads. */
static int start_helpers(mti_cpu_team *t, int n)
{
    sigset_t all, before;
    pthread_attr_t attributes;
    if (t->n >= n || pthread_attr_init(&attributes)) return t->n < n ? t->n : n;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    bool ok = pthread_attr_setstacksize(&attributes, STACK) == 0;
    while (ok && t->n < n) {
        member *m = add_member(t);
        ok = m && pthread_create(&m->thread, &attributes, help, m) == 0;
        if (ok)
            t->n++;
        else
            free_member(m);
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    pthread_attr_destroy(&attributes);
    return t->n < n ? t->n : n;
}

static void run_job(mti_cpu_team *t, int n)
{
    const uint64_t number = (atomic_load_explicit(&t->job, memory_order_relaxed) >> TEAM_BITS) + 1;
    const uint64_t job = (number & UINT32_MAX) << TEAM_BITS | (uint64_t)n;
    t->pieces = t->chunks < PIECES * n ? t->chunks : PIECES * n;
    atomic_store_explicit(&t->left, (uint64_t)t->pieces, memory_order_relaxed);
    for (int i = 0; i < n; i++) {
        const uint64_t from = (uint64_t)(t->pieces * i / n),
                       to = (uint64_t)(t->pieces * (i + 1) / n);
        atomic_store_explicit(&t->members[i]->range, job >> TEAM_BITS << 32 | from << 16 | to,
                              memory_order_release);
    }
    publish(t, job, n);
    take_part(t, 0, job);
    for (uint64_t left; (left = atomic_load(&t->left)) > 0;)
        wait_while(t->members[0], &t->left, left);
}

int64_t mti_cpu_chunk(int64_t n, int64_t cost)
{
    if (n * cost < MTI_CPU_GRAIN) return n;
    int64_t items = MTI_CPU_GRAIN / 8 / cost;
    return items < 1 ? 1 : items;
}

void mti_cpu_parallel(mti_ctx *ctx, int64_t n, int64_t chunk, mti_cpu_range_fn *fn, const void *arg)
{
    if (n <= 0) return;
    mti_cpu_team *t = ctx->team;
    int64_t chunks = n <= chunk ? 1 : (n + chunk - 1) / chunk;
    int threads = mti_cpu_threads(ctx), team = chunks < threads ? (int)chunks : threads;
    if (team > 1) atomic_fetch_add_explicit(&ctx->shared, 1, memory_order_relaxed);
    /* Another host thread's kernel has the helpers, or this is called from within one. */
    const bool alone =
        team <= 1 || atomic_flag_test_and_set_explicit(&t->busy, memory_order_acquire);
    if (!alone) team = start_helpers(t, team < MOST ? team : MOST);
    if (alone || team <= 1) {
        run_chunks(0, chunks, n, chunk, fn, arg);
    } else {
        t->fn = fn, t->arg = arg;
        t->items = n, t->chunk = chunk, t->chunks = chunks;
        run_job(t, team);
    }
    if (!alone) atomic_flag_clear_explicit(&t->busy, memory_order_release);
}

/* The threads that share a kernel's chunks: each chunk runs once, whoever calls, from wherever. It
 * also runs under ThreadSanitizer, where a chunk that adds to a shared number is a race: test_team
 * race. */
#include <pthread.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>
#include "backends/cpu/cpu.h"

enum { MOST = 3000 };

typedef struct work {
    mti_ctx *ctx;
    int64_t n, chunk;
    int *times;    /* [n]: how often each item was done */
    long *total;   /* NULL: no race */
    bool is_outer; /* each chunk begins a job of its own */
    bool sleeps;   /* the first chunk lasts long */
} work;

static void count(const void *arg, int64_t begin, int64_t end)
{
    const work *w = arg;
    if (begin % w->chunk || end - begin != (begin + w->chunk < w->n ? w->chunk : w->n - begin))
        w->times[begin] = -MOST;
    if (w->sleeps && begin == 0) usleep(2000);
    for (int64_t i = begin; i < end; i++) w->times[i]++;
    if (w->total) *w->total += end - begin;
}

static void begin_others(const void *arg, int64_t begin, int64_t end)
{
    int times[100] = {0};
    work inner = {.ctx = ((const work *)arg)->ctx, .n = 100, .chunk = 7, .times = times};
    mti_cpu_parallel(inner.ctx, inner.n, inner.chunk, count, &inner);
    for (int i = 0; i < 100; i++)
        if (times[i] != 1) return;
    count(arg, begin, end);
}

static void run(const work *w)
{
    memset(w->times, 0, (size_t)w->n * sizeof *w->times);
    mti_cpu_parallel(w->ctx, w->n, w->chunk, w->is_outer ? begin_others : count, w);
    for (int64_t i = 0; i < w->n; i++) assert_int_equal(w->times[i], 1);
}

static void every_chunk_runs_once(void **state)
{
    static int times[MOST];
    (void)state;
    mti_ctx *ctx = mti_cpu_backend.open();
    const int threads[] = {2, 1, 7, 3, 40, 2}; /* more than there are processors, too */
    for (size_t t = 0; t < sizeof threads / sizeof *threads; t++) {
        assert_true(mti_cpu_backend.set_threads(ctx, threads[t]));
        for (int64_t n = 1; n <= MOST; n = n * 5 / 3 + 1)
            for (int64_t chunk = 1; chunk <= n; chunk = chunk * 4 + 1)
                for (int how = 0; how < 4; how++)
                    run(&(work){.ctx = ctx,
                                .n = n,
                                .chunk = chunk,
                                .times = times,
                                .is_outer = how == 1,
                                .sleeps = how == 2 && n == 2 * chunk});
    }
    mti_cpu_backend.close(ctx);
}

static void *run_often(void *user)
{
    int times[MOST];
    work w = *(work *)user;
    w.times = times;
    for (w.n = 1; w.n < MOST; w.n += 37) run(&w);
    return NULL;
}

static void host_threads_may_share_a_context(void **state)
{
    enum { HOSTS = 4 };
    pthread_t host[HOSTS];
    (void)state;
    work w = {.ctx = mti_cpu_backend.open(), .chunk = 5};
    assert_true(mti_cpu_backend.set_threads(w.ctx, 3));
    for (int i = 0; i < HOSTS; i++)
        assert_int_equal(pthread_create(&host[i], NULL, run_often, &w), 0);
    for (int i = 0; i < HOSTS; i++) pthread_join(host[i], NULL);
    mti_cpu_backend.close(w.ctx);
}

static void contexts_without_a_kernel_start_no_thread(void **state)
{
    (void)state;
    for (int i = 0; i < 5000; i++) mti_cpu_backend.close(mti_cpu_backend.open());
    for (int i = 0; i < 50; i++) {
        int times[4];
        mti_ctx *ctx = mti_cpu_backend.open();
        assert_true(mti_cpu_backend.set_threads(ctx, 4));
        run(&(work){.ctx = ctx, .n = 4, .chunk = 1, .times = times});
        mti_cpu_backend.close(ctx);
    }
}

/* The first chunk lasts, so that helpers have begun, however busy the machine is. */
static int race(void)
{
    static int times[MOST];
    long total = 0;
    mti_ctx *ctx = mti_cpu_backend.open();
    mti_cpu_backend.set_threads(ctx, 4);
    for (int i = 0; i < 20; i++)
        mti_cpu_parallel(ctx, MOST, 1, count,
                         &(work){.ctx = ctx,
                                 .n = MOST,
                                 .chunk = 1,
                                 .times = times,
                                 .total = &total,
                                 .sleeps = true});
    mti_cpu_backend.close(ctx);
    return total < 0;
}

int main(int argc, char **argv)
{
    if (argc == 2 && !strcmp(argv[1], "race")) return race();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_chunk_runs_once),
        cmocka_unit_test(host_threads_may_share_a_context),
        cmocka_unit_test(contexts_without_a_kernel_start_no_thread),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

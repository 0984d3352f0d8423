/* refusals.c: which of a run's requests for memory are refused, one in each run. */
#include <execinfo.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>
#include "base/base.h"
#include "mtt_engine.h"

enum { MOST_REQUESTS = 1 << 20, MOST_CALLS = 64 };

/* The requests of two runs after each other. A request's way is a hash of the calls that led to it;
 * two that came the same way have the same. */
typedef struct record {
    uint64_t n;
    bool whole; /* the counter has begun again */
    uint64_t way[MOST_REQUESTS];
} record;

static record *runs, *watched; /* shared with the process that makes the runs */
static uint64_t *plan, n_plan, at_plan;

static void note_way(uint64_t nth)
{
    watched->whole |= nth <= watched->n;
    if (watched->whole) return;
    void *calls[MOST_CALLS];
    uint64_t hash = 0xcbf29ce484222325u;
    int n = backtrace(calls, MOST_CALLS);
    for (int i = 0; i < n; i++) hash = (hash ^ (uintptr_t)calls[i]) * 0x100000001b3u;
    if (nth <= MOST_REQUESTS) watched->way[nth - 1] = hash;
    watched->n = nth;
}

static void watch_two_runs(void (*run)(void *), void *arg)
{
    void *call;
    (void)backtrace(&call, 1); /* it loads a library */
    mti_watch_alloc = note_way;
    for (watched = runs; watched < runs + 2; watched++) run(arg);
}

static int by_way(const void *a, const void *b)
{
    uint64_t i = *(const uint64_t *)a, j = *(const uint64_t *)b;
    uint64_t x = runs[1].way[i - 1], y = runs[1].way[j - 1];
    return x != y ? (x > y) - (x < y) : (i > j) - (i < j);
}

static int by_number(const void *a, const void *b)
{
    uint64_t i = *(const uint64_t *)a, j = *(const uint64_t *)b;
    return (i > j) - (i < j);
}

/* Plans the first, the second and the last request that came each way. */
static uint64_t plan_of_the_second_run(void)
{
    const uint64_t n = runs[1].n, *way = runs[1].way, first_of_plan = n_plan + 1;
    plan[n_plan++] = n; /* afterwards all that is asked for once has been made */
    uint64_t *sorted = malloc((n + 1) * sizeof *sorted), n_ways = 0, place = 0;
    assert_non_null(sorted);
    for (uint64_t i = 0; i < n; i++) sorted[i] = i + 1;
    qsort(sorted, n, sizeof *sorted, by_way);
    for (uint64_t i = 0; i < n; i++) {
        bool first = i == 0 || way[sorted[i] - 1] != way[sorted[i - 1] - 1];
        bool last = i + 1 == n || way[sorted[i] - 1] != way[sorted[i + 1] - 1];
        place = first ? 0 : place + 1;
        n_ways += first;
        if (place < 2 || last) plan[n_plan++] = sorted[i];
    }
    free(sorted);
    qsort(plan + first_of_plan, n_plan - first_of_plan, sizeof *plan, by_number);
    return n_ways;
}

/* The first run's requests that the second did not need to make again: a name is interned once.
 * Before a run that is refused the k-th, the ones before that have been made, except for the one
 * that was refused last. */
static uint64_t plan_of_what_is_asked_once(void)
{
    uint64_t n = 0;
    for (uint64_t i = 0, j = 0; i < runs[0].n; i++) {
        if (j < runs[1].n && runs[0].way[i] == runs[1].way[j])
            j++;
        else
            plan[n_plan++] = i + 1 - (n > 1 ? n - 1 : 0), n++;
    }
    return n;
}

void mtt_plan_refusals(void (*run)(void *), void *arg)
{
    n_plan = at_plan = 0;
    if (!mtt_long()) return;
    size_t n_bytes = 2 * sizeof *runs;
    runs = mmap(NULL, n_bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE,
                -1, 0);
    assert_true(runs != MAP_FAILED);
    fflush(NULL);
    pid_t child = fork(); /* which leaves this process without what is asked for once */
    assert_true(child >= 0);
    if (child == 0) {
        watch_two_runs(run, arg);
        _exit(0);
    }
    int status;
    assert_true(waitpid(child, &status, 0) == child && status == 0);
    assert_true(runs[0].n <= MOST_REQUESTS && runs[1].n <= runs[0].n && runs[1].n > 0);
    free(plan);
    plan = malloc((runs[0].n + runs[1].n + 2) * sizeof *plan);
    assert_non_null(plan);
    uint64_t n_once = plan_of_what_is_asked_once();
    uint64_t n_ways = plan_of_the_second_run();
    print_message(
        "%llu requests that came %llu ways: %llu are refused, and %llu that are made once\n",
        (unsigned long long)runs[1].n, (unsigned long long)n_ways,
        (unsigned long long)(n_plan - n_once), (unsigned long long)n_once);
    munmap(runs, n_bytes);
}

uint64_t mtt_next_refusal(uint64_t nth)
{
    if (at_plan < n_plan) return plan[at_plan++];
    bool planned = n_plan > 0;
    n_plan = at_plan = 0;
    if (planned) return UINT64_MAX; /* the run that is refused nothing */
    if (nth == UINT64_MAX) return nth;
    return nth + (mtt_long() || nth < 32 ? 1 : 29);
}

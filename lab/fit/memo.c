/* memo.c: measurements that searches of the same workloads on several GPUs share. The GPUs differ
 * in capacity and rates, and what a set-up takes without a capacity depends on neither. */
#include <pthread.h>
#include <string.h>
#include "fit/search.h"

typedef struct remembered {
    const mti_workload *workload; /* the task's, by its place in memory */
    mt_parallel parallel;
    int64_t batch;
    const char *checkpoint; /* one of the policies' */
    mti_offload_choice offload;
    mti_requirement need;
    mti_measurement m; /* without what it owns */
} remembered;

struct mti_fit_memo {
    pthread_mutex_t lock;
    MTI_VEC(remembered) all;
};

mti_fit_memo *mti_fit_memo_new(void)
{
    mti_fit_memo *memo = mti_calloc(1, sizeof *memo);
    if (memo) pthread_mutex_init(&memo->lock, NULL);
    return memo;
}

void mti_fit_memo_free(mti_fit_memo *memo)
{
    if (!memo) return;
    pthread_mutex_destroy(&memo->lock);
    mti_free(memo->all.at);
    mti_free(memo);
}

static bool is_of(const remembered *r, const mti_workload *of, const mti_workload *w)
{
    const char *a = r->checkpoint, *b = w->memory.checkpoint;
    return r->workload == of && r->batch == w->batch && r->offload == w->memory.offload &&
           !memcmp(&r->parallel, &w->parallel, sizeof r->parallel) &&
           (a == b || (a && b && !strcmp(a, b)));
}

static bool recall(mti_fit_memo *memo, const mti_workload *of, const mti_workload *w,
                   mti_requirement *need, mti_measurement *m)
{
    bool found = false;
    pthread_mutex_lock(&memo->lock);
    for (size_t i = 0; i < memo->all.n && !found; i++) {
        const remembered *r = &memo->all.at[i];
        found = is_of(r, of, w);
        if (found) *need = r->need, *m = r->m;
    }
    pthread_mutex_unlock(&memo->lock);
    return found;
}

static bool remember(mti_fit_memo *memo, const mti_workload *of, const mti_workload *w,
                     const mti_requirement *need, const mti_measurement *m)
{
    remembered r = {.workload = of,
                    .parallel = w->parallel,
                    .batch = w->batch,
                    .checkpoint = w->memory.checkpoint,
                    .offload = w->memory.offload,
                    .need = *need,
                    .m = *m};
    r.m.ledger = NULL;
    r.m.steady.ledger = NULL;
    r.m.timeline = (mti_timeline){0};
    pthread_mutex_lock(&memo->lock);
    const bool ok = MTI_PUSH(&memo->all, r);
    pthread_mutex_unlock(&memo->lock);
    return ok;
}

bool mti_fit_memo_measure(const mti_fit_task *task, const mti_workload *w, mti_requirement *need,
                          mti_measurement *m)
{
    bool refused;
    if (task->memo && recall(task->memo, task->workload, w, need, m)) return true;
    return mti_measure_requirement(need, m, w, NULL, &refused) &&
           (!task->memo || remember(task->memo, task->workload, w, need, m));
}

/* batches.c: which bytes of the text a training step sees. */
#include "base/philox.h"
#include "cli/trainer.h"

void mti_batch_starts(const mti_trainer *t, int64_t part, size_t *starts)
{
    const mti_workload *w = &t->workload;
    uint64_t counter = ((uint64_t)t->step * (uint64_t)t->settings.accumulate + (uint64_t)part) *
                       (uint64_t)w->batch;
    size_t places = t->corpus->n_train - (size_t)w->seq;
    for (int64_t i = 0; i < w->batch; i++) {
        mti_u32x4 r = mti_philox(w->seed, counter + (uint64_t)i);
        starts[i] = (size_t)(((uint64_t)r.v[0] << 32 | r.v[1]) % places);
    }
}

int64_t *mti_batch_ids(const unsigned char *text, int64_t n, int64_t seq, const size_t *starts)
{
    size_t n_ids = (size_t)(n * seq);
    int64_t *ids = mti_malloc(2 * n_ids * sizeof *ids);
    for (size_t i = 0; ids && i < n_ids; i++) {
        const unsigned char *at = text + starts[i / (size_t)seq] + i % (size_t)seq;
        ids[i] = at[0];
        ids[n_ids + i] = at[1];
    }
    return ids;
}

/* batches.c: which bytes of the text a training step sees. */
#include <string.h>
#include "base/philox.h"
#include "trainer/trainer.h"

/* Where in the text each sequence of batch `part` of the next step begins: starts[batch]. */
static void find_starts(const mti_trainer *t, int64_t part, size_t *starts)
{
    const mti_workload *w = &t->workload;
    uint64_t counter = ((uint64_t)t->step * (uint64_t)t->settings.accumulate + (uint64_t)part) *
                       (uint64_t)w->batch;
    size_t places = mti_corpus_length(t->corpus, false) - (size_t)w->seq;
    for (int64_t i = 0; i < w->batch; i++) {
        mti_u32x4 r = mti_philox(w->seed, counter + (uint64_t)i);
        starts[i] = (size_t)(((uint64_t)r.v[0] << 32 | r.v[1]) % places);
    }
}

/* Inputs and then targets, n * seq of each, target i being the token after input i; starts[n] in
 * the text. */
static int64_t *ids_of(const mti_corpus *c, int64_t n, int64_t seq, const size_t *starts)
{
    size_t n_ids = (size_t)(n * seq);
    int64_t *ids = mti_malloc(2 * n_ids * sizeof *ids);
    for (size_t i = 0; ids && i < n_ids; i++) {
        const size_t at = starts[i / (size_t)seq] + i % (size_t)seq;
        ids[i] = mti_corpus_token(c, false, at);
        ids[n_ids + i] = mti_corpus_token(c, false, at + 1);
    }
    return ids;
}

/* ---- what this rank has of them ---- */

int64_t mti_shard_length(const mti_workload *w)
{
    return w->seq / (w->parallel.context ? w->parallel.context : 1);
}

void mti_keep_shard(const mti_workload *w, int64_t rows, int64_t *ids)
{
    const int64_t length = mti_shard_length(w), from = w->parallel.context_rank * length;
    for (int64_t i = 0; i < rows && length < w->seq; i++)
        memmove(ids + i * length, ids + i * w->seq + from, (size_t)length * sizeof *ids);
}

int64_t *mti_batch_shard(const mti_trainer *t, int64_t part, int64_t *rows)
{
    const mti_workload *w = &t->workload;
    *rows = w->batch / (w->parallel.data ? w->parallel.data : 1);
    size_t *starts = mti_calloc((size_t)w->batch, sizeof *starts);
    if (!starts) return NULL;
    find_starts(t, part, starts);
    int64_t *ids = ids_of(t->corpus, *rows, w->seq, starts + w->parallel.data_rank * *rows);
    if (ids) mti_keep_shard(w, 2 * *rows, ids);
    mti_free(starts);
    return ids;
}

mt_tensor *mti_ids_tensor(const mti_trainer *t, const int64_t *ids, int64_t rows, int64_t length)
{
    return mt_from_data(t->device, MT_I64, MT_SHAPE(rows, length), ids,
                        (size_t)(rows * length) * sizeof *ids);
}

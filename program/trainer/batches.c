/* batches.c: which tokens of the text a training step sees. */
#include <string.h>
#include "base/philox.h"
#include "memtape/ops.h"
#include "trainer/trainer.h"

/* A sequence's place in the text: seq tokens from `begin` on and the one after them, as far as they
 * are before `end`. */
typedef struct place {
    size_t begin, end;
} place;

/* The places of the sequences of batch `part` of the next step: places[batch]. */
static void find_places(const mti_trainer *t, int64_t part, place *places)
{
    const mti_workload *w = &t->workload;
    uint64_t counter = ((uint64_t)t->step * (uint64_t)t->settings.accumulate + (uint64_t)part) *
                       (uint64_t)w->batch;
    const bool apart = t->settings.by_document;
    const size_t length = mti_corpus_length(t->corpus, false);
    const size_t n = apart ? mti_corpus_documents(t->corpus) : length - (size_t)w->seq;
    for (int64_t i = 0; i < w->batch; i++) {
        mti_u32x4 r = mti_philox(w->seed, counter + (uint64_t)i);
        const size_t chosen = (size_t)(((uint64_t)r.v[0] << 32 | r.v[1]) % n);
        places[i] = (place){chosen, length};
        if (apart) mti_corpus_document(t->corpus, chosen, &places[i].begin, &places[i].end);
    }
}

/* Inputs and then targets, n * seq of each, target i being the token after input i; at places[n] in
 * the text. */
static int64_t *ids_of(const mti_corpus *c, int64_t n, int64_t seq, const place *places)
{
    size_t n_ids = (size_t)(n * seq);
    int64_t *ids = mti_malloc(2 * n_ids * sizeof *ids);
    for (size_t i = 0; ids && i < n_ids; i++) {
        const place *p = &places[i / (size_t)seq];
        const size_t at = p->begin + i % (size_t)seq;
        ids[i] = at < p->end ? mti_corpus_token(c, false, at) : 0;
        ids[n_ids + i] = at + 1 < p->end ? mti_corpus_token(c, false, at + 1) : MT_IGNORE;
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
    place *places = mti_calloc((size_t)w->batch, sizeof *places);
    if (!places) return NULL;
    find_places(t, part, places);
    int64_t *ids = ids_of(t->corpus, *rows, w->seq, places + w->parallel.data_rank * *rows);
    if (ids) mti_keep_shard(w, 2 * *rows, ids);
    mti_free(places);
    return ids;
}

mt_tensor *mti_ids_tensor(const mti_trainer *t, const int64_t *ids, int64_t rows, int64_t length)
{
    return mt_from_data(t->device, MT_I64, MT_SHAPE(rows, length), ids,
                        (size_t)(rows * length) * sizeof *ids);
}

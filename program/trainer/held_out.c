/* held_out.c: the loss on text that is not learnt from. */
#include <math.h>
#include "trainer/trainer.h"
#include "memtape/ops.h"
#include "collectives/collectives.h"

#define EVAL_BATCH 16 /* windows at a time, of all data ranks together */

/* This rank's windows of held-out text, of equal length, and its shard of them. All data ranks run
 * as many forwards of as many windows, as ZeRO 3 gathers in each; of what is beyond the text
 * nothing counts. */
typedef struct windows {
    mti_trainer *t;
    mt_parallel parallel; /* every "0: ..." filled in */
    size_t from, to;      /* tokens to predict, of all ranks */
    int64_t seq;          /* tokens of a window */
    double nats;
} windows;

/* Window `nth`, as row i of `rows`: what it does not have is ignored. */
static void fill_row(const windows *v, int64_t nth, int64_t i, int64_t rows, int64_t *ids)
{
    for (int64_t k = 0; k < v->seq; k++) {
        size_t at = v->from + (size_t)(nth * v->seq + k);
        bool there = at < v->to;
        const mti_corpus *c = v->t->corpus;
        ids[i * v->seq + k] = there ? mti_corpus_token(c, true, at) : 0;
        ids[(rows + i) * v->seq + k] = there ? mti_corpus_token(c, true, at + 1) : MT_IGNORE;
    }
}

static bool add_windows(windows *v, int64_t first, int64_t rows, int64_t *ids)
{
    int64_t length = v->seq / v->parallel.context, n = rows * length, counted = 0;
    int64_t *targets = ids + n;
    double loss = 0;
    for (int64_t i = 0; i < rows; i++) fill_row(v, first + i, i, rows, ids);
    mti_keep_shard(&v->t->workload, 2 * rows, ids);
    for (int64_t i = 0; i < n; i++) counted += targets[i] != MT_IGNORE;
    if (!counted) targets[0] = 0; /* a mean needs one; it is not added */
    MT_AUTO mt_tensor *x = mti_ids_tensor(v->t, ids, rows, length);
    MT_AUTO mt_tensor *y = mti_ids_tensor(v->t, targets, rows, length);
    if (!x || !y || mt_stage_evaluate(&v->t->stage, x, y, &loss) != MT_OK) return false;
    if (counted) v->nats += loss * (double)counted;
    return true;
}

/* Adds the windows of seq tokens from token `from` to `to`. */
static bool add_all(windows *v, size_t from, size_t to, int64_t seq)
{
    const int64_t data = v->parallel.data, n = (int64_t)(to - from), all = (n + seq - 1) / seq;
    const int64_t most = (EVAL_BATCH + data - 1) / data, rows = most < all ? most : all;
    v->from = from, v->to = to, v->seq = seq;
    int64_t *ids = mti_malloc(2 * (size_t)(rows * seq) * sizeof *ids);
    bool ok = ids != NULL;
    for (int64_t first = 0; ok && first < all; first += rows * data) {
        int64_t own = first + v->parallel.data_rank * rows, left = v->t->model ? all - own : rows;
        ok = add_windows(v, own, left < rows ? left : rows, ids);
    }
    mti_free(ids);
    return ok;
}

/* *nats: of the first n bytes after the first one. Where nothing is cut among ranks the last window
 * is run alone, as short as it is. */
static bool find_nats(mti_trainer *t, size_t n, double *nats)
{
    windows v = {.t = t, .parallel = mti_filled_in(&t->workload.parallel)};
    const mt_group group = mti_data_group(&v.parallel);
    const int64_t seq = t->workload.seq;
    size_t rest = t->model ? n % (size_t)seq : 0;
    bool ok = (n == rest || add_all(&v, 0, n - rest, seq)) &&
              (rest == 0 || add_all(&v, n - rest, n, (int64_t)rest));
    *nats = v.nats;
    return ok && mti_sum_value(t->device, &group, nats);
}

bool mti_trainer_held_out(mti_trainer *t, size_t max_bytes, double *bits)
{
    const mti_corpus *c = t->corpus;
    size_t n = mti_corpus_length(c, true);
    const double bytes = n ? (double)c->n_held / (double)n : 0; /* of a token */
    if (max_bytes && c->n_held > max_bytes) n = (size_t)((double)max_bytes / bytes);
    if (n < 2) return mti_fail_bool(MT_ERR_ARGUMENT, "%zu tokens are held out; 2 are needed", n);
    double nats = 0;
    bool ok = mt_set_phase("held-out") == MT_OK && find_nats(t, n - 1, &nats);
    mt_set_phase(NULL);
    *bits = nats / ((double)(n - 1) * bytes) / log(2);
    return ok;
}

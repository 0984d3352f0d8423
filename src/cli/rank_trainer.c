/* rank_trainer.c: one of several ranks that train together: its part of the model, its sequences of
 * each batch. */
#include <string.h>
#include "cli/rank_trainer.h"
#include "cli/run_file.h"
#include "memtape/ops.h"
#include "ops/ops.h"

/* ---- making ---- */

/* Data ranks, with 0 for 1. */
static int64_t n_data(const mti_workload *w) { return w->parallel.data ? w->parallel.data : 1; }

/* Of --from. */
static bool load_weights(mti_trainer *t)
{
    mt_safetensors *file = mti_run_open(t->settings.from);
    bool ok = file && mti_run_is_plain(file) && mt_stage_load_weights(file, &t->stage) == MT_OK;
    mt_safetensors_free(file);
    return ok;
}

bool mti_rank_trainer_make(mti_trainer *t)
{
    mti_workload *w = &t->workload;
    w->parallel.microbatches = t->settings.accumulate;
    if (w->batch % n_data(w))
        return mti_fail_bool(MT_ERR_ARGUMENT,
                             "--batch %lld is divided among --dp %lld; need a multiple",
                             (long long)w->batch, (long long)n_data(w));
    const mt_lora_options lora = mti_adapters_of(&w->memory);
    return mti_stage_make(&t->stage, t->device, &w->config, &w->parallel, 0,
                          lora.rank ? &lora : NULL) &&
           (!t->settings.from || load_weights(t));
}

/* ---- training ---- */

static mt_tensor *tensor_of(const mti_trainer *t, int64_t rows, int64_t seq, const int64_t *ids)
{
    return mt_from_data(t->device, MT_I64, MT_SHAPE(rows, seq), ids,
                        (size_t)(rows * seq) * sizeof *ids);
}

/* How much of a sequence this rank has. */
static int64_t piece_length(const mti_workload *w)
{
    return w->seq / (w->parallel.context ? w->parallel.context : 1);
}

/* ids[rows,seq] becomes [rows,length]: the piece of each row that this rank has. */
static void keep_piece(const mti_workload *w, int64_t rows, int64_t *ids)
{
    const int64_t length = piece_length(w), from = w->parallel.context_rank * length;
    for (int64_t i = 0; i < rows && length < w->seq; i++)
        memmove(ids + i * length, ids + i * w->seq + from, (size_t)length * sizeof *ids);
}

/* This rank's piece of its sequences of batch `part` of the step. */
static bool make_part(const mti_trainer *t, int64_t part, size_t *starts, mt_tensor **tokens,
                      mt_tensor **targets)
{
    const mti_workload *w = &t->workload;
    int64_t rows = w->batch / n_data(w), length = piece_length(w);
    mti_batch_starts(t, part, starts);
    int64_t *ids =
        mti_batch_ids(t->corpus->train, rows, w->seq, starts + w->parallel.data_rank * rows);
    if (ids) keep_piece(w, 2 * rows, ids);
    *tokens = ids ? tensor_of(t, rows, length, ids) : NULL;
    *targets = ids ? tensor_of(t, rows, length, ids + rows * length) : NULL;
    mti_free(ids);
    return *tokens && *targets;
}

bool mti_rank_trainer_backward(mti_trainer *t, double *loss)
{
    int64_t n = t->settings.accumulate;
    mt_tensor **all = mti_calloc(2 * (size_t)n, sizeof *all);
    size_t *starts = mti_calloc((size_t)t->workload.batch, sizeof *starts);
    bool ok = all && starts;
    for (int64_t i = 0; ok && i < n; i++) ok = make_part(t, i, starts, &all[i], &all[n + i]);
    ok = ok && mt_stage_backward(&t->stage, all, all + n, loss) == MT_OK;
    for (int64_t i = 0; all && i < 2 * n; i++) mt_release(all[i]);
    mti_free(starts);
    mti_free(all);
    return ok;
}

/* ---- held-out text ---- */

#define EVAL_BATCH 16 /* windows at a time, of all data ranks together */

/* This rank's windows of held-out text, of at most seq bytes each, and its piece of them. All data
 * ranks run as many forwards of as many windows, as ZeRO 3 gathers in each; of what is beyond the
 * text nothing counts. */
typedef struct windows {
    mti_trainer *t;
    size_t n_bytes; /* to predict, of all ranks */
    int64_t rows;   /* of a forward */
    int64_t *ids;   /* [2 rows seq] */
    double nats;
} windows;

/* Window `nth`, as row i: what it does not have is ignored. */
static void fill_row(const windows *v, int64_t i, int64_t nth)
{
    int64_t seq = v->t->workload.seq, n = v->rows * seq;
    for (int64_t k = 0; k < seq; k++) {
        size_t at = (size_t)(nth * seq + k);
        bool there = at < v->n_bytes;
        const unsigned char *text = v->t->corpus->held + (there ? at : 0);
        v->ids[i * seq + k] = there ? text[0] : 0;
        v->ids[n + i * seq + k] = there ? text[1] : MT_IGNORE;
    }
}

static bool add_windows(windows *v, int64_t first)
{
    const mti_workload *w = &v->t->workload;
    int64_t length = piece_length(w), n = v->rows * length, counted = 0;
    int64_t *targets = v->ids + n;
    double loss = 0;
    for (int64_t i = 0; i < v->rows; i++) fill_row(v, i, first + i);
    keep_piece(w, 2 * v->rows, v->ids);
    for (int64_t i = 0; i < n; i++) counted += targets[i] != MT_IGNORE;
    if (!counted) targets[0] = 0; /* a mean needs one; it is not added */
    MT_AUTO mt_tensor *x = tensor_of(v->t, v->rows, length, v->ids);
    MT_AUTO mt_tensor *y = tensor_of(v->t, v->rows, length, targets);
    if (!x || !y || mt_stage_evaluate(&v->t->stage, x, y, &loss) != MT_OK) return false;
    if (counted) v->nats += loss * (double)counted;
    return true;
}

bool mti_rank_trainer_held_out(mti_trainer *t, size_t n_bytes, double *nats)
{
    const mti_workload *w = &t->workload;
    int64_t data = n_data(w), seq = w->seq;
    int64_t all = ((int64_t)n_bytes + seq - 1) / seq, rows = (EVAL_BATCH + data - 1) / data;
    windows v = {.t = t, .n_bytes = n_bytes, .rows = rows < all ? rows : all};
    v.ids = mti_malloc(2 * (size_t)(v.rows * seq) * sizeof *v.ids);
    bool ok = v.ids != NULL;
    for (int64_t first = 0; ok && first < all; first += v.rows * data)
        ok = add_windows(&v, first + w->parallel.data_rank * v.rows);
    mti_free(v.ids);
    const mt_parallel h = mti_filled_in(&w->parallel);
    const mt_group group = mti_data_group(&h);
    *nats = v.nats;
    return ok && mti_replicas_sum(t->device, &group, nats);
}

/* ---- what two steps take ---- */

bool mti_rank_trainer_begin_watch(mti_trainer *t)
{
    mt_mem_reset_peak(t->device);
    return (t->ledger = mt_ledger_new(t->device)) != NULL;
}

void mti_rank_trainer_end_watch(mti_trainer *t, size_t figures[MTI_FIGURES])
{
    mt_mem_stats stats;
    mt_mem_get_stats(t->device, &stats);
    figures[MTI_SAVED] = mt_ledger_bytes(t->ledger);
    figures[MTI_PEAK] = stats.allocated.peak;
    figures[MTI_RESERVED] = stats.reserved.peak;
    mt_ledger_free(t->ledger);
    t->ledger = NULL;
}

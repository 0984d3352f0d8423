/* step.c: the 1F1B schedule of one rank, run and measured.
 *
 * A stage of a pipeline first runs some forwards, then forward and backward alternately, then the
 * remaining backwards (Narayanan et al. 2021). With m parts a stage they run in groups of p
 * microbatches: part 0 of all p, then part 1 of the same, ... The first stage of p has
 * min(p, microbatches) in flight, or p m + p - 1 parts: 1 + (p-1)/(p m) times as much. */
#include <string.h>
#include "memtape/ops.h"
#include "nn/model.h"
#include "parallel/parallel.h"

typedef struct run {
    mt_device *device;
    int64_t batch, seq;
    mti_share *shares; /* [n_parts] */
    mt_module **parts; /* [n_parts] */
    int64_t n_parts, micro;
    mt_tensor **out; /* [micro * n_parts]: where backward begins */
    mt_ledger *ledger;
    mti_zero *zero;
} run;

/* ---- the schedule ---- */

typedef struct turn {
    int64_t micro, part;
} turn;

static turn turn_at(const run *r, int64_t k, bool backward)
{
    int64_t p = r->shares->parallel.pipeline, m = r->n_parts;
    if (m == 1) return (turn){k, 0};
    int64_t part = k % (p * m) / p;
    return (turn){k / (p * m) * p + k % p, backward ? m - 1 - part : part};
}

/* Forwards before the first backward. */
static int64_t n_ahead(const mt_parallel *h)
{
    int64_t after = h->pipeline - 1 - h->stage, p = h->pipeline, m = h->interleave;
    int64_t ahead = m == 1 ? after : 2 * after + (m - 1) * p;
    int64_t all = h->microbatches * m - 1;
    return (ahead < all ? ahead : all) + 1;
}

/* Enough microbatches for forward and backward to alternate a few times. */
static int64_t n_enough(const mt_parallel *h)
{
    int64_t unit = h->interleave > 1 ? h->pipeline : 1;
    int64_t most = (n_ahead(h) + h->interleave - 1) / h->interleave + 2;
    most = (most + unit - 1) / unit * unit;
    return most < h->microbatches ? most : h->microbatches;
}

/* ---- one turn ---- */

static mt_tensor *loss_of(const mt_model_config *c, mt_tensor *logits, mt_tensor *target)
{
    if (!logits || mt_scope_push("loss") != MT_OK) return NULL;
    mt_tensor *loss = mt_model_loss(c, logits, target);
    mt_scope_pop();
    return loss;
}

static bool forward(run *r, turn t)
{
    const mti_share *s = &r->shares[t.part];
    mt_module *part = r->parts[t.part];
    MT_AUTO mt_tensor *in = s->first ? mt_zeros(r->device, MT_I64, MT_SHAPE(r->batch, r->seq))
                                     : mt_rank_wire(part, r->device, r->batch, r->seq);
    MT_AUTO mt_tensor *target =
        s->last ? mt_zeros(r->device, MT_I64, MT_SHAPE(r->batch, r->seq)) : NULL;
    if (!in || (s->last && !target) || mt_ledger_begin(r->ledger) != MT_OK) return false;
    mt_tensor *y = mt_forward(part, in);
    if (s->last) mt_set(&y, loss_of(&s->whole, y, target));
    r->out[t.micro * r->n_parts + t.part] = y;
    return mt_ledger_end(r->ledger) == MT_OK && y;
}

static bool backward(run *r, turn t)
{
    mt_tensor **y = &r->out[t.micro * r->n_parts + t.part];
    MT_AUTO mt_tensor *gradient = NULL;
    if (!r->shares[t.part].last) { /* stands for the gradient from the next stage */
        gradient = mt_zeros(r->device, mt_dtype_of(*y), 0, NULL);
        mt_set(&gradient, gradient ? mt_expand(gradient, mt_rank(*y), mt_shape(*y)) : NULL);
        if (!gradient) return false;
    }
    mt_status status = mt_backward_with(*y, &(mt_backward_options){.gradient = gradient});
    mt_release(*y);
    *y = NULL;
    return status == MT_OK;
}

/* ---- the step ---- */

/* Measures what is kept while most parts are in flight. */
static bool measure_saved(run *r, const char *checkpoint, mt_rank_report *out)
{
    mti_flight f = {.batch = r->batch, .seq = r->seq, .checkpoint = checkpoint};
    for (int64_t k = 0; k < out->in_flight; k++) {
        const mti_share *s = &r->shares[turn_at(r, k, false).part];
        f.layers += s->to - s->from;
        f.first += s->first;
        f.last += s->last;
    }
    out->saved = mt_ledger_live_bytes(r->ledger);
    out->n_rows = 0;
    return mti_rank_explain(r->shares, &f, r->ledger, out);
}

static bool run_schedule(run *r, const char *checkpoint, mt_rank_report *out)
{
    int64_t n = r->micro * r->n_parts, ahead = out->in_flight, back = 0;
    for (int64_t k = 0; k < n; k++) {
        if (!forward(r, turn_at(r, k, false))) return false;
        if (k + 1 == ahead && !measure_saved(r, checkpoint, out)) return false;
        if (k + 1 >= ahead && !backward(r, turn_at(r, back++, true))) return false;
    }
    while (back < n)
        if (!backward(r, turn_at(r, back++, true))) return false;
    return true;
}

/* Before there is optimizer state. */
static bool first_step(run *r, const char *checkpoint, mt_rank_report *out)
{
    mt_mem_stats stats;
    mt_mem_reset_peak(r->device);
    if (!run_schedule(r, checkpoint, out)) return false;
    mt_mem_get_stats(r->device, &stats);
    out->peak = stats.allocated.peak;
    out->reserved = stats.reserved.peak;
    return mti_zero_step(r->zero, NULL);
}

static bool steady_step(run *r, const char *checkpoint, mt_rank_report *out)
{
    mt_mem_stats stats;
    mt_mem_reset_peak(r->device);
    if (!run_schedule(r, checkpoint, out) || !mti_zero_step(r->zero, out)) return false;
    mt_mem_get_stats(r->device, &stats);
    out->steady_peak = stats.allocated.peak;
    out->steady_reserved = stats.reserved.peak;
    memcpy(out->steady_by_category, stats.at_peak, sizeof out->steady_by_category);
    return true;
}

/* ---- making ---- */

/* Counts the parameters before ZeRO cuts them, on a separate device. */
static bool count_params(run *r, const mt_model_config *config, int64_t part, mt_rank_report *out)
{
    mt_parallel plain = r->shares[part].parallel;
    plain.zero = 0;
    mt_device *apart = mt_device_open("meta");
    mt_module *m = apart ? mt_rank_new(apart, config, &plain, part) : NULL;
    uint64_t n;
    bool ok = m && mt_module_size(m, &n, NULL) == MT_OK;
    if (ok) out->n_params += n;
    mt_module_free(m);
    mt_device_release(apart);
    return ok;
}

static bool prepare(run *r, const mt_model_config *config, const mt_parallel *parallel,
                    const char *checkpoint, mt_rank_report *out)
{
    mti_share first;
    if (!mti_share_make(&first, config, parallel, 0) ||
        !mti_check_length("rank_measure", &first, r->seq))
        return false;
    r->n_parts = first.parallel.interleave;
    r->micro = n_enough(&first.parallel);
    r->shares = mti_calloc((size_t)r->n_parts, sizeof *r->shares);
    r->parts = mti_calloc((size_t)r->n_parts, sizeof *r->parts);
    r->out = mti_calloc((size_t)(r->micro * r->n_parts), sizeof *r->out);
    r->ledger = mt_ledger_new(r->device);
    if (!r->shares || !r->parts || !r->out || !r->ledger) return false;
    for (int64_t i = 0; i < r->n_parts; i++) {
        if (!mti_share_make(&r->shares[i], config, parallel, i) ||
            !count_params(r, config, i, out) ||
            !(r->parts[i] = mt_rank_new(r->device, config, parallel, i)) ||
            mt_model_checkpoint(r->parts[i], checkpoint) != MT_OK)
            return false;
        out->layers += r->shares[i].to - r->shares[i].from;
    }
    out->in_flight = n_ahead(&first.parallel);
    r->zero = mti_zero_new(&first.parallel, r->parts, (size_t)r->n_parts);
    return r->zero != NULL;
}

static void clean_up(run *r)
{
    for (int64_t i = 0; r->out && i < r->micro * r->n_parts; i++) mt_release(r->out[i]);
    mt_ledger_free(r->ledger);
    mti_zero_free(r->zero);
    for (int64_t i = 0; r->parts && i < r->n_parts; i++) mt_module_free(r->parts[i]);
    mti_free(r->out);
    mti_free(r->parts);
    mti_free(r->shares);
}

static bool check(mt_device *device, int64_t batch, int64_t seq, const char *checkpoint)
{
    static const char *const presets[] = {"none", "full", "selective"};
    if (mt_device_has_data(device))
        return mti_fail_bool(MT_ERR_UNSUPPORTED,
                             "rank_measure: the device is %s; need one without data: meta",
                             mt_device_kind(device));
    if (batch < 1 || seq < 1 || batch > INT32_MAX || seq > INT32_MAX)
        return mti_fail_bool(MT_ERR_ARGUMENT, "rank_measure: batch %lld, seq %lld; need at least 1",
                             (long long)batch, (long long)seq);
    return mti_choose("rank_measure: checkpoint", presets, 3, checkpoint) >= 0;
}

mt_status mt_rank_measure(mt_device *device, const mt_model_config *config,
                          const mt_parallel *parallel, int64_t batch, int64_t seq,
                          const char *checkpoint, mt_rank_report *out)
{
    if (!mti_given(device, "rank_measure", "the device")) return mt_last_status();
    if (!out) return mti_fail(MT_ERR_ARGUMENT, "rank_measure: the report is NULL");
    if (!checkpoint) checkpoint = "none";
    if (!check(device, batch, seq, checkpoint)) return mt_last_status();
    mt_rank_report report = {0};
    run r = {.device = device, .batch = batch, .seq = seq};
    bool ok = prepare(&r, config, parallel, checkpoint, &report) &&
              first_step(&r, checkpoint, &report) && steady_step(&r, checkpoint, &report);
    clean_up(&r);
    if (!ok) return mt_last_status();
    *out = report;
    return MT_OK;
}

/* rank.c: measuring one rank of several, on meta or among the others. */
#include <string.h>
#include "measure/rank.h"
#include "measure/two_steps.h"
#include "plan/plan.h"

/* ---- one rank ---- */

static bool check(const mt_device *device, int64_t batch, int64_t seq, const char *checkpoint)
{
    static const char *const presets[] = {"none", "full", "selective", "ops"};
    if (mt_device_has_data(device))
        return mti_fail_bool(MT_ERR_UNSUPPORTED,
                             "rank_measure: the device is %s; need one without data: meta",
                             mt_device_kind(device));
    if (batch < 1 || seq < 1 || batch > INT32_MAX || seq > INT32_MAX)
        return mti_fail_bool(MT_ERR_ARGUMENT, "rank_measure: batch %lld, seq %lld; need at least 1",
                             (long long)batch, (long long)seq);
    return mti_choose("rank_measure: checkpoint", presets, sizeof presets / sizeof *presets,
                      checkpoint) >= 0;
}

/* The formula that a profile has, too. */
static bool explain(mt_rank_report *out, const mti_workload *w)
{
    mti_formula f;
    if (!mti_formula_make(&f, &w->config, w->batch, w->seq, &w->memory, &w->parallel, out->saved))
        return false;
    _Static_assert(MTI_MAX_RESIDUALS <= MT_RANK_ROWS && sizeof f.text <= MT_RANK_TEXT,
                   "a report has room for a formula");
    out->formula = f.bytes;
    out->unexplained = f.unexplained;
    out->n_rows = f.n_residual;
    strcpy(out->text, f.text);
    for (int i = 0; i < f.n_residual; i++)
        out->rows[i] = (mt_rank_row){f.residual[i].text, f.residual[i].bytes};
    return true;
}

static void report(mt_rank_report *out, const mti_measurement *m)
{
    out->layers = m->layers;
    out->n_params = m->n_params;
    out->param_bytes = m->param_bytes;
    out->grad_bytes = m->grad_bytes;
    out->optimizer_bytes = m->optimizer_bytes;
    out->in_flight = m->in_flight;
    out->saved = mt_ledger_bytes(m->ledger);
    out->steady_peak = m->steady.peak;
    out->steady_reserved = m->steady.reserved;
    memcpy(out->steady_by_category, m->steady.by_category, sizeof out->steady_by_category);
    for (int i = 1; i <= 2; i++) { /* forward and backward */
        const mti_phase *phase = &m->phases.at[i];
        if (phase->peak > out->peak) out->peak = phase->peak;
        if (phase->reserved_peak > out->reserved) out->reserved = phase->reserved_peak;
    }
}

mt_status mt_rank_measure(mt_device *device, const mt_model_config *config,
                          const mt_parallel *parallel, int64_t batch, int64_t seq,
                          const char *checkpoint, mt_rank_report *out)
{
    static const mt_parallel alone;
    if (!mti_given(device, "rank_measure", "the device")) return mt_last_status();
    if (!out) return mti_fail(MT_ERR_ARGUMENT, "rank_measure: the report is NULL");
    if (!checkpoint) checkpoint = "none";
    if (!check(device, batch, seq, checkpoint)) return mt_last_status();
    mti_workload w = {
        .batch = batch,
        .seq = seq,
        .optimizer = MTI_OPT_DEFAULT,
        .memory = {.checkpoint = strcmp(checkpoint, "none") ? checkpoint : NULL, .master = true},
        .ranked = true,
        .parallel = parallel ? *parallel : alone};
    if (mt_model_config_resolve(config, &w.config) != MT_OK) return mt_last_status();
    mti_measurement m;
    mt_rank_report made = {0};
    bool ok = mti_measure(&m, device, &w, NULL);
    if (ok) report(&made, &m);
    ok = ok && explain(&made, &w);
    mti_measurement_free(&m);
    if (ok) *out = made;
    return ok ? MT_OK : mt_last_status();
}

/* ---- among others: predicted and measured ---- */

const char *const mti_figure_names[MTI_FIGURES] = {"saved", "peak", "reserved"};

static void note(size_t figures[MTI_FIGURES], const mti_measurement *m)
{
    figures[MTI_SAVED] = mt_ledger_bytes(m->ledger);
    figures[MTI_PEAK] = m->steady.peak;
    figures[MTI_RESERVED] = m->steady.reserved;
}

bool mti_rank_run_predict(mti_rank_run *r, const mti_workload *w, const char *advice)
{
    mti_workload meta = *w;
    const mt_parallel *h = &w->parallel;
    *r = (mti_rank_run){.figures = {.rank = w->rank,
                                    .tensor_rank = h->tensor_rank,
                                    .data_rank = h->data_rank,
                                    .stage = h->stage}};
    meta.device = mti_device_twin(&w->device);
    if (!mti_profile_make(&r->predicted, &meta, advice, false)) return false;
    r->figures.n_params = r->predicted.measured.n_params;
    note(r->figures.predicted, &r->predicted.measured);
    return true;
}

#define COMMS 10

static void list_comms(const mt_parallel *h, const mt_comm *comms[COMMS])
{
    comms[0] = h->tensor_comm, comms[1] = h->context_comm, comms[2] = h->data_comm;
    comms[3] = h->pipeline_comm, comms[4] = h->ends_comm;
    comms[5] = h->shard_comm, comms[6] = h->replica_comm, comms[7] = h->reshard_comm;
    comms[8] = h->expert_comm, comms[9] = h->expert_data_comm;
}

uint64_t mti_parallel_sent(const mt_parallel *h)
{
    const mt_comm *comms[COMMS];
    uint64_t sent = 0;
    list_comms(h, comms);
    for (int i = 0; i < COMMS; i++) sent += mt_comm_sent(comms[i]);
    return sent;
}

void mti_parallel_times(const mt_parallel *h, double *in_comms, double *hidden)
{
    const mt_comm *comms[COMMS];
    *in_comms = *hidden = 0;
    list_comms(h, comms);
    for (int i = 0; i < COMMS; i++) {
        *in_comms += mt_comm_seconds(comms[i]);
        *hidden += mt_comm_hidden(comms[i]);
    }
}

bool mti_rank_run_measure(mti_rank_run *r, const mti_workload *w, const char *advice)
{
    uint64_t before = mti_parallel_sent(&w->parallel);
    if (!mti_profile_make(&r->measured, w, advice, false)) return false;
    note(r->figures.measured, &r->measured.measured);
    r->figures.skipped = r->measured.measured.steady.skipped;
    r->figures.sent = mti_parallel_sent(&w->parallel) - before;
    r->figures.seconds = r->measured.measured.steady.seconds;
    return true;
}

size_t mti_rank_run_difference(const mti_rank_figures *f)
{
    size_t sum = 0;
    if (f->skipped) return 0; /* not to be compared */
    for (int i = 0; i < MTI_FIGURES; i++)
        sum += f->measured[i] > f->predicted[i] ? f->measured[i] - f->predicted[i]
                                                : f->predicted[i] - f->measured[i];
    return sum;
}

void mti_rank_run_free(mti_rank_run *r)
{
    mti_profile_free(&r->predicted);
    mti_profile_free(&r->measured);
}

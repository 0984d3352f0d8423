/* rank.c: measuring one rank of several. */
#include <string.h>
#include "measure/rank.h"
#include "measure/step.h"
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
    return mti_choose("rank_measure: checkpoint", presets, 4, checkpoint) >= 0;
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

/* ---- four models under six techniques ---- */

/* Korthikanti et al. 2022, table 3: all with t = 8. */
static const struct model {
    int64_t pipeline, interleave, batch, microbatches;
} models[MTI_RANKS_MODELS] = {{1, 1, 4, 1}, {8, 3, 1, 64}, {35, 3, 1, 280}, {64, 1, 1, 512}};
const char *const mti_ranks_presets[MTI_RANKS_MODELS] = {"megatron-22b", "megatron-175b",
                                                         "megatron-530b", "megatron-1t"};

static const struct technique {
    int64_t tensor;
    bool sequence;
    const char *checkpoint;
} techniques[MTI_RANKS_TECHNIQUES] = {{1, false, "none"},     {8, false, "none"},
                                      {8, true, "none"},      {8, false, "selective"},
                                      {8, true, "selective"}, {8, false, "full"}};
/* Table 2. */
const char *const mti_ranks_formulas[MTI_RANKS_TECHNIQUES] = {
    "sbh(34 + 5as/h)",   "sbh(10 + 24/t + 5as/(ht))",
    "sbh(34 + 5as/h)/t", "sbh(10 + 24/t)",
    "34sbh/t",           "2sbh"};
const char *const mti_ranks_techniques[MTI_RANKS_TECHNIQUES] = {
    "none", "tp", "tp, sp", "tp, selective", "tp, sp, selective", "full"};

static bool measure(const mti_workload *w, const mt_parallel *parallel, mt_rank_report *out)
{
    mt_device *device = mti_device_make(&w->device);
    bool ok = device && mt_rank_measure(device, &w->config, parallel, w->batch, w->seq,
                                        w->memory.checkpoint, out) == MT_OK;
    mt_device_release(device);
    return ok;
}

bool mti_ranks_make(mti_ranks_result *r)
{
    for (size_t k = 0; k < MTI_RANKS_TECHNIQUES; k++)
        for (size_t i = 0; i < MTI_RANKS_MODELS; i++) {
            const struct technique *t = &techniques[k];
            const struct model *m = &models[i];
            mti_workload w = {
                .batch = m->batch, .memory.checkpoint = t->checkpoint, .device.kind = "meta"};
            if (mt_model_preset(mti_ranks_presets[i], &w.config) != MT_OK) return false;
            w.config.dropout = 0.1, w.config.attention = MT_ATTENTION_MATH;
            w.config.dtype = MT_BF16, w.seq = w.config.context;
            mt_parallel parallel = {.tensor = t->tensor,
                                    .sequence = t->sequence,
                                    .pipeline = w.config.layers,
                                    .stage = 1,
                                    .microbatches = 1};
            if (!measure(&w, &parallel, &r->layer[k][i])) return false;
            parallel.pipeline = m->pipeline, parallel.interleave = m->interleave;
            parallel.stage = 0, parallel.microbatches = m->microbatches;
            if (!measure(&w, &parallel, &r->stage[k][i])) return false;
        }
    return true;
}

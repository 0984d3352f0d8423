/* rank.c: measuring one rank of several. */
#include "measure/need.h"
#include "measure/rank.h"

bool mti_rank_make(mti_rank_result *r, const mti_workload *w, const mt_parallel *parallel,
                   bool bounded)
{
    mti_device_options options = w->device;
    if (!bounded) options.capacity = 0;
    *r =
        (mti_rank_result){.workload = w, .parallel = parallel, .device = mti_device_make(&options)};
    bool ok = r->device && mt_rank_measure(r->device, &w->config, parallel, w->batch, w->seq,
                                           w->memory.checkpoint, &r->report) == MT_OK;
    r->refused = !ok && options.capacity && mti_was_refused(r->device);
    return ok;
}

void mti_rank_free(mti_rank_result *r)
{
    mt_device_release(r->device);
    *r = (mti_rank_result){0};
}

int64_t mti_rank_off_by(const mti_rank_result *r)
{
    int64_t off = (int64_t)r->report.steady_peak;
    for (int c = 0; c < MT_CATEGORY_COUNT; c++) off -= (int64_t)r->report.steady_by_category[c];
    return off ? off : r->report.unexplained;
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
const char *const mti_ranks_techniques[MTI_RANKS_TECHNIQUES] = {
    "none", "tp", "tp, sp", "tp, selective", "tp, sp, selective", "full"};

static bool measure(const mti_workload *w, const mt_parallel *parallel, mt_rank_report *out)
{
    mti_rank_result r;
    bool ok = mti_rank_make(&r, w, parallel, false);
    *out = r.report;
    mti_rank_free(&r);
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

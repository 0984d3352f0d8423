/* rank.c: one rank of several on a device of its own. */
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

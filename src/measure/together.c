/* together.c: a rank among others, predicted and measured. */
#include "measure/together.h"
#include <string.h>

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
    meta.device.scratch_of_cpu = w->device.scratch_of_cpu || !strcmp(w->device.kind, "cpu");
    meta.device.kind = "meta";
    meta.device.threads = 0;
    if (!mti_profile_make(&r->predicted, &meta, advice, false)) return false;
    r->figures.n_params = r->predicted.measured.n_params;
    note(r->figures.predicted, &r->predicted.measured);
    return true;
}

#define COMMS 5

static void list_comms(const mt_parallel *h, const mt_comm *comms[COMMS])
{
    comms[0] = h->tensor_comm, comms[1] = h->context_comm, comms[2] = h->data_comm;
    comms[3] = h->pipeline_comm, comms[4] = h->ends_comm;
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

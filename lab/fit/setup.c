/* setup.c: what a set-up needs, measured as a profile measures it. */
#include <string.h>
#include "fit/search.h"
#include "measure/two_steps.h"
#include "nn/model.h"

mti_workload mti_fit_workload(const mti_fit_task *task, const mt_fit_setup *s)
{
    mti_workload w = *task->workload;
    w.batch = s->microbatch;
    w.seq = task->seq;
    w.ranked = true;
    w.parallel = s->parallel;
    w.memory.checkpoint = strcmp(s->checkpoint, "none") != 0 ? s->checkpoint : NULL;
    w.memory.offload = strcmp(s->offload, "none") != 0 ? MTI_OFFLOAD_CPU : MTI_OFFLOAD_NONE;
    w.device.kind = "meta";
    w.device.capacity = 0;
    return w;
}

/* Whether the stage needs more than what s was seen to need until now. */
static bool needs_more(const mt_fit_setup *s, const mt_fit_setup *stage)
{
    if (s->fits != stage->fits) return s->fits;
    return stage->reserved > s->reserved;
}

static void take(mt_fit_setup *stage, const mti_measurement *m)
{
    stage->peak = m->steady.peak;
    stage->reserved = m->steady.reserved;
    stage->states = (size_t)m->param_bytes - m->param_host + m->grad_bytes + m->optimizer_bytes;
    stage->host = m->memory_stats.host_peak + m->optimizer_host + m->param_host;
    memcpy(stage->by_category, m->steady.by_category, sizeof stage->by_category);
}

/* The copies of all ranks of a node, each as many as the neediest's, are in its memory. */
static void check_host(const mti_fit_task *task, mt_fit_setup *s)
{
    int64_t node = task->gpu.in_a_node;
    s->host *= (size_t)(task->gpus < node ? task->gpus : node);
    s->fits_host = !task->host_memory || s->host <= task->host_memory;
    s->fits = s->fits && s->fits_host;
}

/* Where more is reserved than there is, the allocator may still get by: it gives cached segments
 * back. Whether it does, a run with the capacity says. */
static bool try_within(const mti_fit_task *task, mt_fit_setup *stage, mti_workload *w,
                       mti_fit_measured *seen)
{
    mti_measurement m;
    mti_requirement need;
    bool refused;
    w->device.capacity = task->capacity;
    seen->profiles++;
    stage->fits = mti_measure_requirement(&need, &m, w, NULL, &refused);
    if (stage->fits) take(stage, &m);
    mti_measurement_free(&m);
    if (refused) mt_clear_error();
    return stage->fits || refused;
}

static bool measure_stage(const mti_fit_task *task, mt_fit_setup *stage, mti_fit_measured *seen)
{
    mti_measurement m;
    mti_requirement need;
    mti_workload w = mti_fit_workload(task, stage);
    bool ok = mti_fit_memo_measure(task, &w, &need, &m);
    seen->profiles++;
    if (ok) {
        take(stage, &m);
        stage->time = mti_fit_time_of(task, stage, &m);
        stage->fits = need.reserved <= task->capacity;
        if (need.requested > seen->requested) seen->requested = need.requested;
    }
    mti_measurement_free(&m);
    return ok &&
           (stage->fits || need.requested > task->capacity || try_within(task, stage, &w, seen));
}

/* Tokens in a second, and the share of all GPUs' FLOP/s that the model's FLOPs are. */
static void rate(const mti_fit_task *task, mt_fit_setup *s)
{
    double tokens = (double)task->batch * (double)task->seq;
    s->tokens_per_second = tokens / s->time.total;
    s->mfu = task->model_flops / (s->time.total * (double)task->gpus * task->gpu.flops);
}

int64_t mti_fit_fewest_in_flight(const mt_parallel *h) { return h->pipeline > 2 ? h->pipeline : 2; }

/* Measures the stage with fewer microbatches, which need no more than all. */
static bool measure_few(const mti_fit_task *task, mt_fit_setup stage, mti_fit_measured *seen)
{
    const int64_t few = mti_fit_fewest_in_flight(&stage.parallel);
    if (stage.parallel.microbatches < 2 * few) return true;
    stage.parallel.microbatches = few;
    return measure_stage(task, &stage, seen);
}

bool mti_fit_measure(const mti_fit_task *task, mt_fit_setup *s, mti_fit_measured *seen)
{
    const bool ruled_out = task->least && mti_fit_least_states(task, &s->parallel) > task->capacity;
    mt_fit_setup ends[2] = {*s, *s};
    int n = s->parallel.pipeline > 1 ? 2 : 1;
    *seen = (mti_fit_measured){0};
    ends[0].parallel.stage = 0;
    ends[1].parallel.stage = s->parallel.pipeline - 1;
    for (int i = 0; i < n; i++) {
        if (ruled_out && !measure_few(task, ends[i], seen)) return false;
        seen->far = ruled_out && seen->requested > task->least;
        if (seen->far) return true;
        if (!measure_stage(task, &ends[i], seen)) return false;
        seen->far = ruled_out && seen->requested > task->least;
        const mt_fit_time *t = &ends[0].time;
        if (i == 0) seen->sending = t->layers + t->context + t->experts + t->stages;
        seen->slow = n == 2 && i == 0 && task->bound > 0 && ends[0].time.total > task->bound;
        if (seen->slow) return true;
        if (!ends[i].fits && !task->nearest) n = i + 1; /* one is enough */
    }
    *s = ends[n == 2 && needs_more(&ends[0], &ends[1])];
    for (int i = 0; i < n; i++) { /* the slower stage sets the pace */
        if (ends[i].time.total > s->time.total) s->time = ends[i].time;
        if (ends[i].states > s->states) s->states = ends[i].states;
        if (ends[i].host > s->host) s->host = ends[i].host;
    }
    check_host(task, s);
    rate(task, s);
    return true;
}

/* One sequence on one rank. */
static bool measure_alone(mti_fit_task *task, const char *checkpoint, double *flops)
{
    mti_measurement m;
    mti_requirement need;
    const mt_fit_setup alone = {.parallel = mti_filled_in(&(mt_parallel){0}),
                                .checkpoint = checkpoint,
                                .offload = "none",
                                .microbatch = 1};
    mti_workload w = mti_fit_workload(task, &alone);
    bool ok = mti_fit_memo_measure(task, &w, &need, &m);
    const mt_flops *f = &m.steady.flops;
    const double once = (double)f->forward + (double)f->backward, batch = (double)task->batch;
    task->model_flops = once * batch;
    task->states = (mti_states){(size_t)m.param_bytes, m.grad_bytes, m.optimizer_bytes};
    *flops = (once + (double)f->recompute) * batch;
    mti_measurement_free(&m);
    return ok;
}

bool mti_fit_measure_model(mti_fit_task *task)
{
    const char *before = "none";
    double flops;
    bool ok = measure_alone(task, before, &flops);
    mti_policies_make(task);
    for (int i = 0; ok && i < task->n_policies && !task->any; i++) {
        mti_policy *p = &task->policies[i];
        if (strcmp(p->checkpoint, before) != 0) ok = measure_alone(task, p->checkpoint, &flops);
        before = p->checkpoint;
        p->flops = flops;
    }
    return ok;
}

/* How many of the elements of the model's parameters are experts'. */
static double share_of_experts(const mti_fit_task *task)
{
    const mt_model_config *c = &task->workload->config;
    const mt_parallel alone = {.expert = 1, .tensor = 1};
    uint64_t all;
    if (!c->experts || mt_model_config_params(c, &all) != MT_OK) return 0;
    return mti_fit_expert_layers(c) * mti_fit_experts_of_layer(c, &alone) / (double)all;
}

/* Bytes that are not cut among ranks with other data: except for experts', which `expert` ranks
 * divide. Where weights are codes, experts may have any share of them. */
static size_t least_uncut(const mti_fit_task *task, size_t bytes, const mt_parallel *h)
{
    const double share = task->workload->memory.qlora ? 1 : share_of_experts(task);
    if (h->expert == 1) return bytes;
    return (size_t)((1 - 1e-9) * (double)bytes * (1 - share + share / (double)h->expert));
}

/* Each parameter is on some rank of those that share the model, so one of them has at least the
 * average; it is the first or the last stage, as those between have as many layers and no more. */
size_t mti_fit_least_states(const mti_fit_task *task, const mt_parallel *h)
{
    const mti_states *s = &task->states;
    const size_t ranks = (size_t)(h->tensor * h->pipeline), data = (size_t)(h->data * h->context);
    const size_t bytes[] = {s->optimizer / ranks, s->grads / ranks, s->params / ranks};
    size_t sum = 0;
    for (int i = 0; i < 3; i++)
        sum += h->zero > i ? bytes[i] / data : least_uncut(task, bytes[i], h);
    return sum;
}

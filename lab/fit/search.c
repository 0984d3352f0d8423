/* search.c: layouts shared among threads, each measuring on its own devices. */
#include <stdlib.h>
#include <string.h>
#include "fit/search.h"
#include "fit/at_once.h"

typedef struct search {
    const mti_fit_task *task;
    mti_layouts layouts;  /* the fastest first; with `any` and for the nearest: the smallest */
    mti_fit_found *found; /* [layouts.n]: the order does not depend on the threads */
    size_t begin;         /* of those that are being explored */
    int64_t measured;
} search;

/* ---- threads ---- */

static bool any_fits(const mti_fit_found *found)
{
    for (size_t i = 0; i < found->setups.n; i++)
        if (found->setups.at[i].fits) return true;
    return false;
}

static bool explore_one(void *user, size_t i)
{
    search *s = user;
    i += s->begin;
    return mti_fit_explore(s->task, &s->layouts.at[i], &s->found[i]);
}

/* Whether to go on. */
static bool note_one(void *user, size_t n_done, size_t i)
{
    search *s = user;
    const mt_fit_options *o = s->task->options;
    const mti_fit_found *found = &s->found[s->begin + i];
    s->measured += (int64_t)found->setups.n;
    if (o->progress)
        o->progress(o->user, (int64_t)(s->begin + n_done), (int64_t)s->layouts.n, s->measured);
    return !s->task->any || !any_fits(found);
}

/* Explores those from `begin` up to `end`. */
static bool explore(search *s, size_t begin, size_t end)
{
    s->begin = begin;
    return mti_work_at_once(&(mti_tasks){.n = end - begin,
                                         .most = s->task->options->threads,
                                         .work = explore_one,
                                         .done = note_one,
                                         .user = s});
}

#define WAVE 16 /* layouts; the bound is that of earlier waves, however many threads there are */

static bool explore_in_waves(search *s, mti_fit_task *task, size_t begin)
{
    mti_fit_fastest best = {0};
    const bool at_once = task->any || task->nearest;
    for (size_t end; begin < s->layouts.n; begin = end) {
        end = at_once || s->layouts.n - begin < WAVE ? s->layouts.n : begin + WAVE;
        if (!explore(s, begin, end)) return false;
        for (size_t i = begin; i < end; i++)
            for (size_t k = 0; k < s->found[i].setups.n; k++)
                mti_fit_note(&best, &s->found[i].setups.at[k]);
        if (best.n == MTI_FIT_FASTEST) task->bound = best.at[0].time.total;
    }
    return true;
}

/* ---- the result ---- */

static int by_number(double a, double b) { return (a > b) - (a < b); }
static int by_size(size_t a, size_t b) { return (a > b) - (a < b); }

/* A total order: equal ones differ in how they divide the model. */
static int by_layout(const mt_fit_setup *a, const mt_fit_setup *b)
{
    const mt_parallel *x = &a->parallel, *y = &b->parallel;
    const int64_t pairs[][2] = {{x->tensor, y->tensor},         {x->pipeline, y->pipeline},
                                {x->interleave, y->interleave}, {x->context, y->context},
                                {x->expert, y->expert},         {x->zero, y->zero},
                                {a->microbatch, b->microbatch}};
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++)
        if (pairs[i][0] != pairs[i][1]) return pairs[i][0] < pairs[i][1] ? -1 : 1;
    int order = strcmp(a->checkpoint, b->checkpoint);
    return order ? order : strcmp(b->offload, a->offload);
}

static int by_worth(const void *x, const void *y)
{
    const mt_fit_setup *a = x, *b = y;
    if (a->fits != b->fits) return a->fits ? -1 : 1;
    int order = a->fits ? by_number(a->time.total, b->time.total) : b->fits_host - a->fits_host;
    if (!order) order = by_size(a->reserved, b->reserved);
    return order ? order : by_layout(a, b);
}

static bool collect(search *s, mt_fit_result *out)
{
    for (size_t i = 0; i < s->layouts.n; i++) out->n += s->found[i].setups.n;
    out->setups = mti_calloc(out->n, sizeof *out->setups);
    if (!out->setups) return false;
    size_t n = 0;
    for (size_t i = 0; i < s->layouts.n; i++) {
        const mti_fit_found *f = &s->found[i];
        if (f->setups.n) memcpy(&out->setups[n], f->setups.at, f->setups.n * sizeof *f->setups.at);
        n += f->setups.n;
        out->n_profiles += f->n_profiles;
        out->n_larger += f->n_larger;
        out->n_states += f->n_states;
        out->n_slower += f->n_slower;
    }
    qsort(out->setups, out->n, sizeof *out->setups, by_worth);
    while (out->n_fitting < out->n && out->setups[out->n_fitting].fits) out->n_fitting++;
    return true;
}

static void search_free(search *s)
{
    for (size_t i = 0; s->found && i < s->layouts.n; i++) mti_free(s->found[i].setups.at);
    mti_free(s->found);
    mti_free(s->layouts.at);
}

typedef struct ordered {
    mt_parallel layout;
    double least;   /* seconds, or bytes */
    int64_t tensor; /* the most come first; 0: in any order */
    size_t at;
} ordered;

static int by_least(const void *x, const void *y)
{
    const ordered *a = x, *b = y;
    int order = by_number(a->least, b->least);
    if (!order) order = (b->tensor > a->tensor) - (b->tensor < a->tensor);
    return order ? order : by_size(a->at, b->at);
}

static double least_of(const mti_fit_task *task, const mt_parallel *h)
{
    mt_parallel most = *h;
    if (task->any || task->nearest) return (double)mti_fit_least_states(task, h);
    most.microbatches = h->pipeline > 1 ? task->batch / h->data : 1;
    return mti_fit_least_time(task, &most, task->model_flops, 0);
}

static bool order_layouts(search *s)
{
    size_t n = s->layouts.n;
    ordered *all = mti_calloc(n, sizeof *all);
    for (size_t i = 0; all && i < n; i++) {
        const mt_parallel *h = &s->layouts.at[i];
        all[i] = (ordered){*h, least_of(s->task, h), s->task->nearest ? h->tensor : 0, i};
    }
    if (all) qsort(all, n, sizeof *all, by_least);
    for (size_t i = 0; all && i < n; i++) s->layouts.at[i] = all[i].layout;
    mti_free(all);
    return all || !n;
}

/* The nearest of those that fit in the host's memory and are not like `other`; NULL: there is none.
 */
static const mt_fit_setup *nearest_of(const mti_fit_found *found, const mt_fit_setup *other)
{
    const mt_fit_setup *nearest = NULL;
    for (size_t i = 0; i < found->setups.n; i++) {
        const mt_fit_setup *s = &found->setups.at[i];
        if (s->fits_host && !(other && mti_fit_alike(s, other)) &&
            (!nearest || s->reserved < nearest->reserved))
            nearest = s;
    }
    return nearest;
}

/* Explores the layout with the least states alone. What is known to need more than its second kind
 * of set-up is none of the two that an answer shows. */
static bool explore_first(search *s, mti_fit_task *task)
{
    if (!explore(s, 0, 1)) return false;
    const mt_fit_setup *one = nearest_of(s->found, NULL),
                       *two = one ? nearest_of(s->found, one) : NULL;
    task->least = two ? two->reserved : one ? one->reserved : 0;
    return true;
}

/* Another thread may have found what fits in a later layout. */
static void keep_first_that_fits(search *s)
{
    bool fits = false;
    for (size_t i = 0; i < s->layouts.n; i++) {
        if (fits) s->found[i].setups.n = 0;
        fits = fits || any_fits(&s->found[i]);
    }
}

static bool search_once(mti_fit_task *task, mt_fit_result *out)
{
    search s = {.task = task};
    bool ok = mti_layouts_make(&s.layouts, task);
    if (ok && !s.layouts.n)
        ok = mti_fail_bool(MT_ERR_ARGUMENT,
                           "fit: no way to divide the model and %lld sequences among %lld GPUs; "
                           "the ranks with other data must divide the batch",
                           (long long)task->batch, (long long)task->gpus);
    ok = ok && order_layouts(&s);
    s.found = ok ? mti_calloc(s.layouts.n, sizeof *s.found) : NULL;
    ok = s.found && (!task->nearest || explore_first(&s, task)) &&
         explore_in_waves(&s, task, task->nearest ? 1 : 0);
    if (ok && task->any) keep_first_that_fits(&s);
    ok = ok && collect(&s, out);
    search_free(&s);
    return ok;
}

static void forget(mt_fit_result *out)
{
    mti_free(out->setups);
    out->setups = NULL;
    out->n = out->n_fitting = 0;
    out->n_larger = out->n_states = out->n_slower = 0;
}

/* If nothing fits, once more, for the nearest: that recomputing less did not fit says nothing of
 * how much is missing at best. */
static bool search_all(mti_fit_task *task, mt_fit_result *out)
{
    if (!search_once(task, out)) return false;
    if (out->n_fitting || task->any) return true;
    forget(out);
    task->nearest = true;
    return search_once(task, out);
}

/* ---- what is asked for ---- */

static bool in_range(const char *what, int64_t value, int64_t least, int64_t most)
{
    return (value >= least && value <= most) ||
           mti_fail_bool(MT_ERR_ARGUMENT, "fit: %s is %lld; need %lld to %lld", what,
                         (long long)value, (long long)least, (long long)most);
}

bool mti_multiplies_bf16(const mti_workload *w)
{
    return w->config.dtype == MT_BF16 || (w->memory.amp && w->memory.amp_dtype == MT_BF16);
}

static bool is_rate(double x) { return x > 0 && x <= 1; }

static bool check(const mti_fit_task *t, const mt_fit_options *o)
{
    static const mt_parallel alone;
    if (!in_range("gpus", t->gpus, 1, 1 << 20) || !in_range("batch", t->batch, 1, 1 << 20) ||
        !in_range("seq", t->seq, 1, t->workload->config.context))
        return false;
    if (!is_rate(t->utilisation))
        return mti_fail_bool(MT_ERR_ARGUMENT, "fit: utilisation is %g; need above 0, up to 1",
                             t->utilisation);
    if (t->gpu.f16_only && mti_multiplies_bf16(t->workload))
        return mti_fail_bool(MT_ERR_ARGUMENT,
                             "a %s multiplies no bf16; give --dtype f16, or --amp f16 beside "
                             "--dtype f32",
                             t->gpu.name);
    if (o->kept_aside >= t->gpu.memory)
        return mti_fail_bool(MT_ERR_ARGUMENT, "fit: %zu bytes kept aside, of %zu that a GPU has",
                             o->kept_aside, t->gpu.memory);
    return mt_parallel_check(&alone, &t->workload->config) == MT_OK;
}

bool mti_fit_run(const mti_workload *w, const mt_fit_options *o, bool any, int64_t known_batch,
                 mti_fit_memo *memo, mt_fit_result *out)
{
    double began = mti_now();
    mti_fit_task task = {.workload = w,
                         .options = o,
                         .gpu = *o->gpu,
                         .gpus = o->gpus,
                         .batch = o->batch ? o->batch : o->gpus,
                         .seq = w->seq,
                         .capacity = o->gpu->memory - o->kept_aside,
                         .host_memory = o->host_memory,
                         .utilisation = o->utilisation != 0 ? o->utilisation : 1,
                         .any = any,
                         .known_batch = known_batch,
                         .memo = memo};
    *out = (mt_fit_result){.gpu = task.gpu,
                           .gpus = task.gpus,
                           .batch = task.batch,
                           .seq = task.seq,
                           .capacity = task.capacity};
    if (!task.host_memory) task.host_memory = mti_gpu_host_memory(o->gpu, o->gpus);
    if (!check(&task, o) || !mti_fit_measure_model(&task) || !search_all(&task, out)) return false;
    out->host_memory = task.host_memory;
    out->seconds = mti_now() - began;
    return true;
}

void mt_fit_free(mt_fit_result *result)
{
    if (!result) return;
    mti_free(result->setups);
    *result = (mt_fit_result){0};
}

/* measure.c: what each choice of each layer costs, measured in simulations of the whole
 * step.
 *
 * A simulation measures as many segments as fit side by side: what each one's forward keeps, and
 * the highest allocation in its forward and backward, above what the layers before it keep. Layers
 * that run the same ops and take the same bytes form a class, and a segment's figures hold for
 * every run of layers of the same classes. FLOPs are counted for single layers and add up exactly:
 * a checkpoint recomputes what it does not keep, up to the last saved tensor. */
#include <string.h>
#include "memory/budget.h"

typedef struct layer {
    int64_t kept, forward, backward, growth; /* without checkpoints */
    size_t first_op, n_ops;
    uint64_t flops, bytes, core_bytes; /* of its ops' results */
    uint64_t product_flops[MTI_BUDGET_PRODUCTS], product_bytes[MTI_BUDGET_PRODUCTS];
    int64_t like; /* the first layer of the same class */
    /* of that first one: recomputed FLOPs if nothing is kept, FLOPs that keeping a product saves,
     * and recomputed FLOPs of the core */
    uint64_t recomputed, saved[MTI_BUDGET_PRODUCTS], core_recomputed;
} layer;

/* A segment to be measured. */
typedef struct job {
    int64_t from;
    mti_budget_option o; /* backward: without the gradients of later layers */
    bool done;
} job;

typedef struct measuring {
    mt_budget *b;
    mti_budget_ops ops;
    int64_t n;
    layer *layers;
    int64_t *after; /* [n]: gradients and the like of everything behind layer i */
    mti_budget_watch watch;
    MTI_VEC(job) jobs;
} measuring;

static int64_t larger(int64_t a, int64_t b) { return a > b ? a : b; }

/* ---- simulations ---- */

static void clear_watch(measuring *m)
{
    mti_budget_record *at = m->watch.at;
    if (at) memset(at, 0, ((size_t)m->n + 1) * sizeof *at);
    m->watch = (mti_budget_watch){.layers = m->n, .at = at, .place = -1};
}

static void add_plain(mt_budget_plan *plan, int64_t from, int64_t to)
{
    for (int64_t i = from; i < to; i++)
        mti_budget_plan_add(plan, (mti_budget_segment){.from = i, .n = 1});
}

/* *flops: recomputed if layer i alone takes the choice. */
static bool count_recomputed(measuring *m, int64_t i, mti_budget_choice choice, uint64_t *flops)
{
    mt_budget_plan *plan = mti_budget_plan_new(m->b, m->n);
    if (!plan) return false;
    add_plain(plan, 0, i);
    mti_budget_plan_add(plan, (mti_budget_segment){i, 1, choice});
    add_plain(plan, i + 1, m->n);
    clear_watch(m);
    bool ok = mti_budget_simulate(m->b, plan, &m->watch, NULL);
    *flops = plan->figures.flops.recompute;
    mti_budget_plan_free(plan);
    return ok;
}

/* ---- the layers without checkpoints ---- */

static void sum_ops(measuring *m, int64_t i)
{
    layer *l = &m->layers[i];
    for (size_t k = 0; k < m->ops.list.n; k++) {
        const mti_budget_op *op = &m->ops.list.at[k];
        if (op->layer != i) continue;
        if (!l->n_ops++) l->first_op = k;
        l->flops += op->flops * m->ops.forwards;
        l->bytes += op->bytes;
        if (!strcmp(op->module, "attn.heads")) l->core_bytes += op->bytes;
        for (int p = 0; p < m->b->n_products; p++) {
            if (!op->flops || op->gone || !mti_budget_op_is(op, &m->b->products[p])) continue;
            l->product_flops[p] += op->flops * m->ops.forwards;
            l->product_bytes[p] += op->bytes;
        }
    }
    m->b->has_core = m->b->has_core || l->core_bytes;
}

static bool are_alike(const measuring *m, const layer *a, const layer *b)
{
    if (a->n_ops != b->n_ops || a->kept != b->kept || a->forward != b->forward ||
        a->backward != b->backward || a->growth != b->growth)
        return false;
    for (size_t k = 0; k < a->n_ops; k++) {
        const mti_budget_op *x = &m->ops.list.at[a->first_op + k],
                            *y = &m->ops.list.at[b->first_op + k];
        if (strcmp(x->op, y->op) != 0 || strcmp(x->module, y->module) != 0 ||
            x->bytes != y->bytes || x->flops != y->flops)
            return false;
    }
    return true;
}

/* From the run without checkpoints. */
static void read_layers(measuring *m)
{
    const mti_budget_record *at = m->watch.at;
    for (int64_t i = 0; i < m->n; i++) m->after[i] = at[i].at_backward - at[i + 1].before;
    for (int64_t i = 0; i < m->n; i++) {
        layer *l = &m->layers[i];
        l->kept = at[i + 1].before - at[i].before;
        l->forward = at[i].forward - at[i].before;
        l->backward = at[i].backward - at[i].before - m->after[i];
        /* The first layer's own difference is not comparable with the others'. */
        l->growth = i ? m->after[i - 1] - m->after[i] : m->n > 1 ? m->after[0] - m->after[1] : 0;
        sum_ops(m, i);
        l->like = 0;
        while (!are_alike(m, &m->layers[l->like], l)) l->like++;
    }
    mti_budget_table *t = &m->b->table;
    t->head = larger(at[m->n].forward, at[m->n].backward) - at[m->n].before;
    t->rest = m->watch.rest;
}

static bool count_layers_recomputed(measuring *m)
{
    for (int64_t i = 0; i < m->n; i++) {
        layer *l = &m->layers[i];
        if (l->like != i) continue;
        const mti_budget_choice all = {MTI_BUDGET_WHOLE, 0}, core = {MTI_BUDGET_CORE, 0};
        if (!count_recomputed(m, i, all, &l->recomputed)) return false;
        if (l->core_bytes && !count_recomputed(m, i, core, &l->core_recomputed)) return false;
        for (int p = 0; p < m->b->n_products; p++) {
            uint64_t flops;
            const mti_budget_choice but_one = {MTI_BUDGET_WHOLE, 1u << p};
            if (!count_recomputed(m, i, but_one, &flops)) return false;
            l->saved[p] = l->recomputed - flops;
        }
    }
    return true;
}

/* ---- segments ---- */

/* Whether n layers from i on have the classes of those from j on. */
static bool same_run(const measuring *m, int64_t i, int64_t j, int64_t n)
{
    for (int64_t k = 0; k < n; k++)
        if (m->layers[i + k].like != m->layers[j + k].like) return false;
    return true;
}

static int64_t first_like(const measuring *m, int64_t i, int64_t n)
{
    int64_t j = 0;
    while (!same_run(m, i, j, n)) j++;
    return j;
}

static void count_segment(const measuring *m, int64_t from, mti_budget_option *o)
{
    for (int64_t i = from; o->choice.form != MTI_BUDGET_PLAIN && i < from + o->n; i++) {
        const layer *l = &m->layers[i], *class = &m->layers[l->like];
        if (o->choice.form == MTI_BUDGET_CORE) {
            o->flops += class->core_recomputed;
            o->remade += l->core_bytes;
            continue;
        }
        bool last = i == from + o->n - 1; /* it alone stops early */
        o->flops += last ? class->recomputed : l->flops;
        o->remade += l->bytes;
        for (int p = 0; p < m->b->n_products; p++) {
            if (!(o->choice.keeps >> p & 1)) continue;
            o->flops -= last ? class->saved[p] : l->product_flops[p];
            o->remade -= l->product_bytes[p];
        }
    }
}

static bool add_job(measuring *m, int64_t from, int64_t n, mti_budget_choice choice)
{
    job j = {.from = from, .o = {.n = n, .choice = choice}};
    count_segment(m, from, &j.o);
    return MTI_PUSH(&m->jobs, j);
}

static void read_job(measuring *m, job *j, int64_t at)
{
    const mti_budget_record *r = m->watch.at;
    int64_t end = at + j->o.n, before = r[at].before;
    j->o.kept = r[end].before - before;
    for (int64_t i = at; i < end; i++) {
        j->o.forward = larger(j->o.forward, r[i].forward - before);
        j->o.backward = larger(j->o.backward, r[i].backward - before - m->after[end - 1]);
    }
    j->done = true;
}

/* A job that can be measured at layer i and is not taken yet; NULL if there is none. */
static job *find_job(measuring *m, int64_t i, job *const *taken, int64_t n_taken)
{
    for (size_t k = 0; k < m->jobs.n; k++) {
        job *j = &m->jobs.at[k];
        bool fits = !j->done && j->o.n <= m->n - i && same_run(m, j->from, i, j->o.n);
        for (int64_t t = 0; fits && t < n_taken; t++) fits = taken[t] != j;
        if (fits) return j;
    }
    return NULL;
}

/* One simulation, with as many jobs as fit side by side. */
static bool run_some_jobs(measuring *m, job **taken)
{
    mt_budget_plan *plan = mti_budget_plan_new(m->b, m->n);
    if (!plan) return false;
    int64_t n = 0;
    for (int64_t i = 0; i < m->n;) {
        job *j = find_job(m, i, taken, n);
        if (j) taken[n++] = j;
        mti_budget_plan_add(plan, (mti_budget_segment){i, j ? j->o.n : 1,
                                                       j ? j->o.choice : (mti_budget_choice){0}});
        i += j ? j->o.n : 1;
    }
    clear_watch(m);
    bool ok = mti_budget_simulate(m->b, plan, &m->watch, NULL);
    int64_t k = 0;
    for (size_t s = 0; ok && s < plan->n && k < n; s++) {
        const mti_budget_segment *segment = &plan->segments[s];
        if (segment->n == taken[k]->o.n && segment->choice.form == taken[k]->o.choice.form &&
            segment->choice.keeps == taken[k]->o.choice.keeps)
            read_job(m, taken[k++], segment->from);
    }
    mti_budget_plan_free(plan);
    return ok;
}

static bool run_jobs(measuring *m)
{
    job **taken = mti_calloc((size_t)m->n, sizeof *taken);
    bool ok = taken != NULL;
    for (size_t k = 0; ok && k < m->jobs.n; k++)
        while (ok && !m->jobs.at[k].done) ok = run_some_jobs(m, taken);
    mti_free(taken);
    return ok;
}

/* ---- which segments ---- */

/* No larger in any figure. */
static bool is_no_dearer(const mti_budget_option *a, const mti_budget_option *b)
{
    bool cheap = a->flops < b->flops || (a->flops == b->flops && a->remade <= b->remade);
    return cheap && a->kept <= b->kept && a->forward <= b->forward && a->backward <= b->backward;
}

/* Another job for the same layers is no dearer; of equal ones the first stays. */
static bool is_needless(const measuring *m, size_t k)
{
    const job *j = &m->jobs.at[k];
    for (size_t i = 0; i < m->jobs.n; i++) {
        const job *other = &m->jobs.at[i];
        if (i == k || !other->done || other->from != j->from || other->o.n != j->o.n) continue;
        if (is_no_dearer(&other->o, &j->o) && (i < k || !is_no_dearer(&j->o, &other->o)))
            return true;
    }
    return false;
}

static bool add_single_layers(measuring *m)
{
    for (int64_t i = 0; i < m->n; i++) {
        if (m->layers[i].like != i) continue;
        if (!add_job(m, i, 1, (mti_budget_choice){MTI_BUDGET_PLAIN, 0})) return false;
        if (m->layers[i].core_bytes && !add_job(m, i, 1, (mti_budget_choice){MTI_BUDGET_CORE, 0}))
            return false;
        for (unsigned keeps = 0; keeps < 1u << m->b->n_products; keeps++)
            if (!add_job(m, i, 1, (mti_budget_choice){MTI_BUDGET_WHOLE, keeps})) return false;
    }
    return true;
}

/* Lengths of groups: up to 8, and those that divide the layers into equal parts. */
static bool is_length(const measuring *m, int64_t n)
{
    if (n <= 8) return true;
    int64_t parts = (m->n + n - 1) / n;
    return n == (m->n + parts - 1) / parts;
}

/* Groups keep only sets of products that are useful for some single layer. */
static bool add_groups(measuring *m)
{
    size_t n_single = m->jobs.n;
    bool useful[1u << MTI_BUDGET_PRODUCTS] = {false};
    for (size_t k = 0; k < n_single; k++)
        if (m->jobs.at[k].o.choice.form == MTI_BUDGET_WHOLE && !is_needless(m, k))
            useful[m->jobs.at[k].o.choice.keeps] = true;
    useful[0] = true;
    for (int64_t n = 2; n <= m->n; n++) {
        for (int64_t i = 0; is_length(m, n) && i + n <= m->n; i++) {
            if (first_like(m, i, n) != i) continue;
            for (unsigned keeps = 0; keeps < 1u << m->b->n_products; keeps++)
                if (useful[keeps] &&
                    !add_job(m, i, n, (mti_budget_choice){MTI_BUDGET_WHOLE, keeps}))
                    return false;
        }
    }
    return true;
}

static bool add_options(measuring *m, size_t k)
{
    const job *j = &m->jobs.at[k];
    for (int64_t i = 0; i + j->o.n <= m->n; i++) {
        if (first_like(m, i, j->o.n) != j->from) continue;
        mti_budget_option o = j->o;
        o.backward += m->after[i + o.n - 1];
        if (!MTI_PUSH(&m->b->table.at[i], o)) return false;
    }
    return true;
}

static bool fill_table(measuring *m)
{
    mti_budget_table *t = &m->b->table;
    t->at = mti_calloc((size_t)m->n, sizeof *t->at);
    if (!t->at) return false;
    t->layers = m->n;
    for (size_t k = 0; k < m->jobs.n; k++)
        if (!is_needless(m, k) && !add_options(m, k)) return false;
    return true;
}

/* ---- all steps ---- */

static bool find_layers(measuring *m)
{
    mt_budget_plan *none = mti_budget_plan_new(m->b, 1);
    if (!none) return false;
    clear_watch(m);
    bool ok = mti_budget_simulate(m->b, none, &m->watch, &m->ops);
    mti_budget_plan_free(none);
    if (!ok) return false;
    m->n = m->ops.layers;
    if (!m->n)
        return mti_fail_bool(MT_ERR_ARGUMENT, "budget: no layers were run; need a gpt, bert or "
                                              "llama");
    m->b->n_products = mti_budget_find_products(&m->ops, m->b->products);
    m->layers = mti_calloc((size_t)m->n, sizeof *m->layers);
    m->after = mti_calloc((size_t)m->n, sizeof *m->after);
    m->watch.at = mti_calloc((size_t)m->n + 1, sizeof *m->watch.at);
    return m->b->n_products >= 0 && m->layers && m->after && m->watch.at;
}

static bool run_plainly(measuring *m)
{
    mt_budget_plan *plan = mti_budget_plan_new(m->b, m->n);
    if (!plan) return false;
    add_plain(plan, 0, m->n);
    clear_watch(m);
    bool ok = mti_budget_simulate(m->b, plan, &m->watch, NULL);
    m->b->plain_peak = (int64_t)plan->figures.peak;
    mti_budget_plan_free(plan);
    if (ok) read_layers(m);
    return ok;
}

bool mti_budget_measure(mt_budget *b)
{
    measuring m = {.b = b, .ops.last = INT64_MAX};
    bool ok = find_layers(&m) && run_plainly(&m) && count_layers_recomputed(&m) &&
              add_single_layers(&m) && run_jobs(&m) && add_groups(&m) && run_jobs(&m) &&
              fill_table(&m);
    mti_free(m.ops.list.at);
    mti_free(m.layers);
    mti_free(m.after);
    mti_free(m.watch.at);
    mti_free(m.jobs.at);
    return ok;
}

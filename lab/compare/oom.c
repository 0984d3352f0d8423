/* oom.c: what the predicted run has that a message may be about, and what it does in as much
 * memory. */
#include <stdlib.h>
#include <string.h>
#include "compare/oom.h"
#include "memtrack/memtrack.h"

/* ---- who asks for so many bytes ---- */

static bool is_asked(const mti_oom *oom, size_t n_bytes)
{
    const size_t n = mti_segment_size(n_bytes);
    return n >= oom->asked.low && n <= oom->asked.high;
}

static bool alike(const mti_asker *a, const mt_mem_event *e)
{
    return a->bytes == e->requested && !strcmp(a->op, e->op) && !strcmp(a->phase, e->phase) &&
           !mti_compare_paths(a->module, e->module);
}

static bool add(mti_compared_oom *c, const mt_mem_event *e)
{
    const char *digits = mti_number_in(e->module);
    const long number = *digits ? strtol(digits, NULL, 10) : -1;
    for (size_t i = 0; i < c->askers.n; i++) {
        mti_asker *a = &c->askers.at[i];
        if (!alike(a, e)) continue;
        a->n++;
        if (number < a->first) a->first = number;
        if (number > a->last) a->last = number;
        return true;
    }
    mti_asker a = {.op = e->op,
                   .phase = e->phase,
                   .category = e->category,
                   .bytes = e->requested,
                   .n = 1,
                   .first = number,
                   .last = number};
    snprintf(a.module, sizeof a.module, "%s", e->module);
    return MTI_PUSH(&c->askers, a);
}

static size_t apart(size_t a, size_t b) { return a > b ? a - b : b - a; }

/* Forward's first, and of a phase the most frequent. */
static int forward_first(const void *a, const void *b)
{
    const mti_asker *x = a, *y = b;
    const int order = strcmp(y->phase, x->phase); /* step, init, forward, backward */
    if (order) return order;
    return x->n != y->n ? (x->n < y->n ? 1 : -1) : strcmp(x->module, y->module);
}

/* Lists them, and finds the one before which about as much was allocated as the message says. */
static bool find_askers(mti_compared_oom *c, const mti_timeline *t)
{
    const mti_byte_range *held = &c->read.allocated;
    const size_t wanted = (size_t)(held->low / 2 + held->high / 2);
    size_t least = SIZE_MAX;
    for (size_t i = 0; i < t->events.n; i++) {
        const mt_mem_event *e = &t->events.at[i];
        if (e->kind != MT_MEM_ALLOC || !is_asked(&c->read, e->requested)) continue;
        if (!add(c, e)) return false;
        const size_t before = e->current - e->allocated;
        if (held->high && apart(before, wanted) < least) {
            least = apart(before, wanted);
            c->nearest = i;
            c->found = true;
        }
    }
    for (size_t i = 0; i < c->askers.n; i++) {
        mti_asker *a = &c->askers.at[i];
        char name[sizeof a->module];
        memcpy(a->module, mti_name_all(name, sizeof name, a->module, a->first, a->last),
               sizeof name);
    }
    if (c->askers.n) qsort(c->askers.at, c->askers.n, sizeof *c->askers.at, forward_first);
    return true;
}

/* ---- the size as a product ---- */

typedef struct factor {
    const char *name;
    int64_t value;
} factor;

/* Adds the product a b if so many elements of 2, 4 or 8 bytes may be what was asked for: `whole`,
 * as they are, or else only up to whole segments. A size under 10 MiB is never told. */
static void name_product(mti_compared_oom *c, const char *name, int64_t a, int64_t b, bool whole)
{
    static const int widths[] = {2, 4, 8};
    size_t n = 0, bytes;
    if (a < 1 || b < 1 || !mti_mul_size((size_t)a, (size_t)b, &n)) return;
    for (size_t i = 0; i < sizeof widths / sizeof *widths; i++) {
        if (!mti_mul_size(n, (size_t)widths[i], &bytes) || bytes < (size_t)10 << 20 ||
            !is_asked(&c->read, bytes) || whole != (mti_segment_size(bytes) == bytes))
            continue;
        mti_append(c->product, sizeof c->product, "%s%s x %d bytes", *c->product ? ", or " : "",
                   name, widths[i]);
    }
}

/* Adds the products of a batch, a weight, unfused attention's scores, all parameters and shards. */
static void name_products(mti_compared_oom *c, const mti_workload *w, const mt_model_config *m,
                          int64_t parameters, bool whole)
{
    char name[64];
    const factor widths[] = {{"h", m->hidden},
                             {"f", m->ffn},
                             {"v", m->vocab},
                             {"a x head_dim", m->heads * m->head_dim},
                             {"kv_heads x head_dim", m->kv_heads * m->head_dim},
                             {"a x s", m->heads * w->seq}};
    const size_t n = sizeof widths / sizeof *widths;
    for (size_t i = 0; i < n; i++) {
        bool again = false;
        for (size_t k = 0; k < i; k++) again = again || widths[k].value == widths[i].value;
        if (again) continue;
        snprintf(name, sizeof name, "b x s x %s", widths[i].name);
        name_product(c, name, w->batch * w->seq, widths[i].value, whole);
        snprintf(name, sizeof name, "%s x h", widths[i].name);
        if (i < n - 1) name_product(c, name, widths[i].value, m->hidden, whole);
    }
    name_product(c, "all parameters", parameters, 1, whole);
    if (w->parallel.data > 1)
        name_product(c, "all parameters / dp", parameters / w->parallel.data, 1, whole);
}

static void find_products(mti_compared_oom *c, const mti_profile_result *p)
{
    mt_model_config m;
    if (mt_model_config_resolve(&p->workload.config, &m) != MT_OK) {
        mt_clear_error(); /* a linear, say */
        return;
    }
    for (int whole = 1; whole >= 0; whole--)
        name_products(c, &p->workload, &m, (int64_t)p->measured.n_params, whole);
}

/* ---- in so much memory ---- */

/* Makes two steps in that much, and if it is too little finds what would do. */
static bool run_within(mti_compared_oom *c, const mti_workload *w)
{
    mti_profile_result *p = &c->run;
    p->workload = *w;
    p->workload.device.capacity = c->capacity;
    p->device = mti_device_make(&p->workload.device);
    bool ok = p->device &&
              mti_measure(&p->measured, p->device, &p->workload, &(mti_watch){.timeline = true});
    c->refused = !ok && mti_was_refused(p->device);
    if (!c->refused) return ok;
    mt_clear_error();
    return mti_profile_find_requirement(p);
}

static bool try_change(mti_compared_oom *c, const mti_change *change)
{
    mti_tried t = {.change = change};
    mti_workload w = change->workload;
    mti_measurement m;
    bool refused = false;
    w.device.capacity = c->capacity;
    bool ok = mti_measure_requirement(&t.needed, &m, &w, NULL, &refused);
    mti_measurement_free(&m);
    t.fits = ok;
    if (!ok && refused) {
        mt_clear_error();
        w.device.capacity = 0;
        ok = mti_measure_requirement(&t.needed, &m, &w, NULL, &refused);
        mti_measurement_free(&m);
    }
    return ok && MTI_PUSH(&c->tried, t);
}

static bool fits_already(const mti_compared_oom *c, int kind)
{
    for (size_t i = 0; i < c->tried.n; i++)
        if (c->tried.at[i].fits && c->tried.at[i].change->kind == kind) return true;
    return false;
}

bool mti_oom_compare(mti_compared_oom *c, const mti_profile_result *profile,
                     const mti_changes *changes)
{
    bool ok = find_askers(c, &profile->measured.timeline);
    find_products(c, profile);
    c->capacity = mti_oom_capacity(&c->read);
    if (!ok || !c->capacity) return ok;
    ok = run_within(c, &profile->workload);
    for (size_t i = 0; ok && c->refused && i < changes->n; i++)
        if (!fits_already(c, changes->at[i].kind)) ok = try_change(c, &changes->at[i]);
    return ok;
}

void mti_oom_free(mti_compared_oom *c)
{
    if (!c) return;
    mti_free(c->askers.at);
    mti_free(c->tried.at);
    mti_profile_free(&c->run);
    *c = (mti_compared_oom){0};
}

/* sweep.c: workloads measured in turns, each on its own device, and their gradients compared.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "workload/routing.h"
#include "measure/two_steps.h"
#include "measure/headroom.h"
#include "measure/sweep.h"
#include "memtape/ops.h"

/* ---- all gradients of a step ---- */

typedef struct gradient {
    char *name;
    size_t n;
    double *at; /* exact: every dtype of ours fits */
} gradient;

typedef MTI_VEC(gradient) gradients;

/* Copies `from` to f64, through a separate device, so that the measured one allocates nothing. */
static bool widen(double *to, const mt_tensor *from, mt_device *separate)
{
    mt_dtype dtype = mt_dtype_of(from);
    size_t n = (size_t)mt_numel(from), n_bytes = n * mt_dtype_size(dtype);
    void *raw = mti_malloc(n_bytes);
    bool ok = raw && mt_to_host(from, raw, n_bytes) == MT_OK;
    mt_tensor *t =
        ok ? mt_from_data(separate, dtype, mt_rank(from), mt_shape(from), raw, n_bytes) : NULL;
    mti_free(raw);
    if (t) mt_set(&t, mt_cast(t, MT_F64));
    ok = t && mt_to_host(t, to, n * sizeof *to) == MT_OK;
    mt_release(t);
    return ok;
}

static bool take(gradients *g, const char *name, const mt_tensor *of, mt_device *separate)
{
    const mt_tensor *grad = mt_grad(of);
    if (!grad) return true;
    gradient *slot = MTI_RESERVE(g) ? &g->at[g->n++] : NULL;
    if (!slot) return false;
    size_t n = (size_t)mt_numel(grad);
    *slot = (gradient){.name = mti_strdup(name), .n = n, .at = mti_malloc(n * sizeof(double))};
    return slot->name && slot->at && widen(slot->at, grad, separate);
}

/* Takes the gradients of parameters and input, divided by scale. */
static bool gradients_take(gradients *g, const mti_subject *s, double scale)
{
    const mt_named_tensor *params;
    size_t n;
    *g = (gradients){0};
    mt_device *separate = mt_device_open("cpu");
    bool ok = separate && take(g, "input", s->input, separate) &&
              mt_module_params(s->stage.model, &params, &n) == MT_OK;
    for (size_t i = 0; ok && i < n; i++) ok = take(g, params[i].name, params[i].tensor, separate);
    mt_device_release(separate);
    for (size_t i = 0; ok && scale != 1 && i < g->n; i++)
        for (size_t k = 0; k < g->at[i].n; k++) g->at[i].at[k] /= scale;
    return ok;
}

static void gradients_free(gradients *g)
{
    for (size_t i = 0; i < g->n; i++) {
        mti_free(g->at[i].name);
        mti_free(g->at[i].at);
    }
    mti_free(g->at);
    *g = (gradients){0};
}

static const gradient *partner(const gradients *g, const gradient *of)
{
    for (size_t i = 0; i < g->n; i++)
        if (g->at[i].n == of->n && !strcmp(g->at[i].name, of->name)) return &g->at[i];
    return NULL;
}

static mti_gradient_difference gradients_compare(const gradients *a, const gradients *b)
{
    mti_gradient_difference d = {.same_bits = true};
    double off = 0, size = 0;
    for (size_t i = 0; i < a->n; i++) {
        const gradient *x = &a->at[i], *y = partner(b, x);
        if (!y) continue;
        d.compared++;
        d.same_bits = d.same_bits && !memcmp(x->at, y->at, x->n * sizeof *x->at);
        for (size_t k = 0; k < x->n; k++) {
            double by = y->at[k] - x->at[k];
            off += by * by;
            size += x->at[k] * x->at[k];
        }
    }
    d.alone = a->n + b->n - 2 * d.compared;
    d.same_bits = d.same_bits && d.compared > 0;
    d.relative = !isfinite(off) ? INFINITY : off == 0 ? 0 : sqrt(off / size);
    return d;
}

/* ---- the sweep ---- */

typedef struct sweep {
    const mti_sweep_entry *entries;
    size_t n;
    mti_sweep_result *results;
    int64_t turns;
    double *seconds; /* [n][turns] */
    gradients first, now;
    double loss;
} sweep;

static bool look(void *user, const mti_subject *s, double loss, double scale)
{
    sweep *w = user;
    w->loss = loss;
    gradients_free(&w->now);
    return !mt_device_has_data(s->device) || gradients_take(&w->now, s, scale);
}

static void summarise(mti_sweep_result *r, const mti_measurement *m)
{
    r->saved = mt_ledger_bytes(m->ledger);
    r->asked = m->memory_stats.asked ? m->memory_stats.asked : r->saved;
    r->memory_stats = m->memory_stats;
    r->flops = m->flops;
    r->steady = m->steady;
    r->steady.ledger = NULL; /* the measurement's */
}

/* Fails if bytes are not accounted for. */
static bool balanced(const mti_sweep_result *r, const mti_growth *growth)
{
    if (growth->residual == 0 && r->formula.unexplained == 0) return true;
    return mti_fail_bool(MT_ERR_INTERNAL,
                         "row \"%s\": the books do not balance: growth off by %lld bytes, formula "
                         "by %lld",
                         r->entry->label, (long long)growth->residual,
                         (long long)r->formula.unexplained);
}

/* Takes all results but the time from the first turn. */
static bool note(sweep *w, size_t i, const mti_measurement *m, bool has_data)
{
    mti_sweep_result *r = &w->results[i];
    const mti_workload *load = &w->entries[i].workload;
    r->entry = &w->entries[i];
    summarise(r, m);
    r->loss = w->loss;
    r->has_data = has_data;
    if (!mti_routed_formula(&r->formula, load, has_data, r->saved) || !balanced(r, &m->growth))
        return false;
    if (!has_data) return true;
    if (i == 0) w->first = w->now, w->now = (gradients){0};
    r->off = gradients_compare(&w->first, i ? &w->now : &w->first);
    return true;
}

/* Out of memory in a row is a result, too; the sweep continues. */
static bool refused(sweep *w, size_t i, mt_device *device)
{
    if (!w->entries[i].workload.device.capacity || !mti_was_refused(device)) return false;
    mt_clear_error();
    w->results[i] =
        (mti_sweep_result){.entry = &w->entries[i], .loss = NAN, .step_s = NAN, .refused = true};
    return true;
}

/* One turn of a row, on its own device. */
static bool run_row(sweep *w, size_t i, int64_t turn)
{
    const mti_workload *load = &w->entries[i].workload;
    const mti_watch watch = {.look = look, .user = w};
    mti_measurement m = {0};
    mt_device *device = mti_device_make(&load->device);
    bool ok = device && mti_measure(&m, device, load, turn ? NULL : &watch) &&
              (turn > 0 || note(w, i, &m, mt_device_has_data(device)));
    ok = ok || (turn == 0 && refused(w, i, device));
    w->seconds[i * (size_t)w->turns + (size_t)turn] = m.steady.seconds;
    mti_measurement_free(&m);
    mt_device_release(device);
    return ok;
}

static int by_size(const void *a, const void *b)
{
    const double *x = a, *y = b;
    return (*x > *y) - (*x < *y);
}

static double median(double *x, size_t n)
{
    qsort(x, n, sizeof *x, by_size);
    return (x[(n - 1) / 2] + x[n / 2]) / 2;
}

/* Only one turn without data or after out of memory, where no time is measured. */
static int64_t turns_of(const sweep *w, size_t i)
{
    return w->results[i].has_data ? w->entries[i].steps : 1;
}

/* The entries take turns, so that a busier machine slows all of them. */
static bool run_all(sweep *w, const mti_sweep_listener *listener)
{
    bool ok = true;
    size_t n_turns = (size_t)w->turns;
    for (int64_t turn = 0; ok && turn < w->turns; turn++)
        for (size_t i = 0; ok && i < w->n; i++) {
            if (turn > 0 && turn >= turns_of(w, i)) continue;
            if (listener->on_turn) listener->on_turn(listener->user, turn, w->turns, i);
            ok = run_row(w, i, turn);
        }
    for (size_t i = 0; ok && i < w->n; i++)
        if (!w->results[i].refused)
            w->results[i].step_s = median(w->seconds + i * n_turns, (size_t)turns_of(w, i));
    return ok;
}

static bool check_room(const sweep *w, const char *advice)
{
    bool ok = true;
    for (size_t i = 0; ok && i < w->n; i++) {
        mti_workload load = w->entries[i].workload;
        load.name = w->entries[i].label;
        mt_device *device = mti_device_make(&load.device);
        ok = device && mti_check_room_for(device, &load, advice);
        mt_device_release(device);
    }
    return ok;
}

bool mti_sweep_run(const mti_sweep_entry *entries, size_t n, mti_sweep_result *results,
                   const mti_sweep_listener *listener, const char *advice)
{
    sweep w = {.entries = entries, .n = n, .results = results};
    for (size_t i = 0; i < n; i++)
        if (entries[i].steps > w.turns) w.turns = entries[i].steps;
    w.seconds = mti_calloc(n * (size_t)w.turns, sizeof *w.seconds);
    bool ok = w.seconds && check_room(&w, advice) && run_all(&w, listener);
    gradients_free(&w.first);
    gradients_free(&w.now);
    mti_free(w.seconds);
    return ok;
}

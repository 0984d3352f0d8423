/* sweep.c: `memtape sweep MODEL`: rows of options, each measured on a device of its own, and the
 * gradients of each compared with those of the first. */
#include <math.h>
#include <string.h>
#include "cli/profile.h"
#include "cli/sweep.h"
#include "cli/verbs.h"

typedef struct sweep {
    mti_sweep_rows rows;
    mti_sweep_result *results;
    mti_gradients first, now;
    double loss;
} sweep;

static bool look(void *user, const mti_subject *s, double loss, double scale)
{
    sweep *w = user;
    w->loss = loss;
    mti_gradients_free(&w->now);
    return !mt_device_has_data(s->device) || mti_gradients_take(&w->now, s, scale);
}

static void summarise(mti_sweep_result *r, const mti_measurement *m)
{
    r->saved = mt_ledger_bytes(m->ledger);
    r->asked = m->spent.asked ? m->spent.asked : r->saved;
    r->spent = m->spent;
    r->flops = m->flops;
    r->step_s = m->step_s;
    for (int i = 1; i < m->n_phases; i++) { /* 0 is init */
        if (m->phases[i].peak > r->peak) r->peak = m->phases[i].peak;
        if (m->phases[i].reserved > r->reserved) r->reserved = m->phases[i].reserved;
    }
}

/* What ought to be zero, or the books are wrong. */
static bool balanced(const mti_sweep_result *r, const mti_growth *growth)
{
    if (growth->residual == 0 && r->formula.unexplained == 0) return true;
    return mti_fail_bool(MT_ERR_INTERNAL,
                         "row \"%s\": the books do not balance: growth off by %lld bytes, formula "
                         "by %lld",
                         r->row->label, (long long)growth->residual,
                         (long long)r->formula.unexplained);
}

static bool run_row(sweep *w, size_t i)
{
    mti_sweep_result *r = &w->results[i];
    const mti_options *o = &w->rows.at[i].options;
    mti_trial trial = mti_trial_of(o);
    trial.repeats = o->steps;
    trial.look = look, trial.user = w;
    mti_measurement m = {0};
    mt_device *device = mti_open_device(o);
    r->row = &w->rows.at[i];
    bool ok = device && mti_measure(&m, device, &trial) &&
              mti_formula_make(&r->formula, &o->config, o->batch, o->seq, &o->spending,
                               mt_ledger_bytes(m.ledger));
    if (ok) {
        summarise(r, &m);
        r->loss = w->loss;
        r->has_data = mt_device_has_data(device);
        ok = balanced(r, &m.growth);
    }
    if (ok && r->has_data) {
        if (i == 0) w->first = w->now, w->now = (mti_gradients){0};
        r->off = mti_gradients_compare(&w->first, i ? &w->now : &w->first);
    }
    mti_measurement_free(&m);
    mt_device_release(device);
    return ok;
}

/* The rows run one after another, and the last takes as long as the first: say which it is. */
static bool run_all(sweep *w, const mti_options *o)
{
    mti_style style = mti_style_of(stderr);
    bool tell = style.live && !o->quiet, ok = true;
    for (size_t i = 0; ok && i < w->rows.n; i++) {
        if (tell) fprintf(stderr, "\r\x1b[K%zu of %zu: %s", i + 1, w->rows.n, w->rows.at[i].label);
        ok = run_row(w, i);
    }
    if (tell) fputs("\r\x1b[K", stderr);
    return ok;
}

int mti_sweep(const mti_options *options)
{
    mti_options o = *options;
    sweep w = {0};
    bool ok = mti_sweep_rows_make(&w.rows, &o);
    if (!ok && mt_last_status() == MT_OK) mti_fail(MT_ERR_ARGUMENT, "%s", o.error);
    w.results = ok ? mti_calloc(w.rows.n, sizeof *w.results) : NULL;
    bool to_stdout = o.json && !strcmp(o.json, "-");
    ok = w.results && run_all(&w, &o) && (to_stdout || mti_sweep_print(w.results, w.rows.n, &o)) &&
         (!o.json || mti_sweep_write_json(w.results, w.rows.n, &o)) &&
         (!o.svg || mti_sweep_draw(w.results, w.rows.n, &o));
    int status = ok ? MTI_EXIT_OK : mti_report_failure(&o);
    mti_gradients_free(&w.first);
    mti_gradients_free(&w.now);
    mti_free(w.results);
    mti_sweep_rows_free(&w.rows);
    return status;
}

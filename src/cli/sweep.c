/* sweep.c: `memtape sweep MODEL`: rows of options, each measured on a device of its own, and the
 * gradients of each compared with those of the first. */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "cli/profile.h"
#include "cli/room.h"
#include "cli/sweep.h"
#include "cli/verbs.h"

typedef struct sweep {
    mti_sweep_rows rows;
    mti_sweep_result *results;
    int64_t turns;
    double *seconds; /* [rows][turns] */
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
    r->steady = m->steady;
    r->steady.ledger = NULL; /* the measurement's */
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

/* What the first turn tells: all but the time. */
static bool note(sweep *w, size_t i, const mti_measurement *m, const mti_options *o, bool has_data)
{
    mti_sweep_result *r = &w->results[i];
    r->row = &w->rows.at[i];
    summarise(r, m);
    r->loss = w->loss;
    r->has_data = has_data;
    if (!mti_formula_make(&r->formula, &o->config, o->batch, o->seq, &o->spending, r->saved) ||
        !balanced(r, &m->growth))
        return false;
    if (!has_data) return true;
    if (i == 0) w->first = w->now, w->now = (mti_gradients){0};
    r->off = mti_gradients_compare(&w->first, i ? &w->now : &w->first);
    return true;
}

/* A row that the device has no room for is a result, too, and the others go on. */
static bool refused(sweep *w, size_t i, const mt_device *device)
{
    mt_mem_stats stats = {0};
    if (device) mt_mem_get_stats(device, &stats);
    if (mt_last_status() != MT_ERR_MEMORY || !stats.ooms || !w->rows.at[i].options.capacity)
        return false;
    mt_clear_error();
    w->results[i] =
        (mti_sweep_result){.row = &w->rows.at[i], .loss = NAN, .step_s = NAN, .refused = true};
    return true;
}

/* One turn of a row, on a device of its own. */
static bool run_row(sweep *w, size_t i, int64_t turn)
{
    const mti_options *o = &w->rows.at[i].options;
    mti_trial trial = mti_trial_of(o);
    if (turn == 0) trial.look = look, trial.user = w;
    mti_measurement m = {0};
    mt_device *device = mti_open_device(o);
    bool ok = device && mti_measure(&m, device, &trial) &&
              (turn > 0 || note(w, i, &m, o, mt_device_has_data(device)));
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

/* Where there is no data nobody asks for the time; nor where there was no room. */
static int64_t turns_of(const sweep *w, size_t i)
{
    return w->results[i].has_data ? w->rows.at[i].options.steps : 1;
}

/* The rows take turns, so that a machine that grows busy slows all of them. */
static bool run_all(sweep *w, const mti_options *o)
{
    mti_style style = mti_style_of(stderr);
    bool tell = style.live && !o->quiet, ok = true;
    size_t n_turns = (size_t)w->turns;
    for (int64_t turn = 0; ok && turn < w->turns; turn++)
        for (size_t i = 0; ok && i < w->rows.n; i++) {
            if (turn > 0 && turn >= turns_of(w, i)) continue;
            if (tell)
                fprintf(stderr, "\r\x1b[Kturn %lld of %lld, row %zu of %zu: %s",
                        (long long)turn + 1, (long long)w->turns, i + 1, w->rows.n,
                        w->rows.at[i].label);
            ok = run_row(w, i, turn);
        }
    if (tell) fputs("\r\x1b[K", stderr);
    for (size_t i = 0; ok && i < w->rows.n; i++)
        w->results[i].step_s = median(w->seconds + i * n_turns, (size_t)turns_of(w, i));
    return ok;
}

/* A row that the machine cannot hold ends the sweep before it begins. */
static bool check_room(const sweep *w)
{
    bool ok = true;
    for (size_t i = 0; ok && i < w->rows.n; i++) {
        const mti_options *o = &w->rows.at[i].options;
        mti_trial trial = mti_trial_of(o);
        mt_device *device = mti_open_device(o);
        ok = device && mti_check_room_for(o, device, &trial, w->rows.at[i].label);
        mt_device_release(device);
    }
    return ok;
}

int mti_sweep(const mti_options *options)
{
    mti_options o = *options;
    sweep w = {0};
    uint64_t failures = mti_failures();
    bool ok = mti_sweep_rows_make(&w.rows, &o);
    if (!ok) mti_fail_around(failures, MT_ERR_ARGUMENT, "%s", o.error);
    for (size_t i = 0; ok && i < w.rows.n; i++)
        if (w.rows.at[i].options.steps > w.turns) w.turns = w.rows.at[i].options.steps;
    w.results = ok ? mti_calloc(w.rows.n, sizeof *w.results) : NULL;
    w.seconds = ok ? mti_calloc(w.rows.n * (size_t)w.turns, sizeof *w.seconds) : NULL;
    bool to_stdout = o.json && !strcmp(o.json, "-");
    ok = w.results && w.seconds && check_room(&w) && run_all(&w, &o) &&
         (to_stdout || mti_sweep_print(w.results, w.rows.n, &o)) &&
         (!o.json || mti_sweep_write_json(w.results, w.rows.n, &o)) &&
         (!o.svg || mti_sweep_draw(w.results, w.rows.n, &o));
    int status = ok ? MTI_EXIT_OK : mti_report_failure(&o);
    mti_gradients_free(&w.first);
    mti_gradients_free(&w.now);
    mti_free(w.results);
    mti_free(w.seconds);
    mti_sweep_rows_free(&w.rows);
    return status;
}

/* profile.c: `memtape profile MODEL`: two training steps, the first under the ledger. */
#include <string.h>
#include "cli/profile.h"
#include "cli/room.h"
#include "cli/verbs.h"

static bool to_stdout(const char *path) { return path && !strcmp(path, "-"); }

/* Of a failed step too: up to the failure. */
static bool write_pictures(const mti_profile_data *p, const mti_options *o)
{
    char title[128];
    snprintf(title, sizeof title, "%s on %s: b=%lld s=%lld d=%lld, %s", o->model,
             mt_device_kind(p->device), (long long)o->batch, (long long)o->seq,
             (long long)o->config.hidden, mt_dtype_name(o->config.dtype));
    return (!o->svg || mti_timeline_draw(&p->measured.timeline, title, o->svg) == MT_OK) &&
           (!o->trace || mti_timeline_write_trace(&p->measured.timeline, o->trace) == MT_OK);
}

static bool write_reports(const mti_profile_data *p, const mti_options *o)
{
    if (!to_stdout(o->json) && !o->quiet && !mti_profile_print(p, stdout)) return false;
    return (!o->json || mti_json_write(mti_profile_json(p), o->json) == MT_OK) &&
           write_pictures(p, o);
}

/* Says what failed and, if the device was full, who had filled it. */
static int report_failure(const mti_profile_data *p, const mti_options *o)
{
    size_t event;
    bool full =
        mt_last_status() == MT_ERR_MEMORY && mti_timeline_refusal(&p->measured.timeline, &event);
    int status = mti_report_failure(o);
    if (!full) return status;
    char text[512];
    snprintf(text, sizeof text, "%s", mt_last_error());
    mt_clear_error(); /* it is told; what follows can fail on its own account */
    bool ok = to_stdout(o->json) || o->quiet || mti_print_refusal(p, event, stdout);
    ok = ok && (!o->json || mti_json_write(mti_profile_refused_json(p, event), o->json) == MT_OK) &&
         write_pictures(p, o);
    if (!ok) return mti_report_failure(o);
    mti_fail(MT_ERR_MEMORY, "%s", text);
    return status;
}

int mti_profile(const mti_options *o)
{
    if (mti_is_rank(o)) return mti_profile_rank(o);
    mti_profile_data p = {.options = o, .device = mti_open_device(o)};
    mti_trial trial = mti_trial_of(o);
    trial.timeline = true;
    bool ok = p.device && (!o->budget || mti_budgeted_make(&p.budgeted, o));
    if (o->budget) trial.spending = &p.budgeted.spending;
    ok = ok && mti_check_room_for(o, p.device, &trial, o->model) &&
         mti_measure(&p.measured, p.device, &trial) &&
         mti_formula_make(&p.formula, &o->config, o->batch, o->seq, trial.spending,
                          mt_ledger_bytes(p.measured.ledger)) &&
         write_reports(&p, o);
    int status = ok ? MTI_EXIT_OK : report_failure(&p, o);
    if (ok && (p.measured.growth.residual || p.formula.unexplained)) {
        fprintf(stderr,
                "memtape profile: the books do not balance: growth off by %lld bytes, "
                "formula by %lld\n",
                (long long)p.measured.growth.residual, (long long)p.formula.unexplained);
        status = MTI_EXIT_FAILED;
    }
    size_t highest = mti_highest_phase(&p.measured, NULL)->peak;
    if (ok && o->budget && highest > (size_t)o->budget) {
        fprintf(stderr,
                "memtape profile: the peak, %zu bytes, is above the budget: kernels of %s "
                "take scratch memory that was not foreseen\n",
                highest, o->device);
        status = MTI_EXIT_FAILED;
    }
    mti_measurement_free(&p.measured);
    mti_budgeted_free(&p.budgeted);
    mt_device_release(p.device);
    return status;
}

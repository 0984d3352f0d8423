/* profile.c: `memtape profile MODEL`: one training step under the ledger. */
#include <string.h>
#include "cli/profile.h"
#include "cli/verbs.h"

static bool write_reports(const mti_profile_data *p, const mti_options *o)
{
    bool to_stdout = o->json && !strcmp(o->json, "-");
    if (!to_stdout && !o->quiet && !mti_profile_print(p, stdout)) return false;
    return !o->json || mti_json_write(mti_profile_json(p), o->json) == MT_OK;
}

int mti_profile(const mti_options *o)
{
    mti_profile_data p = {.options = o, .device = mti_open_device(o)};
    mti_trial trial = mti_trial_of(o);
    bool ok = p.device && mti_measure(&p.measured, p.device, &trial) &&
              mti_formula_make(&p.formula, &o->config, o->batch, o->seq, &o->spending,
                               p.measured.ledger) &&
              write_reports(&p, o);
    int status = ok ? MTI_EXIT_OK : mti_report_failure(o);
    if (ok && (p.measured.growth.residual || p.formula.unexplained)) {
        fprintf(stderr,
                "memtape profile: the books do not balance: growth off by %lld bytes, "
                "formula by %lld\n",
                (long long)p.measured.growth.residual, (long long)p.formula.unexplained);
        status = MTI_EXIT_FAILED;
    }
    mti_measurement_free(&p.measured);
    mt_device_release(p.device);
    return status;
}

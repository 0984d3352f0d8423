/* compare.c: `memtape compare FILE... MODEL`: a measurement beside the prediction. */
#include "options/changes.h"
#include "options/option_table.h"
#include "verbs/verbs.h"
#include "compare/report_read.h"
#include "report/results.h"

static void set_defaults(mti_options *o) { o->workload.device.kind = "meta"; }

static bool check_words(mti_options *o)
{
    if (o->workload.name && o->compare.files.n) {
        o->compare.report = mti_is_report(o->workload.name) ? o->workload.name : NULL;
        char why[1024];
        snprintf(why, sizeof why, "does not apply beside a report, %s", o->workload.name);
        return !o->compare.report || mti_check_beside(o, MTI_BESIDE_A_REPORT, why);
    }
    return mti_options_refuse(
        o,
        "%s is missing; give FILE... MODEL, such as snapshot.pickle llama-3.1-8b: "
        "memory snapshots of PyTorch, logs or JSON, and last the model that "
        "ran, or its report",
        o->workload.name ? "FILE or MODEL" : "FILE");
}

static bool write_reports(const mti_compared *c, const mti_options *o)
{
    return (!mti_wants_text(o) || mti_print_compared(c, o->output.verbose, stdout)) &&
           mti_json_write_of(mti_describe_compared, c, o->output.json);
}

static bool compare(mti_compared *c, const mti_options *o, mti_option_changes *changes)
{
    mt_gpu gpu;
    if (!mti_find_gpu(o, &gpu)) return false;
    if (o->compare.report)
        return mti_compared_with_report(c, o->compare.files.at, o->compare.files.n,
                                        o->compare.report, &gpu);
    c->until = o->compare.until;
    return mti_option_changes_make(changes, o, false) &&
           mti_compared_make(c, o->compare.files.at, o->compare.files.n, &o->workload, &gpu,
                             &changes->changes, MTI_ON_META);
}

int mti_compare_verb(const mti_options *o)
{
    mti_compared c = {0};
    mti_option_changes changes = {0};
    const bool ok = compare(&c, o, &changes) && write_reports(&c, o);
    const int status = ok ? MTI_EXIT_OK : mti_report_failure(o);
    mti_compared_free(&c);
    mti_option_changes_free(&changes);
    return status;
}

const mti_verb_rules mti_compare_rules = {
    .verb = MTI_COMPARE, .defaults = set_defaults, .check_words = check_words};

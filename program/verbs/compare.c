/* compare.c: `memtape compare FILE... MODEL`: a measurement beside the prediction. */
#include "options/changes.h"
#include "options/option_table.h"
#include "verbs/verbs.h"
#include "compare/report_read.h"
#include "report/results.h"

static void set_defaults(mti_options *o) { o->workload.device.kind = "meta"; }

/* What a report was made of, it has been told. */
static bool check_report(mti_options *o)
{
    for (int id = 0; id < MTI_OPTION_COUNT; id++)
        if (o->given[id] && id != MTI_O_JSON && id != MTI_O_VERBOSE && id != MTI_O_QUIET &&
            id != MTI_O_GPU)
            return mti_options_refuse(o, "--%s: does not apply beside a report, %s",
                                      mti_option_rows[id].name, o->predicted);
    return true;
}

static bool check_words(mti_options *o)
{
    if (o->workload.name && o->measured.n) {
        o->predicted = mti_is_report(o->workload.name) ? o->workload.name : NULL;
        return !o->predicted || check_report(o);
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
    return (!mti_wants_text(o) || mti_print_compared(c, o->verbose, stdout)) &&
           (!o->json || mti_json_write(mti_json_of(mti_describe_compared, c), o->json) == MT_OK);
}

static bool compare(mti_compared *c, const mti_options *o, mti_option_changes *changes)
{
    mt_gpu gpu;
    if (!mti_find_gpu(o, &gpu)) return false;
    if (o->predicted)
        return mti_compared_with_report(c, o->measured.at, o->measured.n, o->predicted, &gpu);
    c->until = o->until;
    return mti_option_changes_make(changes, o, false) &&
           mti_compared_make(c, o->measured.at, o->measured.n, &o->workload, &gpu,
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

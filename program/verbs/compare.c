/* compare.c: `memtape compare FILE... MODEL`: a measurement beside the prediction. */
#include "options/changes.h"
#include "verbs/verbs.h"
#include "report/results.h"

static void set_defaults(mti_options *o) { o->workload.device.kind = "meta"; }

static bool check_words(mti_options *o)
{
    if (o->workload.name && o->measured.n) return true;
    return mti_options_refuse(
        o,
        "%s is missing; give FILE... MODEL, such as snapshot.pickle llama-3.1-8b: "
        "memory snapshots of PyTorch, logs or JSON, and last the model that "
        "ran",
        o->workload.name ? "FILE or MODEL" : "FILE");
}

static bool write_reports(const mti_compared *c, const mti_options *o)
{
    return (!mti_wants_text(o) || mti_print_compared(c, o->verbose, stdout)) &&
           (!o->json || mti_json_write(mti_json_of(mti_describe_compared, c), o->json) == MT_OK);
}

int mti_compare_verb(const mti_options *o)
{
    mti_compared c = {0};
    mti_option_changes changes = {0};
    mt_gpu gpu;
    bool ok = mti_find_gpu(o, &gpu) && mti_option_changes_make(&changes, o, false) &&
              mti_compared_make(&c, o->measured.at, o->measured.n, &o->workload, &gpu,
                                &changes.changes, MTI_ON_META) &&
              write_reports(&c, o);
    int status = ok ? MTI_EXIT_OK : mti_report_failure(o);
    mti_compared_free(&c);
    mti_option_changes_free(&changes);
    return status;
}

const mti_verb_rules mti_compare_rules = {
    .verb = MTI_COMPARE, .defaults = set_defaults, .check_words = check_words};

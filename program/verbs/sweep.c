/* sweep.c: `memtape sweep MODEL`: rows of options, measured side by side. */
#include <string.h>
#include "options/option_table.h"
#include "verbs/verbs.h"
#include "report/page.h"
#include "report/results.h"

static void show_turn(void *user, int64_t turn, int64_t n_turns, size_t row)
{
    const mti_sweep_rows *rows = user;
    fputs("\r\x1b[K", stderr);
    mti_print(stderr, "turn %lld of %lld, row %zu of %zu: %s", (long long)turn + 1,
              (long long)n_turns, row + 1, rows->n, rows->at[row].label);
}

static bool run(mti_sweep_rows *rows, mti_sweep_entry *entries, mti_sweep_result *results,
                bool quiet)
{
    bool live = mti_sheet_of(stderr).live && !quiet;
    for (size_t i = 0; i < rows->n; i++)
        entries[i] = (mti_sweep_entry){.label = rows->at[i].label,
                                       .workload = rows->at[i].options.workload,
                                       .steps = rows->at[i].options.train.settings.steps};
    bool ok = mti_sweep_run(entries, rows->n, results,
                            &(mti_sweep_listener){live ? show_turn : NULL, rows}, MTI_ON_META);
    if (live) fputs("\r\x1b[K", stderr);
    return ok;
}

static bool report(const mti_sweep_result *results, size_t n, const mti_options *o)
{
    return (mti_wants_json(o) || mti_print_sweep(results, n, o->output.quiet, stdout)) &&
           mti_write_object(mti_describe_sweep, &(mti_sweep_object){results, n}, o->output.json,
                            o->output.html, "sweep of", o->workload.name) &&
           (!o->output.svg || mti_draw_sweep(results, n, o->workload.name, o->output.svg));
}

int mti_sweep(const mti_options *options)
{
    mti_options o = *options;
    mti_sweep_rows rows;
    uint64_t failures = mti_failures();
    bool ok = mti_sweep_rows_make(&rows, &o);
    if (!ok) mti_fail_around(failures, MT_ERR_ARGUMENT, "%s", o.error);
    mti_sweep_entry *entries = ok ? mti_calloc(rows.n, sizeof *entries) : NULL;
    mti_sweep_result *results = entries ? mti_calloc(rows.n, sizeof *results) : NULL;
    ok = results && run(&rows, entries, results, o.output.quiet) && report(results, rows.n, &o);
    int status = ok ? MTI_EXIT_OK : mti_report_failure(&o);
    mti_free(results);
    mti_free(entries);
    mti_sweep_rows_free(&rows);
    return status;
}

static void set_defaults(mti_options *o) { o->train.settings.steps = 5; }

const mti_verb_rules mti_sweep_rules = {
    .verb = MTI_SWEEP, .defaults = set_defaults, .complete = mti_complete_within_gpu};

/* profile_rank.c: `memtape profile MODEL --tp N --pp N ...`: one rank of several. */
#include "cli/verbs.h"
#include "report/rank.h"

static bool write_reports(const mti_options *o, const mti_rank_result *r, bool fits)
{
    return (!mti_wants_text(o) || mti_print_rank(r, fits, stdout)) &&
           (!o->json || mti_json_write(mti_rank_json(r, fits), o->json) == MT_OK);
}

static int conclude(const mti_rank_result *r)
{
    int64_t off = mti_rank_off_by(r);
    if (!off) return MTI_EXIT_OK;
    fprintf(stderr, "memtape profile: the books do not balance: off by %lld bytes\n",
            (long long)off);
    return MTI_EXIT_FAILED;
}

/* Does not fit --capacity: reports that, and what a large enough device needs. */
static int report_refusal(const mti_options *o)
{
    int status = mti_report_failure(o);
    mt_clear_error(); /* reported; the reports may fail for other reasons */
    mti_rank_result r;
    bool ok = mti_rank_make(&r, &o->workload, &o->parallel, false) && write_reports(o, &r, false);
    if (!ok) status = mti_report_failure(o);
    mti_rank_free(&r);
    return status;
}

int mti_profile_rank(const mti_options *o)
{
    mti_rank_result r;
    bool ok = mti_rank_make(&r, &o->workload, &o->parallel, true) && write_reports(o, &r, true);
    int status = r.refused ? report_refusal(o) : ok ? conclude(&r) : mti_report_failure(o);
    mti_rank_free(&r);
    return status;
}

/* ranks.c: `memtape ranks`: what a rank keeps of four large models, technique by technique. */
#include "cli/verbs.h"
#include "report/page.h"
#include "report/results.h"

int mti_ranks(const mti_options *o)
{
    mti_ranks_result r;
    bool ok = mti_ranks_make(&r) && (!mti_wants_text(o) || mti_print_ranks(&r, stdout)) &&
              mti_write_object(mti_describe_ranks, &r, o->json, o->html, "one rank of",
                               "a trillion parameters");
    return ok ? MTI_EXIT_OK : mti_report_failure(o);
}
